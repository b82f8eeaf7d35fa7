"""Test schedules in a user's crontab: one run at a time, missed runs, retries and notices."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.run_tools import DESCRIPTOR
from tests.services.processes import MARK
from tests.support.clock import half_a_day_away
from tests.support.private_cron import PrivateCron
from tests.support.transfers import Transfers
from tests.support.waiting import wait_for

FOREIGN = b'MAILTO=""\n# caf\xe9\n0   3 *\t1 * /bin/true  a % b\n@yearly  /bin/true\nPATH=/nowhere\n'


@pytest.fixture
def cron(tmp_path: Path) -> Iterator[PrivateCron]:
    found = PrivateCron(tmp_path / "cron")
    yield found
    found.end()


def marks(there: Transfers) -> list[str]:
    """Return the option that marks the processes of a schedule, so that they are ended with the test."""
    home = there.hibali.home
    return [f"--env={MARK}={home.env[MARK]}", f"--env=XDG_RUNTIME_DIR={home.runtime}"]


def triggers_of(there: Transfers, name: str = "nightly") -> list[dict[str, Any]]:
    lines = there.hibali("schedule", "log", name, "--json", exit=0).lines
    return [line for line in lines if line["kind"] == "firing"]


@pytest.mark.heavy
def test_a_schedule_from_add_to_remove(local_there: Transfers, cron: PrivateCron) -> None:
    there = local_there
    there.make({b"a b": b"1"})
    cron.put(FOREIGN)
    when = half_a_day_away()
    words = (
        "schedule",
        "add",
        "nightly",
        "--cron",
        when,
        "--jitter",
        "20m",
        "--max-time",
        "4h",
        *marks(there),
    )
    with there.under(*cron.words):
        added = there.hibali(*words, "--json", "--", "push", "source", "there:data", cwd=there.folder, exit=0)
        assert (added.last["change"], added.last["by"]) == ("added", "cron")
        installed = cron.content() or b""
        assert installed.endswith(FOREIGN)
        ours = installed.removesuffix(FOREIGN).decode().splitlines()
        assert ours[1].startswith(f"{when} /usr/bin/env HOME=")
        assert " schedule run nightly --due >>" in ours[1]
        same = there.hibali(*words, "--json", "--", "push", "source", "there:data", cwd=there.folder, exit=0)
        assert same.last["change"] == "same"
    other = there.hibali(*words, "--", "push", "source", "there:other", cwd=there.folder, exit=8)
    assert b"--replace" in other.err
    assert there.hibali("schedule", "run", "nightly", "--due", exit=0).out == b""  # not due now
    ran = there.hibali("schedule", "run", "nightly", "--json", exit=0).last
    assert (ran["state"], ran["by"], ran["files_moved"], ran["proof_moved"]) == (
        "done",
        "hand",
        1,
        "digest",
    )
    assert there.there() == {b"a b": b"1"}
    journal = there.hibali.home.state / "operations" / f"{ran['operations'][0]}.jsonl"
    first = json.loads(journal.read_text().splitlines()[0])
    assert (first["schedule"], first["firing"]) == ("nightly", ran["id"])
    with there.under(*cron.words):
        cron.put(FOREIGN)  # the user pastes an old crontab
        assert b"hibali schedule resume nightly" in there.hibali("schedule", "list", exit=0).err
        cron.put(installed.replace(b"# <<<", b"# <<"))
        there.hibali("schedule", "pause", "nightly", exit=8)
        cron.put(installed)
        there.hibali("schedule", "pause", "nightly", exit=0)
        assert cron.content() == FOREIGN
        there.hibali("schedule", "resume", "nightly", exit=0)
        assert cron.content() == installed
        shown = there.hibali("schedule", "show", "nightly", "--json", exit=0).last
        assert shown["installed"]
        assert (shown["folder"], shown["max_time"], shown["last"]["id"]) == (
            str(there.folder),
            14400,
            ran["id"],
        )
        there.hibali("schedule", "remove", "nightly", exit=0)
    assert cron.content() == FOREIGN
    assert len(triggers_of(there)) == 1
    assert there.hibali("schedule", "run", "nightly", exit=3).out == b""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--cron", "0 3 * *", "--", "ls", "there:"], "--cron"),
        (["--cron", "@daily", "--", "pusch", "a", "there:b"], "push"),
        (["--cron", "@daily", "--", "push", "a"], "SITE:PATH"),
        (["--cron", "@daily", "--", "push", "a\nb", "there:b"], "newline"),
        (["--cron", "@daily", "--", "schedule", "list"], "--"),
        (["--cron", "@daily", "--env", "AWS_SECRET_ACCESS_KEY=x", "--", "ls", "there:"], "profile"),
    ],
)
def test_invalid_schedules_are_rejected_at_once(
    local_there: Transfers, words: list[str], expected: str
) -> None:
    answer = local_there.hibali("schedule", "add", "nightly", "--by", "print", *words, exit=2)
    assert expected in answer.err.decode()
    assert local_there.hibali("schedule", "list", "--json", exit=0).last["count"] == 0


@pytest.mark.heavy
def test_a_schedule_keeps_the_default_site_of_when_it_was_added(local_there: Transfers) -> None:
    there = local_there
    there.make({b"a": b"1"})
    add = ("schedule", "add", "nightly", "--cron", "0 3 * * *", "--by", "print", "--no-check", "--replace")
    refused = there.hibali(*add, "--json", "--", "push", "source", ":data", cwd=there.folder, exit=2).last
    assert refused["code"] == "no-default-site"
    there.hibali("config", "set", "default-site", "there", exit=0)
    there.hibali("sites", "add", "other", "--local", there.folder / "other", "--no-check", exit=0)

    def shown(*command: str) -> tuple[list[str], dict[str, str]]:
        there.hibali(*add, "--", *command, cwd=there.folder, exit=0)
        schedule = there.hibali("schedule", "show", "nightly", "--json", exit=0).last
        return schedule["command"], schedule["environment"]

    (there.folder / "tool.json").write_text(json.dumps(DESCRIPTOR))
    there.hibali("pipelines", "add", there.folder / "tool.json", exit=0)
    assert shown("run", "count-letters@1.0", "--wait", "--collect=:back") == (
        ["run", "--site", "there", "count-letters@1.0", "--wait", "--collect=there:back"],
        {"HIBALI_SITE": "there"},
    )
    site = {"HIBALI_SITE": "there"}
    assert shown("ls", "other:") == (["ls", "other:"], site)
    assert shown("share", "add", ":x", "--with=:x") == (["share", "add", "there:x", "--with=:x"], site)
    assert shown("runs", "participants", "count-letters", ":x")[0][-1] == "there:x"
    excluded = ("push", "source", ":data", "--exclude", ":data", "--exclude=:data")
    assert shown(*excluded) == (["push", "source", "there:data", *excluded[3:]], site)
    there.hibali("config", "set", "default-site", "other", exit=0)
    there.hibali("schedule", "run", "nightly", exit=0)
    assert there.there() == {b"a": b"1"}


def test_timers_of_systemd_are_files(local_there: Transfers) -> None:
    there = local_there
    add = ("schedule", "add", "nightly", "--by", "systemd", "--missed", "once", "--cron", "30 3 * * 1-5")
    there.hibali(*add, "--no-check", "--", "ls", "there:", exit=0)
    units = there.hibali.home.home / ".config" / "systemd" / "user"
    timer, service = (next(units.glob(f"hibali-*-nightly.{kind}")) for kind in ("timer", "service"))
    assert "OnCalendar=Mon,Tue,Wed,Thu,Fri *-*-* 03:30:00\n" in timer.read_text()
    assert "Persistent=true\n" in timer.read_text()
    assert '"schedule" "run" "nightly" "--due"\n' in service.read_text()
    assert there.hibali("schedule", "show", "nightly", "--json", exit=0).last["installed"]
    there.hibali("schedule", "remove", "none", "nightly", exit=3)  # each is tried
    assert list(units.iterdir()) == []


def make_due(there: Transfers, since: str = "2026-01-01T00:00:00Z") -> None:
    """Set the time since which the schedule exists to the past, without any run since then."""
    path = there.hibali.home.config.with_name("schedules.toml")
    lines = [
        f'since = "{since}"' if line.startswith("since") else line for line in path.read_text().splitlines()
    ]
    path.write_text("# mine\n" + "\n".join(lines) + "\n")


def test_missed_runs_are_made_up_once_or_recorded(local_there: Transfers) -> None:
    there = local_there
    there.make({b"a": b"1"})
    add = ("schedule", "add", "nightly", "--by", "print", "--no-check", *marks(there))
    add += ("--cron", half_a_day_away("1 * *"))
    command = ("--", "push", there.source, "there:data")
    there.hibali(*add, *command, exit=0)
    make_due(there)
    there.hibali("schedule", "run", "nightly", "--due", exit=0)
    there.hibali("schedule", "run", "nightly", "--due", exit=0)
    assert [(each["state"], each["because"]) for each in triggers_of(there)] == [("skipped", "missed")]
    there.hibali(*add, "--missed", "once", "--replace", *command, exit=0)
    there.hibali("schedule", "run", "--due", exit=0)
    assert len(triggers_of(there)) == 1  # times before the replacement are not missed
    (there.hibali.home.state / "schedules" / "nightly" / "firings.jsonl").unlink()
    make_due(there)
    there.hibali("schedule", "run", "--due", exit=0)
    there.hibali("schedule", "run", "--due", exit=0)
    assert [(each["state"], each["made_up"], each["files_moved"]) for each in triggers_of(there)] == [
        ("done", True, 1)
    ]
    there.hibali("schedule", "pause", "nightly", exit=0)
    assert "# mine" in there.hibali.home.config.with_name("schedules.toml").read_text()


@pytest.mark.heavy
def test_one_run_at_a_time_with_time_limits_and_retries(
    local_there: Transfers,
) -> None:
    there = local_there
    there.make({b"a": b"1"})
    notices_file = there.folder / "notices"
    there.hibali("schedule", "notify", "--command", f"tee -a {notices_file}", exit=0)
    add = ("schedule", "add", "nightly", "--by", "print", "--no-check", "--replace", *marks(there))
    endless = ("--", "push", "--follow", there.source, "there:data")
    there.hibali(*add, "--cron", "* * * * *", *endless, exit=0)
    make_due(there)
    running = there.hibali.start("schedule", "run", "nightly")
    wait_for(lambda: bool(triggers_of(there)))
    child = _child_of(there)
    assert there.hibali("schedule", "run", "nightly", exit=5).err.count(b"still running") == 1
    there.hibali("schedule", "run", "nightly", "--due", exit=0)
    assert [each["state"] for each in triggers_of(there)] == ["running", "skipped"]
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    # its command continues, and keeps the lock
    assert there.hibali("schedule", "run", "nightly", "--due", exit=0).out == b""
    assert b"still running" in there.hibali("schedule", "run", "nightly", exit=5).err
    lines = there.hibali("schedule", "show", "nightly", "--json", exit=0).last["held_by"]
    assert f"process {running.pid} " in lines
    os.killpg(child, signal.SIGTERM)
    wait_for(lambda: there.hibali("schedule", "show", "nightly", "--json", exit=0).last["held_by"] is None)
    assert triggers_of(there)[0]["state"] == "broken"
    running = there.hibali.start("schedule", "run", "nightly")
    wait_for(lambda: triggers_of(there)[-1]["state"] == "running")
    running.terminate()  # the machine is shut down
    assert running.wait() == 143
    assert (triggers_of(there)[-1]["state"], triggers_of(there)[-1]["exit"]) == ("failed", 143)
    wait_for(lambda: there.hibali("schedule", "show", "nightly", "--json", exit=0).last["held_by"] is None)
    there.hibali("schedule", "run", "--due", exit=0)  # the hourly check sends the notice that was not sent
    there.hibali(*add, "--cron", half_a_day_away(), "--max-time", "1s", *endless, exit=0)
    ended = there.hibali("schedule", "run", "nightly", "--json", exit=5).last
    assert (ended["code"], ended["state"]) == ("max-time", "failed")
    assert 1 <= ended["seconds"] < 20
    brief = (*endless[:2], "--max-time", "0.2s", *endless[2:])
    there.hibali(*add, "--cron", half_a_day_away(), "--retry-for", "4s", *brief, exit=0)
    ended = there.hibali("schedule", "run", "nightly", "--json", exit=5).last
    assert 2 <= ended["attempts"] <= 3  # after pauses of one and two seconds
    there.hibali(*add, "--cron", half_a_day_away(), "--", "push", there.source, "there:data", exit=0)
    there.hibali("schedule", "run", "nightly", exit=0)
    there.hibali("schedule", "run", "nightly", exit=0)
    notices = [json.loads(line) for line in notices_file.read_text().splitlines()]
    assert [(each["event"], each["firing"]["exit"]) for each in notices] == [
        ("failed", 143), ("failed", 5), ("works-again", 0)
    ]  # fmt: skip
    assert b"max-time" not in there.hibali("schedule", "log", "nightly", exit=0).err


def _child_of(there: Transfers) -> int:
    """Return the process group of the command of the first run."""
    found: list[int] = []
    wait_for(lambda: bool(found) or bool(found.extend(_groups(there)) or found))
    return found[0]


def _groups(there: Transfers) -> Iterator[int]:
    mark = f"HIBALI_SCHEDULE=nightly/{triggers_of(there)[0]['id']}".encode()
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    yield os.getpgid(int(process.name))
            except OSError:
                continue
