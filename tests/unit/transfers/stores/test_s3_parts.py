"""Test the parts of the S3 store that need no server: endpoints, credentials, errors, manifests, order, locks."""

from __future__ import annotations

import json
import random
import socket
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hibali.config.model import S3Settings
from hibali.errors import AccessError, HibaliError, IncompleteError, NotFoundError, TryLaterError, UsageError
from tests.support.manifests import read_lines, write_lines
from transfers.agent.lease import this_process
from transfers.model.entry import Verification
from transfers.model.store import problem_of
from transfers.stores.s3.credentials import (
    CredentialSource,
    Endpoint,
    check_endpoint,
    find_endpoint,
    parse_process_credentials,
)
from transfers.stores.s3.errors import Said, error_of, from_obstore
from transfers.stores.s3.manifest import from_metadata, to_metadata
from transfers.stores.s3.multipart import MOST_PARTS, part_bytes
from transfers.stores.s3.probe import ServerSupport, facts_of, recall, remember
from transfers.stores.s3.requests import delete_document, is_plain, key_bytes, parse
from transfers.stores.server import keys
from transfers.stores.server.keys import Listed, in_order
from transfers.stores.server.lease import Held
from transfers.stores.server.manifest import Known, ManifestLines, line_of
from transfers.stores.server.records import Manifests

GOOD = {"Version": 1, "AccessKeyId": "AK", "SecretAccessKey": "planted-secret"}
SHA = "ab" * 32


@pytest.mark.parametrize(
    "url", ["https://s3.example.org", "http://127.0.0.1:9000", "http://localhost", "http://[::1]:1/"]
)
def test_endpoints_that_are_safe(url: str) -> None:
    assert check_endpoint(url, "site") is url.startswith("https")


@pytest.mark.parametrize(
    "url",
    [
        "http://s3.example.org",
        "http://127.0.0.1.example.org",
        "http://localhost.example.org",
        "ftp://127.0.0.1",
        "https://user:word@s3.example.org",
        "https://s3.example.org/path",
        "https://s3.example.org?x=1",
        "https://",
        "https://s3.example.org:port",
        "s3.example.org",
    ],
)
def test_endpoints_that_are_refused(url: str) -> None:
    with pytest.raises(UsageError):
        check_endpoint(url, "site")


def test_keys_are_quoted_in_urls() -> None:
    endpoint = Endpoint("https://s3.example.org", "eu", secure=True)
    assert (
        endpoint.address("b", b"a b/c\xc3\xa9?#%+~") == "https://s3.example.org/b/a%20b/c%C3%A9%3F%23%25%2B~"
    )
    assert endpoint.address("b") == "https://s3.example.org/b"


@pytest.mark.usefixtures("hibali_home")
def test_the_endpoint_aws_needs_a_region() -> None:
    found = find_endpoint(S3Settings("aws", region="eu-central-1"), "site")
    assert (found.url, found.region) == ("https://s3.eu-central-1.amazonaws.com", "eu-central-1")


def test_process_credentials_are_read() -> None:
    soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    found = parse_process_credentials(json.dumps({**GOOD, "SessionToken": "T", "Expiration": soon}).encode())
    assert (found.access_key, found.secret_key, found.token) == ("AK", "planted-secret", "T")
    assert found.expires is not None
    assert "planted-secret" not in repr(found)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"planted-secret",
        b"[1]",
        json.dumps({**GOOD, "Version": 2}).encode(),
        json.dumps({**GOOD, "SecretAccessKey": ""}).encode(),
        json.dumps({**GOOD, "Expiration": "planted-secret"}).encode(),
        json.dumps({**GOOD, "Expiration": "2001-01-01T00:00:00Z"}).encode(),
        json.dumps({**GOOD, "SessionToken": 7}).encode(),
    ],
)
def test_other_credentials_are_refused_without_repeating_them(text: bytes) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - any text will do but the secret
        parse_process_credentials(text)
    assert "planted-secret" not in str(caught.value)


@pytest.mark.usefixtures("hibali_home")
def test_a_command_gives_credentials() -> None:
    program = f"import json; print(json.dumps({GOOD!r}))"
    settings = S3Settings("aws", credentials_command=(sys.executable, "-c", program))
    found = CredentialSource(settings, "site").current()
    assert found is not None
    assert found.secret_key == "planted-secret"


@pytest.mark.usefixtures("hibali_home")
def test_a_command_that_fails_is_an_access_error() -> None:
    program = "import sys; print('planted-secret'); sys.exit('planted-secret')"
    settings = S3Settings("aws", credentials_command=(sys.executable, "-c", program))
    with pytest.raises(AccessError) as caught:
        CredentialSource(settings, "site").current()
    assert "planted-secret" not in json.dumps(caught.value.to_record())


