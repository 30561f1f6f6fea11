"""Models and tokenizers by `package:NAME`, local folder, `s3://` URI or hub name; weights only as safetensors."""

import importlib.util
import logging
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from pipeline import hub
from pipeline.config import Model, Storage
from pipeline.errors import UserError

LOGGER = logging.getLogger("pipeline")
PROBLEM_TYPES = {
    "text-classification": "single_label_classification",
    "regression": "regression",
    "multi-label": "multi_label_classification",
}
# What follows from the task, the labels and the precision; given besides it would be overwritten, or break the loop.
SET_HERE = {"num_labels", "id2label", "label2id", "problem_type", "dtype", "torch_dtype", "return_dict"}


@dataclass(frozen=True)
class ModelFacts:
    """What is known of a model before it is loaded. `max_tokens`: the longest sequence it takes."""

    source: str
    architecture: str
    max_tokens: int | None
    layers: int | None


def cache_folder() -> Path:
    """Folder of this node for what is fetched once and shared by its workers."""
    base = os.environ.get("PIPELINE_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "pipeline"


def _package_folder(name: str) -> str:
    try:
        spec = importlib.util.find_spec(name) if name.isidentifier() else None
    except ValueError:  # of the program itself, `__main__`
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"model.path: no installed Python package {name!r}; expected package:NAME, installed here")
    root = Path(next(iter(spec.submodule_search_locations)))
    found = sorted(root.rglob("config.json"), key=lambda file: len(file.parts))
    found = [file for file in found if any(file.parent.glob("*.safetensors"))]
    if not found:
        raise UserError(f"model.path: package {name!r} holds no folder with config.json and *.safetensors")
    return str(found[0].parent)


def _from_s3(uri: str, storage: Storage) -> str:
    from pipeline.storage import open_store, resolve

    store = open_store(resolve(storage.model_copy(update={"path": uri}), "model.path"))
    entries = store.list()
    if not any(entry.name == "config.json" for entry in entries):
        raise UserError(f"model.path: {uri} has no config.json; expected a folder that from_pretrained loads")
    key = "-".join(sorted(entry.tag.strip('"') for entry in entries))
    target = cache_folder() / "models" / f"{abs(hash_text(uri + key)):x}"
    target.parent.mkdir(parents=True, exist_ok=True)
    # One worker of a node fetches, the others wait here and find it done.
    with FileLock(f"{target}.lock"):
        if not target.exists():
            partial = target.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            for entry in entries:
                (partial / entry.name).parent.mkdir(parents=True, exist_ok=True)
                store.download(entry.name, partial / entry.name)
            partial.rename(target)
    return str(target)


def hash_text(text: str) -> int:
    """A number that stands for a text, the same in every process (Python's own hash is not)."""
    import hashlib

    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def locate(model: Model, storage: Storage) -> str:
    """A local folder, fetched if need be, or a hub name as it is.

    Raises:
        UserError: there is no such package, folder or object.
    """
    path = Path(os.path.expanduser(model.path))  # noqa: PTH111  (leaves the home of an unknown user as it stands)
    if model.revision is not None and (model.path.startswith(("package:", "s3://")) or path.is_dir()):
        raise UserError(
            f"model.revision: found {model.revision!r}, which is for a model of the hub, not for {model.path}; "
            "leave it out"
        )
    if model.path.startswith("package:"):
        return _package_folder(model.path.removeprefix("package:"))
    if model.path.startswith("s3://"):
        return _from_s3(model.path, storage)
    if path.is_dir():
        if not (path / "config.json").exists():
            raise UserError(
                f"model.path: {model.path} has no config.json; expected a folder that from_pretrained loads"
            )
        return str(path)
    if path.is_file():
        raise UserError(f"model.path: {model.path} is a file; expected a folder that from_pretrained loads")
    looks_local = model.path.startswith((".", "/", "~")) or model.path.count("/") > 1
    if looks_local:
        raise UserError(
            f"model.path: no such folder {model.path}; expected package:NAME, a folder, s3:// or a hub name"
        )
    return model.path


