"""Generate a group's ledger of two months: real operations on a faked clock, and copies of them at other times."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.end_to_end.run_tools import DESCRIPTOR
from tests.services.session import REPOSITORY
from tests.support.requirements import skip_or_fail

DAYS, RUNS = 60, 3000
_DAY = 86400
_REAL = 5  # real triggers of each schedule
_LIBRARY = "faketime/libfaketimeMT.so.1"
_TIME = re.compile(r"20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9.]+Z")
SCHEDULES = {  # triggers of each per day: 3,000 times in all
    "archive-raw": 1,
    "backup-home": 1,
    "catalogue": 1,
    "figures": 1,
    "microscope": 22,
    "mri-scans": 22,
    "results": 1,
    "to-partner": 1,
}
_SITES = """version = 1
[sites.cluster]
kind = "local"
work = "{folder}/work"
roots = {{ scratch = "{folder}/scratch" }}
default_root = "scratch"
container = {{ name = "bare" }}
purge = {{ root = "scratch", days = 10 }}
limits = {{ queued_jobs = 50, poll = "1s" }}
[sites.bucket]
kind = "local"
roots = {{ data = "{folder}/bucket" }}
default_root = "data"
"""


@dataclass(frozen=True)
class GeneratedCounts:
    """The numbers of operations, and of triggers that are not copies."""

    firings: int
    real: int
    runs: int
    operations: int


@dataclass(frozen=True)
class _Firing:
    """A real trigger: its two lines in the schedule's record, and the journal of its operation."""

    begun: dict[str, Any]
    ended: dict[str, Any]
    journal: str

    @property
    def began(self) -> float:
        return _seconds(self.begun["at"])

    def copy_at(self, at: float, number: int) -> tuple[str, str, str]:
        """Return a copy at another time, with new names for the operation and its journal, and new lines."""
        operation, other, firing = (
            self.ended["operations"][0],
            _name(at, 2 * number),
            _name(at, 2 * number + 1),
        )
        lines = "".join(json.dumps(line) + "\n" for line in (self.begun, self.ended))
        journal, lines = (
            shift(text.replace(operation, other).replace(self.begun["id"], firing), at - self.began)
            for text in (self.journal, lines)
        )
        return other, journal, lines


