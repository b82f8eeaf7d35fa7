"""Run all checks of a site, and those of an object store."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from hibali.config.kinds import kind_of
from hibali.config.model import Site
from hibali.config.settings import require_built, require_built_for_runs
from hibali.errors import AccessError, HibaliError
from hibali.events import Listener
from hibali.http.client import Response
from hibali.plugins import find, names_of
from hibali.request_limits import request_limit
from hibali_plugins.setup import machine
from hibali_plugins.setup.machine import check_login
from hibali_plugins.setup.network import check_collection, check_reachable, check_without_login
from runs import rate_limits
from runs.doctor_steps import StepList
from runs.site_health import record_check
from transfers.check import check_store
from transfers.remote.host import RemoteHost
from transfers.stores.s3.credentials import CredentialSource, find_endpoint
from transfers.stores.s3.requests import Requests
from transfers.stores.s3.store import S3Store

STEPS = ("name", "connection", "endpoint", "credentials", "clock", "bucket", "writes")
_CLOCK_SECONDS = 60.0
_OF_CREDENTIALS = frozenset({"bad-credentials", "expired", "no-credentials", "no-such-profile"})
_OF_BUCKETS = frozenset({"no-such-bucket", "wrong-endpoint"})


def check_bucket(checks: StepList, site: Site, on_event: Listener) -> None:
    """Run all steps; remove the small objects that they write."""
    assert site.s3 is not None
    try:
        endpoint = find_endpoint(site.s3, site.name)
    except HibaliError as problem:
        checks.fault("endpoint", problem)
        checks.skip([name for name in STEPS if name != "endpoint"], "the endpoint is not usable")
        return
    if not _check_network(checks, endpoint.url):
        return
    source = CredentialSource(site.s3, site.name)
    try:
        keys = source.current()
    except HibaliError as problem:
        checks.skip(["endpoint"], "requests cannot be signed")
        checks.fault("credentials", problem)
        checks.skip(STEPS[4:], "there are no credentials")
        return
    bucket = site.s3.bucket or ""
    subject = f"{site.name}:{bucket}" if bucket else site.name
    requests = Requests(endpoint, source, bucket, subject, on_event, limit=request_limit(site))
    try:
        _check_access(checks, site, requests, "signed" if keys else "anonymous")
    finally:
        requests.close()


def _check_network(checks: StepList, url: str) -> bool:
    parts = urlsplit(url)
    host = parts.hostname or ""
    proxy = os.environ.get(f"{parts.scheme}_proxy") or os.environ.get(f"{parts.scheme.upper()}_PROXY")
    if proxy:
        checks.skip(STEPS[:2], "requests use the proxy from the environment")
        return True
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return check_reachable(checks, host, port, STEPS)


def _check_access(checks: StepList, site: Site, requests: Requests, access: str) -> None:
    assert site.s3 is not None
    try:
        response, listed = _list_one(requests)
    except HibaliError as problem:
        _report_failure(checks, problem, requests.endpoint.url, access)
        return
    checks.ok("endpoint", f"{requests.endpoint.url}, region {requests.endpoint.region}")
    checks.ok("credentials", access)
    _check_clock(checks, response)
    if not requests.bucket:
        checks.ok("bucket", "none is configured: paths begin with a bucket")
        checks.skip(STEPS[6:], "no bucket is configured")
        return
    if listed:
        checks.ok("bucket", requests.bucket)
    else:
        checks.warn(
            "bucket", f"no permission to list {requests.bucket}", "Ask the bucket's owner for s3:ListBucket."
        )
    _try_writing(checks, site, requests)


def _list_one(requests: Requests) -> tuple[Response, bool]:
    """List one page of one name; return the response, and whether it was a success."""
    query = {"list-type": "2", "max-keys": "1"} if requests.bucket else {}
    try:
        return requests.request("GET", query=query), True
    except AccessError as problem:
        if problem.code != "denied":
            raise
        return requests.request("GET", query=query, accept=(403,)), False


def _report_failure(checks: StepList, problem: HibaliError, url: str, access: str) -> None:
    if problem.code in _OF_CREDENTIALS:
        checks.ok("endpoint", url)
        checks.fault("credentials", problem)
        checks.skip(STEPS[4:], "the credentials are not accepted")
    elif problem.code == "clock-skew":
        checks.ok("endpoint", url)
        checks.skip(["credentials"], "signatures depend on the clock")
        checks.fault("clock", problem)
        checks.skip(STEPS[5:], "the server rejects requests signed with this clock")
    elif problem.code in _OF_BUCKETS:
        checks.ok("endpoint", url)
        checks.ok("credentials", access)
        checks.skip(["clock"], "there was no response to compare with")
        checks.fault("bucket", problem)
        checks.skip(STEPS[6:], "the bucket does not exist")
    else:
        checks.fault("endpoint", problem)
        checks.skip(STEPS[3:], "the endpoint does not answer")


def _check_clock(checks: StepList, response: Response) -> None:
    server_time = response.seconds
    if server_time is None:
        checks.skip(["clock"], "the server sends no time")
        return
    clock_lead = server_time - time.time()
    if abs(clock_lead) < _CLOCK_SECONDS:
        checks.ok("clock", "same as this machine")
    else:
        finding = (
            f"the server is {abs(clock_lead):.0f} s {'ahead of' if clock_lead > 0 else 'behind'} this machine"
        )
        checks.warn(
            "clock",
            finding,
            "Set the clock of this machine (timedatectl): from 15 minutes on, servers reject all requests.",
        )


def _try_writing(checks: StepList, site: Site, requests: Requests) -> None:
    assert site.s3 is not None
    store = S3Store(requests, site.name, site.s3.prefix.strip("/").encode())
    try:
        seen = store.probe(refresh=True)
    except HibaliError as problem:
        checks.fault("writes", problem)
        return
    if not seen.writable:
        checks.warn(
            "writes",
            "no permission to write there",
            "To write there, ask the bucket's owner for s3:PutObject.",
        )
    elif not seen.verifies_hashes:
        finding = "the server does not check sha256: uploads are verified as `claimed` at best"
        checks.warn(
            "writes",
            finding,
            f"See docs/verification.md. To see what the server supports: hibali sites check {site.name}",
        )
    elif not seen.locks:
        finding = "the server has no conditional writes: two hibali processes could write at the same time"
        checks.warn("writes", finding, f"To see what the server supports: hibali sites check {site.name}")
    else:
        checks.ok("writes", "hashed by the server, with locks")


_SERVER = ("name", "connection", "endpoint")


WantsJob = bool | Callable[[], bool]  # asked after all other steps, if a job can run


def diagnose_site(checks: StepList, site: Site, on_event: Listener, *, job: WantsJob) -> None:
    """Run all steps of a site of this kind, with `job` including a test job as the last one, and record the outcome.

    Reports every `HibaliError` as a fault.
    """
    _run_steps(checks, site, on_event, job=job)
    record_check(site, "doctor", checks.problems())


def _run_steps(checks: StepList, site: Site, on_event: Listener, *, job: WantsJob) -> None:
    try:
        require_built(site)
    except HibaliError as problem:
        checks.fault("settings", problem)
        return
    checks.ok("settings", f"{site.name} is of kind {site.kind}")
    rate_limits.start_afresh(site)
    if kind_of(site).has_machine:
        _check_machine(checks, site, on_event, job=job)
        return
    if site.s3 is not None:
        check_bucket(checks, site, on_event)
    elif site.globus is not None:
        check_collection(checks, site, on_event)
    else:
        _check_store(checks, site, on_event)
    _run_added_steps(checks, site, None, on_event)


def _run_added_steps(checks: StepList, site: Site, host: RemoteHost | None, on_event: Listener) -> None:
    """Run the steps of plugins; `host` is the site's machine, if it has one."""
    for name in names_of("hibali.doctor"):
        try:
            check = find("hibali.doctor", name)
            if check is not None:
                check(checks, site, host, on_event)
        except HibaliError as problem:
            checks.fault(name, problem)


