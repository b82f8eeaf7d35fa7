"""Draw the bar chart of the main cases (results.svg), for light and dark backgrounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from benchmarks.samples import Measured, median_of

_MAIN = {
    "link-large-push": "2 GiB over 110 ms, 1 Gbit/s",
    "link-small-push": "10,000 files of 10 KiB over 110 ms",
    "loop-large": "2 GiB over ssh on loopback",
    "s3-small-up": "10,000 objects of 10 KiB into an object store",
    "s3-large-up": "2 GiB into an object store",
}
_SHOWN = ("hibali", "rsync", "rsync -W", "scp", "tar over ssh", "s5cmd", "rclone")
_WIDTH, _LABEL, _BAR, _LINE, _GAP = 720, 130, 480, 22, 20
_STYLE = """\
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.title { font-weight: 600 }
.peer { fill: #afb8c1 }
.ours { fill: #0969da }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .peer { fill: #6e7681 }
  .ours { fill: #4493f8 }
}"""


def draw(cases: Sequence[Measured]) -> str:
    """Return the chart as SVG; cases that were not measured are left out."""
    lines: list[str] = []
    top = 10
    for case in cases:
        bars = _bars(case)
        if case.name in _MAIN and bars:
            lines += _panel(_MAIN[case.name], bars, top)
            top += _LINE * (len(bars) + 1) + _GAP
    note = "" if all(case.scale == 1 for case in cases) else "quick run with smaller sizes; "
    lines.append(f'<text x="10" y="{top + 10}">{note}seconds, logins included; shorter is better</text>')
    height = top + 24
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}"'
        f' height="{height}" role="img" aria-label="hibali beside its peers: seconds, shorter is better">\n'
        f"<style>\n{_STYLE}\n</style>\n" + "\n".join(lines) + "\n</svg>\n"
    )


def _bars(case: Measured) -> list[tuple[str, float]]:
    found = []
    for name in _SHOWN:
        seconds = median_of(case.samples.get(name, ()), "seconds", case.amount)
        if seconds is not None:
            found.append((name, seconds))
    return found


def _panel(title: str, bars: Sequence[tuple[str, float]], top: int) -> Iterator[str]:
    longest = max(seconds for _, seconds in bars)
    yield f'<text class="title" x="10" y="{top + 14}">{escape(title)}</text>'
    for number, (name, seconds) in enumerate(bars, 1):
        y = top + number * _LINE
        width = max(1.0, _BAR * seconds / longest)
        kind = "ours" if name == "hibali" else "peer"
        yield f'<text x="10" y="{y + 15}">{escape(name)}</text>'
        yield f'<rect class="{kind}" x="{_LABEL}" y="{y + 3}" width="{width:.1f}" height="16" rx="3"/>'
        yield f'<text x="{_LABEL + width + 8:.1f}" y="{y + 15}">{seconds:.1f} s</text>'
