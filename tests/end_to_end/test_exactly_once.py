"""Many submissions to a real Slurm, each killed or unanswered at some point, and typed again: one job each, none lost."""

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

# What becomes of a submission, in the order in which they come: files that each call takes one of. The caller of sbatch is
# the agent at the site, and where the site is this machine, the agent's caller is hibali itself.
_SBATCH = """#!/bin/sh
fate=none
for each in @FOLDER@/fates/*; do
  [ -e "$each" ] || break
  if mv "$each" @FOLDER@/done/ 2>/dev/null; then fate=${each##*.}; break; fi
done
caller_of() { read -r stat <"/proc/$1/stat"; set -- ${stat##*) }; echo "$2"; }
case $fate in
  agent-before) kill -9 "$PPID"; exit 1 ;;
  agent-after) @SBATCH@ "$@" >/dev/null; kill -9 "$PPID"; exit 1 ;;
  client-before) kill -9 "$(caller_of "$PPID")"; exec @SBATCH@ "$@" ;;
  client-after) said=$(@SBATCH@ "$@"); kill -9 "$(caller_of "$PPID")"; echo "$said" ;;
  both-before) kill -9 "$(caller_of "$PPID")" "$PPID"; exit 1 ;;
  both-after) @SBATCH@ "$@" >/dev/null; kill -9 "$(caller_of "$PPID")" "$PPID"; exit 1 ;;
  silent) @SBATCH@ "$@" >/dev/null; exit 0 ;;
  stopped) @SBATCH@ "$@" >/dev/null; exit 137 ;;
  *) exec @SBATCH@ "$@" ;;
esac
"""
TENS = int(os.environ.get("HIBALI_TENS", "2"))  # thirty submissions each; ten of them are the promised 300
KILLS = ("agent-before", "agent-after", "client-before", "client-after", "both-before", "both-after")


class Setup:
    """A bench, and an sbatch in whose hands submissions fail as they are told."""

    def __init__(self, bench: Bench, slurm: Any, folder: Path, name: str) -> None:
        self.bench = bench
        self.slurm = slurm
        self.folder = folder / name
        self.name = name
        self.programs = self.folder / "programs"
        for each in ("fates", "done", "programs"):
            (self.folder / each).mkdir(parents=True)
        text = _SBATCH.replace("@FOLDER@", str(self.folder)).replace("@SBATCH@", shutil.which("sbatch") or "")
        self._write("sbatch", text)

    def _write(self, name: str, text: str) -> Path:
        path = self.programs / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def add_here(self) -> None:
        """The cluster as a site of this machine."""
        self.bench.hibali.env |= {**self.slurm.env, "PATH": f"{self.programs}:{os.environ['PATH']}"}
        self.bench.add_site(self.name, f'kind = "local"\nwork = "{self.folder}/work"\n{self._tables()}')

    def add_far(self) -> None:
        """The cluster by ssh, with one login that is kept."""
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

    def threaten(self, fates: Sequence[str]) -> None:
        """The next submissions go so, one after the other."""
        for number, fate in enumerate(fates):
            (self.folder / "fates" / f"{number:04}.{fate}").touch()

    def met(self) -> Counter[str]:
        """The fates that came true."""
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
    """The run of each line, typed again until it is submitted; not more than four at a time."""
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
    """How many jobs of each name Slurm's own log has."""
    lines = slurm.jobcomp.read_text().splitlines()
    return Counter(word[5:] for line in lines for word in line.split() if word.startswith("Name="))


def queued_names(slurm: Any) -> set[str]:
    words = ["squeue", "--noheader", "--format=%j"]
    found = subprocess.run(words, env={**os.environ, **slurm.env}, capture_output=True, check=True, text=True)
    return set(found.stdout.split())


def check_one_job_each(setups: Sequence[Setup], ids: Sequence[str], seconds: float) -> None:
    """In Slurm's own log, once nothing of ours is in the queue; and each tool ran once."""
    slurm = setups[0].slurm
    assert len(set(ids)) == len(ids)
    known = set(setups[0].bench.run_ids())
    assert known == set(ids)  # no line began two runs

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


def test_submissions_that_are_killed_or_not_answered_are_one_job_each(
    bench: Bench, slurm: Any, tmp_path: Path
) -> None:
    setup = Setup(bench, slurm, tmp_path, "here")
    setup.add_here()
    fates = ("agent-after", "client-before", "both-after", "silent")  # each leaves a trace, so nobody waits
    setup.threaten(fates)
    lines = [setup.line(number) for number in range(len(fates))]
    ids = until_done(bench.hibali, lines, 4)
    assert setup.met() == Counter(fates)
    check_one_job_each([setup], ids, 60)


@pytest.mark.heavy
@pytest.mark.timeout(1800)
def test_many_submissions_are_as_many_jobs(bench: Bench, slurm: Any, tmp_path: Path) -> None:
    """More than a third are killed while they are being submitted, a sixth get no answer, the rest are killed at random points."""
    met = submit_many(bench, slurm, tmp_path, TENS)
    answered = met["silent"] + met["stopped"]
    assert met.total() - answered >= 10 * TENS
    assert answered >= 5 * TENS


def submit_many(bench: Bench, slurm: Any, folder: Path, tens: int) -> Counter[str]:
    """Thirty times `tens` submissions, half of them here and half of them by ssh; what befell them."""
    here, host = Setup(bench, slurm, folder, "here"), Setup(bench, slurm, folder, "far")
    here.add_here()
    host.add_far()
    here.threaten(_shuffled(dict.fromkeys(KILLS, tens) | {"silent": 5 * tens // 2}))
    killed, answered = 5 * tens // 2, 5 * tens - 5 * tens // 2
    host.threaten(
        _shuffled({"agent-before": killed, "agent-after": killed, "silent": tens, "stopped": answered - tens})
    )
    lines = [setup.line(number) for number in range(15 * tens) for setup in (here, host)]
    doomed, others = lines[: 20 * tens], lines[20 * tens :]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda line: bench.hibali(*line, timeout=600), doomed))
        list(pool.map(lambda line: kill_at_random(bench.hibali, line, 2.0), others))
    ids = until_done(bench.hibali, lines, 8)
    check_one_job_each([here, host], ids, 300)
    return here.met() + host.met()


def _shuffled(fates: dict[str, int]) -> list[str]:
    found = [fate for fate, times in fates.items() for _ in range(times)]
    random.shuffle(found)
    return found
