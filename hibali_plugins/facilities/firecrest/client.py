"""Send the requests of FirecREST v2 that hibali needs, and check the answers.

Source: eth-cscs/firecrest-v2 (filesystem/ops, filesystem/transfer, compute, status), read in November 2026. The server pastes paths
between apostrophes into shell commands, so that one in a path would run commands in the user's account: such paths are refused
before any request (S9). The scripts of its transfers need plainer paths still (`is_plain`).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from hibali.errors import (
    HibaliError,
    IncompleteError,
    NotFoundError,
    UsageError,
)
from hibali.events import Listener, ignore
from hibali.http.addresses import Addresses
from hibali.http.client import Bytes, Response
from hibali.http.rest import Call, RestClient
from hibali.request_limits import RequestLimit
from hibali_plugins.facilities.firecrest.settings import FirecrestSettings
from hibali_plugins.facilities.machine import (
    NO_JOB,
    failure_of,
    name_of_folder_is_taken,
    reason_in,
    refusal_of,
)
from hibali_plugins.facilities.operations.base import Listed, Stat, form_of, plain_path
from hibali_plugins.facilities.operations.waiting import FileJobs
from transfers.model.entry import Kind
from transfers.stores.bearer.tokens import Tokens

_DIRECT_BYTES = 5 * 1024 * 1024 - 4096  # earlier servers count an object's overhead, too
_DOWNLOAD_BYTES = (5 * 1024 * 1024 - 1) // 4 * 3  # the output of base64 has to be shorter than the limit
ACTIVE = frozenset(
    {"PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "REQUEUED", *"BEHMQRSTUW"}
)  # of Slurm and of PBS
_PLAIN = re.compile(rb"[A-Za-z0-9/._+=:@%,-]+")
_ESCAPE = re.compile(r"\\([0-7]{3}|.)", re.DOTALL)
_ESCAPED = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
_KINDS = {"d": Kind.FOLDER, "-": Kind.FILE, "l": Kind.LINK}
_MOST_LISTING = 256 * 1024 * 1024
_MOST_PARTS = 10_000  # of an upload to S3


@dataclass(frozen=True, slots=True)
class Transfer:
    """A transfer through the object store: its job, and where the parts of an upload go or a download comes from."""

    job: str
    parts: tuple[str, ...] = ()
    complete: str = ""
    part_bytes: int = 0
    download: str = ""

    def __repr__(self) -> str:
        return f"Transfer({self.job!r})"  # the addresses grant access


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job, as its scheduler describes it."""

    id: str
    name: str
    state: str
    folder: str
    exit_code: int | None = None


