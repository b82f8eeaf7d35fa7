"""`make bench`: runs the cases, contenders in turn within each round, and writes the results.

CASES="link-large-push s3-small-up" chooses (a whole name or its beginning), REPEATS sets the rounds, SCALE
shrinks the sizes for a quick look, which is written below .cache/benchmarks and not to RESULTS.md.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from subprocess import SubprocessError

from botocore.exceptions import BotoCoreError, ClientError

from benchmarks import gridftp_cases, link_cases, loop_cases, pilot_case, planning_cases, s3_cases, sweep_case
from benchmarks.case import Case, Contender
from benchmarks.machine import commit, today
from benchmarks.measuring import FailedError, end_logins, measure
from benchmarks.peers import prepare_peers
from benchmarks.results import Results
from benchmarks.samples import Amount, Measured, Sample
from benchmarks.stage import MissingError, Stage, open_stage

CASES: tuple[Case, ...] = (
    *link_cases.CASES,
    *gridftp_cases.CASES,
    *loop_cases.CASES,
    *s3_cases.CASES,
    *planning_cases.CASES,
    *sweep_case.CASES,
    *pilot_case.CASES,
)

_BROKEN = (
    FailedError,
    OSError,
    SubprocessError,
    BotoCoreError,
    ClientError,
)  # ends a case, not those after it


def main() -> int:
    """0 when every chosen case was measured or named as not measured; 2 for a wrong word."""
    try:
        scale, repeats = float(os.environ.get("SCALE") or 1), int(os.environ.get("REPEATS") or 0)
        chosen = _chosen(os.environ.get("CASES", "").split())
    except (ValueError, LookupError) as problem:
        print(problem, file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what is up is taken down as after Ctrl-C
    prepare_peers()
    results = Results.open(quick=scale != 1)
    with open_stage(scale) as stage:
        for case in chosen:
            print(f"{case.name}: {case.subject}", file=sys.stderr)
            results.add(run_case(case, stage, repeats or case.repeats))
            results.write([one.name for one in CASES])
    print(f"written: {results.page}")
    return 0


def _chosen(words: Sequence[str]) -> list[Case]:
    """A whole name means that case alone, any other word all cases that begin with it."""
    names = [case.name for case in CASES]
    chosen: set[str] = set()
    for word in words:
        meant = [word] if word in names else [name for name in names if name.startswith(word)]
        if not meant:
            raise LookupError(f"no case begins with {word!r}; there are: {' '.join(names)}")
        chosen.update(meant)
    return [case for case in CASES if not words or case.name in chosen]


def run_case(case: Case, stage: Stage, repeats: int) -> Measured:
    """All rounds of one case; what cannot be measured is named."""
    measured = Measured(case.name, case.subject, Amount(0, 0), case.bars, today(), commit(), stage.scale)
    try:
        with case.prepare(stage) as field:
            measured.amount = field.amount
            contenders = [contender for contender in field.contenders if not contender.missing]
            measured.missing = {one.name: one.missing for one in field.contenders if one.missing}
            measured.samples = {contender.name: [] for contender in contenders}
            for contender in contenders:
                if contender.warm_up:
                    _run(case, contender, stage, "before", measured)
            for number in range(repeats):
                for index, contender in enumerate(contenders):
                    sample = _run(case, contender, stage, f"{number}-{index}", measured)
                    measured.samples[contender.name].append(sample)
            if field.told is not None and any(any(rounds) for rounds in measured.samples.values()):
                measured.told = field.told()
    except (*MissingError, *_BROKEN) as problem:
        measured.missing[""] = _first_line(problem)
        print(f"  not measured: {problem}", file=sys.stderr)
    return measured


def _first_line(problem: BaseException) -> str:
    return next(iter(str(problem).splitlines()), type(problem).__name__)


def _run(case: Case, contender: Contender, stage: Stage, place: str, measured: Measured) -> Sample | None:
    """One run onto a fresh place; None when it fails, which is told at once and in the results."""
    os.sync()
    contender.target.fresh(place)
    try:
        if contender.log_in and contender.logins:
            end_logins(contender.logins)
        words, environment = contender.words(place), dict(contender.environment)
        if not contender.target.stays:
            environment["HIBALI_STATE"] = str(stage.state())
        sample = measure(words, environment, stage.work, logins=contender.logins, watch=case.watch)
        contender.target.check(place)
        sample = contender.target.timed(sample)
    except FailedError as problem:
        measured.missing[contender.name] = f"failed: {problem}"
        print(f"  {contender.name} failed: {problem}", file=sys.stderr)
        return None
    finally:
        contender.target.clear(place)
    print(f"  {contender.name}: {sample.seconds:.2f} s", file=sys.stderr)
    return sample


if __name__ == "__main__":
    sys.exit(main())
