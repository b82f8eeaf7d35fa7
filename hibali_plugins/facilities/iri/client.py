"""Send the requests of the IRI Facility API that hibali needs, and check the answers.

Source: doe-iri/iri-facility-api-python and the OpenAPI documents of versions 1 (NERSC, ALCF) and 2 (ESnet), read in November 2026. An
operation on a file is a task: a request creates it, and others ask until it has ended. What handles them differs between facilities,
and may paste paths into shell commands: names that a shell could read as something else are refused before any request (S9).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from stat import S_ISDIR
from typing import Any
from urllib.parse import quote

from hibali.errors import AccessError, HibaliError, IncompleteError, NotFoundError, TryLaterError, UsageError
from hibali.events import Listener, ignore
from hibali.http.client import Bytes, Response
from hibali.http.rest import Call, RestClient
from hibali.request_limits import RequestLimit
from hibali.retry import growing_intervals, pause
from hibali.text import printable
from hibali_plugins.facilities.iri.settings import IriSettings
from hibali_plugins.facilities.machine import failure_of, name_of_folder_is_taken, reason_in, refusal_of
from hibali_plugins.facilities.operations.base import Listed, Stat, form_of, plain_path
from hibali_plugins.facilities.operations.waiting import FileJobs
from transfers.model.entry import Kind
from transfers.stores.bearer.tokens import Tokens

_DIRECT_BYTES = 5 * 1024 * 1024  # OPS_SIZE_LIMIT
_MOST_LISTING = 256 * 1024 * 1024
_MOST_CONTENT = 2 * _DIRECT_BYTES  # in base64
_MOST_SHOWN = 300
_PAGE = 1000  # jobs or resources, the most of version 1
_TASK_SECONDS = 600.0
_MKDIR_TRIES = 3
_KINDS = {
    "directory": Kind.FOLDER,
    "d": Kind.FOLDER,
    "file": Kind.FILE,
    "-": Kind.FILE,
    "symlink": Kind.LINK,
    "link": Kind.LINK,
    "l": Kind.LINK,
}
# In version 1, operations whose parameters are in the query; those of others and of version 2 are JSON.
_ENDED = frozenset({"completed", "failed", "canceled"})
_QUERIES = {"ls": "GET", "stat": "GET", "checksum": "GET", "download": "GET", "rm": "DELETE"}


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job; its name is "" where the facility does not tell it, its exit code None."""

    id: str
    name: str
    state: str
    message: str
    exit_code: int | None


