"""Hold the lease lock of a target, take over that of a dead holder (S6), and end stale agents."""

import contextlib
import errno
import hashlib
import json
import os
import signal
import stat
import threading
import time
from typing import Any, Dict, List, Optional, Tuple

from transfers.agent import protocol
from transfers.agent.identity import boot_identifier
from transfers.agent.protocol import LEASE_SECONDS, RUNNING, RefusedError, seconds_of
from transfers.agent.safe_path import Root

_LOCK = b"lock"
_LIMIT = 64 * 1024
_REPLACING_SECONDS = 60  # a process that needs longer to replace a dead lock counts as dead, too
_TRIES = 20


class LockedError(Exception):
    """Another client holds the target; `holder` is the content of its lock."""

    def __init__(self, holder: Dict[str, Any], age: float) -> None:
        super(LockedError, self).__init__("locked")
        self.holder = holder
        self.age = age


class LostLeaseError(Exception):
    """The lock was lost: the process must stop writing."""


_STATE, _PARENT, _START = 0, 1, 19  # of what follows a process's name in /proc/PID/stat (proc(5))


def _status(pid: int, field: int) -> str:
    """Return a field of a process's status; empty if it ended."""
    try:
        with open("/proc/{}/stat".format(pid), "rb") as stream:
            return stream.read().rpartition(b")")[2].split()[field].decode("ascii")
    except (OSError, IndexError):
        return ""


def process_start(pid: int) -> str:
    """Return a process's start in clock ticks after boot; empty if it ended."""
    return _status(pid, _START)


