"""Run a test double of the IRI Facility API, versions 1 and 2: its operations over a folder, its jobs over a real Slurm.

The reference server is not in a package index, and handles no real jobs. This double has the part of its API that clients of files and jobs use,
written from its source and its OpenAPI documents (doe-iri/iri-facility-api-python and -docs, read in November 2026), and driven by
clients that were generated from these documents as well (test_iri_client.py). An operation is executed when its task is created;
its task ends when it was asked for often enough. The server itself can run from its source, with an adapter: test_real_iri.py.

| request | the reference server: v1 b9188d8 with its demo adapter, v2 1e5df71 without one, read on 2026-11-27 | the double |
|---|---|---|
| a path outside of the root | a failed task "Error: 400: Path outside sandbox: PATH" | the same |
| filesystem/extract | a failed task "Target path already exists"; else makes the folder | the same |
| filesystem/ls | shows the folder itself (glob), names and times of targets of symlinks, local times | its content, unless `lists_itself`; local times in version 1 |
| filesystem/mkdir, rm, mv | commands; a failure names the command and its status, not the reason | the same |
| filesystem/rm | a text, since 2026; earlier nothing, so that the task is failed | version 1: nothing |
| filesystem/checksum, stat | sha256sum, os.stat or os.lstat | the same |
| filesystem/upload, download | at most 5 MiB: 413, or a failed task | the same |
| task/ID | pending, active, completed; forgotten after 5 minutes | active for `polls` requests; never forgotten |
| compute/job | pretends; facilities have adapters of their own | a real Slurm |
| status/resources | no token is needed; `resource_type` and `supported_endpoints` as v2 1e5df71 (run on 2026-11-30) | the same |
| storage/locations, storage/access-endpoints | 404 for an unknown resource; 401 for every token where the facility has no storage adapter | the same; no filters |
| Idempotency-Key | v2: a hit is answered again, 422 for another body, 501 without a store | the same |
"""

from __future__ import annotations

import base64
import email.parser
import email.policy
import getpass
import hashlib
import itertools
import json
import os
import re
import stat
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.services.rest import RefusalError, Reply, Request, Route
from tests.services.slurm import Slurm
from tests.services.slurm_jobs import ENDED, SlurmDouble, SlurmJobs, SlurmRefusalError

COMPUTE, FILESYSTEM = "11111111-0000-0000-0000-000000000001", "11111111-0000-0000-0000-000000000002"
LIMIT = 5 * 1024 * 1024  # bytes of upload and download (OPS_SIZE_LIMIT)
_MOST_JOBS = 1000  # of a page
_JOB_KEYS = {
    "executable", "container", "arguments", "directory", "name", "inherit_environment", "environment", "stdin_path", "stdout_path",
    "stderr_path", "resources", "attributes", "pre_launch", "post_launch", "launcher",
}  # fmt: skip
_RESOURCES = {
    "node_count", "process_count", "processes_per_node", "cpu_cores_per_process", "gpu_cores_per_process", "exclusive_node_use", "memory",
}  # fmt: skip
_ATTRIBUTES = {"duration", "queue_name", "account", "reservation_id", "custom_attributes"}
_STATES = {
    "PENDING": "queued",
    "CONFIGURING": "queued",
    "RUNNING": "active",
    "COMPLETING": "active",
    "COMPLETED": "completed",
}
_PARAMETERS: dict[str, set[str]] = {
    "ls": {"path", "showHidden", "numericUid", "recursive", "dereference"},
    "stat": {"path", "dereference"},
    "checksum": {"path"},
    "download": {"path"},
    "rm": {"path"},
    "mkdir": {"path", "parent"},
    "chmod": {"path", "mode"},
    "extract": {"path", "target_path", "compression"},
    "mv": {"path", "target_path"},
}
_FIRST_METHODS = {
    "ls": "GET",
    "stat": "GET",
    "checksum": "GET",
    "download": "GET",
    "rm": "DELETE",
    "chmod": "PUT",
}
_CREATED = frozenset({"mkdir", "extract", "mv"})  # answered with 201


