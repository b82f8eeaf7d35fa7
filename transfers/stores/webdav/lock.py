"""Hold the lease of a WebDAV target by LOCK (RFC 4918, section 9.10), and keep its journal."""

from __future__ import annotations

import binascii
import contextlib
import json
import os
import time
from email.utils import parsedate_to_datetime
from typing import Any

from hibali.documents import line_of_json
from hibali.errors import HibaliError
from transfers.agent import protocol
from transfers.agent.lease import LEASE_SECONDS
from transfers.stores.s3.requests import Answer
from transfers.stores.server_lease import KeptLease, is_free, locked, record_of
from transfers.stores.webdav.files import Files
from transfers.stores.webdav.multistatus import lock_info
from transfers.stores.webdav.requests import Wire, error_of

OWN = protocol.OWN_FOLDER
_JOURNAL = OWN + b"/journal"
_LIMIT = 64 * 1024
_SEEDS = 800


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
        content = self.read(below(folder, _JOURNAL))
        try:
            return [binascii.unhexlify(seed) for seed in json.loads(content or b"")["seeds"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            return []

    def open_seed(self, earlier: list[bytes]) -> bytes:
        """A new seed, beside the earlier ones when this returns."""
        seed = os.urandom(16)
        seeds = [one.hex() for one in [seed, *earlier][:_SEEDS]]
        content = json.dumps({"version": 1, "seeds": seeds}).encode("ascii") + b"\n"
        self._files.make_folder(below(self._root, OWN))
        self._files.put(below(self._root, _JOURNAL), content, {})
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
_ROUNDS = 5
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


def living_holder(files: Files, folder: bytes) -> dict[str, Any] | None:
    """Who holds the lock of a folder; None where nobody can be at work, or nobody may look."""
    standing = files.wire.ask("GET", below(folder, _NAME), accept=(400, 403, 404, 409, 410))
    if standing.status >= 300:
        return None
    holder = record_of(standing.body)
    return None if is_free(holder, _age(standing)) else holder


class DavLock(KeptLease):
    """Held from construction to `release`; renewed by a thread of its own."""

    def __init__(self, files: Files, root: bytes, operation: str, seconds: int = LEASE_SECONDS) -> None:
        """Take it below `root`; one whose holder is provably gone, or whose lease ran out by the server's clock, is broken.

        Raises `TryLaterError("locked")` that names the holder.
        """
        super().__init__(files.subject, operation, seconds)
        self._files = files
        self._wire = files.wire
        self._folder = below(root, OWN)
        self._path = below(root, _NAME)
        self._beats = 0
        self._lock = self._take()
        self._keep()

    def _take(self) -> str:
        holder: dict[str, Any] = {}
        status = 0
        for _ in range(_ROUNDS):
            self._renewed = time.monotonic()
            self._files.make_folder(self._folder)
            answer = ask_lock(self._wire, self._path, self._seconds, self._token)
            mine = token_in(answer) if answer.status < 300 else ""
            status = answer.status
            standing = self._wire.ask("GET", self._path, accept=(403, 404, 409, 410))
            holder = record_of(standing.body) if standing.status < 300 else {}
            free = not holder or is_free(holder, _age(standing))
            if mine and free:
                status = self._write(mine).status
                if status < 300:
                    return mine
                unlock(self._wire, self._path, mine)
            elif mine:  # a living holder whose lock the server forgot, or an agent at the same folder
                unlock(self._wire, self._path, mine)
                break
            elif holder:
                dead = holder.get("lock")
                if not free or not isinstance(dead, str):
                    break
                unlock(self._wire, self._path, dead)  # of that very lock: nobody else's can end by it
            elif status == 423:
                break  # somebody who is just taking it, or giving it back
            else:  # the folder went with the lock of whoever gave theirs back; Apache may have locked it all the same
                self._forget()
        if holder or status == 423:
            raise locked(holder, self._subject)
        raise error_of(status, self._subject)

    def _forget(self) -> None:
        """End a lock that we were not told of."""
        owner, token = self._files.lock_at(self._path)
        if self._token in owner:
            unlock(self._wire, self._path, token)

    def _write(self, lock: str) -> Answer:
        self._beats += 1
        record = {**self._record, "lock": lock, "beat": self._beats}
        return self._wire.ask(
            "PUT",
            self._path,
            headers=holding(self._wire, self._path, lock),
            body=line_of_json(record).encode("ascii") + b"\n",
            accept=_REFUSED,
        )

    def _renew(self) -> bool:
        if not self._is_ours() or self._write(self._lock).status >= 300:
            return False
        headers = {**holding(self._wire, self._path, self._lock), "Timeout": f"Second-{self._seconds}"}
        return self._wire.ask("LOCK", self._path, headers=headers, accept=_REFUSED).status < 300

    def _is_ours(self) -> bool:
        standing = self._wire.ask("GET", self._path, accept=(404, 409, 410))
        return standing.status < 300 and record_of(standing.body).get("token") == self._token

    def _give_back(self) -> None:
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


def _age(answer: Answer) -> float | None:
    """Seconds since the record was written, by the server's own clock."""
    now = answer.seconds
    try:
        modified = parsedate_to_datetime(answer.headers["last-modified"]).timestamp()
    except (KeyError, ValueError, TypeError):
        return None
    return None if now is None else now - modified