class LedgerGenerator:
    """Fill the state folder of a test's hibali; at the end one schedule's source is missing, another's is
    empty."""

    def __init__(self, hibali: Any) -> None:
        self.hibali = hibali
        self.folder: Path = hibali.home.folder
        self.state: Path = hibali.home.state
        self.now = time.time() - 1800

    def make(self) -> GeneratedCounts:
        """Run real operations for about two minutes, then copy them."""
        self._configure()
        self._run_real_operations()
        fired = sum(self._copy_firings(name, per_day) for name, per_day in SCHEDULES.items())
        runs = self._copy_runs()
        return GeneratedCounts(
            fired, _REAL * len(SCHEDULES), runs, len(list((self.state / "operations").iterdir()))
        )

    def _configure(self) -> None:
        self.hibali.home.config.write_text(_SITES.format(folder=self.folder))
        self.hibali.home.config.chmod(0o600)
        for root in ("scratch", "bucket"):
            (self.folder / root).mkdir()
        (self.folder / "tool.json").write_text(json.dumps(DESCRIPTOR))
        (self.folder / "input.txt").write_text("hello\n")
        for name, code in (("good", 0), ("bad", 3)):
            (self.folder / f"{name}.json").write_text(json.dumps({"in": "input.txt", "code": code}))

    def _schedules(self, faked: dict[str, str]) -> Iterator[dict[str, Any]]:
        """Yield steps that add schedules; triggers inherit no environment, so each sets its clock."""
        clock = [word for name, value in faked.items() for word in ("--env", f"{name}={value}")]
        for name, per_day in SCHEDULES.items():
            site = "cluster" if name in {"figures", "results"} else "bucket"
            command = ["push", name, f"{site}:{name}", *(["--delete"] if name == "to-partner" else [])]
            cron = "0 3 * * *" if per_day == 1 else "10 0-21 * * *"
            words = [
                "schedule",
                "add",
                name,
                "--cron",
                cron,
                "--by",
                "print",
                "--no-check",
                *clock,
                "--",
                *command,
            ]
            yield self._step(words, self.now - DAYS * _DAY)

    def _firings(self) -> Iterator[dict[str, Any]]:
        for nth in range(_REAL):
            at = self.now - (DAYS - 1) * _DAY * (1 - nth / (_REAL - 1))
            for name in SCHEDULES:
                yield self._firing(name, nth, at)

    def _firing(self, name: str, nth: int, at: float) -> dict[str, Any]:
        code = {"mri-scans": 3, "to-partner": 8}.get(name, 0) if nth == _REAL - 1 else 0
        files = {f"{name}/day-{nth}/part-{k}.dat": 100_000 * (1 + nth + k + len(name)) for k in range(3)}
        removed = [name] if code == 3 else [f"{name}/day-{day}" for day in range(nth)] if code else []
        return self._step(["schedule", "run", name], at, code, write={} if code else files, remove=removed)

    def _single_commands(self) -> Iterator[dict[str, Any]]:
        begin = self.now - DAYS * _DAY
        yield self._step(["pipelines", "add", "tool.json"], begin)
        yield self._step(["pipelines", "trust", "count-letters@1.0"], begin)
        for name, code in (("good", 0), ("bad", 7)):
            yield self._step(
                ["run", "count-letters@1.0", f"{name}.json", "--site", "cluster", "--wait", "--new"],
                begin,
                code,
            )
        yield self._step(["push", "no-such-folder", "bucket:mine"], self.now - _DAY, 3)

    def _step(self, words: list[str], at: float, code: int = 0, **more: Any) -> dict[str, Any]:
        step = {"words": words, "at": at, "exit": code, "folder": str(self.folder)}
        return {"write": {}, "remove": [], "env": {}, **step, **more}

    def _run_real_operations(self) -> None:
        found = [path for path in Path("/usr/lib").glob(f"*/{_LIBRARY}") if path.is_file()]
        if not found:
            skip_or_fail("libfaketime is not installed")
        clock = self.folder / "clock"
        clock.write_text("+0")
        shared = set(Path("/dev/shm").glob("*faketime*"))
        faked = {"LD_PRELOAD": str(found[0]), "FAKETIME_NO_CACHE": "1", "FAKETIME_TIMESTAMP_FILE": str(clock)}
        steps = [*self._schedules(faked), *self._firings(), *self._single_commands()]
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-m", "tests.support.fake_clock"],
                input="".join(json.dumps(step) + "\n" for step in steps).encode(),
                env={**self.hibali.env, **faked, "PYTHONPATH": str(REPOSITORY)},
                cwd=self.folder,
                capture_output=True,
                check=False,
                timeout=400,
            )
        finally:
            for remaining in set(Path("/dev/shm").glob("*faketime*")) - shared:
                remaining.unlink(missing_ok=True)
        assert done.returncode == 0, done.stderr.decode()[-2000:]

    def _copy_firings(self, name: str, per_day: int) -> int:
        """Copy real triggers to all times at which the schedule was due; copy the last one for the last hours."""
        record = self.state / "schedules" / name / "firings.jsonl"
        lines = [json.loads(line) for line in record.read_text().splitlines()]
        real = [self._real(lines[number], lines[number + 1]) for number in range(0, len(lines), 2)]
        found = [
            (each.began, "".join(json.dumps(line) + "\n" for line in (each.begun, each.ended)))
            for each in real
        ]
        first = list(SCHEDULES).index(name)
        for number in range(_REAL, DAYS * per_day):
            at = self.now - number * _DAY / per_day
            like = real[-1] if at > self.now - _DAY / 3 or number % 67 == 0 else real[1 + number % 3]
            other, journal, lines = like.copy_at(at, number * len(SCHEDULES) + first)
            if name == "results":  # as of a server that reports no digests
                journal, lines = (text.replace('"digest"', '"claimed"') for text in (journal, lines))
            self._write(self.state / "operations" / f"{other}.jsonl", journal, at)
            found.append((at, lines))
        self._write(record, "".join(text for _, text in sorted(found)), self.now)
        return len(found)

    def _real(self, begun: dict[str, Any], ended: dict[str, Any]) -> _Firing:
        assert begun["id"] == ended["id"]
        [operation] = ended["operations"]
        path = self.state / "operations" / f"{operation}.jsonl"
        os.utime(path, (_seconds(begun["at"]),) * 2)
        return _Firing(begun, ended, path.read_text())

    def _copy_runs(self) -> int:
        folder = self.state / "runs"
        real = [(path.stem, path.read_text()) for path in folder.glob("*.jsonl")]
        real.sort(key=lambda each: "SUCCEEDED" not in each[1])
        for number in range(RUNS - len(real)):
            name, text = real[number % 10 == 0]
            at = self.now - (number + 1) * DAYS * _DAY / RUNS
            other = _name(at, number)
            began = _seconds(json.loads(text.splitlines()[0])["at"])
            self._write(folder / f"{other}.jsonl", shift(text.replace(name, other), at - began), at)
        return RUNS

    @staticmethod
    def _write(path: Path, text: str, at: float) -> None:
        path.write_text(text)
        path.chmod(0o600)
        os.utime(path, (at, at))


def shift(text: str, seconds: float) -> str:
    """Return the text with every time shifted."""
    return _TIME.sub(lambda found: _written(_seconds(found[0]) + seconds), text)


def _name(at: float, number: int) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y%m%d-%H%M%S}-{number:08x}"


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _written(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%S.%f}Z"