class Iri(SlurmDouble):
    """The double. Its account has a home folder.

    Attributes:
        version: Of the API, 1 or 2.
        keeps_keys: Whether the facility keeps idempotency keys; otherwise it answers 501 to a request that has one.
        lists_itself: Whether `ls` of a folder shows that folder, as the adapter of the reference server does.
        polls: How often a task is asked for before it has ended.
        resources: The id of each resource by its name; one with another id has its name as type.
        locations: Of the storage router of version 2: what it says of each resource.
        endpoints: The access endpoints of each resource.
        has_storage: Whether the facility has that router; otherwise it rejects every token there.
        seen: The requests of operations and jobs: method, path, and parameters.
    """

    def __init__(self, folder: Path, slurm: Slurm, version: int = 2) -> None:
        self.version = version
        self.prefix = f"/api/v{version}"
        self.home = folder / "home" / getpass.getuser()
        self.home.mkdir(parents=True)
        self._reachable = folder.resolve()
        self._sandbox = self.home.parent.resolve()
        self.lists_itself = False
        self.jobs = SlurmJobs(slurm, self._reachable, self.home)
        self.keeps_keys = True
        self.polls = 0
        self.resources = {"system": COMPUTE, "files": FILESYSTEM, "website": "3"}
        self.locations = {FILESYSTEM: [location("home", str(self.home))]}
        self.endpoints: dict[str, list[dict[str, Any]]] = {}
        self.has_storage = True
        self.seen: list[tuple[str, str, dict[str, Any]]] = []
        self._specifications: dict[str, dict[str, Any]] = {}  # of jobs
        self._keys: dict[str, tuple[str, Any]] = {}  # the digest of the request, and the answer
        self._tasks: dict[str, dict[str, Any]] = {}
        self._asked: dict[str, int] = {}
        self._numbers = itertools.count(1)
        super().__init__()

    def routes(self) -> list[tuple[str, str, Route]]:
        operations = [
            (
                self._method_of(name),
                f"/filesystem/({name})/{FILESYSTEM}",
                self._operate,
            )
            for name in _PARAMETERS
        ]
        newer = [
            ("GET", "/account/whoami", self._whoami),
            ("GET", "/storage/(locations|access-endpoints)/([^/]+)", self._list_storage),
        ]
        return [
            ("GET", "/status/resources", self._list_resources),
            *(newer if self.version > 1 else []),
            *operations,
            ("POST", f"/filesystem/upload/{FILESYSTEM}", self._upload),
            ("GET", "/task/([^/]+)", self._task),
            ("POST", f"/compute/job/{COMPUTE}", self._submit),
            ("POST", f"/compute/status/{COMPUTE}", self._list_jobs),
            ("GET", f"/compute/status/{COMPUTE}/([^/]+)", self._job),
            ("DELETE", f"/compute/cancel/{COMPUTE}/([^/]+)", self._cancel),
        ]

    def _method_of(self, operation: str) -> str:
        return _FIRST_METHODS.get(operation, "POST") if self.version == 1 else "POST"

    def error(self, status: int, message: str) -> Any:
        return {
            "type": f"{self.origin}/problems/generic-error",
            "title": message,
            "status": status,
            "detail": message,
            "instance": self.url,
        }

    # The facility

    def _list_resources(self, request: Request, found: re.Match[str]) -> Reply:
        del found
        request.allow(
            "name",
            "description",
            "group",
            "offset",
            "limit",
            "modified_since",
            "resource_type",
            "current_status",
            "capability",
        )
        return Reply(200, [self._resource(name, each) for name, each in self.resources.items()])

    def open_paths(self) -> str:
        return "/status/.*"

    def _resource(self, name: str, resource: str) -> dict[str, Any]:
        kind = {COMPUTE: "compute", FILESYSTEM: "storage"}.get(resource, name)
        uri = f"{self.url}/status/resources/{resource}"
        record: dict[str, Any] = {
            "id": resource,
            "name": name,
            "last_modified": "2026-11-26T10:00:00Z",
            "group": "tests",
            "current_status": "up",
            "resource_type": kind,
            "self_uri": uri,
            "site_uri": f"{self.url}/facility/sites/1",
            "capability_uris": [],
        }
        if self.version > 1:
            endpoints = {"compute": ["compute"], "storage": ["filesystem"]}.get(kind, [])
            domain = "service" if kind == "website" else "resource"
            record |= {"resource_type": f"urn:doe-iri:{domain}:{kind}", "supported_endpoints": endpoints}
        return record

    def _whoami(self, request: Request, found: re.Match[str]) -> Reply:
        del found
        request.allow()
        return Reply(200, {"username": getpass.getuser()})

    def _list_storage(self, request: Request, found: re.Match[str]) -> Reply:
        what, resource = found.groups()
        filters = {"locations": ("logicalpath", "project", "allocation", "intent")}
        request.allow(*filters.get(what, ("protocol", "endpoint_id")))
        if not self.has_storage:
            raise RefusalError(401, "Facility Specific authentication failed", expected=True)
        if resource not in self.resources.values():
            raise RefusalError(404, "Resource not found", expected=True)
        return Reply(
            200, {"locations": self.locations, "access-endpoints": self.endpoints}[what].get(resource, [])
        )

    # Operations

    def _operate(self, request: Request, found: re.Match[str]) -> Reply:
        operation = found[1]
        if request.method in {"GET", "DELETE"}:
            request.allow(*_PARAMETERS[operation])
            parameters: dict[str, Any] = dict(request.query)
        else:
            request.allow()
            parameters = _only(request.json(), _PARAMETERS[operation])
        if not isinstance(parameters.get("path"), str):
            raise RefusalError(400, "Field required")
        self._note(request, parameters)
        action: Callable[[dict[str, Any]], Any] = getattr(self, f"_do_{operation}")
        return self._begin(
            operation,
            lambda: action({**parameters, "truncated": request.truncated}),
            201 if operation in _CREATED else 200,
        )

    def _note(self, request: Request, parameters: dict[str, Any]) -> None:
        with self.guard:
            self.seen.append((request.method, self.prefix + request.path, parameters))

    def _begin(self, operation: str, action: Callable[[], Any], status: int = 200) -> Reply:
        """Execute an operation, and answer with its task."""
        task = f"task-{next(self._numbers)}"
        record: dict[str, Any] = {
            "id": task,
            "command": {"router": "filesystem", "command": operation, "args": {}},
        }
        try:
            output = action()
            # the first version calls a task that returns nothing failed
            lost = output is None and self.version == 1
            record["status"] = "failed" if lost else "completed"
            record["result"] = {
                "output": "Task was cancelled due to unknown router/command" if lost else output
            }
        except (OSError, subprocess.CalledProcessError) as problem:
            record |= {"status": "failed", "result": {"output": f"Error: {problem}"}}
        with self.guard:
            self._tasks[task] = record
        return Reply(status, {"task_id": task, "task_uri": f"{self.url}/task/{task}"})

    def _task(self, request: Request, found: re.Match[str]) -> Reply:
        request.allow()
        record = self._tasks.get(found[1])
        if record is None:
            raise RefusalError(404, f"Task {found[1]} not found", expected=True)
        with self.guard:
            self._asked[found[1]] = self._asked.get(found[1], 0) + 1
            if self._asked[found[1]] <= self.polls:
                return Reply(200, {"id": found[1], "status": "active"})
        return Reply(200, record)

    def _path(self, path: Any) -> Path:
        if not isinstance(path, str) or not path.startswith("/"):
            raise RefusalError(400, "path is an absolute path")
        if not Path(os.path.realpath(path)).is_relative_to(self._sandbox):
            raise OSError(f"400: Path outside sandbox: {path}")
        return Path(path)

    def _do_stat(self, wanted: dict[str, Any]) -> Any:
        found = os.stat(self._path(wanted["path"]), follow_symlinks=_is_true(wanted.get("dereference")))  # noqa: PTH116
        names = ("mode", "ino", "dev", "nlink", "uid", "gid", "size", "atime", "ctime", "mtime")
        return {name: int(getattr(found, f"st_{name}")) for name in names}

    def _do_ls(self, wanted: dict[str, Any]) -> Any:
        path = self._path(wanted["path"])
        paths = sorted(path.iterdir()) if path.is_dir() and not self.lists_itself else [path]
        path.lstat()
        shown = _is_true(wanted.get("showHidden"))
        return [
            _listed(each, local=self.version == 1) for each in paths if shown or not each.name.startswith(".")
        ]

    def _do_checksum(self, wanted: dict[str, Any]) -> Any:
        with self._path(wanted["path"]).open("rb") as file:
            return {"algorithm": "SHA-256", "checksum": hashlib.file_digest(file, "sha256").hexdigest()}

    def _do_download(self, wanted: dict[str, Any]) -> Any:
        content = self._path(wanted["path"]).read_bytes()
        if len(content) > LIMIT:
            raise OSError("File to download is too large.")
        if wanted["truncated"]:
            content = content[: len(content) // 2]
        with self.guard:
            self.sent[wanted["path"]] += len(content)
        return base64.b64encode(content).decode()

    def _do_rm(self, wanted: dict[str, Any]) -> None:
        path = self._path(wanted["path"])
        subprocess.run(["rm", "-rf", "--", path], check=True)

    def _do_mkdir(self, wanted: dict[str, Any]) -> Any:
        path = self._path(wanted["path"])
        # as in the reference, whose error does not tell the reason
        subprocess.run(
            ["mkdir", *(["-p"] if wanted.get("parent") else []), path], check=True, capture_output=True
        )
        return {"name": path.name}

    def _do_chmod(self, wanted: dict[str, Any]) -> Any:
        path = self._path(wanted["path"])
        path.chmod(int(wanted["mode"], 8))
        return {"name": path.name}

    def _do_extract(self, wanted: dict[str, Any]) -> Any:
        target = self._path(wanted["target_path"])
        if target.exists():
            raise OSError(f"Target path already exists: {target}")
        target.mkdir(parents=True)
        subprocess.run(
            ["tar", "-xzf", self._path(wanted["path"]), "-C", target], check=True, capture_output=True
        )
        return {"name": target.name}

    def _do_mv(self, wanted: dict[str, Any]) -> Any:
        source, target = self._path(wanted["path"]), self._path(wanted["target_path"])
        subprocess.run(["mv", source, target], check=True, capture_output=True)
        return {"name": target.name}

    def _upload(self, request: Request, found: re.Match[str]) -> Reply:
        del found
        request.allow("path")
        head = f"Content-Type: {request.headers.get('Content-Type')}\r\n\r\n".encode()
        message = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + request.body())
        [part] = message.iter_parts()
        content = part.get_payload(decode=True)
        if part.get_param("name", header="content-disposition") != "file" or not isinstance(content, bytes):
            raise RefusalError(400, "the form has no file")
        if len(content) > LIMIT:
            raise RefusalError(413, "File to upload is too large.")
        path = str(request.query.get("path"))
        if request.truncated and len(content) > 65536:  # not the locks of hibali
            content = content[: len(content) // 2]

        def write() -> str:
            self._path(path).write_bytes(content)
            self.received.add(path, len(content))
            return "uploaded"

        return self._begin("upload", write)

    # Jobs

    def _submit(self, request: Request, found: re.Match[str]) -> Reply:
        del found
        request.allow()
        wanted, key = request.json(), request.headers.get("Idempotency-Key")
        self._note(request, wanted)
        digest = hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()
        if key is None:
            return Reply(200, self._launch(wanted))
        if not self.keeps_keys:
            raise RefusalError(501, "This facility keeps no idempotency keys.", expected=True)
        with self.guard:
            known, answer = self._keys.get(key, (digest, None))
            if known != digest:
                raise RefusalError(422, "Idempotency-Key reused with a different request body.")
            if answer is None:
                answer = self._launch(wanted)
                self._keys[key] = digest, answer
                return Reply(200, answer, {"Idempotency-Key-Reply": "miss"})
        return Reply(200, answer, {"Idempotency-Key-Reply": "hit"})

    def _launch(self, wanted: Any) -> dict[str, Any]:
        specification = _only(wanted, _JOB_KEYS)
        resources = _only(specification.get("resources") or {}, _RESOURCES)
        attributes = _only(specification.get("attributes") or {}, _ATTRIBUTES)
        for name, value in resources.items():
            if name != "exclusive_node_use" and (not isinstance(value, int) or value < 1):
                raise RefusalError(400, f"{name} is a positive integer")
        options = _options(specification, resources, attributes)
        folder = specification.get("directory")
        if folder:
            options += ["--chdir", str(self._path(folder))]
        words = [specification["executable"], *specification.get("arguments", [])]
        script = "#!/bin/sh\nexec " + " ".join(f"'{word}'" for word in words) + "\n"
        try:
            job = self.jobs.submit(options, script.encode())
        except SlurmRefusalError as problem:
            raise RefusalError(400, str(problem), expected=True) from None
        self._specifications[job] = specification
        return {"id": job, "status": {"state": "new", "message": "job submitted"}}

    def _record(self, job: str, record: dict[str, str], *, with_specification: bool) -> dict[str, Any]:
        state = self.jobs.state_of(job, record)
        if state == record["JobState"]:
            state = "canceled" if state.startswith("CANCELLED") else _STATES.get(state, "failed")
        status: dict[str, Any] = {"state": state, "message": record.get("Reason", "")}
        if record["JobState"] in ENDED:
            status["exit_code"] = int(record.get("ExitCode", "0:0").partition(":")[0])
        found: dict[str, Any] = {"id": job, "status": status}
        if with_specification:
            found["job_spec"] = self._specifications.get(job, {"name": record["JobName"]})
        return found

    def _list_jobs(self, request: Request, found: re.Match[str]) -> Reply:
        del found
        request.allow("offset", "limit", "historical", "include_spec")
        request.body()
        first, count = int(request.query.get("offset", "0")), int(request.query.get("limit", "100"))
        if not 0 <= count <= _MOST_JOBS:
            raise RefusalError(400, "limit is at most 1000")
        table = self.jobs.table()
        if not _is_true(request.query.get("historical")):
            table = {job: record for job, record in table.items() if record["JobState"] not in ENDED}
        table = self.listed(table)
        shown = _is_true(request.query.get("include_spec"))
        page = list(table.items())[first : first + count]
        return Reply(200, [self._record(*each, with_specification=shown) for each in page])

    def _job(self, request: Request, found: re.Match[str]) -> Reply:
        request.allow("historical", "include_spec")
        record = self.jobs.table().get(found[1])
        if record is None:
            raise RefusalError(404, "Job not found", expected=True)
        shown = _is_true(request.query.get("include_spec"))
        return Reply(200, self._record(found[1], record, with_specification=shown))

    def _cancel(self, request: Request, found: re.Match[str]) -> Reply:
        request.allow()
        if found[1] not in self.jobs.table():
            raise RefusalError(404, "Job not found", expected=True)
        self.jobs.cancel(found[1])
        return Reply(204)


def location(name: str, path: str, *, days: int | None = None, write: bool = True) -> dict[str, Any]:
    """Return a location as the storage router writes it."""
    access = {"read": True, "write": write, "execute": True}
    more = {"filesystem": None, "performance_tier": None, "purge_policy_days": days, "shared": False}
    return {"logical_name": name, "path": path, **more, "access": access}


def _only(record: Any, names: set[str]) -> dict[str, Any]:
    if not isinstance(record, dict) or set(record) - names:
        raise RefusalError(400, f"unknown members: {sorted(record) if isinstance(record, dict) else record}")
    return record


def _options(
    specification: dict[str, Any], resources: dict[str, Any], attributes: dict[str, Any]
) -> list[str]:
    """Return the options of sbatch for a job specification."""
    values = {
        "job-name": specification.get("name"),
        "output": specification.get("stdout_path"),
        "error": specification.get("stderr_path"),
        "nodes": resources.get("node_count"),
        "ntasks": resources.get("process_count"),
        "cpus-per-task": resources.get("cpu_cores_per_process"),
        "mem": f"{resources['memory'] // 1024 // 1024}M" if "memory" in resources else None,
        "time": -(-attributes["duration"] // 60) if "duration" in attributes else None,
        "partition": attributes.get("queue_name"),
        "account": attributes.get("account"),
        "reservation": attributes.get("reservation_id"),
        **attributes.get("custom_attributes", {}),
    }
    options = [f"--{name}={value}" for name, value in values.items() if value is not None]
    environment = ",".join(f"{name}={value}" for name, value in specification.get("environment", {}).items())
    return [*options, f"--export=ALL,{environment}" if environment else "--export=ALL"]


def _listed(path: Path, *, local: bool) -> dict[str, Any]:
    found = path.lstat()
    when = datetime.fromtimestamp(int(found.st_mtime), None if local else UTC)
    kinds = {stat.S_IFDIR: "directory", stat.S_IFREG: "file", stat.S_IFLNK: "symlink"}
    return {
        "name": path.name,
        "type": kinds.get(stat.S_IFMT(found.st_mode), "other"),
        "link_target": os.readlink(path) if path.is_symlink() else None,  # noqa: PTH115
        "user": getpass.getuser(),
        "group": getpass.getuser(),
        "permissions": stat.filemode(found.st_mode),
        "last_modified": when.strftime("%Y-%m-%d %H:%M:%S" if local else "%Y-%m-%dT%H:%M:%SZ"),
        "size": str(found.st_size),
    }


def _is_true(value: Any) -> bool:
    return value is True or str(value).lower() == "true"
