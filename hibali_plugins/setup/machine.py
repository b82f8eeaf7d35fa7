"""Check a machine: login, roots, clock, quotas, scheduler, container runtime, and a test job."""

from __future__ import annotations

import contextlib
import secrets
import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from hibali.amounts import format_size
from hibali.config.kinds import service_name
from hibali.config.model import ContainerSettings, Site, SshSettings
from hibali.errors import AccessError, HibaliError, IncompleteError, NotFoundError, TryLaterError, UsageError
from hibali.events import Listener
from hibali.ledger import new_identifier
from hibali.locations import work_path
from hibali.plugins import if_offered
from hibali.retry import pause
from hibali.ssh_options import SshOptions
from hibali.text import one_line, printable
from hibali_plugins.setup.network import (
    check_certificate,
    check_proxy,
    check_reachable,
    indirect_reason,
    knows_key,
    query_ssh_options,
    ssh_address,
)
from registry.descriptor import read_descriptor
from registry.invocation import check_invocation
from runs.cancel import cancel_run
from runs.clean import CleanRequest, clean_run
from runs.containers.base import load_container
from runs.doctor_steps import StepList
from runs.launch import launch
from runs.model import Run, State
from runs.poll import update
from runs.rate_limits import query_service, rate_limited
from runs.request import JobOptions, Request, Workload, compute_site
from runs.schedulers.base import Resources, Scheduler, load_scheduler
from runs.site_commands import SiteCommands, choosing, find_batch_systems
from runs.site_session import SiteOpener, SiteSession
from runs.stage import Synchroniser
from runs.store import RunStore
from runs.sweeps.launch import prepare_dry_run
from transfers.check import SiteReport, missing_program, reach_machine
from transfers.model.entry import Kind
from transfers.model.units import Space
from transfers.remote.host import KnowsPrograms, RemoteHost, ReportsFreeSpace

LOGIN_STEPS = ("name", "connection", "host key", "login", "transport")
# Errors of ssh itself; all others come from the program that ssh started.
_OF_LOGINS = frozenset(
    {"login-refused", "further-refused", "ssh-configuration", "unreachable", "paused", "timed-out"}
)


def check_login(checks: StepList, site: Site, on_event: Listener) -> RemoteHost | None:
    """Return the host, or None if a step failed. Logs in once, after one test connection."""
    if site.ssh is None:
        return _start_here(checks, site, on_event)
    try:
        options = query_ssh_options(site.ssh.command, site.ssh.host)
    except (NotFoundError, UsageError, TryLaterError) as problem:
        checks.fault("name", problem)
        checks.skip(LOGIN_STEPS[1:], "the configuration of ssh cannot be read")
        return None
    if not _check_network(checks, site.ssh, options):
        return None
    return _log_in(checks, site, options, on_event)


def _start_here(checks: StepList, site: Site, on_event: Listener) -> RemoteHost | None:
    try:
        host, _ = reach_machine(site, SiteReport(), on_event)
    except HibaliError as problem:
        checks.fault("transport", problem)
        return None
    checks.ok("transport", "this machine")
    return host


def _check_network(checks: StepList, ssh: SshSettings, options: SshOptions) -> bool:
    """Check the steps without a login; skip them if ssh uses a proxy or jump host."""
    indirect = indirect_reason(options)
    if indirect:
        checks.skip(LOGIN_STEPS[:2], indirect)
        return True
    host, port = ssh_address(options, ssh.host)
    return check_reachable(checks, host, port, LOGIN_STEPS, greets="SSH-")