def process_namespace() -> str:
    """Return the pid namespace: a container sees other processes than its host (pid_namespaces(7))."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def this_process() -> Dict[str, Any]:
    """Return what others need to decide whether this process has ended."""
    pid = os.getpid()
    return {
        "host": os.uname().nodename,
        "boot": boot_identifier(),
        "namespace": process_namespace(),
        "pid": pid,
        "start": process_start(pid),
    }


class Lease(object):
    """The lock file `.hibali/lock` of one target, held by this process and renewed by its own thread."""

    def __init__(
        self,
        root: Root,
        operation: str,
        client: str,
        seconds: int = LEASE_SECONDS,
        call: str = "",
        adopt: str = "",
    ) -> None:
        """Acquire the lock, even of a dead holder; raises `LockedError`, OSError.

        `call` is the client's mark, `adopt` the token of a lock that an earlier call of the client handed over.
        """
        self._root = root.clone()
        self._adopt = adopt
        self._handed_over = False
        self._seconds = seconds
        self.token = adopt or os.urandom(16).hex()
        self._renewed = time.monotonic()
        self._ended = threading.Event()
        record: Dict[str, Any] = {
            "version": 1,
            "operation": operation,
            "client": client,
            "token": self.token,
            "lease": seconds,
            "call": call,
            "parent": os.getppid(),
        }
        record.update(this_process())
        self._record = record
        try:
            self._acquire(record)
        except BaseException:
            self._root.close()
            raise
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()

    def _acquire(self, record: Dict[str, Any]) -> None:
        """Acquire the lock; retry if another holder's release removes `.hibali` meanwhile."""
        for left in reversed(range(_TRIES)):
            try:
                self._folder = self._open_folder()
                self._create_lock(record)
                return
            except FileNotFoundError:
                if not left:
                    raise
                self._root.forget(protocol.OWN_FOLDER)

    def _open_folder(self) -> int:
        """Open `.hibali` below the root; create it with mode 0700."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(protocol.OWN_FOLDER, 0o700, dir_fd=self._root.descriptor)
        try:
            descriptor = self._root.folder(protocol.OWN_FOLDER)
        except NotADirectoryError:
            raise RefusedError(
                "reserved-name", "`.hibali` at the target is not a folder, and hibali needs this name"
            ) from None
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise RefusedError(
                "not-private", "`.hibali` at the target belongs to another account, or others can write to it"
            )
        return descriptor

    def _create_lock(self, record: Dict[str, Any]) -> None:
        """Create the lock by link(2), which is atomic on NFS too (open(2), O_EXCL)."""
        name = b"lock." + self.token.encode("ascii")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, 0o600, dir_fd=self._folder)
        try:
            os.write(descriptor, json.dumps(record).encode("ascii") + b"\n")
            os.fsync(descriptor)
            clock = os.fstat(descriptor).st_mtime
        finally:
            os.close(descriptor)
        try:
            for _ in range(3):
                try:
                    os.link(
                        name, _LOCK, src_dir_fd=self._folder, dst_dir_fd=self._folder, follow_symlinks=False
                    )
                    self._remove_leftovers()
                    return
                except FileExistsError:
                    if self._replace_dead(name, clock):
                        self._remove_leftovers()
                        return
            raise LockedError({}, 0.0)
        finally:
            self._unlink(name)

    def _remove_leftovers(self) -> None:
        """Remove files of processes that were killed while acquiring the lock; a running one retries."""
        for name in map(os.fsencode, os.listdir(self._folder)):
            if protocol.is_lock_part(name):
                self._unlink(name)

    def _unlink(self, name: bytes) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._folder)

    def _replace_dead(self, name: bytes, clock: float) -> bool:
        """Replace the lock of an ended holder; `clock` is this filesystem's time. Raises `LockedError`.

        A marker named after the dead token lets one process at a time replace that very lock, and the lock is
        never absent meanwhile, so that no other process can link one in between.
        """
        holder = self._read(_LOCK)
        if holder is None:
            return False
        age = clock - holder["mtime"]
        adopted = bool(self._adopt) and holder.get("token") == self._adopt
        if not (adopted or ends(holder) or age > seconds_of(holder)):
            raise LockedError(holder, age)
        token = str(holder.get("token")).encode("utf-8", "replace")
        marker = b"broken." + hashlib.sha256(token).hexdigest()[:32].encode("ascii")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            os.close(os.open(marker, flags, 0o600, dir_fd=self._folder))
        except FileExistsError:
            found = self._read(marker)
            if found is not None and clock - found["mtime"] > _REPLACING_SECONDS:
                self._unlink(marker)
            raise LockedError(holder, age) from None
        try:
            found = self._read(_LOCK)
            if found is None or found.get("token") != holder.get("token"):
                return False
            os.rename(name, _LOCK, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        finally:
            self._unlink(marker)
        return True

    def _read(self, name: bytes) -> Optional[Dict[str, Any]]:
        return read_record(self._folder, name)

    def check(self) -> None:
        """Raise `LostLeaseError` unless this process still holds the lock and renewed it in time."""
        if time.monotonic() - self._renewed > self._seconds * 0.75:
            raise LostLeaseError("the lease expired")
        check_holder(self._root, self._folder, self.token)

    def is_held(self) -> bool:
        """Return whether this process still holds the lock."""
        try:
            self.check()
        except (OSError, RefusedError, LostLeaseError):
            return False
        return True

    def _renew(self) -> None:
        while not self._ended.wait(self._seconds / 6.0):
            try:
                self.check()
                began = time.monotonic()
                os.utime(_LOCK, dir_fd=self._folder, follow_symlinks=False)
                self._renewed = began
            except (OSError, RefusedError, LostLeaseError):
                return

    def hand_over(self) -> None:
        """Let jobs of the same operation keep the lock after this process: from now on only its age shows that its holder has ended."""
        self.check()
        record = dict(self._record, host="", boot="", namespace="", pid=0, start="")
        name = b"lock." + os.urandom(16).hex().encode("ascii")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, 0o600, dir_fd=self._folder)
        try:
            os.write(descriptor, json.dumps(record).encode("ascii") + b"\n")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(name, _LOCK, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        self._handed_over = True

    def leave(self) -> None:
        """Release the lock, unless it was handed over; then only stop renewing it."""
        if self._handed_over:
            self._ended.set()
        else:
            self.release()

    def release(self) -> None:
        """Release the lock and remove its files; safe to call twice."""
        if self._ended.is_set():
            return
        self._ended.set()
        try:
            found = self._read(_LOCK)
            if found is not None and found.get("token") == self.token:
                os.unlink(_LOCK, dir_fd=self._folder)
            os.rmdir(protocol.OWN_FOLDER, dir_fd=self._root.descriptor)
        except (OSError, RefusedError):
            # A journal for the next run, or a user's own files, may remain; the lock itself expires.
            pass
        self._root.close()


class BorrowedLease(object):
    """The lease of another agent of the same client: checked, never renewed or released."""

    def __init__(self, root: Root, token: str) -> None:
        self._root = root
        self._folder = os.dup(root.folder(protocol.OWN_FOLDER))
        self.token = token

    def check(self) -> None:
        """Raise `LostLeaseError` unless that agent holds the lock; it checks the renewal itself."""
        check_holder(self._root, self._folder, self.token)


class SharedLease(BorrowedLease):
    """A lease that was handed over, which every process that uses it renews; for several threads."""

    def __init__(self, root: Root, token: str) -> None:
        """Raises `LostLeaseError` if another client holds the lock by now."""
        super(SharedLease, self).__init__(root, token)
        self._seconds = seconds_of(read_record(self._folder, _LOCK) or {})
        self._renewed = float("-inf")
        self._guard = threading.Lock()
        self.check()

    def check(self) -> None:
        """Raise `LostLeaseError` unless the lock still has this token; renew it if that is due."""
        with self._guard:
            super(SharedLease, self).check()
            now = time.monotonic()
            if now - self._renewed > self._seconds / 6.0:
                os.utime(_LOCK, dir_fd=self._folder, follow_symlinks=False)
                self._renewed = now


def check_holder(root: Root, folder: int, token: str) -> None:
    """Raise `LostLeaseError` unless the lock in `folder` has this token and is still below the root, at its path."""
    found = read_record(folder, _LOCK)
    if found is None or found.get("token") != token:
        raise LostLeaseError("another client holds the lock")
    try:
        existing = os.stat(protocol.OWN_FOLDER, dir_fd=root.descriptor, follow_symlinks=False)
    except FileNotFoundError:
        raise LostLeaseError("the lock was removed") from None
    if not os.path.samestat(existing, os.fstat(folder)):
        raise LostLeaseError("the lock was removed")
    if not root.leads_to():
        raise LostLeaseError(
            "{} was renamed, replaced or unmounted, so hibali stopped writing".format(
                root.path.decode("utf-8", "replace")
            )
        )


def living_holder(folder: int, clock: float) -> Optional[Tuple[Dict[str, Any], float]]:
    """Return the lock's holder and its age by `clock`; None if it has ended. Raises OSError."""
    holder = read_record(folder, _LOCK)
    if holder is None:
        return None
    age = clock - holder["mtime"]
    return None if ends(holder) or age > seconds_of(holder) else (holder, age)


