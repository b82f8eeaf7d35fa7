"""Make the values that the templates of the dashboard show; pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from hibali.amounts import format_duration, format_size
from hibali.plugins import if_offered
from hibali.text import counted, path_from_fields, printable
from hibali_cli.cells import id_cell, time_cell
from hibali_cli.handlers.runs import about_run, tasks_text
from hibali_plugins.reports.dashboard.data import LogPart, SiteHealth, schedule_states
from hibali_plugins.reports.flow_map import draw_flows
from hibali_plugins.reports.page import clock, plain_line
from hibali_plugins.reports.rate_chart import draw_rates
from hibali_plugins.reports.recent import transfer_values
from hibali_plugins.reports.run_page import ReportedRun, legend_of, section_values, task_grid, timeline_rows
from hibali_plugins.reports.status import STRIP, ScheduleRow, mark_of
from hibali_plugins.reports.status_page import MARK_KINDS, schedule_values
from hibali_plugins.reports.timeline import draw_timeline
from hibali_plugins.schedules.status import ScheduleState, facts_of
from runs.model import Run
from runs.present import Present, UnfinishedRun
from runs.site_health import SiteCheck
from transfers.history.index import OperationDetails
from transfers.history.operations import Operation, Result

PAGE_ROWS = 50
_MOST_SWEEPS = 20
_MOST_FAILURES = 100
_RESULT_KINDS = {
    Result.DONE: "succeeded",
    Result.INCOMPLETE: "lost",
    Result.FAILED: "failed",
    Result.LATER: "lost",
    Result.REFUSED: "failed",
    Result.INTERRUPTED: "cancelled",
    Result.UNDER_WAY: "running",
    Result.UNFINISHED: "failed",
}


def live_values(present: Present, schedules: Sequence[ScheduleRow], sites: Collection[str]) -> dict[str, Any]:
    """Return the parts of the overview that change while one looks at them; `sites` are the names in config.toml."""
    states = schedule_states(present)
    return {
        "idle": present.is_idle,
        "map": draw_flows(present.operations, present.runs, sites),
        "transfers": [transfer_values(each) for each in present.operations],
        "runs": [_unfinished(each, present.now) for each in present.runs],
        "schedules": [_schedule(row, states[row.schedule.name], present.now) for row in schedules],
        "shown": STRIP,
        "legend": list(
            dict.fromkeys(
                (MARK_KINDS[mark_of(each)], str(mark_of(each))) for row in schedules for each in row.strip
            )
        ),
    }


def _unfinished(each: UnfinishedRun, now: float) -> dict[str, Any]:
    run = each.run
    return {
        **_run_row(run),
        "lasting": format_duration(max(0.0, now - each.since)),
    }


def _run_row(run: Run) -> dict[str, Any]:
    return {
        "id": id_cell(run.id),
        "state": run.state.lower(),
        "pipeline": run.spec.pipeline,
        "site": run.site,
        "name": run.spec.name,
        "tasks": "" if run.sweep is None else tasks_text(run),
        "remark": about_run(run),
        "created": time_cell(run.created),
    }


def _schedule(row: ScheduleRow, state: ScheduleState, now: float) -> dict[str, Any]:
    due = None if state.due is None else clock(state.due.timestamp())[:16]
    return {
        **schedule_values(row),
        "facts": ", ".join(facts_of(state, now, due)),
        "trouble": "" if row.trouble is None else row.trouble.what,
        "todo": "" if row.trouble is None else row.trouble.todo,
    }


def site_values(sites: Sequence[SiteHealth], now: float) -> list[dict[str, Any]]:
    """Return the rows of the table of sites."""
    return [
        {
            "name": each.usage["name"],
            "kind": "skipped" if each.result is None else _RESULT_KINDS[each.result],
            "result": "never used" if each.result is None else str(each.result),
            "last": "" if each.last is None else _age(each.last, now),
            "operation": "" if each.last is None else each.last.id,
            "jobs": f"{each.usage['queued_jobs']} of {each.usage['limits']['queued_jobs']}",
            "logins": str(each.usage["day"]["logins"]),
            "bytes": format_size(each.usage["day"]["bytes"]),
            "refusals": "; ".join(f"{one['by']}: {one['because']}" for one in each.usage["refusals"]) or "no",
            "check": _check_values(each.usage["name"], each.check, now),
        }
        for each in sites
    ]


def _check_values(site: str, check: SiteCheck | None, now: float) -> dict[str, str]:
    """Return the outcome of the latest check of a site; `message` and the rest are shown if it failed."""
    if check is None:
        return {"kind": "skipped", "health": "not checked yet", "age": ""}
    age = f"{format_duration(max(0.0, now - check.at))} ago"
    if not check.problems:
        return {"kind": "succeeded", "health": "healthy", "age": age}
    about = f"{check.about}: " if check.about else ""
    others = check.problems - 1
    again = if_offered("doctor", f"hibali doctor {site}") or f"hibali sites check {site}"
    more = f"; {counted(others, 'other problem')}: {again}" if others else ""
    return {
        "kind": "failed",
        "health": "failed",
        "age": age,
        "code": check.code,
        "message": f"{about}{check.message}{more}",
        "hint": check.hint or again,
        "by": f"hibali {check.by}",
    }


def _age(operation: Operation, now: float) -> str:
    return f"{operation.operation} {format_duration(max(0.0, now - operation.moment))} ago"


def operation_rows(operations: Sequence[Operation]) -> list[dict[str, Any]]:
    """Return the rows of a table of operations."""
    return [
        {
            "id": id_cell(each.id),
            "began": time_cell(each.began),
            "what": each.operation,
            "source": each.source,
            "target": each.target,
            "kind": "cancelled" if each.was_mistyped else _RESULT_KINDS[each.result()],
            "result": "not started" if each.was_mistyped else str(each.result()),
            "files": str(each.amount[0]),
            "bytes": format_size(each.amount[1]) if each.amount[1] else "",
            "proof": each.proof_moved or "",
            "schedule": each.schedule or "",
        }
        for each in operations
    ]


def search_operations(operations: Sequence[Operation], query: str, result: str) -> list[Operation]:
    """Return the operations, latest first, that have every word of the query in an id, a place, a name or an error."""
    words = query.casefold().split()
    return [
        each
        for each in reversed(operations)
        if (not result or each.result() == result) and all(word in _text_of(each) for word in words)
    ]


def _text_of(each: Operation) -> str:
    stopped = each.stopped or {}
    texts = (each.id, each.operation, each.source, each.target, each.schedule, *each.sites)
    return "\n".join(map(str, (*texts, stopped.get("code"), stopped.get("message"), each.began))).casefold()


def run_values(each: ReportedRun, logs: Mapping[str, LogPart], now: float) -> dict[str, Any]:
    """Return the values of the page of one run."""
    rows = timeline_rows([each], now)
    return {
        "run": section_values(each),
        "timeline": draw_timeline(rows, now) if rows else None,
        "legend": list(legend_of([each])),
        "states": [
            (
                str(span.state).lower(),
                clock(span.since),
                "" if span.until is None else format_duration(span.until - span.since),
            )
            for span in each.spans
        ],
        "logs": [
            log_values(each.run, name, part, 0)
            for name, part in logs.items()
            if part.text or not each.run.state.ended
        ],
    }


def log_values(run: Run, name: str, part: LogPart, shown: int) -> dict[str, Any]:
    """Return a part of a log: its lines without control characters, and how much was left out before them.

    While the run has not ended, also what the next poll asks for.
    """
    return {
        "name": name,
        "left_out": f"… {counted(part.left_out, 'byte')} left out; all: hibali runs logs {run.id}"
        if part.left_out
        else "",
        "lines": [plain_line(line) for line in part.text.decode("utf-8", "replace").splitlines()],
        "next": ""
        if run.state.ended
        else f"{run.id}/log/{name}?after={part.end}&shown={shown + len(part.text)}",
    }


def run_rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the rows of the table of runs, the latest first."""
    return [_run_row(run) for run in reversed(runs)]


