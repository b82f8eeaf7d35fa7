"""Run tasks inside an allocation with HyperQueue; sent to the site, Python 3.9, standard library only.

`python3 -I - --check LIBRARY SHA256` checks whether HyperQueue can be loaded there. `python3 -I program.py
JOB MASK CORES`, in the folder of a chunk, runs those of its `tasks` that have no exit record of a complete end, at
most as many at once as the allocation has cores. The exit code is 0 when all of them have ended, 75 when
tasks remain for the next allocation.
It writes `journal.jsonl` there, each line synced to disk before it continues: the tasks that began, that
ended, and that ended without a record. The task's own `exit.json` decides how it ended.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import importlib.machinery
import importlib.util
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

EXIT_UNFINISHED, EXIT_ERROR = 75, 70  # sysexits.h: EX_TEMPFAIL, EX_SOFTWARE
CLEAN_SIGNALS = frozenset(("", "cancel"))  # values of `signal` in a record if the tool ended by itself
JOURNAL_SECONDS = 0.25  # events within this time share one line and one fsync
QUERY_SECONDS = 2.0
GRACE_SECONDS = 20.0
LARGEST = 1 << 16


class Journal:
    """A log of JSON lines, each synced to disk when it is written."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)

    def note(self, kind: str, **fields: Any) -> None:
        """Write one line."""
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = json.dumps({"schema": 1, "kind": kind, "at": at, **fields}, separators=(",", ":"))
        os.write(self._file, line.encode("ascii") + b"\n")
        os.fsync(self._file)


class StopRequest:
    """A request to stop, with its reason: the first signal received."""

    because = ""

    def on_signal(self, number: int, _: object) -> None:
        """Record a signal, as its handler."""
        self.because = self.because or signal.Signals(number).name


def load(path: str, digest: str) -> Any:
    """Load HyperQueue from a file, which must have that sha256."""
    with open(path, "rb") as file:
        found = hashlib.sha256(file.read()).hexdigest()
    if found != digest:
        raise ValueError(f"{path} was changed: its sha256 is {found}")
    loader = importlib.machinery.ExtensionFileLoader("hyperqueue", path)
    spec = importlib.util.spec_from_file_location("hyperqueue", path, loader=loader)
    if spec is None:
        raise ImportError(path)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def count_cores(granted: str, requested: int | None) -> int:
    """Return the usable cores: those that the scheduler grants on this node ("" if unknown), else those requested, else all."""
    available = len(os.sched_getaffinity(0))
    wanted = int(granted) if granted.isdigit() else requested
    return max(1, min(available, wanted or requested or available))


