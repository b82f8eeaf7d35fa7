"""Share places with people: count what a share concerns, give it, prove it as the other person, and take it away again.

Every share is recorded on this machine, so that `ended_shares` can be removed by a schedule: most servers do not
know of an end.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from hibali.config.settings import Settings
from hibali.errors import HibaliError, IncompleteError, NotFoundError, RefusedError, TryLaterError
from hibali.events import Listener
from hibali.ledger import Journal, ledger_folder, now, read_records
from hibali.locations import Location, check_writable, listing_hint, read_location
from hibali.plugins import find
from hibali.retry import wait_unless_interrupted
from hibali.text import counted
from transfers.history.journal import Recorder
from transfers.model.entry import Entry, Kind
from transfers.model.sharing import Grant, ListedGrant, OtherView, Permission, Reach, Sharing
from transfers.model.store import Store, StoreView
from transfers.planning.protected_roots import check_read_only_roots
from transfers.single_files import contents
from transfers.stores.open_store import open_store

_PROOF_SECONDS = 5  # a server may need seconds until a change is in effect
_PROOF_BYTES = 65536


@dataclass(frozen=True, slots=True)
class Share:
    """A recorded share. `proven` is whether the other person could read it, None if nobody tried."""

    place: str
    grant: Grant
    proven: bool | None
    removed: bool = False

    @property
    def ended(self) -> bool:
        """Whether its time is over; it may still have to be removed."""
        return self.grant.until is not None and self.grant.until <= datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a change of access reached, and whether it was proven; None if nobody tried."""

    grant: Grant
    reach: Reach
    proven: bool | None


class _Opened:
    """The open store of a place that is shared; what is removed may be gone already."""

    def __init__(
        self, location: Location, stack: ExitStack, on_event: Listener, *, must_exist: bool = True
    ) -> None:
        self.location = location
        self.store: Store = stack.enter_context(closing(open_store(location, on_event=on_event)))
        open_sharing = _sharing_at(self.store)
        if open_sharing is None:
            raise RefusedError(
                "no-shares",
                f"hibali cannot give others access to files at {location.site.name}",
                subject=location.text,
                hint="It can for folders of this machine, ssh sites with python3, S3 buckets, guest collections of Globus and CBRAIN portals.",
            )
        found = self.store.stat()
        if found is None and not must_exist:
            found = Entry(b"", Kind.FOLDER)
        if found is None:
            message = "no file or folder with that name exists"
            hint = listing_hint(location.text)
            raise NotFoundError("no-such-place", message, subject=location.text, hint=hint)
        if found.kind not in {Kind.FILE, Kind.FOLDER}:
            raise RefusedError("not-shared", "only files and folders are shared", subject=location.text)
        self.entry: Entry = found
        self.sharing: Sharing = open_sharing(self.store)

    def check_changeable(self) -> None:
        """Raise `RefusedError` if the place is in a read-only root: its permissions are changed."""
        check_writable(self.location)
        check_read_only_roots(self.location, self.store.root_path, self.store)


def plan_share(location: Location, grant: Grant, on_event: Listener) -> Outcome:
    """Return what a share would concern; nothing is changed.

    Raises:
        NotFoundError: There is no such place.
        RefusedError: The site or the name cannot be shared, or is read-only.
        UsageError: `grant.who` cannot be a person there.
    """
    with ExitStack() as stack:
        opened = _Opened(location, stack, on_event)
        opened.check_changeable()
        grant = replace(grant, who=opened.sharing.person(grant.who))
        return Outcome(grant, opened.sharing.plan(opened.entry, grant), None)


def add_share(location: Location, grant: Grant, other: Location | None, on_event: Listener) -> Outcome:
    """Share a place, record that, and read a file of it as the other person.

    Args:
        location: The file or folder.
        grant: Who may do what; the name is completed as the site wants it.
        other: The same place, at a site with the login of the other person; None if there is none.
        on_event: Gets notes.

    Raises:
        HibaliError: As `plan_share`; or the server failed.
    """
    with ExitStack() as stack:
        opened = _Opened(location, stack, on_event)
        opened.check_changeable()
        grant = replace(grant, who=opened.sharing.person(grant.who))
        recorder = Recorder("share", location.text, grant.who, on_event)
        recorder.start(stack)
        try:
            # Recorded before it is done, so that a killed call leaves nothing that is never ended.
            _record(location, grant)
            reach = opened.sharing.add(opened.entry, grant)
            proven = None if other is None else _prove(location, opened.entry, other, on_event, readable=True)
            if proven is not None:
                _record(location, grant, proven=proven)
        except BaseException as problem:
            recorder.end(problem)
            raise
        _end(recorder, reach)
        return Outcome(grant, reach, proven)


def remove_share(location: Location, who: str, other: Location | None, on_event: Listener) -> Outcome:
    """Take away what `add_share` gave, and try to read a file as the other person. Arguments: see `add_share`."""
    with ExitStack() as stack:
        opened = _Opened(location, stack, on_event, must_exist=False)
        opened.check_changeable()
        grant = Grant(opened.sharing.person(who), Permission.READ)
        recorder = Recorder("unshare", location.text, grant.who, on_event)
        recorder.start(stack)
        try:
            reach = _remove(opened, grant.who)
            if not reach.failures:
                _record(location, grant, removed=True)
            proven = (
                None if other is None else _prove(location, opened.entry, other, on_event, readable=False)
            )
        except BaseException as problem:
            recorder.end(problem)
            raise
        _end(recorder, reach)
        return Outcome(grant, reach, proven)


