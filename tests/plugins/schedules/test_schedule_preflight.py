"""Test the preflight of schedules: `add` reports what will fail at night, with the command to type."""

from __future__ import annotations

import configparser
import json
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import CertificateBuilder, Name, NameAttribute
from cryptography.x509.oid import NameOID

from tests.services.processes import MARK
from tests.support.backends import add_site, make_backend
from tests.support.clock import half_a_day_away
from tests.support.restartable_server import RestartableServer, restartable_server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RestartableServer]:
    with restartable_server("ssh", tmp_path) as found:
        yield found


class Preflight:
    """A user who adds a schedule and gets its problems."""

    def __init__(self, hibali: Any, source: Path) -> None:
        self.hibali = hibali
        self.source = source
        source.mkdir()
        home = hibali.home
        self.marks = (f"--env={MARK}={home.env[MARK]}",)

    def add(self, target: str, *words: str, exit: int = 4, env: dict[str, str] | None = None) -> Any:  # noqa: A002 - as the fixture `hibali` has it
        add = (
            "schedule",
            "add",
            "nightly",
            "--cron",
            half_a_day_away(),
            "--by",
            "print",
            "--json",
            *self.marks,
            *words,
        )
        return self.hibali(*add, "--", "push", self.source, target, exit=exit, env=env)

    def problem_of(self, target: str, *words: str, env: dict[str, str] | None = None) -> tuple[str, str]:
        """Return the code and the hint of the problem; the schedule was not added."""
        answer = self.add(target, *words, env=env)
        assert "nightly" not in self.hibali("schedule", "list", exit=0).out.decode()
        assert [line["kind"] for line in answer.lines] == ["schedule-check", "error"]
        assert answer.last["hint"].encode() in answer.err
        return answer.last["code"], answer.last["hint"]


def keygen(*words: str | Path) -> None:
    subprocess.run(["ssh-keygen", "-q", *words], check=True, stdin=subprocess.DEVNULL, capture_output=True)


@pytest.mark.heavy
def test_problems_of_ssh_logins_are_reported(hibali: Any, server: RestartableServer, tmp_path: Path) -> None:
    add_site(hibali.home.config, "far", server.place)
    preflight = Preflight(hibali, tmp_path / "source")
    sshd = Path(server.place.server.folder)  # type: ignore[attr-defined]
    key, known = sshd / "login_key", sshd / "known_hosts"

    good = known.read_text()
    known.write_text("")
    code, hint = preflight.problem_of("far:data")
    assert (code, hint.endswith(f"ssh -F {sshd}/config far")) == ("host-key", True)
    known.write_text(good)

    keygen("-p", "-P", "", "-N", "long words", "-f", key)
    code, hint = preflight.problem_of("far:data")
    assert code == "passphrase-key"
    assert "ssh-keygen -t ed25519 -N '' -f" in hint
    agent = tmp_path / "agent"
    code, hint = preflight.problem_of("far:data", f"--env=SSH_AUTH_SOCK={agent}")
    assert (code, f"ssh-agent -a {agent}" in hint) == ("no-agent", True)
    keygen("-p", "-P", "long words", "-N", "", "-f", key)

    keygen("-f", tmp_path / "authority", "-N", "", "-t", "ed25519")
    keygen("-s", tmp_path / "authority", "-I", "me", "-n", "me", "-V", "-5m:+3h", f"{key}.pub")
    code, hint = preflight.problem_of("far:data")
    assert (code, f"ssh-keygen -L -f {key}-cert.pub" in hint) == ("certificate-expires", True)
    added = preflight.add("far:data", "--no-check", exit=0).last
    assert added["change"] == "added"
    notices = tmp_path / "notices"
    hibali("schedule", "notify", "--command", f"tee -a {notices}", "--expires-within", "1", exit=0)
    for _ in range(2):
        hibali("schedule", "run", "--due", exit=0)
    notice = json.loads(notices.read_text())
    assert (notice["event"], notice["expires"] is not None) == ("expires", True)
    assert b'credential="certificate"' in hibali("schedule", "metrics", exit=0).out
    hibali("schedule", "remove", "nightly", exit=0)
    (sshd / "login_key-cert.pub").unlink()

    preflight.add("far:data", exit=0)
    assert not list(hibali.home.runtime.rglob("hibali*")), "the login of the preflight still exists"
    assert hibali("schedule", "check", "nightly", "--json", exit=0).last["obstacles"] == []
    config = sshd / "sshd_config"
    config.write_text(
        f"AuthenticationMethods publickey,password\nPasswordAuthentication yes\n{config.read_text()}"
    )
    server.stop()
    assert hibali("schedule", "check", "nightly", "--json", exit=5).last["code"] == "unreachable"
    server.start()
    problem = hibali("schedule", "check", "nightly", "--json", exit=4).last
    assert (problem["code"], problem["hint"].endswith("hibali sites gate")) == ("second-factor", True)


