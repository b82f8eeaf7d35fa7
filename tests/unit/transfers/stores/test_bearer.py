"""Test the login to REST services with tokens of an OIDC service."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from hibali.errors import AccessError
from tests.services.oidc import CLIENT, Oidc
from transfers.stores.bearer.device import DeviceCode, log_in_by_code
from transfers.stores.bearer.settings import BearerSettings
from transfers.stores.bearer.tokens import Tokens, forget_login


@pytest.fixture(autouse=True)
def home(hibali_home: Any) -> None:
    assert hibali_home


def client(oidc: Oidc) -> BearerSettings:
    return BearerSettings(
        client_id=CLIENT, client_secret_variable="TEST_OIDC_SECRET", token_url=oidc.token_url
    )


def by_code(oidc: Oidc) -> BearerSettings:
    return BearerSettings(client_id=CLIENT, token_url=oidc.token_url, device_url=oidc.device_url)


def test_many_commands_need_one_token(oidc: Oidc) -> None:
    found = {Tokens(client(oidc), "lab").current() for _ in range(5)}
    assert (len(found), oidc.issued, oidc.refused) == (1, 1, [])


def test_a_rejected_token_is_replaced_once_for_all_threads_and_processes(oidc: Oidc) -> None:
    old = Tokens(client(oidc), "lab").current()
    oidc.end_all()
    others = [Tokens(client(oidc), "lab") for _ in range(4)]  # as in four processes
    assert {each.current() for each in others} == {old}
    renewed: set[str] = set()
    threads = [
        threading.Thread(target=lambda one=each: renewed.add(one.renew(old)))
        for each in others
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(renewed), oidc.issued) == (1, 2)
    assert oidc.accepts(renewed.pop())


def test_a_token_that_soon_expires_is_not_used(oidc: Oidc) -> None:
    oidc.life = 20.0
    first = Tokens(client(oidc), "lab").current()
    assert Tokens(client(oidc), "lab").current() != first


def test_a_busy_login_service_is_asked_again(oidc: Oidc) -> None:
    oidc.busy = 1
    assert oidc.accepts(Tokens(client(oidc), "lab").current())


def test_a_wrong_secret_is_named_and_not_shown(oidc: Oidc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_OIDC_SECRET", "planted-wrong")
    with pytest.raises(AccessError) as raised:
        Tokens(client(oidc), "lab").current()
    assert raised.value.code == "login-expired"
    assert "client's id and secret" in raised.value.message
    assert "planted" not in f"{raised.value} {raised.value.hint}"


def test_a_login_with_a_code_lasts_for_later_commands(oidc: Oidc) -> None:
    with pytest.raises(AccessError) as raised:
        Tokens(by_code(oidc), "lab").current()
    assert (raised.value.code, raised.value.hint) == ("login-needed", "To log in: hibali sites login lab")
    shown: list[DeviceCode] = []
    oidc.approved = False

    def show(found: DeviceCode) -> None:
        shown.append(found)
        threading.Timer(1.5, lambda: setattr(oidc, "approved", True)).start()

    log_in_by_code(by_code(oidc), "lab", show)
    assert [each.code for each in shown] == ["ABCD-EFGH"]
    first = Tokens(by_code(oidc), "lab").current()
    assert oidc.accepts(first)
    oidc.end_all()
    assert oidc.accepts(Tokens(by_code(oidc), "lab").renew(first))
    assert oidc.accepts(Tokens(by_code(oidc), "lab").renew(first)), "another process renewed it before"
    assert forget_login(by_code(oidc), "lab")
    with pytest.raises(AccessError):
        Tokens(by_code(oidc), "lab").current()


def test_stored_tokens_are_private(oidc: Oidc, hibali_home: Any) -> None:
    log_in_by_code(by_code(oidc), "lab", lambda _: None)
    folder = hibali_home.state / "bearer"
    files = [*folder.rglob("access.json"), *folder.rglob("refresh.json")]
    assert len(files) == 2
    assert all(path.stat().st_mode & 0o077 == 0 for path in files)
