"""Test that a schedule whose command cannot work is refused by `add`, and named by `check`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.end_to_end.run_tools import Bench
from tests.services.processes import MARK
from tests.support.transfers import Transfers

ADD = ("schedule", "add", "nightly", "--cron", "@daily", "--by", "print")


def names(hibali: Any) -> int:
    found: int = hibali("schedule", "list", "--json", exit=0).last["count"]
    return found


INVALID = [
    (["push", "source", "nosuch:data"], 2, "nosuch"),
    (["push", "source", "there"], 2, "there:"),
    (["push", "there:data", "there:copy"], 2, "push"),
    (["pull", "source", "there:data"], 2, "pull"),
    (["pull", "here.txt", "back"], 2, "pull"),
    (["push", "--chekcsum", "source", "there:data"], 2, "--checksum"),
    (["push", "--pack-size", "5MiB", "source", "there:data"], 2, "--pack"),
    (["push", "source", "there:@nosuch/x"], 2, "@nosuch"),
    (["sites", "check", "nosuch"], 2, "nosuch"),
    (["run", "nosuch", "answers.json", "--site", "there"], 3, "nosuch"),
    (["runs", "wait", "20260102-030405-0a1b2c3d"], 3, "20260102"),
    (["rm", "-r", "there:data"], 2, "--yes"),
    (["sites", "login", "there"], 2, "questions"),
    (["pipelines", "publish", "nosuch@1", "--to", "nowhere"], 2, "nowhere"),
    (["apply", "gone.plan"], 3, "gone.plan"),
]


def test_commands_that_can_never_work_are_refused_without_connecting(local_there: Transfers) -> None:
    local_there.make({b"a": b"1"})
    for words, code, message in INVALID:
        answer = local_there.hibali(*ADD, "--no-check", "--", *words, cwd=local_there.folder)
        assert (answer.exit, message in answer.err.decode()) == (code, True), str(answer)
    assert names(local_there.hibali) == 0


@pytest.mark.heavy
def test_a_missing_source_is_reported_by_add_and_by_check(local_there: Transfers) -> None:
    there = local_there
    hibali = there.hibali
    here = {"cwd": there.folder}
    add = (*ADD, f"--env={MARK}={hibali.home.env[MARK]}")
    missing = hibali(*add, "--json", "--", "push", "sourcc", "there:data", exit=3, **here)
    assert missing.last["code"] == "no-such-source"
    assert hibali(*add, "--", "pull", "there:gone", "back", exit=3, **here).err.count(b"there:gone")
    assert names(hibali) == 0
    hibali(*add, "--no-check", "--", "push", "source", "there:data", exit=0, **here)
    answer = hibali("schedule", "check", "nightly", "--json", exit=3)
    assert [each["code"] for each in answer.lines[0]["obstacles"]] == ["no-such-source"]
    there.make({b"a": b"1"})
    assert b"all checks passed" in hibali("schedule", "check", "nightly", exit=0).err
    config = hibali.home.config
    config.write_text(config.read_text().replace("[sites.there", "[sites.renamed"))
    assert b"there" in hibali("schedule", "check", "nightly", exit=2).err


@pytest.mark.heavy
def test_a_scheduled_run_is_tried_as_a_dry_run(hibali: Any) -> None:
    bench = Bench(hibali)
    bench.add_local_site("local")
    here = {"cwd": bench.folder}
    line = ("run", bench.reference, bench.answers(), "--site", "local", "--wait")
    add = (*ADD, f"--env={MARK}={hibali.home.env[MARK]}")
    bench.answers("wrong.json", code="x")
    refused = hibali(*add, "--json", "--", *line[:2], "wrong.json", *line[3:], exit=2, **here)
    assert refused.last["code"] == "invalid-invocation"
    hibali(*add, "--", *line, exit=0, **here)
    assert not bench.run_ids()
    (bench.folder / "input.txt").unlink()
    assert hibali("schedule", "check", "nightly", "--json", exit=3).last["kind"] == "error"
