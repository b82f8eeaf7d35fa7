"""Test ten minutes of a real cron daemon: runs every minute in a minimal environment, over sshd and to S3, with a server outage."""

from __future__ import annotations

import configparser
import json
import os
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from hibali_plugins.schedules.records import Trigger, read_triggers
from tests.services.processes import MARK
from tests.support.backends import add_site, make_backend
from tests.support.private_cron import PrivateCron
from tests.support.restartable_server import RestartableServer, restartable_server

MINUTES = 10
AWAY = (4, 5, 6)  # the minutes without the ssh server
FOREIGN = b'MAILTO=""\n# caf\xe9\n0   3 *\t1 * /bin/true  a % b\n@yearly  /bin/true\nPATH=/nowhere\n'

pytestmark = [pytest.mark.heavy, pytest.mark.early, pytest.mark.timeout(1200)]


@pytest.fixture
def cron(tmp_path: Path) -> Iterator[PrivateCron]:
    found = PrivateCron(tmp_path / "cron")
    yield found
    found.end()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RestartableServer]:
    with restartable_server("ssh", tmp_path) as found:
        yield found


class CronSetup:
    """Three schedules that run every minute: over ssh, to a bucket, and one whose first run takes longer than a minute."""

    def __init__(
        self, hibali: Any, cron: PrivateCron, server: RestartableServer, bucket: Any, folder: Path
    ) -> None:
        self.hibali, self.cron, self.server, self.bucket = hibali, cron, server, bucket
        self.sources = {name: folder / name for name in ("over-ssh", "to-bucket", "slow")}
        self.notices = folder / "notices"
        for source in self.sources.values():
            source.mkdir()
        for number in range(4):
            (self.sources["slow"] / f"{number}").write_bytes(os.urandom(4_000_000))
        add_site(hibali.home.config, "far", server.place)
        add_site(hibali.home.config, "bucket", bucket, 'profile = "nightly"\n')
        write_profile(hibali.home.home, bucket.env)

    def add(self) -> None:
        home = self.hibali.home
        marks = (f"--env={MARK}={home.env[MARK]}", f"--env=XDG_RUNTIME_DIR={home.runtime}")
        commands = {
            "over-ssh": ("push", self.sources["over-ssh"], "far:data"),
            "to-bucket": ("push", self.sources["to-bucket"], "bucket:data"),
            "slow": ("push", "--bwlimit", "130K", self.sources["slow"], "far:slow"),
        }
        for name, words in commands.items():
            self.run("schedule", "add", name, "--cron", "* * * * *", *marks, "--", *words)

    def run(self, *words: str | Path) -> Any:
        command = self.hibali.command
        self.hibali.command = lambda *given: (*self.cron.words, *command(*given))
        try:
            return self.hibali(*words, exit=0)
        finally:
            self.hibali.command = command

    def grow(self, minute: int) -> None:
        for name in ("over-ssh", "to-bucket"):
            (self.sources[name] / f"minute-{minute}").write_text(f"{name} {minute}\n")


def write_profile(home: Path, environment: dict[str, str]) -> None:
    """Write the keys to a file that is found in a minimal environment."""
    profile = configparser.ConfigParser()
    profile["nightly"] = {
        name.lower(): environment[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    }
    (home / ".aws").mkdir()
    with (home / ".aws" / "credentials").open("w") as stream:
        profile.write(stream)


def wait_for_second(second: int) -> None:
    """Wait until the clock shows this second; the daemon wakes at full minutes."""
    time.sleep((second - time.time()) % 60)


def ran(triggers: list[Trigger]) -> list[Trigger]:
    return [each for each in triggers if each.state != "skipped"]


def test_schedules_run_every_minute_for_ten_minutes(
    hibali: Any, cron: PrivateCron, server: RestartableServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    setup = CronSetup(hibali, cron, server, make_backend("s3", tmp_path, request.getfixturevalue), tmp_path)
    cron.put(FOREIGN)
    wait_for_second(5)
    setup.run("schedule", "notify", "--command", f"/usr/bin/tee -a {setup.notices}")
    setup.add()
    installed = cron.content()
    assert installed is not None
    assert installed.endswith(FOREIGN)
    cron.start()
    setup.grow(0)
    for minute in range(1, MINUTES + 1):
        wait_for_second(40)
        if minute + 1 == AWAY[0]:
            setup.run("schedule", "pause", "slow")
            server.stop()
        elif minute == AWAY[-1]:
            server.start()
        setup.grow(minute)
    wait_for_second(30)  # one more minute sends the last files
    for name in ("over-ssh", "to-bucket", "slow"):
        setup.run("schedule", "remove", name)
    assert cron.content() == FOREIGN
    check_triggers(setup, {name: read_triggers(name) for name in setup.sources})


def check_triggers(setup: CronSetup, fired: dict[str, list[Trigger]]) -> None:
    for name, triggers in fired.items():
        print(name, [(each.due, each.exit, each.because, each.seconds) for each in triggers])
        ends = [datetime.fromisoformat(each.ended) for each in ran(triggers) if each.ended]
        begins = [datetime.fromisoformat(each.began) for each in ran(triggers)]
        assert all(end <= begin for end, begin in zip(ends, begins[1:], strict=False)), "two runs overlapped"
        due = [each.due for each in triggers]
        assert len(set(due)) == len(due), "one scheduled time had two runs"
        assert all(each.by == "cron" for each in triggers)
    assert len(fired["over-ssh"]) >= MINUTES
    codes = [each.exit for each in ran(fired["over-ssh"])]
    away = codes.index(5)
    assert codes[away : away + 3] == [5, 5, 5]
    assert set(codes[:away] + codes[away + 3 :]) == {0}
    assert all(each.operations for each in ran(fired["to-bucket"]))
    assert {each.exit for each in ran(fired["to-bucket"])} == {0}
    slow = fired["slow"]
    assert slow[0].seconds is not None
    assert slow[0].seconds > 60
    assert slow[0].exit == 0
    assert "still-going" in {each.because for each in slow}
    notices = [json.loads(line) for line in setup.notices.read_text().splitlines()]
    assert [(each["schedule"], each["event"]) for each in notices] == [
        ("over-ssh", "failed"),
        ("over-ssh", "works-again"),
    ]
    grown = {f"minute-{minute}".encode(): minute for minute in range(MINUTES + 1)}
    for name, place in (("over-ssh", setup.server.place), ("to-bucket", setup.bucket)):
        assert place.files("data") == {path: f"{name} {minute}\n".encode() for path, minute in grown.items()}
    moved = [each.amount("files_moved") for each in ran(fired["to-bucket"])]
    assert moved.count(1) >= MINUTES - 3, "the growing source was not sent with one file a minute"
