"""Render RESULTS.md: each performance target with its measured value, then each case with all its contenders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from benchmarks.samples import MEGA, Amount, Bar, Measured, Sample, bar_value, is_met, median_of

_HEAD = """\
# Benchmark results

Written by `make bench`; do not edit. Contenders alternate within each round (A B C A B C ...), each with an empty
target that is checked afterwards; sources are in the page cache, and `sync` runs before each. Seconds are the median of all
rounds; a comparison is the median of each round's ratio to the best of the named peers. CPU is user and system time of
the command, its children and its persistent ssh connections, not of the servers, which share this machine. The peak is
the resident memory of the largest process, and at least 11 MB, the size of the process that starts it. Without "login
kept", every run logs in again, and its seconds include that.
"""
_UNITS = {"rate": " MB/s", "peak": " MB", "peak_of_all": " MB"}


def render(cases: Sequence[Measured], absent: Sequence[str], machine: Mapping[str, str]) -> str:
    """Render the page; `absent` are the names of cases that were never run."""
    lines = [_HEAD, *_warnings(cases), "## Where\n", "| | |", "|---|---|"]
    lines += [f"| {name} | {_cell(value)} |" for name, value in machine.items()]
    lines += ["", "## Promises\n", "| case | promised | measured | |", "|---|---|---|---|"]
    lines += [_bar_line(bar, case) for case in cases for bar in case.bars]
    lines += [f"| {name} | | not measured: not run yet | |" for name in absent]
    for case in cases:
        lines += ["", *_case_lines(case)]
    return "\n".join(lines) + "\n"


def _warnings(cases: Sequence[Measured]) -> Iterator[str]:
    scales = sorted({case.scale for case in cases if case.scale != 1})
    if scales:
        shown = ", ".join(f"{scale:g}" for scale in scales)
        yield f"**Quick run with {shown} of the sizes: these figures cannot be compared with the performance targets.**\n"


def _bar_line(bar: Bar, case: Measured) -> str:
    value = bar_value(bar, case)
    if value is None:
        why = case.missing.get("") or next(
            (case.missing[name] for name in bar.than if name in case.missing), ""
        )
        return f"| {case.name} | {bar.text} | not measured: {_cell(why or 'a contender failed')} | |"
    word = "met" if is_met(bar, value) else "**not met**"
    word = word if case.scale == 1 else "not judged"
    return f"| {case.name} | {bar.text} | {value:.2f}{_UNITS.get(bar.measure, '')} | {word} |"


def _case_lines(case: Measured) -> Iterator[str]:
    yield f"## {case.name}\n"
    yield f"{case.subject[:1].upper()}{case.subject[1:]}. {case.date}, commit {case.commit}.\n"
    if "" in case.missing:
        yield f"Not measured: {case.missing['']}"
        return
    if case.scale != 1:
        yield f"Scaled to {case.amount.files} files, {case.amount.size / MEGA:.1f} MB.\n"
    all_together = any(sample and sample.peak_of_all for rounds in case.samples.values() for sample in rounds)
    more = " peak of all |" if all_together else ""
    yield f"| contender | median s | least to most | rate | CPU s | peak |{more} runs |"
    yield f"|---|---:|---:|---:|---:|---:|{'---:|' if more else ''}---:|"
    for name, rounds in case.samples.items():
        yield _contender_line(name, rounds, case.amount, all_together=all_together)
    if case.missing:
        yield ""
    for name, why in case.missing.items():
        yield f"- {name}: {_cell(why)}"
    if case.table:
        head, *lines = case.table
        yield ""
        yield f"| {' | '.join(_cell(text) for text in head)} |"
        yield f"|{'---|' * len(head)}"
        for line in lines:
            yield f"| {' | '.join(_cell(text) for text in line)} |"


def _contender_line(name: str, rounds: Sequence[Sample | None], amount: Amount, *, all_together: bool) -> str:
    found = [sample for sample in rounds if sample is not None]
    failed = len(rounds) - len(found)
    runs = f"{len(found)}" + (f", {failed} failed" if failed else "")
    if not found:
        return f"| {name} | none | | | | |{' |' if all_together else ''} {runs} |"
    seconds = [sample.seconds for sample in found]
    together = f" {max(sample.peak_of_all for sample in found) / MEGA:.0f} MB |" if all_together else ""
    return (
        f"| {name} | {median(seconds):.2f} | {min(seconds):.2f} to {max(seconds):.2f} |"
        f" {_rate(found, amount)} | {median_of(found, 'cpu', amount):.2f} |"
        f" {max(sample.peak for sample in found) / MEGA:.0f} MB |{together} {runs} |"
    )


def _rate(found: Sequence[Sample], amount: Amount) -> str:
    """Format the rate: bytes per second for large files, files per second for small ones."""
    seconds = median(sample.seconds for sample in found)
    if amount.size >= amount.files * MEGA:
        return f"{amount.size / MEGA / seconds:.1f} MB/s"
    return f"{amount.files / seconds:,.0f} {amount.what}/s"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
