"""Set up a site with a scheduler, used through hibali's commands and the scheduler's own commands."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from hibali.config.settings import load_sites
from runs.schedulers.base import UNKNOWN, Job, Phase, Resources, Scheduler, Status, Submitted, load_scheduler
from runs.script import job_script, start_script
from runs.submit import SubmitRequest, submit_once
from tests.end_to_end.run_tools import Bench
from tests.support.waiting import wait_for
from transfers.remote.host import RemoteHost
from transfers.stores.open_store import open_host

SITES = ("direct", "slurm", "slurm-accounting", "oar", "sge", "pbs")
_WORDS = {"slurm-accounting": "slurm"}
_FIXTURES = {"slurm-accounting": "slurm_with_accounting"}
SECONDS = 120.0  # seconds; the machine may be busy, and a scheduler acts only every few seconds


@dataclass(frozen=True)
class Cluster:
    """One of `SITES`: its server (None for this machine), and a bench with it as the site `cluster`."""

    kind: str
    server: Any
    bench: Bench
    work: Path
    scheduler: Scheduler

    @contextmanager
    def host(self) -> Iterator[RemoteHost]:
        """Log in once."""
        opened = open_host(load_sites().sites["cluster"])
        try:
            yield opened
        finally:
            opened.close()

    def folder(self, run: str) -> Path:
        """Return the folder of a run."""
        return self.work / "runs" / run

    def submit(
        self, host: RemoteHost, start: str, *, script: str = "", wanted: Resources | None = None, **more: Any
    ) -> tuple[str, str]:
        """Submit a run of a shell line, or of a whole script, with `more` job fields; return the run and
        the job."""
        run = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"
        folder = f"{self.work}/runs/{run}"
        directives = self.scheduler.directives(wanted or self.small())
        text = (
            job_script(run, directives, self.scheduler.variables)
            if not script
            else "\n".join(["#!/bin/sh", *directives, 'cd "${PBS_O_WORKDIR:-.}" || exit', script])
        )
        host.make_folder(f"{folder}/work".encode())

        def put() -> None:
            host.put(f"{folder}/start".encode(), start_script((), start).encode())
            host.put(f"{folder}/job.sh".encode(), text.encode(), executable=True)

        submission = SubmitRequest(
            run=run,
            folder=folder.encode(),
            argv=self.scheduler.submit_argv(Job(run, f"{folder}/job.sh", **more)),
            since=f"{datetime.now(UTC) - timedelta(days=1):%Y-%m-%d}",  # the cluster's zone may be behind UTC
            write_files=put,
        )
        answer = submit_once(host, self.scheduler, submission)
        assert isinstance(answer, Submitted), answer
        return run, answer.job

    def small(self) -> Resources:
        """Return resources small enough for many jobs at the same time."""
        return Resources(memory_megabytes=50) if self.scheduler.name == "slurm" else Resources()

    def status(self, host: RemoteHost, job: str) -> Status:
        """Return the scheduler's status of a job."""
        argv = self.scheduler.status_argv([job])
        return self.scheduler.read_status(host.run(argv), [job])[job]

    def tasks(self, host: RemoteHost, job: str) -> dict[int, Phase]:
        """Return the phases of the tasks of an array."""
        argv = self.scheduler.status_argv([job])
        found = self.scheduler.read_tasks(host.run(argv), [job])[job]
        return {number: status.phase for number, status in found.items()}

    def record(self, run: str) -> dict[str, Any]:
        """Wait for the exit record of a run and return it."""
        path = self.folder(run) / "exit.json"
        wait_for(path.exists, SECONDS)
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def is_over(self, host: RemoteHost, job: str) -> bool:
        """Return whether the job has left the queue."""
        status = self.status(host, job)
        return status == UNKNOWN or not status.phase.queued


def make_cluster(kind: str, hibali: Any, server: Any, descriptor: dict[str, Any] | None = None) -> Cluster:
    """Make a site of this kind; its files are where its account can write."""
    bench = Bench(hibali, descriptor)
    word = _WORDS.get(kind, kind)
    work = bench.folder / "work"
    if kind == "oar":
        work = server.home / f"work-{secrets.token_hex(4)}"
    add_cluster(bench, word, server, work)
    return Cluster(kind, server, bench, work, load_scheduler(word))


def fixture_of(kind: str) -> str:
    """Return the fixture of its server; none for this machine."""
    return "" if kind == "direct" else _FIXTURES.get(kind, kind)


def add_cluster(bench: Bench, word: str, server: Any, work: Path, scheduler: str = "") -> None:
    """Add the site `cluster` to config.toml; `scheduler` is more TOML for its table of that name."""
    reached = 'kind = "local"'
    ssh = ""
    if server is not None:
        words = ", ".join(f'"{each}"' for each in server.command)
        reached, ssh = (
            'kind = "ssh"',
            f'[sites.cluster.ssh]\nhost = "{server.host}"\ncommand = [{words}]\n',
        )
    more = 'directives = ["--mem=50"]\n' if word == "slurm" else ""
    bench.add_site(
        "cluster",
        f'{reached}\nwork = "{work}"\n{ssh}[sites.cluster.scheduler]\nname = "{word}"\n{more}{scheduler}\n'
        '[sites.cluster.limits]\npoll = "1s"\nlogin_interval = "0s"',
    )
