"""Collect the outputs of a run: find them, name the missing ones, pull and verify."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from hibali.config.model import Site
from hibali.errors import Exit, NotFoundError, RefusedError, TryLaterError
from hibali.events import Failed, Listener, ignore
from hibali.ledger import new_identifier
from hibali.locations import Location, path_at
from hibali.text import as_bytes, as_text, counted, printable
from runs.model import Output, Run, State
from runs.records import tasks_by_values
from runs.run_index import RunFilter
from runs.schedulers.base import BatchSystem
from runs.services.base import FOLDER, ServiceHost, load_job_system, open_host
from runs.store import RunStore
from transfers.engine.request import Request, SaveOptions
from transfers.history.journal import Receipt, add_receipts
from transfers.history.recorded_digests import Expected, moved_by
from transfers.model.entry import Entry, Kind
from transfers.model.patterns import path_expression
from transfers.model.rules import Rules
from transfers.stores.open_store import open_store

_SPECIAL = re.compile(r"([\\*?\[\]!# ])")
_BY_TOOL = frozenset({"output-missing", "output-not-a-file"})  # problems that another try cannot solve


@dataclass(slots=True)
class ChosenOutputs:
    """The outputs in a work folder: regular files to pull, folders, and problems as path, code and message (S12).

    `owners` has for each file the id of the first output that it belongs to.
    """

    files: list[bytes] = field(default_factory=list)
    folders: list[bytes] = field(default_factory=list)
    owners: dict[bytes, str] = field(default_factory=dict)
    problems: list[Failed] = field(default_factory=list)


def choose_outputs(outputs: Sequence[Output], entries: Iterable[Entry]) -> ChosenOutputs:
    """Choose the declared outputs from a listing of the work folder.

    A declared folder means the regular files below it. A symlink is reported and not followed.
    """
    chosen = ChosenOutputs()
    patterns = [(output, _components(output)) for output in outputs]
    present: set[str] = set()
    for entry in entries:
        parts = as_text(entry.path).split("/")
        wanted = False
        owner = ""
        for output, components in patterns:
            inside = len(parts) >= len(components)
            if not all(c.fullmatch(p) for c, p in zip(components, parts, strict=False)):
                continue
            if inside and entry.kind in {Kind.FILE, Kind.FOLDER}:
                present.add(output.id)
                owner = owner or output.id
            wanted = wanted or inside or entry.kind is Kind.LINK
        if not wanted:
            continue
        if entry.kind is Kind.FILE:
            chosen.files.append(entry.path)
            chosen.owners[entry.path] = owner
        elif entry.kind is Kind.FOLDER:
            chosen.folders.append(entry.path)
        else:
            kind = "a symlink" if entry.kind is Kind.LINK else "a device, FIFO or socket"
            chosen.problems.append(
                Failed(entry.path, "output-not-a-file", f"the output is {kind}, which is not followed")
            )
    for output in outputs:
        if output.id not in present and not output.optional:
            path = output.path.encode("utf-8", "surrogateescape")
            chosen.problems.append(
                Failed(path, "output-missing", f"the required output {output.id} is missing")
            )
    return chosen


def _components(output: Output) -> list[re.Pattern[str]]:
    """Return one regular expression for each component of a pattern; as in a shell, a wildcard does not match a leading dot."""
    if output.path == ".":
        return []
    return [_component(part, is_pattern=output.is_pattern) for part in output.path.split("/")]


def _component(part: str, *, is_pattern: bool) -> re.Pattern[str]:
    if not is_pattern:
        return re.compile(re.escape(part))
    guard = "" if part.startswith(".") else r"(?!\.)"
    return re.compile(guard + path_expression([re.sub(r"\*+", "*", part)]), re.DOTALL)


def collect(
    run: Run,
    site: Site,
    target: Location,
    run_store: RunStore,
    on_event: Listener = ignore,
    *,
    saving: SaveOptions = SaveOptions(),  # noqa: B008 - it is frozen
) -> Receipt:
    """Pull the outputs of a run that has ended, and verify them.

    The receipt's `exit` is RUN_FAILED for a tool that failed, even if all outputs exist, OUTPUTS_MISSING for one that exited with 0 without a required
    output, else INCOMPLETE if anything is missing, is no regular file or did not arrive.

    Raises:
        TryLaterError: The run has not ended or is LOST.
        IncompleteError: A dataset could not be saved as `saving` requires.
    """
    require_end(run)
    if not isinstance(load_job_system(run.placement.scheduler), BatchSystem):
        return _collect_from_service(run, site, target, run_store, saving, on_event)
    source, chosen = find_outputs(run, site)
    protect = protection(run, run_store, target, saving, lambda _: 0)
    receipt = pull_files(
        "collect", source, target, chosen.files, saving, on_event, missing=chosen.problems, protect=protect
    )
    done = receipt.exit is Exit.DONE or bool(chosen.problems)
    pulled = done and receipt.files_failed == len(chosen.problems)
    if pulled and receipt.files != len(chosen.files):
        pulled = False
        vanished = Failed(b"", "output-vanished", "not all listed outputs could be pulled")
        receipt.count(vanished)
        on_event(vanished)
        receipt.exit = Exit.INCOMPLETE
    failed = run.state is not State.SUCCEEDED
    if pulled and (failed or not chosen.problems):
        run_store.note(run.id, "collected", {"target": target.path, "receipt": receipt.id})
    if failed:
        receipt.exit = run.failure_exit
    return receipt


def _collect_from_service(
    run: Run, site: Site, target: Location, run_store: RunStore, saving: SaveOptions, on_event: Listener
) -> Receipt:
    """Pull each output from where the service keeps it; the receipt counts all of them."""
    from transfers.engine.operation import synchronise  # start-up: most commands of runs move nothing

    with closing(open_host(site, on_event)) as host:
        assert isinstance(host, ServiceHost)  # as no batch system runs its jobs
        outputs = host.service.outputs(run.id, run.spec.outputs)
    created = {each.id for each in outputs}
    missing = [
        Failed(as_bytes(each.path), "output-missing", f"the required output {each.id} is missing")
        for each in run.spec.outputs
        if each.id not in created and not each.optional
    ]
    receipt = pull_files("collect", path_at(site, FOLDER), target, [], saving, on_event, missing=missing)
    for output in outputs:
        name = as_bytes(output.name)
        source = output.folder.child(name)
        into = target.child(name) if output.is_folder else replace(target, slash=True)
        protect = protection(run, run_store, into, saving, lambda _: 0)
        part = synchronise(Request("collect", source, into, saving=saving, protect=protect), on_event)
        receipt = add_receipts(part, receipt)
    if receipt.exit is Exit.DONE or (missing and run.state is not State.SUCCEEDED):
        run_store.note(run.id, "collected", {"target": target.path, "receipt": receipt.id})
    if run.state is not State.SUCCEEDED:
        receipt.exit = run.failure_exit
    return receipt


def find_outputs(run: Run, site: Site) -> tuple[Location, ChosenOutputs]:
    """Return the folder of the outputs of a run, and what is in it of them."""
    source = work_of(run, site)
    store = open_store(source)
    try:
        return source, choose_outputs(run.spec.outputs, store.list())
    finally:
        store.close()


def may_complete(receipt: Receipt | None) -> bool:
    """Return whether collecting again may bring what is missing: something failed that the tool did not cause."""
    if receipt is None or receipt.exit is not Exit.INCOMPLETE:
        return False
    return any(each.code not in _BY_TOOL for each in receipt.failures)


def protection(
    run: Run, run_store: RunStore, target: Location, saving: SaveOptions, task_of: Callable[[bytes], int]
) -> Callable[[Mapping[bytes, str]], None] | None:
    """Return what refuses to replace collected files of other runs and tasks (`Request.protect`).

    Replaced are only files of the same run, and what an unsuccessful attempt of the same task left: a task is recognised by its pipeline and
    values. None for a dataset that the caller commits, such as `datalad rerun`: git keeps what is replaced.

    Args:
        run: The run whose outputs are collected.
        run_store: The runs that may have collected before.
        target: Where they are collected.
        saving: The options of the commit.
        task_of: Returns the number of the task that a file belongs to, 0 for a single run.
    """
    if not saving.save and target.typed_local:
        from transfers.datasets.repository import find_repository_path  # start-up: only for --no-save

        if find_repository_path(os.fsencode(os.path.realpath(target.path))) is not None:
            return None

    def refuse(other: Mapping[bytes, str]) -> None:
        values = {number: digest for digest, number, _ in tasks_by_values(run)}
        left = set(other)
        for each in run_store.find(RunFilter(pipeline_digest=run.spec.pipeline_digest)):
            failed = {digest for digest, _, state in tasks_by_values(each) if state is not State.SUCCEEDED}
            for folder, moved in collected_files(each, run_store):
                own = each.id == run.id and target.typed_local and folder == Path(target.path)
                left -= {
                    name
                    for name in left & moved.keys()
                    if own or (moved[name].digest == other[name] and values[task_of(name)] in failed)
                }
        if left:
            first = printable(min(left))
            raise RefusedError(
                "other-result",
                f"{counted(len(left), 'file')} of another run or task would be replaced, the first is {first}",
                subject=target.text,
                hint=f"Nothing was changed. Move the old files away, or use another folder: hibali runs collect {run.id} DIR",
            )

    return refuse


def work_of(run: Run, site: Site) -> Location:
    """Return the run's work folder."""
    return path_at(site, run.folder + b"/work")


