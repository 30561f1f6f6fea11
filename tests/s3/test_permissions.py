"""Credentials that are good for less, that are withdrawn, that expire: the last good checkpoint stays and counts."""

import json
import logging
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline import checkpoint
from pipeline.config import Config
from pipeline.errors import StorageError, UserError
from pipeline.probe import probe
from pipeline.retention import prune
from pipeline.run import RunFolder
from pipeline.runs import found, opened
from pipeline.s3_store import S3Store
from pipeline.storage import Store, data_filesystem, open_store
from tests.s3.checkpoints import BIG, loaded, save, steps
from tests.s3.conftest import TEAM, WRITER, Server, is_running, wait_until
from tests.s3.proxy import Handler, Proxy, Seen, answers, proxy_before


def use(monkeypatch: pytest.MonkeyPatch, credentials: tuple[str, str]) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", credentials[0])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", credentials[1])


def test_credentials_good_for_one_prefix_are_enough_for_a_run_below_it(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use(monkeypatch, TEAM)
    storage = server.storage.model_copy(update={"path": "s3://pipeline/team/mine"})
    assert [step.warning for step in probe(storage)] == [None] * 5
    config = Config.model_validate({"storage": storage.model_dump(), "run": {"name": "one-prefix"}})
    folder = RunFolder.of(config)
    assert folder.result() == (None, None)
    folder.store.write("owner.json", json.dumps({"owner": folder.owner, "started": "2026"}).encode())
    assert folder.claim_attempt(1) == 1
    for step in (5, 10, 15):
        files = save(folder.store, tmp_path, step, size=BIG if step == 15 else 10)
        prune(folder.store, 1, 1, 5)
    assert steps(folder.store) == [5, 15]
    assert loaded(folder.store, tmp_path, checkpoint.Name(1, 15)) == files
    folder.write_result({"status": "finished"}, None)
    filesystem, path = data_filesystem(f"{folder.store.uri}/checkpoint-00000015-a001/config.json", storage)
    with filesystem.open_input_stream(path) as stream:
        assert stream.read() == b"{}"
    folder.store.delete("attempts")
    for path in ("s3://pipeline", "s3://pipeline/other"):
        with pytest.raises(UserError, match=r"step 'list' failed: forbidden.*grant s3:ListBucket"):
            probe(server.storage.model_copy(update={"path": path}))


def test_clean_up_that_may_not_delete_warns_and_goes_on(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    admin = open_store(server.storage).client  # type: ignore[attr-defined]
    deny = {
        "Effect": "Deny", "Principal": "*", "Action": ["s3:DeleteObject"],
        "Resource": ["arn:aws:s3:::pipeline/undeletable/*"],
    }  # fmt: skip
    admin.put_bucket_policy(Bucket="pipeline", Policy=json.dumps({"Version": "2012-10-17", "Statement": [deny]}))
    try:
        use(monkeypatch, WRITER)
        run = open_store(server.storage.model_copy(update={"path": "s3://pipeline/undeletable/run"}))
        for step in (5, 10, 15):
            files = save(run, tmp_path, step)
            with caplog.at_level(logging.WARNING, "pipeline"):
                prune(run, 1, 1, None)
        assert "checkpoint-00000005-a001 could not be deleted and stays: " in caplog.text
        assert "forbidden" in caplog.text or "AccessDenied" in caplog.text
        assert steps(run) == [5, 10, 15]
        assert loaded(run, tmp_path, checkpoint.Name(1, 15)) == files
    finally:
        admin.delete_bucket_policy(Bucket="pipeline")


@pytest.fixture
def withdrawable(server: Server) -> Iterator[tuple[str, str]]:
    """Credentials that `withdraw` takes back."""
    path = server.folder / "identity.json"
    before = path.read_text()
    content = json.loads(before)
    credentials = ("TEMPORARYKEY0001", "temporary-secret-0123456789")
    content["identities"].append(
        {
            "name": "temporary", "actions": ["Read:pipeline", "List:pipeline", "Write:pipeline"],
            "credentials": [{"accessKey": credentials[0], "secretKey": credentials[1]}],
        }
    )  # fmt: skip
    path.write_text(json.dumps(content))
    restart(server)
    yield credentials
    path.write_text(before)


def restart(server: Server) -> None:
    """The server reads its identities when it starts; its keeper starts it again."""
    weed = server.weed
    os.kill(weed, signal.SIGKILL)
    wait_until(lambda: not is_running(weed), "the server is dead", 10)


def test_credentials_withdrawn_in_mid_run_end_it_at_once_and_its_last_checkpoint_stays(
    server: Server, store: Store, withdrawable: tuple[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    admin = (os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"])
    use(monkeypatch, withdrawable)
    files = save(store, tmp_path, 5)
    path = server.folder / "identity.json"
    content = json.loads(path.read_text())
    content["identities"] = [found for found in content["identities"] if found["name"] != "temporary"]
    path.write_text(json.dumps(content))
    restart(server)
    # Retried while the server starts, refused as soon as it answers.
    with pytest.raises(StorageError, match=r"cannot write .*does not know this access key id, or no longer"):
        save(store, tmp_path, 10)
    began = time.monotonic()
    with pytest.raises(StorageError, match="InvalidAccessKeyId"):
        checkpoint.complete(store)
    assert time.monotonic() - began < 10
    use(monkeypatch, admin)
    assert steps(store) == [5]
    assert loaded(store, tmp_path, checkpoint.Name(1, 5)) == files


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with proxy_before(server.storage) as running:
        yield running


@pytest.mark.parametrize("path", ["partNumber=2", "[?]uploadId=", "config.json", "manifest.json"])
def test_a_token_that_expires_in_mid_upload_is_named_and_the_run_goes_on_with_a_new_one(
    proxy: Proxy, store: Store, tmp_path: Path, path: str
) -> None:
    run = open_store(proxy.storage.model_copy(update={"path": store.uri}), retry_seconds=60)
    files = save(run, tmp_path, 5)
    expired = answers(400, "ExpiredToken", "The provided token has expired.")

    def expire(handler: Handler, seen: Seen) -> bool:
        proxy.spoil(expired, times=100_000)
        return expired(handler, seen)

    proxy.spoil(expire, "", path)
    began = time.monotonic()
    with pytest.raises(StorageError) as caught:
        save(run, tmp_path, 10, size=BIG)
    assert time.monotonic() - began < 20  # nothing is tried again that cannot pass by itself
    said = str(caught.value)
    assert "cannot write s3://pipeline/runs/" in said
    assert (
        "the session token has expired; get new credentials and start the same run again, which goes on from " in said
    )
    assert "its last complete checkpoint (ExpiredToken)" in said
    with pytest.raises(StorageError, match="session token has expired"):
        run.exists("config.yaml")  # by HEAD, to which answers have no body that could say so
    with pytest.raises(UserError, match=r"step 'list' failed: the session token has expired"):
        probe(proxy.storage)
    proxy.heal()
    assert steps(run) == [5]
    assert loaded(run, tmp_path, checkpoint.complete(run)[-1]) == files
    save(run, tmp_path, 15, attempt=2)
    assert steps(run) == [5, 15]


def test_a_bucket_that_is_gone_in_mid_run_is_named_at_once(server: Server, tmp_path: Path) -> None:
    run = open_store(server.storage.model_copy(update={"path": "s3://short-lived/run"}))
    assert isinstance(run, S3Store)
    run.client.create_bucket(Bucket="short-lived")
    save(run, tmp_path, 5)
    run.client.delete_objects(
        Bucket="short-lived", Delete={"Objects": [{"Key": f"run/{entry.name}"} for entry in run.list()]}
    )
    run.client.delete_bucket(Bucket="short-lived")
    began = time.monotonic()
    with pytest.raises(StorageError, match=r"cannot write .*the bucket does not exist; create it.*\(NoSuchBucket\)"):
        save(run, tmp_path, 10)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("credentials", "place", "words"),
    [
        (None, "s3://no-such-bucket/x", "the bucket does not exist"),
        ((TEAM[0], "wrong"), "s3://pipeline/team", "AWS_SECRET_ACCESS_KEY"),
    ],
)
def test_commands_on_runs_tell_what_is_wrong_with_an_address_as_wrong_input(
    server: Server, monkeypatch: pytest.MonkeyPatch, credentials: tuple[str, str] | None, place: str, words: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", str(server.storage.endpoint_url))
    if credentials:
        use(monkeypatch, credentials)
    looks = (("STORAGE", opened(place)), ("RUN", found(f"{place}/run", None)), ("--storage", found("run", place)))
    for source, look in looks:
        with pytest.raises(UserError, match=rf"^{source}: {place}.*{words}"), look:
            pass
