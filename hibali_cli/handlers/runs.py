"""List, show, cancel and release runs, and report how they ended."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len

from hibali.amounts import format_duration, format_size
from hibali.ledger import short_identifier
from hibali.text import counted, printable, write_ranges
from hibali.unreadable import collect_unreadable, raise_unreadable
from hibali_cli.cells import age_text, id_cell
from hibali_cli.display import plain_line, shortened
from hibali_cli.failure import Failures
from hibali_cli.fields import write_list
from hibali_cli.handlers.run_sites import session_opener, update_runs
from hibali_cli.options import Common
from hibali_cli.output import Cell, flush_results, is_terminal
from hibali_cli.progress import listening
from runs.model import Run, RunStatus, State
from runs.run_index import RunFilter, find_latest_run_ids
from runs.status import counts_text, raise_failure
from runs.store import RunStore

if TYPE_CHECKING:  # start-up: only to draw, and where a site is contacted
    from rich.text import Text

    from runs.site_session import SiteSession


_HEADINGS = ("run", "state", "for", "pipeline", "site", "name", "remark")
_RUN, _STATE, _FOR, _PIPELINE, _SITE, _NAME, _REMARK = range(len(_HEADINGS))
_IMPORTANCE = (_RUN, _STATE, _FOR, _PIPELINE, _SITE, _NAME)  # the last column gets what is left
_MOST = (8, 9, 12, 30, 20, 20, 80)
_LEAST_ABOUT = 10
_GAP = "  "
_STYLES = {
    State.RUNNING: "cyan",
    State.SUCCEEDED: "green",
    State.FAILED: "red",
    State.CANCELLED: "magenta",
    State.LOST: "yellow",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One run as it was last observed; `since` is when its state began, in seconds since the epoch."""

    run: Run
    since: float
    subject: str

    def cells(self, now: float) -> tuple[str, ...]:
        """Return the cells, safe to print. The duration is shown only for unfinished runs."""
        run = self.run
        lasting = "" if run.state.ended else format_duration(max(0.0, now - self.since))
        texts = (
            short_identifier(run.id),
            run.state,
            lasting,
            run.spec.pipeline,
            run.site,
            run.spec.name,
            self.subject,
        )
        return tuple(printable(text) for text in texts)


def row_of(run: Run, since: float) -> Row:
    """Return the row of a run."""
    return Row(run, since, about_run(run))


def about_run(run: Run) -> str:
    """Return the scheduler's state, its reason, and how the tool ended; of several tasks how many are in each state."""
    if len(run.tasks) > 1:
        return count_states(each.state for each in run.tasks.values())
    if run.state is State.SUCCEEDED:
        return ""
    if run.status.exit_code is not None and not run.status.reason:
        return f"exit code {run.status.exit_code}"
    if run.status.native and run.status.reason and run.status.native not in run.status.reason:
        return f"{run.status.native}: {run.status.reason}"
    if run.waits and run.status.reason:
        return run.status.reason
    if not run.job and not run.state.ended:
        return "not submitted"
    return run.status.reason or ("" if run.status.native == run.state else run.status.native)


def count_states(states: Iterable[str]) -> str:
    """Count states: `3 running, 12 waiting`, ended ones last."""
    counts = Counter(states)
    order = [state for state in State if not state.ended][::-1] + [state for state in State if state.ended]
    return ", ".join(f"{counts[state]} {state.lower()}" for state in order if counts[state])


def table_lines(rows: Sequence[Row], width: int, height: int, now: float) -> list[Text]:
    """Return a heading, the counts, and as many rows as fit: unfinished runs come before ended ones."""
    label = f"{counted(len(rows), 'run')}: {count_states(row.run.state for row in rows)}"
    lines = [plain_line(shortened(label, width, front=1.0), "bold")]
    shown = _most_important(rows, max(1, height - 3))
    cells = [row.cells(now) for row in shown]
    widths = _widths(cells, width)
    lines.append(plain_line(_joined(_HEADINGS, widths), "dim"))
    for row, texts in zip(shown, cells, strict=True):
        line = plain_line(_joined(texts, widths))
        style = _STYLES.get(row.run.state)
        if style and widths[_STATE]:
            start = widths[_RUN] + len(_GAP)
            line.stylize(style, start, start + len(row.run.state))
        lines.append(line)
    if len(shown) < len(rows):
        lines.append(plain_line(f"... and {len(rows) - len(shown)} more", "dim"))
    return lines


