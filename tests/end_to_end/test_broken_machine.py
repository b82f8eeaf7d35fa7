"""Test every command on a machine whose state, configuration or temporary folder is full, read-only, misplaced or faulty.

No fault of the machine ends a command with 1, which is for bugs alone; the message says what failed and where, in plain
English. A sample of commands and faults is in `make test`, all of them are heavy.
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
from tests.support.small_filesystem import small_filesystem
from tests.support.strace import require_strace

SAMPLE = (
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
# What the system or Python says, which is not for users; git's own words may be quoted.
RAW = re.compile(
    rb"Errno|[a-z]Error\b|Traceback|No such file or directory|Is a directory|Not a directory|Read-only file system"
    rb"|No space left on device|Input/output error|File name too long"
)
Fault = Callable[[PreparedHome], AbstractContextManager[tuple[tuple[str, ...], dict[str, str]]]]
PLAIN: tuple[tuple[str, ...], dict[str, str]] = ((), {})


@contextmanager
def folders_for_files(world: PreparedHome) -> Iterator[Any]:
    """Every file of the state is a folder."""
    for path in world.own_files():
        if path != world.hibali.home.config:
            into_folder(path)
    yield PLAIN


@contextmanager
def files_for_folders(world: PreparedHome) -> Iterator[Any]:
    """Every folder of the state is a file."""
    for path in world.hibali.home.state.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
            path.touch()
    yield PLAIN


@contextmanager
def file_for_state(world: PreparedHome) -> Iterator[Any]:
    """The state folder itself is a file."""
    shutil.rmtree(world.hibali.home.state)
    world.hibali.home.state.touch()
    yield PLAIN


@contextmanager
def folder_for_config(world: PreparedHome) -> Iterator[Any]:
    """The configuration is a folder."""
    into_folder(world.hibali.home.config)
    yield PLAIN


@contextmanager
def full_state(world: PreparedHome) -> Iterator[Any]:
    """No byte of room is left where the state is."""
    state = world.hibali.home.state
    kept = world.backup / "state"
    with small_filesystem(state, "size=1m,mode=700"):
        shutil.copytree(kept, state, symlinks=True, dirs_exist_ok=True)
        fill(state / ".fill")
        yield PLAIN


@contextmanager
def read_only_state(world: PreparedHome) -> Iterator[Any]:
    """The state is on a filesystem that is read-only."""
    state = world.hibali.home.state
    kept = world.backup / "state"
    with small_filesystem(state, "size=4m,mode=700"):
        shutil.copytree(kept, state, symlinks=True, dirs_exist_ok=True)
        subprocess.run(["mount", "-o", "remount,ro", state], check=True)
        yield PLAIN


@contextmanager
def full_temporary_folder(world: PreparedHome) -> Iterator[Any]:
    """No byte of room is left for temporary files."""
    folder = world.folder.with_name("temporary")
    with small_filesystem(folder, "size=16k"):
        fill(folder / ".fill")
        yield (), {"TMPDIR": str(folder)}


@contextmanager
def no_current_folder(world: PreparedHome) -> Iterator[Any]:
    """Somebody removed the folder in which the command is called."""
    yield ("sh", "-c", 'mkdir "$0" && cd "$0" && rmdir "$0" && exec "$@"', str(world.folder / "removed")), {}


@contextmanager
def few_open_files(world: PreparedHome) -> Iterator[Any]:
    """The limit of open files leaves next to none."""
    del world
    yield ("sh", "-c", 'ulimit -n 9; exec "$@"', "limited"), {}


def failing(calls: str, error: str = "EIO") -> Fault:
    """Those system calls on the state's and the configuration's files and folders fail."""

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
PARTS = 4  # of all commands: a test has to end in time
LEAN = ("folders for files", "full state", "read-only state")


def fill(path: Path) -> None:
    """Take all the room there is."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as stream:
        while True:
            stream.write(bytes(256))


def complaint(world: PreparedHome, command: str, fault: Fault) -> str | None:
    """What is wrong with the end of a command under a fault; None if nothing is."""
    world.restore()
    with fault(world) as (prefix, env):
        answer = world.call(command, *prefix, env=env)
    told = f"{command}: {answer}"
    if answer.exit == Exit.BUG or answer.exit not in set(Exit):
        return told
    if RAW.search(answer.err) and b"git" not in answer.err:
        return told
    if answer.lines and answer.last.get("kind") == "error" and answer.last["exit"] != answer.exit:
        return told
    return None


def test_every_command_is_tried() -> None:
    assert set(commands()) == set(CALLS)


def test_commands_name_a_broken_state_and_never_a_bug(hibali: Any) -> None:
    world = PreparedHome(hibali, small=True)
    faults = [FAULTS[LEAN[number % len(LEAN)]] for number in range(len(SAMPLE))]
    tried = [*zip(SAMPLE, faults, strict=True), ("run", full_state), ("verify", folders_for_files)]
    assert [found for command, fault in tried if (found := complaint(world, command, fault))] == []
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
def test_no_command_calls_a_broken_machine_a_bug(hibali: Any, name: str, part: int) -> None:
    world = PreparedHome(hibali)
    some = list(CALLS)[part::PARTS]
    assert [found for command in some if (found := complaint(world, command, FAULTS[name]))] == []


@pytest.mark.heavy
@pytest.mark.parametrize("part", range(PARTS))
def test_no_command_calls_one_misplaced_file_a_bug(hibali: Any, part: int) -> None:
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
        if (found := complaint(world, command, misplaced(path)))
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("env", "code", "ends"),
    [
        ({"HIBALI_STATE": "~nobody-of-that-name/state"}, "no-home", Exit.USAGE),
        ({"HIBALI_STATE": "/proc/nowhere"}, "state-unwritable", Exit.REFUSED),
    ],
)
def test_a_state_folder_that_cannot_be_is_named(
    hibali: Any, env: dict[str, str], code: str, ends: Exit
) -> None:
    answer = hibali("history", "--json", env=env, exit=int(ends))
    assert answer.last["code"] == code
    assert env["HIBALI_STATE"] in answer.last["about"]
