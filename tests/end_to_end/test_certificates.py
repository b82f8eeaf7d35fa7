"""Test logins with short-lived ssh certificates: renewed when needed, once for all processes, and never without need."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hibali.ssh.certificates import Certificate, parse_certificates
from hibali_plugins.schedules.records import read_triggers
from tests.end_to_end.run_tools import Bench
from tests.services.processes import MARK
from tests.services.sshd import SshServer
from tests.support.certificates import Person
from tests.support.clock import half_a_day_away
from tests.support.private_cron import PrivateCron
from tests.support.terminal import Terminal
from tests.support.trees import make_tree, many_files, read_tree
from tests.support.waiting import wait_for

_DAY = 86400


@pytest.fixture
def person(hibali: Any, tmp_path: Path, certificate_server: SshServer) -> Callable[..., Person]:
    """Return a function that makes a person with a certificate, who has configured the site `far`."""

    def make(more: str = "", least: str = "10m", **settings: Any) -> Person:
        found = Person(certificate_server, tmp_path / "person", **settings)
        hibali.home.config.write_text(found.site(more, least))
        return found

    return make


@pytest.mark.parametrize(("line", "begin", "end"), [
    ("Valid: from 2026-01-01T00:00:00 to 2026-01-02T03:04:05", 1767225600.0, 1767323045.0),
    ("Valid: forever", 0.0, float("inf")),
    ("Valid: after 2026-01-01T00:00:00", 1767225600.0, float("inf")),
    ("Valid: before 2026-01-02T03:04:05", 0.0, 1767323045.0),
])  # fmt: skip
def test_the_time_of_a_certificate_is_read(line: str, begin: float, end: float) -> None:
    signed = "Signing CA: ED25519 SHA256:abc (using ssh-ed25519)"
    listing = f"x:\n        Type: ssh-ed25519-cert-v01@openssh.com user certificate\n        {signed}\n        {line}\n        Principals: \n"
    assert parse_certificates(listing, "/c") == [Certificate("/c", begin, end, "SHA256:abc")]
    assert parse_certificates("nothing", "/c") == []


def test_a_certificate_lasts_for_the_asked_time_or_a_quarter_of_its_life() -> None:
    day, minute = Certificate("", 0, _DAY), Certificate("", 0, 60)
    assert day.is_valid(-60)  # the authority's clock is ahead
    assert [day.lasts(600, now) for now in (0, _DAY - 601, _DAY - 599, _DAY + 1)] == [
        True,
        True,
        False,
        False,
    ]
    assert [minute.lasts(600, now) for now in (0, 44, 46)] == [True, True, False]
    assert Certificate("", 0, float("inf")).lasts(600, 1e12)


@pytest.mark.heavy
def test_five_commands_use_one_signing(hibali: Any, person: Callable[..., Person]) -> None:
    someone = person('persist = "no"', seconds=_DAY, most=1)
    for _ in range(5):
        hibali("ls", "far:", exit=0)
    assert someone.signings == 1


def test_each_command_gets_a_certificate_that_is_only_valid_for_a_moment(
    hibali: Any, person: Callable[..., Person]
) -> None:
    someone = person('persist = "no"', seconds=5)
    hibali("ls", "far:", exit=0)
    hibali("mkdir", "far:data", exit=0)
    assert someone.signings >= 2


@pytest.mark.heavy
def test_a_certificate_that_only_the_jump_host_needs_is_renewed(
    hibali: Any, person: Callable[..., Person], ssh_server: SshServer
) -> None:
    someone = person('persist = "no"', seconds=5)
    outer = someone.config.read_text().replace("Host far\n", "Host gate\n")
    someone.config.write_text(f"{ssh_server.config.read_text()}  ProxyJump gate\n{outer}")
    for _ in range(2):
        hibali("ls", "far:", exit=0)
        time.sleep(5)
    assert someone.signings == 2


@pytest.mark.heavy
def test_logins_at_the_same_time_share_a_certificate(
    hibali: Any, person: Callable[..., Person], tmp_path: Path
) -> None:
    someone = person("logins = 3\nchannels = 6", seconds=_DAY)
    config = hibali.home.config
    config.write_text(f'{config.read_text()}[sites.far.limits]\nlogin_interval = "0s"\n')
    make_tree(tmp_path / "source", many_files(40, 200_000))
    commands = [
        subprocess.Popen(
            hibali.command("push", tmp_path / "source", f"far:copy-{number}", "--quiet"),
            env=hibali.env,
            stdin=subprocess.DEVNULL,
        )
        for number in range(3)
    ]
    assert [one.wait(120) for one in commands] == [0, 0, 0]
    assert someone.signings == 1


def test_a_command_that_fails_is_run_once_and_explained(hibali: Any, person: Callable[..., Person]) -> None:
    someone = person("logins = 3", most=0)
    answer = hibali("ls", "far:", "--json", exit=4)
    assert (answer.last["code"], someone.signings) == ("certificate-not-renewed", 0)
    assert "no more certificates today" in answer.last["message"]
    assert "person/sign" in answer.last["hint"]


def test_a_certificate_in_another_place_is_named(hibali: Any, person: Callable[..., Person]) -> None:
    someone = person(seconds=_DAY)
    config = hibali.home.config
    config.write_text(config.read_text().replace("least =", f'file = "{someone.folder}/elsewhere", least ='))
    assert hibali("ls", "far:", "--json", exit=4).last["code"] == "certificate-missing"
    config.write_text(config.read_text().replace("elsewhere", "key-cert.pub"))
    hibali("ls", "far:", exit=0)
    assert someone.signings == 1


def test_a_command_that_brings_nothing_is_not_run_at_each_login(
    hibali: Any, person: Callable[..., Person]
) -> None:
    someone = person('persist = "no"', seconds=20)
    hibali("ls", "far:", exit=0)
    script = someone.folder / "sign"
    script.write_text(f"#!/bin/sh\necho signed >> {someone.folder}/signed\n")
    for _ in range(3):  # too short for the next login, and still good for it
        hibali("ls", "far:", exit=0)
    assert someone.signings <= 2
    someone.certificate.unlink()
    assert hibali("ls", "far:", "--json", exit=4).last["code"] == "certificate-missing"
    assert someone.signings <= 2


def test_a_certificate_of_the_same_second_as_the_one_before_does_not_end_renewals(
    hibali: Any, person: Callable[..., Person]
) -> None:
    someone = person('persist = "no"', least="1m", seconds=600)
    hibali("ls", "far:", exit=0)
    [record] = (hibali.home.state / "certificates").glob("*.json")
    record.unlink()  # as before the first certificate
    script = someone.folder / "sign"
    signing = script.read_text()
    script.write_text("#!/bin/sh\n")  # what it signs in the same second has the same times
    hibali("ls", "far:", exit=0)
    script.write_text(signing)
    someone.certificate.unlink()
    hibali("ls", "far:", exit=0)
    assert someone.signings == 2


def test_a_certificate_of_another_site_does_not_count(
    hibali: Any, person: Callable[..., Person], tmp_path: Path
) -> None:
    someone = person('persist = "no"', seconds=_DAY)
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other], check=True)
    argv = ["ssh-keygen", "-q", "-s", f"{someone.server.folder}/host_key", "-I", "t", "-n", "x", "-V", "+2d"]
    subprocess.run([*argv, f"{other}.pub"], check=True)
    started = subprocess.run(["ssh-agent", "-s", "-a", tmp_path / "agent"], check=True, capture_output=True)
    pid = int(re.findall(rb"SSH_AGENT_PID=([0-9]+)", started.stdout)[0])
    try:
        hibali.env["SSH_AUTH_SOCK"] = str(tmp_path / "agent")
        subprocess.run(["ssh-add", "-q", other], check=True, env=hibali.env)
        hibali("ls", "far:", exit=0)
        someone.certificate.unlink()
        hibali("ls", "far:", exit=0)
    finally:
        os.kill(pid, signal.SIGTERM)
    assert someone.signings == 2


def test_an_expired_certificate_is_renewed_and_a_rejected_one_explained(
    hibali: Any, person: Callable[..., Person]
) -> None:
    someone = person('persist = "no"', seconds=_DAY)
    hibali("ls", "far:", exit=0)
    old = someone.folder / "key.pub"
    argv = ["ssh-keygen", "-q", "-s", f"{someone.server.folder}/ca", "-I", "t", "-n", someone.server.user]
    subprocess.run([*argv, "-V", "-2h:-1h", str(old)], check=True)
    hibali("ls", "far:", exit=0)
    assert someone.signings == 2
    someone.sign_for(_DAY, authority="host_key")  # not an authority of this server
    someone.certificate.unlink()
    assert hibali("ls", "far:", "--json", exit=4).last["code"] == "login-refused"


def test_a_person_can_confirm_a_code_in_the_terminal(hibali: Any, person: Callable[..., Person]) -> None:
    someone = person(seconds=_DAY)
    someone.sign_for(_DAY, ask="Open https://login.example.org/device and enter ABCD-1234")
    assert hibali("ls", "far:", "--json", exit=4).last["code"] == "certificate-not-renewed"
    terminal = Terminal(hibali.command("sites", "login", "far"), hibali.env, columns=300)
    terminal.until(lambda screen: "ABCD-1234" in screen)
    terminal.press(b"done\n")
    assert terminal.end() == 0
    assert "valid until" in terminal.screen()
    hibali("ls", "far:", exit=0)
    assert hibali("sites", "login", "far", "--json", exit=0).last["change"] == "same"
    assert someone.signings == 1


def test_doctor_says_until_when_the_certificate_is_valid(hibali: Any, person: Callable[..., Person]) -> None:
    person(seconds=3600)
    answer = hibali("doctor", "far", "--no-job", "--json")
    steps = {line["name"]: line for line in answer.lines if line["kind"] == "step"}
    assert "valid until" in steps["certificate"]["found"]


@pytest.mark.heavy
def test_a_schedule_may_use_certificates_that_nobody_has_to_confirm(
    hibali: Any, person: Callable[..., Person], tmp_path: Path
) -> None:
    someone = person(seconds=60)
    make_tree(tmp_path / "source", {b"a": b"1"})
    words = ("schedule", "add", "nightly", "--cron", half_a_day_away(), "--by", "print", "--json")
    words = (*words, f"--env={MARK}={hibali.home.env[MARK]}", "--", "push", tmp_path / "source", "far:data")
    someone.sign_for(60, ask="Confirm")
    assert hibali(*words, exit=4).lines[-1]["code"] == "certificate-not-renewed"
    someone.sign_for(60)
    hibali(*words, exit=0)
    assert someone.signings >= 1


@pytest.mark.heavy
def test_a_long_transfer_renews_certificates_of_a_minute_at_each_reconnect(
    hibali: Any, person: Callable[..., Person], tmp_path: Path
) -> None:
    someone = person("persist = 60", seconds=60)
    config = hibali.home.config
    config.write_text(f'{config.read_text()}[sites.far.limits]\nbandwidth = "1MB"\n')
    tree = many_files(150, 1_000_000)
    make_tree(tmp_path / "source", tree)
    running = subprocess.Popen(
        hibali.command("push", tmp_path / "source", "far:data", "--quiet"),
        env=hibali.env,
        stdin=subprocess.DEVNULL,
    )
    kills = 0
    while running.poll() is None:
        time.sleep(25)
        kills += bool(end_masters(someone))
    assert running.wait() == 0
    assert kills >= 3
    assert 3 <= someone.signings <= kills + 2
    assert read_tree(someone.server.home / "data") == tree


@pytest.mark.heavy
def test_a_sweep_renews_certificates_of_seconds_at_each_reconnect(
    hibali: Any, person: Callable[..., Person]
) -> None:
    """Nobody is asked while a sweep is staged, launched, followed and collected for three lives of a certificate."""
    bench = Bench(hibali)
    someone = person("persist = 60", seconds=20)
    config = hibali.home.config
    text = config.read_text().replace("[sites.far]\n", f'[sites.far]\nwork = "{bench.folder}/work"\n')
    config.write_text(
        f'{text}[sites.far.scheduler]\nname = "direct"\n[sites.far.limits]\npoll = "1s"\nlogin_interval = "0s"\n'
    )
    bench.site = "far"
    line = bench.line(bench.answers(sleep=60), "--param", "say=a,b,c", "--wait", "--collect", "back")
    running = subprocess.Popen(hibali.command(*line, "--quiet"), env=hibali.env, cwd=bench.folder)
    kills = 0
    while running.poll() is None:
        time.sleep(8)
        kills += bool(end_masters(someone))
    assert running.wait() == 0
    assert kills >= 4
    assert 3 <= someone.signings <= kills + 2
    assert len([path for path in (bench.folder / "back").rglob("*") if path.is_file()]) == 3


@pytest.mark.heavy
@pytest.mark.early
def test_a_line_of_cron_gets_a_certificate_of_a_minute_each_time(
    hibali: Any, person: Callable[..., Person], tmp_path: Path
) -> None:
    """A real cron daemon, in its environment, without a terminal and without an agent."""
    someone, cron = person('persist = "no"', seconds=60), PrivateCron(tmp_path / "cron")
    source = make_tree(tmp_path / "source", {b"0": b"0"})
    marks = (f"--env={MARK}={hibali.home.env[MARK]}", f"--env=XDG_RUNTIME_DIR={hibali.home.runtime}")
    words = ("schedule", "add", "nightly", "--cron", "* * * * *", *marks, "--", "push", source, "far:nightly")
    subprocess.run([*cron.words, *hibali.command(*words)], env=hibali.env, check=True)
    signed = someone.signings
    try:
        cron.start()
        for number in range(1, 4):
            wait_for(lambda number=number: ended_triggers() >= number, seconds=150)
            (source / str(number)).write_text("more")
    finally:
        cron.end()
    assert {each.exit for each in read_triggers("nightly") if each.ended} == {0}
    assert signed + 2 <= someone.signings <= signed + 4


def ended_triggers() -> int:
    """Return how many runs of the schedule have ended."""
    return sum(each.ended is not None for each in read_triggers("nightly"))


def end_masters(someone: Person) -> int:
    """Kill the ssh masters of this person; return how many there were."""
    found = subprocess.run(["pgrep", "-f", f"ssh -F {someone.config}.* -N"], capture_output=True, check=False)
    pids = [int(pid) for pid in found.stdout.split()]
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return len(pids)
