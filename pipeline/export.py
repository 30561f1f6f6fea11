"""Sharded weights of a checkpoint to those that `from_pretrained` loads, one tensor in memory at a time."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from pipeline.errors import RunError
from pipeline.shards import Reader

# What is collected before a file is written.
PART_BYTES = 1 << 30
SHARDED = ("weights", "moments", "shards")


def is_sharded(folder: Path) -> bool:
    """Whether a checkpoint's folder holds runs of tensors instead of whole ones."""
    return (folder / "shards").is_dir()


def join(folder: Path) -> None:
    """Replace the runs in a checkpoint's folder by whole weights under the names of the model's library.

    The tensors are put together one by one into files, and a model without memory of its own is given those files,
    mapped: so the names and ties of weights are what its own `save_pretrained` makes of them, and all of them are never
    in memory at once.

    Raises:
        RunError: runs are missing, or the model's class has other parameters.
    """
    parts = folder / "parts"
    parts.mkdir()
    _write_parts(folder, parts)
    tensors: dict[str, torch.Tensor] = {}
    opened = [safe_open(file, "pt") for file in sorted(parts.iterdir())]
    for file in opened:
        tensors |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (no mapping)
    model = _empty_model(folder)
    missing, unexpected = model.load_state_dict(tensors, strict=False, assign=True)
    model.tie_weights()
    left = [name for name in missing if model.get_parameter(name).is_meta]
    if left or unexpected:
        raise RunError(f"the weights do not fit a {type(model).__name__}: {sorted([*left, *unexpected])[:3]}")
    model.save_pretrained(folder)
    del model, tensors, opened
    for name in (*SHARDED, "parts"):
        shutil.rmtree(folder / name, ignore_errors=True)


def _write_parts(folder: Path, parts: Path) -> None:
    held: dict[str, torch.Tensor] = {}
    with Reader(folder) as reader:
        for name, tensor in reader.wholes():
            held[name] = tensor
            if sum(value.nbytes for value in held.values()) >= PART_BYTES:
                save_file(held, parts / f"{len(list(parts.iterdir())):05d}.safetensors")
                held = {}
    if held:
        save_file(held, parts / f"{len(list(parts.iterdir())):05d}.safetensors")


def _empty_model(folder: Path) -> Any:
    import transformers

    (name,) = json.loads((folder / "config.json").read_text(encoding="utf-8"))["architectures"]
    kind = getattr(transformers, name, None)
    if kind is None:
        raise RunError(f"the checkpoint is of a {name}, which transformers {transformers.__version__} does not know")
    config = transformers.AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        return kind(config)
