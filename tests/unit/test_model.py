"""Weights that are not those of the model asked for."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertModel, GteConfig, GteModel

from pipeline.config import Model, Storage
from pipeline.errors import UserError
from pipeline.model import describe, load_model, load_tokenizer
from pipeline.weights import check_weights

SMALL = {
    "vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
}  # fmt: skip
LABELS = ["no", "yes"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    BertModel(BertConfig(**SMALL)).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_body_from_the_files_with_a_new_head_is_what_is_trained(folder: Path) -> None:
    loaded = load_model(Model(path=str(folder)), Storage(), LABELS)
    saved = load_file(folder / "model.safetensors")
    body = loaded.bert.state_dict()
    assert all(torch.equal(value, body[name]) for name, value in saved.items())
    assert loaded.classifier.weight.shape == (2, 16)


def test_weights_of_another_kind_of_model_are_refused_instead_of_starting_at_random(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file(
        {f"other.{name}": value for name, value in weights.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    with pytest.raises(UserError, match=r"39 of 39 weights of a BertForSequenceClassification are not in .*model"):
        load_model(Model(path=str(folder)), Storage(), LABELS)


def without(*parts: str) -> Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]:
    return lambda weights: {name: value for name, value in weights.items() if not any(part in name for part in parts)}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without(""), "39 of 39 weights of a BertForSequenceClassification are not in"),
        (lambda weights: {f"other.{name}": value for name, value in weights.items()}, "39 of 39 weights of a Bert"),
        (without("word_embeddings"), "there is none for bert.embeddings.word_embeddings.weight"),
    ],
    ids=["none", "others", "words"],
)
def test_weights_that_cannot_be_the_models_are_refused_before_it_is_loaded(
    folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]], words: str
) -> None:
    save_file(change(load_file(folder / "model.safetensors")), folder / "model.safetensors", metadata={"format": "pt"})
    for look in (lambda: check_weights(Model(path=str(folder)), Storage()), lambda: load(folder)):
        with pytest.raises(UserError) as caught:
            look()
        assert words in caught.value.problems[0]


def test_weights_under_names_that_transformers_changes_when_it_loads_them_are_the_models(tmp_path: Path) -> None:
    GteModel(GteConfig(**SMALL)).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    file = tmp_path / "model.safetensors"
    save_file({f"new.{name}": value for name, value in weights.items()}, file, metadata={"format": "pt"})
    check_weights(Model(path=str(tmp_path)), Storage())
    words = load(tmp_path).gte.embeddings.word_embeddings.weight
    assert torch.equal(words, weights["embeddings.word_embeddings.weight"])
    fewer = without("word")(weights)
    save_file({f"new.{name}": value for name, value in fewer.items()}, file, metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"there is none for gte\.embeddings\.word_embeddings\.weight"):
        check_weights(Model(path=str(tmp_path)), Storage())


def load(folder: Path) -> Any:
    return load_model(Model(path=str(folder)), Storage(), LABELS)


def test_embeddings_that_are_not_there_are_refused_and_a_pooler_is_not_missed(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file(without("pooler")(weights), folder / "model.safetensors", metadata={"format": "pt"})
    check_weights(Model(path=str(folder)), Storage())
    load(folder)
    save_file(without("position_embeddings")(weights), folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"there is none for bert\.embeddings\.position_embeddings\.weight"):
        load(folder)


def test_a_tokenizer_of_more_words_than_the_model_has_is_refused(folder: Path) -> None:
    load_tokenizer(Model(), Storage()).save_pretrained(folder)
    with pytest.raises(UserError, match=r"the tokenizer of .*model has 30522 tokens, the model 50"):
        describe(Model(path=str(folder)), Storage())


def test_architectures_that_are_no_names_are_refused(folder: Path) -> None:
    noted(architectures=5)(folder)
    with pytest.raises(UserError, match="cannot be loaded: architectures is 5, no list of names"):
        load(folder)


def noted(**values: object) -> Callable[[Path], object]:
    def note(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **values}))

    return note


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            noted(quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True}),
            "is quantized (quantization_config in its config.json); expected the weights as they were trained",
        ),
        (noted(quantization_config={}), "is quantized"),
        (
            lambda folder: (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}'),
            "holds adapters (adapter_config.json); expected a whole model",
        ),
    ],
)
def test_weights_that_are_no_whole_ones_are_refused(folder: Path, change: Callable[[Path], object], words: str) -> None:
    check_weights(Model(path=str(folder)), Storage())
    change(folder)
    with pytest.raises(UserError) as caught:
        check_weights(Model(path=str(folder)), Storage())
    assert words in str(caught.value)
