"""Low-rank adapters: put on a model, saved alone, merged into it for an export.

A checkpoint then holds `trained.safetensors` (or shards of it) and `adapter_config.json` in place of the model, and
`base.json`, which names the model under the adapters with a print of its weights: on other weights than those that they
were trained on, adapters would give wrong numbers in silence.
"""

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from pipeline.config import Config
from pipeline.errors import RunError, UserError
from pipeline.model import outline

ADAPTER, BASE, TRAINED = "adapter_model.safetensors", "base.json", "trained.safetensors"
# Of each parameter's values, so that a print costs milliseconds whatever the size of the model.
SAMPLE = 256


def adapted(model: Any, config: Config) -> Any:
    """The model with adapters that alone are trained, beside a new classification head; call it under a fixed seed.

    Raises:
        UserError: `model.lora.target_modules` names no layer of the model.
    """
    wanted = config.model.lora
    assert wanted.r is not None
    base = {"path": config.model.path, "revision": config.model.revision, "sample_sha256": sample_print(model)}
    made = _with_adapters(model, config)
    made.lora_base = base
    return made


def check(config: Config) -> None:
    """Find out before any weight is loaded whether the model has the layers that adapters are asked for.

    Raises:
        UserError: `model.lora.target_modules` names no layer of the model.
    """
    with torch.device("meta"):  # adapters of any rank, as the layers under them, without memory
        _with_adapters(outline(config.model, config.storage), config)


def _with_adapters(model: Any, config: Config) -> Any:
    from peft import LoraConfig, TaskType, get_peft_model

    wanted = config.model.lora
    settings = LoraConfig(
        r=wanted.r,
        lora_alpha=wanted.alpha,
        lora_dropout=wanted.dropout,
        target_modules=wanted.target_modules,
        task_type=TaskType.CAUSAL_LM if config.model.task == "causal-lm" else TaskType.SEQ_CLS,
    )
    try:
        return get_peft_model(model, settings)
    except (ValueError, re.error) as error:  # the second of a text that is read as a pattern
        raise UserError(
            f"model.lora.target_modules: found {wanted.target_modules!r}, expected names of layers of "
            f"{type(model).__name__}: {str(error).splitlines()[0]}"
        ) from error


def is_adapted(model: Any) -> bool:
    """Whether only adapters of this model are trained."""
    return hasattr(model, "lora_base")


def sample_print(model: torch.nn.Module) -> str:
    """sha256 over names, shapes and the first values of all parameters but a new head's, before adapters are put on."""
    found = hashlib.sha256()
    new = ("score.", "classifier.")
    for name, parameter in sorted(model.named_parameters()):
        if not name.startswith(new):
            values = parameter.detach().reshape(-1)[:SAMPLE].cpu().contiguous()
            found.update(f"{name}{tuple(parameter.shape)}".encode())
            found.update(values.view(torch.uint8).numpy().data)
    return found.hexdigest()


def describe(folder: Path, model: Any) -> None:
    """The adapters' settings, and what they belong to, into `folder`."""
    model.peft_config["default"].save_pretrained(str(folder))
    (folder / BASE).write_text(json.dumps(model.lora_base, indent=1), encoding="utf-8")


def check_base(folder: Path, model: Any) -> None:
    """
    Raises:
        RunError: the model under the adapters is not the one that those in `folder` were trained on.
    """
    saved = json.loads((folder / BASE).read_text(encoding="utf-8"))
    if saved["sample_sha256"] != model.lora_base["sample_sha256"]:
        raise RunError(
            f"model.path: the weights of {model.lora_base['path']} are not those that the adapters were trained on "
            f"({saved['path']}, revision {saved['revision']})"
        )


def to_adapter(folder: Path) -> None:
    """Make of a checkpoint's trained weights, whole or sharded, an adapter as peft loads it."""
    from pipeline.shards import Reader

    with Reader(folder) as reader:
        tensors = {_peft_name(name): tensor for name, tensor in reader.wholes()}
        save_file(tensors, folder / ADAPTER)
    (folder / TRAINED).unlink(missing_ok=True)
    for name in ("weights", "shards"):
        shutil.rmtree(folder / name, ignore_errors=True)


def _peft_name(name: str) -> str:
    """peft leaves the adapter's own name, and that a module is kept whole, out of the names in its files."""
    return re.sub(r"\.modules_to_save\.default\.|(\.lora_\w+)\.default\.", lambda found: f"{found[1] or ''}.", name)


def merge(folder: Path, config: Config, labels: list[str]) -> None:
    """Turn a folder with adapters into one with the whole model, the adapters added to its weights.

    Raises:
        UserError: the model under the adapters cannot be found.
        RunError: it is not the one that they were trained on.
    """
    from accelerate.utils import set_seed
    from peft import set_peft_model_state_dict

    from pipeline.model import load_model

    # What the model lacked, and training has drawn at random, is drawn again.
    set_seed(config.run.seed)
    model = adapted(load_model(config.model, config.storage, labels), config)
    check_base(folder, model)
    outcome = set_peft_model_state_dict(model, load_file(folder / ADAPTER))
    missing = [name for name in outcome.missing_keys if "lora_" in name or "modules_to_save" in name]
    if outcome.unexpected_keys or missing:
        raise RunError(f"the adapters {sorted([*outcome.unexpected_keys, *missing])[:3]} do not fit the model")
    merged = model.merge_and_unload(safe_merge=True)
    for name in (ADAPTER, "adapter_config.json", BASE):
        (folder / name).unlink()
    merged.save_pretrained(folder)
