"""Report a measured case: each performance target with its measured value, and all contenders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from benchmarks.page import Section, cell
from benchmarks.samples import MEGA, Amount, Bar, Measured, Sample, bar_value, is_met, median_of

HEAD = """\
# Benchmark results

Written by `make bench`, which runs within an hour, and by `make bench-full` with the full sizes; do not edit. A run replaces
the cases that it measures. A case waits up to five minutes until the load average of ten seconds is at most 1; otherwise it is
refused, and keeps its earlier figures.

Contenders alternate within each round (A B C A B C ...), each with an empty
target that is checked afterwards; sources are in the page cache, and `sync` runs before each. Seconds are the median of all
rounds; a comparison is the median of each round's ratio to the best of the named peers. CPU is user and system time of
the command, its children and its persistent ssh connections, not of the servers, which share this machine. The peak is
the resident memory of the largest process, and at least 11 MB, the size of the process that starts it. Without "login
kept", every run logs in as after a reboot, and its seconds include that. A peer "with one sha256" does not hash what it
transfers; the CPU seconds are added that one sha256 of all bytes takes, at the speed measured before each round.
"""
_UNITS = {"rate": " MB/s", "peak": " MB", "peak_of_all": " MB"}


def section_of(case: Measured, environment: str, *, quick: bool = False) -> Section:
    """Return the case's part of the page; the targets of a quick run are not judged."""
    promises = tuple(_bar_line(bar, case, quick=quick) for bar in case.bars)
    return Section(case.name, promises, "\n".join(_case_lines(case, environment)))


def _bar_line(bar: Bar, case: Measured, *, quick: bool) -> str:
    value = bar_value(bar, case)
    source = f"{case.date} | {case.commit} | {case.load:.2f} |"
    if value is None:
        why = case.missing.get("") or next(
            (case.missing[name] for name in bar.than if name in case.missing), ""
        )
        return f"| {case.name} | {bar.text} | not measured: {cell(why or 'a contender failed')} | | {source}"
    word = "not judged" if quick else "met" if is_met(bar, value) else "**not met**"
    size = "" if case.scale == 1 else f", at {case.scale:g} of the size"
    shown = f"{value:.2f}{_UNITS.get(bar.measure, '')}"
    return f"| {case.name} | {bar.text} | {shown} | {word}{size} | {source}"


def _settings_lines(case: Measured) -> Iterator[str]:
    """Name the settings of hibali's contenders that are not its defaults; contenders with the same ones share a line."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, settings in case.settings.items():
        alike.setdefault(tuple(settings), []).append(name)
    for changed, names in alike.items():
        who = "; ".join(names)
        shown = ", ".join(f"`{each}`" for each in changed)
        yield f"- {who}: {f'not the defaults: {shown}' if shown else 'all settings are the defaults'}"


def _case_lines(case: Measured, environment: str) -> Iterator[str]:
    subject = f"{case.subject[:1].upper()}{case.subject[1:]}"
    yield (
        f"{subject}. {case.date}, commit {case.commit}, load average {case.load:.2f} at the start,"
        f" environment `{environment}`.\n"
    )
    if "" in case.missing:
        yield f"Not measured: {case.missing['']}"
        return
    if case.settings:
        yield "Settings of hibali:\n"
        yield from _settings_lines(case)
        yield ""
    all_together = any(sample and sample.peak_of_all for rounds in case.samples.values() for sample in rounds)
    more = " peak of all |" if all_together else ""
    yield f"| contender | median s | least to most | rate | CPU s | peak |{more} runs |"
    yield f"|---|---:|---:|---:|---:|---:|{'---:|' if more else ''}---:|"
    for name, rounds in case.samples.items():
        yield _contender_line(name, rounds, case.amount, all_together=all_together)
    if case.hash_rates:
        yield ""
        yield f"- sha256: {median(case.hash_rates) / MEGA:,.0f} MB per CPU second"
    if case.missing:
        yield ""
    for name, why in case.missing.items():
        yield f"- {name}: {cell(why)}"
    if case.table:
        head, *lines = case.table
        yield ""
        yield f"| {' | '.join(cell(text) for text in head)} |"
        yield f"|{'---|' * len(head)}"
        for line in lines:
            yield f"| {' | '.join(cell(text) for text in line)} |"


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
