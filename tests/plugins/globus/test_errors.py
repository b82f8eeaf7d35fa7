"""Test the translation of Globus errors: code, exit code and hint, without any text of the response."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import globus_sdk
import pytest
import requests

from hibali.config.model import GlobusClient, GlobusSettings, Site
from hibali.errors import HibaliError
from hibali.keyring_secrets import first_line
from hibali_plugins.globus.clients import merged_scopes, open_access, open_tokens
from hibali_plugins.globus.errors import explain, translated_errors

ONE, OTHER = (f"{digit * 8}-0000-4000-8000-{'0' * 12}" for digit in "ab")
TRANSFERS = "transfer.api.globus.org"
ALL = "urn:globus:auth:scope:transfer.api.globus.org:all"
NEEDED = f"{ALL}[*https://auth.globus.org/scopes/{OTHER}/data_access]"
SECRET = "PLANTED0in0an0answer"  # no error message may contain this


def site(name: str, collection: str, *, secret: bool = False) -> Site:
    client = GlobusClient(ONE, secret_variable="HIBALI_SECRET" if secret else None)
    return Site(name, "globus", globus=GlobusSettings(collection, client=client))


def problem_of(
    kind: type[globus_sdk.GlobusAPIError], status: int, body: dict[str, Any]
) -> globus_sdk.GlobusAPIError:
    response = requests.Response()
    response.status_code = status
    response.headers["Content-Type"] = "application/json"
    response._content = json.dumps({**body, "access_token": SECRET}).encode()
    response.request = requests.Request("GET", "https://transfer.api.globus.org/x").prepare()
    return kind(response)


TRANSFER, AUTH = globus_sdk.TransferAPIError, globus_sdk.AuthAPIError


@pytest.mark.parametrize(
    ("kind", "status", "body", "code", "exit_code", "hint"),
    [
        (TRANSFER, 403, {"code": "ConsentRequired", "required_scopes": [NEEDED], "message": "m"}, "consent-needed", 4, "hibali sites login other"),
        (TRANSFER, 403, {"code": "X", "authorization_parameters": {"session_required_mfa": True, "session_message": "m"}}, "session-needed", 4, "hibali sites login one"),
        (TRANSFER, 401, {"code": "ClientError.AuthenticationFailed"}, "login-expired", 4, "hibali sites login one"),
        (TRANSFER, 403, {"code": "EndpointPermissionDenied", "message": "no\nmore"}, "denied", 4, ""),
        (TRANSFER, 404, {"code": "EndpointNotFound"}, "not-found", 3, ""),
        (TRANSFER, 429, {"code": "TooManyRequests"}, "throttled", 5, ""),
        (TRANSFER, 503, {}, "globus-unavailable", 5, ""),
        (TRANSFER, 502, {"code": "ExternalError.DirListingFailed.GCDisconnected"}, "collection-offline", 5, "Globus Connect"),
        (TRANSFER, 409, {"code": "Conflict"}, "globus-conflict", 5, ""),
        (TRANSFER, 409, {"code": "ClientError.Conflict.TooManyPendingJobs"}, "too-many-tasks", 5, "app.globus.org"),
        (TRANSFER, 400, {"code": "ClientError.BadRequest"}, "globus-refused", 8, ""),
        (AUTH, 400, {"error": "invalid_grant"}, "login-expired", 4, "hibali sites login one"),
        (AUTH, 400, {"error": "unknown_scope"}, "login-refused", 4, "docs/globus.md"),
        (AUTH, 503, {"error": "x"}, "globus-unavailable", 5, ""),
    ],
)  # fmt: skip
def test_each_globus_error_is_translated(
    kind: Any, status: int, body: dict[str, Any], code: str, exit_code: int, hint: str
) -> None:
    with (
        pytest.raises(HibaliError) as caught,
        translated_errors(site("one", ONE), others=[site("other", OTHER)]),
    ):
        raise problem_of(kind, status, body)
    found = caught.value
    assert (found.code, int(found.exit)) == (code, exit_code)
    assert hint in found.hint
    assert SECRET not in repr(found.to_record()) + repr(getattr(found, "__notes__", ""))
    assert "\n" not in found.message


def test_errors_of_a_confidential_client_have_other_codes() -> None:
    own = site("one", ONE, secret=True)
    for kind, status, body, code in [
        (AUTH, 401, {"error": "invalid_client"}, "client-refused"),
        (TRANSFER, 403, {"code": "ConsentRequired", "required_scopes": [NEEDED]}, "consent-needed"),
    ]:
        with pytest.raises(HibaliError) as caught, translated_errors(own):
            raise problem_of(kind, status, body)
        assert (caught.value.code, int(caught.value.exit)) == (code, 4)
        assert "hibali sites login one" in caught.value.hint


def test_sites_with_different_clients_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIBALI_STATE", "/dev/null/never")
    with pytest.raises(HibaliError) as caught:
        open_access([site("one", ONE), site("other", OTHER, secret=True)])
    assert (caught.value.code, int(caught.value.exit)) == ("two-clients", 2)
    with pytest.raises(HibaliError) as caught:
        open_access([Site("bare", "globus", globus=GlobusSettings(ONE))])
    assert (caught.value.code, int(caught.value.exit)) == ("no-globus-client", 2)


def test_scopes_are_merged_with_their_dependencies() -> None:
    more = f"{ALL}[*https://auth.globus.org/scopes/{ONE}/data_access]"
    (merged,) = merged_scopes([ALL], [NEEDED], [more])
    assert merged.startswith(f"{ALL}[")
    assert (ONE in merged, OTHER in merged) == (True, True)


def test_a_secret_is_the_first_line_and_no_error_repeats_it() -> None:
    assert first_line(b"abc/+=\nurl: https://x\n") == "abc/+="
    for text in (b"", b"\nsecond", b"a\x00b\n", "pä\n".encode()):
        with pytest.raises(ValueError, match="first line") as caught:
            first_line(text)
        assert text.decode().strip() not in str(caught.value) or not text.strip()


def test_the_refresh_token_is_kept_if_the_response_has_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HIBALI_STATE", str(tmp_path))
    refreshed_with: list[str] = []

    def token_response(**more: str) -> requests.Response:
        body = {
            "access_token": f"a{len(refreshed_with)}",
            "expires_in": 3600,
            "resource_server": TRANSFERS,
            "scope": ALL,
        }
        response = requests.Response()
        response.status_code = 200
        response._content = json.dumps({**body, "token_type": "Bearer", "other_tokens": [], **more}).encode()
        return response

    def refresh(self: Any, token: str, **_: Any) -> globus_sdk.OAuthRefreshTokenResponse:
        refreshed_with.append(token)
        return globus_sdk.OAuthRefreshTokenResponse(token_response(), client=self)

    monkeypatch.setattr(globus_sdk.NativeAppAuthClient, "oauth2_refresh_token", refresh)
    tokens = open_tokens(ONE)
    native = globus_sdk.NativeAppAuthClient(ONE)
    tokens.store_token_response(
        globus_sdk.OAuthTokenResponse(token_response(refresh_token="r"), client=native)
    )
    for _ in range(2):
        with open_access([site("one", ONE)]) as access:
            authorizer = access.transfer().authorizer
            assert authorizer is not None
            for _ in range(2):
                authorizer.handle_missing_authorization()
                assert authorizer.get_authorization_header() == f"Bearer a{len(refreshed_with)}"
    assert refreshed_with == ["r"] * 4
    kept = tokens.get_token_data(TRANSFERS)
    assert kept is not None
    assert (kept.access_token, kept.refresh_token) == ("a4", "r")
    tokens.close()
    native.close()


def test_tokens_are_never_sent_unencrypted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HIBALI_STATE", str(tmp_path))
    monkeypatch.setenv("HIBALI_SECRET", SECRET)
    monkeypatch.setenv("GLOBUS_SDK_SERVICE_URL_AUTH", "http://auth.example.org")
    with pytest.raises(HibaliError) as caught, open_access([site("one", ONE, secret=True)]) as access:
        access.transfer()
    assert caught.value.code == "insecure-endpoint"


def test_an_unreadable_token_file_has_a_hint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HIBALI_STATE", str(tmp_path))
    open_tokens(ONE).close()
    path = tmp_path / "globus" / "tokens.db"
    for content in (b"", b"not a database at all, but long enough to be looked at" * 100):
        path.write_bytes(content)
        with pytest.raises(HibaliError) as caught:
            open_tokens(ONE)
        assert (caught.value.code, f"rm {path}" in caught.value.hint) == ("tokens-unreadable", True)


def test_a_proxy_that_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, f"http://me:{SECRET}@127.0.0.1:1")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    refused = globus_sdk.GlobusConnectionError("x", requests.exceptions.ProxyError(SECRET))
    found = explain(refused, site("lab", ONE), "lab")
    assert "the proxy 127.0.0.1:1 failed" in found.message
    assert SECRET not in found.message
    assert "HTTPS_PROXY" in found.hint
