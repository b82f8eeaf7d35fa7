"""Kill and signal push, pull, sync, run and collect at random moments for a given time: `make soak` (CONTRIBUTING.md).

Every trial starts one command against a real server and causes one fault: a signal to the command, kills of the workers that carry its
files (agents, SFTP servers), a kill of the server, which starts again, or a target or source that is renamed away. Then it checks what users rely on: after a signal the command
ended within two seconds, no partial file has a final name, the source did not change, the same command completes, `verify` finds every file,
a dry run lists no actions, and a run was executed once. The same seed makes the same trials.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hibali.errors import Exit
from tests.end_to_end.run_tools import Bench, doing
from tests.services.fixtures import Hibali, HibaliHome
from tests.services.processes import (
    MARK,
    MissingPackageError,
    ServiceError,
    descendants_of,
    end_all,
    processes_of,
)
from tests.services.session import REPOSITORY, end_session, ensure, new_session
from tests.services.sshd import start_sftp_gateway
from tests.support.backends import PARTIAL, Backend, add_site, make_backend
from tests.support.command_signals import ENDS, LIMIT_SECONDS
from tests.support.restartable_server import RestartableServer, restartable_server
from tests.support.trees import make_tree, many_files, read_tree

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# what else happens to a transfer, and at which stores
_FOLDERS = ("local", "ssh", "sftp")
FAULTS = {"workers": _FOLDERS, "server": ("ssh", "s3"), "target": _FOLDERS, "source": _FOLDERS}
RENAMED = frozenset({"target", "source"})  # the folder that the fault renames away
TRANSFERS = ("push", "pull", "sync")
STORES = ("local", "ssh", "s3", "sftp")
OPERATIONS = ("push", "pull", "sync", "run", "collect")
FAULT_ENDS = {
    0,
    int(Exit.TRY_LATER),
    int(Exit.INCOMPLETE),
    int(Exit.NOT_FOUND),
}  # exit codes after a fault that is not a signal
OUTAGE_SECONDS = 1.0
RESUME_SECONDS = 180.0  # longer than a lease: the lock of a dead holder has expired by then
_TRACE = re.compile(rb"Traceback|Exception ignored")
LARGE_BYTES = 10_000_000
OUTPUT_BYTES = 12_000_000


class ViolationError(Exception):
    """A check of what users rely on failed; `kind` is `lost`, `duplicated` or `failed`."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class Trial:
    """One command and its fault, all drawn from the seed and the trial's number."""

    number: int
    operation: str
    store: str
    fault: str  # the name of a signal, or one of FAULTS
    moment: float  # as a share of the command's duration without a fault
    slowly: bool
    twice: bool

    def __str__(self) -> str:
        more = f"{' slowly' if self.slowly else ''}{' twice' if self.twice else ''}"
        return f"trial {self.number}: {self.operation} {self.store} {self.fault}{more} at {self.moment:.2f}"


@dataclass
class Figures:
    """The results of one operation with one fault."""

    count: int = 0
    hit: int = 0  # the command was still running at the fault
    slowest: float = 0.0
    violations: dict[str, int] = field(default_factory=lambda: {"lost": 0, "duplicated": 0, "failed": 0})