def _most_important(rows: Sequence[Row], most: int) -> list[Row]:
    """Return the most important rows, in the order in which they were created."""
    if len(rows) <= most:
        return list(rows)
    latest_ends = sorted((row for row in rows if row.run.state.ended), key=lambda row: -row.since)
    kept = ([row for row in rows if not row.run.state.ended] + latest_ends)[: max(1, most - 1)]
    wanted = {row.run.id for row in kept}
    return [row for row in rows if row.run.id in wanted]


def _widths(cells: Sequence[Sequence[str]], available: int) -> list[int]:
    """Return the width of each column; the least important ones become 0 if the columns do not fit."""
    widths = [0] * len(_HEADINGS)
    left = available
    for column in _IMPORTANCE:
        longest = max((cell_len(row[column]) for row in cells), default=0)
        wanted = min(_MOST[column], max(longest, len(_HEADINGS[column]))) if longest else 0
        taken = wanted + (len(_GAP) if column != _RUN else 0)
        if wanted and (taken <= left or column == _RUN):
            widths[column] = min(wanted, left)
            left -= min(taken, left)
    longest = max((cell_len(row[_REMARK]) for row in cells), default=0)
    if longest and left - len(_GAP) >= _LEAST_ABOUT:
        widths[_REMARK] = min(left - len(_GAP), _MOST[_REMARK], max(longest, len(_HEADINGS[_REMARK])))
    return widths


def _joined(texts: Sequence[str], widths: Sequence[int]) -> str:
    parts = []
    for column, (text, width) in enumerate(zip(texts, widths, strict=True)):
        if width:
            cut = shortened(text, width, front=1.0 if column == _REMARK else 0.6)
            parts.append(cut + " " * (width - cell_len(cut)))
    return _GAP.join(parts).rstrip()


_LETTERS = {
    State.FAILED: "F",
    State.LOST: "?",
    State.CANCELLED: "C",
    State.RUNNING: "r",
    State.WAITING: "w",
    State.SUBMITTED: "s",
    State.STAGED: ".",
    State.PREPARED: ".",
    State.SUCCEEDED: "+",
}  # of several tasks in one place the first of these is shown
_IN_LINE = 50
_GROUP = 10
_MOST_LINES = 40
_SHORT = 60


def tasks_text(run: Run) -> str:
    """Format the numbers of ended, all and unsuccessful tasks: `3/10, 1 failed`."""
    ended = sum(task.state.ended for task in run.tasks.values())
    bad = ended - len(run.in_state(State.SUCCEEDED))
    return f"{ended}/{len(run.tasks)}" + (f", {bad} unsuccessful" if bad else "")


def show_tasks(common: Common, run: Run) -> None:
    """Show the grid on a terminal, and the states with their tasks."""
    drawn = is_terminal(sys.stdout)
    for line in grid(run.tasks) if drawn else ():
        common.output.line(line)
    rows = [
        (_LETTERS[state], state, count, _short(write_ranges(run.in_state(state)), drawn=drawn))
        for state, count in run.counts().items()
    ]
    headings = ["", "state", "count", "tasks"]
    first = 0 if drawn else 1
    common.output.table(headings[first:], [row[first:] for row in rows])


def _short(text: str, *, drawn: bool) -> str:
    return f"{text[:_SHORT]}..." if drawn and len(text) > _SHORT else text


