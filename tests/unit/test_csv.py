"""CSV as people write it: the text as written, or a refusal with its place."""

import bz2
import csv
import gzip
import io
from pathlib import Path

import pyarrow as pa
import pyarrow.fs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.data import files
from tests.unit.conftest import Write
from tests.unit.reading import EXAMPLES, STORAGE, data, problem, rows

ROOT = Path(__file__).resolve().parents[2]


# CSV as people write it


def test_csv_keeps_texts_as_written(write: Write) -> None:
    path = write(
        "a.csv",
        '\ufefftext,label\r\n"two\r\nlines, and ""quotes""",a\r\nnull,NA\r\nNone,nan\r\n,a\r\n"",b\r\n'
        '  spaces ,a\r\n\r\n"x\u2028y\x0cz",b\r\n',
    )
    assert rows(path) == [
        ('two\r\nlines, and "quotes"', "a"),
        ("null", "NA"),
        ("None", "nan"),
        ("", "a"),
        ("", "b"),
        ("  spaces ", "a"),
        ("x\u2028y\x0cz", "b"),
    ]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_csv_delimiter_and_line_end_are_found(write: Write, delimiter: str, end: str) -> None:
    lines = [delimiter.join(cells) for cells in (("id", "text", "label"), ("1", "a: b", "x"), ("2", '"c,;|\td"', "y"))]
    assert rows(write("a.csv", end.join(lines))) == [("a: b", "x"), ("c,;|\td", "y")]


def test_csv_delimiter_may_be_given(write: Write) -> None:
    assert rows(write("a.csv", "text:label\na,b:c\n"), delimiter=":") == [("a,b", "c")]


def test_csv_delimiter_is_the_one_that_makes_the_configured_columns(write: Write) -> None:
    assert rows(write("a.csv", "text;label;x,y,z,w\na;b;c\n")) == [("a", "b")]


def test_csv_columns_are_strings_in_the_order_asked(write: Write) -> None:
    path = write("a.csv", "label,other,text\n1,x,2.50\n")
    (file,) = files.find(str(path), data(), STORAGE)
    (table,) = files.read(file, ["text", "label"], data(), STORAGE)
    assert table.schema == pa.schema([("text", pa.string()), ("label", pa.string())])
    assert table.to_pylist() == [{"text": "2.50", "label": "1"}]


def test_csv_long_text_is_read_whole(write: Write) -> None:
    text = "word " * 200_000
    assert rows(write("a.csv", f'text,label\n"{text}",a\n')) == [(text, "a")]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (gzip.compress(b"text,label\nx,a\n"), "is gzip data, no text; end its name in .gz"),
        (bz2.compress(b"text,label\nx,a\n"), "is bzip2 data, no text; end its name in .bz2"),
        (pa.compress(b"text,label\nx,a\n", "zstd", asbytes=True), "is Zstandard data, no text; end its name in .zst"),
        (b"PK\x03\x04\x14\0\0\0\x08\0\xff\xff", "is a zip archive, as Excel writes too, no text; unpack it, or save"),
        (b"PAR1\x15\x04\xff", "is Parquet, no text; end its name in .parquet"),
        (b"PK gr\xfcn,label\n", "is not utf-8; give the file's encoding"),
    ],
)
def test_what_is_no_text_is_called_what_it_is(write: Write, content: bytes, words: str) -> None:
    for name in ("a.csv", "a.jsonl"):
        assert words in problem(write(name, content))


def test_latin1_is_refused_with_the_byte_position_and_read_when_configured(write: Write) -> None:
    content = "text,label\ngut,a\nschön,b\n".encode("latin-1")
    path = write("a.csv", content)
    assert f"a.csv: byte {content.index(0xF6)} (0xF6, line 3) is not utf-8" in problem(path)
    assert rows(path, encoding="latin-1") == [("gut", "a"), ("schön", "b")]


@pytest.mark.parametrize("offset", [0, 1, 2, 3])
def test_byte_position_holds_far_into_a_file_with_a_byte_order_mark(write: Write, offset: int) -> None:
    content = b"\xef\xbb\xbftext,label\n" + b"x" * offset + "é,a\n".encode() * 300_000 + b"\xff,b\n"
    assert f"byte {content.index(0xFF)} (0xFF, line 300002)" in problem(write("a.csv", content))


def test_utf16_is_read_when_configured(write: Write) -> None:
    path = write("a.csv", "text,label\r\nschön,b\r\n".encode("utf-16"))
    assert "byte 0 (0xFF" in problem(path)
    assert rows(path, encoding="utf-16") == [("schön", "b")]


@pytest.mark.parametrize("delimiter", ['"', "\n"])
def test_impossible_delimiter_is_refused(write: Write, delimiter: str) -> None:
    assert "data.delimiter: " in problem(write("a.csv", "text,label\na,b\n"), delimiter=delimiter)


@pytest.mark.parametrize("encoding", ["idna", "utf-7", "shift_jis", "ascii"])
def test_odd_codecs_end_in_a_user_error(write: Write, encoding: str) -> None:
    message = problem(write("a.csv", b"text,label\n\xff,b\n"), encoding=encoding)
    assert "a.csv: " in message
    assert encoding in message
    assert "data.encoding" in message


@pytest.mark.parametrize("encoding", ["klingon", "hex"])
def test_unknown_encoding_is_refused(write: Write, encoding: str) -> None:
    message = problem(write("a.csv", "text,label\na,b\n"), encoding=encoding)
    assert f"data.encoding: '{encoding}' is no known text encoding" in message


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("text,label\na,b\n\nc\n", "row 2 (line 4) has 1 cells, the header has 2"),
        ('text,label\n"a\nb",c\nd,e,f\n', "row 2 (line 4) has 3 cells, the header has 2"),
        ('text,label\na,b\n"never closed,c\nd,e\n', "row 2 (line 3) is malformed"),
        ('text,label\n"a" b,c\n', "row 1 (line 2) is malformed"),
        ("text,kind,text\na,b,c\n", "no column 'label'; the file has 'text', 'kind', 'text'; "),
        ("text,label,text\na,b,c\n", "2 columns are named 'text'"),
    ],
)
def test_malformed_csv_is_refused_with_its_place(write: Write, content: str, words: str) -> None:
    assert "a.csv: " + words in problem(write("a.csv", content)) + "; "


def test_malformed_row_is_found_behind_many_good_ones(write: Write) -> None:
    content = "text,label\n" + "a,b\n" * 9_999 + "c\n" + "a,b\n" * 9_999
    assert "row 10000 (line 10001) has 1 cells" in problem(write("a.csv", content))


@pytest.mark.parametrize("content", ["", "\ufeff", "\n\n", "text,label\n", "text,label"])
def test_csv_without_rows_gives_none(write: Write, content: str) -> None:
    assert rows(write("a.csv", content)) == []


TEXTS = st.text(st.characters(codec="utf-8"), max_size=30) | st.text(
    st.sampled_from("\",;|\t\r\n'\\ a\x00"), max_size=12
)


@EXAMPLES
@given(
    st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=20),
    st.sampled_from(",;\t|"),
    st.sampled_from(["\n", "\r\n"]),
)
def test_any_text_survives_a_csv(tmp_path: Path, table: list[tuple[str, str]], delimiter: str, end: str) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter, lineterminator=end, quoting=csv.QUOTE_ALL)
    writer.writerows([("text", "label"), *table])
    path = tmp_path / "a.csv"
    path.write_bytes(text.getvalue().encode())
    assert rows(path, batch_rows=7) == table
