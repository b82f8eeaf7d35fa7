"""Sites that are reached through REST services, for tests that all of them must pass."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.services import iri
from tests.services.oidc import Oidc

SERVICES = ("unicore", "firecrest", "iri")
JOB_SERVICES = (*SERVICES, "slurmrestd")  # of which the last one has no files
NAME = "far"  # of the site


@dataclass
class RestSite:
    """The double of a service, and the site in config.toml that is reached through it.

    Attributes:
        service: The kind of the site.
        double: The double.
        oidc: The service that issues its tokens.
        submit: The method and the path of the request that creates a job.
        poll: A pattern of the paths of requests for the states of jobs.
        upload: The method, and a pattern of the paths, of requests that send contents of files.
        download: Likewise of requests that receive them.
        part_mib: The largest part of a file that is sent again after an interruption, in MiB.
    """

    service: str
    double: Any
    oidc: Oidc
    submit: tuple[str, str]
    poll: str
    upload: tuple[str, str]
    download: tuple[str, str]
    part_mib: int
    more: str = ""

    @property
    def home(self) -> Path:
        """The home folder at the site."""
        found: Path = self.double.home
        return found

    def table(self, *, device: bool = False) -> str:
        """Return the TOML of the site below `[sites.far]`."""
        limits = f'[sites.{NAME}.limits]\npoll = "1s"\nsettling = "3s"\nreconnect = "0s"\n'
        if self.service == "slurmrestd":
            return f'kind = "local"\n[sites.{NAME}.scheduler]\n{self.double.settings()}{limits}'
        return (
            f'kind = "{self.service}"\n[sites.{NAME}.{self.service}]\nurl = "{self.double.url}"\n{self.more}'
            f"{self.oidc.settings(device=device)}{limits}requests = 2000\n"
        )

    def created(self) -> Counter[str]:
        """Return how many jobs were created, by the mark of their run."""
        return Counter(self.double.names())


class SiteCommands:
    """hibali with the one site `NAME`."""

    def __init__(self, hibali: Any, table: str) -> None:
        self.hibali = hibali
        self.set_table(table)

    def set_table(self, table: str) -> None:
        """Write config.toml with this table of the site."""
        self.table = table
        config: Path = self.hibali.home.config
        config.write_text(f"version = 1\n[sites.{NAME}]\n{table}")
        config.chmod(0o600)

    def kill_when(self, reached: Callable[[], bool], *words: object) -> int:
        """Start a command, kill it when this is reached, and return its exit code."""
        process = self.hibali.start(*words)
        while process.poll() is None and not reached():
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        return int(process.wait())


def open_site(request: pytest.FixtureRequest, service: str) -> RestSite:
    """Return the site of a service for one test."""
    double, oidc = request.getfixturevalue(service), request.getfixturevalue("oidc")
    if service == "firecrest":
        jobs = "/compute/daint/jobs"
        return RestSite(
            "firecrest",
            double,
            oidc,
            submit=("POST", jobs),
            poll=f"{jobs}(/.*)?",
            upload=("POST", ".*/(ops|transfer)/upload"),
            download=("POST", ".*/transfer/download"),
            part_mib=16,
            more='system = "daint"\n',
        )
    if service == "slurmrestd":
        return RestSite(
            "slurmrestd",
            double,
            oidc,
            submit=("POST", f"{double.api}/job/submit"),
            poll=f"{double.api}/jobs?(/.*)?",
            upload=("", ""),
            download=("", ""),
            part_mib=0,
        )
    if service == "iri":
        return iri_site(double, oidc)
    return RestSite(
        "unicore",
        double,
        oidc,
        submit=("POST", "/jobs"),
        poll="/jobs(/.*)?",
        upload=("PUT", ".*/scan|.*/\\.hibali-.*|/transferred/.*"),
        download=("GET", ".*/scan"),
        part_mib=16,
    )


def iri_site(double: Any, oidc: Oidc) -> RestSite:
    """Return the site of a facility; version 1 of its API does not tell where the home folder is."""
    return RestSite(
        "iri",
        double,
        oidc,
        submit=("POST", f"/compute/job/{iri.COMPUTE}"),
        poll="/compute/status/.*",
        upload=("POST", "/filesystem/upload/.*"),
        download=("POST", "/filesystem/download/.*"),
        part_mib=4,
        more=f'home = "{double.home}"\n' if double.version == 1 else "",
    )
