"""Data sets of the hub are read as local files are, and a hub that is silent is told within seconds."""

import gzip
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from pipeline import hub
from pipeline.config import Columns, Config, Data, Model, Storage
from pipeline.data.files import find, read
from pipeline.data.inspect import inspect
from pipeline.errors import UserError
from pipeline.model import describe
from tests.hub import COMMIT, serving

DATA = Data(columns=Columns(label="label"))
FILES = {
    "README.md": b"---\n---\n",
    "data/train-00000-of-00002.csv": b"text,label\na,x\nb,y\n",
    "data/train-00001-of-00002.jsonl.gz": gzip.compress(b'{"text": "c", "label": "x"}\n'),
    "data/test-00000-of-00001.csv": b"text,label\nd,y\n",
    "pairs/train.csv": b"text,label\ne,x\n",
    "pairs/dev.csv": b"text,label\nf,y\n",
    "notes.txt": b"",
}
CONFIGURATIONS: list[dict[str, Any]] = [
    {"config_name": "plain", "default": True, "data_files": [
        {"split": "train", "path": "data/train-*"}, {"split": "test", "path": ["data/test-*"]},
    ]},
    {"config_name": "pairs", "data_dir": "pairs"},
    {"config_name": "one", "data_files": "pairs/dev.csv"},
]  # fmt: skip


def put(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """What HF_ENDPOINT does for a new process."""
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Puts a hub with the given card in the place of the real one, and an empty cache."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    open_now: list[Any] = []

    def start(configurations: list[dict[str, Any]], files: dict[str, bytes] = FILES) -> None:
        server = serving(files, {"configs": configurations} if configurations else {})
        put(monkeypatch, server.__enter__())
        open_now.append(server)

    yield start
    for server in open_now:
        server.__exit__(None, None, None)


def texts(path: str, field: str = "data.train") -> list[str]:
    found = find(path, DATA, Storage(), field)
    tables = [table for file in found for table in read(file, ["text", "label"], DATA, Storage())]
    return [text for table in tables for text in table["text"].to_pylist()]


def refused(path: str, field: str = "data.train") -> str:
    with pytest.raises(UserError) as caught:
        find(path, DATA, Storage(), field)
    (problem,) = caught.value.problems
    assert problem.startswith(f"{field}: {path.partition('@')[0][:20]}")
    return problem


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("hub:owner/rows", ["a", "b", "c"]),
        ("hub:owner/rows:test", ["d"]),
        ("hub:owner/rows@main/pairs", ["e"]),
        ("hub:owner/rows/pairs:validation", ["f"]),
        ("hub:owner/rows/one", ["f"]),
        ("hf://datasets/owner/rows/data/test-00000-of-00001.csv", ["d"]),
        ("hf://datasets/owner/rows/pairs/", ["f", "e"]),
        ("hf://datasets/owner/rows@main/data/train-*", ["a", "b", "c"]),
        ("hf://datasets/owner/rows/**/*.gz", ["c"]),
    ],
)
def test_a_data_set_of_the_hub_is_read_by_name_and_by_path(at: Any, path: str, expected: list[str]) -> None:
    at(CONFIGURATIONS)
    assert texts(path) == expected


def test_without_a_description_splits_go_by_the_names_of_files(at: Any) -> None:
    at([])
    assert texts("hub:owner/rows") == ["a", "b", "c", "e"]
    assert texts("hub:owner/rows", "data.validation") == ["f"]


def test_the_files_are_noted_with_their_commit_size_and_hash(at: Any) -> None:
    at(CONFIGURATIONS)
    (file,) = find("hub:owner/rows:test", DATA, Storage())
    assert file.path == f"hf://datasets/owner/rows@{COMMIT}/data/test-00000-of-00001.csv"
    assert file.size == 15
    assert len(file.tag) == 64


def test_both_splits_of_one_name_make_a_job(at: Any) -> None:
    at([])
    data = DATA.model_copy(update={"train": "hub:owner/rows", "validation": "hub:owner/rows"})
    facts = inspect(Config(data=data))
    assert facts.rows == {"train": 4, "validation": 1}
    assert facts.label_counts == {"train": {"x": 3, "y": 1}, "validation": {"x": 0, "y": 1}}


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("hub:owner/rows:dev", "no split 'dev'; the data set has 'test', 'train'"),
        ("hub:owner/rows/nix", "no configuration 'nix'; the data set has 'plain', 'pairs', 'one'"),
        ("hub:owner/nothing", "the hub has no data set owner/nothing, or it is private; then set HF_TOKEN"),
        ("hub:owner", "expected hub:OWNER/NAME"),
        ("hub:owner/rows/", "expected hub:OWNER/NAME"),
        ("hf://models/owner/rows", "expected hub:OWNER/NAME"),
        ("hf://datasets/owner/rows/nix.csv", "no such file or folder; the data set has README.md, data/"),
        ("hf://datasets/owner/rows/*.csv", "no file matches; the data set has README.md"),
        ("hf://datasets/owner/rows/notes.txt", "unknown suffix"),
    ],
)
def test_what_the_hub_does_not_have_is_refused_naming_what_it_has(at: Any, path: str, words: str) -> None:
    at(CONFIGURATIONS)
    assert words in refused(path)


def test_several_configurations_without_a_default_are_listed(at: Any) -> None:
    at(CONFIGURATIONS[1:])
    assert "has the configurations 'pairs', 'one'; give one as hub:OWNER/NAME/CONFIGURATION" in refused(
        "hub:owner/rows"
    )


def test_a_missing_path_that_looks_like_a_name_of_the_hub_says_how_that_is_written() -> None:
    assert "no such file or folder" in (problem := refused("owner/rows"))
    assert "for the data set of the hub write hub:owner/rows" in problem


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """A hub that takes connections and never answers."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hub, "TIMEOUT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0), backlog=50) as listening:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        put(monkeypatch, address)
        yield address
    monkeypatch.setattr(hub, "_silent", False)


def test_a_silent_hub_is_told_at_once_with_its_address(silent: str) -> None:
    import transformers  # noqa: F401  (takes seconds)

    began = time.monotonic()
    assert f"the hub {silent} cannot be asked for owner/rows" in refused("hub:owner/rows")
    with pytest.raises(UserError, match=rf"model\.path: the hub {silent} cannot be asked for owner/model"):
        describe(Model(path="owner/model"), Storage())
    assert time.monotonic() - began < 10


def test_a_model_in_the_cache_needs_no_hub(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from pipeline.model import locate

    packaged = Path(locate(Model(), Storage()))
    folder = Path(constants.HF_HUB_CACHE) / "models--owner--model"
    snapshot = folder / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    for file in packaged.iterdir():
        if file.suffix in (".json", ".txt"):
            (snapshot / file.name).write_bytes(file.read_bytes())
    describe(Model(), Storage())  # imports take seconds
    began = time.monotonic()
    found = describe(Model(path="owner/model"), Storage())
    assert (found.architecture, found.max_tokens) == ("BertModel", 512)
    assert time.monotonic() - began < 10


def test_a_name_that_no_repository_can_have_is_refused() -> None:
    with pytest.raises(UserError, match=r"model\.path: 'no such model' is no name of a model on the hub"):
        describe(Model(path="no such model"), Storage())
