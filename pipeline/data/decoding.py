"""Bytes to text: the lines of a CSV or JSONL file, and the place of a byte that is not in its encoding."""

import codecs
import io
from collections.abc import Callable

from pipeline.errors import UserError

Opener = Callable[[], io.RawIOBase]
"""Opens the (decompressed) bytes of one file from their beginning; called again to find the place of an error."""

CHUNK = 1 << 20
# How files begin that are no text, whatever their names say: what they are, and what to do.
NO_TEXT = {
    b"\x1f\x8b": ("gzip data", "end its name in .gz"),
    b"BZh91AY&SY": ("bzip2 data", "end its name in .bz2"),
    b"\x28\xb5\x2f\xfd": ("Zstandard data", "end its name in .zst"),
    b"PAR1": ("Parquet", "end its name in .parquet, or set data.format"),
    b"ARROW1": ("Arrow", "end its name in .arrow, or set data.format"),
    b"PK\x03\x04": ("a zip archive, as Excel writes too", "unpack it, or save it as CSV"),
}


def known(encoding: str) -> str:
    """The codec for `encoding`; a UTF-8 byte order mark is dropped. Raises UserError for what is no text encoding."""
    try:
        name = codecs.lookup(encoding).name
        io.TextIOWrapper(io.BytesIO(), encoding=name)  # refuses codecs that make no text, such as hex
    except (LookupError, ValueError):  # ValueError: of a NUL in the name
        usual = "utf-8, latin-1 and utf-16"
        raise UserError(f"data.encoding: {encoding!r} is no known text encoding; {usual} are") from None
    return "utf-8-sig" if name == "utf-8" else name


def lines(opened: Opener, encoding: str) -> io.TextIOWrapper:
    """The lines of a file, each with the line end as written (LF, CRLF or CR). Raises UnicodeError while read."""
    # newline="" keeps CRLF inside quoted cells; str.splitlines would also break at U+2028 and form feeds.
    return io.TextIOWrapper(io.BufferedReader(opened(), CHUNK), encoding=known(encoding), newline="")


def undecodable(opened: Opener, name: str, encoding: str) -> UserError:
    """The error for a file that is not in `encoding`, with the byte position (from 0, after decompression) and line."""
    with opened() as stream:
        start = stream.read(16) or b""
    for beginning, (what, advice) in NO_TEXT.items():
        if start.startswith(beginning):
            return UserError(f"{name}: is {what}, no text; {advice}")
    codec = known(encoding)
    # The "sig" decoder counts from behind the byte order mark; the plain one counts it in, as a hex viewer does.
    decoder = codecs.getincrementaldecoder("utf-8" if codec == "utf-8-sig" else codec)("strict")
    fed, line = 0, 1
    with opened() as stream:
        while True:
            chunk = stream.read(CHUNK) or b""
            pending = len(decoder.getstate()[0])
            try:
                text = decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                line += error.object[: error.start].count(b"\n")
                found = error.object[error.start : error.start + 1].hex().upper()
                return UserError(
                    f"{name}: byte {fed - pending + error.start} (0x{found}, line {line}) is not {encoding}; "
                    "give the file's encoding as data.encoding, such as latin-1 or utf-16"
                )
            except UnicodeError:
                break  # codecs such as idna that do not say where
            line += text.count("\n")
            fed += len(chunk)
            if not chunk:
                break
    return UserError(f"{name}: not {encoding} throughout; give the file's encoding as data.encoding")
