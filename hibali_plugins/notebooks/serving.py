"""Start a Jupyter server as a job, show its link, and keep the tunnel open until the job ends."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from hibali.config.model import Site
from hibali.events import Listener
from hibali.locations import read_target
from hibali_api.job_options import resources_from
from hibali_cli.handlers.run_sites import run_site, update_runs
from hibali_cli.handlers.runs import report_ends
from hibali_cli.options import Common
from hibali_cli.output import flush_results
from hibali_cli.progress import listening
from hibali_plugins.notebooks.server import DESCRIPTOR, NotebookServer, start_notebook, wait_for_server
from registry.catalogue import Catalogue
from runs.model import Run
from runs.monitor import wait_at_site
from runs.new_request import add_own_pipeline
from runs.schedulers.base import Resources
from runs.site_session import SiteOpener
from runs.store import RunStore
from runs.tunnel import OpenTunnel, Ports, open_tunnel
from transfers.remote.one_session import kept_session


@dataclass(frozen=True, slots=True)
class _Job:
    """The folder at the site, `jupyter PROGRAM`, the pipeline (None for hibali's own), and what the job requests."""

    folder: str
    program: str
    pipeline: str | None
    resources: Resources


def serve_notebook(
    common: Common,
    *,
    folder: str | None,
    site: str,
    program: str,
    pipeline: str | None,
    local_port: int | None,
    **resources: Any,
) -> int | None:
    """Run a Jupyter server until its job ends; report how it ended."""
    job = _Job(folder or "", program, pipeline, resources_from(resources))
    run_store = RunStore()
    at = run_site(common, site)
    with kept_session(at), listening(common, f"notebook at {at.name}") as on_event:
        run = _start(common, at, job, run_store, on_event)
        common.output.info(f"{run.id} at {at.name}; to end it: hibali runs cancel {run.id}")
        flush_results()
        server = wait_for_server(at, run_store, run, on_event, partial(_show_state, common))
        [run] = update_runs(common, run_store, [run], on_event)
        ended = _serve(common, at, run_store, run, server, local_port or 0, on_event)
    report_ends(common, run_store, [ended])
    return None


def _start(common: Common, site: Site, job: _Job, run_store: RunStore, on_event: Listener) -> Run:
    """Submit the job; an earlier one of the same command is returned only while it has not ended.

    A job of this call is returned even if it has ended at once: another one would end likewise.
    """
    catalogue = Catalogue()
    pipeline = (
        add_own_pipeline(catalogue, DESCRIPTOR) if job.pipeline is None else catalogue.find(job.pipeline)
    )
    location = read_target(f"{site.name}:{job.folder}", common.settings())
    earlier = set(run_store.ids())
    while True:
        run = start_notebook(
            common.settings(),
            pipeline,
            location,
            job.program,
            job.resources,
            on_event,
        )
        [run] = update_runs(common, run_store, [run], on_event)
        if run.id not in earlier or not run.state.final:
            return run
        run_store.note(run.id, "reported")


def _show_state(common: Common, run: Run) -> None:
    common.output.detail(f"{run.id} {run.state}")


def _serve(
    common: Common,
    site: Site,
    run_store: RunStore,
    run: Run,
    server: NotebookServer,
    local_port: int,
    on_event: Listener,
) -> Run:
    """Show the link, and wait until the job has ended; at an ssh site through a tunnel."""

    def show(opened: OpenTunnel) -> None:
        port = opened.ports.local
        if common.json:
            fields = {
                "id": run.id,
                "site": site.name,
                "node": opened.node,
                "port": server.port,
                "local_port": port,
                "url": server.address(port),
            }
            common.output.record("notebook", fields)
        else:
            common.output.line(server.address(port))
            common.output.info("Open this link in a browser. Ctrl-C closes the tunnel; the job continues.")
        flush_results()

    if site.ssh is not None:
        ports = Ports(server.port, local_port)
        opener = SiteOpener(site, run.placement.scheduler, run_store, on_event)
        return open_tunnel(opener, run, ports, on_open=show)
    show(OpenTunnel("127.0.0.1", Ports(server.port, server.port)))
    return wait_at_site(site, run_store, run, on_event)
