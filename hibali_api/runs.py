"""Run pipelines at sites: `hibali.run`, and `hibali.runs` for those that were started before."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any, Literal, Unpack

from hibali.cancellation import Cancellation
from hibali.config.settings import site_for_runs
from hibali.documents import read_json_file
from hibali.errors import UsageError
from hibali.events import Listener, Noted
from hibali.options import document, read_options
from hibali_api.calls import Call, CallOptions, Place, calling, place_text, watching
from hibali_api.job_options import IdentityOptions, ResourceOptions, resources_from
from hibali_api.notebook import html_of
from hibali_api.transfers import check_receipt
from registry.catalogue import Catalogue
from registry.invocation import check_invocation, read_invocation
from registry.parameters import Row, read_table
from registry.pipeline import Pipeline
from runs import model
from runs.cancel import cancel_run
from runs.collect import Collector, ended_tasks
from runs.launch import launch, launch_session
from runs.logs import Stream, read_log
from runs.model import RunStatus, State
from runs.monitor import fetch_usage, update_runs, wait_at_site
from runs.new_request import (
    RequestedJob,
    RunOptions,
    StartOptions,
    SweepOptions,
    make_tasks,
    read_request,
    require_trust,
    single_workload,
)
from runs.rate_limits import open_limited_host
from runs.records import choose_task
from runs.request import Request, with_job_proxy
from runs.reuse import Reuse
from runs.run_index import RunFilter, find_run_ids
from runs.site_session import SiteOpener, SiteSession
from runs.stage import Synchroniser
from runs.status import find_failure
from runs.store import RunStore
from runs.task_runner import load_task_runner
from runs.tunnel import Ports, open_tunnel
from transfers.history.journal import Receipt

Values = Mapping[str, Any]


class JobOptions(CallOptions, ResourceOptions, IdentityOptions, total=False):
    """The options of a run, as those of `hibali run` with these names; missing ones have defaults.

    `after`: start when these runs have succeeded. `hold`: start only after `hibali runs release`. `reuse`: return an earlier run that
    computed the same. `pilot`: run the tasks of a sweep inside one job after the other, at most so many.
    """

    after: Sequence[Run | str]
    hold: bool
    reuse: bool
    pilot: int


document(JobOptions)


class _StartedError(Exception):
    """The job has started."""


def _raise_if_started(run: model.Run) -> None:
    if run.state is State.RUNNING:
        raise _StartedError


_OPTIONS = frozenset(JobOptions.__annotations__) - frozenset(CallOptions.__annotations__)


class Run:
    """A run at a site: of one job, or the tasks of a sweep.

    Reading its properties contacts no site: they are as they were last observed. `refresh` and `wait` query the site.
    """

    def __init__(self, identifier: str, *, config: Place | None = None) -> None:
        """Find a run by its id, a part of the id, its name, `latest` or `latest:PIPELINE`. Raises `NotFoundError`, `UsageError` for several."""
        self._run_store = RunStore()
        self._config = config
        self.id = self._run_store.find_id(identifier)
        self._run_store.load(self.id)

    @property
    def record(self) -> model.Run:
        """All that is known of the run."""
        return self._run_store.load(self.id)

    @property
    def state(self) -> State:
        """The state, of a sweep that of all tasks together; compare it with text such as "SUCCEEDED"."""
        return self.record.state

    @property
    def site(self) -> str:
        """The name of the site."""
        return self.record.site

    @property
    def work(self) -> str:
        """The work folder of the tool as SITE:PATH, from which files can be read while the job runs."""
        return f"{self.site}:{os.fsdecode(self.record.folder)}/work"

    @property
    def pipeline(self) -> str:
        """NAME@VERSION of the pipeline."""
        return self.record.spec.pipeline

    @property
    def tasks(self) -> dict[int, RunStatus]:
        """The status of each task of a sweep by its number; empty for a single run."""
        sweep = self.record.sweep
        return {} if sweep is None else dict(sweep.tasks)

    def __repr__(self) -> str:
        """Return the id and the state."""
        return f"<hibali.Run {self.id} {self.state} at {self.site}>"

    def _repr_html_(self) -> str | None:
        """Return the run as a notebook shows it."""
        return html_of("run", self.record, self._run_store)

    def refresh(self, **options: Unpack[CallOptions]) -> State:
        """Query the site once; return the state, which is the last known one if the site cannot be reached."""
        with self._calling(options) as call:
            warn = partial(_note, call.on_event)
            update_runs(call.settings, self._run_store, [self.record], call.on_event, warn, submit_next=True)
        return self.state

    def wait(
        self,
        *,
        check: bool = True,
        on_change: Callable[[Run], None] | None = None,
        **options: Unpack[CallOptions],
    ) -> State:
        """Wait until the run has ended, and return its state.

        After that, the same call of `hibali.run` starts a new run.

        Args:
            check: raise an error for a run without success; otherwise only return its state.
            on_change: called with this run whenever its state changed.
            **options: see `CallOptions`; `cancellation` ends the waiting, not the run.

        Raises:
            RunFailedError: it failed or was cancelled; OutputsMissingError: a required output is missing.
            TryLaterError: the site could not be reached for a long time, or the run is lost.
        """
        with self._calling(options) as call:
            run = self.record
            site = site_for_runs(call.settings, run.site)
            watcher = watching.get()

            def changed(_: object) -> None:
                if watcher is not None:
                    watcher.show_run(self)
                if on_change is not None:
                    on_change(self)

            if not run.state.final:
                wait_at_site(site, self._run_store, run, call.on_event, changed=changed)
        ended = self.record
        if ended.state.final and not ended.results.reported:
            self._run_store.note(self.id, "reported")
        failure = find_failure(ended)
        if check and failure is not None:
            raise failure
        return ended.state

    def wait_start(self, **options: Unpack[CallOptions]) -> State:
        """Wait until the job has started; return the state, of a job that has ended already the last one.

        Raises:
            TryLaterError: the site could not be reached for a long time.
        """
        with self._calling(options) as call, contextlib.suppress(_StartedError):
            run = self.record
            site = site_for_runs(call.settings, run.site)
            if run.state is not State.RUNNING and not run.state.final:
                wait_at_site(site, self._run_store, run, call.on_event, changed=_raise_if_started)
        return self.state

    def logs(
        self,
        stream: Literal["stdout", "stderr", "scheduler.log"] = "stdout",
        *,
        task: int | None = None,
        **options: Unpack[CallOptions],
    ) -> str:
        """Return what the tool has printed so far. Raises `NotFoundError` if there is nothing yet."""
        wanted: Stream = stream
        with self._calling(options) as call:
            run = choose_task(self.record, task, log_of_job=stream == "scheduler.log")
            site = site_for_runs(call.settings, run.site)
            with contextlib.closing(open_limited_host(site, call.on_event)) as host:
                return b"".join(read_log(host, run, wanted)).decode("utf-8", "replace")

    @contextlib.contextmanager
    def tunnel(
        self, port: int, *, local: int = 0, task: int | None = None, **options: Unpack[CallOptions]
    ) -> Iterator[int]:
        """Forward a port of this machine to one at the node of the job, for as long as the `with` statement or the job lasts.

        Args:
            port: the port at the node.
            local: the port here; 0 for any free one.
            task: the task of a sweep.
            **options: see `CallOptions`.

        Yields:
            The port here. Other users of this machine can connect to it, too.

        Raises:
            TryLaterError: "not-running", before the job has started; RefusedError: "run-ended", after it has ended.
        """
        cancellation, opened = Cancellation(), Queue[int | BaseException]()

        def forward() -> None:
            try:
                given = {"config": self._config, **options, "cancellation": cancellation}
                with calling("tunnel", given) as call:
                    open_tunnel(
                        self._opener(call),
                        self.record,
                        Ports(port, local),
                        task=task,
                        on_open=lambda tunnel: opened.put(tunnel.ports.local),
                    )
            except BaseException as problem:  # noqa: BLE001 - raised by the thread that waits for the port
                opened.put(problem)

        self.refresh(**options)
        thread = threading.Thread(target=forward, name=f"tunnel {self.id}", daemon=True)
        thread.start()
        try:
            found = opened.get()
            if isinstance(found, BaseException):
                raise found
            yield found
        finally:
            cancellation.cancel()
            thread.join()

    def collect(self, target: Place, **options: Unpack[CallOptions]) -> Receipt:
        """Fetch the outputs of a run that has ended, verified, into a folder; of a sweep those of the ended tasks.

        Those of a failed run are fetched, too; the `exit` of the receipt says that it failed.

        Raises:
            IncompleteTransferError: outputs are missing or were not transferred; the receipt says which.
            TryLaterError: the run has not ended.
        """
        with self._calling(options) as call:
            run, place = self.record, call.target(target)
            site = site_for_runs(call.settings, run.site)
            if run.sweep is None:
                fetch_usage(call.settings, self._run_store, run, call.on_event)
            collector = Collector(self._run_store, site, place, call.on_event)
            receipt, _ = collector.collect(run, ended_tasks(run))
        return check_receipt(receipt) if receipt.files_failed else receipt

    def cancel(self, **options: Unpack[CallOptions]) -> State:
        """Cancel the run, and return its state then. A run that has ended stays as it is."""
        with self._calling(options) as call:

            def connect() -> SiteSession:
                return self._opener(call)()

            cancel_run(connect, self._run_store, self.record, call.on_event)
        return self.state

    def _opener(self, call: Call) -> SiteOpener:
        """Return what connects to the run's site. Raises `UsageError` if that is not configured any more."""
        run = self.record
        site = site_for_runs(call.settings, run.site)
        return SiteOpener(site, run.placement.scheduler, self._run_store, call.on_event)

    def _calling(self, options: CallOptions) -> contextlib.AbstractContextManager[Call]:
        return calling("Run", {"config": self._config, **options})


