"""A wrong configuration is refused before anything starts: all of it at once, with the place and what would do."""

import tempfile
from pathlib import Path

import pytest

from pipeline.errors import UserError
from pipeline.redaction import redacted
from pipeline.settings import load, loads


def problems(text: str | bytes = "", overrides: tuple[str, ...] = (), **environ: str) -> list[str]:
    """What is said about a job.yaml of this text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "job.yaml")
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        with pytest.raises(UserError) as caught:
            load(str(path), overrides, environ)
        return [problem.replace(f"{folder}/", "") for problem in caught.value.problems]


# -------------------- what a wrong one is told


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "training:\n  epochs: three\n",
            "training.epochs: found 'three' (job.yaml:2), expected an integer of at least 1",
        ),
        ("training: {epochs: 0}", "training.epochs: found 0 (job.yaml:1), expected an integer of at least 1"),
        ("training: {epochs: true}", "training.epochs: found true (job.yaml:1), expected an integer of at least 1"),
        ("training: {epochs: 1.5}", "training.epochs: found 1.5 (job.yaml:1), expected an integer of at least 1"),
        ("training: {epochs: '2'}", "training.epochs: found '2' (job.yaml:1), expected an integer of at least 1"),
        ("training: {epochs: }", "training.epochs: found null (job.yaml:1), expected an integer of at least 1"),
        (
            "training: {learning_rate: .inf}",
            "training.learning_rate: found inf (job.yaml:1), expected a number above 0 and at most 10",
        ),
        (
            "training: {warmup_ratio: 1}",
            "training.warmup_ratio: found 1 (job.yaml:1), expected a number of at least 0 and below 1",
        ),
        (
            "training: {max_grad_norm: 0}",
            "training.max_grad_norm: found 0 (job.yaml:1), expected a number above 0 or null",
        ),
        (
            "training:\n  mixed_precision: fp32\n",
            "training.mixed_precision: found 'fp32' (job.yaml:2), expected 'no', 'bf16' or 'fp16'",
        ),
        (
            "training: {eval_every: 0}",
            "training.eval_every: found 0 (job.yaml:1), expected 'epoch' or an integer of at least 1",
        ),
        (
            "training: {class_weights: {a: heavy}}",
            "training.class_weights.a: found 'heavy' (job.yaml:1), expected a number",
        ),
        (
            "training: {class_weights: {a: 0}}",
            "training.class_weights: found {'a': 0} (job.yaml:1): every class weight must be above 0",
        ),
        (
            "scaling:\n  workers: 5000",
            "scaling.workers: found 5000 (job.yaml:2), expected an integer from 1 to 4096",
        ),
        ("scaling: {use_gpu: yes}", "scaling.use_gpu: found 'yes' (job.yaml:1), expected 'auto', true or false"),
        (
            "scaling: {resources_per_worker: {gpu: 1}}",
            "scaling.resources_per_worker: found {'gpu': 1} (job.yaml:1): 'gpu' is not a Ray resource; write 'GPU'",
        ),
        ("run: {name: 7}", "run.name: found 7 (job.yaml:1), expected text; put it in quotes"),
        (
            "run: {name: a b}",
            (
                "run.name: found 'a b' (job.yaml:1): letters, digits, '.', '_' and '-' only, at most 100, "
                "the first a letter or digit"
            ),
        ),
        ("run: {seed: -1}", "run.seed: found -1 (job.yaml:1), expected an integer of at least 0 and below 2147483648"),
        ("data:\n  train:\n  - a\n  - 1\n", "data.train.1: found 1 (job.yaml:4), expected text; put it in quotes"),
        ("data: {train: {a: b}}", "data.train: found {'a': 'b'} (job.yaml:1), expected text or a list of texts"),
        ("data: {delimiter: '||'}", "data.delimiter: found '||' (job.yaml:1), expected a single character or null"),
        (
            "data: {columns: x}",
            (
                "data.columns: found 'x' (job.yaml:1), expected a mapping of settings: text, text_pair, label, prompt, "
                "completion"
            ),
        ),
        ("model: {path: ''}", "model.path: found '' (job.yaml:1), expected non-empty text"),
        (
            "model: {task: question-answering}",
            (
                "model.task: found 'question-answering' (job.yaml:1), expected 'text-classification', 'regression', "
                "'multi-label' or 'causal-lm'"
            ),
        ),
        (
            "strategy: {kind: zero}",
            "strategy.kind: found 'zero' (job.yaml:1), expected 'ddp', 'fsdp' or 'deepspeed'",
        ),
        (
            "strategy: {kind: ddp, zero_stage: 3}",
            "strategy.zero_stage: found 3, but it is a setting of kind deepspeed, not of ddp",
        ),
        (
            "training: {global_batch_size: 1}",
            "training.global_batch_size: 1 is less than scaling.workers 2; each worker needs a row of every step",
        ),
    ],
)
def test_a_wrong_value_is_told_with_its_place_and_what_is_allowed(text: str, said: str) -> None:
    assert problems(text) == [said]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("training:\n  epoch: 3\n", "training.epoch: no such setting (job.yaml:2), did you mean training.epochs?"),
        ("trainig: {epochs: 3}", "trainig: no such setting (job.yaml:1), did you mean training?"),
        ("max_length: 9", "max_length: no such setting (job.yaml:1), did you mean data.max_length?"),
        ("data: {label: y}", "data.label: no such setting (job.yaml:1), did you mean data.columns.label?"),
        (
            "training: {batch-size: 8}",
            (
                "training.batch-size: no such setting (job.yaml:1), did you mean training.batch_size_per_worker or "
                "training.global_batch_size or training.eval_batch_size_per_worker?"
            ),
        ),
        (
            "zzz: 1",
            (
                "zzz: no such setting (job.yaml:1), known here: run, model, data, training, strategy, metrics, "
                "checkpoint, scaling, storage"
            ),
        ),
    ],
)
def test_an_unknown_key_is_told_the_nearest_name(text: str, said: str) -> None:
    assert problems(text) == [said]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a\n", "job.yaml: holds ['a'], expected a mapping of sections"),
        ("run: 1\n\nrun: 2\n", "job.yaml:3: run is given twice, first on line 1"),
        ("run:\n  seed: 1\n  seed: 2\n", "job.yaml:3: run.seed is given twice, first on line 2"),
        ("run: [1", "job.yaml:1: not valid YAML: expected ',' or ']', but got '<stream end>'"),
        ("run: {}\n\tdata: 1", "job.yaml:2: not valid YAML: found character '\\t' that cannot start any token"),
        ("run: {}\n---\nrun: {}", "job.yaml:2: not valid YAML: but found another document"),
        (
            "data:\n  train: *.csv\n",
            "job.yaml:2: an alias (*name) is not supported; put a value that begins with * in quotes",
        ),
        (
            "run: &a {seed: 1}\ndata: *a",
            "job.yaml:2: an alias (*name) is not supported; put a value that begins with * in quotes",
        ),
        (b"\xff\xfe\xfa", "job.yaml:1: not valid YAML: unacceptable character #x00fa: truncated data"),
        ("[" * 5000, "job.yaml:1: nested too deeply"),
        ("run: {seed: !!int x}", "job.yaml:1: is not of the type !!int"),
    ],
)
def test_a_file_that_is_no_configuration(text: str | bytes, said: str) -> None:
    assert problems(text)[0] == said


def test_a_tag_runs_no_code() -> None:
    said = problems("data: {train: !!python/object/apply:os.system [exit 1]}")
    assert said[0] == "job.yaml:1: the tag !!python/object/apply:os.system is not supported"


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        load(str(tmp_path / "jbo.yaml"), ["training.epochs=0"], {})
    assert caught.value.problems == [
        f"{tmp_path}/jbo.yaml: no such file",
        "training.epochs: found 0 (command line), expected an integer of at least 1",
    ]
    with pytest.raises(UserError) as caught:
        load(str(tmp_path), [], {})
    assert caught.value.problems == [f"{tmp_path}: is a directory"]
    for name, words in (
        ("", "-c: found '', expected the path of a YAML file"),
        ("a\0b", "'a\\x00b': holds a character that no"),
    ):
        with pytest.raises(UserError) as caught:
            load(name, [], {})
        assert caught.value.problems[0].startswith(words)


def test_all_problems_of_all_sources_are_told_together() -> None:
    said = problems(
        "training: {epochs: three}\nstorage: {pth: x}\n",
        ("training.warmup_ratio=2", "batch", "training={epoch: 1}"),
        PIPELINE__RUN__SEED="x",
        PIPELINE__RUN__SEDE="1",
    )
    assert said == [
        "storage.pth: no such setting (job.yaml:2), did you mean storage.path?",
        "run.sede: no such setting (environment PIPELINE__RUN__SEDE), did you mean run.seed?",
        "command line: found 'batch', expected key=value (a configuration file goes after -c)",
        "training.epoch: no such setting (command line), did you mean training.epochs?",
        "run.seed: found 'x' (environment PIPELINE__RUN__SEED), expected an integer of at least 0 and below 2147483648",
        "training.epochs: found 'three' (job.yaml:1), expected an integer of at least 1",
        "training.warmup_ratio: found 2 (command line), expected a number of at least 0 and below 1",
    ]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("training.epochs=", "training.epochs: found null (command line), expected an integer of at least 1"),
        ("training.epochs.x=1", "training.epochs.x: no such setting (command line), training.epochs is a single value"),
        ("run.seed=[1", "run.seed: not valid YAML: expected ',' or ']', but got '<stream end>' (command line)"),
        (
            "metrics.names=f1",
            "metrics.names: found 'f1' (command line), expected a list of texts or null",
        ),
        ("=1", "command line: found '=1', expected key=value (a configuration file goes after -c)"),
    ],
)
def test_a_wrong_override(override: str, said: str) -> None:
    assert problems(overrides=(override,)) == [said]


# -------------------- secrets and placeholders


@pytest.mark.parametrize(
    "address",
    [
        "s3://KEYID:hunter2@bucket/prefix",
        "s3://KEYID:hun/ter2+x@bucket/prefix",
        "http://hunter2@localhost:9000",
        "https://store/bucket?X-Amz-Signature=hunter2",
        "s3://bucket/x?secret_key=hunter2",
    ],
)
@pytest.mark.parametrize("setting", ["storage.path", "storage.endpoint_url", "data.train", "model.path", "run.seed"])
def test_credentials_are_refused_and_not_repeated(address: str, setting: str) -> None:
    for said in (
        problems(overrides=(f"{setting}={address}",)),
        problems(overrides=(f"{setting}.x={address}", address)),
    ):
        assert "hun" not in "".join(said)
    section, name = setting.split(".")
    assert (
        f"{setting}: holds credentials (job.yaml:1), which would end up in logs and in the stored configuration; "
        "give them in the environment, a profile or a workload identity"
        in problems(f"{section}: {{{name}: '{address}'}}")
    )


@pytest.mark.parametrize("address", ["s3://bucket/a@b:c", "http://host:9000/x@y", "http://127.0.0.1:8333", "s3://b/p"])
def test_an_address_without_credentials_is_taken(address: str) -> None:
    assert load(None, [f"storage.path={address}"], {}).storage.path == address
    assert redacted(address) == address


def test_the_value_of_an_unknown_key_is_not_repeated() -> None:
    assert "hunter2" not in "".join(problems("storage: {secret_key: hunter2}", PIPELINE__STORAGE__TOKEN="hunter2"))


@pytest.mark.parametrize("value", ["REPLACE_ME", "s3://REPLACE_ME/runs", "s3://<bucket>/runs", "<your path>"])
def test_a_placeholder_left_in_is_refused(value: str) -> None:
    said = problems(f"storage:\n  path: {value}\n")
    left = "REPLACE_ME" if "REPLACE_ME" in value else value[value.index("<") : value.index(">") + 1]
    assert said == [f"storage.path: found '{value}' (job.yaml:2), placeholder left in: {left}"]


def test_special_tokens_of_a_model_are_no_placeholders() -> None:
    assert loads("model: {config: {sep_token: <s>}}", "f").model.config == {"sep_token": "<s>"}
    assert problems("model: {config: {a: [x, REPLACE_ME]}}") == [
        "model.config.a.1: found 'REPLACE_ME' (job.yaml:1), placeholder left in: REPLACE_ME"
    ]


def test_rules_between_settings_are_not_judged_on_a_file_that_could_not_be_read() -> None:
    # With early stopping asked for and the file's data.validation unread, any verdict on the two would be a guess.
    asked = ("training.early_stopping_patience=2", "data.validation=null")
    assert problems("run: [1", asked) == ["job.yaml:1: not valid YAML: expected ',' or ']', but got '<stream end>'"]
    assert problems("", asked) == ["training.early_stopping_patience: needs data.validation, which is not given"]


def test_windows_line_ends_count_as_one_line() -> None:
    assert problems(b"training:\r\n  epochs: 0\r\n") == [
        "training.epochs: found 0 (job.yaml:2), expected an integer of at least 1"
    ]