class Tasks:
    """The tasks of a run in their folders."""

    def __init__(self, root: str, numbers: list[int]) -> None:
        self.root = root
        self.run = os.path.basename(root)
        self.numbers = numbers

    def folder(self, number: int) -> str:
        """Return the task's folder."""
        return os.path.join(self.root, "tasks", str(number))

    def has_ended(self, number: int) -> bool:
        """Return whether the task's exit record reports an end; a tool that was stopped has not ended."""
        try:
            with open(os.path.join(self.folder(number), "exit.json"), "rb") as file:
                found = json.loads(file.read(LARGEST))
            return (
                found["run"] == f"{self.run}/{number}"
                and isinstance(found["code"], int)
                and found["signal"] in CLEAN_SIGNALS
            )
        except (OSError, ValueError, LookupError, TypeError):
            return False

    def reset(self, number: int) -> None:
        """Restore the folder's initial state; move an earlier attempt's records and logs aside.

        `started` is moved last: until then the next attempt repeats all steps.
        """
        folder = self.folder(number)
        begun = [name for name in ("exit.json", "started") if os.path.lexists(os.path.join(folder, name))]
        if not begun and os.path.isdir(os.path.join(folder, "work")):
            return
        earlier = self._make_earlier_folder(folder)
        for name in ("exit.json.partial", "exit.json", "again", "stdout", "stderr", "work", "inputs"):
            with contextlib.suppress(FileNotFoundError):
                os.rename(os.path.join(folder, name), os.path.join(earlier, name))
        self._create_folders(folder)
        with contextlib.suppress(FileNotFoundError):
            os.rename(os.path.join(folder, "started"), os.path.join(earlier, "started"))
        for name in ("work", "inputs"):
            shutil.rmtree(os.path.join(earlier, name), ignore_errors=True)

    def _make_earlier_folder(self, folder: str) -> str:
        number = 1
        while True:
            earlier = os.path.join(folder, f"earlier-{number}")
            try:
                os.mkdir(earlier, 0o700)
            except FileExistsError:
                number += 1
            else:
                return earlier

    def _create_folders(self, folder: str) -> None:
        """Create `work` and `inputs` as the launch did: `pristine.json` has their content, if any."""
        os.mkdir(os.path.join(folder, "work"), 0o700)
        try:
            with open(os.path.join(folder, "pristine.json"), "rb") as file:
                pristine = json.loads(file.read())
        except FileNotFoundError:
            return
        for source, target in pristine["copies"]:
            path = self._place(folder, target)
            argv = [b"cp", b"-R", b"--reflink=auto", b"--no-preserve=mode", b"--"]
            subprocess.run([*argv, base64.b64decode(source), path], check=True, stdin=subprocess.DEVNULL)
        for target, content in pristine["files"]:
            path = self._place(folder, target)
            with open(
                os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb"
            ) as file:
                file.write(base64.b64decode(content))

    def _place(self, folder: str, target: str) -> bytes:
        """Return the path of that name in the folder, and create its parent folders."""
        path = os.path.join(os.fsencode(folder), base64.b64decode(target))
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        return path


def end_orphans(root: str, numbers: list[int]) -> None:
    """End processes of an earlier allocation on this node in these tasks' folders, with all descendants."""
    folders = {os.path.join(root, "tasks", str(number)) for number in numbers}
    parents: dict[int, int] = {}
    orphans: set[int] = set()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{name}/stat", "rb") as file:
                parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
            parts = os.readlink(f"/proc/{name}/cwd").split(os.sep)
            depth = root.count(os.sep) + 3
            if os.sep.join(parts[:depth]) in folders:
                orphans.add(int(name))
    more = orphans
    while more:
        more = {child for child, parent in parents.items() if parent in more} - orphans
        orphans |= more
    for pid in orphans:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < deadline and any(is_alive(pid) for pid in orphans):
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in {b"Z", b"X"}
    except (OSError, IndexError):
        return False


class Cluster:
    """HyperQueue's server and its one worker in this process; their key is stored in a private folder."""

    def __init__(self, library: Any, folder: str, private: str, cores: int) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        os.mkdir(folder, 0o700)
        self._folder = folder
        before = os.environ.get("TMPDIR")
        os.environ["TMPDIR"] = private  # the folder of its worker's socket
        try:
            self._library = library
            self._cluster = library.cluster_start(folder)
            self._cluster.add_worker(cores)
            self._client = library.connect_to_server(folder)
        finally:
            if before is None:
                del os.environ["TMPDIR"]
            else:
                os.environ["TMPDIR"] = before
        self._jobs: list[int] = []

    def submit(
        self, tasks: Tasks, numbers: list[int], script: str, cores: int, environment: dict[str, str]
    ) -> None:
        """Submit all tasks; HyperQueue's task ids are the task numbers."""
        request = SimpleNamespace(n_nodes=0, resources={"cpus": cores}, min_time=None)
        described = [
            SimpleNamespace(
                id=number,
                args=["/bin/sh", script, str(number)],
                cwd=tasks.folder(number),
                stdout=None,
                stderr=None,
                stdin=None,
                env=environment,
                dependencies=[],
                task_dir=False,
                priority=0,
                resource_request=[request],
                crash_limit=None,
            )
            for number in numbers
        ]
        job = SimpleNamespace(name=tasks.run, tasks=described, max_fails=None)
        self._jobs.append(self._library.submit_job(self._client, job))

    def failed(self) -> set[int]:
        """Return the tasks whose script did not finish: it was killed, or never started."""
        failed = self._library.get_failed_tasks(self._client, self._jobs)
        return {number for some in failed.values() for number in some}

    def stop(self) -> None:
        """Stop server and worker; the key is removed when this returns."""
        with contextlib.suppress(BaseException):  # a Rust panic is not an Exception
            self._cluster.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


