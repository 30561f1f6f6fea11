"""Data sets of the Hugging Face hub, as files that the readers of local files read.

    hub:OWNER/NAME[@REVISION][/CONFIGURATION][:SPLIT]      by the data set's own description, as `load_dataset` has it
    hf://datasets/OWNER/NAME[@REVISION]/FILE_GLOB_OR_FOLDER

The driver asks once which files there are and notes the commit, so that all workers, and a run that is continued, read
the same ones. Each node fetches them into its hub cache (HF_HOME). No code of a data set is run.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pipeline import hub
from pipeline.data.listing import MAGIC, Found, fits
from pipeline.errors import StorageError, UserError

NAME = r"(?P<name>[\w.-]+/[\w.-]+)(?:@(?P<revision>[^/:]+))?"
BY_NAME = re.compile(rf"hub:{NAME}(?:/(?P<configuration>[^/:]+))?(?::(?P<split>\w+))?")
BY_PATH = re.compile(rf"hf://datasets/{NAME}(?:/(?P<path>.*))?")
# As `datasets` finds splits by the names of files and folders.
KEYWORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}


@dataclass(frozen=True)
class Address:
    """One of the two spellings, taken apart; `path` belongs to the second, `configuration` and `split` to the first."""

    text: str
    name: str
    revision: str | None
    configuration: str | None = None
    split: str | None = None
    path: str | None = None


def address(path: str) -> Address | None:
    """What a path says, None if it is none of the hub. Raises UserError for a wrong spelling."""
    if path.startswith("hub:"):
        found = BY_NAME.fullmatch(path)
    elif path.startswith("hf://"):
        found = BY_PATH.fullmatch(path)
    else:
        return None
    if found is None:
        raise UserError(
            f"{path}: expected hub:OWNER/NAME[@REVISION][/CONFIGURATION][:SPLIT] or hf://datasets/OWNER/NAME/FILES"
        )
    return Address(path, **found.groupdict())


def matching(wanted: Address, split: str) -> tuple[list[Found], bool]:
    """The files of an address, and whether it names a folder; `split` is taken if the address names none.

    Raises UserError, listing what there is, if there is no such configuration, split or file.
    """
    from pipeline.data.files import suffix_format

    about = hub.info("data set", wanted.name, wanted.revision, wanted.text, files=True)
    files = {file.rfilename: file for file in about.siblings or []}
    root = f"hf://datasets/{wanted.name}@{about.sha}"

    def found(names: list[str]) -> list[Found]:
        return [Found(f"{root}/{name}", files[name].size or 0, _tag(files[name])) for name in sorted(names)]

    if wanted.path:
        path = wanted.path.rstrip("/")
        if not MAGIC.search(path):
            below = [name for name in files if name.startswith(f"{path}/")]
            if path not in files and not below:
                raise UserError(f"{wanted.text}: no such file or folder; the data set has {_some(list(files))}")
            return (found([path]), False) if path in files else (found(below), True)
        names = [name for name in files if fits(name, path)]
        if not names:
            raise UserError(f"{wanted.text}: no file matches; the data set has {_some(list(files))}")
        return found(names), False
    readable = [name for name in files if suffix_format(name) and name.rpartition("/")[2] != "dataset_infos.json"]
    splits = _splits(wanted, _configurations(about), readable)
    chosen = wanted.split or split
    if not splits.get(chosen):
        have = ", ".join(map(repr, sorted(name for name, names in splits.items() if names))) or "none that can be read"
        raise UserError(f"{wanted.text}: no split {chosen!r}; the data set has {have}; give one as hub:OWNER/NAME:SPLIT")
    return found(splits[chosen]), False


def fetched(path: str) -> str:
    """The local copy of a file, fetched if this node does not have it. Raises StorageError."""
    import httpx2
    from huggingface_hub import hf_hub_download

    wanted = address(path)
    assert wanted is not None
    assert wanted.path is not None
    try:
        return str(hf_hub_download(wanted.name, wanted.path, repo_type="dataset", revision=wanted.revision))
    except (OSError, ValueError, httpx2.HTTPError) as error:
        words = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise StorageError(f"{path}: cannot be fetched from the hub: {words}") from error


def _tag(file: Any) -> str | None:
    found: str | None = file.lfs.sha256 if file.lfs else file.blob_id
    return found


def _configurations(about: Any) -> dict[str, dict[str, Any]]:
    """The `configs` of a data set's card, by name; the default one first."""
    given = (about.card_data.get("configs") if about.card_data else None) or []
    named = {str(each.get("config_name")): each for each in given if isinstance(each, dict)}
    first = [name for name, each in named.items() if each.get("default") or name == "default"]
    return {name: named[name] for name in [*first, *(name for name in named if name not in first)]}


def _splits(wanted: Address, configurations: dict[str, dict[str, Any]], names: list[str]) -> dict[str, list[str]]:
    """Files of each split of the configuration that is asked for."""
    have = ", ".join(map(repr, configurations)) or "none"
    if wanted.configuration is not None and wanted.configuration not in configurations:
        raise UserError(f"{wanted.text}: no configuration {wanted.configuration!r}; the data set has {have}")
    if not configurations:
        return _by_keyword(names)
    first = next(iter(configurations))
    if wanted.configuration is None and len(configurations) > 1 and not configurations[first].get("default"):
        if first != "default":
            raise UserError(f"{wanted.text}: has the configurations {have}; give one as hub:OWNER/NAME/CONFIGURATION")
    about = configurations[wanted.configuration or first]
    below = f"{about['data_dir'].strip('/')}/" if about.get("data_dir") else ""
    given = about.get("data_files")
    if given is None:
        return _by_keyword([name for name in names if name.startswith(below)])
    items = given if isinstance(given, list) else [given]
    splits: dict[str, list[str]] = {}
    for item in items:
        split, patterns = (item["split"], item["path"]) if isinstance(item, dict) else ("train", item)
        for pattern in patterns if isinstance(patterns, list) else [patterns]:
            splits.setdefault(split, []).extend(name for name in names if fits(name, below + pattern))
    return splits


def _by_keyword(names: list[str]) -> dict[str, list[str]]:
    """Splits by the words in the names of folders, else of files; all are training rows if there are none."""
    for place in (slice(-1), slice(-1, None)):
        splits: dict[str, list[str]] = {}
        for name in names:
            words = {word for part in name.split("/")[place] for word in re.split(r"[-._ 0-9]+", part)}
            for split, keywords in KEYWORDS.items():
                if words & set(keywords):
                    splits.setdefault(split, []).append(name)
        if splits:
            return splits
    return {"train": names}


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{', '.join(sorted(names)[:5])}{more}" or "no files"
