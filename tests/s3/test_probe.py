"""What the probe says about each way in which storage can be wrong."""

import socket
import time

import pytest

from pipeline.config import Storage
from pipeline.errors import UserError
from pipeline.probe import probe, short_key
from pipeline.storage import open_store
from tests.s3.conftest import READER, WRITER, Server
from tests.s3.proxy import answers, proxy_before, says_written


def test_a_good_store_passes_all_steps_and_is_left_clean(server: Server) -> None:
    before = open_store(server.storage).list()
    steps = probe(server.storage)
    assert [(step.name, step.warning) for step in steps] == [
        ("list", None),
        ("write", None),
        ("read", None),
        ("claim", None),
        ("delete", None),
    ]
    assert open_store(server.storage).list() == before


def test_an_unreachable_endpoint_is_named_within_seconds(server: Server) -> None:
    start = time.monotonic()
    message = failure(server.storage.model_copy(update={"endpoint_url": "http://127.0.0.1:9"}))
    assert "step 'list' failed: endpoint unreachable: connection refused" in message
    assert "endpoint http://127.0.0.1:9, region us-east-1, bucket 'pipeline'" in message
    message = failure(server.storage.model_copy(update={"endpoint_url": "http://s3.nowhere.invalid:9000"}))
    assert "DNS" in message
    assert time.monotonic() - start < 15  # 10, and something for a busy machine


def test_an_endpoint_that_never_answers_is_named_within_seconds(server: Server) -> None:
    start = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        message = failure(server.storage.model_copy(update={"endpoint_url": f"http://127.0.0.1:{port}"}))
    assert "endpoint unreachable: no answer in time" in message
    assert time.monotonic() - start < 15  # 10, and something for a busy machine


def test_a_missing_bucket_is_named(server: Server) -> None:
    message = failure(server.storage.model_copy(update={"path": "s3://not-there/x"}))
    assert "the bucket does not exist; create it, or correct storage.path (NoSuchBucket)" in message
    assert "bucket 'not-there'" in message


def test_https_to_a_server_without_tls_is_explained(server: Server) -> None:
    endpoint = str(server.storage.endpoint_url).replace("http://", "https://")
    message = failure(server.storage.model_copy(update={"endpoint_url": endpoint}))
    assert "the server does not speak TLS; write http://" in message


def test_who_may_only_read_is_told_which_permission_lacks(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", READER[0])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", READER[1])
    message = failure(server.storage)
    assert "step 'write' failed: forbidden" in message
    assert "grant s3:PutObject" in message
    assert "identity READ…0001 from env" in message
    assert READER[1] not in message
    assert READER[0] not in message


def test_a_wrong_secret_and_an_unknown_key_are_told_apart(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
    message = failure(server.storage)
    assert "the secret access key does not belong to this access key id" in message
    assert "wrong-secret" not in message
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "UNKNOWNKEY000000")
    assert "the store does not know this access key id" in failure(server.storage)


def test_no_credentials_at_all_says_where_they_are_looked_for(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert "no credentials found; set AWS_ACCESS_KEY_ID" in failure(server.storage)


def test_who_may_not_delete_is_only_warned(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    client = open_store(server.storage).client  # type: ignore[attr-defined]
    client.put_bucket_policy(
        Bucket="pipeline",
        Policy='{"Version": "2012-10-17", "Statement": [{"Effect": "Deny", "Principal": "*", '
        '"Action": "s3:DeleteObject", "Resource": "arn:aws:s3:::pipeline/kept/*"}]}',
    )
    try:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", WRITER[0])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", WRITER[1])
        steps = probe(server.storage.model_copy(update={"path": "s3://pipeline/kept"}))
        assert steps[-1].name == "delete"
        assert "grant s3:DeleteObject" in (steps[-1].warning or "")
    finally:
        client.delete_bucket_policy(Bucket="pipeline")


def test_short_keys_show_no_more_than_their_beginning() -> None:
    assert short_key("AKIAABCDEFGHWXYZ") == "AKIA…WXYZ"
    assert short_key("minio") == "mi…"


def failure(storage: Storage) -> str:
    with pytest.raises(UserError) as caught:
        probe(storage)
    return str(caught.value)


def test_a_store_that_ignores_conditions_of_writes_is_a_warning_and_one_without_them_is_refused(server: Server) -> None:
    with proxy_before(server.storage) as proxy:
        proxy.spoil(says_written, "PUT", "probe", after=1)
        found = {step.name: step.warning for step in probe(proxy.storage)}
        assert "ignores the condition of a write (If-None-Match)" in (found.pop("claim") or "")
        assert found == {"list": None, "write": None, "read": None, "delete": None}
        proxy.spoil(answers(501, "NotImplemented"), "PUT", "probe", times=9)
        message = failure(proxy.storage)
    assert "step 'write' failed: the store does not support this request (NotImplemented)" in message
    assert "conditional writes (If-None-Match)" in message