def _log_in(checks: StepList, site: Site, options: SshOptions, on_event: Listener) -> RemoteHost | None:
    assert site.ssh is not None
    known = knows_key(options, site.ssh.host)
    if site.ssh.auth == "gsi" and not check_proxy(checks, site.ssh, site.name):
        checks.skip(LOGIN_STEPS[2:], "these steps need the proxy")
        return None
    report = SiteReport()
    began = time.monotonic()
    try:
        host, logins = reach_machine(site, report, on_event)
    except HibaliError as problem:
        _report_failure(checks, problem, known)
        return None
    if site.ssh.auth == "ssh":
        check_certificate(checks, site.ssh, options, site.name)
    checks.ok("host key", "known" if known else "accepted by ssh, but not from its known_hosts files")
    took = f"in {time.monotonic() - began:.1f} s" if logins else "over an existing connection"
    checks.ok("login", f"{host.facts().get('user') or 'you'} {took}")
    if report.facts.get("transport") == "sftp" and site.ssh.transport == "auto":
        checks.warn(
            "transport",
            f"the hibali agent cannot start there ({site.ssh.python} over ssh), so SFTP is used: slower, and verification reads files back",
            f'Name a python3 of 3.6 or later in config.toml: [sites.{site.name}.ssh] python = "/usr/bin/python3"',
        )
    elif report.facts.get("transport") == "sftp":
        checks.ok("transport", "SFTP, as configured")
    else:
        facts = host.facts()
        checks.ok("transport", f"agent under python {facts.get('python', '')} at {facts.get('host', '')}")
    return host


def _report_failure(checks: StepList, problem: HibaliError, known: bool | None) -> None:  # noqa: FBT001  # None: unknown
    if problem.code in {"host-key", "host-key-changed"}:
        checks.fault("host key", problem)
        checks.skip(LOGIN_STEPS[3:], "the host key was not accepted")
        return
    if known is not False:
        checks.ok("host key", "known" if known else "unknown before a login")
    else:
        checks.warn(
            "host key",
            "in no known_hosts file",
            "Log in once with ssh, and compare the key with the one that the site publishes.",
        )
    if problem.code != "session-refused" and (isinstance(problem, AccessError) or problem.code in _OF_LOGINS):
        checks.fault("login", problem)
        checks.skip(LOGIN_STEPS[4:], "the login failed")
        return
    checks.ok("login", "accepted")
    checks.fault("transport", problem)


MAX_WAIT_SECONDS = 300.0  # in the queue; after that, the job is cancelled
_DESCRIPTOR = b"""{
 "name": "hibali-doctor", "tool-version": "1", "schema-version": "0.5",
 "description": "Says where it ran.",
 "command-line": "hostname >[OUT]",
 "inputs": [{"id": "out", "name": "out", "type": "String", "value-key": "[OUT]", "optional": true, "default-value": "host.txt"}],
 "output-files": [{"id": "host", "name": "host", "path-template": "[OUT]"}]
}"""


def dry_run_script(site: Site) -> str:
    """Return the test job's script, as it would be submitted."""
    return prepare_dry_run(_request(site), new_identifier()).prepared.job_script


def run_job(
    checks: StepList,
    site: Site,
    host: RemoteHost,
    on_event: Listener,
    max_wait: float = MAX_WAIT_SECONDS,
) -> None:
    """Run the step `job`; remove its folder, and the work folder if it did not exist before."""
    run_store = RunStore()
    work = host.expand(work_path(site))
    is_new = host.stat(work) is None
    run: Run | None = None

    def began(begun: Run) -> None:
        nonlocal run
        run = begun

    try:
        request = _request(site)
        session = SiteSession(site, host, request.compute.jobs.name, run_store, on_event)
        run = launch(request, session, Synchroniser(), on_begin=began)
        run = _follow(run, session, max_wait)
        _report_result(checks, run, max_wait)
    except HibaliError as problem:
        checks.fault("job", problem)
    finally:
        if run is not None:
            _remove(run_store.load(run.id), session)
        if is_new:
            with contextlib.suppress(HibaliError):
                folders = [work + b"/" + name for name in (b"runs", b"cache", b"images")]
                host.run([b"rmdir", b"--", *folders, work])  # rmdir removes only empty folders


def _request(site: Site) -> Request:
    """Return a request without a container, because the site need not have any image."""
    pipeline = read_descriptor(_DESCRIPTOR, "hibali doctor")
    site = replace(site, container=ContainerSettings(), fast=None)
    workload = Workload(pipeline, check_invocation(pipeline, {}), name="doctor")
    return Request(workload, compute_site(site), JobOptions(Resources(seconds=60)), new=True)


