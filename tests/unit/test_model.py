"""Weights that are not those of the model asked for."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertModel

from pipeline.config import Model, Storage
from pipeline.errors import UserError
from pipeline.model import load_model

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
