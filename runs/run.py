"""One execution of an invocation at a site: its states, and what the ledger's records make of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from hibali.errors import Exit, NotFoundError
from hibali.text import path_from_fields, printable

if TYPE_CHECKING:
    from runs.sweeps.sweep import Sweep

# The tool is a child of somebody else there, whose time the job does not see.
BY_OTHERS = frozenset({"docker", "podman"})
RUN_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{6}-[0-9a-f]{8}")
FROM_RUN = "run:"  # how an answer, and an input's identity, begins that is the output of a run


class State(StrEnum):
    """How far a run is (design.md, "The words")."""

    PREPARED = "PREPARED"
    STAGED = "STAGED"
    SUBMITTED = "SUBMITTED"
    WAITING = "WAITING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    LOST = "LOST"

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen; LOST is an end that is asked about again."""
        return self in {State.SUCCEEDED, State.FAILED, State.CANCELLED, State.LOST}

    @property
    def final(self) -> bool:
        """Whether the end is known: a run that is LOST may still turn up."""
        return self.ended and self is not State.LOST


@dataclass(frozen=True, slots=True)
class Output:
    """A file or folder the run should leave below its work folder; `path` is a glob where `is_pattern`."""

    id: str
    path: str
    optional: bool = False
    is_list: bool = False
    is_pattern: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """What the ledger knows of one run. Times are RFC 3339; `folder` is absolute at the site, b"" before it was made.

    `after` are the runs that `--after` named; `sources` pairs of an input's id and the output of a run that answers it, as
    `run:ID/OUTPUT`. `hold` says that it was begun on hold, `released` that somebody let it go since. Its job has a
    `proxy` of its own. One that is `reused` stands
    for what was asked now, and ran before; with `kept`, its outputs stand only where they were collected.
    A run of many tasks has a `sweep`: its state is that of all of them, and `job` the latest of its jobs; one of them by
    itself has its number as `task` (runs.sweeps.sweep). `origin` is the run that is run again by this one.

    `submitting` says that its submission was begun, `words` are those that submit it when there is room for it in the
    queue. `cancelled` is a wish, `marked` says that it stands at the site, `told` that the scheduler took it. `cleaned` is when its
    folder was removed.
    `hibali` is the version that began it, `image` is `sha256:ID` of what was started. `invocation` are the answers as they
    were given; each of `inputs` has `id`, `name`, `location` and `identity`. `collected` are the targets, `receipts` the
    receipts of those calls. `accounted` says that the scheduler's accounting was asked, and will not know more. `missing` are the ids of
    required outputs that a tool did not leave which ended with 0: such a run is FAILED.
    """

    id: str
    key: str
    pipeline: str
    pipeline_digest: str
    site: str
    name: str
    scheduler: str
    container: str
    created: str
    outputs: tuple[Output, ...] = ()
    state: State = State.PREPARED
    folder: bytes = b""
    job: str = ""
    native: str = ""
    reason: str = ""
    exit_code: int | None = None
    host: str = ""
    started: str = ""
    ended: str = ""
    submitting: bool = False
    words: tuple[str, ...] = ()
    cancelled: bool = False
    marked: bool = False
    told: bool = False
    cleaned: str = ""
    reported: bool = False
    collected: tuple[str, ...] = field(default=())
    after: tuple[str, ...] = field(default=())
    sources: tuple[tuple[str, str], ...] = field(default=())
    hold: bool = False
    proxy: bool = False
    released: bool = False
    reused: bool = False
    kept: bool = False

    sweep: Sweep | None = None
    task: int = 0
    origin: str = ""
    receipts: tuple[str, ...] = field(default=())
    hibali: str = ""
    image: str = ""
    invocation: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[Mapping[str, str], ...] = field(default=())
    cpu_seconds: float | None = None
    memory_bytes: int | None = None
    accounted: bool = False
    missing: tuple[str, ...] = field(default=())

    @property
    def failure_exit(self) -> Exit:
        """The exit code that tells how this run failed; of a sweep the tasks that failed decide, not those that were cancelled."""
        missing = [self.missing] if self.state is State.FAILED else []
        if self.sweep is not None:
            tasks = self.sweep.tasks.values()
            missing = [each.missing for each in tasks if each.state is State.FAILED]
        return Exit.OUTPUTS_MISSING if missing and all(missing) else Exit.RUN_FAILED

    @property
    def on_hold(self) -> bool:
        """Whether it waits for somebody to let it go."""
        return self.hold and not self.released and not self.state.ended

    @property
    def needs(self) -> tuple[str, ...]:
        """The runs that have to succeed before this one starts."""
        taken = (text.removeprefix(FROM_RUN).partition("/")[0] for _, text in self.sources)
        return tuple(dict.fromkeys((*self.after, *(each.partition(".")[0] for each in taken))))

    @property
    def word(self) -> str:
        """How it is called in a reference: a task of a sweep by its number, too."""
        return f"{self.id}.{self.task}" if self.task else self.id

    @property
    def waits(self) -> bool:
        """Whether it is ready and waits with us for room in the queue."""
        return bool(self.words) and not self.job and not self.state.ended

    def to_record(self) -> dict[str, Any]:
        """The fields of the JSON line of kind `run`; a run that is no sweep has one task."""
        from hibali.text import path_fields

        if self.sweep is not None:
            from runs.sweeps.record import sweep_record

            tasks, more = sweep_record(self.sweep)
        else:
            tasks, more = [self._task_record()], {}
        return {
            "id": self.id,
            "pipeline": self.pipeline,
            "pipeline_digest": self.pipeline_digest,
            "site": self.site,
            "name": self.name,
            "scheduler": self.scheduler,
            "container": self.container,
            "state": self.state,
            "collected": bool(self.collected),
            "collected_to": list(self.collected),
            "cleaned": self.cleaned or None,
            "receipts": list(self.receipts),
            "hibali": self.hibali or None,
            "image": self.image or None,
            "created": self.created,
            **path_fields(self.folder, "folder"),
            "outputs": [
                {"id": each.id, "path": each.path, "optional": each.optional, "is_list": each.is_list}
                for each in self.outputs
            ],
            "after": list(self.after),
            "sources": [{"input": each, "from": text} for each, text in self.sources],
            "on_hold": self.on_hold,
            "reused": self.reused,
            "tasks": tasks,
            "rerun_of": self.origin or None,
            **more,
        }

    def _task_record(self) -> dict[str, Any]:
        return {
            "state": self.state,
            "job": self.job,
            "native": self.native,
            "reason": self.reason,
            "exit_code": self.exit_code,
            "host": self.host,
            "started": self.started or None,
            "ended": self.ended or None,
            "cpu_seconds": self.cpu_seconds,
            "memory_bytes": self.memory_bytes,
            "missing_outputs": list(self.missing),
        }

    def to_whole_record(self) -> dict[str, Any]:
        """The same with what the run was given."""
        given = {"invocation": dict(self.invocation), "inputs": [dict(each) for each in self.inputs]}
        return {**self.to_record(), **given}


