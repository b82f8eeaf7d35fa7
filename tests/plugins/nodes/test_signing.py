"""Test that a node's signatures are those of an independent client, made without the secret key."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from hibali_plugins.nodes.program import signing
from hibali_plugins.nodes.program.signing import Signer, derive_key, encode_query

SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
NOW = datetime.now(UTC)
STAMP = f"{NOW:%Y%m%dT%H%M%SZ}"


@pytest.mark.parametrize("token", [None, "a/session+token=="])
@pytest.mark.parametrize(
    ("method", "path", "query"),
    [
        ("GET", "/bucket/a%20b/%C3%A9~", {}),
        ("PUT", "/bucket/k", {"uploadId": "x/y+z=", "partNumber": "7"}),
    ],
)
def test_signatures_are_those_of_botocore(
    method: str, path: str, query: dict[str, str], token: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = "ab" * 32
    headers = {"host": "store.example:9000", "x-amz-meta-mode": "644"}
    signer = Signer("AKID", {STAMP[:8]: derive_key(SECRET, STAMP[:8], "eu-1")}, "eu-1", token)
    signed = signer.sign((method, path, encode_query(query)), headers, digest, STAMP)
    request = AWSRequest(
        method, "https://store.example:9000" + path, {"x-amz-meta-mode": "644"}, params=query, auth_path=path
    )
    request.headers["X-Amz-Content-SHA256"] = digest
    request.context["timestamp"] = STAMP
    expected: Any = S3SigV4Auth(Credentials("AKID", SECRET, token), "s3", "eu-1")
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda: NOW.replace(tzinfo=None), raising=False)
    monkeypatch.setattr(expected, "payload", lambda _: digest)
    expected.add_auth(request)
    assert signed["authorization"] == request.headers["Authorization"]


def test_a_key_is_valid_on_its_own_day_only() -> None:
    signer = Signer("AKID", {"20261124": derive_key(SECRET, "20261124", "eu-1")}, "eu-1", None)
    with pytest.raises(KeyError):
        signer.sign(("GET", "/", ""), {"host": "x"}, "00", "20261125T000000Z")
    assert signing.derive_key(SECRET, "20261125", "eu-1") != derive_key(SECRET, "20261124", "eu-1")
