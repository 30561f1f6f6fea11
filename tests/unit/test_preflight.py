"""Bad input is refused before a worker starts: one line for each problem, all of them together, nothing written."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline import cluster
from pipeline.config import Config
from pipeline.launch import check
from pipeline.settings import load
from tests.unit.conftest import TEXTS

PAIRS = "text,b,category\none two three,four five,a\nsix,seven,b\n"


def _problems(*overrides: str) -> list[str]:
    return [row.found for row in check(load(None, list(overrides), {})) if not row.passed]


def test_a_good_job_passes_every_check(files: Callable[..., list[str]]) -> None:
    rows = check(load(None, files(), {}))
    assert [row.name for row in rows if not row.passed] == []
    assert {row.name for row in rows} == {"strategy", "metrics", "storage", "data", "model", "capacity", "run"}


@pytest.mark.parametrize(
    ("train", "validation", "more", "words"),
    [
        (TEXTS, TEXTS, ["data.columns.label=intent"], ["train.csv: no column 'intent'", "'text', 'category'"]),
        ("text,category\n", TEXTS, [], ["data.train", "no rows"]),
        ("text,category\nx,a\n", TEXTS, [], ["data.train", "1"]),
        (TEXTS + "y,\n", TEXTS, [], ["train.csv", "row 9"]),
        (TEXTS, "text,category\nx,c\n", [], ["validation.csv", "'c'"]),
        (TEXTS, TEXTS, ["data.max_length=4096"], ["data.max_length: 4096", "512"]),
        (TEXTS, TEXTS, ["data.max_length=2"], ["data.max_length: 2 leaves no token", "the 2 special", "expected 3 or"]),
        (PAIRS, PAIRS, ["data.max_length=2", "data.columns.text_pair=b"], ["data.max_length: 2", "expected 4 or more"]),
        (TEXTS, TEXTS, ["metrics.names=[acuracy]"], ["acuracy", "accuracy"]),
        (TEXTS, TEXTS, ["model.path=package:no_such_package"], ["model.path", "no_such_package"]),
        (TEXTS, TEXTS, ["model.config={hidden_dropout: 0.1}"], ["model.config.hidden_dropout", "bert"]),
        (TEXTS, TEXTS, ["training.mixed_precision=fp16", "scaling.use_gpu=false"], ["fp16 needs a GPU"]),
        (TEXTS, TEXTS, ["scaling.workers=4000", "training.epochs=1"], ["4000 workers", "can hold"]),
        (TEXTS, TEXTS, ["scaling.use_gpu=true"], ["1 GPU", "0 GPUs"]),
        (TEXTS, TEXTS, ["strategy.kind=fsdp", "strategy.version=1"], ["strategy.version: 1 needs GPUs"]),
        (TEXTS, TEXTS, ["strategy.kind=deepspeed", "strategy.config={folder}/batch.json"],
         ["train_micro_batch_size_per_gpu is 5", "is 32"]),
        (TEXTS, TEXTS, ["strategy.kind=deepspeed", "strategy.config={folder}/warm-up.json"],
         ["warmup_num_steps is 9", "of 2 steps is 0"]),
        (TEXTS, TEXTS, ["strategy.accelerate_config=missing.yaml"], ["accelerate_config: missing.yaml: no such file"]),
        (TEXTS, TEXTS, ["storage={path: s3://bucket/x, endpoint_url: http://127.0.0.1:9}"], ["127.0.0.1:9"]),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_what_was_found(
    files: Callable[..., list[str]], tmp_path: Path, train: str, validation: str, more: list[str], words: list[str]
) -> None:
    (tmp_path / "batch.json").write_text('{"train_micro_batch_size_per_gpu": 5}')
    scheduler = {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 9}}
    (tmp_path / "warm-up.json").write_text(json.dumps({"scheduler": scheduler}))
    problems = _problems(*files(train, validation), *(setting.replace("{folder}", str(tmp_path)) for setting in more))
    assert problems
    assert any(all(word in problem for word in words) for problem in problems), problems


def test_the_table_says_what_becomes_of_a_deepspeed_configuration(
    files: Callable[..., list[str]], tmp_path: Path
) -> None:
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 1}, "fp16": {"enabled": true}}')
    settings = ["strategy.kind=deepspeed", f"strategy.config={tmp_path}/ds.json"]
    found = {row.name: row for row in check(load(None, [*files(), *settings], {}))}
    assert all(row.passed for row in found.values())
    assert "ZeRO stage 1" in found["strategy"].found
    assert "mixed precision fp16 from strategy.config" in found["strategy"].found
    assert "bf16 in place of fp16" in found["capacity"].found


def test_problems_of_all_kinds_are_reported_together_and_nothing_is_written(
    files: Callable[..., list[str]], tmp_path: Path
) -> None:
    arguments = files("text,category\nx,a\ny,\n", TEXTS)
    problems = _problems(*arguments, "data.max_length=4096", "metrics.names=[nothing]", "scaling.workers=4000")
    assert len(problems) >= 4
    assert not (tmp_path / "runs" / "banking77").exists()


def test_a_run_of_another_job_is_refused_with_the_differences(files: Callable[..., list[str]], tmp_path: Path) -> None:
    from pipeline.data.inspect import inspect
    from pipeline.run import RunFolder

    config = load(None, files(), {})
    RunFolder.of(config).take_over(config, inspect(config))
    assert _problems(*files(), "training.epochs=9", "scaling.workers=1", "training.batch_size_per_worker=64") == []
    found = _problems(*files(), "training.learning_rate=0.1", "run.seed=7", "training.global_batch_size=10")
    text = "\n".join(found)
    for words in ("training.learning_rate: the run has 0.0005", "run.seed: the run has 42", "the run has 64 rows"):
        assert words in text
    assert any("data.train" in problem for problem in _problems(*files(TEXTS + "more,a\n")))


def test_ray_data_needs_a_cpu_beside_the_workers() -> None:
    capacity = cluster.Capacity(({"CPU": 2.0},), local=False)
    ray = Config.model_validate({"scaling": {"workers": 2, "use_gpu": False}})
    torch = Config.model_validate({"scaling": {"workers": 2, "use_gpu": False}, "data": {"engine": "torch"}})
    assert "1 CPU for Ray Data" in cluster.problems(ray, capacity)[0]
    assert cluster.problems(torch, capacity) == []


def test_workers_must_fit_on_single_nodes_not_only_on_their_sum() -> None:
    nodes: tuple[dict[str, float], ...] = ({"CPU": 3.0}, {"CPU": 3.0})
    config = Config.model_validate({"scaling": {"workers": 3, "resources_per_worker": {"CPU": 2}, "use_gpu": False}})
    assert "can hold 2" in cluster.problems(config, cluster.Capacity(nodes, local=False))[0]


def details(name: str, *overrides: str) -> dict[str, Any]:
    found = next(row.details for row in check(load(None, list(overrides), {})) if row.name == name)
    assert found is not None
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def test_check_tells_files_columns_labels_lengths_and_first_rows(files: Callable[..., list[str]]) -> None:
    words = " ".join(["word"] * 98)
    train = f"id,text,category\n0,{words},b\n1,,a\n2,Where is [my] card?,b\n3,{words} {words},a\n"
    found = details("data", *files(train, "text,category\nlate,b\n"), "data.max_length=100")
    assert set(found) == {"train", "validation"}
    split = found["train"]
    (file,) = split.pop("files")
    assert (Path(file.pop("path")).name, file) == ("train.csv", {"format": "csv", "bytes": len(train), "rows": 4})
    first = split.pop("first_rows")
    assert split == {
        "rows": 4,
        "columns": ["id", "text", "category"],
        "empty_texts": 1,
        "labels": {"a": 2, "b": 2},
        # With the two special tokens: 2, 9, 100 and 198.
        "lengths": {"measured_rows": 4, "p50": 100, "p90": 198, "p99": 198, "max": 198},
        "max_length": 100,
        "truncated_share": 0.25,
    }
    assert [(row["tokens"], row["label"], row["target"]) for row in first] == [(100, "b", 1), (2, "a", 0), (9, "b", 1)]
    assert first[1]["text"].replace(" ", "") == "[CLS][SEP]"
    assert first[2]["text"].startswith("[CLS] where is [ my ] card")
    assert found["validation"]["labels"] == {"a": 0, "b": 1}


@pytest.mark.parametrize(
    ("task", "cells", "labels", "first"),
    [
        ("regression", ["1.5", "-2"], {}, ("1.5", 1.5)),
        ("multi-label", ["b|a", ""], {"a": 1, "b": 1}, ("b|a", [1.0, 1.0])),
        ("text-classification", ["10", "9.0"], {"9": 1, "10": 1}, ("10", 1)),
    ],
)
def test_check_shows_what_labels_are_trained_as_in_every_task(
    files: Callable[..., list[str]], task: str, cells: list[str], labels: dict[str, int], first: tuple[str, Any]
) -> None:
    content = "a,b,category\n" + "".join(f"one,two,{cell}\n" for cell in cells)
    more = [f"model.task={task}", "data.columns={text: a, text_pair: b}"]
    found = details("data", *files(content, content), *more)["train"]
    assert found["labels"] == labels
    assert (found["first_rows"][0]["label"], found["first_rows"][0]["target"]) == first
    assert found["first_rows"][0]["text"] == "[CLS] one [SEP] two [SEP]"


def test_check_shows_texts_without_labels_for_a_language_model(files: Callable[..., list[str]], tmp_path: Path) -> None:
    from tests import llama

    model = llama.save(tmp_path / "llama")
    content = "prompt,completion,left over\n" + "".join(f"Card {number}?, Yes,x\n" for number in range(4))
    columns = "data.columns={prompt: prompt, completion: completion}"
    arguments = [f"model.path={model}", "model.task=causal-lm", columns, "data.max_length=8"]
    found = details("data", *files(content, content), *arguments)["train"]
    assert (found["labels"], found["columns"]) == ({}, ["prompt", "completion", "left over"])
    assert found["lengths"]["max"] > 8
    assert found["truncated_share"] == 1.0
    first = found["first_rows"][0]
    assert (first["tokens"], first["label"], first["target"]) == (8, None, None)
    assert first["text"].endswith("Yes</s>")


def test_the_saved_mapping_of_labels_is_that_of_the_data(files: Callable[..., list[str]]) -> None:
    from pipeline.data.inspect import inspect
    from pipeline.model import load_config
    from pipeline.run import RunFolder

    config = load(None, files("text,category\nx,2\ny,1.0\n", "text,category\nx,1\n"), {})
    facts = inspect(config)
    folder = RunFolder.of(config)
    folder.take_over(config, facts)
    assert json.loads(folder.store.read("data.json"))["labels"] == ["1", "2"]
    model = load_config(config.model, config.storage, facts.labels)
    assert (model.id2label, model.label2id) == ({0: "1", 1: "2"}, {"1": 0, "2": 1})


def test_check_measures_a_share_of_the_rows_where_there_are_many(
    files: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipeline.data import survey

    monkeypatch.setattr(survey, "MOST_ROWS", 100)
    # Every tenth row is long: what is measured must not be the first hundred, nor one row in ten.
    rows = "".join(f"{'a b c d' if number > 900 else 'a'},{'xy'[number % 2]}\n" for number in range(1001))
    found = details("data", *files("text,category\n" + rows, "text,category\na,x\n"))["train"]
    assert found["lengths"] == {"measured_rows": 91, "p50": 3, "p90": 3, "p99": 6, "max": 6}


def test_check_tells_storage_model_and_capacity_to_scripts(files: Callable[..., list[str]]) -> None:
    arguments = [*files(), "data.engine=ray", "scaling.use_gpu=false"]
    assert [step["name"] for step in details("storage", *arguments)["steps"]] == [
        "list",
        "write",
        "read",
        "claim",
        "delete",
    ]
    model = details("model", *arguments)
    assert (model["architecture"], model["layers"], model["max_tokens"]) == ("BertModel", 6, 512)
    capacity = details("capacity", *arguments)
    assert capacity["nodes"][0]["CPU"] >= 4
    assert (capacity["local"], capacity["workers"], capacity["cpus_for_data"]) == (True, 2, 1.0)
    assert capacity["resources_per_worker"] == {"CPU": 1.0}
