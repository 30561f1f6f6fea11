"""What docs/migration.md shows, and a small BERT for it that stands for `bert-base-cased`."""

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
TEXT = (REPOSITORY / "docs" / "migration.md").read_text(encoding="utf-8")


def blocks(mark: str) -> list[str]:
    """The blocks below a line `<!-- mark -->`, e.g. `new: command`."""
    return re.findall(rf"^<!-- {re.escape(mark)} -->\n```[a-z]+\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def save_bert(folder: Path) -> Path:
    """A random BERT with the embedded model's tokenizer; the folder."""
    from transformers import BertConfig, BertModel

    from pipeline.config import Model, Storage
    from pipeline.model import load_tokenizer
    from tests.gloo.conftest import TINY

    tokenizer = load_tokenizer(Model(), Storage())
    BertModel(BertConfig(vocab_size=len(tokenizer), **TINY)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
