"""Run the benchmark cases and write the results (`make bench`). Contenders alternate within each round."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from subprocess import SubprocessError

from botocore.exceptions import BotoCoreError, ClientError

from benchmarks import (
    cores_cases,
    data_hosts_case,
    filesystem_cases,
    gridftp_cases,
    link_cases,
    loop_cases,
    nodes_case,
    pilot_case,
    planning_cases,
    s3_cases,
    server_cases,
    sweep_case,
    uftp_cases,
)
from benchmarks.case import Case, Contender, with_earlier
from benchmarks.load import MOST_LOAD, PATIENCE_SECONDS, wait_for_low_load
from benchmarks.machine import commit, machine, today
from benchmarks.measuring import FailedError, end_logins, hash_rate, measure
from benchmarks.peers import REPOSITORY, prepare_peers
from benchmarks.results import Results
from benchmarks.samples import Amount, Measured, Sample
from benchmarks.testbed import HIBALI, MISSING_ERRORS, Testbed, open_testbed

CASES: tuple[Case, ...] = (
    *link_cases.CASES,
    *gridftp_cases.CASES,
    *uftp_cases.CASES,
    *loop_cases.CASES,
    *s3_cases.CASES,
    *server_cases.CASES,
    *cores_cases.CASES,
    *planning_cases.CASES,
    *sweep_case.CASES,
    *pilot_case.CASES,
    *nodes_case.CASES,
    *data_hosts_case.CASES,
    *filesystem_cases.CASES,
)

# these errors end one case; the next cases still run
_CASE_ERRORS = (FailedError, OSError, SubprocessError, BotoCoreError, ClientError)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the selected cases.

    Returns:
        0 when every selected case was measured, refused or reported as not measured; 2 for a wrong option.
    """
    options = _parser().parse_args(argv)
    try:
        selected = select_cases(options.cases)
    except LookupError as problem:
        print(problem, file=sys.stderr)
        return 2
    if options.list:
        print("\n".join(case.name for case in selected))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # stop the servers as after Ctrl-C
    prepare_peers()
    if options.before is not None:
        compile_both(options.before)
    results = Results.open(
        machine(), quick=options.scale != 1 or options.any_load, compared=options.before is not None
    )
    with open_testbed() as testbed:
        _run_all(selected, options, testbed, results)
    print(f"Results written to {results.path}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add("cases", nargs="*", metavar="CASE", help="a case, or the beginning of several names; all by default")
    add("--list", action="store_true", help="print the names of the cases and exit")
    add("--full", action="store_true", help="full sizes and rounds, without a time limit")
    add("--minutes", type=float, default=60, help="start no case and no round after this time (default: 60)")
    add("--repeats", type=_rounds, default=0, metavar="N", help="rounds of each case, instead of its own")
    add(
        "--scale",
        type=float,
        default=1.0,
        metavar="X",
        help="multiply the sizes for a quick check, with results in .cache/benchmarks instead of RESULTS.md",
    )
    add(
        "--before",
        type=Path,
        metavar="CHECKOUT",
        help="compare hibali with that of another checkout (with its environment) instead of its peers, with results in .cache/benchmarks",
    )
    add(
        "--any-load",
        action="store_true",
        help=f"also measure above a load average of {MOST_LOAD:g}, with results in .cache/benchmarks",
    )
    return parser


def _rounds(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def select_cases(patterns: Sequence[str]) -> list[Case]:
    """Select cases: a full name selects that case alone, a prefix selects all cases that begin with it."""
    names = [case.name for case in CASES]
    selected: set[str] = set()
    for pattern in patterns:
        matches = [pattern] if pattern in names else [name for name in names if name.startswith(pattern)]
        if not matches:
            raise LookupError(f"No case begins with {pattern!r}. Available cases: {' '.join(names)}")
        selected.update(matches)
    return [case for case in CASES if not patterns or case.name in selected]


def compile_both(before: Path) -> None:
    """Compile the modules of both checkouts, so that no round does."""
    for checkout in (REPOSITORY, before):
        words = [str(checkout / ".venv" / "bin" / "python"), "-m", "compileall", "-q"]
        subprocess.run([*words, "-x", r"/\.", "."], cwd=checkout, check=True, stdin=subprocess.DEVNULL)


def _run_all(
    selected: Sequence[Case], options: argparse.Namespace, testbed: Testbed, results: Results
) -> None:
    """Run the cases one after another, refuse those that begin beside other processes, and write the page after each."""
    end = float("inf") if options.full else time.monotonic() + 60 * options.minutes
    order = [one.name for one in CASES]
    for case in selected:
        if time.monotonic() > end:
            print(f"{case.name}: not started, because {options.minutes:g} minutes are over", file=sys.stderr)
            continue
        patience = 0.0 if options.any_load else min(end, time.monotonic() + PATIENCE_SECONDS)
        load = wait_for_low_load(patience)
        if load > MOST_LOAD and not options.any_load:
            print(f"{case.name}: refused, because the load average is {load:.2f}", file=sys.stderr)
            results.refuse(case.name, today(), commit(), load)
        else:
            print(f"{case.name} (load average {load:.2f})", file=sys.stderr)
            testbed.scale = options.scale * (1.0 if options.full else case.brief.scale)
            repeats = options.repeats or (case.repeats if options.full else case.brief.repeats)
            results.add(run_case(case, testbed, repeats, load=load, end=end, before=options.before))
        results.write(order)


def run_case(
    case: Case, testbed: Testbed, repeats: int, *, load: float, end: float, before: Path | None = None
) -> Measured:
    """Run the rounds of one case, at least one and no further one after `end`; record why something was not measured.

    With another checkout, hibali's contenders alternate with those of `before`, and the bars compare these.
    """
    measured = Measured(case.name, case.name, Amount(0, 0), case.bars, today(), commit(), load, testbed.scale)
    try:
        with case.prepare(testbed) as prepared:
            measured.amount = prepared.amount
            measured.subject = case.describe(prepared.amount)
            contenders = [contender for contender in prepared.contenders if not contender.missing]
            if before is not None:
                contenders, measured.bars = with_earlier(contenders, before.resolve())
            measured.missing = {one.name: one.missing for one in prepared.contenders if one.missing}
            measured.samples = {contender.name: [] for contender in contenders}
            for contender in contenders:
                if contender.warm_up:
                    _run(case, contender, testbed, "before", measured)
            for number in range(repeats):
                if number and time.monotonic() > end:
                    break
                if any(bar.hashed for bar in case.bars):
                    measured.hash_rates.append(hash_rate())
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
        if {*HIBALI} <= {*argv}:
            measured.settings[contender.name] = testbed.settings_of(argv)
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
