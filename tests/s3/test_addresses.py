"""However the address is written and wherever the endpoint comes from: the same objects, without empty segments."""

import os
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import Storage
from pipeline.embedded import find_weed, identity
from pipeline.embedded_keeper import arguments, environment, free_ports, remove_sockets
from pipeline.probe import probe
from pipeline.s3_store import S3Store
from pipeline.storage import Store, open_store, resolve
from tests.s3.conftest import Server
from tests.s3.proxy import proxy_before

SETTINGS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE")


@pytest.mark.parametrize(
    ("path", "environ", "fields"),
    [
        ("{uri}", {}, {"endpoint_url": "{endpoint}"}),
        ("{uri}/", {}, {"endpoint_url": "{endpoint}/"}),
        ("s3://pipeline//runs//{name}//", {}, {"endpoint_url": "{endpoint}"}),
        ("{uri}?endpoint_override={host}&scheme=http&region=us-east-1", {}, {}),
        ("{uri}/?endpoint_override={host}&scheme=http", {}, {}),
        ("{uri}", {"AWS_ENDPOINT_URL": "{endpoint}"}, {}),
        ("{uri}", {"AWS_ENDPOINT_URL_S3": "{endpoint}", "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, {}),
        ("{uri}", {"AWS_REGION": "eu-central-1"}, {"endpoint_url": "{endpoint}", "addressing": "path"}),
    ],
    ids=[
        "plain", "final slash", "doubled slashes", "query string", "slash and query string",
        "endpoint in the environment", "endpoint for S3 in the environment", "path style, another region",
    ],
)  # fmt: skip
def test_an_address_in_any_spelling_is_one_layout(
    server: Server, store: Store, monkeypatch: pytest.MonkeyPatch, path: str, environ: dict[str, str], fields: Any
) -> None:
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    endpoint = str(server.storage.endpoint_url)
    values = {"uri": store.uri, "name": store.uri.rsplit("/", 1)[1], "endpoint": endpoint, "host": endpoint[7:]}
    for name, value in environ.items():
        monkeypatch.setenv(name, value.format(**values))
    given = {name: value.format(**values) for name, value in fields.items()}
    storage = resolve(Storage.model_validate({"path": path.format(**values), **given}))
    assert [step.warning for step in probe(storage)] == [None] * 5
    run = open_store(storage).child("run")
    assert run.uri == f"{store.uri}/run"
    run.write("metrics/a.jsonl", b"x")
    # What Ray writes through its filesystem lies beside it.
    filesystem, root = run.filesystem()
    filesystem.create_dir(f"{root}/checkpoint")
    with filesystem.open_output_stream(f"{root}/checkpoint/state.json") as stream:
        stream.write(b"{}")
    assert [entry.name for entry in store.list()] == ["run/checkpoint/state.json", "run/metrics/a.jsonl"]
    assert isinstance(store, S3Store)
    keys = store.client.list_objects_v2(Bucket="pipeline", Prefix="")["Contents"]
    assert [key["Key"] for key in keys if "//" in key["Key"] or key["Key"].startswith("/")] == []


@pytest.fixture
def domain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    """A server that knows itself as `s3.test`, whose buckets may stand in the host name."""
    for folder in ("data", "sockets"):
        (tmp_path / folder).mkdir()
    access, secret = identity(tmp_path)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", access)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    ports = free_ports()
    with (tmp_path / "weed.log").open("wb") as log:
        weed = subprocess.Popen(
            [find_weed(), *arguments(tmp_path, ports), "-s3.domainName=s3.test"],
            cwd=tmp_path / "sockets", env=environment(tmp_path), stdout=log, stderr=log,
        )  # fmt: skip
    try:
        storage = Storage(path="s3://bucket/runs", endpoint_url=f"http://127.0.0.1:{ports[6]}")
        store = open_store(storage, retry_seconds=60)
        assert isinstance(store, S3Store)
        for bucket in ("bucket", "my.dotted.bucket"):
            store.settings.call("make the bucket", partial(store.client.create_bucket, Bucket=bucket))
        yield storage
    finally:
        weed.kill()
        weed.wait()
        remove_sockets(ports)


def test_a_bucket_in_the_host_name_or_in_the_path_holds_the_same_objects(
    domain: Storage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with proxy_before(domain) as proxy:
        # No resolver knows s3.test; an HTTP proxy is given the whole address and finds it.
        for name in ("HTTP_PROXY", "http_proxy"):
            monkeypatch.setenv(name, str(proxy.storage.endpoint_url))
        port = str(domain.endpoint_url).rsplit(":", 1)[1]
        for bucket in ("bucket", "my.dotted.bucket"):
            found = {}
            for addressing in ("virtual", "path", "auto"):
                storage = Storage.model_validate(
                    {
                        "path": f"s3://{bucket}/runs", "endpoint_url": f"http://s3.test:{port}",
                        "addressing": addressing,
                    }
                )  # fmt: skip
                store = open_store(storage, retry_seconds=5)
                proxy.seen.clear()
                store.write(f"{addressing}/x", b"x")
                request = proxy.seen[-1]
                found[addressing] = (request.host.split(":")[0], request.path.split(port, 1)[1])
                big = tmp_path / "big"
                big.write_bytes(os.urandom(17 << 20))
                store.upload(big, "big")
                assert store.read(f"{addressing}/x") == b"x"
            assert found == {
                "virtual": (f"{bucket}.s3.test", "/runs/virtual/x"),
                "path": ("s3.test", f"/{bucket}/runs/path/x"),
                "auto": ("s3.test", f"/{bucket}/runs/auto/x"),
            }
            plain = open_store(domain.model_copy(update={"path": f"s3://{bucket}/runs"}))
            assert [entry.name for entry in plain.list()] == ["auto/x", "big", "path/x", "virtual/x"]
            assert plain.read("big") == big.read_bytes()
