"""Send the requests of UNICORE's REST API that hibali needs, and check the answers.

Sources: UNICORE-EU/unicorex (rest/Files.java, rest/Storages.java, rest/Jobs.java, sms/SMSBaseImpl.java), read in November 2026, and the
API's documentation. The server answers 500 for most of what a user did wrong, with the reason in `errorMessage`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlsplit

from hibali.errors import (
    AccessError,
    HibaliError,
    NotFoundError,
    RefusedError,
    TryLaterError,
    UsageError,
)
from hibali.events import Listener, ignore
from hibali.http.client import Bytes, HttpClient, Response
from hibali.http.rest import Call, RestClient
from hibali.request_limits import RequestLimit
from hibali.text import printable
from hibali_plugins.facilities.machine import failure_of, reason_in
from hibali_plugins.facilities.unicore.settings import UnicoreSettings
from transfers.model.entry import Kind
from transfers.stores.bearer.tokens import Tokens
from transfers.stores.server.records import Found

PAGE = 200  # entries of a list of resources; the server may give fewer
_NAMES = 10_000  # of a page of a folder (SMSBaseImpl.MAX_LS_RESULTS)
_MOST_PAGES = 10_000
_MOST_LISTING = 64 * 1024 * 1024
_MOST_SHOWN = 300
_STREAM = {"Accept": "application/octet-stream"}


@dataclass(frozen=True, slots=True)
class Storage:
    """A storage: its id in the API, and the folder at the machine that it serves, without a slash at its end."""

    id: str
    mount: bytes

    @property
    def name(self) -> str:
        """The name that users know: the end of the id, as HOME of user-HOME."""
        return self.id.rpartition("-")[2]

    def covers(self, path: bytes) -> bool:
        """Return whether an absolute path is in this storage."""
        return path == self.mount or path.startswith(self.mount + b"/")


@dataclass(frozen=True, slots=True)
class Properties:
    """The properties of a name in a storage; `permissions` are as in `ls -l`, without the type."""

    found: Found
    owner: str
    permissions: str


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job, as the server describes it."""

    id: str
    status: str
    message: str
    tags: tuple[str, ...]
    exit_code: str


def file_of(size: int, seconds: int) -> Found:
    """Return the properties of a file; its size and time, in seconds since the epoch, tell its versions apart."""
    return Found(Kind.FILE, size, seconds * 1_000_000_000, f"@{seconds}:{size}")


def folder_of(seconds: int) -> Found:
    """Return the properties of a folder."""
    return Found(Kind.FOLDER, 0, seconds * 1_000_000_000, "")


