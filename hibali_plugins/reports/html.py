"""Render receipts, plans and runs as HTML for notebooks: with a picture, in light and dark, without scripts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from hibali.amounts import format_duration, format_size
from hibali.errors import Exit
from hibali.events import Planned
from hibali.plugins import if_offered
from hibali.text import counted
from hibali_plugins.reports.page import environment
from hibali_plugins.reports.run_page import legend_of, report_run, task_grid, timeline_rows
from hibali_plugins.reports.timeline import Shape, draw_timeline
from runs import model
from runs.store import RunStore
from transfers.history.journal import Receipt
from transfers.planning.actions import Action, Verb

_TEMPLATES = Path(__file__).with_name("templates")
_WIDTH, _LEAST = 600.0, 3.0  # of the bar, and of each part of it that is not empty
_MOST_LINES = 10
_PROOFS = {
    "digest": "verified by sha256 at both ends",
    "recorded": "verified by recorded sha256",
    "claimed": "verified by a checksum that the server reported",
    "size": "verified by size only",
    "none": "not verified",
}


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a bar: its colour, its number of files, and its name."""

    kind: str
    number: int
    name: str

    @property
    def text(self) -> str:
        """The explanation of its colour."""
        return f"{counted(self.number, 'file')} {self.name}"


@dataclass(frozen=True, slots=True)
class _Output:
    """What the template shows."""

    title: str
    subtitle: str
    outcome: str = ""
    outcome_text: str = ""
    shares: Sequence[Share] = ()
    timeline: Any = None
    grid: Any = None
    legend: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
    lines: Sequence[tuple[str | bytes, str]] = ()
    omitted: str = ""

    def render(self) -> str:
        shares = [each for each in self.shares if each.number]
        style = Markup((_TEMPLATES / "output.css").read_text("ascii"))  # noqa: S704  # our own file
        return (
            environment(_TEMPLATES)
            .get_template("output.html")
            .render(
                style=style,
                title=self.title,
                subtitle=self.subtitle,
                outcome=self.outcome,
                outcome_text=self.outcome_text or self.outcome,
                bars=list(place_shares(shares)),
                bar_title=", ".join(each.text for each in shares),
                timeline=self.timeline,
                grid=self.grid,
                legend=[*self.legend, *((each.kind, each.text) for each in shares)],
                notes=[text for text in self.notes if text],
                lines=self.lines[:_MOST_LINES],
                omitted=self.omitted,
            )
        )


def place_shares(shares: Sequence[Share]) -> Iterator[Shape]:
    """Place the parts of a bar, none of them empty; a small one stays visible."""
    free, total, x = _WIDTH - _LEAST * len(shares), sum(each.number for each in shares), 0.0
    for each in shares:
        width = _LEAST + free * each.number / total
        yield Shape(each.kind, x, 0.0, width - 1.0, 12.0, each.text)
        x += width


def receipt_html(receipt: Receipt) -> str:
    """Return a receipt as HTML: a bar of its files, amounts, and the first failures."""
    done = receipt.exit is Exit.DONE
    rate = receipt.bytes_moved / receipt.seconds if receipt.seconds else 0.0
    moved = f"{format_size(receipt.bytes_moved)} moved in {format_duration(receipt.seconds)}"
    proof = _PROOFS.get(receipt.proof_moved or "", "")
    more = receipt.files_failed - min(_MOST_LINES, len(receipt.failures))
    details = if_offered("history", f"details: hibali history show {receipt.id}")
    return _Output(
        title=receipt.operation,
        subtitle=" → ".join(filter(None, (receipt.source, receipt.target))),
        outcome="succeeded" if done else "failed",
        outcome_text="done" if done else "incomplete",
        shares=[
            Share("succeeded", receipt.files_moved, "moved"),
            Share("running", receipt.files_linked + receipt.files_adjusted, "adjusted"),
            Share("staging", receipt.files_kept, "unchanged"),
            Share("cancelled", receipt.files_deleted, "deleted"),
            Share("failed", receipt.files_failed, "failed"),
        ],
        notes=[
            f"{moved}, {format_size(round(rate))}/s{f', {proof}' if proof else ''}."
            if receipt.files_moved
            else "",
        ],
        lines=[(each.path or b".", each.message) for each in receipt.failures],
        omitted="; ".join(filter(None, (f"and {more} more", details))) if more > 0 else details.capitalize(),
    ).render()


def plan_html(ends: tuple[str, str], counts: Planned, actions: Sequence[Action], unlisted: int) -> str:
    """Return a plan as HTML: a bar of its files, and the first actions.

    Args:
        ends: the source and the target.
        counts: the totals.
        actions: one for each name that changes.
        unlisted: how many names could not be read.
    """
    verbs = Counter(each.verb for each in actions if not each.implied)
    kinds = ", ".join(f"{verb}: {verbs[verb]}" for verb in Verb if verbs[verb])
    more = len(actions) - _MOST_LINES
    return _Output(
        title="plan",
        subtitle=" → ".join(ends),
        outcome="lost" if unlisted else "",
        outcome_text="incomplete",
        shares=[
            Share("succeeded", counts.files_to_move, "to move"),
            Share("staging", counts.files_kept, "unchanged"),
            Share("cancelled", counts.files_to_delete, "to delete"),
        ],
        notes=[
            f"{format_size(counts.bytes_to_move)} to move ({kinds})." if actions else "Nothing would change.",
            f"{counted(unlisted, 'name')} could not be read." if unlisted else "",
        ],
        lines=[
            (each.entry.path or b".", f"{each.verb}, {format_size(each.entry.size)}, {each.because}")
            for each in actions
        ],
        omitted=f"and {more} more" if more > 0 else "",
    ).render()


def run_html(run: model.Run, run_store: RunStore) -> str:
    """Return a run as HTML, as it was last observed: its times, and of a sweep the states of its tasks."""
    each, now, status = report_run(run, run_store), time.time(), run.status
    rows = timeline_rows([each], now)
    grid = task_grid(each.tasks) if run.sweep is not None and each.tasks else None
    measures = [
        "" if each.ran is None else f"ran {format_duration(each.ran)}",
        "" if status.cpu_seconds is None else f"{format_duration(status.cpu_seconds)} of CPU",
        "" if status.memory_bytes is None else f"{format_size(status.memory_bytes)} of memory",
        "" if status.exit_code is None else f"exit code {status.exit_code}",
        f"at {status.host}" if status.host else "",
        f"collected to {', '.join(run.results.collected)}" if run.results.collected else "",
    ]
    return _Output(
        title=run.spec.pipeline,
        subtitle=f"{run.id} at {run.site}",
        outcome=run.state.lower(),
        timeline=draw_timeline(rows, now) if rows else None,
        grid=grid,
        legend=list(legend_of([each])) if rows or grid else (),
        notes=[", ".join(text for text in measures if text), status.reason],
    ).render()