class TaskMonitor:
    """A reader of the tasks' pipe that writes their messages to the journal."""

    def __init__(self, tasks: Tasks, left: list[int], journal: Journal, pipe: int) -> None:
        self._tasks = tasks
        self._journal = journal
        self._pipe = pipe
        self._buffer = b""
        self._noted = time.monotonic()
        self._begun: list[int] = []
        self._ended: list[int] = []
        self._broken: list[int] = []
        self.left = set(left)
        self.unfinished: set[int] = set()
        self.running: dict[int, int] = {}

    def read_messages(self, seconds: float) -> None:
        """Read messages for so many seconds."""
        if select.select([self._pipe], [], [], seconds)[0]:
            *lines, self._buffer = (self._buffer + os.read(self._pipe, LARGEST)).split(b"\n")
            for line in lines:
                with contextlib.suppress(ValueError, IndexError):
                    self._parse(line)
        if time.monotonic() - self._noted >= JOURNAL_SECONDS:
            self.note()

    def _parse(self, line: bytes) -> None:
        """Parse `b NUMBER PID` or `e NUMBER`. The next allocation runs tasks without an exit record."""
        message_kind, *fields = line.split()
        number, *pid = [int(each) for each in fields]
        if message_kind == b"b":
            self.running[number] = pid[0]
            self._begun.append(number)
        elif number in self.left:
            self._leave(number)
            if self._tasks.has_ended(number):
                self._ended.append(number)
            else:
                self.unfinished.add(number)

    def _leave(self, number: int) -> None:
        self.running.pop(number, None)
        self.left.discard(number)

    def record_failed(self, failed: set[int]) -> None:
        """Record the tasks that are over without a message."""
        for number in failed & self.left:
            self._leave(number)
            (self._ended if self._tasks.has_ended(number) else self._broken).append(number)

    def note(self) -> None:
        """Write the events since the last line."""
        self._noted = time.monotonic()
        events = {"begun": self._begun, "ended": self._ended, "broken": self._broken}
        if any(events.values()):
            self._journal.note("tasks", **{name: some for name, some in events.items() if some})
        self._begun, self._ended, self._broken = [], [], []