def ignore_run(run: Run) -> None:
    """Nobody wants to know."""
    del run


def check_run_id(text: str) -> str:
    """The text, if a run can be called so: it names a file of the ledger. Raises `NotFoundError`."""
    if not RUN_ID.fullmatch(text):
        raise _no_such_run(text)
    return text


def fold_records(run_id: str, records: Iterable[Mapping[str, Any]]) -> Run:
    """The run that these records tell of, oldest first; raises `NotFoundError` where none of them begins it."""
    run: Run | None = None
    for record in records:
        kind = record.get("kind")
        if run is None:
            run = _begin(record) if kind == "prepared" and record.get("id") == run_id else None
        else:
            run = _apply(run, str(kind), record)
    if run is None:
        raise _no_such_run(run_id)
    return run


def _begin(record: Mapping[str, Any]) -> Run:
    sweep = None
    if record.get("sweep"):
        from runs.sweeps.sweep import begin_sweep

        sweep = begin_sweep(record)
    return Run(
        id=record["id"],
        key=record["key"],
        pipeline=record["pipeline"],
        pipeline_digest=record["pipeline_digest"],
        site=record["site"],
        name=record["name"],
        scheduler=record["scheduler"],
        container=record["container"],
        created=record["at"],
        outputs=tuple(
            Output(each["id"], each["path"], each["optional"], each["is_list"], each["is_pattern"])
            for each in record["outputs"]
        ),
        after=tuple(record.get("after", ())),
        sources=_sources(record.get("inputs", ())),
        hold=bool(record.get("hold")),
        proxy=bool(record.get("proxy")),
        hibali=record.get("hibali", ""),
        invocation=record.get("invocation", {}),
        inputs=tuple(record.get("inputs", ())),
        sweep=sweep,
        origin=record.get("origin", ""),
    )


