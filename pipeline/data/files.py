"""Input files: finding them by path, glob, folder or `s3://` address, and reading them as Arrow tables.

Both engines read through `read`, so a text is the same in both.
"""

import io
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import pyarrow as pa

from pipeline.config import Data, Storage
from pipeline.data import arrow, delimited, hub, jsonl, listing, parquet, saved
from pipeline.data.decoding import Opener
from pipeline.errors import StorageError, UserError

Format = Literal["csv", "jsonl", "parquet", "arrow"]
SUFFIXES: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
}
# Modules with the functions `tables` and `names`.
COLUMNAR: dict[str, Any] = {"parquet": parquet, "arrow": arrow}
TEXTUAL: dict[str, Any] = {"csv": delimited, "jsonl": jsonl}
COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
SUPPORTED = ".csv, .tsv, .jsonl, .ndjson, .json (each also .gz, .bz2 or .zst), .parquet and .arrow"
REQUESTS = 16  # at once, for the tags of objects


@dataclass(frozen=True)
class DataFile:
    """One input file.

    `path` is absolute, or an `s3://` or `hf://` address; `size` in bytes; `tag` the SHA-256 of a local file's content,
    the ETag of an S3 object, the hash that the hub gives for one of its files.
    """

    path: str
    size: int
    tag: str
    format: Format

    @property
    def name(self) -> str:
        """How messages name the file: relative to the working directory if it lies below it."""
        return named(self.path)


def _real(path: str) -> str:
    """What a local path leads to through links; an address as it is."""
    return os.path.realpath(path) if path.startswith("/") else path


def named(path: str) -> str:
    """A path as messages have it."""
    return path.removeprefix(f"{Path.cwd()}/")


def find(paths: str | list[str], data: Data, storage: Storage, field: str = "data.train") -> list[DataFile]:
    """The files that the paths name, each once (also where links to it are named), in order of their paths.

    A path is a file, a glob (`*`, `?`, `[...]`, `**` for any depth), a folder (all data files in it, however deep), an
    `s3://` address of one of these, or a data set of the Hugging Face hub (`pipeline/data/hub.py`). Names that begin
    with `.` or `_` are left out unless named so. Of a place that holds several splits, the one that `field` is called
    after is taken. Raises UserError with all problems, each naming `field`: nothing found, a suffix of no known format,
    a place that cannot be read.
    """
    problems: list[str] = []
    found: dict[str, tuple[listing.Found, Format]] = {}
    split = field.rpartition(".")[2]
    for path in [paths] if isinstance(paths, str) else paths:
        try:
            for match, kind in _chosen(path, data, storage, split):
                real = _real(match.path)
                if real not in found or match.path == real:
                    found[real] = (match, kind)
        except UserError as error:
            # The store's own messages name the field that it is configured by.
            problems += [f"{field}: {problem.removeprefix('storage.path: ')}" for problem in error.problems]
        except (OSError, StorageError) as error:
            problems.append(f"{field}: {path}: cannot be listed: {_reason(error)}")
    if not problems and not found:
        problems.append(f"{field}: no path is given")
    if problems:
        raise UserError(*problems)
    chosen = sorted(found.values(), key=lambda each: each[0].path)
    try:
        with ThreadPoolExecutor(REQUESTS) as pool:
            tags = list(pool.map(lambda each: each[0].tag or listing.tag(each[0].path, storage), chosen))
    except (OSError, StorageError) as error:
        raise UserError(f"{field}: cannot be read: {_reason(error)}") from error
    return [DataFile(match.path, match.size, tag, kind) for (match, kind), tag in zip(chosen, tags, strict=True)]


