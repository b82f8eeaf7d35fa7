"""Test the lock of a target: a living holder is named, the lock of an ended one is replaced, and no files remain."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.services.session import REPOSITORY
from tests.support.agent_root import open_root
from transfers.agent.identity import boot_identifier
from transfers.agent.lease import (
    BorrowedLease,
    Lease,
    LockedError,
    LostLeaseError,
    SharedLease,
    process_start,
)
from transfers.agent.listing import Walk
from transfers.agent.protocol import RefusedError
from transfers.agent.safe_path import Root, Roots

HOLDER = """
import os, sys, time
sys.path.insert(0, sys.argv[2])
from tests.support.agent_root import open_root
from transfers.agent.lease import Lease
Lease(open_root(sys.argv[1]), "the first push", "ada@login1 pid 7", 120)
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Root]:
    found = open_root(tmp_path)
    yield found
    found.close()


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock."""
    words = [sys.executable, "-c", HOLDER, str(tmp_path), str(REPOSITORY)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def acquire(root: Root, seconds: int = 120) -> Lease:
    return Lease(root, "the second push", "bob@login2 pid 8", seconds)


def lock_file(folder: Path) -> Path:
    return folder / ".hibali" / "lock"


def age(path: Path, seconds: float) -> None:
    """Set the age of the lock, as if it had not been renewed."""
    then = time.time() - seconds
    os.utime(path, (then, then))


def rewrite(path: Path, **changes: Any) -> None:
    """Change the lock's content, but not its age."""
    times = path.stat()
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_lock_names_its_holder_and_is_private(root: Root, tmp_path: Path) -> None:
    lease = acquire(root)
    record = json.loads(lock_file(tmp_path).read_text())
    assert record == {
        "version": 1,
        "operation": "the second push",
        "client": "bob@login2 pid 8",
        "token": record["token"],
        "lease": 120,
        "call": "",
        "parent": os.getppid(),
        "host": socket.gethostname(),
        "boot": boot_identifier(),
        "namespace": str(Path("/proc/self/ns/pid").readlink()),
        "pid": os.getpid(),
        "start": process_start(os.getpid()),
    }
    assert lock_file(tmp_path).stat().st_mode & 0o777 == 0o600
    assert lock_file(tmp_path).parent.stat().st_mode & 0o777 == 0o700
    lease.release()


def test_release_removes_all_files_and_may_be_repeated(root: Root, tmp_path: Path) -> None:
    lease = acquire(root)
    lease.release()
    lease.release()
    assert list(tmp_path.iterdir()) == []
    acquire(root).release()


def test_release_keeps_files_of_the_user(root: Root, tmp_path: Path) -> None:
    (tmp_path / ".hibali").mkdir(mode=0o700)
    (tmp_path / ".hibali" / "notes.txt").write_text("mine")
    acquire(root).release()
    assert [path.name for path in (tmp_path / ".hibali").iterdir()] == ["notes.txt"]