def get(identifier: str, *, config: Place | None = None) -> Run:
    """Return a run by its id, or by the beginning of the id. Raises `NotFoundError`."""
    return Run(identifier, config=config)


def every(*, site: str | None = None, config: Place | None = None) -> list[Run]:
    """Return all runs of this account, or those at one site, oldest first."""
    return [Run(each, config=config) for each in find_run_ids(RunFilter(site=site))]


def refresh(runs: Iterable[Run], **options: Unpack[CallOptions]) -> None:
    """Query each site once for all of these runs, and submit those that wait for a place in the queue.

    The state of a run is the last known one if its site cannot be reached; `on_event` receives the reason.
    """
    with calling("refresh", options) as call:
        run_store = RunStore()
        records = [run_store.load(each.id) for each in runs]
        update_runs(
            call.settings, run_store, records, call.on_event, partial(_note, call.on_event), submit_next=True
        )


def run(
    pipeline: str,
    values: Values | Place,
    *,
    site: str,
    each: Iterable[Values] | Place | None = None,
    params: Mapping[str, Sequence[Any]] | None = None,
    **options: Unpack[JobOptions],
) -> Run:
    """Run a pipeline at a site, and return as soon as its job is submitted.

    The same call again returns the run that it started, until `Run.wait` has reported how it ended.

    Args:
        pipeline: NAME or NAME@VERSION of a pipeline of the catalogue.
        values: the values of its inputs by their ids, or a JSON file of them. Those of file inputs are paths of this
            machine, SITE:PATH, or run:ID/OUTPUT for the output of another run.
        site: the site to run it at.
        each: for a sweep, the values of each task, or a .csv, .tsv or .jsonl file of them.
        params: for a sweep, lists of values; all combinations are run, for each row of `each`.
        **options: see `JobOptions`.

    Raises:
        UsageError: the values are wrong; the message lists all problems.
        RefusedError: "not-trusted", if the pipeline needs consent at this site: `hibali pipelines trust`.
        TryLaterError: the site cannot be reached, or the queue is full; the same call submits it later.
    """
    with calling("run", options, _OPTIONS) as call:
        catalogue = Catalogue()
        found = catalogue.find(pipeline)
        request = _request(call, found, values, site, (each, params or {}), call.given)
        require_trust(catalogue, found, request.compute.container)
        started = _launch(call, request)
    return Run(started.id, config=options.get("config"))