def _check_machine(checks: StepList, site: Site, on_event: Listener, *, job: WantsJob) -> None:
    found = check_login(checks, site, on_event)
    if found is None:
        checks.skip(
            [*machine.MACHINE_STEPS, *(["job"] if job is True else [])], "the machine was not reached"
        )
        check_without_login(checks, site, on_event)
        return
    with contextlib.closing(rate_limits.counted(found, site.name)) as host:
        machine.check_machine(checks, site, host)
        check_without_login(checks, site, on_event)
        _run_added_steps(checks, site, host, on_event)
        if _wants_job(checks, site, job):
            machine.run_job(checks, site, host, on_event)


def _wants_job(checks: StepList, site: Site, job: WantsJob) -> bool:
    """Return whether to run the test job; add the step `job` if it is wanted and impossible."""
    if job is False:
        return False
    failed = [name for name in ("writes", "room", "scheduler") if checks.has_fault(name)]
    if failed:
        checks.skip(["job"] if job is True else [], f"it needs steps that failed: {', '.join(failed)}")
        return False
    try:
        require_built_for_runs(site)
    except HibaliError as problem:
        if job is True:
            checks.fault("job", problem)
        return False
    return job if isinstance(job, bool) else job()


def _check_store(checks: StepList, site: Site, on_event: Listener) -> None:
    """Check that a store responds and accepts files."""
    server = kind_of(site).server(site)
    if server is not None and not check_reachable(checks, *server, _SERVER):
        return
    facts: dict[str, str | int | bool] = {}
    try:
        check_store(site, facts, on_event=on_event)
    except HibaliError as problem:
        checks.fault("endpoint", problem)
        return
    found = [str(facts.get("url", kind_of(site).address(site))), str(facts.get("access", ""))]
    checks.ok("endpoint", ", ".join(filter(None, found)))
    if facts.get("writable"):
        checks.ok("writes", "yes")
    else:
        checks.skip(["writes"], "the site is read-only")
