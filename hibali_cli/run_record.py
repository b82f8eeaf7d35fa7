"""How runs are shown, and how the end of one is told."""

from __future__ import annotations

from collections.abc import Mapping

from hibali.amounts import size_words
from hibali.errors import HibaliError, RunFailedError, TryLaterError
from hibali_cli.options import Common
from hibali_cli.output import Cell, flush_results
from runs.book import Book
from runs.run import Run, State


def show_run(common: Common, run: Run) -> None:
    """One run as a JSON line or as names and values."""
    if common.json:
        common.output.record("run", run.to_whole_record(), flush=True)
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
        "CPU": None if run.cpu_seconds is None else f"{run.cpu_seconds:.1f} s",
        "memory": None if run.memory_bytes is None else size_words(run.memory_bytes),
        "digest": f"sha256 {run.pipeline_digest}",
        "image": run.image or None,
        **{f"input {number}": _input_words(each) for number, each in enumerate(run.inputs)},
        "folder": run.folder or None,
        "collected": ", ".join(run.collected) or None,
        "receipts": ", ".join(run.receipts) or None,
        "begun by": f"hibali {run.hibali}" if run.hibali else None,
    }


def _input_words(each: Mapping[str, str]) -> str:
    """Where it lay, and what it was then."""
    return f"{each['id']}: {each['location']} ({each['identity']})"


def find_failure(run: Run) -> HibaliError | None:
    """The error that tells a caller how a run ended; None for one that succeeded or has not ended."""
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


def raise_failure(runs: list[Run]) -> None:
    """Raise the error that tells how the first of them ended that did not end well."""
    for run in runs:
        failure = find_failure(run)
        if failure is not None:
            raise failure


def report_ends(common: Common, book: Book, runs: list[Run]) -> None:
    """Show how runs ended; from then on the same line starts a new one. Raises the first failure."""
    for run in runs:
        if common.json:
            common.output.record("run", run.to_record())
        else:
            common.output.say(f"{run.id} {run.state}")
    flush_results()
    for run in runs:
        if run.state.final and not run.reported:
            book.note(run.id, "reported")
    raise_failure(runs)
