"""docs/migration.md: the old job on the Ray that it was written for, and the new commands in a shell, as they stand."""

import csv
import io
import os
import tempfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pipeline import checkpoint
from pipeline.config import Storage
from pipeline.s3_store import S3Store
from pipeline.storage import Store, open_store
from tests.migration import REPOSITORY, blocks, save_bert
from tests.ray import old_ray
from tests.ray.conftest import PIPELINE, Program, lines_of, result_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
ROWS = {"train.csv": 64, "validation.csv": 32}
STEPS = 6  # 64 rows by 16 on each of two workers, three epochs
# `python pairs.py` would wait for ever on two cores: the trainer has a CPU beside its workers, and reading needs one.
START = """
import runpy, ray
ray.init("local", num_cpus=4, include_dashboard=False)
runpy.run_path("pairs.py", run_name="__main__")
"""


@pytest.fixture(scope="module")
def runs(store: Store) -> S3Store:
    """s3://bucket/runs on the embedded server."""
    assert isinstance(store, S3Store)
    store.client.create_bucket(Bucket="bucket")
    found = open_store(Storage(path="s3://bucket/runs", endpoint_url=store.settings.endpoint_url))
    assert isinstance(found, S3Store)
    return found


@pytest.fixture(scope="module")
def place(runs: S3Store, program: Program, tmp_path_factory: pytest.TempPathFactory) -> Program:
    """A folder with all that the snippets name, and an environment in which `s3://bucket` is on that server."""
    folder = tmp_path_factory.mktemp("place")
    save_bert(folder / "bert-base-cased")
    for name, count in ROWS.items():
        with (program.folder / name).open(newline="", encoding="utf-8") as file:
            found = list(csv.DictReader(file))
        with (folder / name).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(found[0]))
            writer.writeheader()
            writer.writerows(found[number * len(found) // count] for number in range(count))
    snippets = {"pairs.py": "old: pairs.py", "my_loop.py": "old: my_loop.py", "pairs.yaml": "new: configuration"}
    for name, mark in snippets.items():
        (text,) = blocks(mark)
        (folder / name).write_text(text, encoding="utf-8")
    aws = {"AWS_ENDPOINT_URL": str(runs.settings.endpoint_url), "AWS_REGION": "us-east-1"}
    return Program(folder, {**program.environ, **aws})


@pytest.fixture(scope="module")
def old(place: Program, runs: S3Store) -> Store:
    """What the old job has left: the folder of its only trial."""
    environ = {
        "HOME": str(place.folder / "home"),  # Ray writes its results there as well
        "HF_HUB_OFFLINE": "1",
        "RAY_CHDIR_TO_TRIAL_DIR": "0",  # bert-base-cased is a folder beside the script, not a model of the hub
        "RAY_USAGE_STATS_ENABLED": "0",
        "TMPDIR": str(place.folder / "scratch"),  # old loops left each checkpoint's folder to the system
        "RAY_TMPDIR": tempfile.gettempdir(),  # whose sockets need a short path
    }
    (place.folder / "scratch").mkdir()
    python = old_ray.python()
    Program(place.folder, {**place.environ, **environ}).run("-c", START, program=str(python))
    (trial,) = runs.child("pairs").folders()
    return runs.child("pairs", trial)


def shell(program: Program, command: str, **environ: str) -> None:
    path = f"{Path(PIPELINE).parent}{os.pathsep}{os.environ['PATH']}"
    Program(program.folder, {**program.environ, **environ, "PATH": path}).run("-c", command, program="bash")


def test_the_old_job_trains_where_it_comes_from(old: Store, place: Program) -> None:
    reports = lines_of(old, "result.json")
    assert [report["training_iteration"] for report in reports] == [1, 2, 3]
    assert [report["rows"] for report in reports] == [ROWS["validation.csv"]] * 3  # gathered from both workers
    assert all(0 < report["loss"] < 5 and 0 <= report["accuracy"] <= 1 for report in reports)

    kept = [name for name in old.folders() if name.startswith("checkpoint_")]
    assert len(kept) == 2
    word = "bert.embeddings.LayerNorm.weight"
    saved = [torch.load(io.BytesIO(old.read(f"{name}/model.pt")), weights_only=True)[word] for name in sorted(kept)]
    begun = load_file(place.folder / "bert-base-cased" / "model.safetensors")[word.removeprefix("bert.")]
    for before, after in ((begun, saved[0]), (saved[0], saved[1])):
        assert 0 < (after - before).abs().max() < STEPS * 2e-5 * 1.1  # AdamW moves a weight by the rate at most


def test_the_new_job_does_what_the_old_one_did_beside_what_that_has_left(place: Program, runs: S3Store) -> None:
    run = runs.child("pairs")
    left = set(run.folders())
    shell(place, blocks("new: command")[0])
    result = result_of(run)
    assert (result["status"], result["steps"], result["epochs"], result["world_size"]) == ("finished", STEPS, 3.0, 2)
    assert (result["train_rows"], result["eval_rows"]) == (ROWS["train.csv"], ROWS["validation.csv"])
    assert [entry["step"] for entry in result["history"]] == [2, 4, 6]
    found = {entry["step"]: entry["eval_accuracy"] for entry in result["history"]}
    best = checkpoint.Name.parse(result["best_checkpoint"])
    assert best is not None
    assert found[best.step] == max(found.values())
    assert {name.step for name in checkpoint.complete(run)} == {4, 6, best.step}
    assert left <= set(run.folders())


@pytest.mark.parametrize(("number", "name"), [(1, "own-loop-ray"), (2, "own-loop-torch")])
def test_the_commands_of_the_own_loop_run(program: Program, store: Store, number: int, name: str) -> None:
    cut = {"PIPELINE__TRAINING__MAX_STEPS": "4", "PIPELINE__MODEL__CONFIG": "{num_hidden_layers: 2}"}
    shell(Program(REPOSITORY, program.environ), blocks("new: command")[number], **cut)
    result = result_of(store.child(name))
    assert (result["status"], result["steps"], result["train_rows"]) == ("finished", 4, 10_003)
    assert result["last_checkpoint"] in [str(found) for found in checkpoint.complete(store.child(name))]
