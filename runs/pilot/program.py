"""Run tasks inside an allocation with HyperQueue; sent to the site, Python 3.9, standard library only.

`python3 -I - --check LIBRARY SHA256` says whether HyperQueue can be loaded there. `python3 -I program.py JOB MASK`, in the folder of a
chunk, runs what is left of its `tasks`: each that has no record of its own end, at most as many at once as the allocation has
cores. It ends with 0 when all of them have ended, with 75 when something is left for the next allocation.

What it did is in `journal.jsonl` there, each line on disk before it goes on: which tasks began, which ended, and which left no
record although they are over. The truth about an end is the task's own `exit.json`.
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

LEFT, BROKEN = 75, 70  # sysexits.h: EX_TEMPFAIL, EX_SOFTWARE
ENDS = frozenset(("", "cancel"))  # what a record says in place of a signal when the tool ended by itself
JOURNAL_SECONDS = 0.25  # what happens within them is one line, and one fsync
LOOK_SECONDS = 2.0
FAREWELL_SECONDS = 20.0
LARGEST = 1 << 16
_CORES = ("SLURM_CPUS_ON_NODE", "NCPUS", "NSLOTS", "LSB_DJOB_NUMPROC")


class Journal:
    """Lines that are on disk when they were noted."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)

    def note(self, kind: str, **fields: Any) -> None:
        """One more line."""
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = json.dumps({"schema": 1, "kind": kind, "at": at, **fields}, separators=(",", ":"))
        os.write(self._file, line.encode("ascii") + b"\n")
        os.fsync(self._file)


class Wish:
    """That it should end, and why: the first signal that came."""

    because = ""

    def hear(self, number: int, _: object) -> None:
        """As a handler of signals."""
        self.because = self.because or signal.Signals(number).name


def load(path: str, digest: str) -> Any:
    """HyperQueue, from a file of that sha256 and no other."""
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


def count_cores(asked: int | None) -> int:
    """As many as the scheduler says this node gives the job, else as were asked for; never more than there are for us."""
    there = len(os.sched_getaffinity(0))
    told = next((int(text) for name in _CORES if (text := os.environ.get(name, "")).isdigit()), None)
    return max(1, min(there, told or asked or there))


class Tasks:
    """The tasks of a run in their folders."""

    def __init__(self, root: str, numbers: list[int]) -> None:
        self.root = root
        self.run = os.path.basename(root)
        self.numbers = numbers

    def folder(self, number: int) -> str:
        """Where its files lie."""
        return os.path.join(self.root, "tasks", str(number))

    def has_ended(self, number: int) -> bool:
        """Whether its own record says so; one of a tool that was told to stop is no end."""
        try:
            with open(os.path.join(self.folder(number), "exit.json"), "rb") as file:
                found = json.loads(file.read(LARGEST))
            return (
                found["run"] == f"{self.run}/{number}"
                and isinstance(found["code"], int)
                and found["signal"] in ENDS
            )
        except (OSError, ValueError, LookupError, TypeError):
            return False

    def make_clean(self, number: int) -> None:
        """The folder as it was laid ready, whatever an earlier allocation began there: that goes aside, but for what the tool wrote.

        `started` goes last: until then whoever comes next does all of it again.
        """
        folder = self.folder(number)
        begun = [name for name in ("exit.json", "started") if os.path.lexists(os.path.join(folder, name))]
        if not begun and os.path.isdir(os.path.join(folder, "work")):
            return
        aside = self._make_aside(folder)
        for name in ("exit.json.partial", "exit.json", "again", "stdout", "stderr", "work", "inputs"):
            with contextlib.suppress(FileNotFoundError):
                os.rename(os.path.join(folder, name), os.path.join(aside, name))
        self._lay_ready(folder)
        with contextlib.suppress(FileNotFoundError):
            os.rename(os.path.join(folder, "started"), os.path.join(aside, "started"))
        for name in ("work", "inputs"):
            shutil.rmtree(os.path.join(aside, name), ignore_errors=True)

    def _make_aside(self, folder: str) -> str:
        number = 1
        while True:
            aside = os.path.join(folder, f"earlier-{number}")
            try:
                os.mkdir(aside, 0o700)
            except FileExistsError:
                number += 1
            else:
                return aside

    def _lay_ready(self, folder: str) -> None:
        """`work` and `inputs` as the launch made them: `pristine.json` has what was in them, where there was anything."""
        os.mkdir(os.path.join(folder, "work"), 0o700)
        try:
            with open(os.path.join(folder, "pristine.json"), "rb") as file:
                pristine = json.loads(file.read())
        except FileNotFoundError:
            return
        for source, target in pristine["copies"]:
            path = self._place(folder, target)
            words = [b"cp", b"-R", b"--reflink=auto", b"--no-preserve=mode", b"--"]
            subprocess.run([*words, base64.b64decode(source), path], check=True, stdin=subprocess.DEVNULL)
        for target, content in pristine["files"]:
            path = self._place(folder, target)
            with open(
                os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb"
            ) as file:
                file.write(base64.b64decode(content))

    def _place(self, folder: str, target: str) -> bytes:
        """The path of what has that name in the folder, with the folders above it."""
        path = os.path.join(os.fsencode(folder), base64.b64decode(target))
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        return path


