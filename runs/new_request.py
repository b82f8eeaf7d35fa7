"""Make the request of a new run or sweep from its options: locate and identify its inputs, check it, wait for the runs that come first."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hibali.amounts import NONE
from hibali.config.settings import Settings, site_for_runs
from hibali.documents import canonical_digest, read_json_file
from hibali.errors import RefusedError, UsageError
from hibali.ledger import IDENTIFIER
from registry.catalogue import Catalogue, refuse_own
from registry.invocation import Invocation, read_invocation
from registry.parameters import Row, check_tasks, make_rows
from registry.pipeline import Pipeline
from runs.containers.base import Container, find_consent_reasons
from runs.dependencies import must_end_before, needed_parts, require_success
from runs.fast_storage import NO_FAST_OPTIONS, NOTHING_FAST, FastOptions, choose_fast_storage
from runs.images import Pinned
from runs.inputs import (
    Located,
    dependencies_of,
    list_inputs,
    list_references,
    locate_files,
    locate_for_site,
    require_local,
)
from runs.model import Input, Run
from runs.outputs import Reference
from runs.request import ComputeSite, JobOptions, Request, TaskRequest, Workload, compute_site
from runs.schedulers.base import Resources
from runs.store import RunStore
from runs.sweeps.launch import files_of
from runs.typed import typed_request

Follow = Callable[[list[Run]], object]  # queries runs that come first, or waits for their ends


PROXY_OPTIONS = ("--no-proxy", "--with-proxy")


@dataclass(frozen=True, slots=True)
class StartOptions:
    """The start of a run: `after` other runs, by id, or on `hold`.

    With `wait`, hibali waits for the other runs. A `sweep` starts after the end of every run whose outputs it takes. `polled`: the states of the
    other runs in the ledger are recent, and their sites are not queried again.
    """

    after: tuple[str, ...] = ()
    hold: bool = False
    wait: bool = False
    sweep: bool = False
    polled: bool = False


@dataclass(frozen=True, slots=True)
class CollectOptions:
    """The target of the outputs after a run: a folder, or one in a DataLad dataset; and the table of a sweep."""

    folder: str | None = None
    dataset: str | None = None
    no_save: bool = False
    table: str | None = None

    @property
    def target(self) -> str | None:
        """The folder for the outputs, None if they stay at the site."""
        return self.dataset or self.folder


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """The tasks of a sweep, and the maximum number of jobs of a pilot; 0 for job arrays.

    `participants` are the options and the dataset of a sweep of participants, as they are recorded; `skipped` have what those lack that are
    left out, by the digest of their values. `resumed` is the id of the run that has exactly these tasks already.
    """

    each: Path | None
    parameters: tuple[str, ...] = ()
    allocations: int = 0
    participants: tuple[str, ...] = ()
    skipped: Mapping[str, Sequence[str]] = field(default_factory=dict)
    resumed: str = ""


@dataclass(frozen=True, slots=True)
class RequestedJob:
    """The job options of the command line; None for `resources` and `fast` is none, `proxy` None leaves the site's default."""

    resources: Resources | None = None
    fast: FastOptions | None = None
    proxy: bool | None = None


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of `hibali run`.

    `sites` are as typed, `explain` shows how they compare. `sweep` is None for a single run. `wait` follows
    the run to its end, `notify` is the target notified of it. `reuse` returns an earlier run that computed
    the same.
    """

    sites: tuple[str, ...] = ()
    explain: bool = False
    name: str = ""
    new: bool = False
    image: str = ""
    job: RequestedJob = field(default_factory=RequestedJob)
    sweep: SweepOptions | None = None
    start: StartOptions = field(default_factory=StartOptions)
    collect: CollectOptions = field(default_factory=CollectOptions)
    reuse: bool = False
    wait: bool = False
    notify: str | None = None


def resource_argv(resources: Resources) -> tuple[str, ...]:
    """Return the options that request these resources."""
    amounts = {
        "nodes": resources.nodes,
        "tasks": resources.tasks,
        "cores": resources.cores,
        "memory": resources.memory_megabytes and f"{resources.memory_megabytes}M",
        "time": resources.seconds and f"{resources.seconds}s",
        "gpus": resources.gpus,
        "partition": resources.partition,
        "account": resources.account,
        "reservation": resources.reservation,
    }
    options = [
        f"--{name}={NONE if value == 0 else value}" for name, value in amounts.items() if value is not None
    ]
    return (*options, *(f"--directive={text}" for text in resources.directives))


def proxy_argv(proxy: bool | None) -> tuple[str, ...]:  # noqa: FBT001  # as the option has it
    """Return the option for the job's proxy; none for the site's default."""
    return () if proxy is None else (PROXY_OPTIONS[proxy],)


def compute_site_of(settings: Settings, name: str) -> ComputeSite:
    """Return a site with its scheduler and container, if runs are possible there. Raises `UsageError`."""
    return compute_site(site_for_runs(settings, name))


def read_request(
    settings: Settings,
    workload: Workload,
    file: Path | None,
    site_name: str,
    options: RunOptions,
    follow: Follow,
    *,
    located: Sequence[Located] | None = None,
    identify: bool = True,
) -> Request:
    """Read and check the request of a run or a sweep, as far as possible without contacting its site.

    Args:
        settings: The sites.
        workload: The pipeline, and the values of its inputs; of a sweep those of all tasks.
        file: The file that has the values, or those that all tasks share.
        site_name: The site to run it at.
        options: The options of the run.
        follow: Called with the runs that come first and have not ended.
        located: The inputs, if they were located without a site before.
        identify: Hash the inputs; without it nothing is read, as for a dry run.
    """
    _check_name(options.name)
    compute, sweep = compute_site_of(settings, site_name), options.sweep or SweepOptions(None)
    workload = name_sites(workload, settings)
    if not workload.tasks:
        compute.container.image_name(workload.pipeline.container)
    if identify:
        first = require_dependencies(list_references(workload.inputs, settings), options, compute, follow)
    else:
        first = load_dependencies(options)
    if located is None:
        several = several_allowed(workload)
        located = locate_files(workload.inputs, settings, compute.site, identify=identify, several=several)
        if not identify:
            require_local(located)
    else:
        located = locate_for_site(located, compute.site, settings)
    typed = typed_request(file, located, options.image, sweep.each, sweep.parameters, sweep.participants)
    fast = options.job.fast or NO_FAST_OPTIONS
    workload = replace(workload, name=options.name)
    fields = {**typed.to_fields(), **({"skipped": dict(sweep.skipped)} if sweep.skipped else {})}
    request = make_request(workload, located, compute, options.image, fields, first, fast)
    if workload.tasks:
        compute.container.image_name(workload.pipeline.container)
    dependencies = replace(request.job.dependencies, hold=options.start.hold)
    request = replace(request.with_job(dependencies=dependencies), new=options.new, resumed=sweep.resumed)
    return with_requested_job(request, options.job)


def _check_name(name: str) -> None:
    if name.partition(":")[0] == "latest" or IDENTIFIER.fullmatch(name):
        raise UsageError(
            "usage",
            "such a name could mean another run: it is `latest` or like an id",
            subject=f"--name {name}",
            hint=f"Choose another name, such as run-{name}",
        )


def read_workload(pipeline: Pipeline, file: Path | None, sweep: SweepOptions | None) -> Workload:
    """Read and check the values of a run, or those of all tasks of a sweep; every problem of every row is raised at once.

    The files that they name are not located yet.
    """
    if sweep is None:
        assert file is not None
        return single_workload(pipeline, read_invocation(pipeline, file))
    values = read_json_file(file) if file is not None else {}
    rows = make_rows(pipeline, sweep.each, sweep.parameters)
    files = ", ".join(str(each) for each in (sweep.each, file) if each is not None)
    return make_tasks(pipeline, values, rows, subject=files or "--param")


def single_workload(pipeline: Pipeline, invocation: Invocation) -> Workload:
    """Return the workload of a single run."""
    return Workload(pipeline, invocation, tuple(list_inputs(invocation)))


def make_tasks(
    pipeline: Pipeline, values: Mapping[str, Any], rows: Sequence[Row], *, subject: str
) -> Workload:
    """Make the tasks of a sweep from the values that all share and a row for each; raises as `read_workload` does."""
    invocations = check_tasks(pipeline, values, rows, subject=subject)
    tasks = tuple(
        TaskRequest(number, row.values, invocation, name)
        for number, (row, invocation, name) in enumerate(
            zip(rows, invocations, task_names(rows), strict=True), start=1
        )
    )
    return Workload(pipeline, Invocation(dict(values), dict(values)), tuple(files_of(tasks)), tasks=tasks)


def name_sites(workload: Workload, settings: Settings) -> Workload:
    """Return a workload whose files at the default site have its name, so that its records and keys mean the same under another default.

    Raises `UsageError` if they need a default site and there is none.
    """

    def named(invocation: Invocation) -> Invocation:
        values, written = (
            with_sites(workload.pipeline, each, settings)
            for each in (invocation.values, invocation.as_written)
        )
        return replace(invocation, values=values, as_written=written)

    tasks = tuple(
        replace(
            task,
            values=with_sites(workload.pipeline, task.values, settings),
            invocation=named(task.invocation),
        )
        for task in workload.tasks
    )
    invocation = named(workload.invocation)
    inputs = tuple(files_of(tasks) if tasks else list_inputs(invocation))
    return replace(workload, invocation=invocation, inputs=inputs, tasks=tasks)


def with_sites(pipeline: Pipeline, values: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """Return values in which `:PATH` of a file has the name of the default site. Raises `UsageError` without one."""

    def named(value: Any) -> Any:
        if isinstance(value, list):
            return [named(each) for each in value]
        return settings.with_site(value) if isinstance(value, str) else value

    files = {each.id for each in pipeline.inputs if each.kind == "File"}
    return {name: named(value) if name in files else value for name, value in values.items()}


def several_allowed(workload: Workload) -> Callable[[Input], bool]:
    """Return whether an input may be several files: one that is a list, or a file of a sweep that is only used in lists."""
    if not workload.tasks:
        values = workload.invocation.file_inputs()
        lists = frozenset(name for name, value in values if not isinstance(value, str))
        return lambda each: each.id in lists
    used = (value for task in workload.tasks for _, value in task.invocation.file_inputs())
    single = frozenset(value for value in used if isinstance(value, str))
    return lambda each: each.text not in single


def make_request(
    workload: Workload,
    located: Sequence[Located],
    compute: ComputeSite,
    image: str,
    typed: Mapping[str, Any],
    first: Sequence[Run] = (),
    fast: FastOptions | None = None,
) -> Request:
    """Make the request for a workload at a site, with the site's defaults for the job.

    `first` are the runs that must succeed before. Without `fast` nothing is copied to fast storage; a sweep
    decides it for each task.
    """
    site, container = compute.site, compute.container
    inputs = tuple(each.input for each in located)
    in_place = [each.identity is None or each.input.in_place for each in located]
    names_archive = bool(image) and not image.startswith("sha256:")
    takes_pinned = container.isolates and bool(container.formats) and not names_archive
    from_runs = [each.run_input for each in located if each.run_input]
    single = fast is not None and not workload.tasks
    return Request(
        replace(
            workload,
            inputs=inputs,
            locations=tuple(each.place for each in located),
            identities=tuple(each.identity for each in located),
            after=tuple(run.id for run in first),
        ),
        compute,
        JobOptions(
            dependencies=dependencies_of(from_runs, first, site, hold=False),
            fast=choose_fast_storage(site, inputs, in_place, fast) if fast and single else NOTHING_FAST,
            fast_options=fast or NO_FAST_OPTIONS,
            proxy=site.proxy is not None and site.proxy.jobs,
        ),
        image=image,
        pinned=pinned_image(Catalogue(), workload.pipeline) if takes_pinned else None,
        typed=typed,
    )


def with_requested_job(request: Request, job: RequestedJob) -> Request:
    """Apply the job options of the command line, and record them with the command as it was typed."""
    resources = job.resources or Resources()
    typed = {**request.typed, "options": [*resource_argv(resources), *proxy_argv(job.proxy)]}
    proxy = request.job.proxy if job.proxy is None else job.proxy
    return replace(request.with_job(resources=resources, proxy=proxy), typed=typed)


def require_dependencies(
    references: Sequence[Reference], options: RunOptions, compute: ComputeSite, follow: Follow
) -> list[Run]:
    """Return the runs of `--after`, once all runs that must have ended before the submission have succeeded.

    The scheduler waits for the others. Raises `NotFoundError`, and what `runs.dependencies.require_success` does.
    """
    run_store, start = RunStore(), options.start
    by_run: dict[str, list[Reference]] = {run_id: [] for run_id in start.after}
    for each in references:
        by_run.setdefault(each.run, []).append(each)

    def needed(run: Run) -> list[Run]:
        return needed_parts(run, [] if run.id in start.after else by_run[run.id])

    first = [
        run
        for run in map(run_store.load, by_run)
        if start.sweep
        or must_end_before(run, by_run[run.id], needed(run), compute.site, compute.container, compute.jobs)
    ]
    unfinished = [run for run in first if not all(part.state.final for part in needed(run))]
    if unfinished and not start.polled:
        follow(unfinished)
    for run in first:
        for part in needed(run_store.load(run.id)):
            require_success(part)
    return load_dependencies(options)


def load_dependencies(options: RunOptions) -> list[Run]:
    """Return the runs of `--after` as the ledger has them; raises `NotFoundError`."""
    return [RunStore().load(each) for each in dict.fromkeys(options.start.after)]


def pinned_image(catalogue: Catalogue, pipeline: Pipeline) -> Pinned | None:
    """Return the image of a pipeline in the catalogue; its content is searched only when needed."""
    record = catalogue.image(pipeline)
    return Pinned(record, lambda: catalogue.image_file(pipeline)) if record else None


def add_own_pipeline(catalogue: Catalogue, descriptor: Mapping[str, Any]) -> Pipeline:
    """Add a pipeline of hibali itself to the catalogue.

    The command that starts it is the consent to this run. It gives no trust: with other values, such a pipeline runs any program.
    """
    raw = json.dumps(descriptor, indent=2).encode("ascii") + b"\n"
    pipeline = catalogue.add(raw, None, subject=str(descriptor["name"]))
    assert pipeline.own_command, "name it in registry/pipeline.py, so that nobody can trust it"
    return pipeline


def require_trust(catalogue: Catalogue, pipeline: Pipeline, container: Container) -> None:
    """Raise `RefusedError` if this pipeline needs the user's consent, and has not got it (S10, S11).

    Without a container the tool is its author's code with all of the user's rights.
    """
    reasons = find_consent_reasons(pipeline, container)
    if reasons and not catalogue.is_trusted(pipeline):
        refuse_own(pipeline)
        raise RefusedError(
            "not-trusted",
            f"this pipeline {'; it '.join(reasons)}, and you have not trusted it yet",
            subject=pipeline.reference,
            hint=f"Read it (`hibali pipelines show {pipeline.reference}`), then: hibali pipelines trust {pipeline.reference}",
        )


_PLAIN = re.compile(r"[A-Za-z0-9._+-]*")
_OTHER = re.compile(r"[^A-Za-z0-9._+-]+")
_LONGEST, _SHORTENED = 100, 60  # letters of a name; of one with a digest


def task_names(rows: Sequence[Row]) -> list[str]:
    """Return the name of each task, which is its folder among collected outputs.

    It is that of the row, such as `sub-01/ses-2`, or the values as `threshold=0.1,mode=fast`. Values that cannot be in a name are shortened and
    followed by `@` and a digest. Repetitions of the same values end with `@2`, `@3`.
    """
    names, repeated = [], Counter[str]()
    for row in rows:
        name = row.name or _name_of(row.values)
        repeated[name] += 1
        names.append(f"{name}@{repeated[name]}" if repeated[name] > 1 else name)
    return names


def _name_of(values: Mapping[str, Any]) -> str:
    texts = {each: _text(value) for each, value in values.items()}
    name = ",".join(f"{each}={text}" for each, text in texts.items()) or "task"
    if len(name) <= _LONGEST and all(_PLAIN.fullmatch(text) for text in texts.values()):
        return name
    short = (f"{each}={_OTHER.sub('-', text.rpartition('/')[2])}" for each, text in texts.items())
    return f"{','.join(short)[:_SHORTENED]}@{canonical_digest(dict(values))[:12]}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
