"""How S3 is reached: settings, one client per process, and requests that are made again; s3_errors.py says which."""

import logging
import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import boto3
import botocore.exceptions as aws
import tenacity
from botocore.config import Config as ClientConfig

from pipeline.config import Storage
from pipeline.errors import StorageError, UserError
from pipeline.redaction import redacted
from pipeline.s3_errors import EXPECTED_CODES, PASSING_ERRORS, code_of, explain, is_passing, is_signed

log = logging.getLogger(__name__)
Result = TypeVar("Result")

LOOPBACK = ("127.0.0.1", "localhost", "::1")
REGION = re.compile(r"(?!\d+$)[A-Za-z0-9][A-Za-z0-9-]{0,61}[A-Za-z0-9]")
VISIBLE = re.compile(r"[!-~]+")  # printable ASCII
HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+(%.+)?")


@dataclass(frozen=True)
class Settings:
    """All that is needed to reach a store, except credentials: those each process finds by the AWS chain.

    Times are in seconds. `attempts` are those within the SDK; `retry_seconds` is our own limit above them.
    """

    region: str
    endpoint_url: str | None = None
    addressing: str = "auto"
    ca_bundle: str | None = None
    put_options: tuple[tuple[str, str], ...] = ()
    connect_timeout: float = 5.0
    read_timeout: float = 30.0
    attempts: int = 3
    retry_seconds: float = field(default=300.0, compare=False)

    @property
    def place(self) -> str:
        """Endpoint and region, for messages."""
        return f"endpoint {self.endpoint_url or 'AWS'}, region {self.region}"

    def client(self) -> Any:
        """The boto3 client of this process for these settings; clients are safe to share between threads."""
        # A client must not cross a fork, and one made for other credentials must not be used again.
        key = (os.getpid(), self, hash(tuple(os.environ.get(name) for name in CREDENTIAL_VARIABLES)))
        with _lock:
            if key not in _clients:
                _clients[key] = self._new_client()
            return _clients[key]

    def _new_client(self) -> Any:
        session = new_session()
        custom = self.endpoint_url is not None
        style = self.addressing if self.addressing != "auto" else ("path" if custom else "auto")
        options: dict[str, Any] = {}
        if custom:
            # Since 2025 the SDK adds CRC checksums in trailers by default, which several compatible stores refuse.
            options["request_checksum_calculation"] = "when_required"
            options["response_checksum_validation"] = "when_required"
            if urlsplit(self.endpoint_url or "").hostname in LOOPBACK:
                options["proxies"] = {}  # a proxy cannot reach our own loopback, whatever NO_PROXY says
        return session.client(
            "s3",
            endpoint_url=self.endpoint_url,
            region_name=self.region,
            verify=self.ca_bundle,  # None: AWS_CA_BUNDLE of this process, else the authorities that botocore brings
            config=ClientConfig(
                signature_version="s3v4",
                s3={"addressing_style": style},
                connect_timeout=self.connect_timeout,
                read_timeout=self.read_timeout,
                retries={"mode": "standard", "total_max_attempts": self.attempts},
                max_pool_connections=32,
                **options,
            ),
        )

    def call(self, action: str, request: Callable[[], Result]) -> Result:
        """Make a request that can be repeated, again and again while its error is of the passing kind.

        `action` says in messages what was tried, e.g. `write s3://bucket/name`. Raises StorageError after
        `retry_seconds`, and at once when the store refuses. 404, 412 and their like stay botocore's ClientError.
        """
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(is_passing),
            stop=tenacity.stop_before_delay(self.retry_seconds),
            wait=tenacity.wait_exponential(multiplier=0.5, max=10) + tenacity.wait_random(0, 0.5),
            before_sleep=lambda state: log.warning(
                "storage: %s failed (%s); trying again, for %.0f s in all", action, _short(state), self.retry_seconds
            ),
            reraise=True,
        )
        try:
            return retrying(request)
        except (aws.ClientError, aws.BotoCoreError, *PASSING_ERRORS) as error:
            if code_of(error) in EXPECTED_CODES:
                raise
            lasting = f", for {self.retry_seconds:.0f} s" if is_passing(error) and self.retry_seconds else ""
            raise StorageError(f"storage: cannot {action} ({self.place}){lasting}: {explain(error)}") from (
                None if is_signed(error) else error
            )


CREDENTIAL_VARIABLES = (
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_CONFIG_FILE", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE",
)  # fmt: skip
_clients: dict[tuple[int, Settings, int], Any] = {}
_lock = threading.RLock()
# A fork in the middle of another thread's `client()` would leave the lock taken for ever in the child.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def new_session() -> Any:
    """A boto3 session on the environment of now. Raises UserError if AWS_PROFILE names no profile."""
    try:
        session = boto3.session.Session()
        session._session.get_scoped_config()  # reads the files
    except aws.ProfileNotFound as error:
        raise UserError(f"storage: {error}; set AWS_PROFILE to a profile of ~/.aws/config, or unset it") from error
    except aws.ConfigParseError as error:
        path = error.kwargs.get("path")
        raise UserError(
            f"AWS_CONFIG_FILE: {path}: is no file of AWS settings; expected [default] or [profile NAME], "
            "and name = value below it"
        ) from None
    return session


