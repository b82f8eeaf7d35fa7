"""Return the error of a run that ended without success."""

from __future__ import annotations

from hibali.errors import HibaliError, OutputsMissingError, RunFailedError, TryLaterError
from hibali.text import counted
from runs.model import Run, State
from runs.status import NOT_STARTED

_MOST_NAMED = 10


def find_failure(run: Run) -> HibaliError | None:
    """Return the error for a run that failed; None for one that succeeded or has not ended."""
    if run.sweep is not None:
        return _find_sweep_failure(run)
    if run.state is State.FAILED and run.status.missing:
        return _outputs_missing(run)
    if run.state is State.FAILED:
        how = (
            f"ended with exit code {run.status.exit_code}"
            if run.status.exit_code is not None
            else "was ended"
        )
        why = f" ({run.status.reason})" if run.status.reason else ""
        if run.status.reason.startswith(NOT_STARTED):
            how, why = "was", f" {run.status.reason}"
        return RunFailedError(
            "run-failed", f"the tool {how}{why}", subject=run.id, hint=f"hibali runs logs {run.id}"
        )
    if run.state is State.CANCELLED:
        why = f" ({run.status.reason})" if run.status.reason else ""
        return RunFailedError("run-cancelled", f"the run was cancelled{why}", subject=run.id)
    if run.state is State.LOST:
        return TryLaterError(
            "run-lost",
            f"the result of this run is unknown: {run.status.reason}",
            subject=run.id,
            hint=f"To query the site again: hibali runs wait {run.id}",
        )
    return None


def _outputs_missing(run: Run) -> OutputsMissingError:
    """Return the error that lists each missing output with its expected path."""
    paths = {each.id: each.path for each in run.spec.outputs}
    lines = [f"{each}: {paths.get(each, '?')}" for each in run.status.missing[:_MOST_NAMED]]
    more = len(run.status.missing) - len(lines)
    what = (
        "a required output is"
        if len(run.status.missing) == 1
        else f"{len(run.status.missing)} required outputs are"
    )
    return OutputsMissingError(
        "outputs-missing",
        "\n".join(
            [f"the tool exited with 0, but {what} missing:", *lines, *([f"and {more} more"] if more else [])]
        ),
        subject=run.id,
        hint=f"hibali runs logs {run.id} --stderr",
    )


def raise_failure(runs: list[Run]) -> None:
    """Raise the error of the first unsuccessful run."""
    for run in runs:
        failure = find_failure(run)
        if failure is not None:
            raise failure


def _find_sweep_failure(run: Run) -> HibaliError | None:
    if not run.state.ended:
        return None
    counts = counts_text(run)
    hint = f"`hibali runs logs {run.id} --task N` shows why; `hibali runs rerun {run.id} --failed` reruns the failed tasks."
    if failed := run.in_state(State.FAILED):
        if all(run.tasks[number].missing for number in failed):
            return OutputsMissingError(
                "outputs-missing",
                f"the tool exited with 0 in every task, but required outputs of {counted(len(failed), 'task')} are missing: {counts}",
                subject=run.id,
                hint=hint,
            )
        return RunFailedError("tasks-failed", f"some tasks failed: {counts}", subject=run.id, hint=hint)
    if run.in_state(State.CANCELLED):
        return RunFailedError(
            "run-cancelled", f"the sweep was cancelled: {counts}", subject=run.id, hint=hint
        )
    if run.in_state(State.LOST):
        return TryLaterError(
            "run-lost",
            f"the results of some tasks are unknown: {counts}",
            subject=run.id,
            hint=f"To query the site again: hibali runs wait {run.id}",
        )
    return None


def counts_text(run: Run) -> str:
    """Return the number of tasks in each state."""
    return ", ".join(f"{count} {state}" for state, count in run.counts().items())