def _follow(run: Run, session: SiteSession, max_wait: float) -> Run:
    """Return the run when it has ended, or after `max_wait` seconds."""
    began = time.monotonic()
    wait = 0.2 if run.placement.scheduler == "direct" else 1.0
    while not run.state.ended and time.monotonic() - began < max_wait:
        pause(wait)
        wait = min(wait * 2, max(session.limits.poll_seconds, 1.0), 30.0)
        [run] = update(session, [run])
    return run


def _report_result(checks: StepList, run: Run, max_wait: float) -> None:
    if run.state is State.SUCCEEDED:
        checks.ok("job", f"{run.job} ran at {run.status.host or 'the site'} and was removed")
    elif run.state.ended:
        why = run.status.reason or run.status.native or f"exit code {run.status.exit_code}"
        hint = f"To see why: hibali runs show {run.id}"
        checks.fault(
            "job",
            IncompleteError(
                "job-failed", f"a job of one minute ended {run.state}: {why}", subject=run.id, hint=hint
            ),
        )
    else:
        why = f" ({run.status.reason})" if run.status.reason else ""
        checks.warn(
            "job",
            f"{run.job} is {run.state} after {max_wait:.0f} s{why}, and was cancelled",
            "The queue is long, or no node accepts such a job: set another partition or account in config.toml.",
        )


def _remove(run: Run, session: SiteSession) -> None:
    run_store = session.runs
    if not run.state.ended:
        with contextlib.suppress(HibaliError):
            run = cancel_run(
                SiteOpener(session.site, session.scheduler, run_store, session.on_event), run_store, run
            )
        for _ in range(10):
            if run.state.final:
                break
            pause(1.0)
            with contextlib.suppress(TryLaterError):
                [run] = update(session, [run])
    with contextlib.suppress(HibaliError):
        clean_run(session.host, session.site, run_store, run, CleanRequest(all_ended=True))
        run_store.note(run.id, "reported")


MACHINE_STEPS = ("roots", "writes", "clock", "room", "scheduler", "container")
_CLOCK_SECONDS = 5.0  # leases are renewed every few seconds
_LITTLE_BYTES = 1024**3
_LITTLE_INODES = 10_000
_CONTENT = b"hibali checks whether this folder is writable\n"


def check_machine(checks: StepList, site: Site, host: RemoteHost) -> None:
    """Run all steps; remove all files that they create."""
    try:
        _check_roots(checks, site, host)
        clock_lead = _try_writing(checks, site, host)
        _check_clock(checks, clock_lead)
        _check_free_space(checks, site, host)
        _check_scheduler(checks, site, host)
        _check_container(checks, site, host)
    except HibaliError as problem:  # the connection was lost
        done = {step.name for step in checks.steps}
        left = [name for name in MACHINE_STEPS if name not in done]
        checks.fault(left[0] if left else MACHINE_STEPS[-1], problem)
        checks.skip(left[1:], "the connection was lost")


def _check_roots(checks: StepList, site: Site, host: RemoteHost) -> None:
    found = []
    for name, path in site.roots.items():
        try:
            expanded = host.expand(path)
            if host.stat(expanded) is None:
                raise NotFoundError(
                    "no-such-folder",
                    "the root does not exist",
                    subject=f"{site.name}:@{name}",
                    hint=f"Create it, or correct config.toml: hibali mkdir {site.name}:@{name}",
                )
            unseen = "" if path.nodes else " (not seen by compute nodes)"
            found.append(f"@{name} is {printable(expanded)}{unseen}")
        except HibaliError as problem:
            if problem.transient:
                raise
            checks.fault("roots", problem)
    if not checks.has_fault("roots"):
        checks.ok("roots", "; ".join(found) or "none are configured")


def _try_writing(checks: StepList, site: Site, host: RemoteHost) -> float | None:
    """Run the step `writes`; return the lead of the last clock in seconds, None if nothing was written."""
    places = {"work": work_path(site)}
    if site.default_root not in site.read_only:
        places = {"default_root": site.roots[site.default_root] if site.default_root else "~", **places}
    clock_lead: float | None = None
    written = []
    for purpose, path in places.items():
        try:
            above = _nearest_folder(host, host.expand(path))
            clock_lead = _write_and_remove(host, site, above)
            written.append(f"{purpose} at {printable(above)}")
        except HibaliError as problem:
            if problem.transient:
                raise
            hint = problem.hint or f"Set another {purpose} in config.toml: hibali sites show {site.name}"
            checks.fault("writes", _with_hint(problem, f"{purpose}: {problem.message}", hint))
    if not checks.has_fault("writes"):
        checks.ok("writes", "; ".join(written))
    return clock_lead


