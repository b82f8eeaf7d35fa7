"""Hold the lease of a WebDAV target by LOCK (RFC 4918, section 9.10), and keep its journal."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from hibali.documents import line_of_json
from hibali.errors import HibaliError
from hibali.http import Answer
from transfers.agent import protocol
from transfers.agent.lease import LEASE_SECONDS
from transfers.stores.server_lease import Held, Lease, journal_of, locked, record_of, seeds_in
from transfers.stores.webdav.files import Files
from transfers.stores.webdav.multistatus import lock_info
from transfers.stores.webdav.requests import Wire, error_of

OWN = protocol.OWN_FOLDER
_JOURNAL = OWN + b"/journal"
_LIMIT = 64 * 1024


def below(folder: bytes, path: bytes) -> bytes:
    """The path of `path` in `folder`, either of which may be empty."""
    return folder + b"/" + path if folder and path else folder or path


class Own:
    """Small files of our own below one root, and the folder that holds them."""

    def __init__(self, files: Files, root: bytes) -> None:
        self._files = files
        self._root = root

    def read(self, path: bytes) -> bytes | None:
        """The content of a small file below the root; None when absent."""
        try:
            return bytes(self._files.get(below(self._root, path), offset=0, length=_LIMIT).content)
        except HibaliError as problem:
            if problem.code in {"vanished", "source-changed"}:  # absent, or nothing in it
                return None
            raise

    def seeds(self, folder: bytes = b"") -> list[bytes]:
        """The seeds that unfinished operations left in `folder` below the root, the newest first."""
        return seeds_in(self.read(below(folder, _JOURNAL)))

    def open_seed(self, earlier: list[bytes]) -> bytes:
        """A new seed, beside the earlier ones when this returns."""
        seed = os.urandom(16)
        self._files.make_folder(below(self._root, OWN))
        self._files.put(below(self._root, _JOURNAL), journal_of([seed, *earlier]), {})
        return seed

    def end_journal(self) -> None:
        """Nothing partial is left: the journal goes."""
        with contextlib.suppress(HibaliError):
            self._files.delete(below(self._root, _JOURNAL))

    def remove_folder(self) -> None:
        """`.hibali` goes where nothing is in it: what another locks or writes there keeps it. A user's own files may stay."""
        folder = below(self._root, OWN)
        with contextlib.suppress(HibaliError):
            if next(self._files.children(folder).names, None) is None:
                self._files.delete(folder, folder=True)


_NAME = OWN + b"/lock"
_REFUSED = frozenset({400, 403, 404, 405, 409, 412, 423, 424, 500})


def token_in(answer: Answer) -> str:
    """The lock token of an answer to LOCK; empty where it has none."""
    word = answer.headers.get("lock-token", "").strip()
    return word[1:-1] if word.startswith("<") and word.endswith(">") and " " not in word else ""


def holding(wire: Wire, path: bytes, token: str) -> dict[str, str]:
    """The header that says that we hold the lock of this very path."""
    return {"If": f"<{wire.address(path)}> (<{token}>)"}


def ask_lock(wire: Wire, path: bytes, seconds: int, owner: str, depth: str = "0") -> Answer:
    """LOCK for so long; refused with a status of `_REFUSED` where another holds it or nothing can be there."""
    headers = {"Depth": depth, "Timeout": f"Second-{seconds}", "Content-Type": "application/xml"}
    return wire.ask("LOCK", path, headers=headers, body=lock_info(owner), accept=_REFUSED, attempts=1)


def unlock(wire: Wire, path: bytes, token: str) -> None:
    """UNLOCK; one that is gone is fine."""
    wire.ask("UNLOCK", path, headers={"Lock-Token": f"<{token}>"}, accept=range(400, 500))


def find_lock(files: Files, folder: bytes) -> Held | None:
    """The lock of a folder; None where there is none, or nobody may look."""
    answer = files.wire.ask("GET", below(folder, _NAME), accept=(400, 403, 404, 409, 410))
    return Held(record_of(answer.body), answer.age) if answer.status < 300 else None


class DavLock(Lease):
    """The lock file of one root, which its server keeps others from by LOCK while we hold it."""

    def __init__(self, files: Files, root: bytes, operation: str, seconds: int = LEASE_SECONDS) -> None:
        self._files = files
        self._wire = files.wire
        self._folder = below(root, OWN)
        self._path = below(root, _NAME)
        self._puts = 0
        self._lock = ""  # the server's token of our LOCK
        self._status = 0  # of the last answer to what would have taken it
        super().__init__(files.subject, operation, seconds)

    def _create(self) -> bool:
        self._files.make_folder(self._folder)
        answer = ask_lock(self._wire, self._path, self._seconds, self._token)
        granted = token_in(answer) if answer.status < 300 else ""
        self._status = answer.status
        found = self._read()
        if granted:
            # One that is not free is of a living holder whose LOCK the server forgot, or of an agent at the same folder.
            if found is None or found.free:
                self._lock, self._status = granted, self._put(granted).status
                if self._status < 300:
                    return True
            unlock(self._wire, self._path, granted)
        elif found is None and self._status == 423:
            raise locked({}, self._subject)  # somebody is just taking it, or giving it back
        elif found is None:  # the folder went with the lock of whoever gave theirs back
            self._unlock_unnoticed()
        return False

    def _read(self) -> Held | None:
        answer = self._wire.ask("GET", self._path, accept=(403, 404, 409, 410))
        record = record_of(answer.body) if answer.status < 300 else {}
        return Held(record, answer.age) if record else None

    def _replace(self, found: Held) -> bool:
        """End the LOCK of the dead holder, so that `_create` is granted ours."""
        lock = found.holder.get("lock")
        if not isinstance(lock, str):
            raise locked(found.holder, self._subject)
        unlock(self._wire, self._path, lock)  # of that very lock: nobody else's can end by it
        return False

    def _refusal(self, holder: dict[str, Any]) -> HibaliError:
        if holder or self._status < 300:
            return super()._refusal(holder)
        return error_of(self._status, self._subject)

    def _unlock_unnoticed(self) -> None:
        """End a LOCK of ours that Apache granted although it answered otherwise."""
        owner, token = self._files.lock_at(self._path)
        if self._token in owner:
            unlock(self._wire, self._path, token)

    def _put(self, lock: str) -> Answer:
        self._puts += 1
        record = {**self._record, "lock": lock, "beat": self._puts}
        return self._wire.ask(
            "PUT",
            self._path,
            headers=holding(self._wire, self._path, lock),
            body=line_of_json(record).encode("ascii") + b"\n",
            accept=_REFUSED,
        )

    def _renew(self) -> bool:
        if not self._is_ours() or self._put(self._lock).status >= 300:
            return False
        headers = {**holding(self._wire, self._path, self._lock), "Timeout": f"Second-{self._seconds}"}
        return self._wire.ask("LOCK", self._path, headers=headers, accept=_REFUSED).status < 300

    def _remove(self) -> None:
        """The folder goes with the lock in one request where nothing else is in it: then nobody finds one without the other."""
        mine = holding(self._wire, self._path, self._lock)
        names = [name for name, _ in self._files.children(self._folder).names]
        if names == [b"lock"] and self._delete(self._folder, mine, folder=True):
            return
        if not self._delete(self._path, mine):
            unlock(self._wire, self._path, self._lock)
            self._delete(self._path, {})

    def _delete(self, path: bytes, headers: dict[str, str], *, folder: bool = False) -> bool:
        return self._wire.ask("DELETE", path, headers=headers, folder=folder, accept=_REFUSED).status in {
            200,
            204,
            404,
        }