def x509(path: Path, days: float) -> None:
    """Write a certificate that is valid for that many days from now; a negative number means expired."""
    key, me = ec.generate_private_key(ec.SECP256R1()), x509_name("me")
    until = datetime.now(UTC) + timedelta(days=days)
    made = CertificateBuilder(me, me, key.public_key(), 1, until - timedelta(days=365), until)
    path.write_bytes(made.sign(key, SHA256()).public_bytes(Encoding.PEM))


def x509_name(name: str) -> Name:
    return Name([NameAttribute(NameOID.COMMON_NAME, name)])


@pytest.fixture
def grid(hibali: Any) -> Path:
    """Write a configuration with a site that is reached with GSI."""
    path: Path = hibali.home.config
    path.write_text(
        'version = 1\n[sites.grid]\nkind = "ssh"\n[sites.grid.ssh]\nhost = "127.0.0.1"\nauth = "gsi"\n'
    )
    return path


@pytest.mark.parametrize(("days", "expected"), [(1, "is valid only until"), (-1, "expired on")])
@pytest.mark.usefixtures("grid")
def test_a_proxy_that_expires_before_the_run_is_reported(
    hibali: Any, tmp_path: Path, days: int, expected: str
) -> None:
    proxy = tmp_path / "proxy"
    x509(proxy, days)
    answer = Preflight(hibali, tmp_path / "source").add("grid:data", f"--env=X509_USER_PROXY={proxy}")
    obstacles = {each["code"]: each for each in answer.lines[0]["obstacles"]}
    assert obstacles.keys() == {"host-key", "proxy-expires"}
    assert f"{proxy} {expected} " in obstacles["proxy-expires"]["message"]
    assert obstacles["proxy-expires"]["hint"].endswith(f"grid-proxy-init -valid 168:00 -out {proxy}")


@pytest.mark.parametrize("days", [-1, 300])
def test_the_certificate_of_a_generated_proxy_must_be_valid_at_the_run(
    hibali: Any, grid: Path, tmp_path: Path, days: int
) -> None:
    certificate, expired = tmp_path / "usercert.pem", tmp_path / "proxy"
    x509(certificate, days)
    x509(expired, -1)
    with grid.open("a") as stream:
        stream.write(f'[sites.grid.proxy]\nmake = "grid-proxy-init"\ncertificate = "{certificate}"\n')
    answer = Preflight(hibali, tmp_path / "source").add("grid:data", f"--env=X509_USER_PROXY={expired}")
    hints = {each["code"]: each["hint"] for each in answer.lines[0]["obstacles"]}
    assert hints.keys() == {"host-key"} | ({"certificate-expires"} if days < 0 else set())
    assert days > 0 or hints["certificate-expires"].endswith(f"-in {certificate}")


@pytest.mark.heavy
def test_object_store_keys_missing_in_cron_are_reported(
    hibali: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    bucket = make_backend("s3", tmp_path, request.getfixturevalue)
    add_site(hibali.home.config, "bucket", bucket)
    preflight = Preflight(hibali, tmp_path / "source")
    # with this shell's environment it would work
    code, hint = preflight.problem_of("bucket:data", env=bucket.env)
    assert (code, "aws configure --profile" in hint) == ("missing-secret", True)
    code, _ = preflight.problem_of("bucket:data")
    assert code == "missing-secret"
    profile = configparser.ConfigParser()
    profile["default"] = {
        name.lower(): bucket.env[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    }
    (hibali.home.home / ".aws").mkdir()
    with (hibali.home.home / ".aws" / "credentials").open("w") as stream:
        profile.write(stream)
    assert preflight.add("bucket:data", exit=0).last["change"] == "added"
    (preflight.source / "a").write_bytes(b"1")
    assert hibali("schedule", "run", "nightly", "--json", exit=0).last["files_moved"] == 1
