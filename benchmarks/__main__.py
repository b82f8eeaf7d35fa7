"""Run the benchmark cases and write the results (`make bench`). Contenders alternate within each round.

CASES="link-large-push s3-small-up" selects cases by name or prefix, REPEATS sets the number of rounds, SCALE
reduces the sizes for a quick check, whose results go to .cache/benchmarks instead of RESULTS.md.
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
from benchmarks.testbed import MISSING_ERRORS, Testbed, open_testbed

CASES: tuple[Case, ...] = (
    *link_cases.CASES,
    *gridftp_cases.CASES,
    *loop_cases.CASES,
    *s3_cases.CASES,
    *planning_cases.CASES,
    *sweep_case.CASES,
    *pilot_case.CASES,
)

# these errors end one case; the next cases still run
_CASE_ERRORS = (FailedError, OSError, SubprocessError, BotoCoreError, ClientError)


def main() -> int:
    """Run the selected cases.

    Returns:
        0 when every selected case was measured or reported as not measured; 2 for an invalid variable.
    """
    try:
        scale, repeats = float(os.environ.get("SCALE") or 1), int(os.environ.get("REPEATS") or 0)
        selected = _select_cases(os.environ.get("CASES", "").split())
    except (ValueError, LookupError) as problem:
        print(problem, file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # stop the servers as after Ctrl-C
    prepare_peers()
    results = Results.open(quick=scale != 1)
    with open_testbed(scale) as testbed:
        for case in selected:
            print(f"{case.name}: {case.subject}", file=sys.stderr)
            results.add(run_case(case, testbed, repeats or case.repeats))
            results.write([one.name for one in CASES])
    print(f"Results written to {results.page}")
    return 0


def _select_cases(patterns: Sequence[str]) -> list[Case]:
    """Select cases: a full name selects that case alone, a prefix selects all cases that begin with it."""
    names = [case.name for case in CASES]
    selected: set[str] = set()
    for pattern in patterns:
        matches = [pattern] if pattern in names else [name for name in names if name.startswith(pattern)]
        if not matches:
            raise LookupError(f"No case begins with {pattern!r}. Available cases: {' '.join(names)}")
        selected.update(matches)
    return [case for case in CASES if not patterns or case.name in selected]


def run_case(case: Case, testbed: Testbed, repeats: int) -> Measured:
    """Run all rounds of one case, and record why a contender or the case could not be measured."""
    measured = Measured(case.name, case.subject, Amount(0, 0), case.bars, today(), commit(), testbed.scale)
    try:
        with case.prepare(testbed) as prepared:
            measured.amount = prepared.amount
            contenders = [contender for contender in prepared.contenders if not contender.missing]
            measured.missing = {one.name: one.missing for one in prepared.contenders if one.missing}
            measured.samples = {contender.name: [] for contender in contenders}
            for contender in contenders:
                if contender.warm_up:
                    _run(case, contender, testbed, "before", measured)
            for number in range(repeats):
                for index, contender in enumerate(contenders):
                    sample = _run(case, contender, testbed, f"{number}-{index}", measured)
                    measured.samples[contender.name].append(sample)
            if prepared.table is not None and any(any(rounds) for rounds in measured.samples.values()):
                measured.table = prepared.table()
    except (*MISSING_ERRORS, *_CASE_ERRORS) as problem:
        measured.missing[""] = _first_line(problem)
        print(f"  not measured: {problem}", file=sys.stderr)
    return measured


def _first_line(problem: BaseException) -> str:
    return next(iter(str(problem).splitlines()), type(problem).__name__)


def _run(case: Case, contender: Contender, testbed: Testbed, name: str, measured: Measured) -> Sample | None:
    """Run a contender once with an empty target.

    Returns:
        The sample, or None when the run failed; the failure is printed and recorded in the results.
    """
    os.sync()
    contender.target.create(name)
    try:
        if contender.log_in and contender.logins:
            end_logins(contender.logins)
        argv, environment = contender.argv(name), dict(contender.environment)
        if not contender.target.reused:
            environment["HIBALI_STATE"] = str(testbed.state())
        sample = measure(argv, environment, testbed.work, logins=contender.logins, watch=case.watch)
        contender.target.check(name)
        sample = contender.target.adjust(sample)
    except FailedError as problem:
        measured.missing[contender.name] = f"failed: {problem}"
        print(f"  {contender.name} failed: {problem}", file=sys.stderr)
        return None
    finally:
        contender.target.remove(name)
    print(f"  {contender.name}: {sample.seconds:.2f} s", file=sys.stderr)
    return sample


if __name__ == "__main__":
    sys.exit(main())
