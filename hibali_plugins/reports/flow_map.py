"""Draw which sites send and receive data now, and how fast, and how many runs are there; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from hibali.amounts import format_size
from hibali.text import counted
from hibali_plugins.reports.timeline import shorten
from runs.present import UnfinishedRun
from transfers.history.running import RunningOperation
from transfers.history.tally import MOVING

_HERE = "this machine"
_WIDTH, _LEFT, _RIGHT, _ROW, _MIDDLE = 360.0, 84.0, 186.0, 40.0, 150.0
_MOST_SITES = 12


@dataclass(frozen=True, slots=True)
class Place:
    """A site, or this machine: the end of its lines, its name, and what flows and runs there."""

    name: str
    y: float
    text: str


@dataclass(frozen=True, slots=True)
class FlowMap:
    """All that the template draws; each flow is the path of a line, its width, and a text that explains it."""

    width: float
    height: float
    left: float
    right: float
    here_y: float
    places: Sequence[Place]
    flows: Sequence[tuple[str, float, str]]
    text: str


def draw_flows(
    operations: Sequence[RunningOperation], runs: Sequence[UnfinishedRun], sites: Collection[str]
) -> FlowMap | None:
    """Place this machine at the left and the sites where something flows or runs at the right; None if there are none."""
    # the rate of any other phase is what is hashed, and a removal moves no files
    operations = [each for each in operations if each.phase == MOVING and each.counts["files_to_do"]]
    jobs = Counter(each.run.site for each in runs)
    ends = [
        tuple(_site_of(str(each.fields[name]), sites) for name in ("source", "target")) for each in operations
    ]
    names = sorted({name for pair in ends for name in pair if name != _HERE} | jobs.keys())[:_MOST_SITES]
    if not names:
        return None
    here = len(names) * _ROW / 2
    ys = {_HERE: here} | {name: (row + 0.5) * _ROW for row, name in enumerate(names)}
    moved = [(pair, each.rate or 0.0) for pair, each in zip(ends, operations, strict=True)]
    places = [Place(shorten(name), ys[name], "; ".join(_facts(name, moved, jobs))) for name in names]
    fastest = max((rate for _, rate in moved), default=0.0) or 1.0
    pairs = {pair for pair, _ in moved}
    flows = [
        (
            _line(source, target, ys, _beside(source, target, pairs)),
            1.5 + 3.5 * rate / fastest,
            f"{source} to {target}: {_rate(rate)}",
        )
        for (source, target), rate in moved
        if source != target and {source, target} <= ys.keys()
    ]
    text = "What flows and runs now. " + ". ".join(f"{each.name}: {each.text}" for each in places)
    return FlowMap(_WIDTH, len(names) * _ROW, _LEFT, _RIGHT, here, places, flows, text)


def _site_of(end: str, sites: Collection[str]) -> str:
    name, colon, _ = end.partition(":")
    return name if colon and name in sites else _HERE


def _facts(name: str, moved: Sequence[tuple[tuple[str, ...], float]], jobs: Counter[str]) -> Iterator[str]:
    for index, verb in ((1, "receives"), (0, "sends")):
        rates = [rate for pair, rate in moved if pair[index] == name]
        if rates:
            yield f"{verb} {_rate(sum(rates))}"
    if jobs[name]:
        yield counted(jobs[name], "unfinished run")


def _rate(rate: float) -> str:
    return f"{format_size(round(rate))}/s"


def _beside(source: str, target: str, pairs: Collection[tuple[str, ...]]) -> float:
    """Return how much lower a line is drawn, so that the two directions between the same places are beside each other."""
    return (4.0 if source < target else -4.0) if (target, source) in pairs else 0.0


def _line(source: str, target: str, ys: dict[str, float], beside: float) -> str:
    """Return the path from source to target, this much lower than the middle of their circles."""
    start, end = (
        f"{_LEFT + 4 if name == _HERE else _RIGHT - 8} {ys[name] + beside:.1f}" for name in (source, target)
    )
    if _HERE in (source, target):
        return f"M{start}L{end}"
    return f"M{start}C{_MIDDLE} {ys[source] + beside:.1f} {_MIDDLE} {ys[target] + beside:.1f} {end}"
