"""One visit to a site, whatever its kind."""

from __future__ import annotations

import contextlib
from urllib.parse import urlsplit

from hibali.errors import HibaliError
from hibali.events import Listener
from hibali.plugins import load
from hibali.settings import require_built, require_built_for_runs
from hibali.sites import Site
from runs import courtesy
from runs.doctor import bucket, machine
from runs.doctor.beside import look_at_collection, look_beside
from runs.doctor.login import reach
from runs.doctor.network import connect_once, find_addresses
from runs.doctor.walk import Walk

_WEB = ("name", "connection", "endpoint")
_PORTS = {"https": 443, "davs": 443, "http": 80, "dav": 80}


def visit(walk: Walk, site: Site, tell: Listener, *, job: bool) -> None:
    """Walk through all steps of a site of this kind; with `job` to the end of a job. Raises nothing but a bug."""
    try:
        require_built(site)
    except HibaliError as problem:
        walk.fault("settings", problem)
        return
    walk.ok("settings", f"{site.name} is of kind {site.kind}")
    courtesy.start_afresh(site)
    if site.kind == "s3":
        bucket.look_at_bucket(walk, site, tell)
    elif site.kind == "url":
        _look_at_web(walk, site, tell)
    elif site.kind == "globus":
        look_at_collection(walk, site, tell)
    else:
        _look_at_machine(walk, site, tell, job=job)
        look_beside(walk, site, tell)


def _look_at_machine(walk: Walk, site: Site, tell: Listener, *, job: bool) -> None:
    found = reach(walk, site, tell)
    if found is None:
        walk.skip([*machine.STEPS, *(["job"] if job else [])], "the machine was not reached")
        return
    with contextlib.closing(courtesy.counted(found, site.name)) as far:
        machine.look_at_machine(walk, site, far)
        if not job:
            return
        failed = [name for name in ("writes", "room", "scheduler") if walk.has_fault(name)]
        if failed:
            walk.skip(["job"], f"it needs what failed: {', '.join(failed)}")
            return
        try:
            require_built_for_runs(site)
        except HibaliError as problem:
            walk.fault("job", problem)
            return
        from runs.doctor.job import run_job

        run_job(walk, site, far, lambda: courtesy.reach(site, tell), tell)


def _look_at_web(walk: Walk, site: Site, tell: Listener) -> None:
    parts = urlsplit(site.url or "")
    host, port = parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 443)
    if not find_addresses(walk, host, port):
        walk.skip(_WEB[1:], "the name has no address")
        return
    if not connect_once(walk, host, port):
        walk.skip(_WEB[2:], "nobody answers there")
        return
    facts: dict[str, str | int | bool] = {}
    try:
        load("transfers.stores", site.kind).check(site, facts, tell=tell)
    except HibaliError as problem:
        walk.fault("endpoint", problem)
        return
    walk.ok("endpoint", f"{facts.get('url', site.url)}, {facts.get('access', '')}")
    if facts.get("writable"):
        walk.ok("writes", "yes")
    else:
        walk.skip(["writes"], "it is only read")
