"""Run the shards of a transfer as tasks of a job array."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hibali.config.model import Site
from hibali.config.settings import Settings, site_for_runs
from hibali.errors import RunFailedError, UsageError
from hibali.events import Listener
from hibali.locations import Location
from hibali.retry import growing_intervals, pause
from hibali_plugins.nodes.attempts import ShardJobs
from hibali_plugins.nodes.route import NodesOption
from registry.catalogue import Catalogue
from registry.parameters import Row
from runs.cancel import cancel_run
from runs.clean import CleanRequest, clean_run, make_work_folder
from runs.launch import launch
from runs.model import State
from runs.monitor import TaskIsOverError, look_until, wait_at_site
from runs.new_request import (
    RequestedJob,
    RunOptions,
    add_own_pipeline,
    make_tasks,
    read_request,
)
from runs.poll import update
from runs.rate_limits import open_limited_host
from runs.schedulers.base import Resources
from runs.site_session import SiteOpener, SiteSession
from runs.stage import Synchroniser
from runs.status import find_failure
from runs.store import RunStore
from transfers.remote.host import RemoteHost

_FOLDER = b"transfers"
_FIRST_SECONDS, _LONGEST_SECONDS = 1.0, 20.0  # between two looks at the journals,
_GROWTH = 1.02  # which never delay the end by more than a fiftieth of the whole
# A task ends soon after its last line, but a busy scheduler reports that late.
_ENDING_SECONDS, _ENDING_LOOKS = 1.0, 30
DESCRIPTOR: dict[str, Any] = {
    "name": "hibali-shards",
    "tool-version": "1.0",
    "schema-version": "0.5",
    "description": "Moves one shard of a transfer at a compute node, for --nodes.",
    "command-line": "exec [PYTHON] -I -S [PROGRAM] [FOLDER] [SHARD] [ATTEMPT]",
    "inputs": [
        {"id": "python", "name": "The Python of the site", "type": "String", "value-key": "[PYTHON]"},
        {"id": "program", "name": "The program", "type": "String", "value-key": "[PROGRAM]"},
        {"id": "folder", "name": "The folder of the transfer", "type": "String", "value-key": "[FOLDER]"},
        {
            "id": "shard",
            "name": "The number of the shard",
            "type": "Number",
            "integer": True,
            "value-key": "[SHARD]",
        },
        {"id": "attempt", "name": "The attempt", "type": "Number", "integer": True, "value-key": "[ATTEMPT]"},
    ],
}


def find_nodes(
    settings: Settings,
    ends: Sequence[Location],
    count: int,
    site_name: str | None,
    *,
    detach: bool = False,
) -> NodesOption:
    """Return the request for `count` compute nodes of a site: the named one, or the one that has one of the folders.

    Raises:
        UsageError: there is no such site, it has no scheduler, or it has none of the places.
    """
    if site_name is None:
        names = [each.site.name for each in ends if each.site.kind == "ssh"]
        names += [each.site.name for each in ends if each.site.kind == "local" and not each.typed_local]
        if not names:
            raise UsageError(
                "usage",
                "--nodes needs the site whose compute nodes are used",
                subject="--nodes",
                hint="Add --on SITE.",
            )
        site_name = names[0]
    site = site_for_runs(settings, site_name)
    if site.scheduler is None:
        raise UsageError(
            "no-compute-nodes",
            "this site has no scheduler",
            subject=site.name,
            hint="Set `name` in its [scheduler] table, or leave out --nodes.",
        )
    nodes = NodesOption(count, site, ArrayRunner(settings, site), detach)
    if not any(map(nodes.reaches, ends)):
        raise UsageError(
            "not-by-nodes",
            f"compute nodes of {site.name} reach none of these places",
            subject=ends[0].text,
            hint="Name the site that has the folder with --on, or leave out --nodes.",
        )
    return nodes


class ArrayRunner:
    """Runs shards as sweeps of hibali's own pipeline (hibali_plugins.nodes.attempts.ShardRunner)."""

    def __init__(self, settings: Settings, site: Site) -> None:
        self._settings = settings
        self._site = site
        self._run_store = RunStore()
        partition = None if site.scheduler is None else site.scheduler.transfer_partition
        self._resources = Resources(partition=partition) if partition else None

    def open_host(self, on_event: Listener) -> RemoteHost:
        """See ShardRunner."""
        return open_limited_host(self._site, on_event)

    def make_folder(self, host: RemoteHost, name: bytes) -> bytes:
        """See ShardRunner."""
        folder = make_work_folder(host, self._site, _FOLDER) + b"/" + _FOLDER + b"/" + name
        host.make_folder(folder, exclusive=True)
        return folder

    def submit(self, host: RemoteHost, jobs: ShardJobs, on_event: Listener) -> str:
        """See ShardRunner; a run of the same attempt is found in the ledger."""
        pipeline = add_own_pipeline(Catalogue(), DESCRIPTOR)
        values = {
            "python": self._site.ssh.python if self._site.ssh is not None else "python3",
            "program": jobs.program.decode("utf-8", "surrogateescape"),
            "folder": jobs.folder.decode("utf-8", "surrogateescape"),
            "attempt": jobs.attempt,
        }
        rows = [Row({"shard": shard}) for shard in jobs.shards]
        workload = make_tasks(pipeline, values, rows, subject="--nodes")
        options = RunOptions(sites=(self._site.name,), job=RequestedJob(self._resources))
        request = read_request(self._settings, workload, None, self._site.name, options, lambda _: None)
        session = SiteSession(self._site, host, request.compute.jobs.name, self._run_store, on_event)
        return launch(request, session, Synchroniser()).id

    def follow(self, run: str, look: Callable[[RemoteHost], bool], on_event: Listener) -> Mapping[int, str]:
        """See ShardRunner."""
        looks = growing_intervals(_FIRST_SECONDS, _LONGEST_SECONDS, _GROWTH)

        def meanwhile(host: RemoteHost, seconds: float) -> None:
            if look_until(seconds, lambda: look(host), looks):
                raise TaskIsOverError

        try:
            ended = wait_at_site(
                self._site, self._run_store, self._run_store.load(run), on_event, meanwhile=meanwhile
            )
        except (
            TaskIsOverError
        ):  # the shards did everything, although the scheduler may not report their end yet
            return {}
        if ended.state is State.CANCELLED:
            raise find_failure(ended) or RunFailedError(
                "run-cancelled", "the tasks were cancelled", subject=run
            )
        return {
            number: task.reason or str(task.state)
            for number, task in ended.tasks.items()
            if task.state is not State.SUCCEEDED
        }

    def has_ended(self, host: RemoteHost, run: str) -> bool:
        """See ShardRunner."""
        found = self._run_store.load(run)
        session = SiteSession(self._site, host, found.placement.scheduler, self._run_store)
        [now] = update(session, [found])
        return now.state.final

    def cancel(self, host: RemoteHost, run: str) -> None:
        """See ShardRunner."""
        del host  # cancelling opens its own connection
        found = self._run_store.load(run)
        opener = SiteOpener(self._site, found.placement.scheduler, self._run_store)
        cancel_run(opener, self._run_store, found)

    def clean(self, host: RemoteHost, run: str) -> None:
        """See ShardRunner."""
        for _ in range(_ENDING_LOOKS):
            if self.has_ended(host, run):
                break
            pause(_ENDING_SECONDS)
        else:  # a task that an administrator requeued waits to start again, and would find nothing to do
            self.cancel(host, run)
        clean_run(host, self._site, self._run_store, self._run_store.load(run), CleanRequest(all_ended=True))
