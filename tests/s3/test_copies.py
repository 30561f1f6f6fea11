"""A run's folder copied to another bucket and prefix, or to a folder, is the same run there."""

import json
from pathlib import Path

import pytest

from pipeline import checkpoint
from pipeline.config import Config, Storage
from pipeline.data.facts import Facts
from pipeline.errors import Superseded
from pipeline.run import RunFolder
from pipeline.runs import describe, export, found
from pipeline.s3_store import S3Store
from pipeline.storage import Store, open_store
from tests.s3.checkpoints import BIG, loaded, save
from tests.s3.conftest import Server
from tests.unit import stored


def copy(source: Store, target: Store, scratch: Path) -> None:
    """As `aws s3 cp --recursive` does."""
    for entry in source.list():
        source.download(entry.name, scratch / "file")
        target.upload(scratch / "file", entry.name)


@pytest.mark.parametrize("place", ["s3://another.bucket/deep/er", "folder"])
def test_a_copy_is_listed_exported_and_continued_where_it_lies(
    server: Server, store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", str(server.storage.endpoint_url))
    assert isinstance(store, S3Store)
    if place == "folder":
        place = str(tmp_path / "there")
    else:
        store.client.create_bucket(Bucket="another.bucket")
    here = Config.model_validate({"run": {"name": "run"}, "storage": {"path": store.uri}})
    folder = RunFolder.of(here)
    folder.take_over(here, Facts({}, {"train": 9}, {}, ["a", "b"], {}, "string"))
    assert folder.claim_attempt(2) == 1
    for step in (5, 10):
        files = save(folder.store, tmp_path, step, size=BIG if step == 10 else 9)
    best = "checkpoint-00000005-a001"
    folder.write_result({**stored.RESULT, "steps": 10, "epochs": 1, "history": [], "best_checkpoint": best}, None)

    copy(folder.store, open_store(Storage(path=place)).child("run"), tmp_path)
    folder.store.delete("result.json")
    store.delete("run")

    with found(f"{place}/run", None) as run:
        facts = describe(run)
        assert facts["checkpoints"] == ["checkpoint-00000005-a001", "checkpoint-00000010-a001"]
        assert export(run, tmp_path / "model", "best") == best
        assert loaded(run, tmp_path, checkpoint.Name(1, 10)) == files
        manifest = run.read("checkpoint-00000010-a001/manifest.json").decode()
        assert store.uri not in json.dumps(facts["result"]) + manifest
    assert {path.name for path in (tmp_path / "model").iterdir()} == {"config.json", "model.safetensors"}
    # Another driver takes it over there, and its first attempt is the second of the run.
    there = RunFolder.of(here.model_copy(update={"storage": Storage(path=place)}))
    before = there.started_with()
    assert before is not None
    assert before[1].rows == {"train": 9}
    with pytest.raises(Superseded, match="newer attempt has taken over"):
        there.claim_attempt(2)
    there.take_over(here, before[1])
    assert there.claim_attempt(2) == 2
