"""A job of one minute at a site: submitted, followed and removed as any run is."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace

from hibali.errors import HibaliError, IncompleteError, TryLaterError
from hibali.events import Listener
from hibali.ledger import new_identifier
from hibali.locations import work_path
from hibali.retry import pause
from hibali.sites import Site
from registry.descriptor import read_descriptor
from registry.invocation import check_invocation
from runs.book import Book
from runs.cancel import cancel_run
from runs.carry import Synchroniser
from runs.clean import Wanted, clean_run
from runs.container import load_container
from runs.doctor.walk import Walk
from runs.heard import update
from runs.launch import Request, launch, show_prepared
from runs.run import Run, State
from runs.scheduler import Resources, load_scheduler
from transfers.far import Far

PATIENCE_SECONDS = 300.0  # in the queue: longer, and the job is taken back
_DESCRIPTOR = b"""{
 "name": "hibali-doctor", "tool-version": "1", "schema-version": "0.5",
 "description": "Says where it ran.",
 "command-line": "hostname >[OUT]",
 "inputs": [{"id": "out", "name": "out", "type": "String", "value-key": "[OUT]", "optional": true, "default-value": "host.txt"}],
 "output-files": [{"id": "host", "name": "host", "path-template": "[OUT]"}]
}"""


def foretold_script(site: Site) -> str:
    """The script of such a job, as it would be submitted."""
    return show_prepared(_request(site), new_identifier()).job_script


def run_job(
    walk: Walk,
    site: Site,
    far: Far,
    open_far: Callable[[], Far],
    tell: Listener,
    patience: float = PATIENCE_SECONDS,
) -> None:
    """The step `job`; its folder is removed again, and the work folder where it was not there before."""
    book = Book()
    work = far.expand(work_path(site))
    is_new = far.stat(work) is None
    run: Run | None = None

    def began(begun: Run) -> None:
        nonlocal run
        run = begun

    try:
        run = launch(_request(site), far, book, Synchroniser(), began=began, tell=tell)
        run = _follow(run, site, far, book, patience)
        _judge(walk, run, patience)
    except HibaliError as problem:
        walk.fault("job", problem)
    finally:
        if run is not None:
            _remove(book.load(run.id), site, far, open_far, book)
        if is_new:
            with contextlib.suppress(HibaliError):
                folders = [work + b"/" + name for name in (b"runs", b"cache", b"images")]
                far.run([b"rmdir", b"--", *folders, work])  # only what is empty goes


def _request(site: Site) -> Request:
    """Without a container: whatever image it would take, the site need not have it."""
    pipeline = read_descriptor(_DESCRIPTOR, "hibali doctor")
    site = replace(site, container="bare", fast=None)
    return Request(
        pipeline=pipeline,
        invocation=check_invocation(pipeline, {}),
        inputs=(),
        places=(),
        identities=(),
        site=site,
        scheduler=load_scheduler(site.scheduler.name if site.scheduler else "direct"),
        container=load_container("bare"),
        name="doctor",
        new=True,
        wanted=Resources(seconds=60),
    )


def _follow(run: Run, site: Site, far: Far, book: Book, patience: float) -> Run:
    """The run when it has ended, or when patience is over."""
    began = time.monotonic()
    wait = 0.2 if run.scheduler == "direct" else 1.0
    while not run.state.ended and time.monotonic() - began < patience:
        pause(wait)
        wait = min(wait * 2, max(site.limits.poll_seconds, 1.0), 30.0)
        [run] = update(far, load_scheduler(run.scheduler), book, [run])
    return run


def _judge(walk: Walk, run: Run, patience: float) -> None:
    if run.state is State.SUCCEEDED:
        walk.ok("job", f"{run.job} ran at {run.host or 'the site'} and is removed again")
    elif run.state.ended:
        why = run.reason or run.native or f"exit code {run.exit_code}"
        hint = f"See what it was: hibali runs show {run.id}"
        walk.fault(
            "job",
            IncompleteError(
                "job-failed", f"a job of one minute ended {run.state}: {why}", about=run.id, hint=hint
            ),
        )
    else:
        why = f" ({run.reason})" if run.reason else ""
        walk.warn(
            "job",
            f"{run.job} is {run.state} after {patience:.0f} s{why}, and was taken back",
            "The queue is long, or no node takes such a job: name another partition or account in config.toml.",
        )


def _remove(run: Run, site: Site, far: Far, open_far: Callable[[], Far], book: Book) -> None:
    if not run.state.ended:
        with contextlib.suppress(HibaliError):
            run = cancel_run(open_far, load_scheduler(run.scheduler), book, run)
        for _ in range(10):
            if run.state.final:
                break
            pause(1.0)
            with contextlib.suppress(TryLaterError):
                [run] = update(far, load_scheduler(run.scheduler), book, [run])
    with contextlib.suppress(HibaliError):
        clean_run(far, site, book, run, Wanted(all_ended=True))
        book.note(run.id, "reported")