def load_config(model: Model, storage: Storage, labels: list[str] | None = None) -> Any:
    """The model's transformers configuration, with `model.config` and the labels applied."""
    from transformers import AutoConfig

    source = locate(model, storage)
    try:
        # Without `trust_remote_code` it would ask on the terminal whether to run a model's own code.
        config = AutoConfig.from_pretrained(
            source, revision=model.revision, local_files_only=hub.silent(), trust_remote_code=False
        )
        named = config.architectures or []
        if not isinstance(named, list | str) or not all(isinstance(name, str) for name in named):
            raise ValueError(f"architectures is {named!r}, no list of names")
    except Exception as error:  # a damaged file raises whatever its first use happens to
        raise UserError(f"model.path: {model.path} cannot be loaded: {first_line(error)}") from error
    known = {*config.to_dict(), *config.attribute_map} - {"model_type", "transformers_version", "architectures"}
    unknown = [key for key in model.config if key not in known | SET_HERE or not hasattr(config, key)]
    if unknown:
        raise UserError(*(f"model.config.{key}: a {config.model_type} model has no such setting" for key in unknown))
    if ours := sorted(SET_HERE & model.config.keys()):
        raise UserError(*(f"model.config.{key}: follows from the task and its labels; leave it out" for key in ours))
    settings = dict(model.config)
    if model.task == "causal-lm":
        _check_decoder(model, config)
    else:
        settings["problem_type"] = PROBLEM_TYPES[model.task]
    if model.task == "regression":
        settings["num_labels"] = 1
    elif labels:
        settings["id2label"] = dict(enumerate(labels))
        settings["label2id"] = {label: number for number, label in enumerate(labels)}
    for key, value in settings.items():
        try:
            setattr(config, key, value)
        except Exception as error:  # transformers checks types as it likes
            words = " ".join(str(error).split())
            raise UserError(
                f"model.config.{key}: found {value!r}, which a {config.model_type} model refuses: {words}"
            ) from error
    return config