def pull_files(
    operation: str,
    source: Location,
    target: Location,
    files: Sequence[bytes],
    saving: SaveOptions,
    on_event: Listener,
    *,
    missing: Sequence[Failed] = (),
    protect: Callable[[Mapping[bytes, str]], None] | None = None,
) -> Receipt:
    """Pull these files of a folder and no others; `operation` is its name in the receipt, which counts `missing` as failures.

    `protect` is that of the request.
    """
    from transfers.engine.operation import synchronise  # start-up: most commands of runs move nothing

    if not files:
        receipt = Receipt(new_identifier(), operation, source.text, target.text)
        for problem in missing:
            receipt.count(problem)
            on_event(problem)
        receipt.exit = Exit.INCOMPLETE if missing else Exit.DONE
        return receipt
    rules = replace(Rules(), include=tuple(_as_pattern(path) for path in files))
    request = Request(operation, source, target, rules, saving=saving, missing=missing, protect=protect)
    return synchronise(request, on_event)


def _as_pattern(path: bytes) -> str:
    """Return a gitignore pattern that matches only this path."""
    return "/" + _SPECIAL.sub(r"\\\1", as_text(path))


def collected_files(run: Run, run_store: RunStore) -> Iterator[tuple[Path, dict[bytes, Expected]]]:
    """Yield the target and the verified files of each complete collection of a run, the latest first."""
    for record in reversed(run_store.records(run.id)):
        moved = moved_by(str(record.get("receipt"))) if record.get("kind") == "collected" else None
        if moved is not None:
            yield Path(str(record["target"])), moved


def require_end(run: Run) -> None:
    """Raise `TryLaterError` for a run that has not ended or is LOST, `NotFoundError` if its folder was removed."""
    if run.results.cleaned:
        raise NotFoundError(
            "run-cleaned", f"its folder at {run.site} was removed by `hibali runs clean`", subject=run.id
        )
    if run.state is State.LOST:
        raise TryLaterError(
            "run-lost",
            f"the end of this run is not known: {run.status.reason}",
            subject=run.id,
            hint=f"To query the scheduler again: hibali runs wait {run.id}",
        )
    if not run.state.final:
        raise TryLaterError(
            "not-ended", f"the run is {run.state}", subject=run.id, hint=f"hibali runs wait {run.id}"
        )
