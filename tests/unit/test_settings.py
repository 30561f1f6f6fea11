"""Configuration from file, environment and command line: which wins, what a value means, and what is stored of it."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import fields
from pipeline.config import Config
from pipeline.errors import UserError
from pipeline.metrics import best_of
from pipeline.redaction import redacted
from pipeline.settings import PLACEHOLDER, dump, load, loads

REPOSITORY = Path(__file__).parents[2]
CONFIGS = sorted((REPOSITORY / "configs").glob("*.yaml"))


# -------------------- what comes from where


def test_nothing_given_is_the_defaults() -> None:
    assert load(None, [], {}) == Config()


def test_command_line_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("training: {epochs: 3, batch_size_per_worker: 4, weight_decay: 0.5}\n")
    environ = {"PIPELINE__TRAINING__EPOCHS": "5", "PIPELINE__TRAINING__BATCH_SIZE_PER_WORKER": "8"}
    training = load(str(path), ["training.epochs=7"], environ).training
    assert training.epochs == 7
    assert training.batch_size_per_worker == 8
    assert training.weight_decay == 0.5
    assert training.learning_rate == 5e-4


def test_of_one_setting_given_twice_on_the_command_line_the_last_counts() -> None:
    assert load(None, ["training.epochs=3", "training={epochs: 4}"], {}).training.epochs == 4


def test_variables_with_single_underscores_are_no_settings() -> None:
    assert load(None, [], {"PIPELINE_DATA_DIR": "/data", "PIPELINE_PORT": "tcp://10.0.0.1:80"}) == Config()


@pytest.mark.parametrize(
    ("override", "setting", "value"),
    [
        ("training.learning_rate=1e-3", ("training", "learning_rate"), 0.001),
        ("training.learning_rate=5e-4", ("training", "learning_rate"), 0.0005),
        ("training.max_grad_norm=null", ("training", "max_grad_norm"), None),
        ("training.stop_on_bad_loss=false", ("training", "stop_on_bad_loss"), False),
        ("training.mixed_precision=no", ("training", "mixed_precision"), "no"),
        ("scaling.use_gpu=true", ("scaling", "use_gpu"), True),
        ("scaling.resources_per_worker={CPU: 2}", ("scaling", "resources_per_worker"), {"CPU": 2}),
        ("scaling.resources_per_worker.GPU=1", ("scaling", "resources_per_worker"), {"GPU": 1}),
        ("training.class_weights.v1.5=2", ("training", "class_weights"), {"v1.5": 2}),
        ("training.class_weights={0: 1, no: 2}", ("training", "class_weights"), {"0": 1, "no": 2}),
        ("model.config.rope.theta=1e4", ("model", "config"), {"rope": {"theta": 10000.0}}),
        ("data.train=[a.csv, b.csv]", ("data", "train"), ["a.csv", "b.csv"]),
        ("data.train=*.csv", ("data", "train"), "*.csv"),
        ("data.train={a,b}.csv", ("data", "train"), "{a,b}.csv"),
        ("data.train=s3://b/key=1/x.csv", ("data", "train"), "s3://b/key=1/x.csv"),
        ("data.validation=null", ("data", "validation"), None),
        ("data.delimiter=|", ("data", "delimiter"), "|"),
        ("data.delimiter=\t", ("data", "delimiter"), "\t"),
        ("data.columns.text=#1: text", ("data", "columns", "text"), "#1: text"),
        ("data.columns.text_pair=", ("data", "columns", "text_pair"), None),
        ("run.name=2026", ("run", "name"), "2026"),
        ("run.name=2026-01-01", ("run", "name"), "2026-01-01"),
        ("model.revision=1e6", ("model", "revision"), "1e6"),
        ("data.shuffle_rows=1_000", ("data", "shuffle_rows"), 1000),
        ("run.seed=010", ("run", "seed"), 10),
    ],
)
def test_a_value_on_the_command_line_or_in_a_variable(override: str, setting: fields.Name, value: Any) -> None:
    found: Any = load(None, [override], {})
    for name in setting:
        found = getattr(found, name)
    assert found == value
    assert type(found) is type(value)


def test_one_entry_of_a_mapping_leaves_the_others(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("model: {config: {num_hidden_layers: 2, hidden_dropout_prob: 0.1}}\n")
    config = load(str(path), ["model.config.hidden_dropout_prob=0"], {})
    assert config.model.config == {"num_hidden_layers": 2, "hidden_dropout_prob": 0}


def test_yaml_words_mean_what_they_say() -> None:
    config = loads(
        "training: {mixed_precision: no, learning_rate: 5e-4}\nrun: {name: off}\ndata: {columns: {label: y}}", "f"
    )
    assert config.training.mixed_precision == "no"
    assert config.training.learning_rate == 0.0005
    assert config.run.name == "off"
    assert config.data.columns.label == "y"


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "training:\n  # epochs: 3\n", "\ufefftraining: {epochs: 2}\n"])
def test_an_empty_file_or_section_is_the_defaults(text: str) -> None:
    assert loads(text, "job.yaml") == Config()


# -------------------- writing


PLAIN = st.text(max_size=12).filter(lambda text: not PLACEHOLDER.search(text) and redacted(text) == text)
WORDS = st.sampled_from(
    ["no", "on", "5e-4", "010", "1:30", "null", "~", "2026-01-01", "1_0", ".5", "- a", "a: b", "#x", "é\u2028"]
)
TEXT = PLAIN | WORDS
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
JOBS = st.fixed_dictionaries(
    {
        "run": st.fixed_dictionaries({"name": st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,9}", fullmatch=True)}),
        "model": st.fixed_dictionaries(
            {"path": TEXT.filter(bool), "config": st.dictionaries(TEXT, VALUES, max_size=3)}
        ),
        "data": st.fixed_dictionaries(
            {
                "train": TEXT | st.lists(TEXT, max_size=3),
                "validation": TEXT,
                "delimiter": st.none() | st.sampled_from("|,;\t>' "),
            }
        ),
        "training": st.fixed_dictionaries(
            {
                "epochs": st.integers(1, 2**31 - 1),
                "learning_rate": st.floats(1e-300, 10),
                "mixed_precision": st.sampled_from(["no", "bf16", "fp16"]),
                "eval_every": st.just("epoch") | st.integers(1, 10**6),
                "class_weights": st.none()
                | st.just("balanced")
                | st.dictionaries(TEXT, st.floats(1e-9, 1e9), max_size=3),
            }
        ),
        "scaling": st.fixed_dictionaries({"use_gpu": st.just("auto") | st.booleans()}),
    }
)


@given(JOBS)
@settings(max_examples=150, deadline=None)
def test_what_is_written_reads_back_the_same(job: dict[str, Any]) -> None:
    config = Config.model_validate(job)
    assert loads(dump(config), "config.yaml") == config


@given(JOBS)
@settings(max_examples=50, deadline=None)
def test_other_tools_read_the_stored_configuration_as_we_do(job: dict[str, Any]) -> None:
    config = Config.model_validate(job)
    assert Config.model_validate(yaml.safe_load(dump(config))) == config


def test_the_order_of_what_is_written_is_that_of_the_models() -> None:
    lines = dump(Config()).splitlines()
    assert lines[:4] == ["run:", "  name: banking77", "  seed: 42", "  max_failures: 3"]
    names = [line.partition(":")[0].strip() for line in lines[: lines.index("model:")]]
    assert names == ["run", *type(Config().run).model_fields]
    assert list(yaml.safe_load(dump(Config()))) == list(Config.model_fields)


# -------------------- the files we ship


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_each_shipped_configuration_loads(path: Path) -> None:
    assert load(str(path), [], {}).run.name == path.stem


def test_the_default_job_is_written_out_in_full() -> None:
    text = (REPOSITORY / "configs/banking77.yaml").read_text()
    assert loads(text, "banking77.yaml") == Config()
    assert yaml.safe_load(text).keys() == Config.model_fields.keys()
    assert set(_paths(yaml.safe_load(text))) == set(fields.known())


def test_mrpc_is_a_sentence_pair_with_both_of_its_metrics() -> None:
    config = load(str(REPOSITORY / "configs/mrpc.yaml"), [], {})
    assert (config.data.columns.text, config.data.columns.text_pair) == ("sentence1", "sentence2")
    assert config.metrics.names == ["accuracy", "f1"]


def test_causal_lm_trains_adapters_on_completions_and_keeps_the_lowest_perplexity() -> None:
    config = load(str(REPOSITORY / "configs/causal-lm.yaml"), [], {})
    assert (config.model.task, config.model.lora.r) == ("causal-lm", 16)
    assert (config.data.columns.prompt, config.data.columns.completion) == ("prompt", "completion")
    assert best_of(config.metrics, config.model.task) == ("perplexity", "min")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["data.columns.prompt=a", "data.columns.completion=b"], "data.columns.prompt: only for model.task causal-lm"),
        (
            ["model.task=causal-lm", "data.columns.prompt=a"],
            "data.columns.completion: not given, but",
        ),
        (["model.task=causal-lm", "data.columns.text_pair=b"], "data.columns.text_pair: not for causal-lm"),
        (["model.lora.r=8", "model.from_scratch=true"], "model.lora.r: with model.from_scratch"),
        (
            ["model.lora.r=8", "strategy={kind: fsdp, version: 1, state_dict: full}"],
            "model.lora.r: not with strategy.version 1",
        ),
        (
            ["training.activation_checkpointing=true", "strategy={kind: fsdp, activation_checkpointing: true}"],
            "training.activation_checkpointing: strategy.activation_checkpointing does it already",
        ),
    ],
)
def test_settings_of_a_language_model_that_do_not_go_together_are_refused(overrides: list[str], words: str) -> None:
    with pytest.raises(UserError) as error:
        load(None, overrides, {})
    assert [problem for problem in error.value.problems if problem.startswith(words)]


def _paths(data: dict[str, Any], prefix: fields.Name = ()) -> list[fields.Name]:
    """Every section and setting that a file names."""
    found = []
    for key, value in data.items():
        found.append((*prefix, key))
        if fields.is_section(fields.known()[(*prefix, key)].annotation):
            found += _paths(value, (*prefix, key))
    return found
