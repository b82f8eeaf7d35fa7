"""Test many submissions to a real Slurm that are killed or get no answer, and are repeated: exactly one job each."""

from __future__ import annotations

import os
import random
import shutil
import signal
import stat
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.run_tools import Bench, doing

# Each call of sbatch takes the first file in `faults`, whose suffix is its fault. The caller of sbatch is the agent at the
# site; if the site is this machine, the agent's caller is hibali itself.
_SBATCH = """#!/bin/sh
fault=none
for each in @FOLDER@/faults/*; do
  [ -e "$each" ] || break
  if mv "$each" @FOLDER@/done/ 2>/dev/null; then fault=${each##*.}; break; fi
done
caller_of() { read -r stat <"/proc/$1/stat"; set -- ${stat##*) }; echo "$2"; }
case $fault in
  agent-before) kill -9 "$PPID"; exit 1 ;;
  agent-after) @SBATCH@ "$@" >/dev/null; kill -9 "$PPID"; exit 1 ;;
  client-before) kill -9 "$(caller_of "$PPID")"; exec @SBATCH@ "$@" ;;
  client-after) output=$(@SBATCH@ "$@"); kill -9 "$(caller_of "$PPID")"; echo "$output" ;;
  both-before) kill -9 "$(caller_of "$PPID")" "$PPID"; exit 1 ;;
  both-after) @SBATCH@ "$@" >/dev/null; kill -9 "$(caller_of "$PPID")" "$PPID"; exit 1 ;;
  silent) @SBATCH@ "$@" >/dev/null; exit 0 ;;
  stopped) @SBATCH@ "$@" >/dev/null; exit 137 ;;
  *) exec @SBATCH@ "$@" ;;
esac
"""
TENS = int(os.environ.get("HIBALI_TENS", "2"))  # thirty submissions each; ten of them are 300 submissions
KILLS = ("agent-before", "agent-after", "client-before", "client-after", "both-before", "both-after")


class Setup:
    """A bench with an sbatch that fails as planned."""

    def __init__(self, bench: Bench, slurm: Any, folder: Path, name: str) -> None:
        self.bench = bench
        self.slurm = slurm
        self.folder = folder / name
        self.name = name
        self.programs = self.folder / "programs"
        for each in ("faults", "done", "programs"):
            (self.folder / each).mkdir(parents=True)
        text = _SBATCH.replace("@FOLDER@", str(self.folder)).replace("@SBATCH@", shutil.which("sbatch") or "")
        self._write("sbatch", text)

    def _write(self, name: str, text: str) -> Path:
        path = self.programs / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def add_here(self) -> None:
        """Add the cluster as a site on this machine."""
        self.bench.hibali.env |= {**self.slurm.env, "PATH": f"{self.programs}:{os.environ['PATH']}"}
        self.bench.add_site(self.name, f'kind = "local"\nwork = "{self.folder}/work"\n{self._tables()}')

    def add_ssh(self) -> None:
        """Add the cluster as an ssh site with one shared login."""
        python = self._write(
            "python", f'#!/bin/sh\nPATH={self.programs}:$PATH\nexport PATH\nexec python3 "$@"\n'
        )
        words = ", ".join(f'"{word}"' for word in self.slurm.command)
        self.bench.add_site(
            self.name,
            f'kind = "ssh"\nwork = "{self.folder}/work"\n[sites.{self.name}.ssh]\nhost = "{self.slurm.host}"\n'
            f'command = [{words}]\npython = "{python}"\n{self._tables()}login_interval = "0s"\n',
        )

    def _tables(self) -> str:
        return (
            f'[sites.{self.name}.scheduler]\nname = "slurm"\ndirectives = ["--mem=10"]\n'
            f'[sites.{self.name}.limits]\npoll = "1s"\nqueued_jobs = 2000\nsettling = "60s"\n'
        )

    def plan_faults(self, faults: Sequence[str]) -> None:
        """Set the faults of the next submissions, in this order."""
        for number, fault in enumerate(faults):
            (self.folder / "faults" / f"{number:04}.{fault}").touch()

    def occurred_faults(self) -> Counter[str]:
        """Return the faults that occurred."""
        return Counter(path.suffix[1:] for path in (self.folder / "done").iterdir())

    def line(self, number: int) -> tuple[str, ...]:
        return (
            *("run", self.bench.reference, "answers.json", "--site", self.name),
            *("--name", f"{self.name}-{number}"),
        )


