"""Everything that touches storage is built here: stores for our own files, filesystems for Ray and for input data.

    store = open_store(config.storage).child(config.run.name)
    tag = store.write("owner.json", data, if_absent=True)      # Conflict if another process was first

An address is `s3://bucket/prefix` (any S3-compatible store) or a folder. Nothing built here holds a credential: each
process finds its own by the AWS chain (environment, profile, web identity, pod or instance role), so all of it can be
pickled to Ray workers. docs/storage.md is the user's side of this file.
"""

import os
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pyarrow.fs

from pipeline.config import Storage
from pipeline.errors import StorageError, UserError

RETRY_SECONDS = 300.0
SCHEMES = "s3://bucket/prefix, file:///folder, or a folder"
BUCKET = re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]")
IP_ADDRESS = re.compile(r"[0-9]+(\.[0-9]+){3}")
ONE_SLASH = re.compile(r"(s3[an]?|gs|file|https?|abfss?):/?[^/]", re.IGNORECASE)
QUERY_KEYS = ("endpoint_override", "scheme", "region")


class Conflict(StorageError):
    """The condition of a write did not hold: the object is there already, is gone, or has another tag."""


@dataclass(frozen=True)
class Entry:
    """One object of a listing.

    `name` is relative to the store that was asked, `size` in bytes, `modified` in UTC. `tag` changes when the object
    does: the ETag on S3; for a folder modification time and size, so compare it with another listing only, not with
    the tag of `read_tagged`.
    """

    name: str
    size: int
    tag: str
    modified: datetime


# In a class that has a method `list`, the type of that name cannot be written.
Entries = list[Entry]
Names = list[str]


