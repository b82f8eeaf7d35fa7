"""Test that a saved plan is executed exactly or refused, at every kind of site."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.schemas import check_lines
from tests.support.transfers import Transfers, actions, at_agents, counts, failed, path_of
from tests.support.trees import state_of

there = at_agents("s3")

TREE = {b"new": b"4", b"changed": b"33", b"same": b"2", b"sub/deep": b"55555"}


def prepare(there: Transfers) -> Path:
    """Make files to copy, replace, keep and delete, and return the path of the plan."""
    there.place.plant("data", {b"extra": b"1", b"same": b"2", b"changed": b"3"})
    there.pull(there.source)
    odd = b"odd" if there.place.word == "s3" else b"odd \xff\n"
    there.make({**TREE, odd: b"666666"})
    (there.source / "extra").unlink()
    # A store that keeps whole seconds would otherwise find `same` changed or unchanged, depending on the clock.
    os.utime(there.source / "same", (10**9, 10**9))
    return there.folder / "the.plan"


def plan(there: Transfers, path: Path, *words: str, exit: int = 0) -> Any:  # noqa: A002 - as the fixture `hibali` has it
    return there.hibali(
        "plan", there.source, "there:data", "-o", path, "--delete", "--json", *words, exit=exit
    )


def apply(there: Transfers, path: Path, *words: str, exit: int = 0) -> Any:  # noqa: A002 - as the fixture `hibali` has it
    answer = there.hibali("apply", path, "--json", *words, exit=exit)
    assert answer.last["exit"] == exit, str(answer)
    return answer


def test_a_plan_is_written_and_applied(there: Transfers) -> None:
    path = prepare(there)
    before, ledger = there.whole_state(), set(state_of(there.hibali.home.state))
    answer = plan(there, path, "--detailed-exit-code", exit=10)
    assert there.whole_state() == before
    assert set(state_of(there.hibali.home.state)) == ledger | {b"signing.key"}
    check_lines(answer.out)
    reasons = {(line["action"], line["because"]) for line in answer.lines if line["kind"] == "reason"}
    assert ("delete", "not in the source") in reasons
    lines = check_lines(path.read_bytes())
    assert (lines[0]["kind"], lines[-1]["kind"]) == ("plan", "plan-end")
    shown = {path_of(line): line["action"] for line in lines if line["kind"] == "action"}
    assert shown.items() >= {b"new": "copy", b"changed": "replace", b"extra": "delete"}.items()
    # Files outside the plan stay: apply executes exactly this plan.
    there.make({b"later": b"1"})
    still = apply(there, path, "--dry-run")
    assert actions(still) == shown
    receipt = apply(there, path).last
    assert (receipt["operation"], receipt["files_deleted"], receipt["files_failed"]) == ("apply", 1, 0)
    assert receipt["files_moved"] == len([name for name in shown if name not in {b"extra", b"sub"}])
    committed = there.committed_files()
    assert b"later" not in committed
    assert b"extra" not in committed
    assert committed[b"changed"] == b"33"
    there.check_no_own_files()
    again = apply(there, path)
    assert (counts(again)["files_moved"], counts(again)["files_deleted"]) == (0, 0)
    assert apply(there, path, "-n", "--detailed-exit-code").last["kind"] == "end"


def test_a_change_at_the_source_is_drift(there: Transfers) -> None:
    path = prepare(there)
    plan(there, path)
    before = there.state_there()
    (there.source / "new").write_bytes(b"not what was planned")
    (there.source / "sub/deep").unlink()
    answer = apply(there, path, exit=8)
    assert answer.last["code"] == "drift"
    assert "new: it changed at the source" in answer.last["message"]
    assert "sub/deep: the source has no file" in answer.last["message"]
    assert apply(there, path, "-n", exit=8).last["code"] == "drift"
    assert there.state_there() == before


def test_a_change_at_the_target_is_drift(there: Transfers) -> None:
    path = prepare(there)
    plan(there, path)
    there.place.plant("data", {b"extra": b"somebody wrote this", b"new": b"and this"})
    before = there.state_there()
    answer = apply(there, path, exit=8)
    assert "2 names are no longer as planned" in answer.last["message"]
    assert there.state_there() == before
    assert there.committed_files()[b"new"] == b"and this"


def test_a_name_that_exists_again_is_not_deleted(there: Transfers) -> None:
    path = prepare(there)
    plan(there, path)
    there.make({b"extra": b"again"})
    assert apply(there, path, exit=8).last["code"] == "drift"
    assert there.committed_files()[b"extra"] == b"1"


def test_a_partly_applied_plan_is_completed(there: Transfers) -> None:
    path = prepare(there)
    plan(there, path)
    there.push("--include", "changed", "--include", "new")
    receipt = apply(there, path).last
    assert (receipt["files_moved"], receipt["files_kept"], receipt["files_deleted"]) == (3, 2, 1)
    assert there.committed_files()[b"sub/deep"] == b"55555"


def test_one_file_can_be_planned(there: Transfers) -> None:
    there.make({b"a": b"1"})
    path = there.folder / "the.plan"
    there.hibali("plan", there.source / "a", "there:data/b", "-o", path, exit=0)
    assert apply(there, path).last["files_moved"] == 1
    assert there.committed_files() == {b"b": b"1"}
    (there.source / "a").unlink()
    (there.source / "a").mkdir()
    assert apply(there, path, exit=8).last["code"] == "drift"


def test_a_plan_has_the_same_locations_in_every_folder(local_there: Transfers, tmp_path: Path) -> None:
    there = local_there
    there.make({b"a": b"1"})
    path = tmp_path / "the.plan"
    there.hibali("plan", "source", "there:data", "-o", path, cwd=there.folder, exit=0)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    there.hibali("apply", path, cwd=elsewhere, exit=0)
    assert there.committed_files() == {b"a": b"1"}


def test_a_root_that_was_moved_is_drift(local_there: Transfers) -> None:
    there = local_there
    path = prepare(there)
    plan(there, path)
    moved = there.folder / "moved"
    shutil.move(there.root.parent, moved)
    config = there.hibali.home.config
    config.write_text(config.read_text().replace(str(there.root.parent), str(moved)))
    answer = apply(there, path, exit=8)
    assert answer.last["code"] == "drift"
    assert str(moved) in answer.last["message"]


def test_a_truncated_or_edited_plan_is_refused(local_there: Transfers) -> None:
    there = local_there
    path = prepare(there)
    plan(there, path)
    whole = path.read_bytes()
    before = there.whole_state()
    for content in (whole[:-1], whole.replace(b'"new"', b'"old"'), b"", b"{}\n", whole + whole):
        path.write_bytes(content)
        assert apply(there, path, exit=8).last["code"] == "plan-damaged"
    assert there.whole_state() == before
    path.unlink()
    assert apply(there, path, exit=3).last["code"] == "no-such-file"


def forged(content: bytes) -> bytes:
    """Return the same plan with another name in it and a matching checksum, as an attacker could write it."""
    *lines, end = content.replace(b'"own"', b'"zzz"').splitlines(keepends=True)
    summed = hashlib.sha256(b"".join(lines)).hexdigest()
    return b"".join([*lines, json.dumps(json.loads(end) | {"sha256": summed}).encode() + b"\n"])


@pytest.mark.parametrize("whose", ["forged", "unsigned", "another state folder", "other owner", "writable"])
def test_a_foreign_plan_needs_its_source_and_target_repeated(local_there: Transfers, whose: str) -> None:
    there = local_there
    there.make({b"new": b"1", b"own": b"2"})
    path = there.folder / "the.plan"
    plan(there, path)
    words = "no signature of this account"
    if whose == "forged":
        path.write_bytes(forged(path.read_bytes()))
    elif whose == "unsigned":
        path.write_bytes(re.sub(rb',"signature":"[0-9a-f]*"', b"", path.read_bytes()))
    elif whose == "another state folder":
        (there.hibali.home.state / "signing.key").unlink()
    elif whose == "other owner":
        if os.geteuid() != 0:
            pytest.skip("only root may give a file away")
        os.chown(path, 65533, 65533)
        words = "its owner is uid 65533"
    else:
        path.chmod(0o666)
        words = "other accounts can write to it"
    before = there.whole_state()
    answer = apply(there, path, exit=8)
    assert answer.last["code"] == "foreign-plan"
    assert words in answer.last["message"]
    assert "there:data" in answer.last["message"]
    assert apply(there, path, "--dry-run", exit=8).last["code"] == "foreign-plan"
    there.hibali("apply", path, there.source, exit=2)
    other = there.hibali("apply", path, there.source, "there:other", "--json", exit=8)
    assert other.last["code"] == "other-ends"
    assert there.whole_state() == before
    if whose == "forged":
        return  # its differences are drift, or already done
    named = there.hibali("apply", path, "source", "there:data", cwd=there.folder, exit=0)
    assert words.encode() in named.err
    assert there.committed_files() == {b"new": b"1", b"own": b"2"}


def test_a_signing_key_readable_by_others_is_refused(local_there: Transfers) -> None:
    there = local_there
    there.make({b"new": b"1"})
    path = there.folder / "the.plan"
    plan(there, path)
    key = there.hibali.home.state / "signing.key"
    assert (key.stat().st_mode & 0o777, key.stat().st_size) == (0o600, 32)
    key.chmod(0o644)
    assert plan(there, path, exit=8).last["code"] == "not-private"
    assert apply(there, path, exit=8).last["code"] == "not-private"
    assert there.committed_files() == {}


def test_the_delete_limit_applies_to_planning(local_there: Transfers) -> None:
    there = local_there
    there.place.plant("data", {b"%d" % number: b"1" for number in range(60)})
    there.make({b"a": b"1"})
    path = there.folder / "the.plan"
    plan(there, path, exit=8)
    assert not path.exists()
    plan(there, path, "--max-delete", "60")
    assert apply(there, path).last["files_deleted"] == 60


def test_planning_failures_are_repeated_and_prevent_deletions(local_there: Transfers) -> None:
    there = local_there
    path = prepare(there)
    os.mkfifo(there.source / "pipe")
    plan(there, path)
    answer = apply(there, path, exit=6)
    assert failed(answer)[b"pipe"] == "special-file"
    assert b"extra" in there.committed_files()
    assert there.committed_files()[b"new"] == b"4"


def test_the_readable_output_has_the_reasons(local_there: Transfers) -> None:
    there = local_there
    there.make({b"%d" % number: b"1" for number in range(500)})
    path = there.folder / "the.plan"
    answer = there.hibali("plan", there.source, "there:data", "-o", path, exit=0)
    assert len(answer.out.splitlines()) == 2
    assert answer.out.split()[-3:] == [b"500", b"500", b"B"]
    answer = there.hibali("plan", there.source, "there:data", exit=0)
    assert len(answer.out.splitlines()) == 500
