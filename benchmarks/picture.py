"""Draw the bar chart of the main cases (results.svg), for light and dark backgrounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from benchmarks.page import Section

_MAIN = {"link-large-push", "link-small-push", "loop-large", "s3-small-up", "s3-large-up"}
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


def draw(cases: Sequence[Section], *, quick: bool = False) -> str:
    """Return the chart as SVG; cases that were not measured are left out."""
    lines: list[str] = []
    top = 10
    for case in cases:
        medians = case.medians()
        bars = [(name, medians[name]) for name in _SHOWN if name in medians]
        if case.name in _MAIN and bars:
            lines += _panel(case.subject, bars, top)
            top += _LINE * (len(bars) + 1) + _GAP
    note = "quick run; " if quick else ""
    lines.append(f'<text x="10" y="{top + 10}">{note}seconds, logins included; shorter is better</text>')
    height = top + 24
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}"'
        f' height="{height}" role="img" aria-label="hibali beside its peers: seconds, shorter is better">\n'
        f"<style>\n{_STYLE}\n</style>\n" + "\n".join(lines) + "\n</svg>\n"
    )


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