def settings_of(storage: Storage, retry_seconds: float) -> Settings:
    """Settings of an S3 storage (after `storage.resolve`), gathered from configuration, environment and profile.

    Done once, in the driver, so that workers use the same endpoint and region as it. Raises UserError.
    """
    profile = _profile()
    environment = os.environ.get
    named = {
        "storage.endpoint_url": storage.endpoint_url,
        "AWS_ENDPOINT_URL_S3": environment("AWS_ENDPOINT_URL_S3"),
        "AWS_ENDPOINT_URL": environment("AWS_ENDPOINT_URL"),
        "endpoint_url of the AWS profile": profile.get("endpoint_url"),
    }
    origin, endpoint = _first_set(named)
    if endpoint:
        _check_endpoint(origin, endpoint)
    regions = {
        "storage.region": storage.region,
        "AWS_REGION": environment("AWS_REGION"),
        "AWS_DEFAULT_REGION": environment("AWS_DEFAULT_REGION"),
        "region of the AWS profile": profile.get("region"),
    }
    place, region = _first_set(regions)
    if region and not REGION.fullmatch(region):
        raise UserError(f"{place}: {region!r} is no name of a region; expected one such as eu-central-1")
    _check_credentials()
    for field_name, ca_bundle in (
        ("storage.ca_bundle", storage.ca_bundle),
        ("AWS_CA_BUNDLE", environment("AWS_CA_BUNDLE")),
    ):
        if ca_bundle and not Path(ca_bundle).is_file():
            raise UserError(f"{field_name}: {ca_bundle!r} is no file; it must be a PEM file of certificates")
    put_options: list[tuple[str, str]] = []
    if storage.server_side_encryption:
        put_options.append(("ServerSideEncryption", storage.server_side_encryption))
    if storage.kms_key_id:
        if storage.server_side_encryption != "aws:kms":
            raise UserError("storage.kms_key_id: needs storage.server_side_encryption: aws:kms")
        put_options.append(("SSEKMSKeyId", storage.kms_key_id))
    return Settings(
        region=region or "us-east-1",
        endpoint_url=endpoint.rstrip("/") if endpoint else None,
        addressing=storage.addressing,
        ca_bundle=storage.ca_bundle,
        put_options=tuple(put_options),
        retry_seconds=retry_seconds,
    )


def _check_credentials() -> None:
    """Raises UserError for keys that cannot be sent; what they are is not said.

    A line end in one would let the HTTP library refuse the request, with all of its signature in the message.
    """
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    if os.environ.get(names[0]):
        given = {name: os.environ.get(name) for name in names}
    else:
        scoped = new_session()._session.get_scoped_config()
        given = {f"{name.lower()} of the AWS profile": scoped.get(name.lower()) for name in names}
    for name, value in given.items():
        if value and not VISIBLE.fullmatch(value):
            raise UserError(f"{name}: holds a line end, a space or a character that no key has; copy it again")
    key, secret, _ = given
    if given[key] and not given[secret]:
        raise UserError(f"{secret}: is empty or not given, but {key} is; give both")


def _first_set(named: dict[str, str | None]) -> tuple[str, str | None]:
    """Where a setting was found, of places in their order, and the setting; "" and None if nowhere."""
    return next(((name, value) for name, value in named.items() if value), ("", None))


def _check_endpoint(origin: str, endpoint: str) -> None:
    """Raises UserError that names `origin`, where the endpoint was found, and the part of it that is wrong."""
    if "://" not in endpoint:
        raise UserError(f"{origin}: {endpoint!r} has no scheme; write http://{endpoint} or https://{endpoint}")
    try:
        parts = urlsplit(endpoint)
    except ValueError:  # a bracket that opens and never closes
        raise UserError(
            f"{origin}: {redacted(endpoint)!r} is no address; must be http://host:port or https://host:port"
        ) from None
    if parts.username or parts.password:
        raise UserError(f"{origin}: holds credentials; they come from the environment or a profile")
    try:
        port_is_right = parts.port is None or parts.port > 0
    except ValueError:
        port_is_right = False
    wrong = None
    if parts.scheme not in ("http", "https"):
        wrong = f"the scheme {parts.scheme!r}"
    elif not parts.hostname or endpoint != endpoint.strip() or not HOST.fullmatch(parts.hostname):
        wrong = f"the host {parts.hostname or ''!r}"
    elif not port_is_right:
        wrong = "a port that is no number from 1 to 65535"
    elif parts.query or parts.fragment:
        wrong = f"{'?' + parts.query if parts.query else '#' + parts.fragment!r} at its end"
    if wrong:
        raise UserError(f"{origin}: {endpoint!r} has {wrong}; must be http://host:port or https://host:port")


def _profile() -> dict[str, str]:
    """What the profile in use (AWS_PROFILE, else default) says about endpoint and region."""
    session = new_session()._session
    scoped = session.get_scoped_config()
    found = {key: scoped[key] for key in ("endpoint_url", "region") if isinstance(scoped.get(key), str)}
    services = session.full_config.get("services", {}).get(scoped.get("services"), {})
    endpoint = services.get("s3", {}).get("endpoint_url") if isinstance(services.get("s3"), dict) else None
    if endpoint:
        found["endpoint_url"] = endpoint
    return found


def _short(state: tenacity.RetryCallState) -> str:
    error = state.outcome.exception() if state.outcome else None
    return explain(error) if error else "unknown"
