"""Prove by digest that a site holds local files, and remove exactly these."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from hibali.config.model import Site
from hibali.errors import NotFoundError, RefusedError, TryLaterError, UsageError
from hibali.events import Carried, Deleted, Failed, Hashing, Listener, Noted, ignore
from hibali.ledger import read_records
from hibali.locations import Location
from hibali.text import path_fields, path_from_fields, printable
from transfers.agent.identity import child
from transfers.history.index import read_operations_at
from transfers.history.journal import Receipt, Recorder, source_line, target_line
from transfers.history.last_transfer import spellings
from transfers.history.operations import journal_of
from transfers.inventory import Tree, open_tree
from transfers.model.entry import Entry, Kind, enclosing
from transfers.model.rules import select_all
from transfers.model.units import Problem
from transfers.planning.overlap import check_apart, is_same_file
from transfers.remove import Removal, RemovalPlan, RemovalRequest
from transfers.stores.local import LocalStore
from transfers.stores.single_file import SingleTarget
from transfers.verify import Pair, Pairs, match_trees

_ASIDE = b"hibali-drop-"


@dataclass(frozen=True, slots=True)
class DropRequest:
    """A request to remove the files at or below `here`, on this machine, that `there` holds with the same content.

    The roots of `sites` are protected.
    """

    here: Location
    there: Location
    sites: tuple[Site, ...] = ()


def drop(request: DropRequest, on_event: Listener = ignore) -> Receipt:
    """Remove each file whose copy has the same sha256 now, and return the receipt, whose `exit` is the exit code.

    Raises:
        RefusedError, UsageError: nothing was changed.
        TryLaterError: another operation holds a lock here.
        NotFoundError: one of both does not exist, and no earlier call removed it.
    """
    here, there = request.here.text, request.there.text
    with ExitStack() as stack:
        dropping = _Dropping(request, Recorder("drop", there, here, on_event), stack)
        dropping.recorder.start(stack)
        try:
            dropping.run()
        except NotFoundError as problem:
            if problem.subject != here or not _was_dropped(request):
                dropping.end(problem)
                raise
            dropping.recorder.record(Noted(f"{here}: an earlier call of this command removed it"))
        except BaseException as problem:
            dropping.end(problem)
            raise
        return dropping.end(None)


def _was_dropped(request: DropRequest) -> bool:
    """Return whether an earlier call recorded the removal of this file, or of files in this folder, with the same copy."""
    roots = spellings(request.here)
    for operation in read_operations_at(roots):
        place = operation.place
        if operation.operation != "drop" or operation.source != request.there.text or place is None:
            continue
        below = {root.path[len(place.path.rstrip(b"/")) :].strip(b"/") for root in roots if place.holds(root)}
        for record in read_records(journal_of(operation.id)) if below else ():
            if record.get("kind") in {"proven", "deleted"} and not below.isdisjoint(
                [path_from_fields(record), *enclosing(path_from_fields(record))]
            ):
                return True
    return False


def plan_drop(request: DropRequest, show: Callable[[Entry], None], on_event: Listener = ignore) -> Receipt:
    """Prove as `drop` does, call `show` with each file that it would remove, and change nothing, not even a lock."""
    with ExitStack() as stack:
        recorder = Recorder("drop", request.there.text, request.here.text, on_event)
        dropping = _Dropping(request, recorder, stack)
        found = dropping.find()
        for entry, _ in dropping.proven(found, dropping.removal.plan(found), dry_run=True):
            show(entry)
        return recorder.complete(None)


class _Dropping:
    """One drop: a removal of the files that are proven to exist at the site."""

    def __init__(self, request: DropRequest, recorder: Recorder, stack: ExitStack) -> None:
        self.recorder = recorder
        self.removal = Removal(
            RemovalRequest(request.here, recursive=True, sites=request.sites), recorder, stack
        )
        self._request = request
        self._stack = stack
        self._there: Tree | None = None

    def find(self) -> Entry:
        """Find the file or folder of this machine. Raises the errors of `Removal.find`, `UsageError`."""
        found = self.removal.find()
        if found.kind not in {Kind.FILE, Kind.FOLDER}:
            raise UsageError(
                "not-a-file",
                f"this is a {_NAMES[found.kind]}, which has no copy",
                subject=self._request.here.text,
            )
        return found

    def run(self) -> None:
        """Lock, list, prove, and remove."""
        found = self.find()
        lock, plan = self.removal.lock_and_plan(found)
        store, recorder = self.removal.store, self.recorder
        assert isinstance(store, LocalStore)
        recorder.append(target_line(self._request.here, store.root_path), durable=True)
        for entry, digest in self.proven(found, plan, dry_run=False):
            # before the removal, so that no killed call leaves a removal without its proof
            recorder.append(
                {"kind": "proven", **path_fields(entry.path), "size": entry.size, "sha256": digest}
            )
            problem = store.remove_exact(entry)
            if problem is None:
                recorder.record(Deleted(entry.path, entry.kind))
            else:
                recorder.fail(entry.path, problem)
        lock.release()

    def proven(self, found: Entry, plan: RemovalPlan, *, dry_run: bool) -> Iterator[tuple[Entry, str]]:
        """Yield each file whose copy has the same sha256 now, with that; record a failure for every other name."""
        there = self._open_there(found)
        here = self._here(found, plan)
        self._check_apart(here, there)
        if not here.files.count:
            return
        unlisted = dict(there.unlisted)

        def differs(failure: Failed) -> None:
            if failure.code == "missing":
                self.recorder.fail(failure.path, unlisted.get(failure.path) or _NO_COPY)
            elif failure.code != "unexpected":  # the site may have more
                self.recorder.record(failure)

        pairs = match_trees(here, there, differs).pairs
        self._stack.callback(pairs.close)
        checked = {} if dry_run else self._check_copies_apart(pairs, there)
        self.recorder.on_event(Hashing(pairs.count, pairs.bytes))
        copies = there.digests(pair.second for pair in pairs if pair.second is not None)
        own = here.digests(pair.first for pair in pairs)
        for pair, (entry, digest, unread), (_, copy, problem) in zip(pairs, own, copies, strict=True):
            self.recorder.on_event(Carried(entry.size))
            # a file of another machine that has the same numbers by chance only stays
            if is_same_file(*pair.entries, one_machine=True):
                self.recorder.fail(entry.path, _ITSELF)
            elif digest is None or copy is None:
                self.recorder.fail(entry.path, unread or problem or _UNREADABLE)
            elif digest != copy:
                self.recorder.record(
                    Failed(entry.path, "differs", f"the sha256 of the copy is {copy}, here {digest}")
                )
            else:
                yield checked.get(entry.path, entry), digest

    def _here(self, found: Entry, plan: RemovalPlan) -> Tree:
        """Return the files to drop; names that are no plain files, or on tape, are failures."""
        store = self.removal.store
        side = store if plan.folder else SingleTarget(store, found.path)
        tree = Tree(self._request.here, store.root_path, side, [store], single=not plan.folder)
        self._stack.callback(tree.close)
        for entry in plan.entries:
            problem = _unable(entry)
            if problem is not None:
                self.recorder.fail(entry.path, problem)
            elif entry.kind is Kind.FILE:
                tree.files.add(entry)
        return tree

    def _open_there(self, found: Entry) -> Tree:
        """Open the copy, a file for a file and a folder for a folder."""
        there = self._request.there
        if there.slash and found.kind is Kind.FILE:
            there = there.child(self._request.here.name)
        self._there = tree = open_tree(there, select_all, self.recorder.on_event, self._stack)
        self.recorder.append(source_line(there, tree.stores[-1].root_path, single=tree.single))
        if tree.single is not (found.kind is Kind.FILE):
            code, kind = ("not-a-folder", "a file") if tree.single else ("is-a-folder", "a folder")
            raise UsageError(
                code,
                f"the copy is {kind}, but {self._request.here.text} is not",
                subject=there.text,
                hint="" if tree.single else f"For the file in it: --at {there.text}/",
            )
        return tree

    def _check_apart(self, here: Tree, there: Tree) -> None:
        """Raise `RefusedError` if the copy is the local file or folder itself, as far as stores can tell."""
        own = self.removal.store.identities()
        if here.single:
            own = [child(one, self._request.here.name) for one in own]
        check_apart(own, there.stores[0].identities(), self._request.there)

    def _check_copies_apart(self, pairs: Pairs, there: Tree) -> Mapping[bytes, Entry]:
        """Raise `RefusedError` if a site without inodes shows a local folder; return the checked files, whose ctime is new.

        In each folder the copy of one file is read while the local file has another name. A new file would prove less: rclone, for
        example, shows a folder for five minutes as it was (`--dir-cache-time`).
        """
        store = self.removal.store
        assert isinstance(store, LocalStore)
        smallest: dict[bytes, Pair] = {}
        for pair in pairs:
            folder = pair.first.path.rpartition(b"/")[0]
            if pair.first.size and pair.second is not None and not pair.second.inode:
                smallest[folder] = min(smallest.get(folder, pair), pair, key=lambda each: each.first.size)
        checked = {}
        for entry, copy in (pair.entries for pair in smallest.values()):
            try:
                with store.set_aside(entry, _ASIDE):
                    [(_, digest, problem)] = there.digests([copy])
            except TryLaterError as lost:  # rclone ends the connection
                raise _not_apart(self._request.there, copy, lost.message) from None
            if digest is None:
                raise _not_apart(self._request.there, copy, (problem or _UNREADABLE).message)
            found = store.stat(entry.path)
            if found is not None and found._replace(ctime_ns=entry.ctime_ns) == entry:
                checked[entry.path] = found
        return checked

    def end(self, problem: BaseException | None) -> Receipt:
        """Write the receipt."""
        receipt = self.recorder.receipt
        if self._there is not None:
            receipt.bytes_sent += sum(store.wire_bytes for store in self._there.stores)
            receipt.logins += sum(store.logins for store in self._there.stores)
        return self.removal.end(problem)


_NAMES = {Kind.LINK: "symlink", Kind.SPECIAL: "device, FIFO or socket"}
_NO_COPY = Problem("missing", "the site has no file with this name")
_ITSELF = Problem("overlap", "it is the copy itself: the same file, e.g. in a folder that is mounted at both")
_UNREADABLE = Problem("unreadable", "it could not be read")
_KEPT = {
    Kind.LINK: Problem("is-a-symlink", "symlinks are not dropped"),
    Kind.SPECIAL: Problem("special-file", "devices, FIFOs and sockets are not dropped"),
}


def _not_apart(there: Location, copy: Entry, reason: str) -> RefusedError:
    return RefusedError(
        "overlap",
        f"while the local file had another name, its copy {printable(copy.path)} could not be read ({reason}):"
        " it may be the local file itself",
        subject=there.text,
        hint="Name a copy at another place, or if the site was interrupted, run the same command again. Nothing was removed.",
    )


def _unable(entry: Entry) -> Problem | None:
    """Return why an entry is never dropped, None for a plain file and for a folder, which stays without being named."""
    if entry.kind is Kind.FILE and entry.links > 1:
        return Problem("hard-linked", f"it has {entry.links} names, so removing this one would free nothing")
    if entry.kind is Kind.FILE and entry.offline:
        return Problem(
            "offline", "its content is not on disk here (on tape, in an archive, or the file is one hole)"
        )
    return _KEPT.get(entry.kind)
