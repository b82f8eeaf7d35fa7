"""Copy and move within one site: renames, or verified copies after which the source is removed."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

from hibali.config.model import Site
from hibali.errors import Exit, IncompleteError, RefusedError, UsageError
from hibali.events import Event, Listener, Recorded, ignore
from hibali.locations import Location, check_writable
from hibali.text import counted, path_fields
from transfers.engine.operation import plan_only, synchronise
from transfers.engine.request import Request
from transfers.history.index import has_begun
from transfers.history.journal import Receipt, Recorder, source_line, target_line
from transfers.history.recorded_digests import recorded_digests
from transfers.model.entry import Entry, Kind, Verification
from transfers.model.rules import Rules
from transfers.model.store import Store
from transfers.planning.actions import Verb
from transfers.planning.planner import TransferPlan
from transfers.planning.protected_roots import check_read_only_roots, check_root_exists, is_whole
from transfers.remote.one_session import one_session
from transfers.remove import Removal, RemovalPlan, RemovalRequest, remove
from transfers.stores.open_store import open_beside, open_store


@dataclass(frozen=True, slots=True)
class MoveRequest:
    """A request to give `source` the name `target`; the roots of `sites` are never moved."""

    source: Location
    target: Location
    sites: tuple[Site, ...] = ()


def check_one_site(operation: str, source: Location, target: Location) -> None:
    """Raise `UsageError` unless both locations are at the same site; the hint has the command that copies."""
    local = source.typed_local, target.typed_local
    if not any(local) and source.site.name == target.site.name:
        return
    command = {(True, False): "push", (False, True): "pull"}.get(local, "sync")
    line = shlex.join(["hibali", command, source.text, target.text])
    raise UsageError(
        "two-sites",
        f"{operation} works within one site: SITE:PATH SITE:PATH",
        subject=target.text,
        hint=f"To copy between these: {line}",
    )


def copy_within(request: Request) -> Request:
    """Return the request with the bytes staying at its site."""
    site = request.source.site
    return replace(
        request,
        within_site=True,
        direct=site.kind == "ssh",
        via="globus" if site.kind == "globus" else "own",
    )


def plan_move(
    request: MoveRequest, show: Callable[[RemovalPlan, bool], None], on_event: Listener = ignore
) -> None:
    """List what `move` would move, without any change; `show` receives whether it would be a rename."""
    with ExitStack() as stack:
        renaming = _Renaming(request, on_event, stack)
        able = renaming.possible()
        if renaming.exists:
            _check_target_part(_copying(request, renaming.found))
        plan = renaming.removal.plan(renaming.found)
        show(plan, able)


def move(request: MoveRequest, on_event: Listener = ignore) -> list[Receipt]:
    """Rename, or where the store cannot, copy, verify and then remove the source.

    An existing target is refused, unless the ledger shows that the same move began before and everything there
    equals the source's file at the same name: this is what an interrupted move leaves, and the rest is then moved.

    Returns:
        The receipt of the rename; or of the copy, and if it is complete that of the removal.

    Raises:
        RefusedError: nothing was changed.
        TryLaterError: another operation holds a lock there.
        NotFoundError: the source does not exist.
        IncompleteError: everything was copied, but the source changed meanwhile and remains.
    """
    with one_session():
        return list(_rename_or_copy(request, on_event))


def _rename_or_copy(request: MoveRequest, on_event: Listener) -> Iterator[Receipt]:
    with ExitStack() as stack:
        renaming = _Renaming(request, on_event, stack)
        found = renaming.found
        if renaming.possible():
            yield renaming.run(stack)
            return
    copying = _copying(request, found)
    if renaming.exists:
        _check_target_part(copying)
    copied = synchronise(copying, on_event)
    yield copied
    if copied.exit is not Exit.DONE:
        return
    removal = RemovalRequest(request.source, recursive=True, sites=request.sites)
    try:
        yield remove(removal, lambda plan: _check_copied(copying, plan), on_event)
    except RefusedError as problem:  # but the copy was made
        raise IncompleteError(
            problem.code, problem.message, subject=problem.subject, hint=problem.hint
        ) from problem


class _Renaming:
    """The rename of one entry, checked like its removal."""

    def __init__(self, request: MoveRequest, on_event: Listener, stack: ExitStack) -> None:
        source = request.source
        recorder = Recorder("mv", source.text, request.target.text, on_event)
        self.removal = Removal(RemovalRequest(source, recursive=True, sites=request.sites), recorder, stack)
        self.found = self.removal.find()
        self._source = source
        self._target = _exact_target(request, self.found)
        self._new_path, self.exists = _check_target(self._target, self.store, on_event)
        if not self.exists:
            check_root_exists(self._target, self.store, open_store)
        if self.exists and not _has_begun(request):
            raise _exists(self._target)

    @property
    def store(self) -> Store:
        """The store of the entry."""
        return self.removal.store

    @property
    def _entry(self) -> Entry:
        """The entry as `Store.rename` names it."""
        return self.found._replace(path=b"") if self.found.kind is Kind.FOLDER else self.found

    def possible(self) -> bool:
        """Return whether the store can rename it to a name that does not exist."""
        if self.exists or not self.store.can(Store.rename):
            return False
        try:
            self.store.rename(self._entry, self._target)
        except RefusedError as problem:
            if problem.code == "overlap":  # stores name only their site
                raise _inside(self._target, problem.message) from None
            if problem.code != "other-filesystem":
                raise
            return False
        return True

    def run(self, stack: ExitStack) -> Receipt:
        """Rename it under its lock; return the receipt."""
        recorder = self.removal.recorder
        recorder.start(stack)
        try:
            self._rename(recorder)
        except BaseException as problem:
            self.removal.end(problem)
            raise
        return self.removal.end(None)

    def _rename(self, recorder: Recorder) -> None:
        lock, plan = self.removal.lock_and_plan(self.found)
        old, new = self._source, self._target
        old_root, new_root = self.store.root_path, self._new_path
        if not plan.folder:  # the records of one file are those of the folder around it
            old, new, new_root = old.parent, new.parent, new_root.rpartition(b"/")[0]
        known = list(self._records(old, old_root, plan))
        recorder.append(source_line(old, old_root))
        recorder.append(target_line(new, new_root), durable=True)
        self.store.rename(self._entry, self._target)
        for event in known:
            recorder.record(event)
        recorder.append(target_line(old, old_root))
        recorder.append({"kind": "deleted", **path_fields(self._entry.path), "entry": self.found.kind})
        if plan.folder:
            recorder.append({"kind": "empty"}, durable=True)
        recorder.receipt.files_moved, recorder.receipt.mover = plan.files, "rename"
        lock.release()

    def _records(self, old: Location, old_root: bytes, plan: RemovalPlan) -> Iterator[Event]:
        """Yield the recorded digests of files that did not change since, for their new names."""
        recorded, unit = recorded_digests(old, old_root), self.store.facts.mtime_unit_ns
        for entry in plan.entries:
            known = recorded.get(entry.path)
            if known is None or known.size != entry.size:
                continue
            if known.mtime_ns // unit != entry.mtime_ns // unit:
                continue
            path = entry.path if plan.folder else self._target.name
            yield Recorded(
                path,
                entry.size,
                known.digest,
                Verification.RECORDED,
                entry.mtime_ns,
                entry.mode,
                entry.etag,
                entry.inode,
            )


def _exact_target(request: MoveRequest, found: Entry) -> Location:
    """Return the new name: a file goes into a target with a slash, as in a transfer."""
    target = request.target
    if target.slash and found.kind is not Kind.FOLDER:
        return target.child(request.source.name)
    return target


def _check_target(target: Location, source: Store, on_event: Listener) -> tuple[bytes, bool]:
    """Return the new path as its store, which is at the site of `source`, knows it, and whether it exists.

    Raises `RefusedError` for a target that no move may have.
    """
    check_writable(target)
    if is_whole(target):
        raise _exists(target)
    if b".hibali" in target.raw.split(b"/"):
        raise RefusedError(
            "own-name", "hibali stores its locks and journals under this name", subject=target.text
        )
    with closing(open_beside(source, target.parent, on_event=on_event)) as above:
        if not above.facts.writable:
            raise RefusedError("read-only-site", "this site can only be read", subject=target.text)
        path = above.root_path.rstrip(b"/") + b"/" + target.name
        existing = above.stat(target.name)
        check_read_only_roots(target, path, above)
    return path, existing is not None


def _has_begun(request: MoveRequest) -> bool:
    """Return whether an earlier call moved the same, and may have been interrupted."""
    return has_begun("mv", request.source.text, request.target.text)


def _inside(target: Location, message: str) -> RefusedError:
    hint = "Choose another name. Nothing was changed."
    return RefusedError("overlap", message, subject=target.text, hint=hint)


def _exists(target: Location) -> RefusedError:
    return RefusedError(
        "target-exists",
        "a file or folder with that name already exists",
        subject=target.text,
        hint="Choose another name, or remove what exists. Nothing was changed.",
    )


def _copying(request: MoveRequest, found: Entry) -> Request:
    """Return the request of the copy, which keeps all that the site's stores can keep."""
    with closing(open_store(request.source)) as store:
        facts, attributes = store.facts, store.facts.attributes and store.include_attributes()
    rules = Rules(
        checksum=True,
        recall=True,
        modes="keep" if facts.modes else "execute",
        hard_links=facts.hard_links and found.kind is Kind.FOLDER,
        xattrs=attributes,
        keep_empty_folders=facts.folder_markers,
    )
    target = _exact_target(request, found)
    return copy_within(Request("mv", request.source, target, rules, exact=True))


def _check_target_part(copying: Request) -> None:
    """Raise `RefusedError` unless files that exist at the target equal the source's files at the same names.

    The target may have more: an interrupted move has removed these from the source.
    """

    def check(plan: TransferPlan) -> None:
        replaced = any(action.target is not None and action.verb is not Verb.LINK for action in plan.moves)
        if replaced or plan.conflicts:
            raise _exists(copying.target)

    plan_only(copying, check)


def _check_copied(copying: Request, removal: RemovalPlan) -> None:
    """Raise `IncompleteError` unless all that will be removed was copied and is unchanged.

    Entries that changed since they were listed are not removed.
    """
    for checksum in (False, True):
        rules = replace(copying.rules, checksum=checksum)
        plan = plan_only(replace(copying, rules=rules), lambda _: None)
        if not plan.changes and not plan.unlisted and plan.files == removal.files:
            return
    raise IncompleteError(
        "source-changed",
        f"everything was copied, but the source changed meanwhile: {counted(removal.files, 'file')} there,"
        f" {counted(plan.files_kept, 'file')} at the target. The source was not removed",
        subject=copying.source.text,
        hint="Run the same command again to move the rest.",
    )