class IriClient:
    """One account at one facility (hibali_plugins.facilities.operations.base.Operations); thread-safe."""

    direct_bytes = _DIRECT_BYTES
    download_bytes = _DIRECT_BYTES

    def __init__(
        self, settings: IriSettings, subject: str, limit: RequestLimit, on_event: Listener = ignore
    ) -> None:
        """Set the fields; `subject` names the site in errors."""
        self.subject = subject
        self.settings = settings
        self._resources: list[dict[str, Any]] = []
        login = Tokens(settings.bearer, subject).authorization()
        self._rest = RestClient(
            settings.url, subject, login=login, limit=limit, judge=self._judge, on_event=on_event
        )
        self.file_jobs = FileJobs(subject, self._state_of, self.cancel, _ENDED.__contains__, on_event)

    def close(self) -> None:
        """End the jobs that handle files, and close the connections."""
        self.file_jobs.close()
        self._rest.close()

    # The facility

    def resource(self, purpose: str) -> str:
        """Return the id of the resource for a purpose, "compute" or "filesystem". Raise `NotFoundError`, `UsageError`."""
        wanted = self.settings.system if purpose == "compute" else self.settings.filesystem
        chosen = self.candidates(purpose)
        if len(chosen) == 1:
            return chosen[0][0]
        key = "system" if purpose == "compute" else "filesystem"
        known = [name for _, name in chosen] or [_name_of(each) for each in self._all_resources()]
        names = ", ".join(sorted(map(printable, known))) or "none"
        problem = f"the facility has no resource {wanted}" if wanted else f"set which resource is its {key}"
        raise NotFoundError(
            "no-such-system",
            f"{problem}; there are: {names[:_MOST_SHOWN]}",
            subject=self.subject,
            hint=f"To set it: hibali config set sites.{self.subject}.iri.{key} NAME",
        )

    def candidates(self, purpose: str) -> list[tuple[str, str]]:
        """Return each resource that the settings name for a purpose, else each that serves it: its id, and its name if no other has it."""
        wanted = self.settings.system if purpose == "compute" else self.settings.filesystem
        known = self._all_resources()
        if wanted is not None:
            chosen = [each for each in known if wanted in {each.get("id"), each.get("name")}]
        else:
            chosen = [each for each in known if _serves(each, purpose)]
        names = [_name_of(each) for each in known]
        return [
            (str(each["id"]), name if names.count(name) == 1 else str(each["id"]))
            for each, name in ((each, _name_of(each)) for each in chosen)
        ]

    def _all_resources(self) -> list[dict[str, Any]]:
        if not self._resources:
            call = Call("GET", "/status/resources", query={"limit": _PAGE}, most=_MOST_LISTING)
            found = self._rest.ask(call)
            if not isinstance(found, list):
                raise self._rest.bad_answer("it has no list of resources")
            self._resources = [
                each for each in found if isinstance(each, dict) and isinstance(each.get("id"), str)
            ]
        return self._resources

    def user(self) -> str:
        """Return the name of the account, "" where the API does not tell it."""
        if self.settings.version < 2:  # the version
            return ""
        found = self._rest.ask(Call("GET", "/account/whoami"))
        return str(found.get("username", "")) if isinstance(found, dict) else ""

    def locations(self) -> dict[str, str]:
        """Return the account's folder of each kind, such as home and scratch, where the API tells them."""
        if self.settings.version < 2:  # the version
            return {}
        resource = self.resource("filesystem")
        try:
            found = self.storage("locations", resource)
        except NotFoundError:  # the router is optional
            return {}
        except (
            AccessError
        ):  # the reference server rejects good tokens where it is missing, so another request tells
            self.user()
            return {}
        return {
            str(each["logical_name"]): str(each["path"])
            for each in reversed(found)
            if str(each.get("path")).startswith("/") and "logical_name" in each
        }

    def storage(self, what: str, resource: str) -> list[dict[str, Any]]:
        """Return the `locations` or `access-endpoints` of the account at a resource (version 2)."""
        found = self._rest.ask(Call("GET", f"/storage/{what}/{quote(resource, safe='')}"))
        if not isinstance(found, list):
            raise self._rest.bad_answer(f"it has no list of {what}")
        return [each for each in found if isinstance(each, dict)]

    def _quoted(self, purpose: str) -> str:
        return quote(self.resource(purpose), safe="")

    # Files

    def stat(self, path: bytes, *, follow: bool = False) -> Stat | None:
        """See Operations."""
        try:
            output = self._perform("stat", {"path": self._text(path), "dereference": follow})
        except NotFoundError:
            return None
        except IncompleteError as problem:
            if problem.code == "not-a-folder":  # what is above it
                return None
            raise
        try:
            values = [int(output[name]) for name in ("mode", "ino", "uid", "size", "mtime")]
        except (KeyError, TypeError, ValueError):
            raise self._rest.bad_answer("the properties of a file are not complete") from None
        return Stat(*values)

    def ls(self, path: bytes, *, seconds: float) -> list[Listed]:
        """See Operations. `ls` of a file lists it; some facilities list a folder itself in place of its content."""
        parameters = {"path": self._text(path), "showHidden": True}
        output = self._perform("ls", parameters, most=_MOST_LISTING, seconds=seconds)
        if not isinstance(output, list):
            raise self._rest.bad_answer("a listing is no list")
        lines = [self._line(each) for each in output]
        if len(lines) == 1 and lines[0].kind is not Kind.FOLDER and lines[0].name == path.rpartition(b"/")[2]:
            found = self.stat(path, follow=True)
            if found is None or not S_ISDIR(found.mode):
                raise NotFoundError("vanished", "it is no folder", subject=self.subject)
        if [line.name for line in lines] == [path.rpartition(b"/")[2]] and lines[0].kind is Kind.FOLDER:
            self._check_listed_below(path, lines[0].name)
        return lines

    def _check_listed_below(self, path: bytes, name: bytes) -> None:
        """Raise `IncompleteError` if the only name in a folder, which is that of the folder, does not exist there."""
        if self.stat(path + b"/" + name) is None:
            raise IncompleteError(
                "listing-violation",
                "the facility lists the folder itself in place of its content, so nothing can be read there",
                subject=f"{self.subject}:{printable(path)}",
                hint="Report it to the facility.",
            )

    def _line(self, record: Any) -> Listed:
        try:
            name = str(record["name"]).rpartition("/")[2].encode("utf-8", "surrogateescape")
            link = str(record.get("link_target") or "").encode("utf-8", "surrogateescape")
            seconds, local = _seconds_of(str(record["last_modified"]))
            kind = _KINDS.get(str(record["type"]), Kind.SPECIAL)
            return Listed(name, kind, link, int(record["size"]), seconds, local)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise self._rest.bad_answer("a line of a listing is not complete") from None

    def download(self, path: bytes) -> bytes:
        """See Operations."""
        output = self._perform("download", {"path": self._text(path)}, most=_MOST_CONTENT)
        try:
            return base64.b64decode(output, validate=True)
        except (TypeError, ValueError):
            raise self._rest.bad_answer("the content of a file is not base64") from None

    def upload(self, path: bytes, content: Bytes, *, seconds: float | None = None) -> None:
        """See Operations."""
        body, headers = form_of("file", content)
        call = Call(
            "POST",
            f"/filesystem/upload/{self._quoted('filesystem')}",
            query={"path": self._text(path)},
            body=body,
            headers=headers,
            seconds=seconds,
        )
        self._result("upload", self._rest.ask(call), seconds=seconds)

    def extract(self, archive: bytes, folder: bytes) -> None:
        """See Operations: into a folder that does not exist, which the facility makes; gzip is the default. Sent once."""
        self._perform("extract", {"path": self._text(archive), "target_path": self._text(folder)}, once=True)

    def mkdir(self, path: bytes, *, parents: bool = False) -> bool:
        """See Operations. If the name is not there after a failure, another client may have removed it, so it is tried again."""
        for _ in range(_MKDIR_TRIES - 1):
            made = self._try_mkdir(path, parents=parents)
            if made is not None:
                return made
        return self._try_mkdir(path, parents=parents, last=True) is True

    def _try_mkdir(self, path: bytes, *, parents: bool, last: bool = False) -> bool | None:
        """Make a folder, once; None if that failed and the name is not there. Not every facility tells why a command failed.

        With `last`, raise that failure.
        """
        try:
            self._perform("mkdir", {"path": self._text(path), "parent": parents}, once=True)
        except IncompleteError as problem:
            found = self.stat(path, follow=parents)
            if found is None and (last or problem.code != "refused-by-server"):
                raise
            if found is None or not parents:
                return None if found is None else False
            if not S_ISDIR(found.mode):
                raise name_of_folder_is_taken(self.subject) from problem
        return True

    def remove(self, path: bytes) -> None:
        """See Operations. Version 1 calls a task that returns nothing failed, so the file is looked for."""
        try:
            self._perform("rm", {"path": self._text(path)})
        except NotFoundError:
            return
        except HibaliError:
            if self.stat(path) is None:
                return
            raise

    def chmod(self, path: bytes, mode: int) -> None:
        """See Operations."""
        method = "PUT" if self.settings.version == 1 else "POST"
        self._perform("chmod", {"path": self._text(path), "mode": f"{mode:o}"}, method=method)

    def checksum(self, path: bytes) -> str | None:
        """See Operations."""
        output = self._perform("checksum", {"path": self._text(path)}, seconds=24 * 3600.0)
        digest = output.get("checksum") if isinstance(output, dict) else None
        if not isinstance(digest, str) or len(digest) != 64:  # of sha256, in hexadecimal
            raise self._rest.bad_answer("it has no sha256")
        return digest

    def rename(self, path: bytes, to: bytes) -> None:
        """Rename a file or folder, to a name that is no folder. Sent once."""
        try:
            self._perform("mv", {"path": self._text(path), "target_path": self._text(to)}, once=True)
        except IncompleteError:
            if self.stat(path) is None:
                raise NotFoundError("vanished", "it does not exist", subject=self.subject) from None
            raise

    # Tasks

    def _perform(
        self,
        operation: str,
        parameters: Mapping[str, Any],
        *,
        method: str = "POST",
        once: bool = False,
        most: int = _DIRECT_BYTES,
        seconds: float | None = None,
    ) -> Any:
        """Perform an operation, and return its output. With `once` the request is not repeated."""
        path = f"/filesystem/{operation}/{self._quoted('filesystem')}"
        queried = _QUERIES.get(operation) if self.settings.version == 1 else None
        if queried:
            words = {name: _word(value) for name, value in parameters.items()}
            call = Call(queried, path, query=words)
        else:
            call = Call.with_json(method, path, parameters)
        begun = self._rest.json_of(self._rest.send(call) if once else self._rest.repeat(call))
        return self._result(operation, begun, most=most, seconds=seconds)

    def _result(
        self, operation: str, begun: Any, *, most: int = _DIRECT_BYTES, seconds: float | None = None
    ) -> Any:
        """Wait until a task has ended, and return its output."""
        task = begun.get("task_id") if isinstance(begun, dict) else begun
        if not isinstance(task, str) or not task:
            raise self._rest.bad_answer("it names no task")
        call = Call("GET", f"/task/{quote(task, safe='')}", most=most)
        left, intervals = seconds or _TASK_SECONDS, growing_intervals(0.05, 5.0)
        while True:
            record = self._rest.ask(call)
            status = record.get("status") if isinstance(record, dict) else None
            if status == "completed":
                return _output_of(record.get("result"))
            if status in {"failed", "canceled"}:
                raise self._failed(operation, _output_of(record.get("result")))
            if left <= 0:
                raise TryLaterError(
                    "answer-too-slow", f"the facility's task did not end: {operation}", subject=self.subject
                )
            waited = intervals.next_pause()
            pause(waited)
            left -= waited

    def _failed(self, operation: str, output: Any) -> HibaliError:
        reason = printable(str(output))[:_MOST_SHOWN]
        return failure_of(reason, self.subject) or IncompleteError(
            "refused-by-server",
            f"the facility could not do it ({operation})" + (f": {reason}" if reason else ""),
            subject=self.subject,
        )

    # Jobs

    def submit(self, job: Mapping[str, Any], key: str) -> str:
        """Create a job once, and return its id. Raises as `RestClient.create` does.

        A request that repeats a key returns the job of the first, where the facility keeps keys (501: it does not, so that it is left out).
        """
        path = f"/compute/job/{self._quoted('compute')}"
        call = Call.with_json("POST", path, job, accept=(409, 501))
        headers = {**call.headers, "Idempotency-Key": key}
        response = self._rest.create(
            Call(call.method, call.path, body=call.body, headers=headers, accept=call.accept)
        )
        if response.status == 501:  # not implemented
            response = self._rest.create(Call.with_json("POST", path, job, accept=(409,)))
        if response.status == 409:  # the first request with this key has not ended
            raise TryLaterError(
                "answer-lost", "an earlier request has not ended", subject=self.subject, transient=False
            )
        record = self._rest.json_of(response)
        found = record.get("id") if isinstance(record, dict) else None
        if not isinstance(found, str) or not found:
            raise self._rest.bad_answer("it names no job")
        return found

    def jobs(self) -> list[JobRecord]:
        """Return the jobs of the account, also ended ones, as far as the facility lists them."""
        found: list[JobRecord] = []
        while True:
            query: dict[str, str | bytes | int | None] = {
                "offset": len(found),
                "limit": _PAGE,
                "historical": "true",
                "include_spec": "true",
            }
            call = Call(
                "POST",
                f"/compute/status/{self._quoted('compute')}",
                query=query,
                body=b"{}",
                headers={"Content-Type": "application/json"},
                most=_MOST_LISTING,
            )
            page = self._rest.ask(call)
            if not isinstance(page, list):
                raise self._rest.bad_answer("it has no list of jobs")
            found += [self._job(each) for each in page]
            if len(page) < _PAGE:
                return found

    def job(self, job: str) -> JobRecord | None:
        """Return a job; None if the facility does not have it."""
        path = f"/compute/status/{self._quoted('compute')}/{quote(job, safe='')}"
        response = self._rest.repeat(Call("GET", path, query={"historical": "true"}, accept=(404,)))
        return None if response.status == 404 else self._job(self._rest.json_of(response))

    def _state_of(self, job: str) -> str | None:
        found = self.job(job)
        return None if found is None else found.state

    def _job(self, record: Any) -> JobRecord:
        try:
            status, spec = record.get("status") or {}, record.get("job_spec") or {}
            code = status.get("exit_code")
            return JobRecord(
                str(record["id"]),
                str(spec.get("name") or ""),
                str(status.get("state")),
                printable(str(status.get("message") or ""))[:_MOST_SHOWN],
                code if isinstance(code, int) else None,
            )
        except (KeyError, TypeError, AttributeError):
            raise self._rest.bad_answer("a job in it is not complete") from None

    def cancel(self, job: str) -> None:
        """End a job; an ended one stays as it is."""
        path = f"/compute/cancel/{self._quoted('compute')}/{quote(job, safe='')}"
        self._rest.repeat(Call("DELETE", path, accept=(404, 409)))

    # Answers

    def _text(self, path: bytes) -> str:
        return plain_path(path, self.subject, "The facility")

    def _judge(self, call: Call, response: Response) -> HibaliError | None:
        """Return the error that the facility's problem record (RFC 9457) names."""
        reason = reason_in(response, "detail", "title")
        if call.path.startswith("/compute/job/") and response.status not in {401, 403, 429, 503}:
            return UsageError(
                "submission-rejected", f"the facility refuses the job: {reason}", subject=self.subject
            )
        return failure_of(reason, self.subject) or refusal_of(response.status, reason, self.subject)


def _output_of(result: Any) -> Any:
    """Return the output of a task; earlier servers write its result as JSON in a text."""
    if isinstance(result, str):
        try:
            result = json.loads(result)
        except (ValueError, RecursionError):
            return result
    return result.get("output", result) if isinstance(result, dict) else result


def _name_of(resource: Mapping[str, Any]) -> str:
    return str(resource.get("name") or resource["id"])


def _serves(resource: Mapping[str, Any], purpose: str) -> bool:
    """Return whether a resource serves a purpose: by its endpoints (version 2), else by its type."""
    endpoints = resource.get("supported_endpoints")
    if isinstance(endpoints, list) and endpoints:
        return purpose in endpoints
    wanted = {"compute": "compute", "filesystem": "storage"}[purpose]
    return wanted in str(resource.get("resource_type", "")).split(
        ":"
    )  # "storage", or a URN such as urn:doe-iri:resource:storage:mount


def _word(value: Any) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _seconds_of(text: str) -> tuple[int, bool]:
    """Return the seconds of a time in ISO 8601, and whether they are those of the system's local time."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return 0, True
    local = found.tzinfo is None
    return int((found.replace(tzinfo=UTC) if local else found).timestamp()), local
