"""Read the transfers that run now and the latest transfers and runs, and make what pages show of them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from hibali.unreadable import collect_unreadable
from hibali_plugins.reports.page import clock
from hibali_plugins.reports.rate_chart import RateChart, draw_rates
from hibali_plugins.reports.run_page import legend_of, report_run, timeline_rows
from hibali_plugins.reports.timeline import draw_timeline
from hibali_plugins.status.showing import operation_line, operation_title
from runs.run_index import RunFilter, find_latest_run_ids
from runs.store import RunStore
from transfers.history.index import read_latest
from transfers.history.operations import Filter, read_rates
from transfers.history.running import RunningOperation, running_operations

_MOST_TRANSFERS, _MOST_READ, _MOST_RUNS = 5, 100, 20


def transfer_values(each: RunningOperation) -> dict[str, Any]:
    """Return what templates show of a running operation."""
    line = operation_line(each)
    moving = each.share is not None and each.phase in {"moving", "hashing"}
    return {
        "id": each.id,
        "title": operation_title(each),
        "state": line.state,
        "percent": int(100 * (each.share or 0.0)) if moving else None,
        "facts": ", ".join(line.facts[:-1]),
        "since": clock(datetime.fromisoformat(each.fields["began"]).timestamp()),
        "schedule": each.fields["schedule"] or "",
        "process": f"process {each.pid} on {each.host}",
        "rates": None if each.rates is None else draw_rates(each.rates),
    }


def read_recent(now: float) -> dict[str, Any]:
    """Return what the page of the status report shows; `now` is in seconds since the epoch. Unreadable records are left out."""
    store = RunStore()
    with collect_unreadable():  # the report names them
        found = store.load_all(find_latest_run_ids(RunFilter(), _MOST_RUNS)[0])
        runs = [report_run(run, store) for run in found]
        rows = timeline_rows(runs, now)
        return {
            "transfers": [transfer_values(each) for each in running_operations()],
            "rates": list(_latest_rates()),
            "timeline": draw_timeline(rows, now) if rows else None,
            "timeline_legend": list(legend_of(runs)),
        }


def _latest_rates() -> Iterator[tuple[str, str, RateChart]]:
    """Yield the latest transfers whose rate is known, the latest first: title, id and start, picture."""
    left = _MOST_TRANSFERS
    for each in reversed(read_latest(Filter(), _MOST_READ)[0]):
        rates = read_rates(each.id) if left and each.receipt else None
        if rates is not None:
            left -= 1
            title = f"{each.operation} {each.source} {each.target}"
            yield (
                title,
                f"{each.id}, {each.began[:10]} {each.began[11:16]}: {each.result()}",
                draw_rates(rates),
            )