def _sources(inputs: Iterable[Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    pairs = ((str(each["id"]), str(each["identity"])) for each in inputs)
    return tuple(dict.fromkeys(pair for pair in pairs if pair[1].startswith(FROM_RUN)))


def _apply(run: Run, kind: str, record: Mapping[str, Any]) -> Run:
    """One more thing that happened; a state never goes back behind an end that is known."""
    if run.sweep is not None and kind in {"staged", "chunk", "tasks", "pilot", "allocation"}:
        from runs.sweeps.sweep import apply_record

        return apply_record(run, run.sweep, kind, record)
    match kind:
        case "staged":
            return replace(run, state=State.STAGED, folder=path_from_fields(dict(record), "folder"))
        case "submitted":
            # the job may have been found again under another id
            state = run.state if run.state.ended else State.SUBMITTED
            return replace(run, state=state, job=record["job"])
        case "seen":
            if run.state.final:
                return run
            return replace(
                run,
                state=State(record["state"]),
                native=record["native"],
                reason=record["reason"],
                exit_code=record.get("exit_code"),
                host=record.get("host") or run.host,
                started=record.get("started") or run.started,
                ended=record.get("ended") or run.ended,
                missing=tuple(record.get("missing", ())),
                **_used(run, record),
            )
        case "released":
            return replace(run, released=True)
        case "image":
            return replace(run, image=f"sha256:{record['id']}")
        case "usage":
            if run.sweep is not None:
                from runs.sweeps.sweep import apply_record

                run = apply_record(run, run.sweep, kind, record)
            return replace(run, accounted=True, **_used(run, record))
        case "reported":
            return replace(run, reported=run.state.final)
        case "collected":
            receipts = (*run.receipts, record["receipt"]) if record.get("receipt") else run.receipts
            return replace(run, collected=(*run.collected, record["target"]), receipts=receipts)
        case _:
            return _apply_to_submission(run, kind, record)


def _apply_to_submission(run: Run, kind: str, record: Mapping[str, Any]) -> Run:
    """What happened to it before it had a job, what was wished, and what became of its folder."""
    match kind:
        case "waits":
            return replace(run, reason=record["reason"], words=tuple(record["words"]))
        case "submitting":
            return replace(run, submitting=True, words=(), reason="")
        case "cancel":
            return replace(run, cancelled=True, marked=run.marked or bool(record.get("marked")))
        case "cancel-told":
            return replace(run, told=True)
        case "cleaned":
            return replace(run, cleaned=record["at"])
        case _:
            return run


def _used(run: Run, record: Mapping[str, Any]) -> dict[str, Any]:
    """What a tool used, as far as it is told; what was known before stays."""
    memory = record.get("memory_bytes")
    seconds = record.get("cpu_seconds")
    if record.get("kind") == "seen" and "exit_code" in record and run.container in BY_OTHERS:
        seconds = None
    return {
        "cpu_seconds": run.cpu_seconds if seconds is None else seconds,
        "memory_bytes": run.memory_bytes if memory is None else memory,
    }


def _no_such_run(text: str) -> NotFoundError:
    return NotFoundError(
        "no-such-run", "there is no run of this id", about=printable(text), hint="hibali runs list"
    )
