"""Test what `hibali status` shows of real commands."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import MakeTransfers
from tests.schemas import check_lines
from tests.support.terminal import Terminal
from tests.support.transfers import Transfers
from tests.support.waiting import wait_for

SLOW = ("--bwlimit", "1M")
IDLE = b"Nothing runs now.\n"
_WITH_MANIFEST = [
    "s3",
    *(pytest.param(word, marks=pytest.mark.heavy) for word in ("ebrains", "fsspec-s3")),
]


def records(transfers: Transfers, *words: str | Path, exit: int = 0) -> list[dict[str, Any]]:  # noqa: A002
    return check_lines(transfers.hibali("status", "--json", *words, exit=exit).out)


@pytest.fixture
def slow_push(local_there: Transfers) -> subprocess.Popen[bytes]:
    """Return a push that takes a minute, once it has begun to move bytes."""
    local_there.make({b"large": os.urandom(64 * 1024 * 1024)})
    process: subprocess.Popen[bytes] = local_there.hibali.start(
        "push", *SLOW, local_there.source, "there:data"
    )

    def moves() -> bool:
        return any(each["kind"] == "running" and each["bytes"] for each in records(local_there))

    wait_for(moves)
    return process


@pytest.mark.heavy
def test_a_running_transfer_is_shown_until_it_is_killed(
    local_there: Transfers, slow_push: subprocess.Popen[bytes]
) -> None:
    [running, end] = records(local_there)
    assert (running["operation"], running["target"], running["phase"]) == ("push", "there:data", "moving")
    assert (running["files_to_do"], running["bytes_to_do"]) == (1, 64 * 1024 * 1024)
    assert end["count"] == 1
    table = local_there.hibali("status", "--fields", "kind,operation,state,bytes_to_do", exit=0).out
    assert table.decode().split()[4:] == ["running", "push", "-", "67.1", "MB"]
    shown = local_there.hibali("status", exit=0).out.decode()
    assert re.match(r"transfer  push .* there:data +running +[0-9]+ % of 67\.1 MB, ", shown)
    os.killpg(slow_push.pid, signal.SIGKILL)
    slow_push.wait(30)
    assert local_there.hibali("status", exit=0).out == IDLE
    assert list((local_there.hibali.home.state / "running").iterdir()) == []


def test_status_is_watched_on_a_terminal_and_in_a_pipe(local_there: Transfers) -> None:
    hibali = local_there.hibali
    words = ("status", "--watch", "--interval", "0.5s")
    terminal = Terminal(list(hibali.command(*words)), hibali.env, cwd=local_there.folder)
    terminal.until(lambda screen: IDLE.decode().strip() in screen)
    terminal.press(b"\x03")
    assert terminal.end(15) == 130
    piped = hibali(*words, "--max-time", "3s", exit=5).out.decode()
    assert len(re.findall(r"(?m)^20[0-9-]{8} [0-9:]{8}\nNothing runs now\.\n$", piped)) >= 2
    for wrong in (
        ("--remote",),
        ("--interval", "2s"),
        ("--watch", "--update"),
        (".", "--watch"),
        ("--fields", "id", "--watch"),
        (".", "--fields", "id"),
    ):
        hibali("status", *wrong, exit=2)


def test_a_folder_is_compared_with_its_last_transfer(local_there: Transfers) -> None:
    hibali, source = local_there.hibali, local_there.source
    hibali("status", local_there.folder, exit=3)
    local_there.make(
        {b"same": b"1", b"changed": b"2", b"removed": b"3", b"sub/touched": b"4", b"skip.tmp": b"5"}
    )
    local_there.push("--exclude", "*.tmp")
    assert records(local_there, source)[-1]["unchanged"] == 4

    (source / "changed").write_bytes(b"22")
    (source / "removed").unlink()
    (source / "new").write_bytes(b"6")
    os.utime(source / "sub/touched", (1, 1))
    (source / "skip.tmp").write_bytes(b"55")
    (local_there.root / "foreign").write_bytes(b"7")
    (local_there.root / "same").unlink()
    before = sorted(path.name for path in local_there.root.rglob("*"))

    def changes(*words: str, code: int = 0) -> list[tuple[str, str, str]]:
        found = records(local_there, source, *words, exit=code)
        return [(each["where"], each["change"], each["path"]) for each in found[:-1]]

    here = [("here", "added", "new"), ("here", "modified", "changed")]
    removed = ("here", "removed", "removed")
    assert changes("--checksum") == [*here, removed]
    assert changes(code=0) == [*here, ("here", "modified", "sub/touched"), removed]
    there = [("there", "added", "foreign"), ("there", "removed", "same")]
    assert changes("--checksum", "--remote", "--detailed-exit-code", code=10) == [*here, removed, *there]
    assert sorted(path.name for path in local_there.root.rglob("*")) == before
    shown = hibali("status", source, exit=0).out.decode()
    assert "Last pushed to there:data" in shown
    assert f"hibali push --exclude '*.tmp' {source} there:data" in shown

    back = local_there.folder / "back"
    local_there.pull(back)
    (back / "same-name").write_bytes(b"8")
    found = records(local_there, back, "--remote")
    assert [(each["where"], each["path"]) for each in found[:-1]] == [("here", "same-name")]
    assert (found[-1]["direction"], found[-1]["place"]) == ("pulled", "there:data")


def test_a_folder_may_have_the_name_of_a_site(local_there: Transfers) -> None:
    hibali, cwd = local_there.hibali, local_there.folder / "elsewhere"
    (cwd / "there").mkdir(parents=True)
    hibali("push", "./there", "there:named", cwd=cwd, exit=0)
    assert b"Last pushed to there:named" in hibali("status", "there", cwd=cwd, exit=0).out
    assert hibali("status", "there:named", "--json", cwd=cwd, exit=2).last["code"] == "usage"
    (cwd / "there").rmdir()
    assert hibali("status", "there", "--json", cwd=cwd, exit=2).last["code"] == "usage"


def test_what_changed_there_is_found_in_every_kind_of_store(there: Transfers) -> None:
    there.make({b"same": b"1", b"replaced": b"2", b"removed": b"3", b"sub/x": b"4"})
    there.push()
    assert records(there, there.source, "--remote")[-1]["unchanged"] == 4
    there.place.plant("data", {b"sub/foreign": b"5", b"replaced": b"another size"})
    there.place.remove("data", b"removed")
    expected = [("added", "sub/foreign"), ("modified", "replaced"), ("removed", "removed")]
    for folder, prefix in ((there.source, ""), (there.source / "sub", "sub/")):
        found = records(there, folder, "--remote")[:-1]
        assert [(each["change"], prefix + each["path"]) for each in found] == [
            each for each in expected if each[1].startswith(prefix)
        ]
        assert {each["where"] for each in found} == {"there"}
    back = there.folder / "back"
    there.pull(
        back, "--exclude", "removed"
    )  # the S3 store reports what its manifest records and the server lacks
    assert records(there, back, "--remote", "--checksum")[-1]["there"] == {
        "added": 0,
        "modified": 0,
        "removed": 0,
    }
    (back / "replaced").unlink()
    there.place.remove("data", b"same")
    found = records(there, back, "--remote")[:-1]
    assert [(each["where"], each["path"]) for each in found] == [("here", "replaced"), ("there", "same")]


@pytest.mark.parametrize("store", _WITH_MANIFEST)
def test_a_recorded_file_that_the_server_lacks_is_only_removed_there(
    transfers_to: MakeTransfers, store: str, tmp_path: Path
) -> None:
    there = transfers_to(store)
    there.make({b"kept": b"1", b"removed": b"2"})
    there.push()
    own_state = there.hibali.env["HIBALI_STATE"]
    there.hibali.env["HIBALI_STATE"] = str(tmp_path / "never pushed")  # and never probed the store
    back = there.folder / "back"
    there.pull(back)
    there.place.remove("data", b"removed")
    answer = there.hibali("status", back, "--remote", "--json", "--detailed-exit-code", exit=10)
    [removed, end] = check_lines(answer.out)
    assert (removed["where"], removed["change"], removed["path"]) == ("there", "removed", "removed")
    assert (end["unread"], end["unchanged"]) == (0, 2)
    text = there.hibali("status", back, "--remote", exit=0)
    assert (
        "\nRemoved there:\n  removed\n\nnothing changed here; 1 removed there; 2 unchanged.\n"
        in text.out.decode()
    )
    assert text.err == b""

    # recorded by another machine, and at neither side now
    (there.source / "foreign").write_bytes(b"3")
    there.push()
    there.hibali.env["HIBALI_STATE"] = own_state
    (there.source / "foreign").unlink()
    there.place.remove("data", b"foreign")
    assert records(there, there.source, "--remote")[-1]["there"] == {"added": 0, "modified": 0, "removed": 0}
