"""A store with a certificate of a private authority, and with server-side encryption."""

import ipaddress
import os
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from pipeline.config import Storage
from pipeline.embedded import find_weed, identity
from pipeline.embedded_keeper import arguments, environment, free_ports, remove_sockets
from pipeline.errors import UserError
from pipeline.probe import probe
from pipeline.s3_store import S3Store
from pipeline.storage import open_store


@pytest.fixture
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    """Storage on an HTTPS server whose authority is in `ca.pem`."""
    certificate(tmp_path)
    for folder in ("data", "sockets"):
        (tmp_path / folder).mkdir()
    access, secret = identity(tmp_path)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", access)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    ports = free_ports()
    tls = [f"-s3.cert.file={tmp_path / 'ca.pem'}", f"-s3.key.file={tmp_path / 'key.pem'}"]
    with (tmp_path / "weed.log").open("wb") as log:
        weed = subprocess.Popen(
            [find_weed(), *arguments(tmp_path, ports), *tls],
            cwd=tmp_path / "sockets",
            env={**environment(tmp_path), "WEED_S3_SSE_KEK": "ab" * 32},
            stdout=log,
            stderr=log,
        )
    try:
        storage = Storage(
            path="s3://private/runs",
            endpoint_url=f"https://127.0.0.1:{ports[6]}",
            ca_bundle=str(tmp_path / "ca.pem"),
            server_side_encryption="AES256",
        )
        store = open_store(storage, retry_seconds=30)
        assert isinstance(store, S3Store)
        store.settings.call("make the bucket", lambda: store.client.create_bucket(Bucket="private"))
        yield storage
    finally:
        weed.kill()
        weed.wait()
        remove_sockets(ports)


def certificate(folder: Path) -> None:
    """A self-signed certificate for 127.0.0.1 in ca.pem, its key in key.pem."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a private authority")])
    now = datetime.now(UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "ca.pem").write_bytes(built.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


def test_a_private_authority_and_encryption_are_used_for_every_kind_of_write(private: Storage, tmp_path: Path) -> None:
    store = open_store(private)
    assert isinstance(store, S3Store)
    big = tmp_path / "big"
    big.write_bytes(os.urandom(20 << 20))
    store.write("written", b"x")
    store.upload(big, "uploaded")
    filesystem, root = store.filesystem()
    with filesystem.open_output_stream(f"{root}/streamed") as stream:
        stream.write(b"x")
    for name in ("written", "uploaded", "streamed"):
        reply = store.client.head_object(Bucket="private", Key=f"runs/{name}")
        assert reply["ServerSideEncryption"] == "AES256", name
    store.download("uploaded", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == big.read_bytes()
    assert [step.warning for step in probe(private)] == [None] * 5
    with pytest.raises(UserError, match=r"not signed by a known authority; set storage\.ca_bundle"):
        probe(private.model_copy(update={"ca_bundle": None}))