def _with_hint(problem: HibaliError, message: str, hint: str) -> HibaliError:
    return type(problem)(
        problem.code, message, subject=problem.subject, hint=hint, transient=problem.transient
    )


def _nearest_folder(host: RemoteHost, path: bytes) -> bytes:
    """Return the folder, or its nearest existing parent, because a missing `work` folder is created when needed."""
    while path.strip(b"/"):
        found = host.stat(path)
        if found is not None and found.kind is Kind.FOLDER:
            return path
        if found is not None:
            raise IncompleteError("not-a-folder", "this is not a folder", subject=printable(path))
        path = path.rpartition(b"/")[0]
    return b"/"


def _write_and_remove(host: RemoteHost, site: Site, above: bytes) -> float | None:
    """Write a file in a new folder, read it, remove both; return the clock's lead as `_try_writing` does."""
    folder = above.rstrip(b"/") + b"/.hibali-" + secrets.token_hex(16).encode("ascii")
    subject = f"{site.name}:{printable(above)}"
    host.make_folder(folder, exclusive=True)
    try:
        before = time.time()
        host.put(folder + b"/file", _CONTENT)
        after = time.time()
        if host.get(folder + b"/file") != _CONTENT:
            raise IncompleteError(
                "other-bytes", "the file that was read back differs from the written one", subject=subject
            )
        found = host.stat(folder + b"/file")
    finally:
        host.remove_tree(folder)
    if found is None or not found.mtime_ns:
        return None
    return measure_clock_lead(found.mtime_ns / 1e9, before, after)


def measure_clock_lead(there: float, before: float, after: float) -> float:
    """Return the least lead in seconds of a clock that showed `there`; pure, resolution 1 s."""
    if there < before - 1.0:
        return there - before
    return max(0.0, there - after)


def _check_clock(checks: StepList, clock_lead: float | None) -> None:
    if clock_lead is None:
        checks.skip(["clock"], "no file was written whose time could be compared")
    elif abs(clock_lead) < _CLOCK_SECONDS:
        checks.ok("clock", "same as this machine")
    else:
        which = "ahead of" if clock_lead > 0 else "behind"
        checks.warn(
            "clock",
            f"its filesystem is {abs(clock_lead):.0f} s {which} this machine: file times cannot be compared",
            "Set the clock of this machine (timedatectl), or report it to the site.",
        )


def _free_amounts(space: Space) -> Iterator[tuple[str, int, int]]:
    """Yield the known amounts of free space: as text, as a number, and the least that is enough."""
    amounts = (("bytes", space.free_bytes, _LITTLE_BYTES), ("inodes", space.free_inodes, _LITTLE_INODES))
    for key, free, least in amounts:
        if free is not None:
            by = f" (quota of {space.by[key]})" if key in space.by else ""
            yield (format_size(free) if key == "bytes" else f"{free:,} inodes") + by, free, least


def _check_free_space(checks: StepList, site: Site, host: RemoteHost) -> None:
    if not isinstance(host, ReportsFreeSpace):
        checks.skip(["room"], "the host does not report its free space")
        return
    places = {"work": work_path(site)}
    if site.default_root is not None:
        places[f"@{site.default_root}"] = site.roots[site.default_root]
    amounts_free: list[str] = []
    little: list[str] = []
    full: list[str] = []
    for purpose, path in places.items():
        try:
            space = host.free_space(_nearest_folder(host, host.expand(path)))
        except HibaliError as problem:
            if problem.transient:
                raise
            continue  # an earlier step checked that it exists
        found = list(_free_amounts(space))
        amounts_free += [f"{purpose}: {' and '.join(text for text, _, _ in found)} free"] if found else []
        full += [f"{purpose}: {text} free" for text, free, _ in found if free == 0]
        little += [f"{purpose}: {text} free" for text, free, least in found if 0 < free < least]
    if full:
        cache = if_offered("sites.cache", f" To list the cache: hibali sites cache list {site.name}")
        hint = f"Remove files that are no longer needed.{cache}"
        checks.fault("room", IncompleteError("no-space", "; ".join(full), subject=site.name, hint=hint))
    elif little:
        checks.warn(
            "room",
            "; ".join(little),
            if_offered("sites.cache", f"To see what can be removed: hibali sites cache list {site.name}"),
        )
    else:
        checks.ok("room", "; ".join(amounts_free) or "the host does not report its free space")


