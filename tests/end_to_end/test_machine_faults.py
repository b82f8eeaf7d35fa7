"""Test every command on a machine whose state, configuration or temporary folder is full, read-only, misplaced or faulty.

No fault of the machine makes a command exit with 1, which is only for bugs; the message names what failed and where, in plain
English. `make test` includes a sample of commands and faults; the complete test is heavy.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from hibali.errors import Exit
from tests.support.every_command import CALLS, PreparedHome, commands, into_folder
from tests.support.folders import removed_folders
from tests.support.small_filesystem import small_filesystem
from tests.support.strace import require_strace

SAMPLE = tuple(
    each
    for each in (
        "run",
        "verify",
        "runs list",
        "push",
        "history",
        "report",
        "pipelines list",
        "schedule run",
        "sites add",
    )
    if each in commands()
)
# Messages of the system or of Python, which users must not see; git's own messages may be quoted.
RAW = re.compile(
    rb"Errno|[a-z]Error\b|Traceback|No such file or directory|Is a directory|Not a directory|Read-only file system"
    rb"|No space left on device|Input/output error|File name too long"
)
Fault = Callable[[PreparedHome], AbstractContextManager[tuple[tuple[str, ...], dict[str, str]]]]
PLAIN: tuple[tuple[str, ...], dict[str, str]] = ((), {})


@contextmanager
def folders_for_files(world: PreparedHome) -> Iterator[Any]:
    """Replace every file of the state by a folder."""
    for path in world.own_files():
        if path != world.hibali.home.config:
            into_folder(path)
    yield PLAIN


@contextmanager
def files_for_folders(world: PreparedHome) -> Iterator[Any]:
    """Replace every folder of the state by a file."""
    for path in world.hibali.home.state.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
            path.touch()
    yield PLAIN


@contextmanager
def file_for_state(world: PreparedHome) -> Iterator[Any]:
    """Replace the state folder by a file."""
    shutil.rmtree(world.hibali.home.state)
    world.hibali.home.state.touch()
    yield PLAIN


@contextmanager
def folder_for_config(world: PreparedHome) -> Iterator[Any]:
    """Replace the configuration file by a folder."""
    into_folder(world.hibali.home.config)
    yield PLAIN


@contextmanager
def full_state(world: PreparedHome) -> Iterator[Any]:
    """Leave no free byte in the filesystem of the state."""
    state = world.hibali.home.state
    kept = world.backup / "state"
    with small_filesystem(state, "size=1m,mode=700"):
        shutil.copytree(kept, state, symlinks=True, dirs_exist_ok=True)
        fill(state / ".fill")
        yield PLAIN


@contextmanager
def read_only_state(world: PreparedHome) -> Iterator[Any]:
    """Mount the filesystem of the state read-only."""
    state = world.hibali.home.state
    kept = world.backup / "state"
    with small_filesystem(state, "size=4m,mode=700"):
        shutil.copytree(kept, state, symlinks=True, dirs_exist_ok=True)
        subprocess.run(["mount", "-o", "remount,ro", state], check=True)
        yield PLAIN


@contextmanager
def full_temporary_folder(world: PreparedHome) -> Iterator[Any]:
    """Leave no free byte for temporary files."""
    folder = world.folder.with_name("temporary")
    with small_filesystem(folder, "size=16k"):
        fill(folder / ".fill")
        yield (), {"TMPDIR": str(folder)}


@contextmanager
def no_current_folder(world: PreparedHome) -> Iterator[Any]:
    """Remove the current folder of the command."""
    yield ("sh", "-c", 'mkdir "$0" && cd "$0" && rmdir "$0" && exec "$@"', str(world.folder / "removed")), {}


@contextmanager
def few_open_files(world: PreparedHome) -> Iterator[Any]:
    """Limit the number of open files to almost none."""
    del world
    yield ("sh", "-c", 'ulimit -n 9; exec "$@"', "limited"), {}


def failing(calls: str, error: str = "EIO") -> Fault:
    """Make these system calls fail for files and folders of the state and the configuration."""

    @contextmanager
    def fault(world: PreparedHome) -> Iterator[Any]:
        require_strace()
        paths = [path for path in world.own_files() if ".git" not in path.parts]
        paths += {path.parent for path in paths}
        watched = [word for path in paths for word in ("-P", str(path))]
        inject = f"inject={calls}:error={error}"
        yield ("strace", "-f", "-qqq", "-o", "/dev/null", *watched, "-e", f"trace={calls}", "-e", inject), {}

    return fault


FAULTS: dict[str, Fault] = {
    "folders for files": folders_for_files,
    "files for folders": files_for_folders,
    "a file for the state": file_for_state,
    "a folder for the configuration": folder_for_config,
    "full state": full_state,
    "read-only state": read_only_state,
    "full temporary folder": full_temporary_folder,
    "no current folder": no_current_folder,
    "few open files": few_open_files,
    "read errors": failing("read,pread64"),
    "errors at opening": failing("openat"),
    "errors of folders": failing("%file,getdents64"),
    "write errors": failing("write,fsync,rename,renameat2,link"),
    "stale file handles": failing("openat,read", "ESTALE"),
    "quota exceeded": failing("write,openat", "EDQUOT"),
}
PARTS = 4  # of all commands, because a test has to end in time
LEAN = ("folders for files", "full state", "read-only state")


def fill(path: Path) -> None:
    """Use all free space."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as stream:
        while True:
            stream.write(bytes(256))


