"""Making the target hold what was planned: carry, then delete, then set what only can be set at the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import islice

from hibali.events import Adjusted, Deleted, Failed, Linked, Moved
from transfers.backup import doomed
from transfers.copying import Copier, Origin
from transfers.ends import Ends
from transfers.entry import Entry, Kind
from transfers.fidelity import adjustments, attributes_of, permissions_of
from transfers.mover import Mover
from transfers.movers.globus import GlobusMover
from transfers.movers.gridftp import GridftpMover, gridftp_mover
from transfers.movers.server import ServerMover
from transfers.plan import Action
from transfers.single import SingleSource
from transfers.store import Adjustment, Item, Landed, Problem
from transfers.survey import Survey


class Changing(Ends):
    """A call that may change its target, which is locked."""

    def _keep(self, found: Survey) -> bool:
        """Whether all that is to be replaced or deleted is kept, where it was to be."""
        backup, kept = self._request.backup, True
        if backup is not None:
            for entry, problem in self._target.keep(backup, doomed(found)):
                if problem is not None:
                    kept = False
                    self.tell(Failed(entry.path, problem.code, f"it cannot be kept: {problem.message}"))
        return kept

    def _carry(self, found: Survey) -> None:
        kept = self._keep(found)
        # further names of a file come when it has landed
        self._carry_some(found, kept=kept, names=False)
        if found.files_to_link:
            self._carry_some(found, kept=kept, names=True)
        if not kept:
            self.tell(Failed(b"", "not-kept", "nothing was replaced, because not everything could be kept"))

    def _carry_some(self, found: Survey, *, kept: bool, names: bool) -> None:
        asked = 0

        def items() -> Iterator[Item]:
            nonlocal asked
            asked = len(self._answered)
            for number, action in enumerate(found.moves):
                wanted = bool(action.entry.same_as) is names and (kept or action.target is None)
                if wanted and number not in self._answered:
                    asked += 1
                    yield self._item(number, action)

        def carry() -> None:
            coming = items()
            self._move(coming, 0 if names else found.bytes_to_move)
            for _ in coming:  # a full target is not tried for each of them
                pass

        self._going_on.until_done(carry)
        if len(self._answered) < asked:
            self.tell(Failed(b"", "not-tried", f"{asked - len(self._answered)} entries were not tried"))

    def _move(self, items: Iterable[Item], size: int) -> int:
        """Carry them, so many bytes; how many were answered for."""
        answered = 0
        mover = self._mover()
        ours = self._way is None and not isinstance(
            mover, GridftpMover
        )  # that one knows what is left for our lines
        for store in self._stores if ours else ():
            store.expect(size)
        # closed before anything else unwinds: the lock is not given back while something still lands
        with closing(mover.carry(self._source, self._target, items)) as events:
            for event in events:
                if isinstance(event, Landed):
                    answered += 1
                    self._answered.add(event.item.number)
                    self._landed(event)
                else:
                    self.tell(event)
        self.receipt.mover = mover.word if answered else self.receipt.mover
        if answered and isinstance(mover, GlobusMover):
            self.receipt.checked_by = mover.checked_by
        return answered

    def _mover(self) -> Mover:
        """Globus where it carries, a copy by the target's own server where it offers one, GridFTP where a site has that, else the bytes through us."""
        stream, source = self._stream, self._source
        if self._globus is not None:
            return self._globus
        origin = Origin(self._stores[0])
        if isinstance(source, SingleSource):
            origin = Origin(source.store, source.name)
        if isinstance(self._target, Copier) and self._target.copies(origin.store):
            return ServerMover(self._target, origin, stream, self._wanted())
        request = self._request
        if stream.word == "stream" and not request.pack_bytes:
            sites = (request.source.site, request.target.site)
            found = gridftp_mover(origin, self._target, sites, request.lowest_rate, self._tell_others)
            return found or stream
        return stream

    def _item(self, number: int, action: Action) -> Item:
        """A saved plan replaces only what it saw; any other whatever stands there when its turn comes."""
        # What was kept was looked at then, and has a second name now: its ctime is another.
        kept = self._request.backup is not None and action.target is not None
        clear, exact = action.verb == "retype", self._request.saved is not None and not kept
        rules = self._request.rules
        fidelity = permissions_of(action.entry, rules), attributes_of(action.entry, rules)
        return Item(number, action.entry, action.target, clear, exact, *fidelity)

    def _landed(self, landed: Landed) -> None:
        entry = landed.item.entry
        if landed.problem is not None:
            self.tell(Failed(entry.path, landed.problem.code, landed.problem.message))
            return
        if entry.same_as:
            self.tell(Linked(entry.path, entry.same_as))
            return
        digest, proof = landed.digest, landed.proof
        self.tell(
            Moved(entry.path, entry.kind, entry.size, digest, proof, entry.mtime_ns, entry.mode, landed.etag)
        )

    def _delete(self, found: Survey) -> None:
        """Last, only if all else succeeded, and never where anything could not be listed."""
        if not found.deletions.count:
            return
        if self.receipt.files_failed:
            self.tell(
                Failed(b"", "deletions-left", "nothing was deleted, because not everything else succeeded")
            )
            return

        def remove(done: int) -> Iterator[tuple[Entry, Problem | None]]:
            own = (action.entry for action in found.deletions if not action.implied)
            return self._target.remove(islice(own, done, None))

        for action in found.deletions:
            if action.implied:
                self.tell(Deleted(action.entry.path, action.entry.kind))
        for entry, problem in self._going_on.each(remove):
            if problem is None:
                self.tell(Deleted(entry.path, entry.kind))
            else:
                self.tell(Failed(entry.path, problem.code, problem.message))

    def _adjust(self, found: Survey) -> None:
        """Permissions and attributes of what stood there and of new folders, when nothing more is put into them.

        A folder that could not be made has been named.
        """
        if not self._target.facts.adjusts:
            return

        def adjust(done: int) -> Iterator[tuple[Adjustment, Problem | None]]:
            return self._target.adjust(islice(adjustments(found, self._request.rules), done, None))

        for adjustment, problem in self._going_on.each(adjust):
            entry = adjustment.entry
            if problem is None:
                self.tell(Adjusted(entry.path, entry.kind))
            elif problem.code != "vanished" or entry.kind is not Kind.FOLDER or not self.receipt.files_failed:
                self.tell(Failed(entry.path, problem.code, problem.message))
