"""Hold the lease of a WebDAV target by LOCK (RFC 4918, section 9.10)."""

from __future__ import annotations

import contextlib
from typing import Any

from hibali.documents import line_of_json
from hibali.errors import HibaliError
from hibali.http.client import Response
from hibali.http.errors import error_of
from hibali_plugins.web.webdav.files import DavFiles
from hibali_plugins.web.webdav.multistatus import lock_info
from hibali_plugins.web.webdav.requests import WebdavClient
from transfers.agent.protocol import LEASE_SECONDS
from transfers.model.leases import locked, record_of
from transfers.model.units import Problem
from transfers.stores.server.lease import Held, Lease, no_lock_file
from transfers.stores.server.own_files import CHANGED_SINCE, NOT_EMPTY, OWN, below

_NAME = OWN + b"/lock"
_FOLDER_SECONDS = 60
_DELETED = frozenset({200, 204})
_REFUSED = frozenset({400, 403, 404, 405, 409, 412, 423, 424, 500})


def token_in(response: Response) -> str:
    """Return the lock token of a response to LOCK, or ""."""
    token = response.headers.get("lock-token", "").strip()
    return token[1:-1] if token.startswith("<") and token.endswith(">") and " " not in token else ""


def holding(client: WebdavClient, path: bytes, token: str) -> dict[str, str]:
    """Return the header that states that we hold the lock of this path."""
    return {"If": f"<{client.address(path)}> (<{token}>)"}


def request_lock(client: WebdavClient, path: bytes, seconds: int, owner: str, depth: str = "0") -> Response:
    """Send LOCK with a timeout in seconds; return a status in `_REFUSED` if the server rejects it."""
    headers = {"Depth": depth, "Timeout": f"Second-{seconds}", "Content-Type": "application/xml"}
    return client.request("LOCK", path, headers=headers, body=lock_info(owner), accept=_REFUSED, attempts=1)


def refresh_lock(client: WebdavClient, path: bytes, token: str, seconds: int) -> bool:
    """Extend a lock to this time from now; its token is not tagged with the URL, which lighttpd refuses here (RFC 4918, 9.10.2)."""
    headers = {"If": f"(<{token}>)", "Timeout": f"Second-{seconds}"}
    return client.request("LOCK", path, headers=headers, accept=_REFUSED, urgent=True).status < 300


def unlock(client: WebdavClient, path: bytes, token: str) -> None:
    """Send UNLOCK; a missing lock is no error. lighttpd redirects LOCK of a folder to its name with a final slash, but not UNLOCK."""
    headers = {"Lock-Token": f"<{token}>"}
    for folder in (False, True):
        response = client.request("UNLOCK", path, headers=headers, folder=folder, accept=range(400, 500))
        if response.status < 300:
            return


def find_lock(files: DavFiles, folder: bytes) -> Held | None:
    """Return the lock of a folder, None if there is none or access is denied."""
    response = files.client.request("GET", below(folder, _NAME), accept=(400, 403, 404, 409, 410))
    return Held(record_of(response.body), response.age) if response.status < 300 else None


def remove_empty(files: DavFiles, path: bytes, *, locks: bool) -> Problem | None:
    """Remove an empty folder; LOCK, if supported, keeps it empty between check and DELETE."""
    token = ""
    if locks:
        token = token_in(request_lock(files.client, path, _FOLDER_SECONDS, "hibali", depth="infinity"))
        if not token:
            return Problem("locked-by-another", "another client has locked it")
    headers = holding(files.client, path, token) if token else {}
    is_deleted = False
    try:
        if next(files.listed(path).names, None) is not None:
            return NOT_EMPTY
        is_deleted = files.send_delete(path, headers, folder=True) < 300
    finally:
        if token and not is_deleted:
            with contextlib.suppress(HibaliError):
                unlock(files.client, path, token)
    return None if is_deleted else CHANGED_SINCE


