"""Addresses of storage, and where its settings come from."""

import traceback
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import HTTPClientError

from pipeline.cluster import Capacity, problems
from pipeline.config import Config, Storage
from pipeline.errors import StorageError, UserError
from pipeline.s3 import Settings, settings_of
from pipeline.storage import data_filesystem, normalise, open_store, resolve

pytestmark = pytest.mark.usefixtures("no_storage_settings")


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("s3://bucket/a//b/", "s3://bucket/a/b"),
        ("s3://bucket", "s3://bucket"),
        ("s3://my.dotted.bucket/x", "s3://my.dotted.bucket/x"),
        ("s3://bucket/p?endpoint_override=host:9000&scheme=http&region=eu-west-1", "s3://bucket/p"),
        ("/data/runs/", "/data/runs"),
        ("file:///data/runs", "/data/runs"),
    ],
)
def test_an_address_has_one_spelling(address: str, expected: str) -> None:
    assert normalise(address) == expected


def test_a_relative_folder_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert normalise("runs") == str(tmp_path / "runs")
    monkeypatch.setenv("HOME", "/home/someone")
    assert normalise("~/runs") == "/home/someone/runs"


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("s3://ab/x", "bucket name 'ab'"),
        ("s3:///x", "bucket name ''"),
        ("gs://bucket/x", "scheme 'gs'; allowed: s3://bucket/prefix, file:///folder, or a folder"),
        ("s3a://bucket/x", "scheme 's3a'; allowed: s3://"),
        ("s3://bucket/a/../b", "'.' or '..'"),
        ("s3://a..b/x", "bucket name 'a..b'"),
        ("s3://192.168.0.1/x", "is no IP address"),
        ("s3://bucket-/x", "begins and ends with a letter or digit"),
        ("s3:/bucket/x", "lacks '//' after 's3:'; write s3://bucket/prefix"),
        ("file:/mnt/x", "lacks '//' after 'file:'"),
        ("s3://bucket/x\n", "white space around it"),
        (" s3://bucket/x", "white space around it"),
        ("https://bucket.s3.amazonaws.com/x", "scheme 'https'; allowed: s3://bucket/prefix"),
        ("s3://bucket/x?endpoint_override=", "endpoint_override in the query string is empty"),
        ("s3://bucket/x?scheme=http", "scheme in the query string needs endpoint_override=host:port beside it"),
        ("file://server/x", "names the host 'server'"),
        ("s3://bucket/x?endpoint=host", "query string has 'endpoint'; allowed: endpoint_override, scheme, region"),
        ("s3://bucket/x?scheme=ftp", "allowed: http, https"),
    ],
)
def test_a_wrong_address_is_a_user_error_that_says_what_is_allowed(address: str, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        normalise(address)
    assert expected in str(caught.value)
    assert str(caught.value).startswith("storage.path: ")


def test_a_wrong_address_of_data_names_its_own_field() -> None:
    with pytest.raises(UserError, match=r"^data\.train: 'gs://bucket/x' has the scheme 'gs'"):
        data_filesystem("gs://bucket/x", Storage(), "data.train")


@pytest.mark.parametrize(
    "address", ["s3://KEY:hush-hush@bucket/x", "s3://KEY:hush/hush@bucket/x", "s3://bucket/x?secret_key=hush-hush"]
)
def test_a_secret_in_an_address_is_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(UserError, match="credentials") as caught:
        normalise(address)
    assert "hush" not in str(caught.value)


def test_the_query_string_becomes_settings_unless_a_field_says_otherwise() -> None:
    address = "s3://bucket/p?endpoint_override=host:9000&scheme=http&region=eu-west-1"
    found = resolve(Storage(path=address))
    assert (found.path, found.endpoint_url, found.region) == ("s3://bucket/p", "http://host:9000", "eu-west-1")
    found = resolve(Storage(path=address, endpoint_url="https://other", region="us-west-2"))
    assert (found.endpoint_url, found.region) == ("https://other", "us-west-2")


def test_the_endpoint_is_taken_in_the_documented_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Storage(path="s3://bucket/p")
    assert settings_of(plain, 1).endpoint_url is None
    config = tmp_path / "config"
    config.write_text(
        "[profile lab]\nregion = eu-north-1\nendpoint_url = http://profile\nservices = lab\n"
        "[services lab]\ns3 =\n  endpoint_url = http://service\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_PROFILE", "lab")
    found = settings_of(plain, 1)
    assert (found.endpoint_url, found.region) == ("http://service", "eu-north-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://all")
    assert settings_of(plain, 1).endpoint_url == "http://all"
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://s3")
    monkeypatch.setenv("AWS_REGION", "us-west-1")
    found = settings_of(plain, 1)
    assert (found.endpoint_url, found.region) == ("http://s3", "us-west-1")
    with_query = resolve(Storage(path="s3://bucket/p?endpoint_override=query&scheme=http"))
    assert settings_of(with_query, 1).endpoint_url == "http://query"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"endpoint_url": "minio:9000"}, "'minio:9000' has no scheme; write http://minio:9000 or https://minio:9000"),
        ({"endpoint_url": "ftp://minio"}, "has the scheme 'ftp'; must be http://host:port or https://host:port"),
        ({"endpoint_url": "http://"}, "has the host ''"),
        ({"endpoint_url": "http://min io:9000"}, "has the host 'min io'"),
        ({"endpoint_url": "http://minio:port"}, "has a port that is no number from 1 to 65535"),
        ({"endpoint_url": "http://minio:99999"}, "has a port that is no number from 1 to 65535"),
        ({"endpoint_url": "http://minio:9000?region=x"}, "has '?region=x' at its end"),
        ({"endpoint_url": "http://key:hush@minio"}, "holds credentials"),
        ({"ca_bundle": "/nowhere/ca.pem"}, "storage.ca_bundle: '/nowhere/ca.pem' is no file"),
        ({"kms_key_id": "k"}, "needs storage.server_side_encryption: aws:kms"),
    ],
)
def test_wrong_settings_are_user_errors(fields: dict[str, str], expected: str) -> None:
    with pytest.raises(UserError) as caught:
        open_store(Storage.model_validate({"path": "s3://bucket/p", **fields}))
    assert expected in str(caught.value)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("minio:9000", "'minio:9000' has no scheme; write http://minio:9000 or https://minio:9000"),
        ("http://minio:nine", "has a port that is no number"),
        ("http://key:hush@minio", "holds credentials"),
    ],
)
def test_a_wrong_endpoint_is_told_by_the_variable_that_holds_it(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, expected: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(UserError) as caught:
        open_store(Storage(path="s3://bucket/p"))
    assert str(caught.value).startswith(f"{name}: ")
    assert expected in str(caught.value)
    assert "hush" not in str(caught.value)


def test_an_endpoint_may_have_a_path_or_be_an_ip_address() -> None:
    for endpoint in (
        "https://project.supabase.co/storage/v1/s3",
        "http://[::1]:9000",
        "http://10.0.0.7",
        "https://h:1/",
    ):
        assert settings_of(Storage(path="s3://b-c/p", endpoint_url=endpoint), 1).endpoint_url == endpoint.rstrip("/")


def test_the_region_is_us_east_1_where_none_is_set() -> None:
    assert settings_of(Storage(path="s3://bucket/p"), 1).region == "us-east-1"


TWO_NODES = Capacity(({"CPU": 4.0}, {"CPU": 4.0}), local=False)


@pytest.mark.parametrize(
    ("storage", "environ", "expected"),
    [
        ({"path": "/data/runs"}, "", "storage.path: /data/runs is a folder of its own on each of the cluster's 2 n"),
        ({"path": "/data/runs"}, "", "expected s3://bucket/prefix, or storage.shared=true if all of them mount it"),
        ({"path": "s3://bucket/x", "endpoint_url": "http://127.0.0.1:9000"}, "",
         "storage.endpoint_url: http://127.0.0.1:9000 is another machine on each of the cluster's 2 nodes"),
        ({"path": "s3://bucket/x"}, "http://localhost:9000", "http://localhost:9000 is another machine"),
        ({"path": "/data/runs", "shared": True}, "", None),
        ({"path": "s3://bucket/x", "endpoint_url": "http://minio:9000"}, "", None),
    ],
)  # fmt: skip
def test_storage_that_each_node_has_for_itself_is_refused_on_several_nodes(
    monkeypatch: pytest.MonkeyPatch, storage: dict[str, Any], environ: str, expected: str | None
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", environ)
    config = Config.model_validate({"storage": storage, "scaling": {"use_gpu": False}})
    found = problems(config, TWO_NODES)
    assert len(found) == (0 if expected is None else 1)
    assert expected is None or expected in found[0]
    # One node, or a Ray of this machine, has them all in one place.
    assert problems(config, Capacity(({"CPU": 8.0},), local=False)) == []
    assert problems(config, Capacity(({"CPU": 8.0},), local=True)) == []


def test_an_unknown_profile_is_a_user_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "no-such")
    with pytest.raises(UserError, match=r"no-such.*AWS_PROFILE"):
        open_store(Storage(path="s3://bucket/p"))


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"AWS_ACCESS_KEY_ID": "AKIA\nX", "AWS_SECRET_ACCESS_KEY": "hidden"}, "AWS_ACCESS_KEY_ID: holds a line end"),
        ({"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "hidden\n"}, "AWS_SECRET_ACCESS_KEY: holds a line"),
        ({"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": ""}, "AWS_SECRET_ACCESS_KEY: is empty or not given"),
        ({"AWS_REGION": "ü"}, "AWS_REGION: 'ü' is no name of a region; expected one such as eu-central-1"),
        ({"AWS_ENDPOINT_URL": "http://[::1"}, "AWS_ENDPOINT_URL: 'http://[::1' is no address; must be http://"),
    ],
)
def test_credentials_and_places_that_cannot_be_are_named_and_no_key_is_shown(
    environ: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError) as caught:
        settings_of(Storage(path="s3://bucket/runs"), 0)
    assert str(caught.value).startswith(words)
    assert "hidden" not in str(caught.value)


def test_a_file_of_settings_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config"
    file.write_text("region = x\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(file))
    with pytest.raises(UserError, match=rf"AWS_CONFIG_FILE: {file}: is no file of AWS settings"):
        settings_of(Storage(path="s3://bucket/runs"), 0)


def test_what_a_request_was_signed_with_is_shown_nowhere() -> None:
    header = "Invalid header value b'AWS4-HMAC-SHA256 Credential=AKIA\\nX/20260101, Signature=abcdef'"

    def refused() -> None:
        raise HTTPClientError(error=ValueError(header))

    with pytest.raises(StorageError) as caught:
        Settings("eu-central-1", retry_seconds=0).call("list s3://bucket", refused)
    assert "look for a line end in the credentials" in str(caught.value)
    assert "abcdef" not in "".join(traceback.format_exception(caught.value))