def draw(seed: str, number: int, operations: list[str], stores: list[str]) -> Trial:
    """Return the trial of that number."""
    chance = random.Random(f"{seed}/{number}")  # noqa: S311 - reproducible, not secret
    operation = operations[number % len(operations)]
    signals = [number.name for number in SIGNALS]
    faults = [*signals, *FAULTS] if operation in TRANSFERS else signals
    fault = faults[number // len(operations) % len(faults)]
    suited = FAULTS.get(fault, STORES if operation in TRANSFERS else ("local", "ssh"))
    return Trial(
        number,
        operation,
        chance.choice([store for store in stores if store in suited] or ["local"]),
        fault if set(suited) & set(stores) else signals[0],
        chance.uniform(0.05, 1.0),
        chance.random() < 0.4,
        chance.random() < 0.2,
    )


class Worker:
    """One account with its own home and sites, which runs its trials sequentially."""

    def __init__(self, session: Path, folder: Path, stores: list[str], seed: str) -> None:
        self.folder = folder
        runtime = Path(tempfile.mkdtemp(dir=session / "r", prefix=""))
        self.runtime = runtime
        home, state = folder / "hibali" / "home", folder / "hibali" / "state"
        home.mkdir(parents=True)
        state.mkdir(mode=0o700)
        config = folder / "hibali" / "config.toml"
        kept = ("PATH", "LANG", "LC_ALL", "TMPDIR", "USER", "LOGNAME", "SHELL")
        env = {name: os.environ[name] for name in kept if name in os.environ}
        env |= {
            "HOME": str(home),
            "HIBALI_STATE": str(state),
            "HIBALI_CONFIG": str(config),
            "XDG_RUNTIME_DIR": str(runtime),
            "AWS_EC2_METADATA_DISABLED": "true",
            "PYTHONPATH": str(REPOSITORY),
            MARK: f"{runtime}/",
        }
        self.hibali = Hibali(HibaliHome(folder / "hibali", home, state, config, runtime, env))
        self.hibali.forks = False
        self._closing = contextlib.ExitStack()
        self._durations: dict[tuple[str, str, bool], float] = {}
        self._factor = 1.0  # adjusted so that most signals find their command running

        chance = random.Random(f"{seed}/tree")  # noqa: S311 - reproducible, not secret
        self.tree = {
            **many_files(150, 8000, folders=6, seed=chance.randrange(1000)),
            b"large": chance.randbytes(LARGE_BYTES),
            b"sub/second": chance.randbytes(LARGE_BYTES // 5),
        }
        self.older = {
            **dict(list(self.tree.items())[:40]),
            b"large": b"an older one",
            b"extra/file": b"not in the source",
        }
        self.source = make_tree(folder / "source", self.tree)
        self.backends: dict[str, Backend] = {}
        self.servers: dict[str, RestartableServer] = {}
        self._marked = {"local": runtime}  # the folder that marks the processes of a store's workers
        for word in stores:
            backend = self.backends[word] = self._backend(word)
            add_site(config, f"site-{word}", backend)
            self.hibali.env.update(backend.env)
            backend.plant("full", self.tree)
        self.counts = folder / "counts"
        self.counts.mkdir()
        self.benches = {word: self._bench(word) for word in ("local", "ssh") if word in stores}
        self.runs = {word: self._finished_run(bench) for word, bench in self.benches.items()}
        self._state = self._fingerprint()

    def _backend(self, word: str) -> Backend:
        """Start a server for this worker only, so that its end concerns no other trial."""
        own = self.folder / f"server-{word}"
        own.mkdir()
        if word in FAULTS["server"]:
            server = self.servers[word] = self._closing.enter_context(restartable_server(word, own))
            self._marked[word] = server.folder
            return server.place
        if word == "sftp":
            self._marked[word] = own
            self._closing.callback(end_all, own)
        return make_backend(word, self.folder, lambda _: start_sftp_gateway(own, own / "sshd"))

    def _bench(self, word: str) -> Bench:
        """Return a bench whose tool adds a line to the run's file each time it is executed."""
        command = (
            f"echo executed >>{self.counts}/[SAY]; sleep [SLEEP]; head -c {OUTPUT_BYTES} /dev/zero >[OUT]"
        )
        bench = Bench(self.hibali, {**doing(command), "name": f"Soak {word}"})
        work = self.folder / f"work-{word}"
        table = f'kind = "local"\nwork = "{work}"\n'
        if word == "ssh":
            backend: Any = self.backends[word]
            words = ", ".join(f'"{each}"' for each in backend.command)
            table = (
                f'kind = "ssh"\nwork = "{work}"\n[sites.runs-ssh.ssh]\nhost = "{backend.server.host}"\n'
                f'command = [{words}]\n[sites.runs-ssh.scheduler]\nname = "direct"\n'
            )
        container = f'[sites.runs-{word}.container]\nname = "bare"\n'
        bench.add_site(
            f"runs-{word}",
            f'{table}{container}[sites.runs-{word}.limits]\npoll = "1s"\nlogin_interval = "0s"\n',
        )
        return bench

    def _finished_run(self, bench: Bench) -> str:
        answers = bench.answers(f"{bench.site}.json", say=f"{bench.site}-first")
        return str(bench.run(answers, "--wait", exit=0).last["id"])

    def _fingerprint(self) -> str:
        """Return a digest of content, times and permissions of the source."""
        seen = hashlib.sha256()
        for path in sorted(self.source.rglob("*")):
            found = path.lstat()
            seen.update(f"{path} {found.st_mode} {found.st_mtime_ns} {found.st_size}\n".encode())
            if path.is_file():
                seen.update(path.read_bytes())
        return seen.hexdigest()

    def words(self, one: Trial) -> tuple[Any, ...]:
        """Return the command of a trial."""
        target, site = f"t{one.number}", f"site-{one.store}:"
        slowly = ("--bwlimit", "6M") if one.slowly else ()
        if one.operation == "push":
            return ("push", self.source, f"{site}{target}", *self._deleting(one), *slowly)
        if one.operation == "pull":
            return ("pull", f"{site}full", self.folder / target, *slowly)
        if one.operation == "sync":
            return ("sync", f"{site}full", f"{site}{target}", *self._deleting(one), *slowly)
        bench = self.benches[one.store]
        if one.operation == "collect":
            return ("runs", "collect", self.runs[one.store], self.folder / target)
        seconds = 1 if one.slowly else 0
        answers = bench.answers(f"answers-{one.number}.json", say=f"count-{one.number}", sleep=seconds)
        return (*bench.line(answers, "--name", f"soak-{one.number}"), "--wait")

    @staticmethod
    def _deleting(one: Trial) -> tuple[str, ...]:
        return ("--delete", "--max-delete", "100%") if one.twice or one.operation == "sync" else ()

    def prepare(self, one: Trial) -> None:
        """Create older files at the target of half of the trials."""
        if one.operation in {"push", "sync"} and one.number % 2:
            self.backends[one.store].plant(f"t{one.number}", self.older)

    def duration(self, one: Trial) -> float:
        """Return the duration of such a command without a signal, in seconds; measured once."""
        key = (one.operation, one.store, one.slowly)
        if key not in self._durations:
            plain = Trial(
                900_000 + len(self._durations), one.operation, one.store, one.fault, 0, one.slowly, False
            )
            began = time.monotonic()
            self.hibali(*self.words(plain), "--json", exit=0)
            self._durations[key] = time.monotonic() - began
            self._clear(plain)
        return self._durations[key]

    def run_trial(self, one: Trial) -> tuple[bool, float]:
        """Run a trial; return whether the command was running at the signal, and the seconds until it ended.

        Raises `ViolationError`.
        """
        self.prepare(one)
        words = (*self.words(one), "--json")
        moment = one.moment * self._factor * self.duration(one)
        process = self.hibali.start(*words)
        output = self.hibali.home.folder / f"{len(self.hibali._running) - 1}"
        time.sleep(moment)
        hit = process.poll() is None
        self._factor *= 1.03 if hit else 0.85  # the machine's other load changes
        began = time.monotonic()
        for _ in range(2 if one.twice else 1):
            self._cause(one, process.pid)
        code = process.wait(RESUME_SECONDS)
        seconds = time.monotonic() - began
        if one.fault in RENAMED:
            self._rename_back(one)
        stderr = output.with_suffix(".err").read_bytes()
        ends = FAULT_ENDS if one.fault in FAULTS else ENDS.get(signal.Signals[one.fault])
        if hit and ends is not None:
            if seconds > LIMIT_SECONDS and one.fault not in FAULTS:
                raise ViolationError("failed", f"it ended {seconds:.2f} s after the signal")
            if code not in ends | {0}:
                raise ViolationError("failed", f"it ended with {code}: {stderr.decode(errors='replace')}")
        if one.fault in RENAMED and code == 0 and not self._target(one).items() >= self.tree.items():
            raise ViolationError("lost", "it succeeded, but files are missing at the target")
        if _TRACE.search(stderr):
            raise ViolationError("failed", f"a traceback: {stderr.decode(errors='replace')}")
        self._after(one)
        for name in (".out", ".err"):
            output.with_suffix(name).unlink()
        self._clear(one)
        return hit, seconds

    def _cause(self, one: Trial, command: int) -> None:
        """Cause the fault of a trial."""
        if one.fault == "server":
            server = self.servers[one.store]
            server.stop()
            time.sleep(OUTAGE_SECONDS)
            server.start()
        elif one.fault == "workers":
            for worker in _workers_of(processes_of(self._marked[one.store]) | descendants_of(command)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)
        elif one.fault in RENAMED:
            folder = self._folder(one)
            away = folder.with_name(f"{folder.name}-away")
            if folder.exists() and not away.exists():  # a new target is created after the plan
                folder.rename(away)
        else:
            with contextlib.suppress(ProcessLookupError):
                (os.killpg if one.fault == "SIGKILL" else os.kill)(command, signal.Signals[one.fault])

    def _folder(self, one: Trial) -> Path:
        """Return the folder that the fault renames."""
        backend: Any = self.backends[one.store]
        if one.fault == "source":
            return self.source if one.operation == "push" else Path(backend.at("full"))
        return (
            self.folder / f"t{one.number}" if one.operation == "pull" else Path(backend.at(f"t{one.number}"))
        )

    def _rename_back(self, one: Trial) -> None:
        """Restore the folder that the fault renamed; SFTP may have begun another one at its path."""
        folder = self._folder(one)
        away = folder.with_name(f"{folder.name}-away")
        if away.exists():
            shutil.rmtree(folder, ignore_errors=True)
            away.rename(folder)

    def _after(self, one: Trial) -> None:
        if one.operation == "run":
            self._after_run(one)
        elif one.operation == "collect":
            self._again(one)
            found = (self.folder / f"t{one.number}" / "out.txt").read_bytes()
            if found != bytes(OUTPUT_BYTES):
                raise ViolationError(
                    "lost", f"the output has {len(found)} bytes and differs from the output of the run"
                )
        else:
            self._after_transfer(one)
        if self._fingerprint() != self._state:
            raise ViolationError("lost", "the source was changed")

    def _after_transfer(self, one: Trial) -> None:
        self._check_final_names(one)
        self._again(one)
        found = {name: leaf for name, leaf in self._target(one).items() if not PARTIAL.fullmatch(name)}
        wanted = dict(self.tree)
        if "--delete" not in self.words(one) and one.operation == "push" and one.number % 2:
            wanted = {**self.older, **self.tree}
        wrong = [name for name in wanted if found.get(name) != wanted[name]]
        if wrong or found.keys() - wanted.keys():
            raise ViolationError(
                "lost", f"wrong or missing: {wrong[:5]}; too many: {sorted(found.keys() - wanted.keys())[:5]}"
            )
        backend = self.backends[one.store]
        if one.operation != "pull" and backend.unfinished(f"t{one.number}"):
            raise ViolationError("failed", f"left behind: {sorted(backend.unfinished(f't{one.number}'))[:5]}")
        _, first, second, *_ = self.words(one)
        if "--delete" in self.words(one) or not (one.operation == "push" and one.number % 2):
            self._must("verify", first, second)
        self._must(*self.words(one), "--dry-run", "--detailed-exit-code")

    def _target(self, one: Trial) -> dict[bytes, bytes]:
        """Return the target's files; retry, because an agent may still remove its partial files."""
        for _ in range(50):
            with contextlib.suppress(FileNotFoundError):
                return self._read_target(one)
            time.sleep(0.1)
        return self._read_target(one)

    def _read_target(self, one: Trial) -> dict[bytes, bytes]:
        if one.operation != "pull":
            return self.backends[one.store].files(f"t{one.number}")
        folder = self.folder / f"t{one.number}"
        tree = read_tree(folder) if folder.exists() else {}
        return {
            name: leaf
            for name, leaf in tree.items()
            if isinstance(leaf, bytes) and not name.startswith(b".hibali/")
        }

    def _check_final_names(self, one: Trial) -> None:
        """Check directly after the signal that each final name has the complete old or the complete new content."""
        for name, content in self._target(one).items():
            if PARTIAL.fullmatch(name):
                continue
            if content not in (self.tree.get(name), self.older.get(name)):
                raise ViolationError(
                    "lost", f"{name!r} has {len(content)} bytes of neither the old nor the new file"
                )

    def _after_run(self, one: Trial) -> None:
        name = f"soak-{one.number}"
        known = [line for line in self._must("runs", "list").lines if line.get("name") == name]
        # after a success the same command would start a new run
        if not any(line["state"] == "SUCCEEDED" for line in known):
            self._again(one)
        executed = (self.counts / f"count-{one.number}").read_text().splitlines()
        if len(executed) != 1:
            raise ViolationError("duplicated", f"the tool was executed {len(executed)} times")

    def _again(self, one: Trial) -> None:
        """Check that the same command completes, when no other process has the lock of the target."""
        deadline = time.monotonic() + RESUME_SECONDS
        while True:
            answer = self.hibali(*self.words(one), "--json", timeout=300)
            if answer.exit != 5 or answer.last["code"] != "locked" or time.monotonic() > deadline:
                break
            time.sleep(0.5)
        if answer.exit != 0 or _TRACE.search(answer.err):
            raise ViolationError("failed", f"the same command again: {answer}")

    def _must(self, *words: Any) -> Any:
        answer = self.hibali(*words, "--json", timeout=300)
        if answer.exit != 0:
            raise ViolationError("failed", str(answer))
        return answer

    def _clear(self, one: Trial) -> None:
        """Remove the trial's files to save space."""
        shutil.rmtree(self.folder / f"t{one.number}", ignore_errors=True)
        backend = self.backends.get(one.store)
        if backend is not None and one.operation in {"push", "sync"}:
            if one.store == "s3":
                for name in backend.names(f"t{one.number}"):
                    backend.remove(f"t{one.number}", name)
            else:
                shutil.rmtree(backend.at(f"t{one.number}"), ignore_errors=True)  # type: ignore[attr-defined]

    def close(self) -> None:
        """End the processes that the commands left running."""
        self.hibali.end()
        end_all(self.runtime)
        self._closing.close()


class Soak:
    """Distribute the trials to the workers, and collect the results."""

    def __init__(self, options: argparse.Namespace, stores: list[str]) -> None:
        self._options = options
        self._stores = stores
        self._guard = threading.Lock()
        self._until = time.monotonic() + options.minutes * 60
        self._trials = self._trial_numbers()
        self.figures: dict[tuple[str, str], Figures] = {}
        self.violations: list[str] = []
        self.done = 0

    def _trial_numbers(self) -> Iterator[int]:
        yield from [self._options.only] if self._options.only is not None else range(self._options.kills)

    def work(self, worker: Worker) -> None:
        """Run trials until none is left or the time is over; runs in a thread."""
        while time.monotonic() < self._until:
            with self._guard:
                number = next(self._trials, None)
            if number is None:
                return
            one = draw(self._options.seed, number, self._options.operations, self._stores)
            self._run_trial(worker, one)

    def _run_trial(self, worker: Worker, one: Trial) -> None:
        kind, message, hit, seconds = "", "", True, 0.0
        try:
            hit, seconds = worker.run_trial(one)
        except ViolationError as problem:
            kind, message = problem.kind, str(problem)
        except Exception:  # noqa: BLE001 - every other error is a failure, too
            kind, message = "failed", traceback.format_exc()
        with self._guard:
            found = self.figures.setdefault((one.operation, one.fault), Figures())
            found.count += 1
            found.hit += hit
            found.slowest = max(found.slowest, seconds if _is_answered(one.fault) else 0.0)
            self.done += 1
            if kind:
                found.violations[kind] += 1
                again = f"make soak SEED={self._options.seed} ONLY={one.number}"
                self.violations.append(
                    f"{one}: {kind}: {message}\n  again: {again}\n  left in {worker.folder}"
                )
                print(f"VIOLATION {self.violations[-1]}", flush=True)
            elif self.done % 10 == 0:
                left = (self._until - time.monotonic()) / 60
                print(
                    f"{self.done} of {self._options.kills} done, at most {left:.0f} min left; last {one}",
                    flush=True,
                )

    def table(self) -> str:
        """Return the figures, one line for each operation and fault."""
        lines = ["operation  fault    count  running  slowest exit  lost  duplicated  failed"]
        for operation in OPERATIONS:
            for fault in (*(number.name for number in SIGNALS), *FAULTS):
                one = self.figures.get((operation, fault))
                if one is None:
                    continue
                slowest = f"{one.slowest:.2f} s" if _is_answered(fault) else "-"
                found = one.violations
                lines.append(
                    f"{operation:<9}  {fault:<7}  {one.count:>5}  {one.hit:>7}  {slowest:>12}"
                    f"  {found['lost']:>4}  {found['duplicated']:>10}  {found['failed']:>6}"
                )
        every = self.figures.values()
        sums = {kind: sum(one.violations[kind] for one in every) for kind in ("lost", "duplicated", "failed")}
        slowest = f"{max((one.slowest for one in every), default=0.0):.2f} s"
        lines.append(
            f"{'all':<9}  {'':<7}  {sum(one.count for one in every):>5}  {sum(one.hit for one in every):>7}"
            f"  {slowest:>12}  {sums['lost']:>4}  {sums['duplicated']:>10}  {sums['failed']:>6}"
        )
        return "\n".join(lines)


def main(words: list[str]) -> int:
    """Run the trials; return 0 if all checks passed, 1 after a violation or without any trial."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after so many minutes")
    parser.add_argument("--kills", type=int, default=300, help="stop after so many trials, one fault each")
    parser.add_argument("--seed", default=str(random.randrange(1_000_000)), help="repeat an earlier soak")  # noqa: S311
    parser.add_argument("--jobs", type=int, default=2, help="number of commands at a time")
    parser.add_argument("--only", type=int, help="run only this trial of the seed")
    parser.add_argument("--operations", nargs="+", choices=OPERATIONS, default=list(OPERATIONS))
    parser.add_argument("--stores", nargs="+", choices=STORES, default=list(STORES))
    options = parser.parse_args(words)
    for number in (signal.SIGINT, signal.SIGHUP):  # ignored where this was started in the background
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    session = new_session()
    folder = Path(tempfile.mkdtemp(prefix="soak-", dir=session.parent))
    workers: list[Worker] = []
    try:
        stores = [store for store in options.stores if _starts(session, store)]
        print(f"seed {options.seed}; stores {' '.join(stores)}; {folder}", flush=True)
        soak = Soak(options, stores)
        numbers = range(1 if options.only is not None else options.jobs)
        workers.extend(Worker(session, folder / str(number), stores, options.seed) for number in numbers)
        threads = [threading.Thread(target=soak.work, args=(worker,), daemon=True) for worker in workers]
        for thread in threads:
            thread.start()
        with contextlib.suppress(KeyboardInterrupt):  # print the figures so far
            for thread in threads:
                thread.join()
        print(f"\n{soak.table()}\nseed {options.seed}")
        if not soak.violations:
            shutil.rmtree(folder, ignore_errors=True)
        return 1 if soak.violations or not soak.done else 0
    finally:
        for worker in workers:
            worker.close()
        end_session(session)


def _is_answered(fault: str) -> bool:
    """Return whether a command reacts to the fault by ending at once."""
    return fault not in FAULTS and fault != "SIGKILL"


def _workers_of(pids: Iterable[int]) -> list[int]:
    """Return the processes that carry files: agents, which start from a program text, and SFTP servers."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            title = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"\0-c\0import os,zlib;" in title or b"internal-sftp" in title or b"@notty" in title:
                found.append(pid)
    return found


def _starts(session: Path, store: str) -> bool:
    """Return whether the server of that store starts; otherwise print the reason and continue without it."""
    service = {"ssh": "ssh", "sftp": "sftp", "s3": "object-store"}.get(store)
    try:
        if service is not None:
            ensure(session, service)
    except (MissingPackageError, ServiceError) as problem:
        print(f"without {store}: {problem}", file=sys.stderr)
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
