"""Define the measurements of a case and compute medians, ratios and performance targets from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

MEGA = 1_000_000


@dataclass(frozen=True)
class Sample:
    """One run of one contender: wall and CPU seconds, peak bytes of the largest process and of all processes."""

    seconds: float
    cpu: float
    peak: int
    peak_of_all: int = 0


@dataclass(frozen=True)
class Amount:
    """The size of a case: number of files (or of the items named by `what`) and bytes."""

    files: int
    size: int
    what: str = "files"

    def describe(self, noun: str) -> str:
        """Return the amount in words, as in "one file of 2 GiB" and "10,000 files of 10 KiB"."""
        each = _binary(self.size // self.files)
        return f"one {noun} of {each}" if self.files == 1 else f"{self.files:,} {noun}s of {each}"


def _binary(size: int) -> str:
    number, unit = float(size), "bytes"
    for larger in ("KiB", "MiB", "GiB"):
        if number < 1024:
            break
        number, unit = number / 1024, larger
    return f"{number:.4g} {unit}"


@dataclass(frozen=True)
class Bar:
    """A performance target of contender `ours`: a limit, absolute or relative to the best of the peers `than`.

    "At most 0.6 of a peer" means 0.6 of its seconds; "at least 5 times a peer" means that the peer takes 5 times as long.
    With `hashed`, the peers, which prove nothing, are given the CPU seconds of one sha256 of all bytes in addition.
    """

    text: str
    ours: str
    limit: float
    at_least: bool = False
    measure: str = "seconds"  # or cpu, rate (MB/s), peak and peak_of_all (MB)
    than: tuple[str, ...] = ()
    hashed: bool = False


@dataclass
class Measured:
    """All rounds of one case; the n-th sample of every contender is from the n-th round, None if it failed."""

    name: str
    subject: str
    amount: Amount
    bars: tuple[Bar, ...]
    date: str = ""
    commit: str = ""
    load: float = 0.0  # load average of the ten seconds before
    scale: float = 1.0  # part of the full size
    settings: dict[str, list[str]] = field(
        default_factory=dict
    )  # of hibali's contenders, other than its defaults
    samples: dict[str, list[Sample | None]] = field(default_factory=dict)
    hash_rates: list[float] = field(default_factory=list)  # bytes per CPU second of sha256, in each round
    # why a contender (or the case: key "") was not measured
    missing: dict[str, str] = field(default_factory=dict)
    table: list[list[str]] = field(default_factory=list)  # additional table, header row first


_MEASURES: Mapping[str, Callable[[Sample, Amount], float]] = {
    "seconds": lambda sample, _: sample.seconds,
    "cpu": lambda sample, _: sample.cpu,
    "rate": lambda sample, amount: amount.size / MEGA / sample.seconds,
    "peak": lambda sample, _: sample.peak / MEGA,
    "peak_of_all": lambda sample, _: sample.peak_of_all / MEGA,
}


def bar_value(bar: Bar, measured: Measured) -> float | None:
    """Compute the value to compare with the target's limit; None if no round has all its contenders.

    Relative to peers, it is the median over the rounds of the ratio to the best peer, so that a temporary
    slowdown of the machine affects both. A peak is the maximum of all rounds, other measures the median.
    """
    read = _MEASURES[bar.measure]
    rounds = zip(*(measured.samples.get(name, []) for name in (bar.ours, *bar.than)), strict=False)
    values = [
        [read(sample, measured.amount) for sample in samples if sample is not None]
        for samples in rounds
        if None not in samples
    ]
    if not values or (bar.hashed and not measured.hash_rates):
        return None
    if bar.hashed:
        hashing = measured.amount.size / median(measured.hash_rates)
        values = [[ours, *(peer + hashing for peer in peers)] for ours, *peers in values]
    if bar.than:
        return median(_ratio(ours, min(peers), at_least=bar.at_least) for ours, *peers in values)
    return max(values)[0] if bar.measure.startswith("peak") else median(ours for ours, *_ in values)


def _ratio(ours: float, peer: float, *, at_least: bool) -> float:
    above, below = (peer, ours) if at_least else (ours, peer)
    return above / below if below else float("inf")


def is_met(bar: Bar, value: float) -> bool:
    """Return whether the value meets the target."""
    return value >= bar.limit if bar.at_least else value <= bar.limit


def median_of(samples: Sequence[Sample | None], measure: str, amount: Amount) -> float | None:
    """Return the median of one measure over the successful rounds; None without any."""
    values = [_MEASURES[measure](sample, amount) for sample in samples if sample is not None]
    return median(values) if values else None
