"""Send a study to its site, and submit each command of nipoppy there exactly once."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import hibali_api.runs
import hibali_api.transfers
from hibali.errors import UsageError
from hibali.events import Listener
from hibali.text import counted
from hibali_cli.options import Common
from hibali_cli.progress import listening
from hibali_plugins.nipoppy.cluster import Cluster, read_cluster
from hibali_plugins.nipoppy.job import NipoppyJob, read_job
from hibali_plugins.nipoppy.jobs import DESCRIPTOR, StudyJobs, part_of, parts_of
from registry.catalogue import open_local_catalogue
from registry.problems import read_file_bytes
from runs.model import Run, State
from runs.new_request import add_own_pipeline

# What jobs at the site neither need nor may get from here: their own folders, raw data, and results. Tables of nipoppy are symlinks to
# the latest of a hidden folder beside them.
_LEFT_OUT = (
    "/.git/",
    "/scratch/*/*",
    "/logs/*",
    "/sourcedata/imaging/[!.]*/*",
    "/derivatives/[!.]*/",
    "/code/hpc/",
)


def submit_script(common: Common, script: str) -> int | None:
    """Submit the commands of a job script, and print a number as sbatch does, on the last line."""
    job = read_job(read_file_bytes(Path(script)).decode("utf-8", "replace"), script)
    cluster = read_cluster(Path(job.study), job.cluster)
    jobs = StudyJobs(job.study, common.settings())
    with jobs.lock(), listening(common, f"nipoppy at {cluster.site}") as on_event:
        earlier = jobs.find(on_event, common.output.warn)
        run = _submit(common, job, cluster, earlier, on_event)
    if common.json:
        fields = {"study": job.study, "change": "submitted", "place": cluster.place, "output": job.output}
        common.output.record("nipoppy", {**fields, "runs": [run]})
    else:
        common.output.line(run.replace("-", "")[:14])  # pysqa reads a whole number
    return None


def _submit(
    common: Common, job: NipoppyJob, cluster: Cluster, earlier: Sequence[Run], on_event: Listener
) -> str:
    """Submit what no earlier run has; return the id of the run with the last of the commands."""
    shared = {"study": job.study, "place": cluster.place, "output": job.output}
    rows = {part_of({**shared, **each}): each for each in job.rows(cluster)}
    if not rows:
        raise UsageError("not-a-nipoppy-job", "it has no commands", subject=job.study)
    taken = find_taken(rows, earlier)
    for run in {each.id: each for each in taken.values()}.values():
        if not run.job and not run.state.ended:
            recorded = [row for _, row in run.values()]
            _start(common, run.spec.invocation, recorded, run.spec.name, on_event, **job.job_options())
        common.output.info(
            f"{run.id} at {run.site} has some of the participants already, and is {run.state}; they are not repeated."
        )
    left = [row for part, row in rows.items() if part not in taken]
    if not left:
        return next(reversed(taken.values())).id
    _send(job, cluster, common, on_event)
    name = f"nipoppy-{job.pipeline}-{secrets.token_hex(4)}"
    started = _start(common, shared, left, name, on_event, **job.job_options())
    common.output.info(
        f"{started} has {counted(len(left), 'command')}. To fetch the results: hibali nipoppy fetch {shlex.quote(job.study)} --wait"
    )
    return started


def find_taken(parts: Collection[tuple[str, ...]], runs: Sequence[Run]) -> dict[tuple[str, ...], Run]:
    """Return the run of each of these parts that is not to be submitted: it has not ended, or its results were not fetched.

    One that failed or was cancelled is free again; one of a LOST run is not, because it may still run.
    """
    return {
        part: run
        for run in runs
        for part, state in parts_of(run)
        if part in parts and state not in {State.FAILED, State.CANCELLED}
    }


def _start(
    common: Common,
    shared: Any,
    rows: Sequence[Any],
    name: str,
    on_event: Listener,
    **options: Any,
) -> str:
    """Start the run of this name, or continue it where a killed call left it.

    `setup` was the consent to run what the study says. The pipeline itself runs any command, so it is not trusted.
    """
    catalogue = open_local_catalogue(common.settings().catalogue, common.output.detail)
    pipeline, site = add_own_pipeline(catalogue, DESCRIPTOR), str(shared["place"]).partition(":")[0]
    options |= {"name": name, "config": common.config, "on_event": on_event}
    return hibali_api.runs.run_own(pipeline, shared, site=site, each=rows, **options).id


def _send(job: NipoppyJob, cluster: Cluster, common: Common, on_event: Listener) -> None:
    """Send the study without results, and of its participants those of the job."""
    known: Any = {"config": common.config, "on_event": on_event}
    chosen = job.participants
    left_out = [*_LEFT_OUT, *cluster.exclude, *(["/bids/sub-*/"] if chosen is not None else [])]
    hibali_api.transfers.push(f"{job.study}/", f"{cluster.place}/", exclude=left_out, **known)
    if chosen is not None:
        names = [f"sub-{each}" for each in chosen]
        hibali_api.transfers.push(f"{job.study}/bids/", f"{cluster.place}/bids/", files_from=names, **known)
