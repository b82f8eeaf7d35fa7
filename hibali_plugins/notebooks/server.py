"""Run a Jupyter server as a job, and find the port and token that it recorded in the job's folder."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from hibali.config.model import Site
from hibali.config.settings import Settings
from hibali.errors import NotFoundError, RefusedError
from hibali.events import Listener
from hibali.locations import Location, listing_hint
from hibali.retry import growing_intervals
from registry.catalogue import Catalogue
from registry.invocation import check_invocation
from registry.pipeline import Pipeline
from runs.launch import launch
from runs.model import Run
from runs.monitor import TaskIsOverError, look_until, wait_at_site
from runs.new_request import (
    RequestedJob,
    RunOptions,
    StartOptions,
    read_request,
    require_trust,
    single_workload,
)
from runs.rate_limits import open_limited_host
from runs.schedulers.base import Resources
from runs.site_session import SiteSession
from runs.stage import Synchroniser
from runs.status import find_failure
from runs.store import RunStore
from transfers.model.entry import Kind
from transfers.remote.host import RemoteHost

PROGRAMS = ("lab", "notebook", "server")  # `jupyter PROGRAM`
_FOLDER = b"/work/jupyter-runtime"
_RECORD = re.compile(rb"jpserver-[0-9]+\.json")
_RECORD_BYTES = 64 * 1024
_TOKEN = re.compile(r"[A-Za-z0-9]{16,256}")
_FIRST_SECONDS, _LONGEST_SECONDS = 0.5, 5.0  # between two looks for the record

# The token is made in the job and given by the environment: Jupyter then writes it only to its private record, not to its log. It
# listens at all addresses of the node, because the login's host has to reach it from outside.
_COMMAND = """\
umask 077; \
export JUPYTER_RUNTIME_DIR="$PWD/jupyter-runtime"; \
JUPYTER_TOKEN=$(od -An -v -tx1 -N24 /dev/urandom | tr -d ' \\n') && export JUPYTER_TOKEN && \
cd -- [FOLDER] && exec jupyter [PROGRAM] --no-browser --ServerApp.ip=0.0.0.0 --ServerApp.port_retries=500"""
DESCRIPTOR: dict[str, Any] = {
    "name": "hibali-notebook",
    "tool-version": "1.0",
    "schema-version": "0.5",
    "description": "A Jupyter server at a compute node, for `hibali notebook`.",
    "command-line": _COMMAND,
    "inputs": [
        {
            "id": "folder",
            "name": "The folder that the notebook shows",
            "type": "String",
            "value-key": "[FOLDER]",
        },
        {
            "id": "program",
            "name": "The program of Jupyter",
            "type": "String",
            "value-key": "[PROGRAM]",
            "value-choices": list(PROGRAMS),
        },
    ],
}


@dataclass(frozen=True, slots=True)
class NotebookServer:
    """A Jupyter server: its port at the node, the secret that opens it, and the start of its paths."""

    port: int
    token: str
    base: str = "/"

    def address(self, port: int) -> str:
        """Return the address that opens it at a port of this machine; it contains the token."""
        return f"http://127.0.0.1:{port}{self.base}?token={self.token}"


def start_notebook(
    settings: Settings,
    pipeline: Pipeline,
    location: Location,
    program: str,
    resources: Resources,
    on_event: Listener,
) -> Run:
    """Submit the job of a notebook, or return the unfinished one of the same request.

    Args:
        settings: the sites.
        pipeline: has the inputs of `DESCRIPTOR`.
        location: the folder at the site that the notebook shows.
        program: one of `PROGRAMS`.
        resources: of the job.
        on_event: receives notes.
    """
    with contextlib.closing(open_limited_host(location.site, on_event)) as host:
        place = host.expand(location.path)
        found = host.stat(place)
        if found is None or found.kind is not Kind.FOLDER:
            message, hint = "no folder with that name exists", listing_hint(location.text)
            raise NotFoundError("no-such-place", message, subject=location.text, hint=hint)
        folder = place.decode("utf-8", "surrogateescape")
        invocation = check_invocation(pipeline, {"folder": folder, "program": program})
        options = RunOptions(
            sites=(location.site.name,),
            job=RequestedJob(resources),
            start=StartOptions(),
        )
        request = read_request(
            settings,
            single_workload(pipeline, invocation),
            None,
            location.site.name,
            options,
            lambda _: None,
        )
        if pipeline.document != DESCRIPTOR:  # the command is the consent to its own
            require_trust(Catalogue(), pipeline, request.compute.container)
        session = SiteSession(location.site, host, request.compute.jobs.name, RunStore(), on_event)
        return launch(request, session, Synchroniser())


def find_server(host: RemoteHost, run: Run) -> NotebookServer | None:
    """Return the Jupyter server of a run as it recorded itself, None before it did.

    Raises:
        RefusedError: the record is not one of Jupyter.
    """
    folder = run.folder + _FOLDER
    names = [name for name in host.names(folder) if _RECORD.fullmatch(name)]
    content = host.get(folder + b"/" + names[-1], maximum=_RECORD_BYTES) if names else None
    if not content:
        return None
    return _read_server(content, run)


def _read_server(content: bytes, run: Run) -> NotebookServer | None:
    """Read an untrusted record; None while it is not completely written."""
    try:
        record = json.loads(content)
    except (ValueError, RecursionError):
        return None
    fields = record if isinstance(record, dict) else {}
    port, token, base = (fields.get(name) for name in ("port", "token", "base_url"))
    if (
        isinstance(port, int)
        and 0 < port < 65536
        and isinstance(token, str)
        and _TOKEN.fullmatch(token)
        and isinstance(base, str)
        and re.fullmatch(r"/([A-Za-z0-9._~-]+/)*", base)
    ):
        return NotebookServer(port, token, base)
    raise RefusedError("no-notebook", "the record of the Jupyter server is invalid", subject=run.reference)


def wait_for_server(
    site: Site, run_store: RunStore, run: Run, on_event: Listener, changed: Callable[[Run], None]
) -> NotebookServer:
    """Wait until the job runs and its Jupyter server has recorded itself.

    Raises:
        HibaliError: why the job ended before that.
    """
    intervals = growing_intervals(_FIRST_SECONDS, _LONGEST_SECONDS)
    servers: list[NotebookServer] = []

    def find(host: RemoteHost) -> bool:
        server = find_server(host, run)
        servers.extend([] if server is None else [server])
        return server is not None

    def look(host: RemoteHost, seconds: float) -> None:
        if look_until(seconds, partial(find, host), intervals):
            raise TaskIsOverError

    with contextlib.suppress(TaskIsOverError):
        run = wait_at_site(site, run_store, run, on_event, changed=changed, meanwhile=look)
    if servers:
        return servers[0]
    raise find_failure(run) or RefusedError(
        "run-ended", "the job ended without a Jupyter server", subject=run.reference
    )
