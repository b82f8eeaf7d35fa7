"""Draw the rate of a transfer over time, and of each of its workers; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hibali.amounts import format_duration, format_size
from transfers.history.rates import Rates

_WIDTH, _LEFT, _TOP, _HEIGHT = 720.0, 104.0, 14.0, 80.0
_AXIS, _WORKER, _GAP = 22.0, 16.0, 3.0


@dataclass(frozen=True, slots=True)
class Area:
    """The rate of a worker, or of all: a shape on the line `base`, its name, and a text that explains it."""

    path: str
    base: float
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class RateChart:
    """All that the template draws: lines of values, labels of times below `base`, and areas, the first one of all workers."""

    width: float
    height: float
    left: float
    base: float
    lines: Sequence[tuple[float, str]]
    labels: Sequence[tuple[float, str, str]]
    areas: Sequence[Area]


def draw_rates(rates: Rates) -> RateChart:
    """Place the rate of all workers, and below it that of each one if there are several, with the same scale of time."""
    whole, base = rates.seconds[-1], _TOP + _HEIGHT
    most = max(_rates(rates.seconds, rates.bytes))
    areas = [_area(rates.seconds, rates.bytes, base, _HEIGHT, most, "")]
    several = rates.workers if len(rates.workers) > 1 else {}
    busiest = max((max(_rates(rates.seconds, sizes)) for sizes in several.values()), default=0.0)
    for row, (worker, sizes) in enumerate(several.items(), 1):
        y = base + _AXIS + row * (_WORKER + _GAP)
        areas.append(_area(rates.seconds, sizes, y, _WORKER, busiest, f"worker {worker}"))
    return RateChart(
        width=_WIDTH,
        height=areas[-1].base + (4.0 if several else _AXIS),
        left=_LEFT,
        base=base,
        lines=[(base - share * _HEIGHT, f"{format_size(round(most * share))}/s") for share in (0.5, 1.0)],
        labels=[
            (_LEFT + share * (_WIDTH - _LEFT), format_duration(share * whole) if share else "0", anchor)
            for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end"))
        ],
        areas=areas,
    )


def _rates(seconds: Sequence[float], sizes: Sequence[int]) -> Iterator[float]:
    """Yield the bytes per second of each interval."""
    return (size / (end - start) for start, end, size in zip([0.0, *seconds], seconds, sizes, strict=False))


def _area(
    seconds: Sequence[float], sizes: Sequence[int], base: float, height: float, most: float, name: str
) -> Area:
    scale = (_WIDTH - _LEFT) / seconds[-1]
    steps = (
        f"V{base - rate / most * height if most else base:.1f}H{_LEFT + end * scale:.1f}"
        for rate, end in zip(_rates(seconds, sizes), seconds, strict=True)
    )
    whole, highest = sum(sizes), max(_rates(seconds, sizes))
    text = (
        f"{name or 'Rate over time'}: {format_size(whole)} in {format_duration(seconds[-1])},"
        f" {format_size(round(whole / seconds[-1]))}/s on average, at most {format_size(round(highest))}/s"
    )
    return Area(f"M{_LEFT:.1f} {base:.1f}{''.join(steps)}V{base:.1f}Z", base, name, text)
