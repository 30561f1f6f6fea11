"""A small random Llama with a tokenizer of its own, and texts for it, all from Banking77."""

import csv
import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data" / "banking77"
VOCABULARY = 400


def rows(name: str, count: int) -> list[dict[str, str]]:
    """Every n-th row of a file, so that many classes are there: `text`, and the pair of `prompt` and `completion`."""
    with (DATA / name).open(newline="", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    chosen = [found[number * len(found) // count] for number in range(count)]
    return [
        {
            "text": row["text"],
            "prompt": f"Customer: {row['text']} Intent:",
            "completion": " " + row["category"].replace("_", " "),
        }
        for row in chosen
    ]


def write(path: Path, values: list[dict[str, str]]) -> str:
    """As JSONL; the path."""
    path.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")
    return str(path)


def tokenizer(begin: bool = True) -> Any:
    """Byte-level BPE trained on Banking77, with `<s>` in front of each text if `begin`; no token for padding."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE(unk_token=None))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator([row["text"] for row in rows("train.csv", 500)], trainer)
    if begin:
        bpe.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token="<s>",
        eos_token="</s>",
        model_max_length=256,
        clean_up_tokenization_spaces=False,
    )


def save(folder: Path, **changes: Any) -> str:
    """Weights, configuration and tokenizer in `folder`, as `from_pretrained` loads them; the folder as text."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "bos_token_id": 0,
        "eos_token_id": 1, "initializer_range": 0.08, **changes,
    }  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(7)
        LlamaForCausalLM(LlamaConfig(**sizes)).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return str(folder)
