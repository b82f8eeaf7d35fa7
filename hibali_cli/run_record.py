"""How runs are shown, and how the end of one is told."""

from __future__ import annotations

from hibali.errors import HibaliError, RunFailedError, TryLaterError
from hibali_cli.options import Common
from hibali_cli.output import Cell, flush_results
from hibali_cli.sweep_record import counts_text, show_tasks
from runs.book import Book
from runs.run import Run, State
from runs.sweeps.sweep import Sweep


def show_run(common: Common, run: Run) -> None:
    """One run as a JSON line or as names and values."""
    if common.json:
        common.output.record("run", run.to_record(), flush=True)
        return
    common.output.pairs(run_pairs(run))
    if run.sweep is not None:
        show_tasks(common, run.sweep)


def state_text(run: Run) -> str:
    """The state of a run, of a sweep with how many tasks are in which."""
    return str(run.state) if run.sweep is None else f"{run.state} ({counts_text(run.sweep)})"


def run_pairs(run: Run) -> dict[str, Cell]:
    """What people see of one run."""
    return {
        "run": run.id,
        "state": run.state,
        "reason": run.reason or None,
        "pipeline": run.pipeline,
        "site": run.site,
        "name": run.name or None,
        "runs again": run.origin or None,
        "job": run.job or None,
        "scheduler says": run.native or None,
        "exit code": run.exit_code,
        "host": run.host or None,
        "created": run.created,
        "started": run.started or None,
        "ended": run.ended or None,
        "folder": run.folder or None,
        "collected": ", ".join(run.collected) or None,
        "removed there": run.cleaned or None,
    }


def find_failure(run: Run) -> HibaliError | None:
    """The error that tells a caller how a run ended; None for one that succeeded or has not ended."""
    if run.sweep is not None:
        return _find_sweep_failure(run, run.sweep)
    if run.state is State.FAILED:
        how = f"ended with exit code {run.exit_code}" if run.exit_code is not None else "was ended"
        why = f" ({run.reason})" if run.reason else ""
        return RunFailedError(
            "run-failed", f"the tool {how}{why}", about=run.id, hint=f"hibali runs logs {run.id}"
        )
    if run.state is State.CANCELLED:
        return RunFailedError("run-cancelled", "the run was cancelled", about=run.id)
    if run.state is State.LOST:
        return TryLaterError(
            "run-lost",
            f"nobody knows how this run ended: {run.reason}",
            about=run.id,
            hint=f"hibali runs wait {run.id} asks again.",
        )
    return None


def _find_sweep_failure(run: Run, sweep: Sweep) -> HibaliError | None:
    if not run.state.ended:
        return None
    counts = counts_text(sweep)
    hint = f"hibali runs rerun {run.id} --failed; hibali runs logs {run.id} --task N"
    if sweep.in_state(State.FAILED):
        return RunFailedError("tasks-failed", f"not all tasks succeeded: {counts}", about=run.id, hint=hint)
    if sweep.in_state(State.CANCELLED):
        return RunFailedError("run-cancelled", f"the sweep was cancelled: {counts}", about=run.id, hint=hint)
    if sweep.in_state(State.LOST):
        return TryLaterError(
            "run-lost",
            f"nobody knows how some tasks ended: {counts}",
            about=run.id,
            hint=f"hibali runs wait {run.id} asks again.",
        )
    return None


def tell_left(common: Common, run: Run) -> None:
    """How far a run is that nobody waits for. Raises `TryLaterError` for one that the queue has no room for."""
    if common.json:
        common.output.record("run", run.to_record())
    if run.waits:
        from runs.send import no_room

        flush_results()
        raise no_room(run)
    if not common.json:
        common.output.say(f"{run.state} at {run.site}: hibali runs wait {run.id}")


def report_ends(common: Common, book: Book, runs: list[Run]) -> None:
    """Show how runs ended; from then on the same line starts a new one. Raises the first failure."""
    for run in runs:
        if common.json:
            common.output.record("run", run.to_record())
        else:
            common.output.say(f"{run.id} {state_text(run)}")
    flush_results()
    failures = [failure for run in runs if (failure := find_failure(run))]
    for run in runs:
        if run.state.final and not run.reported:
            book.note(run.id, "reported")
    if failures:
        raise failures[0]
