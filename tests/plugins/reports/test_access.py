"""Test who gets an answer from the dashboard: only the browser that had the link, and only for reading."""

from __future__ import annotations

from typing import Any

import pytest

from hibali_plugins.reports.dashboard.access import COOKIE, ENTRANCE, Keys, judge

KEYS = Keys(8123, token="token", session="session", base="/base")
OWN = {"host": "127.0.0.1:8123", "cookie": f"{COOKIE}=session"}


def status(method: str = "GET", path: str = "/base/", query: str = "", **headers: str | None) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    given = {name: value for name, value in {**OWN, **named}.items() if value is not None}
    answer = judge(method, path, query, given, Keys(8123, token="token", session="session", base="/base"))
    return 200 if answer is None else answer.status


@pytest.mark.parametrize(
    ("expected", "request_fields"),
    [
        (200, {}),
        (200, {"method": "HEAD"}),
        (200, {"host": "localhost:8123"}),
        (200, {"path": "/base/runs/x"}),
        (200, {"origin": "http://127.0.0.1:8123"}),
        (200, {"sec_fetch_site": "same-origin"}),
        (200, {"sec_fetch_site": "none"}),
        (200, {"cookie": f"other=1; {COOKIE}=session"}),
        (403, {"cookie": None}),
        (403, {"cookie": ""}),
        (403, {"cookie": f"{COOKIE}=wrong"}),
        (403, {"cookie": f"{COOKIE}=\u00e9"}),
        (403, {"cookie": f"{COOKIE}={'x' * 5000}; =;;"}),
        (403, {"path": "/"}),
        (403, {"path": "/other/"}),
        (403, {"path": "/baseline"}),
        (403, {"host": None}),
        (403, {"host": "127.0.0.1"}),
        (403, {"host": "127.0.0.1:80"}),
        (403, {"host": "attacker.example:8123"}),
        (403, {"host": "127.0.0.1.attacker.example:8123"}),
        (403, {"origin": "https://attacker.example"}),
        (403, {"origin": "http://127.0.0.1:9999"}),
        (403, {"origin": "null"}),
        (403, {"sec_fetch_site": "cross-site"}),
        (403, {"sec_fetch_site": "same-site"}),
        (405, {"method": "POST"}),
        (405, {"method": "DELETE"}),
        (405, {"method": "OPTIONS"}),
        (200, {"method": "POST", "path": "/base/refresh", "origin": "http://127.0.0.1:8123"}),
        (403, {"method": "POST", "path": "/base/refresh"}),
        (403, {"method": "POST", "path": "/base/refresh", "origin": "null"}),
        (403, {"method": "POST", "path": "/base/refresh", "origin": "http://attacker.example"}),
        (403, {"method": "POST", "path": "/base/refresh", "origin": "http://127.0.0.1:8123", "cookie": None}),
        (405, {"method": "POST", "path": "/refresh", "origin": "http://127.0.0.1:8123"}),
        (405, {"method": "POST", "path": "/base/runs", "origin": "http://127.0.0.1:8123"}),
        (405, {"method": "PUT", "path": "/base/refresh", "origin": "http://127.0.0.1:8123"}),
    ],
)
def test_only_reading_requests_with_the_cookie_to_the_own_address_are_answered(
    expected: int, request_fields: dict[str, Any]
) -> None:
    assert status(**request_fields) == expected


def test_the_token_is_exchanged_once_for_a_strict_cookie() -> None:
    keys = Keys(8123)
    headers = {"host": "127.0.0.1:8123", "sec-fetch-site": "cross-site"}
    for query in ("", "token=", "token=wrong", f"token={keys.session}", f"t={keys.token}", "token=\u00e9"):
        refused = judge("GET", "/open", query, headers, keys)
        assert refused is not None
        assert (refused.status, dict(refused.headers)) == (403, {})
    query = keys.url.partition("?")[2]
    foreign = judge("GET", "/open", query, {"host": "attacker.example:8123"}, keys)
    assert foreign is not None
    assert foreign.status == 403
    answer = judge("GET", "/open", query, headers, keys)
    assert answer is not None
    assert answer.status == 200
    assert answer.headers["set-cookie"] == (
        f"{COOKIE}={keys.session}; Path={keys.base}; HttpOnly; SameSite=Strict"
    )
    assert f"url={keys.base}/" in answer.text
    again = judge("GET", "/open", query, headers, keys)
    assert again is not None
    assert again.status == 403


def test_every_dashboard_has_its_own_secrets() -> None:
    one, other = Keys(1), Keys(1)
    secrets = {one.token, one.session, one.base, other.token, other.session, other.base}
    assert len(secrets) == 6
    assert min(map(len, secrets)) >= 43


def test_a_head_of_the_link_leaves_its_token_to_the_browser() -> None:
    keys = Keys(8123, token="token", session="session", base="/base")
    host = {"host": "127.0.0.1:8123"}
    seen = [judge(method, ENTRANCE, "token=token", host, keys) for method in ("HEAD", "GET", "GET")]
    assert [answer and answer.status for answer in seen] == [200, 200, 403]
    assert [answer and "set-cookie" in answer.headers for answer in seen] == [False, True, False]