@pytest.mark.usefixtures("hibali_home")
def test_without_credentials_no_metadata_service_is_queried(monkeypatch: pytest.MonkeyPatch) -> None:
    connections: list[Any] = []
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:1/")
    monkeypatch.setattr(socket.socket, "connect", lambda *words: connections.append(words))
    with pytest.raises(AccessError) as caught:
        CredentialSource(S3Settings("aws"), "site").current()
    assert caught.value.code == "no-credentials"
    assert connections == []


def test_profiles_come_from_the_shared_files(hibali_home: Any) -> None:
    folder = hibali_home.home / ".aws"
    folder.mkdir()
    (folder / "credentials").write_text("[lab]\naws_access_key_id = A\naws_secret_access_key = B\n")
    found = CredentialSource(S3Settings("aws", profile="lab"), "site").current()
    assert found is not None
    assert (found.access_key, found.secret_key) == ("A", "B")
    with pytest.raises(AccessError) as caught:
        CredentialSource(S3Settings("aws", profile="other"), "site").current()
    assert caught.value.code == "no-such-profile"


def test_anonymous_has_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "A")
    assert CredentialSource(S3Settings("aws", anonymous=True), "site").current() is None


@pytest.mark.parametrize(
    ("status", "code", "kind", "word"),
    [
        (403, "InvalidAccessKeyId", AccessError, "bad-credentials"),
        (403, "SignatureDoesNotMatch", AccessError, "bad-credentials"),
        (400, "ExpiredToken", AccessError, "expired"),
        (403, "AccessDenied", AccessError, "denied"),
        (403, "RequestTimeTooSkewed", AccessError, "clock-skew"),
        (404, "NoSuchBucket", NotFoundError, "no-such-bucket"),
        (404, "NoSuchKey", NotFoundError, "vanished"),
        (503, "SlowDown", TryLaterError, "busy"),
        (500, "", TryLaterError, "server-failed"),
        (429, "", TryLaterError, "busy"),
        (507, "", IncompleteError, "no-space"),
        (403, "QuotaExceeded", IncompleteError, "no-space"),
        (400, "XAmzContentSHA256Mismatch", IncompleteError, "corrupt"),
        (400, "BadDigest", IncompleteError, "corrupt"),
        (412, "PreconditionFailed", IncompleteError, "source-changed"),
        (301, "PermanentRedirect", UsageError, "wrong-endpoint"),
        (501, "NotImplemented", IncompleteError, "not-supported"),
        (400, "KeyTooLongError", IncompleteError, "name-too-long"),
    ],
)
def test_every_s3_error_is_translated(status: int, code: str, kind: type[HibaliError], word: str) -> None:
    found = error_of(status, Said(code), "site:b")
    assert (type(found), found.code, found.subject) == (kind, word, "site:b")
    text = f"Generic S3 error: status code: {status} Odd: <Error><Code>{code}</Code><Message>planted-secret"
    other = from_obstore(Exception(text if code else text.replace("<Code></Code>", "")), "site:b")
    assert (type(other), other.code) == (kind, word)
    assert "planted-secret" not in json.dumps(other.to_record())


def test_only_errors_of_one_entry_become_its_problem() -> None:
    assert problem_of(error_of(400, Said("BadDigest"), "x")).retryable
    assert problem_of(error_of(507, Said(), "x")).code == "no-space"
    assert problem_of(error_of(403, Said("AccessDenied"), "x"), denied=True).code == "denied"
    for status, code in ((403, "AccessDenied"), (404, "NoSuchBucket"), (503, "SlowDown")):
        with pytest.raises(HibaliError):
            problem_of(error_of(status, Said(code), "x"))


def test_valid_manifest_lines_are_kept_and_others_dropped() -> None:
    lines = {
        b"a": Known("e1", 1, SHA, 5, 0o755),
        "sp ace\né\\".encode(): Known("e2", 0),
        b"not \xff utf-8": Known("e3", 2, None, -7, 0o644),
    }
    content = write_lines(lines)
    assert read_lines(content) == lines
    assert all(line.isascii() for line in content.splitlines())
    spoiled = (
        b'{"key": "torn\n[1]\n7\nnull\n{"key":"x","ETag":1,"size":1}\n{"key":"x","ETag":"e","size":"1"}\n'
        b'{"key":"x","ETag":"e","size":1,"sha256":"short"}\n{"key":"x","ETag":"e","size":1,"mode":"9"}\n'
        b'{"key":"x","ETag":"e","size":1,"mtime_ns":true}\n' + b"[" * 9000 + b"\n\xff\n"
    )
    assert read_lines(spoiled + content) == lines