def grid(tasks: Mapping[int, RunStatus]) -> Iterator[str]:
    """Yield lines of letters, one for each task, that start with the number of the first one; in a large sweep a letter is the worst state of several tasks."""
    numbers = list(tasks)
    each = -(-len(numbers) // (_IN_LINE * _MOST_LINES))
    width = len(str(numbers[-1]))
    for start in range(0, len(numbers), each * _IN_LINE):
        line = numbers[start : start + each * _IN_LINE]
        letters = [_worst(tasks, line[place : place + each]) for place in range(0, len(line), each)]
        groups = ("".join(letters[place : place + _GROUP]) for place in range(0, len(letters), _GROUP))
        yield f"{line[0]:>{width}}  {' '.join(groups)}"
    if each > 1:
        yield f"{'':>{width}}  one letter for {each} tasks: their worst state"


def _worst(tasks: Mapping[int, RunStatus], numbers: Sequence[int]) -> str:
    states = {tasks[number].state for number in numbers}
    return next(letter for state, letter in _LETTERS.items() if state in states)


def show_run(common: Common, run: Run) -> None:
    """Show one run as a JSON line, or as names and values."""
    if common.json:
        common.output.record("run", run.to_whole_record(), flush=True)
        return
    common.output.pairs(run_pairs(run))
    if run.sweep is not None:
        show_tasks(common, run)


def state_text(run: Run) -> str:
    """Return the state of a run, of a sweep with the number of tasks in each state."""
    return str(run.state) if run.sweep is None else f"{run.state} ({counts_text(run)})"


def run_pairs(run: Run) -> dict[str, Cell]:
    """Return the names and values of one run for users."""
    return {
        "run": run.id,
        "state": run.state,
        "reason": run.status.reason or None,
        "pipeline": run.spec.pipeline,
        "site": run.site,
        "name": run.spec.name or None,
        "runs again": run.spec.origin or None,
        "job": run.job or None,
        "scheduler says": run.status.native or None,
        "exit code": run.status.exit_code,
        "host": run.status.host or None,
        "created": run.created,
        "started": run.status.started or None,
        "ended": run.status.ended or None,
        "CPU": None if run.status.cpu_seconds is None else f"{run.status.cpu_seconds:.1f} s",
        "memory": None if run.status.memory_bytes is None else format_size(run.status.memory_bytes),
        "digest": f"sha256 {run.spec.pipeline_digest}",
        "image": run.placement.image or None,
        **{f"input {number}": describe_input(each) for number, each in enumerate(run.spec.inputs, start=1)},
        "folder": run.folder or None,
        "after": ", ".join(run.spec.after) or None,
        "collected": ", ".join(run.results.collected) or None,
        "receipts": ", ".join(run.results.receipts) or None,
        "started by": f"hibali {run.spec.version}" if run.spec.version else None,
        "removed there": run.results.cleaned or None,
    }


def describe_input(each: Mapping[str, str]) -> str:
    """Format an input: its location, and its identity at that time; that of a sweep may have only some of them."""
    name = f"{each['id']}: " if each["id"] else ""
    identity = f" ({each['identity']})" if each["identity"] else ""
    return f"{name}{each['location']}{identity}"


def report_unfinished(common: Common, run: Run) -> None:
    """Report the state of a run without waiting for its end. Raises `TryLaterError` if the queue is full."""
    if common.json:
        common.output.record("run", run.to_record())
    if run.waits:
        # local: completion of ids imports this module, and needs no submission
        from runs.queue_limits import queue_full_error

        flush_results()
        raise queue_full_error(run)
    if not common.json:
        state = run.state if run.sweep is None else state_text(run)
        label = (
            f"on hold at {run.site}: hibali runs release"
            if run.on_hold
            else f"{state} at {run.site}: hibali runs wait"
        )
        common.output.info(f"{label} {run.id}")
        unsubmitted = run.sweep.unsubmitted() if run.sweep is not None else ()
        waiting = sum(len(chunk.tasks) for chunk in unsubmitted)
        if waiting:
            common.output.info(
                f"{counted(waiting, 'task')} not submitted yet, because the queue is full. To submit: hibali runs wait {run.id}"
            )


def report_ends(common: Common, run_store: RunStore, runs: list[Run], *, resumable: bool = False) -> None:
    """Show the results of runs; after that the same command starts a new run, or, if `resumable`, collects what is missing.

    Raises the first failure.
    """
    for run in runs:
        if common.json:
            common.output.record("run", run.to_record())
        else:
            common.output.info(f"{run.id} {state_text(run)}{' (reused)' if run.results.reused else ''}")
    flush_results()
    for run in runs:
        if run.state.final and not run.results.reported and not resumable:
            run_store.note(run.id, "reported")
    raise_failure(runs)


def cancel_all(common: Common, run_ids: Sequence[str]) -> int:
    """Cancel each run and show its state; raise the worst failure at the end."""
    failures = Failures(json=common.json)
    for run_id in dict.fromkeys(run_ids):
        with failures.collect():
            _cancel_and_show(common, run_id)
    return failures.end()


def _cancel_and_show(common: Common, run_id: str) -> None:
    from runs.cancel import cancel_run  # start-up: only where a site is contacted

    run_store = RunStore()
    run = run_store.load(run_id)
    ended = run.state.ended
    with listening(common, f"cancel {run.id}") as on_event:

        def connect() -> SiteSession:
            return session_opener(common, run_store, run, on_event)()

        run = cancel_run(connect, run_store, run, on_event)
    if common.json:
        show_run(common, run)
    else:
        common.output.info(f"{run.id} {state_text(run)}{', as it was before' if ended else ''}")


_MOST_LISTED = 40  # for people, unless they say how many


def list_runs(
    common: Common,
    *,
    update: bool,
    states: tuple[str, ...],
    site_name: str | None,
    last: int | None,
    fields: tuple[str, ...] | None,
) -> int | None:
    """List runs as they were last observed, or after querying their sites."""
    run_store = RunStore()
    if update:
        unfinished = run_store.find(
            RunFilter(site=site_name, states=[each for each in State if not each.final])
        )
        with listening(common, "runs") as on_event:
            update_runs(common, run_store, unfinished, on_event)
    chosen = RunFilter(site=site_name, states=[State(each) for each in states])
    text = fields is None and not common.json
    with collect_unreadable() as unreadable:
        run_ids, count = find_latest_run_ids(chosen, last or (_MOST_LISTED if text else None))
        runs = list(run_store.load_all(run_ids))
    if fields is not None:
        write_list(common, "run", (run.to_record() for run in runs), fields)
    elif common.json:
        for run in runs:
            common.output.record("run", run.to_record())
    else:
        _print_runs(common, runs, 0 if last else count)
    raise_unreadable(unreadable)
    if common.json and fields is None:
        common.output.record("end", {"count": len(runs), "exit": 0})
    return None


def _print_runs(common: Common, runs: Sequence[Run], count: int) -> None:
    """Print a table; `count` is the number of all, if that is to be said."""
    drawn = is_terminal(sys.stdout)
    headings = ["run", "state", *(["age"] if drawn else []), "tasks", "pipeline", "site", "name", "collected"]
    rows = [
        (
            id_cell(run.id),
            run.state,
            *([age_text(run.created)] if drawn else []),
            tasks_text(run) if run.sweep is not None else None,
            run.spec.pipeline,
            run.site,
            run.spec.name or None,
            len(run.results.collected),
        )
        for run in runs
    ]
    common.output.table(headings, rows)
    if not runs:
        common.output.info("No such runs. To start one: hibali run PIPELINE INVOCATION.json --site SITE")
    if len(runs) < count:
        common.output.info(
            f"Shown are the latest {len(runs)} of {counted(count, 'run')}. To show all: --last {count}"
        )


def release_and_show(common: Common, run_id: str) -> int | None:
    """Release a run on hold and show its state."""
    from runs.cancel import check_releasable, release_run  # start-up: only where a site is contacted

    run_store = RunStore()
    run = run_store.load(run_id)
    check_releasable(run)
    with (
        listening(common, f"release {run.id}") as on_event,
        session_opener(common, run_store, run, on_event)() as session,
    ):
        run = release_run(session, run)
    if common.json:
        show_run(common, run)
    else:
        common.output.info(f"{run.id} {run.state}")
    return None


def query_and_show(common: Common, run_id: str) -> int | None:
    """Query the site of a run that has not ended, and show the run."""
    run_store = RunStore()
    run = run_store.load(run_id)
    with listening(common, f"run {run.id}") as on_event:
        [run] = update_runs(common, run_store, [run], on_event, submit_next=True)
    show_run(common, run)
    return None