class Allocation:
    """One job's share of the work: its chunk, whose folder is the current folder."""

    def __init__(self, job: str, mask: str, cores: str = "") -> None:
        here = os.getcwd()
        self._chunk = int(os.path.basename(here))
        self._root = os.path.dirname(os.path.dirname(here))
        self._here = here
        with open("../../pilot/plan.json", "rb") as file:
            self._plan = json.loads(file.read())
        with open("tasks", encoding="ascii") as file:
            self._tasks = Tasks(self._root, [int(line) for line in file])
        self._journal = Journal("journal.jsonl")
        host = re.sub(r"[^A-Za-z0-9._-]", "", socket.gethostname())
        self._environment = {"HIBALI_JOB": job, "HIBALI_MASK": mask, "HIBALI_HOST": host}
        self._job = job
        self._cores = cores
        self._stop_request = StopRequest()

    def run(self) -> int:
        """Run all remaining tasks; return the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, self._stop_request.on_signal)
        cores = count_cores(self._cores, self._plan["asked"])
        with contextlib.suppress(FileNotFoundError):
            os.unlink("stop")  # of an earlier start of this job
        library = load(self._plan["library"], self._plan["sha256"])
        broken = read_broken("journal.jsonl")
        left = [
            each for each in self._tasks.numbers if each not in broken and not self._tasks.has_ended(each)
        ]
        self._journal.note(
            "pilot",
            job=self._job,
            host=socket.gethostname(),
            pid=os.getpid(),
            cores=cores,
            left=len(left),
            hyperqueue=library.get_hq_version(),
        )
        end_orphans(self._root, left)
        for each in left:
            self._tasks.reset(each)
        unfinished = self._work(library, cores, left) if left else 0
        because = (
            self._stop_request.because or self._superseded() or ("done" if not unfinished else "unfinished")
        )
        self._journal.note("stopped", because=because, left=unfinished)
        return EXIT_UNFINISHED if unfinished else 0

    def _work(self, library: Any, cores: int, left: list[int]) -> int:
        """Run tasks; return how many remain."""
        with private_folder() as private:
            pipe = os.path.join(private, "events")
            os.mkfifo(pipe, 0o600)
            reading = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
            monitor = TaskMonitor(self._tasks, left, self._journal, reading)
            cluster = Cluster(library, os.path.join(self._here, "hq"), private, cores)
            try:
                script = os.path.join(self._here, "task.sh")
                each = min(self._plan["cores"], cores)
                cluster.submit(self._tasks, left, script, each, {**self._environment, "HIBALI_TOLD": pipe})
                self._follow(monitor, cluster)
                self._stop_tasks(monitor)
            finally:
                monitor.note()
                cluster.stop()
            return len(monitor.left) + len(monitor.unfinished)

    def _follow(self, monitor: TaskMonitor, cluster: Cluster) -> None:
        """Follow the tasks until all are over, or the allocation has to stop."""
        queried_at = time.monotonic()
        while monitor.left and not self._stop_request.because:
            monitor.read_messages(JOURNAL_SECONDS)
            if time.monotonic() - queried_at >= QUERY_SECONDS:
                queried_at = time.monotonic()
                failed = cluster.failed()
                monitor.read_messages(0.0)  # a killed task's end message has arrived by now
                monitor.record_failed(failed)
                if self._superseded():
                    return

    def _superseded(self) -> str:
        """Return why no task may begin any more: the next allocation has started."""
        return "continued elsewhere" if os.path.exists(f"../{self._chunk + 1}") else ""

    def _stop_tasks(self, monitor: TaskMonitor) -> None:
        """Start no more tasks, stop the running ones, and give them time for their exit records."""
        if not monitor.left:
            return
        with open("stop", "wb"):
            pass
        signalled: set[int] = set()
        deadline = time.monotonic() + GRACE_SECONDS
        # tasks that started just before `stop` was created report themselves
        quiet = time.monotonic() + 2 * JOURNAL_SECONDS
        while time.monotonic() < deadline and (monitor.running or time.monotonic() < quiet):
            for number, pid in monitor.running.items():
                if pid not in signalled and is_in(pid, self._tasks.folder(number)):
                    os.kill(pid, signal.SIGTERM)
                signalled.add(pid)
            monitor.read_messages(JOURNAL_SECONDS)
        for number, pid in monitor.running.items():
            if is_in(pid, self._tasks.folder(number)):
                with contextlib.suppress(OSError):
                    os.killpg(pid, signal.SIGKILL)


def is_in(pid: int, folder: str) -> bool:
    """Return whether the process has this current folder, because process ids are reused."""
    try:
        return os.readlink(f"/proc/{pid}/cwd") == folder
    except OSError:
        return False


def read_broken(path: str) -> set[int]:
    """Return the tasks that an earlier start of this job found killed."""
    found: set[int] = set()
    with open(path, "rb") as file:
        for line in file:
            with contextlib.suppress(ValueError, TypeError, AttributeError):
                found.update(json.loads(line).get("broken", ()))
    return found


@contextlib.contextmanager
def private_folder() -> Iterator[str]:
    """Create a private folder on the node, with a short path, as sockets need it."""
    place = "/tmp" if os.access("/tmp", os.W_OK | os.X_OK) else None  # noqa: S108 - made by mkdtemp, 0700
    path = tempfile.mkdtemp(prefix="hibali-", dir=place)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def main(argv: list[str]) -> int:
    """Run the requested command; return the exit code."""
    if argv[0] == "--check":
        print(json.dumps({"hyperqueue": load(argv[1], argv[2]).get_hq_version()}))
        return 0
    os.umask(0o077)
    return Allocation(*argv).run()


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
    except BaseException as problem:  # noqa: BLE001 - a panic in HyperQueue is no Exception
        print(f"hibali: {type(problem).__name__}: {problem}", file=sys.stderr)
        code = EXIT_ERROR
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # do not wait for HyperQueue's threads
