"""Compare `hibali://` with transfers of the same files: chunks of zarr that are written and read, and one file that is replaced."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import filesystem_program
from benchmarks.case import Brief, Case, Contender, FolderTarget, PreparedCase, ReusedTarget, Target
from benchmarks.peers import REPOSITORY
from benchmarks.samples import Amount, Bar
from benchmarks.testbed import HIBALI, Testbed
from benchmarks.trees import count_tree

_CHUNKS = 20_000
_REPLACED = 1000
_SITE = "files"
_PYTHON = REPOSITORY / ".cache/science/bin/python"
_PROGRAM = (str(_PYTHON), "-P", filesystem_program.__file__)
_MISSING = "" if _PYTHON.exists() else "sh tests/prepare.sh science"


@contextlib.contextmanager
def _site(testbed: Testbed) -> Iterator[tuple[Path, Path]]:
    """Yield a folder of this machine, and the default root of an ssh site on loopback, both on disk."""
    with testbed.temporary_folder("files") as here, testbed.temporary_folder("targets") as there:
        server = testbed.ssh()
        testbed.add_ssh_site(_SITE, server.config, server.host, there)
        yield here, there


def _program(testbed: Testbed, name: str, argv: Callable[[str], list[str]], target: Target) -> Contender:
    return Contender(
        name,
        argv,
        target,
        testbed.environment(testbed.runtime(f"files-{len(name)}")),
        missing=_MISSING if argv("")[0] == _PROGRAM[0] else "",
        warm_up=isinstance(target, ReusedTarget),
    )


def _write_locally(testbed: Testbed, folder: Path, count: int) -> Amount:
    """Write an array of zarr, which the transfers send."""
    words = [*_PROGRAM, "zarr_write", str(folder), str(count), "10"]
    subprocess.run(words, env=testbed.environment(), check=True, stdin=subprocess.DEVNULL)
    return count_tree(folder)


def _url(name: str) -> str:
    return f"hibali://{_SITE}/{name}"


@contextlib.contextmanager
def _written(testbed: Testbed) -> Iterator[PreparedCase]:
    with _site(testbed) as (here, there):
        count = testbed.amount(_CHUNKS, 1).files
        amount = _write_locally(testbed, here / "source", count)
        whole = FolderTarget(there, amount)
        chunks = FolderTarget(there, Amount(count, count * 8 * filesystem_program.CHUNK))
        words = [str(count)]

        def both(run: str) -> list[str]:
            script = '"$1" -P "$2" zarr_write "$3" "$4" 10 && shift 4 && exec "$@"'
            local = [*_PROGRAM[::2], str(here / run), *words]
            return [
                "sh",
                "-c",
                script,
                "sh",
                *local,
                *HIBALI,
                "push",
                "--quiet",
                str(here / run),
                f"{_SITE}:{run}",
            ]

        def zarr(at_a_time: int) -> Callable[[str], list[str]]:
            return lambda run: [*_PROGRAM, "zarr_write", _url(run), *words, str(at_a_time)]

        yield PreparedCase(
            amount,
            [
                _program(
                    testbed,
                    "push",
                    lambda run: [*HIBALI, "push", "--quiet", str(here / "source"), f"{_SITE}:{run}"],
                    whole,
                ),
                _program(testbed, "pipe", lambda run: [*_PROGRAM, "pipe", _url(run), *words, "1"], chunks),
                _program(testbed, "zarr, 128 chunks at a time", zarr(128), whole),
                _program(testbed, "zarr, 10 chunks at a time", zarr(10), whole),
                _program(testbed, "zarr into a folder, then push", both, whole),
            ],
        )


@contextlib.contextmanager
def _read(testbed: Testbed) -> Iterator[PreparedCase]:
    with _site(testbed) as (here, there):
        count = testbed.amount(_CHUNKS, 1).files
        amount = _write_locally(testbed, there / "source", count)
        kept = ReusedTarget(there / "source", amount)

        def zarr(at_a_time: int) -> Callable[[str], list[str]]:
            return lambda _: [*_PROGRAM, "zarr_read", _url("source"), str(count), str(at_a_time)]

        yield PreparedCase(
            amount,
            [
                _program(
                    testbed,
                    "pull",
                    lambda run: [*HIBALI, "pull", "--quiet", f"{_SITE}:source", str(here / run)],
                    kept,
                ),
                _program(testbed, "zarr, 128 chunks at a time", zarr(128), kept),
                _program(testbed, "zarr, 10 chunks at a time", zarr(10), kept),
            ],
        )


@contextlib.contextmanager
def _replaced(testbed: Testbed) -> Iterator[PreparedCase]:
    with _site(testbed) as (here, there):
        amount = Amount(1, 8 * filesystem_program.CHUNK)
        (here / "source").mkdir()
        (here / "source/file").write_bytes(bytes(amount.size))
        words = [str(testbed.amount(_REPLACED, 1).files), "1"]
        remote = FolderTarget(there, amount)
        yield PreparedCase(
            amount,
            [
                _program(
                    testbed,
                    "one push",
                    lambda run: [*HIBALI, "push", "--quiet", str(here / "source"), f"{_SITE}:{run}"],
                    remote,
                ),
                _program(
                    testbed, "hibali://", lambda run: [*_PROGRAM, "overwrite", _url(run), *words], remote
                ),
                _program(
                    testbed,
                    "plain files",
                    lambda run: [*_PROGRAM, "overwrite", str(there / run), *words],
                    remote,
                ),
            ],
        )


CASES = (
    Case(
        "filesystem-write",
        "write {files} through hibali:// over ssh on loopback onto a disk; the programs start in this time",
        _written,
        (
            Bar("pipe: at most 2 times a push", "pipe", 2.0, than=("push",)),
            Bar("zarr: at most 2 times a push", "zarr, 128 chunks at a time", 2.0, than=("push",)),
            Bar(
                "zarr: no slower than into a folder and a push",
                "zarr, 128 chunks at a time",
                1.0,
                than=("zarr into a folder, then push",),
            ),
        ),
        repeats=3,
        brief=Brief(0.25, 1),
    ),
    Case(
        "filesystem-read",
        "read {files} through hibali:// over ssh on loopback",
        _read,
        (Bar("zarr: at most 2 times a pull", "zarr, 128 chunks at a time", 2.0, than=("pull",)),),
        repeats=3,
        brief=Brief(0.25, 1),
    ),
    Case(
        "filesystem-replace",
        "replace {files} 1,000 times through hibali:// over ssh on loopback onto a disk",
        _replaced,
        (Bar("at most 20 times one push", "hibali://", 20.0, than=("one push",)),),
        repeats=3,
        brief=Brief(0.25, 1),
    ),
)
