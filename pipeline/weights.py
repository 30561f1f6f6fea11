"""Whether a model's weights are those that its configuration asks for, before they are loaded and after.

Left to itself transformers makes what is missing, or has another shape, at random, and trains on.
"""

import json
import logging
import re
from pathlib import Path
from typing import Any, NoReturn

from pipeline.config import Model, Storage
from pipeline.errors import UserError
from pipeline.model import first_line, locate, outline

LOGGER = logging.getLogger("pipeline")
LAYER = re.compile(r"(.*?\.\d+)\.")


def check_weights(model: Model, storage: Storage) -> None:
    """Compare the names and shapes in a local model's files with the model that the configuration asks for.

    Of a model on the hub that is found out when its weights are loaded.

    Raises:
        UserError: a file is damaged or missing, weights do not fit and would be left random, or they are no whole ones.
    """
    import torch

    wanted = outline(model, storage)
    if model.from_scratch:
        return
    if getattr(wanted.config, "quantization_config", None) is not None:
        raise UserError(
            f"model.path: {model.path} is quantized (quantization_config in its config.json); expected the weights as "
            "they were trained, which training goes on from"
        )
    folder = Path(locate(model, storage))
    if not folder.is_dir():
        return
    if (folder / "adapter_config.json").exists():
        raise UserError(
            f"model.path: {model.path} holds adapters (adapter_config.json); expected a whole model, as "
            "merge_and_unload() of peft makes one of them"
        )
    shapes = _shapes(folder, model.path)
    prefix = f"{wanted.base_model_prefix}."
    shapes = {prefix + name: shape for name, shape in shapes.items()} | shapes
    wrong = [
        f"{name} has the shape {shapes[name]}, not {list(parameter.shape)}"
        for name, parameter in wanted.named_parameters()
        if (name.startswith(prefix) or model.task == "causal-lm") and shapes.get(name) not in (None, [*parameter.shape])
    ]
    layers = {found[1] for name, _ in wanted.named_parameters() if (found := LAYER.match(name))}
    there = {found[1] for name in shapes if (found := LAYER.match(name))}
    body = [name for name, _ in wanted.named_parameters() if name.startswith(prefix)]
    shapes = shapes | _renamed(shapes, wanted)
    if body and not any(name in shapes for name in body):
        _refuse(model, wanted, body, body)
    # Weights that are tied may lie under the name of any of them.
    wrong += [
        f"there is none for {name}.weight"
        for name, module in wanted.named_modules()
        if isinstance(module, torch.nn.Embedding)
        and module.num_embeddings == getattr(wanted.config, "vocab_size", None)
        and f"{name}.weight" not in shapes
        and [*module.weight.shape] not in shapes.values()
    ]
    if layers & there:  # names of another version of transformers are not compared
        wrong += [f"there are none for {layer}" for layer in sorted(layers - there)]
    if wrong:
        raise UserError(_explain(model, wrong))


def _renamed(shapes: dict[str, list[int]], wanted: Any) -> dict[str, list[int]]:
    """Those weights whose names transformers changes when it loads them, under their names in the model."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightRenaming, rename_source_key

    changes = [change for change in get_model_conversion_mapping(wanted) if isinstance(change, WeightRenaming)]
    place = wanted.base_model_prefix, wanted.state_dict()
    renamed = {rename_source_key(name, changes, [], *place)[0]: shape for name, shape in shapes.items()}
    return {name: shape for name, shape in renamed.items() if name not in shapes}


def _explain(model: Model, wrong: list[str]) -> str:
    more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    return (
        f"model.path: the weights of {model.path} do not fit its configuration with model.config {model.config}: "
        f"{wrong[0]}{more}; expected weights for all of it, or model.from_scratch: true"
    )


def _refuse(model: Model, module: Any, absent: list[str], body: list[str]) -> NoReturn:
    raise UserError(
        f"model.path: {len(absent)} of {len(body)} weights of a {type(module).__name__} are not in {model.path}, "
        f"e.g. {absent[0]}; expected the weights of that kind of model, or model.from_scratch: true"
    )


def _shapes(folder: Path, source: str) -> dict[str, list[int]]:
    """Names and shapes of a local model's weights, of the beginnings of its files."""
    from safetensors import safe_open

    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    file, found = index, {}
    try:
        names = {whole.name} if whole.exists() else set(json.loads(index.read_bytes())["weight_map"].values())
        for name in sorted(names):
            file = folder / name
            with safe_open(file, "pt") as opened:
                found.update({key: list(opened.get_slice(key).get_shape()) for key in opened.keys()})  # noqa: SIM118
    except FileNotFoundError:
        raise UserError(f"model.path: {source} has no {file.name}; expected all files of its weights") from None
    except Exception as error:  # safetensors has an exception of its own, which is no ValueError
        raise UserError(f"model.path: {file.name} of {source} is damaged: {first_line(error)}") from error
    return found


def check_loaded(model: Model, loaded: Any, report: dict[str, Any]) -> None:
    """A new head is expected; a body that starts at random would train, and be silently worse.

    Raises:
        UserError: of the body's weights, most or any of a layer's or an embedding's were not in the files, or have
            another shape.
    """
    import torch

    new = {*report["missing_keys"], *(key[0] for key in report["mismatched_keys"])}
    body = [name for name, _ in loaded.named_parameters() if name.startswith(f"{loaded.base_model_prefix}.")]
    shapes = {name: f"{name} has the shape {[*old]}, not {[*now]}" for name, old, now in report["mismatched_keys"]}
    wrong = [shapes[name] for name in body if name in shapes]
    tables = {f"{name}.weight" for name, module in loaded.named_modules() if isinstance(module, torch.nn.Embedding)}
    wrong += [
        f"there is none for {name}"
        for name in body
        if name in report["missing_keys"] and (LAYER.match(name) or name in tables)
    ]
    if wrong and len(wrong) * 2 <= len(body):
        raise UserError(_explain(model, wrong))
    absent = [name for name in body if name in new]
    if len(absent) * 2 > len(body):
        _refuse(model, loaded, absent, body)
    LOGGER.info("weights that start at random: %s", ", ".join(sorted(new)) or "none")