def find_problem(world: PreparedHome, command: str, fault: Fault) -> str | None:
    """Return what is wrong in the result of a command under a fault, or None."""
    world.restore()
    with fault(world) as (prefix, env):
        answer = world.call(command, *prefix, env=env)
    report = f"{command}: {answer}"
    if answer.exit == Exit.BUG or answer.exit not in set(Exit):
        return report
    if RAW.search(answer.err) and b"git" not in answer.err:
        return report
    if answer.lines and answer.last.get("kind") == "error" and answer.last["exit"] != answer.exit:
        return report
    return None


def test_every_command_is_in_the_list() -> None:
    assert set(commands()) <= set(CALLS)
    assert removed_folders() or set(commands()) == set(CALLS)


def test_commands_report_a_faulty_state_and_no_bug(hibali: Any) -> None:
    world = PreparedHome(hibali, small=True)
    faults = [FAULTS[LEAN[number % len(LEAN)]] for number in range(len(SAMPLE))]
    tried = [*zip(SAMPLE, faults, strict=True), ("run", full_state), ("verify", folders_for_files)]
    assert [found for command, fault in tried if (found := find_problem(world, command, fault))] == []
    world.restore()
    with ExitStack() as stack:
        stack.enter_context(read_only_state(world))
        answer = world.call("run")
    assert (answer.exit, answer.last["code"]) == (8, "ledger-unwritable")
    assert "read-only" in answer.last["message"]
    assert "HIBALI_STATE" in answer.last["hint"]


@pytest.mark.heavy
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", FAULTS)
def test_no_command_reports_a_machine_fault_as_a_bug(hibali: Any, name: str, part: int) -> None:
    world = PreparedHome(hibali)
    some = list(commands())[part::PARTS]
    assert [found for command in some if (found := find_problem(world, command, FAULTS[name]))] == []


@pytest.mark.heavy
@pytest.mark.parametrize("part", range(PARTS))
def test_no_command_reports_a_misplaced_file_as_a_bug(hibali: Any, part: int) -> None:
    world = PreparedHome(hibali)
    files = [path.relative_to(world.folder) for path in world.own_files() if ".git" not in path.parts]

    def misplaced(path: Path) -> Fault:
        @contextmanager
        def fault(world: PreparedHome) -> Iterator[Any]:
            into_folder(world.folder / path)
            yield PLAIN

        return fault

    wrong = [
        f"{path}: {found}"
        for path in files
        for command in SAMPLE[part::PARTS]
        if (found := find_problem(world, command, misplaced(path)))
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("env", "code", "ends"),
    [
        ({"HIBALI_STATE": "~nobody-of-that-name/state"}, "no-home", Exit.USAGE),
        ({"HIBALI_STATE": "/proc/nowhere"}, "state-unwritable", Exit.REFUSED),
    ],
)
def test_an_impossible_state_folder_is_reported(
    hibali: Any, env: dict[str, str], code: str, ends: Exit
) -> None:
    answer = hibali("runs", "list", "--json", env=env, exit=int(ends))
    assert answer.last["code"] == code
    assert env["HIBALI_STATE"] in answer.last["about"]