def read(
    file: DataFile, columns: list[str], data: Data, storage: Storage, batch_rows: int = 4096
) -> Iterator[pa.Table]:
    """Yield the asked columns of a file as tables of 1 to `batch_rows` rows, in file order; none for an empty file.

    The file is streamed. CSV columns are strings without nulls; those of the other formats have the types as written
    (string, int64, float64, bool, lists of them), and two tables of one JSONL file may differ in type where the file
    does. Raises UserError, its lines beginning with the file's name, for a missing column, a malformed row (numbered
    from 1), bytes that are not `data.encoding` and a damaged file; StorageError when a store fails.
    """
    columns = list(dict.fromkeys(columns))
    with _told(file):
        if file.format in COLUMNAR:
            with _source(file, storage) as source:
                yield from COLUMNAR[file.format].tables(source, file.name, columns, batch_rows)
        else:
            yield from TEXTUAL[file.format].tables(_opener(file, storage), file.name, columns, data, batch_rows)


def header_of(file: DataFile, data: Data, storage: Storage) -> list[str]:
    """Names of all columns of a file; of a JSONL file the keys of its first rows. Raises as `read` does."""
    with _told(file):
        if file.format in COLUMNAR:
            with _source(file, storage) as source:
                found: list[str] = COLUMNAR[file.format].names(source)
        else:
            found = TEXTUAL[file.format].names(_opener(file, storage), file.name, data)
    return found


def _source(file: DataFile, storage: Storage) -> pa.NativeFile:
    filesystem, path = listing.resolve(file.path, storage)
    return filesystem.open_input_file(path)


def _opener(file: DataFile, storage: Storage) -> Opener:
    filesystem, path = listing.resolve(file.path, storage)
    compression = COMPRESSIONS.get(Path(listing.bare(file.path).lower()).suffix)

    def opened() -> io.RawIOBase:
        stream = filesystem.open_input_stream(path, compression=compression, buffer_size=delimited.BUFFER)
        return cast(io.RawIOBase, stream)  # it has all that is used of one

    return opened


@contextmanager
def _told(file: DataFile) -> Iterator[None]:
    """What goes wrong with a file, as an error of ours that names it."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{file.name}: is not there any more") from None
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:  # the last from damaged names of columns
        if listing.remote(file.path) and isinstance(error, OSError):
            raise StorageError(f"{file.name}: cannot be read: {_reason(error)}") from error
        raise UserError(f"{file.name}: cannot be read as {file.format}: {_reason(error)}") from error


def format_of(path: str, data: Data) -> Format | None:
    """The format by the configuration, else by the file's suffix; None for an unknown one, or Parquet in a `.gz`."""
    kind = suffix_format(path) if data.format == "auto" else data.format
    return None if kind in COLUMNAR and Path(listing.bare(path).lower()).suffix in COMPRESSIONS else kind


def suffix_format(path: str) -> Format | None:
    """The format that a file's name tells, if it tells one."""
    name = Path(listing.bare(path).lower())
    return SUFFIXES.get(Path(name.stem).suffix if name.suffix in COMPRESSIONS else name.suffix)


def _chosen(path: str, data: Data, storage: Storage, split: str) -> list[tuple[listing.Found, Format]]:
    on_hub = hub.address(path)
    matches, is_folder = hub.matching(on_hub, split) if on_hub else listing.matching(path, storage)
    if is_folder:
        matches = saved.rows_only(matches, path, split, storage)
        # Beside its data a folder may hold a README; with a format given, also data files without a suffix.
        suffixed = [match for match in matches if suffix_format(match.path) is not None]
        if data.format != "auto":
            suffixed = [match for match in suffixed if suffix_format(match.path) == data.format] or matches
        if not suffixed:
            names = ", ".join(Path(match.path).name for match in matches[:5]) or "nothing"
            raise UserError(f"{path}: no data files in this folder, found {names}; wanted {SUPPORTED}")
        matches = suffixed
    problems, chosen = [], []
    for match in matches:
        kind = format_of(match.path, data)
        if kind is None:
            problems.append(f"{named(match.path)}: unknown suffix; give data.format, or one of {SUPPORTED}")
        else:
            chosen.append((match, kind))
    if problems:
        raise UserError(*problems)
    return chosen


def _reason(error: BaseException) -> str:
    text = str(error) if not isinstance(error, OSError) or not error.strerror else error.strerror
    return (text.splitlines() or [type(error).__name__])[0].rstrip(".")
