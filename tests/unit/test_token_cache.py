"""The folder of tokenised tables: written once, forgotten after a month without a reader."""

import os
import time
from pathlib import Path

import pytest

from pipeline.config import Config
from pipeline.data.inspect import inspect
from pipeline.data.torch_engine import tokenised

DAY_S = 24 * 3600


def test_a_table_is_written_once_and_tables_that_nobody_reads_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIPELINE_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "train.csv").write_text("text,category\nmy card is lost,card\ntop up,money\n")
    data = {"engine": "torch", "train": str(tmp_path / "train.csv"), "validation": None}
    config = Config.model_validate({"data": data, "scaling": {"workers": 1}})
    facts = inspect(config)
    folder = tmp_path / "cache" / "pipeline" / "tokens"
    folder.mkdir(parents=True)
    for name, days in (("used.arrow", 29), ("unused.arrow", 31), ("unused.4711", 31)):
        (folder / name).write_bytes(b"rows")
        os.utime(folder / name, (time.time() - days * DAY_S,) * 2)
    assert len(tokenised(config, facts, "train")) == 2
    (table,) = (path for path in folder.glob("*.arrow") if path.name != "used.arrow")
    assert {path.name for path in folder.iterdir()} == {"used.arrow", table.name, f"{table.name}.lock"}
    written = table.stat().st_ino
    os.utime(table, (time.time() - 20 * DAY_S,) * 2)
    tokenised(config, facts, "train")
    assert table.stat().st_ino == written
    assert time.time() - table.stat().st_mtime < DAY_S
