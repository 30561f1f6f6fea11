"""Which columns a task reads, and which settings of them go together."""

from pipeline.config import Config


def text_columns(config: Config) -> list[str]:
    """The columns that hold texts, in the order in which the model reads them."""
    columns = config.data.columns
    if columns.prompt is not None and columns.completion is not None:
        return [columns.prompt, columns.completion]
    return [name for name in (columns.text, columns.text_pair) if name is not None]


def label_column(config: Config) -> str | None:
    """The column of labels; None for causal-lm, whose labels are the texts themselves."""
    return None if config.model.task == "causal-lm" else config.data.columns.label


def columns_of(config: Config) -> list[str]:
    """All columns that are read."""
    label = label_column(config)
    return [*text_columns(config), *([label] if label is not None else [])]


def _is_read(field: str, config: Config) -> bool:
    if field == "label":
        return label_column(config) is not None
    return (field in ("prompt", "completion")) == (config.data.columns.prompt is not None)


def problem(config: Config) -> str | None:
    """What is wrong with the columns and the adapters that a task asks for; None if nothing is."""
    columns, task = config.data.columns, config.model.task
    given = {"prompt": columns.prompt, "completion": columns.completion}
    named = [name for name, column in given.items() if column is not None]
    if named and task != "causal-lm":
        return f"data.columns.{named[0]}: only for model.task causal-lm, not for {task}"
    if len(named) == 1:
        missing = next(name for name in given if name not in named)
        return f"data.columns.{missing}: not given, but data.columns.{named[0]} is; they go together"
    if task == "causal-lm" and columns.text_pair is not None:
        return "data.columns.text_pair: not for causal-lm; give data.columns.prompt and data.columns.completion"
    if config.model.lora.r is not None and config.model.from_scratch:
        return (
            "model.lora.r: with model.from_scratch the random weights under the adapters would be kept nowhere; save "
            "such a model into a folder first and give that as model.path"
        )
    names = columns_of(config)
    for name in names:
        if names.count(name) > 1:
            twice = [f"data.columns.{field}" for field, column in columns if column == name and _is_read(field, config)]
            return f"{' and '.join(twice)}: found {name!r} for each; expected columns of their own"
    strategy = config.strategy
    if config.model.lora.r is not None and strategy.kind == "fsdp" and strategy.version == 1:
        return "model.lora.r: not with strategy.version 1, whose flat parameters mix trained and frozen ones; expected 2"
    if config.training.activation_checkpointing and strategy.activation_checkpointing:
        return "training.activation_checkpointing: strategy.activation_checkpointing does it already; give one of them"
    return None