def test_a_line_counts_only_while_etag_and_size_match() -> None:
    known = {b"a": Known("e", 1, SHA), b"z": Known("", 1, SHA)}
    lines = ManifestLines()
    lines.extend((path, line_of(path, one)) for path, one in known.items())
    with closing(Manifests(lambda _: ManifestLines(), frozenset(), [(b"", lines)])) as manifests:
        assert manifests.find(Listed(b"a", 1, "e", "")) == known[b"a"]
        assert manifests.find(Listed(b"a", 2, "e", "")) is None
        assert manifests.find(Listed(b"a", 1, "f", "")) is None
        assert manifests.find(Listed(b"b", 1, "e", "")) is None
        assert manifests.find(Listed(b"z", 1, "", "")) is None, (
            "without an ETag, versions cannot be told apart"
        )


def test_metadata_is_written_and_read_back() -> None:
    for known in (
        Known("e", 1, SHA, 1_600_000_000_123_456_789, 0o755),
        Known("e", 0),
        Known("e", 3, None, -5, 0),
    ):
        headers = {f"x-amz-meta-{name}": value for name, value in to_metadata(known).items()}
        assert from_metadata(headers, "e", known.size) == known
        assert not any("_" in name for name in headers)
    assert from_metadata({"x-amz-meta-mtime": "1600000000.5"}, "e", 1).mtime_ns == 1_600_000_000_500_000_000
    hostile = {f"x-amz-meta-{name}": "1e9; rm" for name in ("sha256", "mtime-ns", "mtime", "mode")}
    assert from_metadata(hostile, "e", 1) == Known("e", 1)


def test_listings_are_sorted_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "_RUN", 7)
    names = [b"a/b", b"a/c", b"a-x", b"a.b", b"a0", *(f"é{n}\n".encode() for n in range(40))]
    random.Random(3).shuffle(names)  # noqa: S311 - the same each time
    found = [Listed(name, 1, "e", "m") for name in names]
    assert list(in_order(found, "x")) == sorted(found)
    with pytest.raises(IncompleteError) as caught:
        list(in_order([*found, found[20]], "x"))
    assert caught.value.code == "listing-violation"


@pytest.mark.parametrize("size", [1, 5 << 20, 80 << 30, 5 << 40])
@pytest.mark.parametrize("segment", [1 << 20, 4 << 20, 8 << 20, 16 << 20])
def test_part_sizes_respect_the_limits_of_the_protocol(size: int, segment: int) -> None:
    part = part_bytes(size, segment)
    assert part % segment == 0
    assert part >= 5 << 20
    assert -(-size // part) <= MOST_PARTS


def test_a_lock_is_free_only_if_its_holder_ended() -> None:
    living = {**this_process(), "lease": 120}
    assert not Held(living, 10).free
    assert not Held(living, None).free
    assert Held(living, 121).free
    assert not Held({**living, "boot": "another"}, 10).free, "two machines may share a name"
    assert Held({**living, "start": "1"}, 10).free
    assert not Held({**living, "host": "elsewhere", "boot": "another", "start": "1"}, 10).free
    assert not Held({**living, "boot": "", "start": "1"}, 10).free
    assert not Held({}, 100).free
    assert Held({}, 121).free
    assert Held({"lease": 10**9}, 121).free, "a large number does not keep a lock for ever"


def test_a_probe_result_is_stored_for_its_endpoint_only(hibali_home: Any) -> None:
    seen = ServerSupport(writable=True, checks_sha256=True, refuses=("\\",), name_bytes=255)
    assert recall("lab", "b", "https://one") is None
    remember("lab", "b", "https://one", seen)
    remember("lab", "c", "https://one", ServerSupport())
    assert recall("lab", "b", "https://one") == seen
    assert recall("lab", "b", "https://two") is None
    (hibali_home.state / "sites/lab.json").write_text('{"buckets": []}')
    assert recall("lab", "b", "https://one") is None


def test_verification_depends_on_the_probed_checks() -> None:
    def write(**seen: bool) -> Verification:
        return facts_of(ServerSupport(**seen), b"", Verification.RECORDED).write_verification

    assert write(checks_sha256=True) is Verification.DIGEST
    assert write(checks_checksum=True, md5_etags=True) is Verification.DIGEST
    assert write(md5_etags=True) is Verification.CLAIMED
    assert write() is Verification.SIZE
    assert facts_of(None, b"", Verification.RECORDED).write_verification is Verification.SIZE
    assert not facts_of(ServerSupport(conditional_create=True), b"", Verification.RECORDED).locks


def test_xml_is_read_and_written_safely() -> None:
    with pytest.raises(TryLaterError):
        parse(b'<!DOCTYPE x [<!ENTITY a "b">]><x>&a;</x>', "x")
    with pytest.raises(TryLaterError):
        parse(b"<html>", "x")
    assert b"<Key>a&amp;&lt;b</Key>" in delete_document([b"a&<b"])
    assert key_bytes("a+b%2B%0A", encoded=True) == b"a b+\n"
    assert key_bytes("a+b%2B", encoded=False) == b"a+b%2B"
    assert is_plain("é ~".encode())
    assert not any(map(is_plain, (b"a\n", b"\x7f", b"\xff", "\x85".encode(), "\ufffe".encode())))
