"""How runs are shown, and how the end of one is told."""

from __future__ import annotations

from collections.abc import Mapping

from hibali.amounts import size_words
from hibali.errors import HibaliError, OutputsMissingError, RunFailedError, TryLaterError
from hibali_cli.options import Common
from hibali_cli.output import Cell, flush_results
from hibali_cli.sweep_record import counts_text, show_tasks
from runs.model import Run, State, Sweep
from runs.store import Book

_MOST_NAMED = 10


def show_run(common: Common, run: Run) -> None:
    """One run as a JSON line or as names and values."""
    if common.json:
        common.output.record("run", run.to_whole_record(), flush=True)
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
        "CPU": None if run.cpu_seconds is None else f"{run.cpu_seconds:.1f} s",
        "memory": None if run.memory_bytes is None else size_words(run.memory_bytes),
        "digest": f"sha256 {run.pipeline_digest}",
        "image": run.image or None,
        **{f"input {number}": _input_words(each) for number, each in enumerate(run.inputs)},
        "folder": run.folder or None,
        "after": ", ".join(run.after) or None,
        "collected": ", ".join(run.collected) or None,
        "receipts": ", ".join(run.receipts) or None,
        "begun by": f"hibali {run.hibali}" if run.hibali else None,
        "removed there": run.cleaned or None,
    }


def _input_words(each: Mapping[str, str]) -> str:
    """Where it lay, and what it was then."""
    return f"{each['id']}: {each['location']} ({each['identity']})"


def find_failure(run: Run) -> HibaliError | None:
    """The error that tells a caller how a run ended; None for one that succeeded or has not ended."""
    if run.sweep is not None:
        return _find_sweep_failure(run, run.sweep)
    if run.state is State.FAILED and run.missing:
        return _outputs_missing(run)
    if run.state is State.FAILED:
        how = f"ended with exit code {run.exit_code}" if run.exit_code is not None else "was ended"
        why = f" ({run.reason})" if run.reason else ""
        return RunFailedError(
            "run-failed", f"the tool {how}{why}", about=run.id, hint=f"hibali runs logs {run.id}"
        )
    if run.state is State.CANCELLED:
        why = f" ({run.reason})" if run.reason else ""
        return RunFailedError("run-cancelled", f"the run was cancelled{why}", about=run.id)
    if run.state is State.LOST:
        return TryLaterError(
            "run-lost",
            f"nobody knows how this run ended: {run.reason}",
            about=run.id,
            hint=f"`hibali runs wait {run.id}` asks again.",
        )
    return None


def _outputs_missing(run: Run) -> OutputsMissingError:
    """Name each missing output with the path where it was expected."""
    paths = {each.id: each.path for each in run.outputs}
    lines = [f"{each}: {paths.get(each, '?')}" for each in run.missing[:_MOST_NAMED]]
    more = len(run.missing) - len(lines)
    what = "a required output is" if len(run.missing) == 1 else f"{len(run.missing)} required outputs are"
    return OutputsMissingError(
        "outputs-missing",
        "\n".join(
            [f"the tool ended with 0, but {what} missing", *lines, *([f"and {more} more"] if more else [])]
        ),
        about=run.id,
        hint=f"hibali runs logs {run.id} --stderr",
    )


def raise_failure(runs: list[Run]) -> None:
    """Raise the error that tells how the first of them ended that did not end well."""
    for run in runs:
        failure = find_failure(run)
        if failure is not None:
            raise failure


def _find_sweep_failure(run: Run, sweep: Sweep) -> HibaliError | None:
    if not run.state.ended:
        return None
    counts = counts_text(sweep)
    hint = f"`hibali runs rerun {run.id} --failed` runs those again; `hibali runs logs {run.id} --task N` tells why."
    if failed := sweep.in_state(State.FAILED):
        if all(sweep.tasks[number].missing for number in failed):
            return OutputsMissingError(
                "outputs-missing",
                f"the tool ended with 0 in every task, but left required outputs of {len(failed)} missing: {counts}",
                about=run.id,
                hint=hint,
            )
        return RunFailedError("tasks-failed", f"not all tasks succeeded: {counts}", about=run.id, hint=hint)
    if sweep.in_state(State.CANCELLED):
        return RunFailedError("run-cancelled", f"the sweep was cancelled: {counts}", about=run.id, hint=hint)
    if sweep.in_state(State.LOST):
        return TryLaterError(
            "run-lost",
            f"nobody knows how some tasks ended: {counts}",
            about=run.id,
            hint=f"`hibali runs wait {run.id}` asks again.",
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
        told = (
            f"on hold at {run.site}: hibali runs release"
            if run.on_hold
            else f"{run.state} at {run.site}: hibali runs wait"
        )
        common.output.say(f"{told} {run.id}")


def report_ends(common: Common, book: Book, runs: list[Run]) -> None:
    """Show how runs ended; from then on the same line starts a new one. Raises the first failure."""
    for run in runs:
        if common.json:
            common.output.record("run", run.to_record())
        else:
            common.output.say(f"{run.id} {state_text(run)}{' (reused)' if run.reused else ''}")
    flush_results()
    for run in runs:
        if run.state.final and not run.reported:
            book.note(run.id, "reported")
    raise_failure(runs)
