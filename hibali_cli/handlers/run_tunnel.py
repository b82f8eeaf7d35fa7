"""Open a tunnel to the node of a run, and say where it is."""

from __future__ import annotations

from hibali_cli.handlers.run_sites import run_site, session_opener, update_runs
from hibali_cli.options import Common
from hibali_cli.output import flush_results
from hibali_cli.progress import listening
from runs.store import RunStore
from runs.tunnel import OpenTunnel, Ports, open_tunnel


def tunnel(common: Common, run_id: str, port: int, *, local_port: int | None, task: int | None) -> int | None:
    """Forward a port to the node of a run until it has ended."""
    run_store = RunStore()
    run, ports = run_store.load(run_id), Ports(port, local_port or 0)
    site = run_site(common, run.site)

    def show(opened: OpenTunnel) -> None:
        local, remote = opened.ports.local, opened.ports.remote
        if common.json:
            fields = {
                "id": run.id,
                "site": site.name,
                "node": opened.node,
                "port": remote,
                "local_port": local,
            }
            common.output.record("tunnel", fields)
        else:
            common.output.info(
                f"http://127.0.0.1:{local} is port {remote} at the node of {run.id}. To close it: Ctrl-C"
            )
        flush_results()

    with listening(common, f"tunnel {run.id}") as on_event:
        [run] = update_runs(common, run_store, [run], on_event)
        ended = open_tunnel(
            session_opener(common, run_store, run, on_event), run, ports, task=task, on_open=show
        )
    if common.json:
        common.output.record("run", ended.to_record())
    else:
        common.output.info(f"{ended.reference} {ended.state}; the tunnel is closed")
    return None