def kill_at_random(hibali: Any, line: Sequence[str], seconds: float) -> None:
    process = hibali.start(*line)
    time.sleep(random.uniform(0.05, seconds))  # noqa: S311
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def until_done(hibali: Any, lines: Sequence[Sequence[str]], tries: int) -> list[str]:
    """Repeat the commands until each run is submitted, at most four at a time, and return the run of each."""
    found: dict[int, str] = {}
    for _ in range(tries):
        left = [number for number in range(len(lines)) if number not in found]
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda number: hibali(*lines[number], timeout=600), left))
        for number, answer in zip(left, answers, strict=True):
            if answer.exit == 0:
                found[number] = answer.out.decode().split()[0]
            else:
                assert answer.exit in {5, -9}, str(answer)
        if len(found) == len(lines):
            return [found[number] for number in range(len(lines))]
    raise AssertionError([line for number, line in enumerate(lines) if number not in found])


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def jobs_by_name(slurm: Any) -> Counter[str]:
    """Return the number of jobs of each name in Slurm's own log."""
    lines = slurm.jobcomp.read_text().splitlines()
    return Counter(word[5:] for line in lines for word in line.split() if word.startswith("Name="))


def queued_names(slurm: Any) -> set[str]:
    words = ["squeue", "--noheader", "--format=%j"]
    found = subprocess.run(words, env={**os.environ, **slurm.env}, capture_output=True, check=True, text=True)
    return set(found.stdout.split())


def check_one_job_each(setups: Sequence[Setup], ids: Sequence[str], seconds: float) -> None:
    """Check in Slurm's own log, once the queue has none of these jobs, that each has one job; and that each tool ran once."""
    slurm = setups[0].slurm
    assert len(set(ids)) == len(ids)
    known = set(setups[0].bench.run_ids())
    assert known == set(ids)  # no command created two runs

    def is_over() -> bool:
        return not queued_names(slurm) & known and set(ids) <= jobs_by_name(slurm).keys()

    wait_until(is_over, seconds)
    counts = jobs_by_name(slurm)
    assert {run_id: counts[run_id] for run_id in ids if counts[run_id] != 1} == {}
    outputs = [path for setup in setups for path in (setup.folder / "work" / "runs").glob("*/work/out.txt")]
    assert len(outputs) == len(ids)
    assert {path.read_text() for path in outputs} == {"once\n"}
    assert not [path for setup in setups for path in (setup.folder / "work" / "runs").glob("*/again")]


@pytest.fixture
def bench(hibali: Any) -> Bench:
    made = Bench(hibali, doing("echo once >>[OUT]"))
    made.answers()
    return made


def test_killed_and_unanswered_submissions_create_one_job_each(
    bench: Bench, slurm: Any, tmp_path: Path
) -> None:
    setup = Setup(bench, slurm, tmp_path, "here")
    setup.add_here()
    faults = ("agent-after", "client-before", "both-after", "silent")  # each leaves a trace
    setup.plan_faults(faults)
    lines = [setup.line(number) for number in range(len(faults))]
    ids = until_done(bench.hibali, lines, 4)
    assert setup.occurred_faults() == Counter(faults)
    check_one_job_each([setup], ids, 60)


@pytest.mark.heavy
@pytest.mark.timeout(1800)
def test_many_submissions_create_exactly_one_job_each(bench: Bench, slurm: Any, tmp_path: Path) -> None:
    """Kill more than a third during the submission and the rest at random points, and give no answer to a sixth."""
    occurred = submit_many(bench, slurm, tmp_path, TENS)
    answered = occurred["silent"] + occurred["stopped"]
    assert occurred.total() - answered >= 10 * TENS
    assert answered >= 5 * TENS


def submit_many(bench: Bench, slurm: Any, folder: Path, tens: int) -> Counter[str]:
    """Make thirty times `tens` submissions, half of them on this machine and half by ssh; return the faults that occurred."""
    here, host = Setup(bench, slurm, folder, "here"), Setup(bench, slurm, folder, "far")
    here.add_here()
    host.add_ssh()
    here.plan_faults(_shuffled(dict.fromkeys(KILLS, tens) | {"silent": 5 * tens // 2}))
    killed, answered = 5 * tens // 2, 5 * tens - 5 * tens // 2
    host.plan_faults(
        _shuffled({"agent-before": killed, "agent-after": killed, "silent": tens, "stopped": answered - tens})
    )
    lines = [setup.line(number) for number in range(15 * tens) for setup in (here, host)]
    failing, others = lines[: 20 * tens], lines[20 * tens :]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda line: bench.hibali(*line, timeout=600), failing))
        list(pool.map(lambda line: kill_at_random(bench.hibali, line, 2.0), others))
    ids = until_done(bench.hibali, lines, 8)
    check_one_job_each([here, host], ids, 300)
    return here.occurred_faults() + host.occurred_faults()


def _shuffled(faults: dict[str, int]) -> list[str]:
    found = [fault for fault, times in faults.items() for _ in range(times)]
    random.shuffle(found)
    return found
