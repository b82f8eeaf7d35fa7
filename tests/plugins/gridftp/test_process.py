"""Test runs of globus-url-copy that get no answer, or hang themselves."""

from __future__ import annotations

import shutil
import socket
import threading
from pathlib import Path

import pytest

from hibali.errors import TryLaterError
from hibali_plugins.gridftp import process
from hibali_plugins.gridftp.process import PROGRAM, CopyProcess, Direction, Parameters, explain
from tests.support.requirements import skip_or_fail
from transfers.model.entry import Entry, Kind
from transfers.model.units import Item, Unit


def run(url: str, file: Path, stall: float) -> CopyProcess:
    """Run an upload of one piece to its end."""
    ended = threading.Event()
    unit = Unit((Item(0, Entry(b"f", Kind.FILE, 1000, 0, 0o644)),), 0, 1000, segment=True)
    place = bytes(file)
    direction = Direction(url, {}, up=True, here=lambda _: place, there=lambda _: place + b".out")
    parameters = Parameters(1, 1, 0, 1 << 20)
    copying = CopyProcess([unit], direction, parameters, lambda _: None, lambda _: ended.set(), stall)
    assert ended.wait(60)
    return copying


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(bytes(1000))
    return path


@pytest.mark.heavy
@pytest.mark.parametrize("scheme", ["gsiftp", "ftp"])
def test_a_server_that_accepts_and_says_nothing_is_unreachable(
    file: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """The program's own limit counts before the login, too."""
    if shutil.which(PROGRAM) is None:
        skip_or_fail(f"{PROGRAM} is missing")
    monkeypatch.setattr(process, "_STALLED_SECONDS", 2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"{scheme}://localhost:{server.getsockname()[1]}"
        copying = run(url, file, 0.0)
    assert not copying.stalled
    problem = explain(copying.errors, url)
    assert isinstance(problem, TryLaterError)
    assert problem.code == "gridftp-unreachable"


def test_a_program_that_hangs_is_killed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read on a mount that hangs here blocks the program, with its own limits."""
    monkeypatch.setattr(process, "argv", lambda _, __: ["sleep", "1000"])
    copying = run("gsiftp://localhost", file, 1.0)
    assert copying.stalled
    assert copying.exit_code != 0