def run_own(
    pipeline: Pipeline,
    values: Values,
    *,
    site: str,
    each: Iterable[Values] | None = None,
    **options: Unpack[JobOptions],
) -> Run:
    """Run a pipeline of hibali itself as `run` does, for a command of the user that is the consent to this job (S11)."""
    assert pipeline.own_command
    with calling("run", options, _OPTIONS) as call:
        started = _launch(call, _request(call, pipeline, values, site, (each, {}), call.given))
    return Run(started.id, config=options.get("config"))


def _launch(call: Call, request: Request) -> model.Run:
    request = with_job_proxy(request)
    run_store = RunStore()
    reuse = Reuse(call.settings, run_store, call.on_event) if call.given.get("reuse") else None
    with launch_session(request, run_store, call.on_event) as session:
        return launch(request, session, Synchroniser(), reuse=reuse)


_Tasks = tuple[Iterable[Values] | Place | None, Mapping[str, Sequence[Any]]]


def _request(
    call: Call, pipeline: Pipeline, values: Values | Place, site: str, tasks: _Tasks, given: Mapping[str, Any]
) -> Request:
    """Return the request of a single run or of a sweep."""
    each, params = tasks
    options, pilot = _run_options(site, given), int(given.get("pilot") or 0)
    file = None if isinstance(values, Mapping) else Path(values)
    if each is None and not params:
        if pilot:
            raise UsageError("usage", "a pilot runs the tasks of a sweep", subject="pilot")
        invocation = (
            check_invocation(pipeline, dict(values))
            if isinstance(values, Mapping)
            else read_invocation(pipeline, Path(values))
        )
        workload = single_workload(pipeline, invocation)
    else:
        table = Path(each) if isinstance(each, str | os.PathLike) else None
        rows = read_table(pipeline, table) if table is not None else _rows(each)
        workload = make_tasks(
            pipeline,
            dict(values) if isinstance(values, Mapping) else read_json_file(Path(values)),
            _combined(rows, params),
            subject=", ".join(str(path) for path in (table, file) if path is not None) or "each, params",
        )
        options = replace(options, sweep=SweepOptions(table))
    request = read_request(call.settings, workload, file, site, options, partial(_follow, call))
    return load_task_runner().with_pilot(request, pilot) if pilot else request


def _rows(each: Any) -> list[Row]:
    return [Row()] if each is None else [Row(dict(values)) for values in each]


def _combined(rows: Sequence[Row], params: Mapping[str, Sequence[Any]]) -> list[Row]:
    """Return each row with each combination of the values; the last varies fastest."""
    chosen = [dict(zip(params, values, strict=True)) for values in itertools.product(*params.values())]
    return [Row({**row.values, **values}, row.line) for row in rows for values in chosen]


def _run_options(site: str, given: Mapping[str, Any]) -> RunOptions:
    values = read_options(JobOptions, given)
    after = tuple(each.id if isinstance(each, Run) else each for each in given.get("after", ()))
    return RunOptions(
        sites=(site,),
        name=values["name"],
        new=values["new"],
        image=place_text(values["image"]),
        job=RequestedJob(resources_from(values)),
        start=StartOptions(after, hold=bool(given.get("hold")), wait=True, sweep=False),
    )


def _follow(call: Call, runs: list[model.Run]) -> None:
    """Wait for runs that come first."""
    for each in runs:
        wait_at_site(site_for_runs(call.settings, each.site), RunStore(), each, call.on_event)


def _note(on_event: Listener, message: str) -> None:
    on_event(Noted(message))
