"""Removing a whole tree over SFTP: nobody may be at work around it or in it, and what hibali itself keeps there goes, too."""

from __future__ import annotations

from hibali.errors import HibaliError, RefusedError
from transfers import sftp_wire as wire
from transfers.agent import own_names
from transfers.entry import Kind
from transfers.sftp_beneath import Beneath
from transfers.sftp_channel import StatusError
from transfers.sftp_client import Client, kind_of, problem_of
from transfers.sftp_lock import SftpLock, living_holder, locked
from transfers.sftp_own import OWN, Own
from transfers.store import Problem


class Vacating:
    """One root whose lock is held."""

    def __init__(self, client: Client, beneath: Beneath, own: Own, lock: SftpLock) -> None:
        self._client = client
        self._beneath = beneath
        self._own = own
        self._lock = lock
        self._where = beneath.full(b"").rstrip(b"/")

    def check(self, places: list[bytes], itself_at: bytes | None) -> None:
        """Raise `TryLaterError("locked")` where somebody of this account holds a folder above, or one of `places`.

        What stands at `itself_at`, the root's path as it was typed, has to be a folder and no symlink.
        """
        if itself_at is not None:
            found = self._client.stat(itself_at.rstrip(b"/"))
            if found is None or kind_of(found) is not Kind.FOLDER:
                raise RefusedError(
                    "symlink-in-the-way",
                    "it is a symlink, or was replaced just now",
                    about=self._client.where,
                )
        try:
            clock = self._lock.clock()
        except StatusError as problem:
            raise self._client.error(problem, self._where) from None
        above = self._client.real_path(self._where or b"/")
        folders = [self._beneath.full(place) for place in places]
        while above != b"/":
            above = above.rpartition(b"/")[0] or b"/"
            folders.append(above)
        for folder in folders:
            own = Own(self._client, Beneath(self._client, folder))
            own.user = self._own.user
            holder = living_holder(own, clock)
            if holder is not None:
                raise locked(holder, self._client.where)

    def sweep(self, places: list[bytes], lease: int) -> list[tuple[bytes, Problem]]:
        """Remove what is kept at places below; what could not be."""
        problems = []
        for place in places:
            self._lock.check()
            problem = self._clear_place(place, lease)
            if problem is not None:
                problems.append((place, problem))
        return problems

    def _clear_place(self, place: bytes, lease: int) -> Problem | None:
        """As the holder of its lock."""
        path = place + b"/" + OWN
        wrong = self._beneath.parents([path])
        if path in wrong:
            return None if wrong[path].code == "vanished" else wrong[path]
        inner = Beneath(self._client, self._beneath.full(place))
        own = Own(self._client, inner)
        own.user = self._own.user
        try:
            found = self._client.stat(inner.full(OWN))
            if found is None or kind_of(found) is not Kind.FOLDER:
                return None
            held = SftpLock(self._client, inner, own, "rm", lease)
        except HibaliError as problem:
            return Problem(problem.code, problem.message)
        _remove_own(own)
        held.release()
        return None

    def remove_own(self) -> None:
        """Remove all that is ours in the `.hibali` of the root, but for the lock that is held."""
        _remove_own(self._own)

    def remove_root(self) -> Problem | None:
        """Remove the root folder, empty by now; absent is done already. A symlink is never followed by this."""
        try:
            self._client.ask_remove_folder(self._where).wait()
        except StatusError as problem:
            if problem.code == wire.NO_SUCH_FILE:
                return None
            if problem.code == wire.FAILURE:  # all that servers say of it
                return Problem("folder-not-empty", "it is not empty: something came meanwhile, or was left")
            return problem_of(problem)
        return None


def _remove_own(own: Own) -> None:
    for name in own_names.OWN:
        if name != b"lock":
            own.remove(OWN + b"/" + name)
