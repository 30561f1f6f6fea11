"""Files in a folder of the test's own, and an environment without settings of storage."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

Write = Callable[[str, Any], Path]
TEXTS = "text,category\n" + "".join(f"text {number},{'ab'[number % 2]}\n" for number in range(8))


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes bytes and text as they are, a table as Parquet, rows of dicts as JSONL, into the current folder."""
    monkeypatch.chdir(tmp_path)

    def to(name: str, content: Any) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, pa.Table):
            pq.write_table(content, path)
        elif isinstance(content, bytes):
            path.write_bytes(content)
        elif isinstance(content, str):
            path.write_bytes(content.encode())
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in content))
        return path

    return to


@pytest.fixture
def files(tmp_path: Path) -> Callable[..., list[str]]:
    """Overrides for a good job on small files; arguments replace the files' content."""

    def make(train: str = TEXTS, validation: str = TEXTS) -> list[str]:
        (tmp_path / "train.csv").write_text(train)
        (tmp_path / "validation.csv").write_text(validation)
        return [
            f"data.train={tmp_path}/train.csv", f"data.validation={tmp_path}/validation.csv",
            f"storage.path={tmp_path}/runs", "data.engine=torch",
        ]  # fmt: skip

    return make


@pytest.fixture
def no_storage_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """No endpoint, region, profile or AWS file of whoever runs the tests."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
