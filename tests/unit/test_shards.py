"""Runs of tensors as files: read in any cut, refused when incomplete, joined to weights that transformers loads."""

import itertools
import json
from pathlib import Path

import pytest
import torch

from pipeline import export, shards
from pipeline.errors import RunError
from pipeline.strategy.pieces import Piece


def cut(tensors: dict[str, torch.Tensor], bounds: list[float]) -> list[list[Piece]]:
    """Each tensor's elements spread over ranks at those shares, as shards of different lengths are."""
    ranks: list[list[Piece]] = [[] for _ in bounds[1:]]
    for name, tensor in tensors.items():
        flat = tensor.detach().reshape(-1)
        edges = [round(bound * flat.numel()) for bound in bounds]
        for rank, (low, high) in enumerate(itertools.pairwise(edges)):
            ranks[rank].append(Piece(name, tuple(tensor.shape), low, flat[low:high]))
    return ranks


def write(folder: Path, tensors: dict[str, torch.Tensor], bounds: list[float]) -> None:
    for rank, pieces in enumerate(cut(tensors, bounds)):
        moments = [Piece(f"{piece.name}::exp_avg", piece.shape, piece.offset, -piece.values) for piece in pieces]
        shards.write_runs(folder, rank, pieces, moments, {piece.name: 7.0 for piece in pieces})


TENSORS = {"a": torch.arange(35.0).view(5, 7), "b": torch.arange(3.0) + 100, "c": torch.tensor(9.0)}


@pytest.mark.parametrize("bounds", [[0, 1], [0, 0.5, 1], [0, 0.21, 0.8, 1]])
def test_what_some_ranks_wrote_others_read_in_their_own_cut(tmp_path: Path, bounds: list[float]) -> None:
    write(tmp_path, TENSORS, bounds)
    with shards.Reader(tmp_path) as reader:
        assert reader.steps == dict.fromkeys(TENSORS, 7.0)
        for piece in [piece for rank in cut(TENSORS, [0, 0.4, 1]) for piece in rank]:
            found = torch.empty_like(piece.values)
            reader.read(piece.name, piece.offset, found)
            assert torch.equal(found, piece.values)
            reader.read(f"{piece.name}::exp_avg", piece.offset, found)
            assert torch.equal(found, -piece.values)
        assert {name: tensor.tolist() for name, tensor in reader.wholes()} == {
            name: tensor.tolist() for name, tensor in TENSORS.items()
        }


def test_whole_tensors_are_read_in_any_cut_too(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file(TENSORS, tmp_path / "model.safetensors")
    shards.write_whole_moments(tmp_path, {f"{name}::exp_avg": -value for name, value in TENSORS.items()}, {"a": 3.0})
    with shards.Reader(tmp_path) as reader:
        assert (reader.steps, set(reader.weights)) == ({"a": 3.0}, set(TENSORS))
        found = torch.empty(17)
        reader.read("a", 10, found)
        assert torch.equal(found, TENSORS["a"].reshape(-1)[10:27])
        reader.read("a::exp_avg", 10, found)
        assert torch.equal(found, -TENSORS["a"].reshape(-1)[10:27])


def test_a_checkpoint_that_lacks_a_rank_is_refused_and_says_what_is_missing(tmp_path: Path) -> None:
    write(tmp_path, TENSORS, [0, 0.5, 1])
    (tmp_path / "shards" / "rank-00001.json").unlink()
    with shards.Reader(tmp_path) as reader, pytest.raises(RunError, match="has 18 of the elements 0 to 35 of a"):
        reader.whole("a")


def test_a_rank_asks_only_for_its_own_large_files() -> None:
    files = ["state.json", "weights/rank-00000.safetensors", "moments/rank-00012.safetensors", "shards/rank-00000.json"]
    assert [file for file in files if shards.belongs_to(file, {12})] == [files[0], files[2], files[3]]
    assert all(shards.belongs_to(file, None) for file in files)


def test_shards_of_a_model_with_tied_weights_join_to_what_it_was(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(1)
    model = LlamaForCausalLM(config).eval()
    write(tmp_path, dict(model.named_parameters()), [0, 0.3, 1])
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(tmp_path)
    assert export.is_sharded(tmp_path)
    export.join(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == []
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    ids = torch.tensor([[1, 2, 3, 4]])
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model(ids).logits)
    assert json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"] is True


def test_weights_of_another_model_are_not_exported(tmp_path: Path) -> None:
    from transformers import BertConfig

    write(tmp_path, TENSORS, [0, 1])
    config = BertConfig(vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    config.architectures = ["BertForSequenceClassification"]
    config.save_pretrained(tmp_path)
    with pytest.raises(RunError, match="do not fit a BertForSequenceClassification"):
        export.join(tmp_path)