def may_be_held(root: Root, place: bytes) -> bool:
    """Return whether a place below may be locked, whatever its clock: no proof that the holder ended."""
    try:
        holder = read_record(root.folder(place + b"/" + protocol.OWN_FOLDER), _LOCK)
    except (OSError, RefusedError):
        return False
    return holder is not None and not has_ended(holder)


def read_record(folder: int, name: bytes) -> Optional[Dict[str, Any]]:
    """Return a lock's record with its mtime, None if absent; an invalid record has only its age.

    Raises OSError, and RefusedError for anything but a file.
    """
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as problem:
        if problem.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        raise RefusedError("reserved-name", protocol.NO_LOCK_FILE) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise RefusedError("reserved-name", protocol.NO_LOCK_FILE)
        text = os.read(descriptor, _LIMIT)
    finally:
        os.close(descriptor)
    try:
        record = json.loads(text.decode("ascii"))
    except (ValueError, RecursionError):
        record = {}
    if not isinstance(record, dict):
        record = {}
    record["mtime"] = status.st_mtime
    return record


def has_ended(holder: Dict[str, Any]) -> bool:
    """Return whether the holder provably ended: same host and boot, and its pid is not that process.

    Returns False if its processes are not visible (another container, restricted /proc).
    """
    if not is_visible_here(holder):
        return False
    pid, start = holder["pid"], holder["start"]
    return process_start(pid) != start and (bool(process_start(pid)) or not _exists(pid))


def ends(holder: Dict[str, Any]) -> bool:
    """Return whether the holder has ended; wait for one whose client has gone, which finishes its current work.

    It is the child of another process then: a killed command, and an sshd that lost its connection, leave their agent to init.
    """
    if not is_visible_here(holder) or not holder.get("parent"):
        return has_ended(holder)
    if _status(holder["pid"], _PARENT) in ("", str(holder["parent"])):
        return has_ended(holder)
    _wait([holder], _ENDED_SECONDS)
    return not _runs(holder)


def is_visible_here(holder: Dict[str, Any]) -> bool:
    """Return whether the process that `this_process` describes would be visible from here."""
    here = this_process()
    for name in ("host", "boot", "namespace"):
        # Two machines can have one name: after another boot the lease decides.
        if not here[name] or holder.get(name) != here[name]:
            return False
    pid, start = holder.get("pid"), holder.get("start")
    return isinstance(pid, int) and pid >= 1 and bool(start)


def _exists(pid: int) -> bool:
    """Return whether a process with this pid exists, visible or not (kill(2), signal 0)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


ENDED = "gone"
ELSEWHERE = "elsewhere"  # on another machine, or where its processes are not visible

_GRACE_SECONDS = 1.0  # an agent whose client disconnected finishes its current work
_ENDED_SECONDS = 10.0
_POLL_SECONDS = 0.02


def end_stale_agents(stale_agents: List[Dict[str, Any]]) -> List[str]:
    """End these agents, each given by host, boot, namespace, pid and start; return the state of each.

    A process with the same pid but another start is not touched.
    """
    here = [stale_agent for stale_agent in stale_agents if is_visible_here(stale_agent)]
    _wait(here, _GRACE_SECONDS)
    for stale_agent in here:
        _kill(stale_agent)
    _wait(here, _ENDED_SECONDS)
    return [
        (RUNNING if _runs(stale_agent) else ENDED) if is_visible_here(stale_agent) else ELSEWHERE
        for stale_agent in stale_agents
    ]


def _wait(stale_agents: List[Dict[str, Any]], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while any(_runs(stale_agent) for stale_agent in stale_agents) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def _runs(stale_agent: Dict[str, Any]) -> bool:
    """Return whether that process exists and is no zombie, which can do nothing (proc(5), state)."""
    pid = stale_agent["pid"]
    return process_start(pid) == stale_agent["start"] and _status(pid, _STATE) not in ("", "Z", "X")


def _kill(stale_agent: Dict[str, Any]) -> None:
    """Kill through a pidfd where this Python has it: a pid may be reused at any moment (pidfd_open(2))."""
    pid = stale_agent["pid"]
    if pid == os.getpid():
        return
    open_process = getattr(os, "pidfd_open", None)
    send = getattr(signal, "pidfd_send_signal", None)
    with contextlib.suppress(OSError):
        if open_process is None or send is None:
            if _runs(stale_agent):
                os.kill(pid, signal.SIGKILL)
            return
        descriptor = open_process(pid)
        try:
            if _runs(stale_agent):
                send(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)