def _check_scheduler(checks: StepList, site: Site, host: RemoteHost) -> None:
    name = site.scheduler.name if site.scheduler else "direct"
    if site.scheduler is None and not isinstance(host, KnowsPrograms):
        checks.skip(["scheduler"], "none is configured, and without an agent no program can be started")
        return
    try:
        if service_name(site):
            query_service(site, host)
            checks.ok("scheduler", f"{name} answers")
            return
        scheduler = load_scheduler(name)
        for program, found in _which(host, scheduler.programs).items():
            if found is None:
                raise missing_program(site.name, program)
        argv = scheduler.lookup_argv("hibali-doctor")
        if argv:
            _query_scheduler(site, host, scheduler, argv)
        starts = _predict_start(site, host)
    except HibaliError as problem:
        checks.fault("scheduler", problem)
        return
    if name == "direct":
        _check_direct(checks, site, host)
    else:
        checks.ok("scheduler", f"{name} answers{starts}")


def _check_direct(checks: StepList, site: Site, host: RemoteHost) -> None:
    """Warn where the host has a batch system: a login node is not for jobs."""
    found = "direct: jobs are processes on the login host"
    systems = find_batch_systems(host.which) if isinstance(host, KnowsPrograms) else {}
    for scheduler, program in systems.items():
        fix = f"To submit jobs to {scheduler}: {choosing(site.name, scheduler)}"
        checks.warn("scheduler", f"{found}, but {program} is installed there", fix, scheduler=scheduler)
        return
    checks.ok("scheduler", found)


def _query_scheduler(site: Site, host: RemoteHost, scheduler: Scheduler, argv: tuple[str, ...]) -> None:
    try:
        with rate_limited(site.name):
            scheduler.read_lookup(host.run(argv), host.facts()["user"])
    except TryLaterError as problem:
        hint = f"To try it, log in there and run: {shlex.join(argv)}"
        raise _with_hint(problem, problem.message, hint) from None


def _predict_start(site: Site, host: RemoteHost) -> str:
    """Return when a small job with the site's account and partition would start; raise its rejection."""
    scheduler = load_scheduler(site.scheduler.name if site.scheduler else "direct")
    argv = scheduler.start_argv()
    if not argv or not isinstance(host, KnowsPrograms):
        return ""
    finished = host.run(argv, stdin=dry_run_script(site).encode("ascii", "replace"))
    seconds = scheduler.read_start(finished, datetime.now(UTC))
    return "" if seconds is None else f"; a job of one minute would start in about {max(0.0, seconds):.0f} s"


def _check_container(checks: StepList, site: Site, host: RemoteHost) -> None:
    if site.container.name == "bare":
        checks.ok("container", "none: tools run with your permissions, so each pipeline needs your consent")
        return
    if not isinstance(host, KnowsPrograms):
        checks.skip(["container"], "without an agent no program can be started")
        return
    program = site.container.name
    try:
        container = load_container(site.container.name)
        argv = container.version_argv()
        program = argv[0]
        finished = SiteCommands(host, site).query(argv)
        if finished.exit_code == 127:
            raise missing_program(site.name, program)
        if finished.exit_code != 0:
            message = one_line(finished.stderr, 200)
            hint = f"To try it, log in there and run: {shlex.join(argv)}"
            raise IncompleteError(
                "container-fails", f"{program} fails: {message}", subject=site.name, hint=hint
            )
        checks.ok("container", container.read_version(finished))
    except HibaliError as problem:
        checks.fault("container", problem)


def _which(host: RemoteHost, programs: tuple[str, ...]) -> Mapping[str, str | None]:
    """Find programs; with a forced command, only a reply shows that a command is allowed."""
    return host.which(programs) if isinstance(host, KnowsPrograms) and programs else {}