def other_place(text: str, location: Location, settings: Settings) -> Location:
    """Return a place as another person sees it; `text` is that place, or only a site, where it has the same path."""
    if ":" not in text and not text.startswith(("/", ".")):
        text = f"{text}:{location.text.partition(':')[2] if ':' in location.text else location.path}"
    return read_location(text, settings)


def check_changed(location: Location, reach: Reach) -> None:
    """Raise `IncompleteError` if the access to some entries could not be changed."""
    if reach.failures:
        raise IncompleteError(
            "access-not-changed",
            f"the access to {counted(reach.failures, 'entry', 'entries')} could not be changed",
            subject=location.text,
            hint="Only the owner of a file can share it.",
        )


def _remove(opened: _Opened, who: str) -> Reach:
    """Remove a share; a file or folder that is gone has none any more."""
    try:
        return opened.sharing.remove(opened.entry, who)
    except NotFoundError as problem:
        if problem.code != "vanished":
            raise
        return Reach(0, 0, 0)


def people_of(location: Location, on_event: Listener) -> list[ListedGrant]:
    """Return who has access to a place, according to its server."""
    with ExitStack() as stack:
        opened = _Opened(location, stack, on_event)
        return opened.sharing.people(opened.entry)


def _end(recorder: Recorder, reach: Reach) -> None:
    receipt = recorder.receipt
    receipt.files, receipt.bytes, receipt.files_failed = reach.files, reach.size, reach.failures
    recorder.end(None)


def _prove(location: Location, entry: Entry, other: Location, on_event: Listener, *, readable: bool) -> bool:
    """Return whether the other person can list the place and read a file of it, or can do neither if it should not be `readable`."""
    path = _sample(location, entry, on_event)
    deadline = time.monotonic() + _PROOF_SECONDS
    while True:
        tried = [_can_list(other, on_event)] if entry.kind is Kind.FOLDER else []
        if path or entry.kind is Kind.FILE:
            tried.append(_can_read(_below(location, path), other, path, on_event))
        if all(found is readable for found in tried):
            return True
        if time.monotonic() > deadline:
            return False
        wait_unless_interrupted(0.5)


def _sample(location: Location, entry: Entry, on_event: Listener) -> bytes:
    """Return the path of a file of the place that is not empty, or else of any; b"" is the place itself."""
    if entry.kind is Kind.FILE:
        return b""
    empty = b""
    with closing(open_store(location, on_event=on_event)) as store:
        for each in store.list():
            if each.kind is Kind.FILE and not each.offline:
                if each.size:
                    return each.path
                empty = empty or each.path
    return empty


def _below(location: Location, path: bytes) -> Location:
    for name in path.split(b"/") if path else ():
        location = location.child(name)
    return location


def _can_list(other: Location, on_event: Listener) -> bool:
    """Return whether the other person gets the beginning of a listing."""
    try:
        with closing(open_store(other, on_event=on_event)) as store:
            view = _view_of(store)
            if view is not None:
                view.list_one()
            else:
                next(iter(store.list()), None)
    except TryLaterError:
        raise
    except HibaliError:
        return False
    return True


def _can_read(own: Location, other: Location, path: bytes, on_event: Listener) -> bool:
    """Return whether the other person gets the same beginning of a file at a path below `other`."""
    try:
        with closing(open_store(other, on_event=on_event)) as store:
            view = _view_of(store)
            seen = None if view is None else view.beginning(path, _PROOF_BYTES)
        if seen is None:
            seen = _beginning(_below(other, path), on_event)
        return seen == _beginning(own, on_event)
    except TryLaterError:
        raise
    except HibaliError:
        return False


def _view_of(store: Store) -> OtherView | None:
    open_sharing = _sharing_at(store)
    return None if open_sharing is None else open_sharing(store).view()


def _sharing_at(store: Store) -> Callable[[Store], Sharing] | None:
    """Return what opens the access of other people to a store of this kind; None if it cannot be shared."""
    found: Callable[[Store], Sharing] | None = (
        None if isinstance(store, StoreView) else find("hibali.sharing", store.facts.kind)
    )
    return found


def _beginning(location: Location, on_event: Listener) -> bytes:
    found = bytearray()
    with closing(contents(location, on_event=on_event)) as pieces:
        for piece in pieces:
            found += piece
            if len(found) >= _PROOF_BYTES:
                break
    return bytes(found[:_PROOF_BYTES])


def _record(location: Location, grant: Grant, *, proven: bool | None = None, removed: bool = False) -> None:
    place = location.path if location.typed_local else location.text  # for a schedule, in any folder
    name = hashlib.sha256(f"{grant.who}\0{place}".encode("utf-8", "surrogateescape")).hexdigest()[:32]
    journal = Journal(ledger_folder("shares") / f"{name}.jsonl")
    try:
        record = {"place": place, "at": now(), **grant.to_record(), "proven": proven, "removed": removed}
        journal.append(record, durable=True)
    finally:
        journal.close()


def read_shares(*, removed: bool = False) -> Iterator[Share]:
    """Yield the shares that this machine gave and did not remove, by place; with `removed` also the others."""
    shares = []
    for path in ledger_folder("shares").glob("*.jsonl"):
        last = deque(read_records(path), maxlen=1)
        shares += [_share_of(each) for each in last]
    for share in sorted(shares, key=lambda share: (share.place, share.grant.who)):
        if removed or not share.removed:
            yield share


def _share_of(record: Mapping[str, Any]) -> Share:
    until = None if record["until"] is None else datetime.fromisoformat(record["until"])
    grant = Grant(str(record["who"]), Permission(record["permission"]), until)
    return Share(str(record["place"]), grant, record["proven"], bool(record["removed"]))


def ended_shares() -> list[Share]:
    """Return the shares whose time is over and that still have to be removed."""
    return [share for share in read_shares() if share.ended]