def sweep_values(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the latest sweeps, each with a square for every task."""
    sweeps = [run for run in reversed(runs) if run.sweep is not None][:_MOST_SWEEPS]
    return [{**_run_row(run), "grid": task_grid(run.to_record()["tasks"])} for run in sweeps]


def receipt_values(details: OperationDetails) -> dict[str, Any]:
    """Return the values of the page of one operation."""
    each = details.operation
    [row] = operation_rows([each])
    return {
        "operation": row,
        "facts": [(name, value) for name, value in _receipt_facts(details) if value],
        "failures": [
            (path_from_fields(failure), str(failure.get("code")), str(failure.get("message")))
            for failure in details.failures[:_MOST_FAILURES]
        ],
        "failed": details.files["failed"],
        "rates": None if details.rates is None else draw_rates(details.rates),
        "notes": details.notes,
    }


def _receipt_facts(details: OperationDetails) -> Iterator[tuple[str, str]]:
    each = details.operation
    receipt: Mapping[str, Any] = each.receipt or {}
    stopped = each.stopped or {}
    yield "from", each.source
    yield "to", each.target
    yield "began", f"{each.began[:10]} {each.began[11:19]} UTC"
    yield "schedule", each.schedule or ""
    if each.receipt is not None:
        yield "exit code", str(each.exit)
        yield "took", format_duration(each.seconds) if each.seconds >= 1 else f"{each.seconds:.2f} s"
        yield "files", f"{each.number('files'):,}, {format_size(each.number('bytes'))}"
        rate = f", {format_size(round(details.rate))}/s" if details.rate else ""
        yield "moved", f"{each.number('files_moved'):,}, {format_size(each.number('bytes_moved'))}{rate}"
        names = ("files_kept", "files_deleted", "files_failed")
        yield "kept, deleted, failed", ", ".join(f"{each.number(name):,}" for name in names)
        yield "verification", _verification(details)
        yield "logins", str(receipt.get("logins"))
        yield "transferred by", str(receipt.get("mover") or "")
        yield "limited by", str(receipt.get("limited_by") or "")
    if stopped:
        yield "stopped by", f"{stopped.get('about')}: {stopped.get('message')} ({stopped.get('code')})"
        yield "what to do", str(stopped.get("hint") or "")


def _verification(details: OperationDetails) -> str:
    found = [f"{counted(count, 'file')} by {each}" for each, count in details.verifications.most_common()]
    receipt = details.operation.receipt or {}
    return ", ".join(found) or printable(str(receipt.get("proof_moved") or receipt.get("proof_tree") or ""))