def test_living_holder_is_named_and_keeps_the_lock(
    root: Root, tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    with pytest.raises(LockedError) as caught:
        acquire(root)
    assert caught.value.holder["operation"] == "the first push"
    assert caught.value.holder["client"] == "ada@login1 pid 7"
    assert caught.value.holder["pid"] == holder.pid
    assert 0 <= caught.value.age < 60
    assert [path.name for path in lock_file(tmp_path).parent.iterdir()] == ["lock"], "the attempt left a file"


@pytest.mark.parametrize("seen", ["pid:[1]", None])
def test_holder_in_another_container_keeps_its_lease(
    root: Root, tmp_path: Path, holder: subprocess.Popen[str], seen: str | None
) -> None:
    rewrite(lock_file(tmp_path), namespace=seen, start="1")
    with pytest.raises(LockedError):
        acquire(root)
    age(lock_file(tmp_path), 121)
    acquire(root).release()
    assert holder.poll() is None


def test_holder_hidden_from_proc_counts_as_running(
    root: Root, holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many login nodes mount /proc so that it hides the processes of other accounts (proc(5), hidepid)."""
    monkeypatch.setattr("transfers.agent.lease.process_start", lambda _: "")
    with pytest.raises(LockedError):
        acquire(root)
    holder.kill()
    holder.wait()
    acquire(root).release()


def test_lock_of_killed_holder_is_replaced(root: Root, tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    lease = acquire(root)
    assert json.loads(lock_file(tmp_path).read_text())["pid"] == os.getpid()
    lease.release()
    assert list(tmp_path.iterdir()) == []


def test_a_holder_whose_client_has_gone_is_awaited(
    root: Root, tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    """The agent of a killed command finishes its current work: the same command, run again at once, must not end with `locked`."""
    with pytest.raises(LockedError):
        acquire(root)  # at once: its parent runs
    rewrite(lock_file(tmp_path), parent=1 if os.getpid() != 1 else 2)
    ending = threading.Timer(0.3, holder.kill)
    ending.start()
    acquire(root).release()
    ending.join()


@pytest.mark.usefixtures("holder")
def test_reused_pid_is_not_the_holder(root: Root, tmp_path: Path) -> None:
    rewrite(lock_file(tmp_path), pid=os.getppid(), start="1")
    acquire(root).release()


@pytest.mark.parametrize(
    "changes",
    [
        {"host": "another-login-node", "pid": 2**22 + 1},
        {"boot": "another-boot", "pid": 2**22 + 1},
        {"boot": "", "pid": 2**22 + 1},
    ],
)
@pytest.mark.usefixtures("holder")
def test_pid_of_another_host_or_boot_is_ignored(root: Root, tmp_path: Path, changes: dict[str, Any]) -> None:
    """Only the lease decides about a holder on another host or before a reboot."""
    rewrite(lock_file(tmp_path), **changes)
    with pytest.raises(LockedError):
        acquire(root)
    age(lock_file(tmp_path), 119)
    with pytest.raises(LockedError):
        acquire(root)
    age(lock_file(tmp_path), 125)
    acquire(root).release()


@pytest.mark.usefixtures("holder")
def test_lease_duration_is_that_of_the_holder(root: Root, tmp_path: Path) -> None:
    rewrite(lock_file(tmp_path), lease=10)
    age(lock_file(tmp_path), 15)
    acquire(root, 1000).release()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not json",
        '{"lease": NaN}',
        '{"lease": 1e300}',
        '{"lease": -1}',
        "[]",
        '"x"',
        "{}",
        "\u00e9",
        '{"lease": "never", "pid": []}',
        "[" * 60_000,
    ],
)
def test_invalid_lock_is_valid_for_the_default_lease(root: Root, tmp_path: Path, text: str) -> None:
    (tmp_path / ".hibali").mkdir(mode=0o700)
    lock_file(tmp_path).write_text(text)
    with pytest.raises(LockedError):
        acquire(root)
    age(lock_file(tmp_path), 500)
    acquire(root).release()
    assert list(tmp_path.iterdir()) == []


def test_symlink_as_lock_is_not_followed(root: Root, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("{}")
    age(target, 500)
    (tmp_path / ".hibali").mkdir(mode=0o700)
    lock_file(tmp_path).symlink_to(target)
    with pytest.raises(RefusedError, match="not a regular file"):
        acquire(root)
    assert target.read_text() == "{}"


def test_reject_lock_folder_that_others_can_write(root: Root, tmp_path: Path) -> None:
    (tmp_path / ".hibali").mkdir()
    (tmp_path / ".hibali").chmod(0o777)
    with pytest.raises(RefusedError):
        acquire(root)
    assert list((tmp_path / ".hibali").iterdir()) == []


def test_lost_lease_is_reported_and_next_holder_keeps_the_lock(root: Root, tmp_path: Path) -> None:
    first = acquire(root)
    first.check()
    age(lock_file(tmp_path), 500)
    second = acquire(root)
    with pytest.raises(LostLeaseError):
        first.check()
    first.release()
    second.check()
    assert lock_file(tmp_path).exists()
    second.release()
    assert list(tmp_path.iterdir()) == []


def test_holder_stops_after_its_lease_expired(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = acquire(root)
    now = time.monotonic()
    monkeypatch.setattr("transfers.agent.lease.time.monotonic", lambda: now + 100)
    with pytest.raises(LostLeaseError):
        lease.check()
    monkeypatch.undo()
    lease.release()


def test_lease_is_renewed_automatically(root: Root, tmp_path: Path) -> None:
    lease = acquire(root, 2)  # renewed every third of a second
    age(lock_file(tmp_path), 1.5)
    before = lock_file(tmp_path).stat().st_mtime
    until = time.monotonic() + 10
    while lock_file(tmp_path).stat().st_mtime == before:
        assert time.monotonic() < until, "the lease was not renewed"
        time.sleep(0.05)
    lease.release()


def test_files_of_killed_lockers_are_not_listed_and_removed_by_the_next_lock(
    root: Root, tmp_path: Path
) -> None:
    own = tmp_path / ".hibali"
    own.mkdir(mode=0o700)
    for name in ("lock." + "0" * 32, "broken." + "f" * 32, "lock.txt"):
        (own / name).write_text("{}")
    assert [record.path for _, records in Walk(root) for record in records] == [b".hibali/lock.txt"]
    acquire(root).release()
    assert [path.name for path in own.iterdir()] == ["lock.txt"], "a user's own file stays"


def test_concurrent_lockers_exclude_each_other(root: Root, tmp_path: Path) -> None:
    wrong: list[BaseException] = []
    held: list[int] = []
    acquired = [0] * 4

    def work(index: int) -> None:
        for _ in range(40):
            try:
                lease = acquire(root)
                held.append(index)
                acquired[index] += 1
                if len(held) != 1:
                    wrong.append(AssertionError("two hold it"))
                held.pop()
                lease.release()
            except LockedError:
                continue
            except BaseException as problem:  # noqa: BLE001 - shown by the test's own thread
                wrong.append(problem)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(acquired))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert sum(acquired) > 0
    assert list(tmp_path.iterdir()) == []


def test_only_one_process_replaces_a_stale_lock(root: Root, tmp_path: Path) -> None:
    acquire(root)  # not released: its lease expires below
    age(lock_file(tmp_path), 500)
    barrier = threading.Barrier(8)
    acquired: list[Lease] = []
    wrong: list[BaseException] = []

    def work() -> None:
        barrier.wait()
        try:
            acquired.append(acquire(root))
        except LockedError:
            pass
        except BaseException as problem:  # noqa: BLE001 - shown by the test's own thread
            wrong.append(problem)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(acquired) == 1
    acquired[0].check()
    acquired[0].release()
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_was_handed_over_stays_for_jobs_and_is_adopted(root: Root) -> None:
    first = acquire(root)
    first.hand_over()
    first.leave()
    job = SharedLease(root, first.token)
    with pytest.raises(LockedError):
        acquire(root)
    adopted = Lease(root, "the second push", "bob@login2 pid 8", adopt=first.token)
    job.check()
    adopted.release()
    with pytest.raises(LostLeaseError):
        job.check()


def test_a_lock_is_lost_when_another_folder_is_at_the_path_of_its_target(tmp_path: Path) -> None:
    """At a login node, at its other agents and at compute nodes."""
    path = os.fsencode(tmp_path / "target")
    (tmp_path / "target").mkdir()
    root, root_of_job = (Roots(()).open(path).root(path) for _ in range(2))
    held = acquire(root)
    leases = [held, BorrowedLease(root, held.token), SharedLease(root_of_job, held.token)]
    for lease in leases:
        lease.check()
    (tmp_path / "target").rename(tmp_path / "former")
    for makes in (False, True):
        if makes:
            (tmp_path / "target").mkdir()
        for lease in leases:
            with pytest.raises(LostLeaseError, match="target was renamed, replaced or unmounted"):
                lease.check()
    held.release()
    assert not any((tmp_path / "former").iterdir())
    root.close()


def test_the_lock_of_jobs_that_are_silent_expires(root: Root, tmp_path: Path) -> None:
    first = acquire(root)
    first.hand_over()
    first.leave()
    job = SharedLease(root, first.token)
    os.utime(tmp_path / ".hibali/lock", (1, 1))
    other = acquire(root)
    with pytest.raises(LostLeaseError):
        job.check()
    with pytest.raises(LockedError):
        Lease(root, "the first push", "ada@login1 pid 7", adopt=first.token)
    other.release()


@pytest.mark.parametrize(
    "make",
    [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("x")],
    ids=["FIFO", "folder", "symlink"],
)
def test_an_entry_that_is_no_file_has_the_name_of_the_lock(
    root: Root, tmp_path: Path, make: Callable[[Path], object]
) -> None:
    lock_file(tmp_path).parent.mkdir(mode=0o700)
    make(lock_file(tmp_path))
    with pytest.raises(RefusedError, match=r"\.hibali/lock. there is not a regular file") as refused:
        acquire(root)
    assert refused.value.code == "reserved-name"
    assert [path.name for path in lock_file(tmp_path).parent.iterdir()] == ["lock"]
