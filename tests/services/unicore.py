"""Run a test double of UNICORE/X: its storages over a folder, its jobs over a real Slurm.

The server is a Java program that does not run here. This double has the part of its REST API that clients of storages and jobs
use, written from the server's source (UNICORE-EU/unicorex: rest/Jobs.java, rest/Storages.java, rest/Files.java, rest/HTTPFileAccess.java,
sms/SMSBaseImpl.java, tsi/remote/RemoteTSI.java, read in November 2026), and driven by the unmodified client pyunicore as well
(test_unicore_client.py). Files are changed by the commands that UNICORE's TSI runs: mkdir -p, mv, cp -r, rm -rf, chmod.

| request | unicorex as its source says (2026-11), and what pyunicore 247d35c (2024-10-17) does in tests/integration | the double |
|---|---|---|
| GET core | client.role.selected "user", links | the same |
| GET core/storages, jobs | at most 200 entries a page, by offset and num; links to the next one | the same, without links |
| storages/ID/files/PATH | properties as JSON, content as octet stream, ranges 206, 406 for another Accept | the same |
| PUT, POST files | 204; folders by POST 201; rename and copy as actions | the same |
| POST jobs | 201 with Location, 503 while disabled, 500 for what it does not understand | the same; more is refused |
| jobs/ID/actions | start, abort; with haveClientStageIn the job waits | the same |
| imports, exports | BFT only; "Protocol is not available." for others | the same |
| transfers between servers, allocations, workflows, registries | in pyunicore's tests | not there: hibali does not use them |
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shlex
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.services.processes import SYSTEM_PATH, program
from tests.services.rest import RefusalError, Reply, Request, RestDouble, Route
from tests.services.slurm import Slurm
from tests.support.shared_dict import SharedDict

PAGE = 200  # entries of lists of resources (rest/impl/ServicesBase)
MOST_NAMES = 10_000  # of one listing (SMSBaseImpl.MAX_LS_RESULTS)
_JOB_KEYS = {
    "Name", "Executable", "Arguments", "Environment", "Resources", "Tags", "haveClientStageIn", "Stdout", "Stderr", "Project",
    "Job type", "Imports", "Exports", "Parameters", "ApplicationName", "ApplicationVersion", "Login node",
}  # fmt: skip
_RESOURCES = {
    "Runtime", "Nodes", "CPUsPerNode", "CPUs", "Memory", "Queue", "Project", "Reservation", "QoS", "GPUsPerNode", "NodeConstraints",
    "Exclusive",
}  # fmt: skip
_PERMISSIONS = re.compile(r"([rwx-]{3}){1,3}")
_ENDED = ("SUCCESSFUL", "FAILED")


@dataclass
class UnicoreJob:
    """A job, as the server keeps it."""

    id: str
    description: dict[str, Any]
    folder: Path
    started: bool = False
    slurm_id: str = ""
    status: str = ""  # set by a test, or at an abort; otherwise it follows from Slurm
    message: str = ""
    log: list[str] = field(default_factory=list)


@dataclass
class _Import:
    """A file import with the protocol BFT."""

    path: Path
    append: bool
    name: str


class Unicore(RestDouble):
    """The double. Its storages are HOME, a folder, and ROOT, the whole filesystem of which only that folder is reachable.

    Attributes:
        disabled: Whether job submission is disabled, which answers 503.
        page: The entries of one page.
        hidden: So many of the next lists of jobs are empty.
    """

    prefix = "/DEMO-SITE/rest/core"

    def __init__(self, folder: Path, slurm: Slurm) -> None:
        self.home = folder / "home"
        self._spool = folder / "FILESPACE"
        for each in (self.home, self._spool):
            each.mkdir(parents=True)
        self._slurm = slurm
        self._submitted: list[str] = []
        self.jobs = SharedDict[str, UnicoreJob]()
        self.imports: dict[str, _Import] = {}
        self.disabled = False
        self.page = PAGE
        self.hidden = 0
        self._reachable = folder.resolve()
        super().__init__()

    def routes(self) -> list[tuple[str, str, Route]]:
        return [
            ("GET", r"/?", self._base),
            ("GET", r"/storages", self._list_storages),
            ("GET", r"/storages/([^/]+)", self._storage),
            ("POST", r"/storages/([^/]+)/actions/(rename|copy)", self._act),
            ("POST", r"/storages/([^/]+)/imports", self._import),
            ("PUT", r"/transferred/([0-9a-f]+)", self._receive_import),
            ("GET", r"/storages/([^/]+)/files(/.*)?", self._get),
            ("PUT", r"/storages/([^/]+)/files(/.*)", self._put),
            ("POST", r"/storages/([^/]+)/files(/.*)", self._mkdir),
            ("DELETE", r"/storages/([^/]+)/files(/.*)", self._delete),
            ("GET", r"/jobs", self._list_jobs),
            ("POST", r"/jobs", self._submit),
            ("GET", r"/jobs/([^/]+)", self._job),
            ("DELETE", r"/jobs/([^/]+)", self._destroy),
            ("POST", r"/jobs/([^/]+)/actions/(start|abort)", self._control),
        ]

    def open_paths(self) -> str:
        return r"/transferred/[0-9a-f]+"  # the address itself grants access

    def error(self, status: int, message: str) -> Any:
        return {"status": status, "errorMessage": message}

    # The site

    def _base(self, request: Request, found: re.Match[str]) -> Reply:
        del found
        request.allow()
        links = {
            name: {"href": f"{self.url}/{name}"} for name in ("storages", "jobs", "factories", "transfers")
        }
        client = {
            "role": {"selected": "user", "availableRoles": ["user"]},
            "xlogin": {"UID": _user(), "availableUIDs": [_user()]},
            "dn": "CN=Demo User",
        }
        return Reply(200, {"client": client, "server": {"version": "10.1.0"}, "_links": links})

    # Storages and files

    def _roots(self) -> dict[str, Path]:
        found = {"HOME": self.home, "ROOT": Path("/")}
        return {**found, **{f"{job.id}-uspace": job.folder for job in self.jobs.values()}}

    def _list_storages(self, request: Request, found: re.Match[str]) -> Reply:
        del found
        request.allow("offset", "num", "tags", "filter")
        names = sorted(name for name in self._roots() if not name.endswith("-uspace"))
        return Reply(
            200, {"storages": [f"{self.url}/storages/{each}" for each in self._paged(request, names)]}
        )

    def _paged(self, request: Request, names: list[str]) -> list[str]:
        offset, number = int(request.query.get("offset", 0)), int(request.query.get("num", self.page))
        return names[offset : offset + min(number, self.page)]

    def _root(self, name: str) -> Path:
        root = self._roots().get(name)
        if root is None:
            raise RefusalError(404, "no such storage", expected=True)
        return root

    def _storage(self, request: Request, found: re.Match[str]) -> Reply:
        request.allow("fields")
        root = self._root(found[1])
        base = f"{self.url}/storages/{found[1]}"
        links = {"files": {"href": f"{base}/files"}}
        for name in ("rename", "copy"):
            links[f"action:{name}"] = {"href": f"{base}/actions/{name}"}
        properties = {
            "resourceStatus": "READY",
            "mountPoint": f"{root}/".replace("//", "/"),
            "protocols": ["BFT"],
            "umask": "77",
        }
        return Reply(200, {**properties, "description": "", "metadataSupported": False, "_links": links})

    def _path(self, storage: str, path: str) -> Path:
        """Return the path of a file, decoded as the server does: a second time, and with backslashes as slashes."""
        import urllib.parse

        local = urllib.parse.unquote(path, errors="surrogateescape").replace("\\", "/").replace("//", "/")
        found = Path(os.path.normpath(f"{self._root(storage)}/{local}"))
        above = found if found.is_dir() and not found.is_symlink() else found.parent
        if not Path(os.path.realpath(above)).is_relative_to(self._reachable):
            raise RefusalError(500, "Permission denied", expected=True)
        return found

    def _get(self, request: Request, found: re.Match[str]) -> Reply:
        request.allow("offset", "num")
        path = self._path(found[1], found[2] or "/")
        if not path.exists():
            raise RefusalError(404, "not found", expected=True)
        if "octet-stream" in (request.headers.get("Accept") or ""):
            return self._content(request, path)
        if "json" not in (request.headers.get("Accept") or ""):
            raise RefusalError(406, "Accept must be JSON or an octet stream")
        answer = _properties(path)
        if path.is_dir():
            offset, number = int(request.query.get("offset", 0)), int(request.query.get("num", MOST_NAMES))
            names = sorted(each.name for each in path.iterdir())[offset : offset + min(number, MOST_NAMES)]
            prefix = "/" + os.path.relpath(path, self._root(found[1])).strip(".").strip("/")
            answer["content"] = {
                f"{prefix.rstrip('/')}/{name}{'/' if (path / name).is_dir() else ''}": _properties(
                    path / name
                )
                for name in names
                if (path / name).exists()
            }
        return Reply(200, {**answer, "_links": {}})

    def _content(self, request: Request, path: Path) -> Reply:
        if path.is_dir():
            raise RefusalError(406, "it is a directory")
        size = path.stat().st_size
        wanted = re.fullmatch(r"bytes=([0-9]+)-([0-9]*)", request.headers.get("Range") or "")
        start = int(wanted[1]) if wanted else 0
        end = min(int(wanted[2]) + 1, size) if wanted and wanted[2] else size
        length = max(0, end - start)
        if request.truncated:
            length //= 2
        return Reply(206 if wanted else 200, _pieces(path, start, length), size=length)

    def _put(self, request: Request, found: re.Match[str]) -> Reply:
        path = self._path(found[1], found[2])
        if (request.headers.get("Content-Type") or "").startswith("application/json"):
            return self._modify(request, path)
        request.allow("size")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._store(request, path, "wb", found[2])
        return Reply(204)

    def _store(self, request: Request, path: Path, mode: str, name: str) -> None:
        if path.is_dir():
            raise RefusalError(500, f"{path} Is a directory", expected=True)
        try:
            with path.open(mode) as file:
                left = request.length // 2 if request.truncated else request.length
                for piece in request.pieces():
                    file.write(piece[: max(0, left)])
                    left -= len(piece)
                    file.flush()
                    self.received.add(name, len(piece))
        except OSError as problem:
            raise RefusalError(500, f"Error uploading: {problem}", expected=True) from None
        path.chmod(0o600) if mode == "wb" else None

    def _modify(self, request: Request, path: Path) -> Reply:
        wanted = request.json()
        if set(wanted) - {"permissions", "unixPermissions", "group", "metadata"}:
            raise RefusalError(400, f"unknown properties: {sorted(wanted)}")
        if not path.exists():
            raise RefusalError(404, "not found", expected=True)
        text = wanted.get("permissions") or wanted.get("unixPermissions")
        if not isinstance(text, str) or not _PERMISSIONS.fullmatch(text):
            raise RefusalError(500, "Illegal permissions string")
        path.chmod(sum(1 << (8 - place) for place, letter in enumerate(text.ljust(9, "-")) if letter != "-"))
        return Reply(200, {"permissions": "OK"})

    def _mkdir(self, request: Request, found: re.Match[str]) -> Reply:
        request.json()
        _run("mkdir", "-p", "-m", "700", str(self._path(found[1], found[2])))
        return Reply(201, None, {"Location": f"{self.url}{request.path}"})

    def _delete(self, request: Request, found: re.Match[str]) -> Reply:
        request.allow()
        _run("rm", "-rf", "--", str(self._path(found[1], found[2])))
        return Reply(204)

    def _act(self, request: Request, found: re.Match[str]) -> Reply:
        wanted = request.json()
        if set(wanted) != {"from", "to"}:
            raise RefusalError(400, "Parameters 'from' and 'to' are required.")
        source, target = (
            self._path(found[1], "/" + str(wanted[each]).lstrip("/")) for each in ("from", "to")
        )
        _run(*(("mv",) if found[2] == "rename" else ("cp", "-r")), str(source), str(target))
        return Reply(200, {})

    def _import(self, request: Request, found: re.Match[str]) -> Reply:
        wanted = request.json()
        if (
            set(wanted) - {"file", "protocol", "overwrite", "numBytes", "extraParameters"}
            or "file" not in wanted
        ):
            raise RefusalError(500, f"not an import: {sorted(wanted)}")
        if wanted.get("protocol", "BFT") != "BFT":
            raise RefusalError(500, "Protocol is not available.")
        path = self._path(found[1], str(wanted["file"]))
        path.parent.mkdir(parents=True, exist_ok=True)
        key = secrets.token_hex(16)
        append = str(wanted.get("overwrite", "true")).lower() == "false"
        self.imports[key] = _Import(path, append, str(wanted["file"]))
        answer = {"protocol": "BFT", "isExport": "false", "accessURL": f"{self.url}/transferred/{key}"}
        return Reply(200, answer, {"Location": f"{self.url}/client-server-transfers/{key}"})

    def _receive_import(self, request: Request, found: re.Match[str]) -> Reply:
        wanted = self.imports.get(found[1])
        if wanted is None:
            raise RefusalError(404, "Not found.")
        self._store(request, wanted.path, "ab" if wanted.append else "wb", wanted.name)
        return Reply(204)

    # Jobs

    def _list_jobs(self, request: Request, found: re.Match[str]) -> Reply:
        del found
        request.allow("offset", "num", "tags")
        wanted = set(filter(None, request.query.get("tags", "").split(",")))
        with self.guard:
            names = [
                job.id
                for job in reversed(self.jobs.values())
                if wanted <= set(job.description.get("Tags", ()))
            ]
            if self.hidden > 0 and names:
                self.hidden -= 1
                names = []
        return Reply(200, {"jobs": [f"{self.url}/jobs/{each}" for each in self._paged(request, names)]})

    def _submit(self, request: Request, found: re.Match[str]) -> Reply:
        del found
        wanted = request.json()
        if self.disabled:
            raise RefusalError(503, "Job submission is disabled", expected=True)
        _check_description(wanted)
        job_id = str(uuid.uuid4())
        job = UnicoreJob(job_id, wanted, self._spool / job_id)
        job.folder.mkdir(mode=0o700)
        if str(wanted.get("haveClientStageIn", "false")).lower() != "true":
            self._start(job)
        with self.guard:
            self.jobs[job_id] = job
        return Reply(201, None, {"Location": f"{self.url}/jobs/{job_id}"})

    def _start(self, job: UnicoreJob) -> None:
        with self.guard:
            if job.started:
                return
            job.started = True
        script = job.folder / "UNICORE_Job"
        script.write_text(_script(job))
        finished = self._command("sbatch", "--parsable", "--chdir", str(job.folder), str(script))
        if finished.returncode:
            job.status, job.message = "FAILED", finished.stderr.decode()
        job.slurm_id = finished.stdout.decode().strip()
        self._submitted.append(job.slurm_id)

    def _command(self, *argv: str) -> subprocess.CompletedProcess[bytes]:
        environment = {**os.environ, "PATH": SYSTEM_PATH, **self._slurm.env}
        return subprocess.run(
            [program(argv[0], "slurm-client"), *argv[1:]], env=environment, capture_output=True, check=False
        )

    def _find(self, job_id: str) -> UnicoreJob:
        job = self.jobs.get(job_id)
        if job is None:
            raise RefusalError(404, "no such job", expected=True)
        return job

    def _job(self, request: Request, found: re.Match[str]) -> Reply:
        request.allow("fields")
        job = self._find(found[1])
        base = f"{self.url}/jobs/{job.id}"
        links = {
            f"action:{name}": {"href": f"{base}/actions/{name}"} for name in ("start", "abort", "restart")
        }
        links["workingDirectory"] = {"href": f"{self.url}/storages/{job.id}-uspace"}
        links["details"] = {"href": f"{base}/details"}
        answer: dict[str, Any] = {
            "status": self.status_of(job),
            "statusMessage": job.message,
            "name": job.description.get("Name", "N/A"),
            "tags": job.description.get("Tags", []),
            "batchSystemID": job.slurm_id or "N/A",
            "queue": "N/A",
            "log": job.log,
            "submissionTime": "2026-11-26T10:00:00+0000",
            "jobType": "BATCH",
            "_links": links,
        }
        code = job.folder / "UNICORE_SCRIPT_EXIT_CODE"
        if code.exists():
            answer["exitCode"] = code.read_text().strip()
        return Reply(200, answer)

    def status_of(self, job: UnicoreJob) -> str:
        """Return the state of a job, as the server derives it from the batch system."""
        if job.status:
            return job.status
        if not job.started:
            return "READY"
        code = job.folder / "UNICORE_SCRIPT_EXIT_CODE"
        if code.exists() and code.read_text().strip():
            return "SUCCESSFUL" if code.read_text().strip() == "0" else "FAILED"
        state = self._command("squeue", "-h", "-j", job.slurm_id, "-o", "%T").stdout.decode().strip()
        if not state or state in {"CANCELLED", "FAILED", "COMPLETED"}:
            with contextlib.suppress(OSError):
                if code.read_text().strip() == "0":
                    return "SUCCESSFUL"
            return "FAILED"
        return "QUEUED" if state in {"PENDING", "CONFIGURING"} else "RUNNING"

    def _control(self, request: Request, found: re.Match[str]) -> Reply:
        request.json()
        job = self._find(found[1])
        if found[2] == "start":
            self._start(job)
        elif self.status_of(job) not in _ENDED:
            self._command("scancel", job.slurm_id) if job.slurm_id else None
            job.status, job.message = "FAILED", "Job was aborted by the user."
        return Reply(200, {})

    def _destroy(self, request: Request, found: re.Match[str]) -> Reply:
        request.allow()
        job = self._find(found[1])
        if job.slurm_id:
            self._command("scancel", job.slurm_id)
        shutil.rmtree(job.folder, ignore_errors=True)
        with self.guard:
            del self.jobs[job.id]
        return Reply(204)

    def hide(self, *, times: int) -> None:
        """Let so many of the next lists lack all jobs."""
        self.hidden = times

    def running(self) -> list[str]:
        """Return the ids of the jobs that have not ended."""
        return [job.id for job in self.jobs.values() if self.status_of(job) not in _ENDED]

    def names(self) -> list[str]:
        """Return the names of all jobs."""
        return [str(job.description.get("Name")) for job in self.jobs.values()]

    def wait(self, job_id: str, seconds: float = 60.0) -> str:
        """Wait until a job has ended, and return its state."""
        until = time.monotonic() + seconds
        while (state := self.status_of(self.jobs[job_id])) not in _ENDED and time.monotonic() < until:
            time.sleep(0.1)
        return state

    def close(self) -> None:
        # Also those that a test let the server forget.
        if submitted := [each for each in self._submitted if each]:
            self._command("scancel", "--quiet", *submitted)
        super().close()


def _check_description(wanted: Any) -> None:
    """Refuse a job description that the server does not document (documentation of job descriptions)."""
    if (
        not isinstance(wanted, dict)
        or set(wanted) - _JOB_KEYS
        or not isinstance(wanted.get("Executable"), str)
    ):
        raise RefusalError(500, f"Could not submit job: {sorted(wanted)}")
    resources = wanted.get("Resources", {})
    if not isinstance(resources, dict) or set(resources) - _RESOURCES:
        raise RefusalError(500, f"Could not submit job: resources {sorted(resources)}")
    if not all(isinstance(each, str) for each in (*wanted.get("Arguments", ()), *wanted.get("Tags", ()))):
        raise RefusalError(500, "Could not submit job: arguments and tags are strings")


def _script(job: UnicoreJob) -> str:
    """Return the batch script: the executable and its arguments are pasted, as the server does."""
    wanted, resources = job.description, job.description.get("Resources", {})
    lines = ["#!/bin/sh", f"#SBATCH --job-name={wanted.get('Name', 'UNICORE_Job')}"]
    options = {
        "Runtime": "time",
        "Nodes": "nodes",
        "Memory": "mem",
        "Queue": "partition",
        "CPUsPerNode": "mincpus",
    }
    for name, option in options.items():
        if name in resources:
            value = resources[name]
            lines.append(f"#SBATCH --{option}={-(-int(value) // 60) if name == 'Runtime' else value}")
    lines += ["#SBATCH --output=/dev/null", "#SBATCH --error=/dev/null"]
    for name, value in wanted.get("Environment", {}).items():
        lines.append(f"export {name}={shlex.quote(value)}")
    command = " ".join([wanted["Executable"], *wanted.get("Arguments", ())])
    lines.append(f"{command} >{wanted.get('Stdout', 'stdout')} 2>{wanted.get('Stderr', 'stderr')}")
    lines.append("echo $? >UNICORE_SCRIPT_EXIT_CODE")
    return "\n".join(lines) + "\n"


def _properties(path: Path) -> dict[str, Any]:
    found = path.stat()
    moment = time.strftime("%Y-%m-%dT%H:%M:%S+0000", time.gmtime(int(found.st_mtime)))
    letters = "".join(
        letter if found.st_mode >> (8 - place) & 1 else "-" for place, letter in enumerate("rwxrwxrwx")
    )
    return {
        "isDirectory": path.is_dir(),
        "lastAccessed": moment,
        "size": found.st_size,
        "owner": path.owner(),
        "group": path.group(),
        "permissions": letters,
    }


def _pieces(path: Path, start: int, length: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(start)
        while length > 0:
            piece = file.read(min(length, 256 * 1024))
            if not piece:
                return
            length -= len(piece)
            yield piece


def _run(*argv: str) -> None:
    finished = subprocess.run(argv, capture_output=True, check=False)
    if finished.returncode:
        raise RefusalError(
            500, f"TSI ERROR: '{finished.stderr.decode(errors='replace').strip()}'", expected=True
        )


def _user() -> str:
    import getpass

    return getpass.getuser()