def _check_decoder(model: Model, config: Any) -> None:
    """Refuse what is no language model: a BERT would get a new, random head and see what it is to predict."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    named = config.architectures or []
    known = config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if not known or (named and not any("CausalLM" in name or "LMHead" in name for name in named)):
        found = ", ".join(named) or f"a {config.model_type} model"
        raise UserError(f"model.path: {model.path} holds {found}; model.task causal-lm needs a ...ForCausalLM")


def load_tokenizer(model: Model, storage: Storage) -> Any:
    """The model's fast tokenizer (the slow ones cannot say which rows were cut)."""
    from transformers import AutoTokenizer

    source = locate(model, storage)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            source,
            revision=model.revision,
            use_fast=True,
            local_files_only=hub.silent(),
            trust_remote_code=False,
        )
        tokenizer.model_max_length = int(tokenizer.model_max_length)
    except Exception as error:  # a damaged file raises whatever its first use happens to
        raise UserError(f"model.path: no tokenizer in {model.path}: {first_line(error)}") from error
    if not tokenizer.is_fast:
        raise UserError(f"model.path: {model.path} has only a slow tokenizer; expected one with tokenizer.json")
    if len(tokenizer.get_vocab()) <= len(tokenizer.all_special_ids):
        # Without its files the library makes an empty one, for which every word is unknown.
        raise UserError(f"model.path: no tokenizer in {model.path}; expected tokenizer.json beside config.json")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def outline(model: Model, storage: Storage) -> Any:
    """The model's layers without any weights, on PyTorch's meta device: made in a moment, whatever its size."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    kind = AutoModelForCausalLM if model.task == "causal-lm" else AutoModelForSequenceClassification
    config = load_config(model, storage)
    try:
        with torch.device("meta"):
            return kind.from_config(config, trust_remote_code=False)
    except Exception as error:  # whatever a module makes of a size or a name that it cannot use
        words = f"{type(error).__name__}: {first_line(error)}"
        raise UserError(f"model.config: no {config.model_type} model can be made of {model.config}: {words}") from error


def load_model(model: Model, storage: Storage, labels: list[str]) -> Any:
    """The model in float32 with a head for its task; call it under a fixed seed, as a new head's weights are random."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    config = load_config(model, storage, labels)
    language = model.task == "causal-lm"
    kind = AutoModelForCausalLM if language else AutoModelForSequenceClassification
    if model.from_scratch:
        return kind.from_config(config).to(torch.float32)
    if config.pad_token_id is None and not language:
        # Decoders find the end of a text by it.
        config.pad_token_id = load_tokenizer(model, storage).pad_token_id
    try:
        found, report = kind.from_pretrained(
            locate(model, storage),
            config=config,
            revision=model.revision,
            dtype=torch.float32,
            use_safetensors=True,
            trust_remote_code=False,
            # A classification head is new; of a language model everything has to fit.
            ignore_mismatched_sizes=not language,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(f"model.path: the weights of {model.path} cannot be loaded: {first_line(error)}") from error
    if language and report["missing_keys"]:
        missing = sorted(report["missing_keys"])[:3]
        raise UserError(f"model.path: {model.path} has no weights for {', '.join(missing)}, which would stay random")
    from pipeline.weights import check_loaded

    check_loaded(model, found, report)
    return found


def describe(model: Model, storage: Storage) -> ModelFacts:
    """What the driver checks before anything starts; reads the configuration and the tokenizer, not the weights."""
    source = locate(model, storage)
    names = _files(model, source)
    config = load_config(model, storage)
    tokenizer = load_tokenizer(model, storage)
    if not model.from_scratch and names is not None and not any(name.endswith(".safetensors") for name in names):
        # Other formats run code when they are loaded.
        raise UserError(f"model.path: {model.path} has no *.safetensors weights; expected a model with them")
    from pipeline.weights import check_weights

    check_weights(model, storage)
    if (found := getattr(config, "num_hidden_layers", 1)) < 1:
        raise UserError(f"model.config.num_hidden_layers: found {found}, expected an integer of at least 1")
    limits = [tokenizer.model_max_length] if tokenizer.model_max_length < 1_000_000 else []
    size = getattr(config, "vocab_size", None)
    if size is not None and len(tokenizer) > size:
        raise UserError(f"model.path: the tokenizer of {model.path} has {len(tokenizer)} tokens, the model {size}")
    positions = getattr(config, "max_position_embeddings", None)
    if positions:
        # RoBERTa's positions start after the padding token's.
        offset = (config.pad_token_id or 0) + 1 if config.model_type in ("roberta", "xlm-roberta", "camembert") else 0
        limits.append(positions - offset)
    named = config.architectures or config.model_type
    architecture = named if isinstance(named, str) else named[0]
    return ModelFacts(model.path, architecture, min(limits, default=None), getattr(config, "num_hidden_layers", None))


def _files(model: Model, source: str) -> list[str] | None:
    """Names of a model's files; None if the hub is silent and the model is in this machine's cache."""
    folder = Path(source)
    if folder.is_dir():
        return [file.name for file in folder.iterdir()]
    try:
        about = hub.info("model", source, model.revision, "model.path")
    except hub.Unreachable:
        if hub.cached(source, "config.json", model.revision):
            return None  # the weights are looked up there too when they are loaded
        raise
    return [file.rfilename for file in about.siblings or []]


def first_line(error: Exception) -> str:
    """What a library says, without its explanations."""
    # Of a wrong type in config.json the first line names the field only.
    words = re.sub(r":\s*\n\s*", ": ", str(error).strip() or type(error).__name__)
    return words.split("\n")[0].split(". ")[0]
