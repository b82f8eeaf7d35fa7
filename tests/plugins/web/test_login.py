"""Test logins to web servers that exchange a password for a token, such as LORIS."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.services.loris import LOGIN, LorisServer
from tests.support.loris_site import IMAGE, SCAN, Loris
from tests.support.secret_search import check_secrets_absent, watch_process_arguments
from tests.support.terminal import Terminal
from tests.support.web_server import WebServer


@pytest.fixture
def loris(hibali: Any) -> Iterator[Loris]:
    with closing(LorisServer({IMAGE: SCAN})) as server:
        yield Loris(hibali, server)


def test_a_pull_logs_in_and_sends_the_token_but_shows_no_secret(loris: Loris, tmp_path: Path) -> None:
    secrets = [loris.server.login[1]]
    with watch_process_arguments(secrets) as found:
        answer = loris.pull(tmp_path / "scan.mnc")
    assert found == []
    assert (tmp_path / "scan.mnc").read_bytes() == SCAN
    assert {line.partition(" ")[2] for line in loris.server.seen} == {LOGIN, f"{IMAGE} with a login"}
    check_secrets_absent([*secrets, *loris.server.tokens], loris.hibali, answer, but=[loris.password_file])
    shown = loris.hibali("sites", "check", "loris", exit=3)  # a LORIS has no page at its root
    assert b"nothing exists at this URL" in shown.err


def test_an_expired_token_is_renewed_once(loris: Loris, tmp_path: Path) -> None:
    log_in = loris.server.log_in

    def expires_at_once(record: Any) -> str | None:
        token = log_in(record)
        if loris.logins == 1:
            loris.server.tokens.clear()
        return token

    loris.server.log_in = expires_at_once  # type: ignore[method-assign]
    loris.pull(tmp_path / "scan.mnc")
    assert loris.logins == 2

    loris.server.log_in = lambda record: log_in(record) and "never-valid"  # type: ignore[method-assign]
    refused = loris.pull(tmp_path / "again.mnc", exit=4)
    assert refused.last["code"] == "denied"
    assert loris.logins == 2 + 2, "a renewed token that is refused is not renewed again"


def test_a_wrong_password_is_an_access_error_and_tried_once(loris: Loris, tmp_path: Path) -> None:
    loris.set_password("of last year")
    refused = loris.pull(tmp_path / "scan.mnc", exit=4)
    assert refused.last["code"] == "bad-credentials"
    assert "of last year" not in str(refused)
    assert loris.server.seen == [f"POST {LOGIN}"]


def test_no_other_host_gets_the_password_or_the_token(loris: Loris, tmp_path: Path) -> None:
    other = WebServer(tmp_path)
    loris.server.redirect = f"{other.url}/stolen"
    assert loris.pull(tmp_path / "scan.mnc", exit=2).last["code"] == "wrong-endpoint"
    loris.configure(f'credentials_command = ["cat", "{loris.password_file}"]', login_url=f"{other.url}/login")
    refused = loris.hibali("sites", "list", "--json", exit=2)
    assert "must have the scheme and host of url" in refused.last["message"]
    assert other.seen == []
    other.close()


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (('secret_keyring = "loris"',), "needs username"),
        (('secret_keyring = "x"', 'username = "me"', 'credentials_command = ["x"]'), "only one of"),
        (('password = "x"',), "secrets are not allowed here"),
    ],
)
def test_wrong_settings_are_refused(loris: Loris, lines: tuple[str, ...], problem: str) -> None:
    loris.configure(*lines)
    assert problem in loris.hibali("sites", "list", "--json", exit=2).last["message"]


def test_the_password_can_be_in_the_keyring(loris: Loris, tmp_path: Path) -> None:
    settings = loris.hibali.home.home / ".config" / "python_keyring" / "keyringrc.cfg"
    settings.parent.mkdir(parents=True)
    settings.write_text("[backend]\ndefault-keyring=keyrings.alt.file.PlaintextKeyring\n")
    loris.configure('username = "me"', 'secret_keyring = "loris"')
    missing = loris.pull(tmp_path / "scan.mnc", exit=4)
    assert (missing.last["code"], missing.last["hint"]) == ("no-secret", "keyring set loris me")
    code = f"import keyring; keyring.set_password('loris', 'me', '{loris.server.login[1]}')"
    subprocess.run([sys.executable, "-c", code], env=loris.hibali.env, check=True)
    loris.pull(tmp_path / "scan.mnc")


def test_a_password_that_is_typed_is_exchanged_and_not_stored(loris: Loris, tmp_path: Path) -> None:
    loris.configure()
    needed = loris.pull(tmp_path / "scan.mnc", exit=4)
    assert (needed.last["code"], needed.last["hint"]) == (
        "login-needed",
        "To log in: hibali sites login loris",
    )
    assert loris.hibali("sites", "login", "loris", "--json", exit=4).last["code"] == "login-needed"

    terminal = Terminal(list(loris.hibali.command("sites", "login", "loris")), loris.hibali.env)
    terminal.until(lambda screen: "User name at loris:" in screen)
    terminal.press(b"me\n")
    terminal.until(lambda screen: "Password of me at loris" in screen)
    terminal.press(loris.server.login[1].encode() + b"\n")
    assert terminal.end() == 0, terminal.written
    assert loris.server.login[1].encode() not in terminal.written
    (token,) = loris.server.tokens
    stored = loris.hibali.home.state / "logins/loris.json"
    assert stored.stat().st_mode & 0o777 == 0o600
    check_secrets_absent([loris.server.login[1]], loris.hibali, but=[loris.password_file])
    check_secrets_absent([token], loris.hibali, but=[stored])

    loris.pull(tmp_path / "scan.mnc")
    assert loris.logins == 1
    loris.server.tokens.clear()
    expired = loris.pull(tmp_path / "again.mnc", exit=4)
    assert (expired.last["code"], expired.last["hint"]) == ("denied", "To log in: hibali sites login loris")
    loris.hibali("sites", "logout", "loris", exit=0)
    assert loris.pull(tmp_path / "again.mnc", exit=4).last["code"] == "login-needed"
