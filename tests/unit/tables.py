"""Jobs on small tables, and what is said of them."""

from typing import Any

import pytest

from pipeline.config import Config, Task
from pipeline.data.files import read
from pipeline.data.inspect import Facts, encode_labels, inspect
from pipeline.errors import UserError


def config(task: Task = "text-classification", workers: int = 1, pair: str | None = None, **data: Any) -> Config:
    columns = {"text": "text", "text_pair": pair, "label": "label"}
    return Config.model_validate(
        {
            "model": {"task": task},
            "scaling": {"workers": workers},
            "data": {"train": "train.*", "validation": None, "columns": columns, **data},
        }
    )


def problems(config: Config) -> list[str]:
    with pytest.raises(UserError) as caught:
        inspect(config)
    assert all("\n" not in problem for problem in caught.value.problems)
    return caught.value.problems


def labelled(*labels: Any) -> list[dict[str, Any]]:
    return [{"text": f"text {number}", "label": label} for number, label in enumerate(labels)]


def ids(config: Config, facts: Facts, split: str = "train") -> list[Any]:
    """Encoded labels of a split, by way of the reader."""
    return [
        value
        for file in facts.files[split]
        for table in read(file, ["label"], config.data, config.storage, 3)
        for value in encode_labels(table["label"], facts.labels, config.model.task, config.data).to_pylist()
    ]