class DavLock(Lease):
    """The lock file of one root, protected by LOCK while we hold it."""

    def __init__(self, files: DavFiles, root: bytes, operation: str, seconds: int = LEASE_SECONDS) -> None:
        self._files = files
        self._client = files.client
        self._folder = below(root, OWN)
        self._path = below(root, _NAME)
        self._puts = 0
        self._lock = ""  # the server's token of our LOCK
        self._status = 0  # status of the last attempt to take the lock
        super().__init__(files.subject, operation, seconds)

    def _create(self) -> bool:
        self._files.make_folder(self._folder)
        response = request_lock(self._client, self._path, self._seconds, self._token)
        granted = token_in(response) if response.status < 300 else ""
        self._status = response.status
        found = self._read()
        if granted:
            # Otherwise a live holder lost its LOCK at the server, or an agent uses this folder.
            if found is None or found.free:
                self._lock, self._status = granted, self._put(granted).status
                if self._status < 300:
                    return True
            unlock(self._client, self._path, granted)
        elif found is None and self._status == 423:
            raise self._refusal({})
        elif found is None:  # another holder's release removed the folder
            self._unlock_unnoticed()
        return False

    def _read(self) -> Held | None:
        response = self._client.request("GET", self._path, accept=(403, 404, 409, 410))
        record = record_of(response.body) if response.status < 300 else {}
        return Held(record, response.age) if record else None

    def _replace(self, found: Held) -> bool:
        """End the dead holder's LOCK, so that `_create` can get ours."""
        lock = found.holder.get("lock")
        if not isinstance(lock, str):
            raise locked(found.holder, self._subject)
        unlock(self._client, self._path, lock)  # this token ends no other lock
        return False

    def _refusal(self, holder: dict[str, Any]) -> HibaliError:
        found = None if holder else self._files.stat(self._path)
        if found is not None and found.folder:
            return no_lock_file(self._subject)
        if holder or self._status < 300:
            return super()._refusal(holder)
        if self._status == 423:
            return locked({}, self._subject)  # another client is taking or releasing it
        return error_of(self._status, self._subject)

    def _unlock_unnoticed(self) -> None:
        """End our LOCK if Apache granted it but returned an error."""
        owner, token = self._files.lock_at(self._path)
        if self._token in owner:
            unlock(self._client, self._path, token)

    def _put(self, lock: str) -> Response:
        self._puts += 1
        record = {**self._record, "lock": lock, "beat": self._puts}
        return self._client.request(
            "PUT",
            self._path,
            headers=holding(self._client, self._path, lock),
            body=line_of_json(record).encode("ascii") + b"\n",
            accept=_REFUSED,
        )

    def _renew(self) -> bool:
        if not self._is_held() or self._put(self._lock).status >= 300:
            return False
        return refresh_lock(self._client, self._path, self._lock, self._seconds)

    def _remove(self) -> None:
        """Remove lock and folder in one request if nothing else is in it, so no client sees one alone; lighttpd refuses that."""
        upload_lock = holding(self._client, self._path, self._lock)
        is_alone = [name for name, _ in self._files.listed(self._folder).names] == [b"lock"]
        if is_alone and self._delete(self._folder, upload_lock, folder=True) in _DELETED:
            return
        if self._delete(self._path, upload_lock) not in _DELETED:
            # WsgiDAV keeps the LOCK of a missing file.
            unlock(self._client, self._path, self._lock)
            self._delete(self._path, {})
        self._remove_empty()
        if is_alone:
            with contextlib.suppress(HibaliError):
                remove_empty(self._files, self._folder, locks=True)

    def _remove_empty(self) -> None:
        """Remove an empty file, which WsgiDAV creates before it refuses LOCK to others; DELETE spares what another has locked."""
        response = self._client.request("GET", self._path, accept=_REFUSED)
        if response.status == 200 and not response.body:
            self._delete(self._path, {})

    def _delete(self, path: bytes, headers: dict[str, str], *, folder: bool = False) -> int:
        return self._client.request("DELETE", path, headers=headers, folder=folder, accept=_REFUSED).status