class Store(ABC):
    """Objects under one address. Names are relative, with `/` between folders.

    All methods raise StorageError when the store refuses or stays away for longer than its retry limit. An object is
    seen whole or not at all: no reader meets half of a write.
    """

    uri: str

    @abstractmethod
    def child(self, *names: str) -> "Store":
        """The store one or more folders further down; nothing is created."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """The bytes of an object. Raises FileNotFoundError if there is none."""

    @abstractmethod
    def read_tagged(self, name: str) -> tuple[bytes, str] | None:
        """Bytes and tag of an object, None if there is none. The tag is what `write(if_tag=)` takes."""

    @abstractmethod
    def write(self, name: str, data: bytes, *, if_absent: bool = False, if_tag: str | None = None) -> str:
        """Write a whole object and return its new tag.

        `if_absent` and `if_tag` make it conditional; raises Conflict when the condition fails. On S3 a reply can get
        lost after the write was done. The repetition then meets the object; it counts as ours if the bytes are equal.
        So whoever uses this as a lock writes something that no other writer writes.
        """

    @abstractmethod
    def upload(self, local: Path, name: str) -> None:
        """Copy a local file of any size into the store."""

    @abstractmethod
    def download(self, name: str, local: Path) -> None:
        """Copy an object to a local file, which appears only when complete. Raises FileNotFoundError."""

    @abstractmethod
    def list(self, prefix: str = "") -> Entries:
        """All objects under a folder, however deep, in order of their names; empty if there is none."""

    @abstractmethod
    def folders(self, prefix: str = "") -> Names:
        """Names of the folders directly in a folder, in order."""

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Whether there is an object of this name; a folder is none."""

    @abstractmethod
    def delete(self, prefix: str) -> None:
        """Delete the object of this name and everything in the folder of this name. It is fine if neither exists."""

    @abstractmethod
    def filesystem(self) -> tuple[pyarrow.fs.FileSystem, str]:
        """Filesystem and path of this store, for `RunConfig(storage_filesystem=, storage_path=)`; can be pickled."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.uri!r})"


def normalise(path: str) -> str:
    """The one spelling of an address: `s3://bucket/a//b/` becomes `s3://bucket/a/b`, a folder becomes absolute.

    A query string is cut off; `resolve` moves what it says into settings. Raises UserError.
    """
    return resolve(Storage(path=path)).path or ""


def resolve(storage: Storage, source: str = "storage.path") -> Storage:
    """The same storage with its path normalised and the path's query string moved into the fields.

    A field that is given wins over the query string. Raises UserError, which names `source` as the place of the
    address; `storage.path` must not be None.
    """
    path = storage.path
    if path is None:
        raise UserError(f"{source}: is not given here; the embedded store has to be started first")
    if path != path.strip() or not path.isprintable():
        raise UserError(f"{source}: {path!r} has white space around it or a control character in it")
    scheme, separator, rest = path.partition("://")
    if not separator:
        if ONE_SLASH.match(path):
            raise UserError(f"{source}: {path!r} lacks '//' after {path.partition(':')[0] + ':'!r}; write {SCHEMES}")
        folder = os.path.expanduser(path)  # noqa: PTH111  (pathlib raises for a user that is unknown here)
        if folder.startswith("~"):
            raise UserError(f"{source}: {path!r} is in the home of a user that is not known here; write the folder out")
        return storage.model_copy(update={"path": str(Path(folder).absolute())})
    if scheme == "file":
        host, _, folder = rest.partition("/")
        if host not in ("", "localhost"):
            raise UserError(f"{source}: {path!r} names the host {host!r}; write file:///folder")
        return storage.model_copy(update={"path": str(Path("/" + folder).absolute())})
    if scheme != "s3":
        raise UserError(f"{source}: {path.split('?')[0]!r} has the scheme {scheme!r}; allowed: {SCHEMES}")
    address, _, query = rest.partition("?")
    bucket, _, prefix = address.partition("/")
    if "@" in bucket or ":" in bucket:
        # The value may hold a secret (even one with a slash in it), so it is not repeated.
        raise UserError(
            f"{source}: has ':' or '@' where the bucket belongs; credentials come from the environment or a profile, "
            "host and port from storage.endpoint_url"
        )
    if not BUCKET.fullmatch(bucket) or IP_ADDRESS.fullmatch(bucket):
        raise UserError(
            f"{source}: bucket name {bucket!r} in {'s3://' + address!r}; a bucket name has 3 to 63 letters, digits, "
            "'-', '_' or single '.', begins and ends with a letter or digit, and is no IP address"
        )
    parts = [part for part in prefix.split("/") if part]
    if "." in parts or ".." in parts:
        raise UserError(f"{source}: {'s3://' + address!r} has '.' or '..' in it, which S3 takes for names")
    update: dict[str, str] = {"path": "/".join(["s3:/", bucket, *parts])}
    settings = _query(query, source)
    if storage.endpoint_url is None and "endpoint_override" in settings:
        endpoint = settings["endpoint_override"]
        update["endpoint_url"] = endpoint if "://" in endpoint else f"{settings.get('scheme', 'https')}://{endpoint}"
    if storage.region is None and "region" in settings:
        update["region"] = settings["region"]
    return storage.model_copy(update=update)


def _query(query: str, source: str) -> dict[str, str]:
    settings = dict(parse_qsl(query, keep_blank_values=True))
    wrong = [key for key in settings if key not in QUERY_KEYS]
    if wrong:
        # Names only: people put access_key and secret_key here.
        raise UserError(
            f"{source}: query string has {', '.join(map(repr, wrong))}; allowed: {', '.join(QUERY_KEYS)}; "
            "credentials come from the environment or a profile"
        )
    empty = [key for key, value in settings.items() if not value.strip()]
    if empty:
        raise UserError(f"{source}: {empty[0]} in the query string is empty; give a value or leave it out")
    if settings.get("scheme", "http") not in ("http", "https"):
        raise UserError(f"{source}: scheme={settings['scheme']} in the query string; allowed: http, https")
    if "scheme" in settings and "endpoint_override" not in settings:
        raise UserError(f"{source}: scheme in the query string needs endpoint_override=host:port beside it")
    return settings


def open_store(storage: Storage, *, retry_seconds: float = RETRY_SECONDS) -> Store:
    """The store at `storage.path`. No request is made yet, so a wrong credential shows at first use.

    `retry_seconds` is how long one request is tried again while the store does not answer. Raises UserError.
    """
    storage = resolve(storage)
    path = storage.path or ""
    # Imported here since both modules build on this one, and boto3 costs 0.3 s that a folder need not pay.
    if path.startswith("s3://"):
        from pipeline.s3 import settings_of
        from pipeline.s3_store import S3Store

        parts = urlsplit(path, allow_fragments=False)
        return S3Store(settings_of(storage, retry_seconds), parts.netloc, parts.path.strip("/"))
    from pipeline.local_store import LocalStore

    return LocalStore(Path(path))


def data_filesystem(uri: str, storage: Storage, source: str = "data") -> tuple[pyarrow.fs.FileSystem, str]:
    """Filesystem and path to read input data from: an `s3://` address, with the settings of `storage`, or a local path.

    `source` is the field that holds the address, for messages. Raises UserError for a wrong address.

    Give Ray Data both (`read_csv(path, filesystem=...)`): with the bare `s3://` address it would build a filesystem of
    its own, without endpoint, certificate authority or retries. The path may hold glob characters; none are resolved.
    """
    return open_store(resolve(storage.model_copy(update={"path": uri}), source)).filesystem()


def checked_name(name: str) -> str:
    """The name itself if it is a relative one without `.`, `..` or empty parts; else ValueError (our own mistake)."""
    if not name or any(part in ("", ".", "..") for part in name.split("/")):
        raise ValueError(f"not a name in a store: {name!r}")
    return name
