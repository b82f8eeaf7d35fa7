"""Run slurmrestd before the tests' Slurm, and a relay before it that fails as a test wants.

All answers are those of slurmrestd, but for what a fault or `hide`, `forgotten` and `renamed` change. An ended token is passed on as one
that has expired. In Debian 12 it is 22.05.8 with v0.0.38; another Slurm is used with its newest version that hibali knows.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.client
import json
import os
import pwd
import re
import subprocess
import sys
import time
import urllib.parse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.services.processes import answers, free_port, program, start, wait_until
from tests.services.rest import Reply, Request, Route
from tests.services.slurm import Slurm
from tests.services.slurm_jobs import SlurmDouble, SlurmJobs

_VERSIONS = {38, *range(40, 47)}  # that hibali knows
_UNKNOWN = "4000000"  # the id of a job that never was


@dataclass(frozen=True)
class Slurmrestd:
    """A running slurmrestd: its port, the configuration of its Slurm, and the path of the API that hibali uses."""

    port: int
    conf: str
    api: str = ""

    def token(self, seconds: int = 3600, user: str = "") -> str:
        """Return a token for so many seconds; negative for one that has expired."""
        now = int(time.time())
        claims = {"exp": now + seconds, "iat": min(now, now + seconds), "sun": user or user_name()}
        words = [_base64(json.dumps(each).encode()) for each in ({"alg": "HS256", "typ": "JWT"}, claims)]
        text = b".".join(words)
        key = (Path(self.conf).parent / "jwt.key").read_bytes()
        return (text + b"." + _base64(hmac.digest(key, text, hashlib.sha256))).decode()


def user_name() -> str:
    """Return the name of this account."""
    return pwd.getpwuid(os.geteuid()).pw_name


def _base64(content: bytes) -> bytes:
    return base64.urlsafe_b64encode(content).rstrip(b"=")


def start_slurmrestd(session: Path, folder: Path, slurm: Slurm) -> Slurmrestd:
    """Start slurmrestd, which accepts only tokens."""
    folder.mkdir()
    port, log = free_port(), folder / "slurmrestd.log"
    words = [program("slurmrestd", "slurmrestd"), "-a", "rest_auth/jwt"]
    environment = {
        "SLURM_CONF": slurm.conf,
        "SLURM_JWT": "daemon",
        "SLURMRESTD_SECURITY": "disable_user_check",  # root runs the tests
    }
    if not slurm.accounting:
        known = subprocess.run(
            [words[0], "-s", "list"],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        names = re.findall(r"openapi/[a-z0-9.]+", known.stdout + known.stderr)
        words += ["-s", ",".join(each for each in names if "db" not in each)]
    pid = start(session, [*words, f"127.0.0.1:{port}"], log, environment)
    wait_until(lambda: answers(port), pid, log)
    server = Slurmrestd(port, slurm.conf)
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as client:
        login = {"X-SLURM-USER-NAME": user_name(), "X-SLURM-USER-TOKEN": server.token()}
        client.request("GET", "/openapi/v3", headers=login)
        paths = json.load(client.getresponse())["paths"]
    offered = {
        int(found[1]) for each in paths if (found := re.match(r"/slurm/v0\.0\.(\d+)/job/submit", each))
    }
    return replace(server, api=f"/slurm/v0.0.{max(offered & _VERSIONS)}")


class SlurmrestdRelay(SlurmDouble):
    """A relay before slurmrestd.

    Attributes:
        server: slurmrestd.
        ended: Tokens that are passed on as expired ones.
        bodies: What was sent to create jobs.
    """

    def __init__(self, server: Slurmrestd, slurm: Slurm, home: Path) -> None:
        self.server = server
        self.api = server.api
        self.home = home
        self.jobs = SlurmJobs(slurm, home.resolve(), home.resolve())
        self.ended: set[str] = set()
        self.bodies: list[Any] = []
        self._seen: set[str] = set()
        super().__init__()

    def open_paths(self) -> str:
        return ".*"

    def routes(self) -> list[tuple[str, str, Route]]:
        return [(method, ".*", self._pass_on) for method in ("GET", "POST", "DELETE")]

    def end_all(self) -> None:
        """End all tokens that were used."""
        self.ended |= self._seen

    def token_script(self) -> str:
        """Return a program that prints a token as `scontrol token` does, another one at each call."""
        path = self.home.parent / "token.py"
        scontrol = program("scontrol", "slurm-client")
        path.write_text(
            f"import os, random\nos.environ['SLURM_CONF'] = {self.server.conf!r}\n"
            f"os.execv({scontrol!r}, ['scontrol', 'token', f'lifespan={{random.randrange(3600, 10**7)}}'])\n"
        )
        return json.dumps([sys.executable, str(path)])

    def settings(self) -> str:
        """Return the lines of the site's table [scheduler]."""
        return f'name = "slurmrestd"\nurl = "{self.url}"\nuser = "{user_name()}"\ntoken_command = {self.token_script()}\n'

    def _pass_on(self, request: Request, found: re.Match[str]) -> Reply:
        del found
        names = ("X-SLURM-USER-NAME", "X-SLURM-USER-TOKEN", "Content-Type", "Accept")
        headers = {name: request.headers[name] for name in names if name in request.headers}
        token = headers.get("X-SLURM-USER-TOKEN", "")
        self._seen.add(token)
        if token in self.ended:
            headers["X-SLURM-USER-TOKEN"] = self.server.token(-60)
        path = request.path
        job = path.rpartition("/")[2]
        if job in self.jobs.forgotten and path.startswith(self.api):  # the accounting knows it
            path = path.removesuffix(job) + _UNKNOWN
        query = f"?{urllib.parse.urlencode(request.query)}" if request.query else ""
        body = request.body()
        if path.endswith("/job/submit"):
            self.bodies.append(json.loads(body))
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        ) as upstream:
            upstream.request(request.method, urllib.parse.quote(path) + query, body, headers)
            answer = upstream.getresponse()
            content = answer.read()
        assert b"unknown field" not in content  # later versions ignore it, and say so
        return Reply(answer.status, self._changed(path, content))

    def _changed(self, path: str, content: bytes) -> bytes:
        """Return an answer without the jobs of other tests, and as a test wants it."""
        if not path.startswith(self.api) or not content.startswith(b"{"):
            return content
        record = json.loads(content)
        jobs = {
            str(each["job_id"]): each
            for each in record.get("jobs", ())
            if str(each.get("current_working_directory", self.home)).startswith(str(self.home))
            and str(each["job_id"]) not in self.jobs.forgotten
        }
        for job, each in jobs.items():
            if job in self.jobs.renamed:
                each["job_state"] = self.jobs.renamed[job]
        if path == f"{self.api}/jobs":
            jobs = self.listed(jobs)
        return json.dumps({**record, "jobs": list(jobs.values())}).encode()
