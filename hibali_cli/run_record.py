"""How runs are shown, and how the end of one is told."""

from __future__ import annotations

from hibali.errors import HibaliError, RunFailedError, TryLaterError
from hibali_cli.options import Common
from hibali_cli.output import Cell, flush_results
from runs.book import Book
from runs.run import Run, State


def show_run(common: Common, run: Run) -> None:
    """One run as a JSON line or as names and values."""
    if common.json:
        common.output.record("run", run.to_record(), flush=True)
    else:
        common.output.pairs(run_pairs(run))


def run_pairs(run: Run) -> dict[str, Cell]:
    """What people see of one run."""
    return {
        "run": run.id,
        "state": run.state,
        "reason": run.reason or None,
        "pipeline": run.pipeline,
        "site": run.site,
        "name": run.name or None,
        "job": run.job or None,
        "scheduler says": run.native or None,
        "exit code": run.exit_code,
        "host": run.host or None,
        "created": run.created,
        "started": run.started or None,
        "ended": run.ended or None,
        "folder": run.folder or None,
        **_chain_pairs(run),
        "collected": ", ".join(run.collected) or None,
    }


def _chain_pairs(run: Run) -> dict[str, Cell]:
    """What it takes of other runs, and which come first; nothing for a run that stands alone."""
    found: dict[str, Cell] = {"after": ", ".join(run.after)} if run.after else {}
    for identifier in dict.fromkeys(each for each, _ in run.sources):
        found[f"input {identifier}"] = ", ".join(text for each, text in run.sources if each == identifier)
    return found


def find_failure(run: Run) -> HibaliError | None:
    """The error that tells a caller how a run ended; None for one that succeeded or has not ended."""
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
            hint=f"hibali runs wait {run.id} asks again.",
        )
    return None


def report_ends(common: Common, book: Book, runs: list[Run]) -> None:
    """Show how runs ended; from then on the same line starts a new one. Raises the first failure."""
    for run in runs:
        if common.json:
            common.output.record("run", run.to_record())
        else:
            common.output.say(f"{run.id} {run.state}{' (reused)' if run.reused else ''}")
    flush_results()
    failures = [failure for run in runs if (failure := find_failure(run))]
    for run in runs:
        if run.state.final and not run.reported:
            book.note(run.id, "reported")
    if failures:
        raise failures[0]