class UnicoreClient:
    """One account at one server; thread-safe. Paths are absolute within their storage, and quoted here."""

    def __init__(
        self, settings: UnicoreSettings, subject: str, limit: RequestLimit, on_event: Listener = ignore
    ) -> None:
        """Set the fields; `subject` names the site in errors."""
        self.subject = subject
        self._base = settings.url
        self.login = Tokens(settings.bearer, subject).authorization()
        self._rest = RestClient(
            settings.url, subject, login=self.login, limit=limit, judge=self._judge, on_event=on_event
        )

    def close(self) -> None:
        """Close the connections."""
        self._rest.close()

    # The site

    def user(self) -> str:
        """Return the login of the account at the machine. Raise `AccessError` for a user that the site does not know."""
        client = self._rest.ask_record(Call("GET", "/")).get("client")
        record = client if isinstance(client, dict) else {}
        role = record.get("role")
        if isinstance(role, dict) and role.get("selected") == "anonymous":
            raise AccessError(
                "denied",
                "the site does not know the account of this token",
                subject=self.subject,
                hint="Ask the site to map your identity to an account.",
            )
        login = record.get("xlogin")
        name = login.get("UID") if isinstance(login, dict) else None
        return name if isinstance(name, str) else ""

    def storages(self) -> list[Storage]:
        """Return the storages of the site, without those of jobs."""
        found = []
        for storage in self._pages("/storages", "storages", {}):
            record = self._rest.ask_record(Call("GET", f"/storages/{storage}"))
            mount = record.get("mountPoint")
            if isinstance(mount, str) and mount.startswith("/"):
                found.append(Storage(storage, mount.rstrip("/").encode("utf-8", "surrogateescape")))
        return found

    def _pages(self, path: str, key: str, query: Mapping[str, str]) -> Iterator[str]:
        """Yield the ids of all resources of a list; a page without a new one is the last."""
        seen: set[str] = set()
        for _ in range(_MOST_PAGES):
            record = self._rest.ask_record(
                Call("GET", path, query={**query, "offset": len(seen), "num": PAGE})
            )
            listed = record.get(key)
            if not isinstance(listed, list):
                raise self._rest.bad_answer(f"it has no list of {key}")
            new = [each for each in map(self._id_of, listed) if each not in seen]
            seen.update(new)
            yield from new
            if not new:
                return
        raise self._rest.bad_answer(f"the list of {key} does not end")

    def _id_of(self, address: Any) -> str:
        """Return the id in the address of a resource of this server. Raise `TryLaterError` for another address."""
        if isinstance(address, str) and address.startswith(f"{self._base}/"):
            found = address.rpartition("/")[2]
            if found and found == quote(found, safe="") and found not in {".", ".."}:
                return found
        raise self._rest.bad_answer("an address in it is not one of this server")

    # Files

    def stat(self, storage: str, path: bytes) -> Properties | None:
        """Return the properties of a path, following symlinks; None if it is missing."""
        call = Call("GET", self._file(storage, path), query={"num": 1}, accept=(404,), most=_MOST_LISTING)
        response = self._rest.repeat(call)
        return None if response.status == 404 else self._properties(self._rest.record_of(response))

    def children(self, storage: str, path: bytes, *, seconds: float) -> list[tuple[bytes, Found]]:
        """Return the names in a folder. Raise `NotFoundError("vanished")`."""
        found: dict[bytes, Found] = {}
        for _ in range(_MOST_PAGES):
            query = {"offset": len(found), "num": _NAMES}
            call = Call("GET", self._file(storage, path), query=query, most=_MOST_LISTING, seconds=seconds)
            content = self._rest.ask_record(call).get("content")
            if not isinstance(content, dict):
                raise NotFoundError("vanished", "it is no folder", subject=self.subject)
            new = {
                name.rstrip("/").rpartition("/")[2].encode("utf-8", "surrogateescape"): each
                for name, each in content.items()
            }
            fresh = {name: self._properties(each).found for name, each in new.items() if name not in found}
            found |= fresh
            if len(content) < PAGE or not fresh:
                return list(found.items())
        raise self._rest.bad_answer("the listing does not end")

    def _properties(self, record: Any) -> Properties:
        try:
            size = int(record["size"])
            seconds = int(datetime.strptime(record["lastAccessed"], "%Y-%m-%dT%H:%M:%S%z").timestamp())
            if not isinstance(record["isDirectory"], bool) or size < 0:
                raise ValueError
        except (KeyError, TypeError, ValueError, OverflowError):
            raise self._rest.bad_answer("the properties of a file are not complete") from None
        found = folder_of(seconds) if record["isDirectory"] else file_of(size, seconds)
        return Properties(found, str(record.get("owner")), str(record.get("permissions")))

    def read(self, storage: str, path: bytes, offset: int, length: int) -> bytes:
        """Read a part of a file."""
        headers = {**_STREAM, "Range": f"bytes={offset}-{offset + length - 1}"}
        call = Call("GET", self._file(storage, path), headers=headers, most=length)
        response = self._rest.repeat(call)
        if response.status != 206:
            raise self._rest.bad_answer("it is not the requested part of the file")
        return response.body

    def put(self, storage: str, path: bytes, content: Bytes, *, seconds: float | None = None) -> None:
        """Write a file in one request, which replaces an existing one, and makes missing folders."""
        headers = {"Content-Type": "application/octet-stream"}
        self._rest.repeat(
            Call("PUT", self._file(storage, path), body=content, headers=headers, seconds=seconds)
        )

    def begin_append(self, storage: str, path: bytes) -> str:
        """Return an address below the URL of the server to which content is appended by PUT."""
        content = {"file": _local(path), "protocol": "BFT", "overwrite": "false"}
        record = self._rest.ask_record(Call.with_json("POST", f"/storages/{storage}/imports", content))
        address = record.get("accessURL")
        base, parts = urlsplit(self._base), urlsplit(address if isinstance(address, str) else "")
        if (parts.scheme, parts.netloc) != (base.scheme, base.netloc) or not parts.path:
            raise self._rest.bad_answer("the address for the upload is not one of this server")
        return parts.path + (f"?{parts.query}" if parts.query else "")

    def append(self, target: str, content: Bytes) -> None:
        """Append to a file, once: after an error it is unknown how much arrived. The address grants access, so no token is sent."""
        response = HttpClient(self._rest.origin, self.subject).upload(target, [content], len(content))
        if response.status >= 300:
            raise TryLaterError(
                "busy", f"the service did not accept a part (status {response.status})", subject=self.subject
            )

    def make_folder(self, storage: str, path: bytes) -> None:
        """Make a folder and its parents; an existing one is no error."""
        self._rest.repeat(Call.with_json("POST", self._file(storage, path), {}))

    def delete(self, storage: str, path: bytes) -> None:
        """Remove a file, or a folder with all that is in it; a missing one is no error."""
        self._rest.repeat(Call("DELETE", self._file(storage, path)))

    def rename(self, storage: str, path: bytes, to: bytes) -> None:
        """Rename, once; an existing file is replaced, and an existing folder gets it."""
        self._rest.send(self._action(storage, "rename", path, to))

    def copy(self, storage: str, path: bytes, to: bytes) -> None:
        """Copy a file or folder, once."""
        self._rest.send(self._action(storage, "copy", path, to))

    @staticmethod
    def _action(storage: str, name: str, path: bytes, to: bytes) -> Call:
        content = {"from": _local(path), "to": _local(to)}
        return Call.with_json("POST", f"/storages/{storage}/actions/{name}", content)

    def set_permissions(self, storage: str, path: bytes, permissions: str) -> None:
        """Set the permissions, written as `ls -l` does."""
        record = self._rest.ask_record(
            Call.with_json("PUT", self._file(storage, path), {"permissions": permissions})
        )
        if record.get("permissions") != "OK":
            raise AccessError(
                "denied",
                "the site did not set the permissions",
                subject=f"{self.subject}:{printable(path)}",
            )

    def _file(self, storage: str, path: bytes) -> str:
        return f"/storages/{storage}/files" + quote(_local(path), safe="/-_.~")

    # Jobs

    def submit(self, description: Mapping[str, Any]) -> str:
        """Create a job, and return its id. Raises as `RestClient.create` does."""
        response = self._rest.create(Call.with_json("POST", "/jobs", description))
        return self._id_of(response.headers.get("location"))

    def tagged_jobs(self, tag: str) -> Iterator[JobRecord]:
        """Yield the jobs with this tag."""
        for job in self._pages("/jobs", "jobs", {"tags": tag}):
            found = self.job(job)
            if found is not None and tag in found.tags:  # a server may ignore the parameter
                yield found

    def job(self, job: str) -> JobRecord | None:
        """Return a job; None if the server does not have it."""
        response = self._rest.repeat(Call("GET", f"/jobs/{quote(job, safe='')}", accept=(404,)))
        if response.status == 404:
            return None
        record = self._rest.record_of(response)
        tags, status = record.get("tags"), record.get("status")
        if not isinstance(status, str):
            raise self._rest.bad_answer("a job has no status")
        return JobRecord(
            job,
            status,
            printable(str(record.get("statusMessage", "")))[:_MOST_SHOWN],
            tuple(map(str, tags)) if isinstance(tags, list) else (),
            str(record.get("exitCode", "")),
        )

    def control(self, job: str, action: str) -> None:
        """Start or abort a job; a job that has ended stays as it is."""
        self._rest.repeat(Call.with_json("POST", f"/jobs/{quote(job, safe='')}/actions/{action}", {}))

    # Answers

    def _judge(self, call: Call, response: Response) -> HibaliError | None:
        """Return the error that the server's message names."""
        reason = reason_in(response, "errorMessage")
        if call.path == "/jobs" and call.method == "POST" and response.status not in {401, 429, 503}:
            return UsageError(
                "submission-rejected", f"UNICORE refuses the job: {reason}", subject=self.subject
            )
        return failure_of(reason, self.subject)


def check_path(path: bytes, subject: str) -> None:
    """Raise `RefusedError` for a path that the server would read as another one (SMSBaseImpl.makeSMSLocal: a backslash is a slash)."""
    if any(each in path for each in (b"\\", b"\n", b"\r", b"\0")):
        raise RefusedError(
            "unsafe-name",
            f"UNICORE cannot handle this name: {printable(path)}",
            subject=subject,
            hint="Rename it: names there cannot have backslashes and line breaks.",
        )


def _local(path: bytes) -> str:
    """Return a path as the server reads it: it decodes percent signs once more than HTTP does (SMSUtils.urlDecode)."""
    return (b"/" + path.lstrip(b"/")).decode("utf-8", "surrogateescape").replace("%", "%25")
