"""Test file times beyond 64 bits of nanoseconds: they arrive, or the one file is reported and the others are sent.

Also test an agent that stops because of a bug: it is reported at once, without another login.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hibali.plugins import if_offered
from tests.services.session import REPOSITORY
from tests.support.backends import add_site
from tests.support.transfers import Transfers, counts
from tests.support.trees import File, Tree, read_tree
from transfers.agent.protocol import IS_FILE, Record, pack_record, unpack_records

SECOND = 1_000_000_000
EXTREME_TIMES = {
    b"after 2262": 9_223_372_100 * SECOND,
    b"before 1970": -1 * SECOND,
    b"before 1902": -9_223_372_100 * SECOND,
    b"after 2106": 4_294_967_301 * SECOND + 5,
    b"sub/after 9999": 253_402_300_800 * SECOND,
    b"sub/largest time of 64 bits": (2**63 - 1) * SECOND,
}
TREE: Tree = {
    b"plain": b"0",
    **{
        name: File(b"%d" % number, mtime_ns=when) for number, (name, when) in enumerate(EXTREME_TIMES.items())
    },
}
CONTENTS = {name: leaf.content if isinstance(leaf, File) else leaf for name, leaf in TREE.items()}
WORDS = ["local", "sftp", *(pytest.param(word, marks=pytest.mark.heavy) for word in ("ssh", "s3", "webdav"))]


def times_of(folder: Path) -> dict[bytes, int]:
    """Return the times that this filesystem stored, which are the nearest it supports."""
    return {name: (folder / name.decode()).stat().st_mtime_ns for name in EXTREME_TIMES}


@pytest.mark.parametrize("word", WORDS)
def test_files_with_any_time_are_pushed_once_and_pulled_unchanged(
    transfers_to: Callable[..., Transfers], tmp_path: Path, word: str
) -> None:
    there = transfers_to(word)
    there.make(TREE)
    assert counts(there.push())["files_moved"] == len(TREE)
    assert counts(there.push())["files_moved"] == 0
    there.pull(tmp_path / "back")
    assert read_tree(tmp_path / "back") == CONTENTS
    assert counts(there.pull(tmp_path / "back"))["files_moved"] == 0
    if word in {"local", "ssh", "s3"}:
        assert times_of(tmp_path / "back") == times_of(there.source)
    there.verify()
    for command in (["ls", "-l", "there:data"], ["du", "there:data"], ["manifest", "there:data"]):
        there.hibali(*command, exit=0)


def test_saved_plans_support_any_time(local_there: Transfers, tmp_path: Path) -> None:
    there = local_there
    there.make(TREE)
    there.hibali("plan", "-o", tmp_path / "plan", there.source, "there:data", exit=0)
    there.hibali("apply", tmp_path / "plan", exit=0)
    assert counts(there.push())["files_moved"] == 0
    there.pull(tmp_path / "back")
    assert times_of(tmp_path / "back") == times_of(there.source)
    if if_offered("history", "history"):
        there.hibali("history", exit=0)


def test_a_listing_supports_any_time() -> None:
    records = [
        Record(b"a", IS_FILE, 5, when, 0o644, 2**64 - 1, 2**64 - 1, 1, touched, b"", 0, 512, b"x")
        for when in (0, -1, 2**63 - 1, 2**63, -(2**63) - 1, (2**63 - 1) * SECOND, -(2**63) * SECOND)
        for touched in (1, 2**63)
    ]
    assert list(unpack_records(b"".join(map(pack_record, records)))) == records


@pytest.fixture
def broken(transfers_to: Callable[..., Transfers], tmp_path: Path) -> Callable[[str], Transfers]:
    """Return a function that makes an ssh site whose agent runs the given code instead of a listing, with many possible logins."""

    def make(instead: str) -> Transfers:
        there = transfers_to("ssh")
        python = tmp_path / "python"
        python.write_text(
            f"#!{sys.executable}\nimport os, sys\nsys.path.insert(0, {str(REPOSITORY)!r})\n"
            "import transfers.agent.listing\n"
            f"def instead(self):\n    {instead}\ntransfers.agent.listing.Walk.__iter__ = instead\n"
            "with open(os.path.dirname(sys.argv[0]) + '/started', 'a') as stream:\n    stream.write('.')\n"
            "exec(sys.argv[-1])\n"
        )
        python.chmod(0o755)
        config = there.hibali.home.config
        config.write_text(
            config.read_text()
            .replace('reconnect = "0s"', 'reconnect = "10m"')
            .replace("[sites.there.ssh]\n", f'[sites.there.ssh]\npython = "{python}"\n')
        )
        return there

    return make


@pytest.mark.parametrize(
    ("instead", "expected"),
    [
        ("raise RuntimeError('unexpected case')", "RuntimeError: unexpected case"),
        ("os.write(2, b'x\\nSystemError: gone\\n'); os._exit(1)", "SystemError: gone"),
    ],
)
def test_an_agent_that_stops_because_of_a_bug_is_not_started_again(
    broken: Callable[[str], Transfers], tmp_path: Path, instead: str, expected: str
) -> None:
    there = broken(instead)
    there.make({b"a": b"1"})
    began = time.monotonic()
    answer: Any = there.hibali("pull", "there:", tmp_path / "back", "--json", exit=1)
    assert time.monotonic() - began < 60  # ten minutes, if it were treated as a lost connection
    assert answer.last["code"] == "agent-failed"
    assert expected in answer.last["message"]
    assert b"Traceback" not in answer.err
    assert (tmp_path / "started").read_text() == "."


def test_a_python_that_cannot_start_is_reported_with_the_reason(
    transfers_to: Callable[..., Transfers], tmp_path: Path
) -> None:
    there = transfers_to("ssh")
    python = tmp_path / "python"
    words = "Traceback (most recent call last):\nModuleNotFoundError: No module named 'zlib'"
    python.write_text(f'#!/bin/sh\necho started >>${{0%/*}}/started\necho "{words}" >&2\nexit 1\n')
    python.chmod(0o755)
    add_site(there.hibali.home.config, "other", there.place)
    config = there.hibali.home.config
    config.write_text(
        config.read_text().replace("[sites.other.ssh]\n", f'[sites.other.ssh]\npython = "{python}"\n')
    )
    answer = there.hibali("ls", "other:", "--json", exit=5)
    assert answer.last["code"] == "agent-not-started"
    assert "No module named 'zlib'" in answer.last["message"]
    assert (tmp_path / "started").read_text() == "started\n"
