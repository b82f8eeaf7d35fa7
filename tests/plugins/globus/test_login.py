"""Test logging in to Globus from a terminal without a browser, and from cron without a terminal (S16)."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hibali.config.settings import load_sites
from hibali_plugins.globus.clients import open_access
from hibali_plugins.globus.errors import translated_errors
from tests.end_to_end.run_tools import Bench, doing
from tests.services.fixtures import START
from tests.services.globus import Globus
from tests.support.secret_search import check_secrets_absent, watch_process_arguments
from tests.support.terminal import Terminal

AT_ONCE = 30.0  # seconds on a shared machine; nothing in it waits
_URL = re.compile(rb"(http://\S+/v2/oauth2/authorize\S*)\r\n")


class Archive:
    """A mapped collection that is the only configured site, `archive`."""

    def __init__(self, globus: Globus, hibali: Any, folder: Path) -> None:
        self.globus, self.hibali = globus, hibali
        (folder / "collection" / "study").mkdir(parents=True)
        (folder / "collection" / "study" / "a").write_bytes(b"1")
        self.made = globus.make_collection(folder / "collection", data_access=True, https=True)
        self.id = self.made.id
        hibali.env.update(globus.env)
        hibali.forks = False  # only a program of its own shows its arguments to others

    def configure(self, client: str, *lines: str, to: Path | None = None) -> None:
        config = to or self.hibali.home.config
        config.parent.mkdir(parents=True, exist_ok=True)
        top = "\n".join(["version = 1", "[globus]", f'client_id = "{client}"', *lines])
        config.write_text(
            f'{top}\n[sites.archive]\nkind = "globus"\nroots = {{ study = "/study" }}\ndefault_root = "study"\n'
            f'[sites.archive.globus]\ncollection = "{self.id}"\n'
        )

    def log_in(self, pages: int, env: Mapping[str, str] | None = None) -> str:
        """Log in: open each URL elsewhere and type its code, that many times; return the output after exit 0."""
        terminal = Terminal([*START, "sites", "login", "archive"], env or self.hibali.env)
        for number in range(pages):
            terminal.until(lambda _, number=number: terminal.written.count(b"Code: ") > number)
            url = _URL.findall(terminal.written)[number].decode()
            terminal.press(self.globus.approve(url).encode() + b"\r")
        assert terminal.end() == 0, terminal.written
        return terminal.written.decode()

    def requests(self, ending: str) -> int:
        return sum(each["path"].endswith(ending) for each in self.globus.requests())


def tokens_in(path: Path) -> list[str]:
    """Return all tokens in the file, access and refresh tokens."""
    found = sqlite3.connect(path)
    rows = found.execute("SELECT token_data_json FROM token_storage").fetchall()
    found.close()
    kept = [json.loads(row[0]) for row in rows]
    return [each[name] for each in kept for name in ("access_token", "refresh_token") if each.get(name)]


@pytest.fixture
def archive(globus: Globus, hibali: Any, tmp_path: Path) -> Archive:
    return Archive(globus, hibali, tmp_path)


@pytest.mark.heavy
def test_a_user_logs_in_without_a_browser_and_logs_out(archive: Archive) -> None:
    hibali, globus = archive.hibali, archive.globus
    archive.configure(globus.native_id)
    config = hibali.home.config
    config.write_text(f"{config.read_text()}https = true\n")  # a token of its own, from the same login
    kept = hibali.home.state / "globus" / "tokens.db"
    planted: list[str] = []
    with watch_process_arguments(planted) as found:
        shown = archive.log_in(2)  # the login, and the consent to the collection's data
        assert "data_access" in urllib.parse.unquote(shown)
        planted += tokens_in(kept)
        assert len(planted) == 4
        assert "already logged in to Globus" in archive.log_in(0)

        answers = [hibali("sites", "check", "archive", "--json", "-v", exit=0)]
        facts = answers[0].last["facts"]
        assert (facts["globus folder"].rstrip("/"), facts["globus login"]) == ("/study", "of a person")
        before = archive.requests("/oauth2/token")
        globus.expire(tokens="access")
        answers.append(hibali("sites", "check", "archive", "-v", exit=0))
        assert archive.requests("/oauth2/token") == before + 1
        planted += tokens_in(kept)

        assert (kept.stat().st_mode & 0o777, kept.parent.stat().st_mode & 0o777) == (0o600, 0o700)
        kept.chmod(0o640)
        answers.append(hibali("sites", "check", "archive", "--json"))
        assert answers[-1].last["code"] == "not-private"
        kept.chmod(0o600)

        answers.append(hibali("sites", "logout", "archive", "--json", exit=0))
        assert answers[-1].last["change"] == "logged out"
        assert archive.requests("/oauth2/token/revoke") == 4
        assert tokens_in(kept) == []
        answers.append(hibali("sites", "check", "archive", "--json", exit=4))
        assert "hibali sites login archive" in answers[-1].last["hint"]
        assert hibali("sites", "logout", "archive", "--json", exit=0).last["change"] == "same"
    assert found == []
    check_secrets_absent(planted, hibali, *answers)  # the file of tokens has none either: they were removed


@pytest.mark.heavy
def test_a_consent_that_was_needed_before_is_requested_with_the_login(archive: Archive) -> None:
    archive.configure(archive.globus.native_id)
    archive.log_in(2)  # this collection was not known to need a consent
    archive.hibali("sites", "logout", "archive", exit=0)
    archive.globus.expire(consents=True)
    assert "data_access" in urllib.parse.unquote(archive.log_in(1))  # the consent is remembered


def test_a_configured_consent_is_requested_with_the_first_login(archive: Archive) -> None:
    archive.configure(archive.globus.native_id)
    with archive.hibali.home.config.open("a") as config:
        config.write("data_access = true\n")
    assert "data_access" in urllib.parse.unquote(archive.log_in(1))
    assert archive.hibali("ls", "archive:", "--json", exit=0).lines[0]["path"] == "a"


def test_a_rejected_code_is_4_and_a_login_needs_a_terminal(archive: Archive) -> None:
    archive.configure(archive.globus.native_id)
    terminal = Terminal([*START, "sites", "login", "archive"], archive.hibali.env)
    terminal.until(lambda _: b"Code: " in terminal.written)
    terminal.press(b"nonsense\r")
    assert terminal.end() == 4
    assert b"rejected this code" in terminal.written
    archive.hibali.forks = True
    answer = archive.hibali("sites", "login", "archive", "--json", exit=4)
    assert answer.last["code"] == "login-needed"
    added = archive.hibali(
        "sites", "add", "other", "--globus", archive.id, "--root", "all=/", "--json", exit=4
    )
    assert added.last["hint"] == "To log in: hibali sites login other"
    shown = archive.hibali("sites", "show", "other", "--json", exit=0).last
    assert (shown["type"], shown["globus"]["client"]["client_id"]) == ("globus", archive.globus.native_id)
    assert archive.hibali("ls", "other:", "--json").exit in {2, 4}


def test_tokens_are_renewed_by_one_thread_for_all(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in archive.globus.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HIBALI_TEST_SECRET", archive.globus.client_secret)
    archive.configure(archive.globus.client_id, 'secret_variable = "HIBALI_TEST_SECRET"')
    site = load_sites(str(archive.hibali.home.config)).site("archive")
    with open_access([site]) as access:
        clients = [access.transfer() for _ in range(6)]
        archive.globus.expire(tokens="access")
        access._authorizers["transfer.api.globus.org"].inner.expires_at = 0
        before = archive.requests("/oauth2/token")
        together = threading.Barrier(len(clients))

        def authenticate(client: Any) -> str:
            together.wait()
            with translated_errors(site):
                return str(client.get_endpoint(archive.id)["id"])

        with ThreadPoolExecutor(len(clients)) as threads:
            assert set(threads.map(authenticate, clients)) == {archive.id}
        assert archive.requests("/oauth2/token") == before + 1
        header = {"Authorization": access.https_header(archive.id)}
    request = urllib.request.Request(f"{archive.made.https_server}/study/a", headers=header)  # noqa: S310 - the double
    with urllib.request.urlopen(request) as answer:  # noqa: S310
        assert answer.read() == b"1"


def test_a_job_does_not_get_the_secret(globus: Globus, hibali: Any) -> None:
    bench = Bench(hibali, doing("env; cp [IN] [OUT]"))
    bench.add_local_site()
    config = hibali.home.config
    config.write_text(
        f'{config.read_text()}[globus]\nclient_id = "{globus.client_id}"\nsecret_variable = "GLOBUS_SECRET"\n'
    )
    hibali.env["GLOBUS_SECRET"] = globus.client_secret
    ended = bench.run(bench.answers(), "--wait", exit=0)
    logs = hibali("runs", "logs", ended.last["id"], exit=0)
    assert b"PATH=" in logs.out
    check_secrets_absent([globus.client_secret], hibali, ended, logs)


class Cron:
    """hibali as cron starts it: no terminal, no input, and HOME as the only variable.

    The address of the test double is also set, which the real Globus does not need.
    """

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self.home = archive.hibali.home.home
        self.config = self.home / ".config" / "hibali" / "config.toml"
        self.tokens = self.home / ".local" / "state" / "hibali" / "globus" / "tokens.db"
        self.env = {"HOME": str(self.home), **archive.globus.env}
        self.outputs: list[Any] = []

    def __call__(
        self,
        exit_code: int,
        code: str = "",
        typed: str = "",
        words: tuple[str, ...] = ("sites", "check", "archive"),
        **env: str,
    ) -> None:
        """Check the exit code, the error code and the suggested command, without any delay."""
        began = time.monotonic()
        ended = subprocess.run(
            [*START, *words, "--json", "-v"],
            env={**self.env, **env},
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            start_new_session=True,
            check=False,
            timeout=120,
        )
        assert ended.returncode == exit_code, ended
        assert time.monotonic() - began < AT_ONCE
        last = json.loads(ended.stdout.splitlines()[-1])
        if code:
            assert (last["kind"], last["code"]) == ("error", code)
            assert typed in last["hint"]
        self.outputs.append(_Output(ended.stdout, ended.stderr))


class _Output:
    def __init__(self, out: bytes, err: bytes) -> None:
        self.out, self.err = out, err


@pytest.mark.heavy
def test_a_client_with_a_secret_works_in_cron_and_a_missing_setting_is_4_at_once(archive: Archive) -> None:
    globus, cron = archive.globus, Cron(archive)
    client, secret = globus.client_id, globus.client_secret
    vault = cron.home / "vault"
    vault.mkdir(mode=0o700)
    (vault / "secret").write_text(f"{secret}\n")
    planted = [secret, "WRONG0but0planted"]
    with watch_process_arguments(planted) as found:
        archive.configure(client, 'secret_variable = "GLOBUS_SECRET"', to=cron.config)
        cron(4, "no-secret", "export GLOBUS_SECRET=")
        cron(4, "client-refused", "hibali sites login archive", GLOBUS_SECRET=planted[1])
        cron(0, GLOBUS_SECRET=secret)  # the client consents by itself to what the collection needs
        planted += tokens_in(cron.tokens)
        assert len(planted) == 3
        cron(4, "no-secret", "export GLOBUS_SECRET=", ("ls", "archive:"))  # although a token exists
        cron(0, words=("ls", "archive:"), GLOBUS_SECRET=secret)

        archive.configure(client, f'secret_command = ["/bin/cat", "{vault}/secret"]', to=cron.config)
        globus.expire(tokens="access")
        cron(0)
        planted += tokens_in(cron.tokens)
        archive.configure(client, 'secret_command = ["/bin/false"]', to=cron.config)
        cron(4, "no-credentials", "Run the command yourself")

        archive.configure(client, 'secret_keyring = "hibali"', to=cron.config)
        settings = cron.home / ".config" / "python_keyring" / "keyringrc.cfg"  # a machine without a desktop
        settings.parent.mkdir()
        settings.write_text("[backend]\ndefault-keyring=keyrings.alt.file.PlaintextKeyring\n")
        line = f"keyring set hibali {client}"
        cron(4, "no-secret", line)
        words = [sys.executable, "-m", *line.split()]
        subprocess.run(words, env=cron.env, input=secret.encode(), check=True)
        cron(0)
    assert found == []
    files = [cron.tokens, vault / "secret", *(cron.home / ".local" / "share").rglob("*.cfg")]
    check_secrets_absent(planted, archive.hibali, *cron.outputs, but=files)


@pytest.mark.heavy
def test_an_expired_login_or_a_missing_consent_is_4_at_once_in_cron(archive: Archive) -> None:
    globus, cron = archive.globus, Cron(archive)
    archive.configure(globus.native_id, to=cron.config)
    line = "hibali sites login archive"
    cron(4, "login-needed", line)
    archive.log_in(2, cron.env)
    planted = tokens_in(cron.tokens)
    with watch_process_arguments(planted) as found:
        cron(0)
        globus.expire(consents=True)
        cron(4, "consent-needed", line)
        cron(4, "consent-needed", line, ("sync", "archive:", "archive:copy"))
        globus.expire(tokens="access")
        globus.expire(tokens="refresh")
        cron(4, "login-expired", line)
        cron(4, "login-expired", line, ("ls", "archive:"))
        archive.log_in(1, cron.env)  # with the consent that it needed the first time
        planted += tokens_in(cron.tokens)
        cron(0)
    assert found == []
    check_secrets_absent(planted, archive.hibali, *cron.outputs, but=[cron.tokens])
