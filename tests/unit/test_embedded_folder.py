"""A data folder of the embedded store that cannot be used is named, before any server is started."""

from pathlib import Path

import pytest

from pipeline.embedded import _state, embedded_store
from pipeline.errors import UserError


@pytest.mark.parametrize("folder", ["file", "/proc/x", "a/" * 3000, "n" * 300, "nul\0"])
def test_a_folder_that_cannot_be_made_is_named(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with (
        pytest.raises(UserError, match=r"^PIPELINE_DATA_DIR: .*; expected a folder of your own"),
        embedded_store(Path(folder) / "s3"),
    ):
        pass


@pytest.mark.parametrize("name", ["users.lock", "start.lock", "identity.json"])
def test_a_folder_in_the_place_of_a_file_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(UserError, match=rf"{name}: is a directory"), embedded_store(tmp_path):
        pass


def test_damaged_keys_are_a_users_error_and_half_a_state_is_none(tmp_path: Path) -> None:
    (tmp_path / "identity.json").write_text('{"identities": [')
    with pytest.raises(UserError, match=r"identity\.json is damaged; delete it"), embedded_store(tmp_path):
        pass
    (tmp_path / "server.json").write_text('{"endpoint": "http')
    assert _state(tmp_path) == {}
