"""Test commands that run at most once: the creator of the marker runs it, others read the result."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from transfers.agent import protocol
from transfers.agent.commands import COMMANDS


def run_once(
    marker: Path, *argv: str | bytes, stdin: bytes = b"", folder: Path | None = None
) -> dict[str, Any]:
    reply, _ = COMMANDS["run_once"](
        {
            "marker": protocol.text_of(os.fsencode(marker)),
            "words": [protocol.text_of(os.fsencode(word)) for word in argv],
            "stdin": protocol.text_of(stdin),
            "folder": protocol.text_of(os.fsencode(folder)) if folder else None,
            "timeout": 30,
        }
    )
    return reply


def test_second_call_gets_result_of_the_first(tmp_path: Path) -> None:
    count = tmp_path / "count"
    argv = ("sh", "-c", 'echo x >> "$1"; echo "job 17"; echo careful >&2; exit 3', "sh", str(count))
    first = run_once(tmp_path / "marker", *argv)
    assert (first["fresh"], first["answer"]["exit"]) == (True, 3)
    second = run_once(tmp_path / "marker", *argv)
    assert second["fresh"] is False
    assert second["answer"] == first["answer"]
    assert protocol.bytes_of(second["answer"]["stdout"]) == b"job 17\n"
    assert protocol.bytes_of(second["answer"]["stderr"]) == b"careful\n"
    assert 0 <= second["age"] < 60
    assert count.read_text() == "x\n"


def test_only_one_concurrent_caller_runs_the_command(tmp_path: Path) -> None:
    count, callers = tmp_path / "count", 12
    barrier = threading.Barrier(callers)

    def call(_: int) -> dict[str, Any]:
        barrier.wait()
        return run_once(
            tmp_path / "a" / "b" / "marker", "sh", "-c", 'echo x >> "$1"; sleep 0.1', "sh", str(count)
        )

    with ThreadPoolExecutor(callers) as pool:
        replies = list(pool.map(call, range(callers)))
    assert [reply["fresh"] for reply in replies].count(True) == 1
    assert count.read_text() == "x\n"
    for reply in replies:
        assert reply["answer"] is None or reply["answer"]["exit"] == 0


def test_command_of_killed_caller_is_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "marker").mkdir()
    reply = run_once(tmp_path / "marker", "touch", str(tmp_path / "ran"))
    assert (reply["fresh"], reply["answer"]) == (False, None)
    assert not (tmp_path / "ran").exists()


def test_existing_file_as_marker_runs_nothing(tmp_path: Path) -> None:
    (tmp_path / "marker").write_text("a file")
    with pytest.raises(NotADirectoryError):
        run_once(tmp_path / "marker", "touch", str(tmp_path / "ran"))
    assert not (tmp_path / "ran").exists()


def test_missing_program_counts_as_the_only_attempt(tmp_path: Path) -> None:
    first = run_once(tmp_path / "marker", "no-such-program-of-hibali")
    assert (first["fresh"], first["answer"]["exit"]) == (True, 127)
    assert run_once(tmp_path / "marker", "touch", str(tmp_path / "ran"))["answer"]["exit"] == 127
    assert not (tmp_path / "ran").exists()


def test_arguments_are_passed_unchanged(tmp_path: Path) -> None:
    nasty = [b"$(touch pwned)", b"; touch pwned", b"a\nb", b"\xff", b"'\"", b"", b"-x", b"*"]
    reply = run_once(tmp_path / "marker", "printf", "%s\\0", *nasty, folder=tmp_path)
    assert protocol.bytes_of(reply["answer"]["stdout"]) == b"".join(word + b"\0" for word in nasty)
    assert not (tmp_path / "pwned").exists()


def test_marker_and_result_are_private(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    run_once(marker, "true")
    assert marker.stat().st_mode & 0o777 == 0o700
    assert [(path.name, path.stat().st_mode & 0o777) for path in marker.iterdir()] == [("answer.json", 0o600)]
