"""Export runs as an RO-Crate; no data is copied."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hibali import __version__
from hibali.errors import AccessError, IncompleteError, RefusedError, UsageError
from hibali.files import account_names, sync_folder, write_atomic
from hibali.system_errors import reason_of
from hibali.text import path_fields
from hibali_cli.handlers.run_sites import run_site, update_runs
from hibali_cli.options import Common
from hibali_cli.progress import listening
from hibali_plugins.bundles.archive import (
    DESCRIPTOR,
    INVOCATION,
    METADATA,
    OUTPUTS,
    RUN,
    TASKS,
    WORKFLOW,
    ArchiveWriter,
    member_of,
)
from hibali_plugins.bundles.crate import Action, Described, write_runs_metadata
from hibali_plugins.bundles.create import check_pipeline, manifest_of, output_facts, run_facts
from hibali_plugins.bundles.read import PackedInput, Record
from hibali_plugins.bundles.workflow import Step, in_order, is_workflow, script_of, table_of
from registry.catalogue import Catalogue
from registry.pipeline import Pipeline
from runs.inputs import list_inputs
from runs.model import Run
from runs.outputs import OutputDigests, outputs_of
from runs.records import collected_names
from runs.request import TaskRequest
from runs.store import RunStore
from runs.sweeps.table import read_rerun_request
from runs.typed import recorded_request, repeated_options


@dataclass(frozen=True, slots=True)
class Exported:
    """A run that has ended, its pipeline and its outputs; for a sweep the requests of its `tasks`.

    `options` are those of the job, as they were typed.
    """

    run: Run
    pipeline: Pipeline
    outputs: OutputDigests
    tasks: Sequence[TaskRequest] = ()
    options: Sequence[str] = ()


def crate_texts(runs: Sequence[Exported], agent: str) -> dict[str, bytes]:
    """Return every file of the crate by name, the metadata first; pure.

    Each run has a folder; `agent` is the account's name.
    """
    described = []
    texts: dict[str, bytes] = {}
    for each in runs:
        members = _members(each)
        described.append(_describe(each, members, agent))
        texts |= {f"{each.run.id}/{name}": content for name, content in members.items()}
    steps = in_order(map(_step, runs))
    if not is_workflow(steps):
        return {METADATA: write_runs_metadata(described), **texts}
    return {METADATA: write_runs_metadata(described, steps), WORKFLOW: script_of(steps), **texts}


def _step(each: Exported) -> Step:
    run, ids = each.run, _ids_by_text(each.tasks)
    return Step(
        run.id,
        run.spec.pipeline,
        run.site,
        [
            (name, text)
            for known, text in run.spec.sources
            for name in ([known] if known else ids.get(text, ()))
        ],
        run.spec.after,
        each.options,
        tuple(run.tasks) if run.sweep is not None else (),
    )


def _members(each: Exported) -> dict[str, bytes]:
    collected = collected_names(each.run)
    sums = sorted((collected(path), digest) for path, (digest, _) in each.outputs.files.items())
    record = {"schema": 1, "kind": "run", **each.run.to_whole_record()}
    return {
        DESCRIPTOR: each.pipeline.raw,
        INVOCATION: _json(each.run.spec.invocation),
        RUN: _json(record),
        **({OUTPUTS: manifest_of(sums)} if sums else {}),
        **({TASKS: table_of(task.values for task in each.tasks)} if each.tasks else {}),
    }


def _json(value: Mapping[str, object]) -> bytes:
    try:
        return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode("ascii")
    except ValueError:
        raise UsageError("not-text", "an input value cannot be written as JSON", subject=INVOCATION) from None


def _describe(each: Exported, members: Mapping[str, bytes], agent: str) -> Described:
    run, pipeline = each.run, each.pipeline
    names = [member_of(number, _name_of(run_input)) for number, run_input in enumerate(run.spec.inputs)]
    ids = _ids_by_text(each.tasks)
    inputs = tuple(
        PackedInput(
            id=run_input["id"] or ", ".join(ids.get(str(run_input.get("text")), ())),
            member=name,
            type="folder" if run_input["identity"].startswith("tree:") else "file",
            files=0,
            bytes=0,
            included=False,
            location=run_input["location"],
        )
        for name, run_input in zip(names, run.spec.inputs, strict=True)
    )
    return Described(
        record=Record(
            hibali=run.spec.version or __version__,
            name=pipeline.name,
            version=pipeline.version,
            digest=pipeline.digest,
            inputs=inputs,
            run=run_facts(run, run.placement.image.removeprefix("sha256:")),
            outputs=output_facts(each.outputs),
        ),
        pipeline=pipeline,
        members={name: len(content) for name, content in members.items()},
        published=run.status.ended or run.created,
        agent=agent,
        outputs=dict(sorted(each.outputs.files.items())),
        identities={
            name: run_input["identity"] for name, run_input in zip(names, run.spec.inputs, strict=True)
        },
        folder=f"{run.id}/",
        tasks=() if run.sweep is None else tuple(_actions(run, each.tasks, names)),
    )


def _ids_by_text(tasks: Sequence[TaskRequest]) -> dict[str, list[str]]:
    """Return the ids of the inputs that have each text as their value in any task."""
    found: dict[str, dict[str, None]] = {}
    for task in tasks:
        for run_input in list_inputs(task.invocation):
            found.setdefault(run_input.text, {})[run_input.id] = None
    return {text: list(some) for text, some in found.items()}


def _actions(run: Run, tasks: Sequence[TaskRequest], names: Sequence[str]) -> Iterator[Action]:
    members: dict[str, list[str]] = {}
    for name, run_input in zip(names, run.spec.inputs, strict=True):
        members.setdefault(str(run_input.get("text")), []).append(name)
    for task_request in tasks:
        task = run.tasks[task_request.number]
        texts = dict.fromkeys(run_input.text for run_input in list_inputs(task_request.invocation))
        yield Action(
            run.id,
            str(task.state),
            task.exit_code,
            task.reason,
            task.started,
            task.ended,
            [name for text in texts for name in members.get(text, ())],
            task_request.number,
            task_request.values,
        )


def _name_of(run_input: Mapping[str, str]) -> bytes:
    return str(run_input.get("name") or "input").encode("utf-8", "surrogateescape")


def write_crate(texts: Mapping[str, bytes], target: Path) -> None:
    """Write the files into one zip, or into a new folder, completely or not at all.

    Raises `RefusedError` if a non-empty folder already exists, and the error if writing fails.
    """
    if target.name.endswith(".zip"):
        with ArchiveWriter(target) as archive:
            for name, content in texts.items():
                archive.add(name, len(content), [content])
            archive.commit()
        return
    if os.path.lexists(target) and not (target.is_dir() and not any(target.iterdir())):
        raise RefusedError(
            "exists",
            "the target exists and is not an empty folder",
            subject=str(target),
            hint="Name a new or empty folder.",
        )
    partial = target.absolute().with_name(f".{target.name[:200]}.{secrets.token_hex(8)}")
    try:
        try:
            _write_folder(texts, partial)
            partial.replace(target)
            sync_folder(target.absolute().parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except PermissionError:
        raise AccessError("denied", "no permission to write there", subject=str(target)) from None
    except OSError as problem:
        reason = reason_of(problem)
        raise IncompleteError(
            "unwritable-file", f"the crate cannot be written: {reason}", subject=str(target)
        ) from None


def _write_folder(texts: Mapping[str, bytes], folder: Path) -> None:
    folder.mkdir()
    for name, content in texts.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        write_atomic(path, content, mode=0o644)


def _typed_options(run: Run, run_store: RunStore) -> list[str]:
    try:
        return repeated_options(run, recorded_request(run_store.records(run.id), run.id))
    except UsageError:  # an older version did not record them
        return []


def export_crate(common: Common, run_ids: tuple[str, ...], *, crate: str) -> int | None:
    """Write runs that have ended as an RO-Crate."""
    run_store, catalogue = RunStore(), Catalogue()
    target = Path(crate)
    with listening(common, "export") as on_event:
        runs = update_runs(
            common, run_store, [run_store.load(run_id) for run_id in dict.fromkeys(run_ids)], on_event
        )
        found = []
        for run in runs:
            left = outputs_of(run, run_store, lambda run=run: run_site(common, run.site))  # type: ignore[misc]
            pipeline = catalogue.find(run.spec.pipeline)
            check_pipeline(run, pipeline)
            tasks = (
                read_rerun_request(run, run_store, pipeline, tuple(run.sweep.tasks)).workload.tasks
                if run.sweep
                else ()
            )
            found.append(Exported(run, pipeline, left, tasks, _typed_options(run, run_store)))
        texts = crate_texts(found, account_names()[0])
        write_crate(texts, target)
    for each in found:
        for problem in each.outputs.problems:
            common.output.warn(f"{each.run.id}: {os.fsdecode(problem.path)}: {problem.message}")
    if not common.json:
        common.output.line(os.fsencode(target))
        return None
    fields = {
        **path_fields(os.fsencode(target)),
        "format": "ro-crate",
        "runs": [run.id for run in runs],
        "bytes": sum(len(content) for content in texts.values()),
    }
    common.output.record("exported", fields)
    return None