class FirecrestClient:
    """One account at one system (hibali_plugins.facilities.operations.base.Operations); thread-safe."""

    direct_bytes = _DIRECT_BYTES
    download_bytes = _DOWNLOAD_BYTES

    def __init__(
        self, settings: FirecrestSettings, subject: str, limit: RequestLimit, on_event: Listener = ignore
    ) -> None:
        """Set the fields; `subject` names the site in errors."""
        self.subject = subject
        self.settings = settings
        self._description: dict[str, Any] = {}
        self.addresses = Addresses(settings.url, subject)
        system = quote(settings.system, safe="")
        self._ops, self._transfer = f"/filesystem/{system}/ops", f"/filesystem/{system}/transfer"
        self._jobs, self._status = f"/compute/{system}/jobs", f"/status/{system}"
        login = Tokens(settings.bearer, subject).authorization()
        self._rest = RestClient(
            settings.url, subject, login=login, limit=limit, judge=self._judge, on_event=on_event
        )
        self.file_jobs = FileJobs(
            subject, self._state_of, self.cancel, lambda state: state not in ACTIVE, on_event
        )

    def close(self) -> None:
        """End the jobs that handle files, and close the connections."""
        self.file_jobs.close()
        self._rest.close()
        self.addresses.close()

    # The system

    def _system(self) -> dict[str, Any]:
        """Return what the service says about the system. Raise `NotFoundError`."""
        if not self._description:
            for each in self._list(self._rest.ask_record(Call("GET", "/status/systems")), "systems"):
                if isinstance(each, dict) and each.get("name") == self.settings.system:
                    self._description = each
        if self._description:
            return self._description
        raise NotFoundError(
            "no-such-system",
            f"the service has no system {self.settings.system}",
            subject=self.subject,
            hint=f"To set it: hibali config set sites.{self.subject}.firecrest.system NAME",
        )

    def filesystems(self) -> dict[str, str]:
        """Return the path of each filesystem of the system by its type; the one of work folders also as "". Raise `NotFoundError`."""
        found: dict[str, str] = {}
        for each in self._list(self._system(), "fileSystems"):
            if isinstance(each, dict) and isinstance(each.get("path"), str):
                found.setdefault(str(each.get("dataType")), each["path"])
                if each.get("defaultWorkDir"):
                    found[""] = each["path"]
        return found

    def _data_transfer(self) -> dict[str, Any]:
        """Return what the service says about transfers of large files; the real server (35e1d08) writes data_transfer, not dataTransfer."""
        operation = self._system().get("dataOperation")
        operation = operation if isinstance(operation, dict) else {}
        found = operation.get("data_transfer", operation.get("dataTransfer"))
        return found if isinstance(found, dict) else {}

    def transfer_method(self) -> str:
        """Return how the service moves large files; earlier servers, which do not say it, by S3."""
        return str(self._data_transfer().get("serviceType") or "s3")

    def most_streamed(self) -> int | None:
        """Return the size of the largest file that a streamer receives, None if the service does not say it."""
        found = self._data_transfer().get("inboundTransferLimit")
        return found if isinstance(found, int) else None

    def scheduler(self) -> str:
        """Return the scheduler of the system, "slurm" or "pbs"."""
        found = self._system().get("scheduler")
        return str(found.get("type", "slurm")) if isinstance(found, dict) else "slurm"

    def user(self) -> tuple[str, int]:
        """Return the name and the number of the account at the system."""
        user = self._rest.ask_record(Call("GET", f"{self._status}/userinfo")).get("user")
        try:
            return str(user["name"]), int(user["id"])  # type: ignore[index]
        except (KeyError, TypeError, ValueError):
            raise self._rest.bad_answer("it does not name the account") from None

    # Files

    def stat(self, path: bytes, *, follow: bool = False) -> Stat | None:
        """See Operations."""
        query = {"path": self._text(path), "dereference": "true" if follow else None}
        try:
            response = self._rest.repeat(Call("GET", f"{self._ops}/stat", query=query, accept=(404,)))
        except IncompleteError as problem:
            if problem.code == "not-a-folder":  # what is above it
                return None
            raise
        if response.status == 404:
            return None
        output = self._rest.record_of(response).get("output")
        try:
            values = [int(output[name]) for name in ("mode", "ino", "uid", "size", "mtime")]  # type: ignore[index]
        except (KeyError, TypeError, ValueError):
            raise self._rest.bad_answer("the properties of a file are not complete") from None
        return Stat(*values)

    def ls(self, path: bytes, *, seconds: float) -> list[Listed]:
        """See Operations. `ls` of a file lists it, so that its name is its path."""
        query = {"path": self._text(path), "showHidden": "true", "numericUid": "true"}
        call = Call("GET", f"{self._ops}/ls", query=query, most=_MOST_LISTING, seconds=seconds)
        found = []
        for each in self._list(self._rest.ask_record(call), "output"):
            try:
                name, link = str(each["name"]), str(each.get("linkTarget") or "")
                kind, size = _KINDS.get(str(each["type"]), Kind.SPECIAL), int(each["size"])
                seconds = _local_seconds(str(each["lastModified"]))
            except (KeyError, TypeError, ValueError, AttributeError):
                raise self._rest.bad_answer("a line of a listing is not complete") from None
            if name.startswith("/"):
                raise NotFoundError("vanished", "it is no folder", subject=self.subject)
            found.append(Listed(_unescaped(name), kind, _unescaped(link), size, seconds, local=True))
        return found

    def download(self, path: bytes) -> bytes:
        """See Operations."""
        headers = {"Accept": "application/octet-stream"}
        call = Call(
            "GET",
            f"{self._ops}/download",
            query={"path": self._text(path)},
            headers=headers,
            most=_DOWNLOAD_BYTES + 8192,
        )
        return self._rest.repeat(call).body

    def upload(self, path: bytes, content: Bytes, *, seconds: float | None = None) -> None:
        """See Operations."""
        folder, _, name = path.rpartition(b"/")
        body, headers = form_of(name.decode("ascii"), content)
        query = {"path": self._text(folder)}
        self._rest.repeat(
            Call("POST", f"{self._ops}/upload", query=query, body=body, headers=headers, seconds=seconds)
        )

    def extract(self, archive: bytes, folder: bytes) -> None:
        """See Operations."""
        content = {"path": self._text(archive), "targetPath": self._text(folder)}
        self._rest.repeat(Call.with_json("POST", f"{self._ops}/extract", content))

    def mkdir(self, path: bytes, *, parents: bool = False) -> bool:
        """See Operations. Sent once."""
        content = {"path": self._text(path), "parent": parents}
        response = self._rest.send(Call.with_json("POST", f"{self._ops}/mkdir", content, accept=(400,)))
        if response.status == 400:
            if "file exists" not in reason_in(response, "message").lower():
                raise self._judge(Call("POST", "/"), response) or self._rest.bad_answer("status 400")
            if parents:
                raise name_of_folder_is_taken(self.subject)
        return response.status < 300

    def remove(self, path: bytes) -> None:
        """See Operations."""
        self._rest.repeat(Call("DELETE", f"{self._ops}/rm", query={"path": self._text(path)}, accept=(404,)))

    def symlink(self, path: bytes, link: bytes) -> None:
        """Make a symlink to a path; one that an interrupted operation made is kept."""
        content = {"path": self._text(path), "linkPath": self._text(link)}
        try:
            self._rest.repeat(Call.with_json("POST", f"{self._ops}/symlink", content))
        except IncompleteError as problem:
            if problem.code != "not-a-folder":  # "File exists"
                raise

    def chmod(self, path: bytes, mode: int) -> None:
        """See Operations."""
        content = {"path": self._text(path), "mode": f"{mode:o}"}
        self._rest.repeat(Call.with_json("PUT", f"{self._ops}/chmod", content))

    def checksum(self, path: bytes) -> str | None:
        """See Operations. The server splits the output of sha256sum, path included, and fails unless that gives two words."""
        text = self._text(path)
        if len(text.split()) > 1:
            return None
        call = Call("GET", f"{self._ops}/checksum", query={"path": text}, accept=(408,))
        response = self._rest.repeat(call)
        if response.status == 408:
            return None
        output = self._rest.record_of(response).get("output")
        digest = output.get("checksum") if isinstance(output, dict) else None
        if not isinstance(digest, str) or len(digest) != 64:
            raise self._rest.bad_answer("it has no sha256")
        return digest

    # Large files

    def begin_upload(self, path: bytes, size: int) -> Transfer:
        """Begin to transfer a file to this path, once."""
        directives = {"transferMethod": "s3", "fileSize": size}
        record = self._begin("upload", {"path": self._text(path), "transferDirectives": directives})
        given = record.get("transferDirectives")
        given = given if isinstance(given, dict) else {}
        parts, part_bytes = given.get("partsUploadUrls"), given.get("maxPartSize")
        if not isinstance(parts, list) or not isinstance(part_bytes, int) or part_bytes <= 0:
            raise self._rest.bad_answer("it has no addresses for the parts")
        if len(parts) > _MOST_PARTS or len(parts) != -(-size // part_bytes):
            raise self._rest.bad_answer("the number of parts is not that of the file")
        checked = tuple(self.addresses.checked(each) for each in parts)
        return Transfer(
            self._transfer_job(record),
            checked,
            self.addresses.checked(given.get("completeUploadUrl")),
            part_bytes,
        )

    def begin_download(self, path: bytes) -> Transfer:
        """Begin to transfer a file from this path, once."""
        record = self._begin(
            "download", {"path": self._text(path), "transferDirectives": {"transferMethod": "s3"}}
        )
        given = record.get("transferDirectives")
        address = given.get("downloadUrl") if isinstance(given, dict) else None
        return Transfer(self._transfer_job(record), download=self.addresses.checked(address))

    def begin_stream(self, action: str, path: bytes) -> tuple[str, str]:
        """Begin to "upload" to or "download" from a path by the streamer, once; return its job and its coordinates."""
        directives = {"transferMethod": "streamer"}
        record = self._begin(action, {"path": self._text(path), "transferDirectives": directives})
        given = record.get("transferDirectives")
        coordinates = given.get("coordinates") if isinstance(given, dict) else None
        return self._transfer_job(record), str(coordinates)

    def begin_change(self, action: str, path: bytes, to: bytes) -> str:
        """Begin to move (`mv`) or copy (`cp`) a file or folder as a job, once; return the job."""
        return self._transfer_job(
            self._begin(action, {"path": self._text(path), "targetPath": self._text(to)})
        )

    def _begin(self, action: str, content: dict[str, Any]) -> dict[str, Any]:
        account = {"account": self.settings.account} if self.settings.account else {}
        return self._rest.record_of(
            self._rest.create(Call.with_json("POST", f"{self._transfer}/{action}", {**content, **account}))
        )

    def _transfer_job(self, record: dict[str, Any]) -> str:
        job = record.get("transferJob")
        found = str(job.get("jobId", "")) if isinstance(job, dict) else ""
        if not found.isalnum():
            raise self._rest.bad_answer("it names no job")
        return found

    # Jobs

    def submit(self, job: Mapping[str, Any]) -> str:
        """Create a job, and return its id. Raises as `RestClient.create` does."""
        record = self._rest.record_of(
            self._rest.create(Call.with_json("POST", self._jobs, {"job": dict(job)}))
        )
        found = str(record.get("jobId", ""))
        if not found.isalnum():
            raise self._rest.bad_answer("it names no job")
        return found

    def jobs(self) -> list[JobRecord]:
        """Return the jobs of the account, ended ones of the last week too; the list may lack some (eth-cscs/firecrest-v2#177)."""
        query = {"time_window": "7d"}  # servers before 2.6 ignore it
        return self._job_records(
            self._rest.ask_record(Call("GET", self._jobs, query=query, most=_MOST_LISTING))
        )

    def job(self, job: str) -> JobRecord | None:
        """Return a job; None if the scheduler does not have it."""
        try:
            response = self._rest.repeat(Call("GET", f"{self._jobs}/{quote(job, safe='')}", accept=(404,)))
        except NotFoundError as problem:  # status 500 with what qstat says of an unknown job
            if problem.message == NO_JOB:
                return None
            raise
        if response.status == 404:
            return None
        return next(
            (each for each in self._job_records(self._rest.record_of(response)) if each.id == job), None
        )

    def _state_of(self, job: str) -> str | None:
        """Return the state of a job, with the exit status of a failed one of PBS, whose state says only that it ended."""
        found = self.job(job)
        if found is not None and found.state == "F" and found.exit_code:
            return f"F with exit status {found.exit_code}"
        return None if found is None else found.state

    def _job_records(self, record: dict[str, Any]) -> list[JobRecord]:
        found = []
        for each in self._list(record, "jobs") if record.get("jobs") is not None else ():
            try:
                state = each["status"]["state"]
                text = state[0] if isinstance(state, list) and state else state
                folder = each.get("workingDirectory")
                code = each["status"].get("exitCode")
                code = code if isinstance(code, int) else None
                found.append(JobRecord(str(each["jobId"]), str(each["name"]), str(text), str(folder), code))
            except (KeyError, TypeError, AttributeError):
                raise self._rest.bad_answer("a job in it is not complete") from None
        return found

    def cancel(self, job: str) -> None:
        """End a job; an ended one stays as it is, with status 500 and what scancel says."""
        with contextlib.suppress(NotFoundError):
            self._rest.repeat(Call("DELETE", f"{self._jobs}/{quote(job, safe='')}"))

    # Answers

    def _text(self, path: bytes) -> str:
        return plain_path(path, self.subject, "FirecREST")

    def _list(self, record: dict[str, Any], key: str) -> list[Any]:
        found = record.get(key)
        if not isinstance(found, list):
            raise self._rest.bad_answer(f"it has no list {key}")
        return found

    def _judge(self, call: Call, response: Response) -> HibaliError | None:
        """Return the error that the server's message names."""
        reason = reason_in(response, "message")
        if call.path == self._jobs and call.method == "POST" and response.status not in {401, 429, 503}:
            return UsageError(
                "submission-rejected", f"FirecREST refuses the job: {reason}", subject=self.subject
            )
        if "buffer limit" in reason and call.path == f"{self._ops}/ls":
            return IncompleteError(
                "folder-too-large",
                "the folder has more names than FirecREST lists: its answers are limited to 5 MiB",
                subject=self.subject,
                hint="Divide the folder, or use another way to the same filesystem, such as ssh.",
            )
        return failure_of(reason, self.subject) or refusal_of(response.status, reason, self.subject)


def is_plain(path: bytes) -> bool:
    """Return whether the scripts of transfers read a path as it is: they get it HTML-escaped, and for downloads without quotation marks."""
    return _PLAIN.fullmatch(path) is not None


def _local_seconds(text: str) -> int:
    """Return the seconds of a time that is local to the system, as if it were UTC; 0 if it is no time."""
    try:
        return int(datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC).timestamp())
    except ValueError:
        return 0


def _unescaped(name: str) -> bytes:
    r"""Return a name that `ls --quoting-style=c` wrote: bytes that are not printable are \ooo; hibali never writes a backslash itself."""
    pieces: list[bytes] = []
    position = 0
    for found in _ESCAPE.finditer(name):
        text = found[1]
        value = int(text, 8) & 0xFF if len(text) == 3 else _ESCAPED.get(text, ord(text))
        pieces += [
            name[position : found.start()].encode("utf-8", "surrogateescape"),
            chr(value).encode("latin-1", "replace"),
        ]
        position = found.end()
    pieces.append(name[position:].encode("utf-8", "surrogateescape"))
    return b"".join(pieces)
