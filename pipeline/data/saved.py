"""Folders that `save_to_disk` of Hugging Face `datasets` wrote: which of their files hold rows.

Beside the rows lie descriptions in JSON and, after a `map()`, files of a cache; `state.json` names those that count.
"""

import json
from typing import Any

from pipeline.config import Storage
from pipeline.data.listing import Found, bare, resolve
from pipeline.errors import UserError

SPLITS, STATE, INFO = "dataset_dict.json", "state.json", "dataset_info.json"


def rows_only(matches: list[Found], folder: str, split: str, storage: Storage) -> list[Found]:
    """Of the files in `folder`, those of its `split` (if it holds several), and of each saved data set its rows only.

    Folders of other kinds stay as they are. Raises UserError for a split or a file that is not there.
    """
    kept = {bare(match.path): match for match in matches}
    for path, match in list(kept.items()):
        base, _, name = path.rpartition("/")
        if name == SPLITS:
            splits = _json(match, storage).get("splits", [])
            if split not in splits:
                found = ", ".join(map(repr, splits))
                raise UserError(f"{folder}: holds the splits {found}, and not {split!r}; give the folder of one of them")
            kept = {other: found for other, found in kept.items() if not _below(other, base, but=f"{base}/{split}")}
    for path, match in list(kept.items()):
        base, _, name = path.rpartition("/")
        if name == STATE and f"{base}/{INFO}" in kept:
            named = {f"{base}/{file['filename']}" for file in _json(match, storage).get("_data_files", [])}
            missing = sorted(named - kept.keys())
            if missing:
                raise UserError(f"{folder}: {missing[0]} is missing, which {STATE} names; save the data set again")
            kept = {other: found for other, found in kept.items() if other in named or not _below(other, base)}
    return list(kept.values())


def _below(path: str, folder: str, but: str | None = None) -> bool:
    return path.startswith(f"{folder}/") and not (but is not None and path.startswith(f"{but}/"))


def _json(file: Found, storage: Storage) -> dict[str, Any]:
    filesystem, path = resolve(file.path, storage)
    try:
        with filesystem.open_input_stream(path) as stream:
            value = json.loads(stream.read())
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise UserError(f"{file.path}: is not as save_to_disk writes it; save the data set again")
    return value