def end_orphans(root: str, numbers: list[int]) -> None:
    """End what an allocation before this one left at work on this node, in the folders of these tasks, with all below it."""
    folders = {os.path.join(root, "tasks", str(number)) for number in numbers}
    parents: dict[int, int] = {}
    doomed: set[int] = set()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{name}/stat", "rb") as file:
                parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
            where = os.readlink(f"/proc/{name}/cwd").split(os.sep)
            depth = root.count(os.sep) + 3
            if os.sep.join(where[:depth]) in folders:
                doomed.add(int(name))
    more = doomed
    while more:
        more = {child for child, parent in parents.items() if parent in more} - doomed
        doomed |= more
    for pid in doomed:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + FAREWELL_SECONDS
    while time.monotonic() < deadline and any(is_alive(pid) for pid in doomed):
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in {b"Z", b"X"}
    except (OSError, IndexError):
        return False


class Cluster:
    """HyperQueue's server and its one worker, in this very process; the key to them lies in a folder that is ours alone."""

    def __init__(self, library: Any, folder: str, private: str, cores: int) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        os.mkdir(folder, 0o700)
        self._folder = folder
        before = os.environ.get("TMPDIR")
        os.environ["TMPDIR"] = private  # where its worker's socket goes
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
        self, tasks: Tasks, numbers: list[int], script: str, cores: int, given: dict[str, str]
    ) -> None:
        """Every one of them; HyperQueue's own number of a task is ours."""
        request = SimpleNamespace(n_nodes=0, resources={"cpus": cores}, min_time=None)
        described = [
            SimpleNamespace(
                id=number,
                args=["/bin/sh", script, str(number)],
                cwd=tasks.folder(number),
                stdout=None,
                stderr=None,
                stdin=None,
                env=given,
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
        """The tasks whose script did not come to its end: it was killed, or never started."""
        told = self._library.get_failed_tasks(self._client, self._jobs)
        return {number for some in told.values() for number in some}

    def stop(self) -> None:
        """End both; the key is gone when this returns."""
        with contextlib.suppress(BaseException):  # a panic there is no exception here
            self._cluster.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


class Watch:
    """What the tasks tell through the pipe, into the journal."""

    def __init__(self, tasks: Tasks, left: list[int], journal: Journal, pipe: int) -> None:
        self._tasks = tasks
        self._journal = journal
        self._pipe = pipe
        self._rest = b""
        self._noted = time.monotonic()
        self._begun: list[int] = []
        self._ended: list[int] = []
        self._broken: list[int] = []
        self.left = set(left)
        self.unfinished: set[int] = set()
        self.running: dict[int, int] = {}

    def listen(self, seconds: float) -> None:
        """Take what is told within so many seconds."""
        if select.select([self._pipe], [], [], seconds)[0]:
            *lines, self._rest = (self._rest + os.read(self._pipe, LARGEST)).split(b"\n")
            for line in lines:
                with contextlib.suppress(ValueError, IndexError):
                    self._take(line)
        if time.monotonic() - self._noted >= JOURNAL_SECONDS:
            self.note()

    def _take(self, line: bytes) -> None:
        """`b NUMBER PID`, `e NUMBER`. What is over without a record of its own end is for the next allocation."""
        word, *rest = line.split()
        number, *pid = [int(each) for each in rest]
        if word == b"b":
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

    def take_failed(self, failed: set[int]) -> None:
        """Those that are over without a word."""
        for number in failed & self.left:
            self._leave(number)
            (self._ended if self._tasks.has_ended(number) else self._broken).append(number)

    def note(self) -> None:
        """What happened since the last line."""
        self._noted = time.monotonic()
        told = {"begun": self._begun, "ended": self._ended, "broken": self._broken}
        if any(told.values()):
            self._journal.note("tasks", **{name: some for name, some in told.items() if some})
        self._begun, self._ended, self._broken = [], [], []


class Allocation:
    """One job's share of the work: its chunk, whose folder this process is in."""

    def __init__(self, job: str, mask: str) -> None:
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
        self._given = {"HIBALI_JOB": job, "HIBALI_MASK": mask, "HIBALI_HOST": host}
        self._job = job
        self._wish = Wish()

    def run(self) -> int:
        """Do all that is left; the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, self._wish.hear)
        cores = count_cores(self._plan["asked"])
        with contextlib.suppress(FileNotFoundError):
            os.unlink("stop")  # of an earlier start of this very job
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
            self._tasks.make_clean(each)
        unfinished = self._work(library, cores, left) if left else 0
        because = self._wish.because or self._fence() or ("done" if not unfinished else "unfinished")
        self._journal.note("stopped", because=because, left=unfinished)
        return LEFT if unfinished else 0

    def _work(self, library: Any, cores: int, left: list[int]) -> int:
        """How many tasks are left when this returns."""
        with private_folder() as private:
            pipe = os.path.join(private, "told")
            os.mkfifo(pipe, 0o600)
            reading = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
            watch = Watch(self._tasks, left, self._journal, reading)
            cluster = Cluster(library, os.path.join(self._here, "hq"), private, cores)
            try:
                script = os.path.join(self._here, "task.sh")
                each = min(self._plan["cores"], cores)
                cluster.submit(self._tasks, left, script, each, {**self._given, "HIBALI_TOLD": pipe})
                self._follow(watch, cluster)
                self._bid_farewell(watch)
            finally:
                watch.note()
                cluster.stop()
            return len(watch.left) + len(watch.unfinished)

    def _follow(self, watch: Watch, cluster: Cluster) -> None:
        """Until all are over, or it has to end."""
        looked = time.monotonic()
        while watch.left and not self._wish.because:
            watch.listen(JOURNAL_SECONDS)
            if time.monotonic() - looked >= LOOK_SECONDS:
                looked = time.monotonic()
                failed = cluster.failed()
                watch.listen(0.0)  # a task that told its end before it was killed has told it by now
                watch.take_failed(failed)
                if self._fence():
                    return

    def _fence(self) -> str:
        """Why nothing may begin any more: the next allocation is there."""
        return "continued elsewhere" if os.path.exists(f"../{self._chunk + 1}") else ""

    def _bid_farewell(self, watch: Watch) -> None:
        """Nothing begins any more; what runs is told to end, and has some time for its record."""
        if not watch.left:
            return
        with open("stop", "wb"):
            pass
        told: set[int] = set()
        deadline = time.monotonic() + FAREWELL_SECONDS
        quiet = (
            time.monotonic() + 2 * JOURNAL_SECONDS
        )  # what was on its way when `stop` was made tells of itself
        while time.monotonic() < deadline and (watch.running or time.monotonic() < quiet):
            for number, pid in watch.running.items():
                if pid not in told and is_in(pid, self._tasks.folder(number)):
                    os.kill(pid, signal.SIGTERM)
                told.add(pid)
            watch.listen(JOURNAL_SECONDS)
        for number, pid in watch.running.items():
            if is_in(pid, self._tasks.folder(number)):
                with contextlib.suppress(OSError):
                    os.killpg(pid, signal.SIGKILL)


def is_in(pid: int, folder: str) -> bool:
    """Whether it is a process whose current folder this is: numbers are used again."""
    try:
        return os.readlink(f"/proc/{pid}/cwd") == folder
    except OSError:
        return False


def read_broken(path: str) -> set[int]:
    """The tasks that an earlier start of this job saw killed."""
    found: set[int] = set()
    with open(path, "rb") as file:
        for line in file:
            with contextlib.suppress(ValueError, TypeError, AttributeError):
                found.update(json.loads(line).get("broken", ()))
    return found


@contextlib.contextmanager
def private_folder() -> Iterator[str]:
    """On the node itself, with a short path, as sockets need it."""
    place = "/tmp" if os.access("/tmp", os.W_OK | os.X_OK) else None  # noqa: S108 - made by mkdtemp, 0700
    path = tempfile.mkdtemp(prefix="hibali-", dir=place)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def main(words: list[str]) -> int:
    """What was asked for; the exit code."""
    if words[0] == "--check":
        print(json.dumps({"hyperqueue": load(words[1], words[2]).get_hq_version()}))
        return 0
    os.umask(0o077)
    return Allocation(words[0], words[1]).run()


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
    except BaseException as problem:  # noqa: BLE001 - a panic in HyperQueue is no Exception
        print(f"hibali: {type(problem).__name__}: {problem}", file=sys.stderr)
        code = BROKEN
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the threads of HyperQueue are not waited for
