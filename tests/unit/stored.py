"""A finished run in a folder, as training leaves it, for tests that read runs back or damage them."""

import hashlib
import json
from pathlib import Path
from typing import Any

from pipeline import settings
from pipeline.config import Config
from pipeline.data.facts import Facts

NAME = "checkpoint-00000004-a001"
OWNER = {"owner": "x", "started": "2026-01-01T00:00:00+00:00", "host": "h"}
RESULT: dict[str, Any] = {
    "name": "one", "status": "finished", "steps": 4, "total_steps": 4, "epochs": 2.0, "train_rows": 8, "eval_rows": 8,
    "metrics": {"eval_f1": None}, "best_checkpoint": NAME, "last_checkpoint": NAME, "attempts": 1,
    "history": [{"step": 4, "epoch": 2.0, "eval_accuracy": 0.5, "eval_f1": None, "eval_loss": 0.25}],
    "resumed_from_step": 0, "world_size": 1, "strategy": "ddp", "versions": {}, "seconds": 1.0, "train_seconds": 1.0,
    "data_wait_share": 0.0, "truncated_rows": 0, "stopped_early": False, "final_learning_rate": 0.0,
    "parameters_sha256": "0", "workers": [],
}  # fmt: skip
STATE = {"step": 4, "history": [], "best": 0.5, "best_step": 4, "stale": 0, "stopped_early": False, "extra": {}}
FILES = {
    "config.json": "{}", "model.safetensors": "weights", "tokenizer.json": "{}", "optimizer.safetensors": "moments",
    "state.json": json.dumps(STATE), "random/rank-00000.safetensors": "numbers",
}  # fmt: skip


def finished(folder: Path) -> Path:
    """The folder of a run with all that it writes; the weights are none."""
    facts = Facts({}, {"train": 8}, {}, ["a", "b"], {}, "string")
    texts = {
        "config.yaml": settings.dump(Config()), "data.json": json.dumps(facts.to_json()),
        "owner.json": json.dumps(OWNER), "result.json": json.dumps(RESULT), "metrics.jsonl": '{"step": 1}\n',
        "metrics/attempt-001.jsonl": '{"step": 1}\n', "attempts/001.json": '{"attempt": 1}',
        "logs/a001-r0.log": "log\n",
    }  # fmt: skip
    for name, text in {**texts, **{f"{NAME}/{file}": content for file, content in FILES.items()}}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    manifest(folder, {name: entry(content) for name, content in FILES.items()})
    return folder


def entry(content: str) -> dict[str, Any]:
    return {"size": len(content), "sha256": hashlib.sha256(content.encode()).hexdigest()}


def manifest(folder: Path, files: Any) -> None:
    written = {"format": 1, "name": NAME, "world_size": 1, "files": files, "step": 4, "total_steps": 4}
    (folder / NAME / "manifest.json").write_text(json.dumps(written))
