"""Kill and signal push, pull, sync, run and collect at random moments for a given time: `make soak` (CONTRIBUTING.md).

Every trial starts one command against a real server and causes one fault: a signal to the command, kills of the workers that carry its
files (agents, SFTP servers), a kill of the server, which starts again, or a target or source that is renamed away. Then it checks what users rely on: after a signal the command
ended within two seconds, no partial file has a final name, the source did not change, the same command completes, `verify` finds every file,
a dry run lists no actions, and a run was executed once. The same seed makes the same trials.

About half of the transfers are wide: of so many files that two worker processes of this machine move them. There the kill of workers is
that of one process, after which nothing is sent a third time; a SIGKILL is of the command alone, and all that it started has to end
within two seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hibali.errors import Exit
from tests.end_to_end.run_tools import Bench, doing
from tests.services.fixtures import Hibali, separate_home
from tests.services.processes import (
    MissingPackageError,
    ServiceError,
    descendants_of,
    end_all,
    is_alive,
    processes_of,
)
from tests.services.session import end_session, ensure, new_session
from tests.services.sshd import start_sftp_gateway
from tests.support.backends import PARTIAL, Backend, add_site, make_backend
from tests.support.command_signals import ENDS, LIMIT_SECONDS
from tests.support.restartable_server import RestartableServer, restartable_server
from tests.support.trees import make_tree, many_files, read_tree
from transfers.model.units import SEGMENT_BYTES

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
_WORKER = b"transfers.engine.routes.worker"  # in the command line of a worker process
_TRACE = re.compile(rb"Traceback|Exception ignored")
LARGE_BYTES = 10_000_000
OUTPUT_BYTES = 12_000_000
# the stores of wide trials; a sync within S3 is copied by the server
WIDE = {"push": ("local", "ssh", "s3"), "pull": ("local", "ssh", "s3"), "sync": ("local", "ssh")}
WIDE_FILES = 5200  # enough for two workers
WORKERS = 2
UNITS_AHEAD = 2  # what a worker has received and not yet answered


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
    wide: bool = False  # many small files, moved by several workers
    chosen: float = 0.0  # which process of a wide trial is killed, as a share of them all

    def __str__(self) -> str:
        words = ("slowly", "twice", "wide")
        more = "".join(f" {word}" for word in words if getattr(self, word))
        return f"trial {self.number}: {self.operation} {self.store} {self.fault}{more} at {self.moment:.2f}"


@dataclass(frozen=True)
class Content:
    """A tree to transfer: its name at the sites, what half of the targets have before, and its folder here."""

    name: str
    tree: dict[bytes, bytes]
    older: dict[bytes, bytes]
    source: Path
    state: str  # the fingerprint of that folder


@dataclass
class Figures:
    """The results of one operation with one fault, of wide trials or of the others."""

    count: int = 0
    hit: int = 0  # the command was still running at the fault,
    working: int = 0  # and worker processes were
    slowest: float = 0.0
    violations: dict[str, int] = field(default_factory=lambda: {"lost": 0, "duplicated": 0, "failed": 0})


def draw(
    seed: str, number: int, operations: list[str], stores: list[str], *, all_wide: bool = False
) -> Trial:
    """Return the trial of that number; with `all_wide`, it is wide if its operation can be."""
    chance = random.Random(f"{seed}/{number}")  # noqa: S311 - reproducible, not secret
    operation = operations[number % len(operations)]
    signals = [number.name for number in SIGNALS]
    faults = [*signals, *FAULTS] if operation in TRANSFERS else signals
    fault = faults[number // len(operations) % len(faults)]
    suited = FAULTS.get(fault, STORES if operation in TRANSFERS else ("local", "ssh"))
    one = Trial(
        number,
        operation,
        chance.choice([store for store in stores if store in suited] or ["local"]),
        fault if set(suited) & set(stores) else signals[0],
        chance.uniform(0.05, 1.0),
        chance.random() < 0.4,
        chance.random() < 0.2,
    )
    # drawn last: all else is as in the trials of the same seed before there were wide ones
    suited = STORES if fault == "workers" else FAULTS.get(one.fault, STORES)
    places = [store for store in stores if store in suited and store in WIDE.get(operation, ())]
    is_wide = chance.random() < 0.5 and one.store in places
    if not places or not (is_wide or all_wide):
        return one
    if fault == "workers":  # at S3, too
        one = replace(one, fault=fault, store=chance.choice(places))
    elif one.store not in places:
        one = replace(one, store=chance.choice(places))
    return replace(one, wide=True, chosen=chance.random())


class Worker:
    """One account with its own home and sites, which runs its trials sequentially."""

    def __init__(self, session: Path, folder: Path, stores: list[str], seed: str) -> None:
        self.folder = folder
        separate = separate_home(folder / "hibali", session)
        self.runtime = separate.runtime
        self.hibali = Hibali(separate)
        self.hibali.forks = False
        self._closing = contextlib.ExitStack()
        # of commands without a fault: the duration, and the bytes sent
        self._plain: dict[tuple[str, str, bool, bool], tuple[float, int]] = {}
        self._factor = 1.0  # adjusted so that most signals find their command running

        chance = random.Random(f"{seed}/tree")  # noqa: S311 - reproducible, not secret
        few = many_files(150, 8000, folders=6, seed=chance.randrange(1000))
        large = {
            b"large": chance.randbytes(LARGE_BYTES),
            b"sub/second": chance.randbytes(LARGE_BYTES // 5),
        }
        many = many_files(WIDE_FILES, 300, seed=chance.randrange(1000))
        self._contents = {
            False: self._content("full", {**few, **large}),
            True: self._content("wide", {**many, **large}),
        }
        self.backends: dict[str, Backend] = {}
        self.servers: dict[str, RestartableServer] = {}
        self._marked = {"local": self.runtime}  # the folder that marks the processes of a store's workers
        for word in stores:
            backend = self.backends[word] = self._backend(word)
            add_site(separate.config, f"site-{word}", backend)
            self.hibali.env.update(backend.env)
            for content in self._contents.values() if word in WIDE["push"] else (self._contents[False],):
                backend.plant(content.name, content.tree)
        self.counts = folder / "counts"
        self.counts.mkdir()
        self.benches = {word: self._bench(word) for word in ("local", "ssh") if word in stores}
        self.runs = {word: self._finished_run(bench) for word, bench in self.benches.items()}

    def _content(self, name: str, tree: dict[bytes, bytes]) -> Content:
        """Create the tree on this machine."""
        older = {
            **dict(list(tree.items())[:40]),
            b"large": b"an older one",
            b"extra/file": b"not in the source",
        }
        source = make_tree(self.folder / f"source-{name}", tree)
        return Content(name, tree, older, source, _fingerprint(source))

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

    def words(self, one: Trial) -> tuple[Any, ...]:
        """Return the command of a trial."""
        target, site, content = f"t{one.number}", f"site-{one.store}:", self._contents[one.wide]
        full = f"{site}{content.name}"
        workers = ("--workers", str(WORKERS)) if one.wide else ()
        more = (*(("--bwlimit", "6M") if one.slowly else ()), *workers)
        if one.operation == "push":
            return ("push", content.source, f"{site}{target}", *self._deleting(one), *more)
        if one.operation == "pull":
            return ("pull", full, self.folder / target, *more)
        if one.operation == "sync":
            return ("sync", full, f"{site}{target}", *self._deleting(one), *more)
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
            self.backends[one.store].plant(f"t{one.number}", self._contents[one.wide].older)

    def plain(self, one: Trial) -> tuple[float, int]:
        """Return the seconds that such a command takes without a signal, and the bytes that it sends; measured once."""
        key = (one.operation, one.store, one.slowly, one.wide)
        if key not in self._plain:
            plain = replace(one, number=900_000 + len(self._plain), twice=False)
            began = time.monotonic()
            answer = self.hibali(*self.words(plain), "--json", exit=0)
            self._plain[key] = time.monotonic() - began, answer.last.get("bytes_sent", 0)
            self._clear(plain)
        return self._plain[key]

    def run_trial(self, one: Trial) -> tuple[bool, bool, float]:
        """Run a trial; return whether the command and its workers were running at the signal, and the seconds until it ended.

        Raises `ViolationError`.
        """
        self.prepare(one)
        words = (*self.words(one), "--json")
        moment = one.moment * self._factor * self.plain(one)[0]
        process = self.hibali.start(*words)
        output = self.hibali.home.folder / f"{len(self.hibali._running) - 1}"
        time.sleep(moment)
        hit = process.poll() is None
        self._factor *= 1.03 if hit else 0.85  # the machine's other load changes
        family = _family_of(process.pid) if one.wide else []
        working = any(_WORKER in _title(pid) for pid in family)
        began = time.monotonic()
        for _ in range(2 if one.twice else 1):
            self._cause(one, process.pid)
        code = process.wait(RESUME_SECONDS)
        seconds = time.monotonic() - began
        if one.fault == "SIGKILL":
            _check_all_ended(family)
        if one.fault in RENAMED:
            self._rename_back(one)
        stderr = output.with_suffix(".err").read_bytes()
        ends = FAULT_ENDS if one.fault in FAULTS else ENDS.get(signal.Signals[one.fault])
        if hit and ends is not None:
            if seconds > LIMIT_SECONDS and one.fault not in FAULTS:
                raise ViolationError("failed", f"it ended {seconds:.2f} s after the signal")
            if code not in ends | {0}:
                raise ViolationError("failed", f"it ended with {code}: {stderr.decode(errors='replace')}")
        tree = self._contents[one.wide].tree
        if one.fault in RENAMED and code == 0 and not self._target(one).items() >= tree.items():
            raise ViolationError("lost", "it succeeded, but files are missing at the target")
        if one.wide and one.fault == "workers" and one.store == "ssh" and code == 0:
            self._check_sent(one, output.with_suffix(".out"))
        if _TRACE.search(stderr):
            raise ViolationError("failed", f"a traceback: {stderr.decode(errors='replace')}")
        self._after(one)
        for name in (".out", ".err"):
            output.with_suffix(name).unlink()
        self._clear(one)
        return hit, working, seconds

    def _check_sent(self, one: Trial, out: Path) -> None:
        """Check that at most the unanswered units of each worker were sent twice: of this tree, each file at most once again."""
        size = sum(map(len, self._contents[one.wide].tree.values()))
        usual = self.plain(one)[1]
        again = min(1.0, WORKERS * UNITS_AHEAD * SEGMENT_BYTES / size)  # as a share of the tree
        sent = json.loads(out.read_bytes().splitlines()[-1])["bytes_sent"]
        if sent > usual * (1 + again):
            raise ViolationError("duplicated", f"it sent {sent} bytes of {size}, and {usual} without a kill")

    def _cause(self, one: Trial, command: int) -> None:
        """Cause the fault of a trial."""
        if one.fault == "server":
            server = self.servers[one.store]
            server.stop()
            time.sleep(OUTAGE_SECONDS)
            server.start()
        elif one.fault == "workers":
            found = _workers_of(processes_of(self._marked[one.store]) | descendants_of(command))
            for worker in _chosen(one, found) if one.wide else found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)
        elif one.fault in RENAMED:
            folder = self._folder(one)
            away = folder.with_name(f"{folder.name}-away")
            if folder.exists() and not away.exists():  # a new target is created after the plan
                folder.rename(away)
        else:
            with contextlib.suppress(ProcessLookupError):
                whole = one.fault == "SIGKILL" and not one.wide
                (os.killpg if whole else os.kill)(command, signal.Signals[one.fault])

    def _folder(self, one: Trial) -> Path:
        """Return the folder that the fault renames."""
        backend: Any = self.backends[one.store]
        content = self._contents[one.wide]
        if one.fault == "source":
            return content.source if one.operation == "push" else Path(backend.at(content.name))
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
        content = self._contents[one.wide]
        if _fingerprint(content.source) != content.state:
            raise ViolationError("lost", "the source was changed")

    def _after_transfer(self, one: Trial) -> None:
        self._check_final_names(one)
        self._again(one)
        found = {name: leaf for name, leaf in self._target(one).items() if not PARTIAL.fullmatch(name)}
        content = self._contents[one.wide]
        wanted = content.tree
        if "--delete" not in self.words(one) and one.operation == "push" and one.number % 2:
            wanted = {**content.older, **content.tree}
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
        content = self._contents[one.wide]
        for name, found in self._target(one).items():
            if PARTIAL.fullmatch(name):
                continue
            if found not in (content.tree.get(name), content.older.get(name)):
                raise ViolationError(
                    "lost", f"{name!r} has {len(found)} bytes of neither the old nor the new file"
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
                with ThreadPoolExecutor(4) as pool:
                    names = backend.names(f"t{one.number}")
                    list(pool.map(lambda name: backend.remove(f"t{one.number}", name), names))
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
        self.figures: dict[tuple[str, str, bool], Figures] = {}
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
            options = self._options
            one = draw(options.seed, number, options.operations, self._stores, all_wide=options.wide)
            self._run_trial(worker, one)

    def _run_trial(self, worker: Worker, one: Trial) -> None:
        kind, message, hit, working, seconds = "", "", True, False, 0.0
        try:
            hit, working, seconds = worker.run_trial(one)
        except ViolationError as problem:
            kind, message = problem.kind, str(problem)
        except Exception:  # noqa: BLE001 - every other error is a failure, too
            kind, message = "failed", traceback.format_exc()
        with self._guard:
            found = self.figures.setdefault((one.operation, one.fault, one.wide), Figures())
            found.count += 1
            found.hit += hit
            found.working += working
            found.slowest = max(found.slowest, seconds if _is_answered(one.fault) else 0.0)
            self.done += 1
            if kind:
                found.violations[kind] += 1
                wide = " WIDE=1" if self._options.wide else ""
                again = f"make soak SEED={self._options.seed} ONLY={one.number}{wide}"
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
        """Return the figures, one line for each operation and fault, and the sums of all and of the wide trials."""
        lines = ["operation  fault         count  running  workers  slowest exit  lost  duplicated  failed"]
        faults = (*(number.name for number in SIGNALS), *FAULTS)
        for operation in OPERATIONS:
            for fault in faults:
                for wide in (False, True):
                    one = self.figures.get((operation, fault, wide))
                    if one is not None:
                        lines.append(_row(operation, fault, [one], wide=wide, answered=_is_answered(fault)))
        lines.append(_row("all", "", [*self.figures.values()]))
        lines.append(_row("all", "", [one for key, one in self.figures.items() if key[2]], wide=True))
        return "\n".join(lines)


def _row(
    operation: str, fault: str, every: list[Figures], *, wide: bool = False, answered: bool = True
) -> str:
    """Return a line of the table with the sums of some figures."""
    slowest = f"{max((one.slowest for one in every), default=0.0):.2f} s" if answered else "-"
    lost, twice, failed = (
        sum(one.violations[kind] for one in every) for kind in ("lost", "duplicated", "failed")
    )
    return (
        f"{operation:<9}  {fault:<7} {'wide' if wide else '':<4}  {sum(one.count for one in every):>5}"
        f"  {sum(one.hit for one in every):>7}  {sum(one.working for one in every):>7}"
        f"  {slowest:>12}  {lost:>4}  {twice:>10}  {failed:>6}"
    )


def main(words: list[str]) -> int:
    """Run the trials; return 0 if all checks passed, 1 after a violation or without any trial."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after so many minutes")
    parser.add_argument("--kills", type=int, default=300, help="stop after so many trials, one fault each")
    parser.add_argument("--seed", default=str(random.randrange(1_000_000)), help="repeat an earlier soak")  # noqa: S311
    parser.add_argument("--jobs", type=int, default=2, help="number of commands at a time")
    parser.add_argument("--only", type=int, help="run only this trial of the seed")
    parser.add_argument("--wide", action="store_true", help="move many files by workers in every transfer")
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
    """Return the processes that carry files: agents, which start from a program text, SFTP servers, and workers."""
    parts = (b"\0-c\0import os,zlib;", b"internal-sftp", b"@notty", _WORKER)
    return sorted(pid for pid in pids if any(part in _title(pid) for part in parts))


def _chosen(one: Trial, pids: list[int]) -> list[int]:
    """Return the process to kill; none if there is none."""
    place = int(one.chosen * len(pids))
    return pids[place : place + 1]


def _title(pid: int) -> bytes:
    """Return the command line of a process; empty if it ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _family_of(command: int) -> list[int]:
    """Return what a command started, except a login that lasts beyond it."""
    return [pid for pid in descendants_of(command) if b"ControlMaster=yes" not in _title(pid)]


def _check_all_ended(pids: Iterable[int]) -> None:
    """Check that these processes of a killed command end by themselves in time."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while running := [_title(pid) for pid in pids if is_alive(pid)]:
        if time.monotonic() > deadline:
            raise ViolationError("failed", f"{LIMIT_SECONDS} s after the kill there still run {running}")
        time.sleep(0.02)


def _fingerprint(folder: Path) -> str:
    """Return a digest of content, times and permissions of a source."""
    seen = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        found = path.lstat()
        seen.update(f"{path} {found.st_mode} {found.st_mtime_ns} {found.st_size}\n".encode())
        if path.is_file():
            seen.update(path.read_bytes())
    return seen.hexdigest()


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
