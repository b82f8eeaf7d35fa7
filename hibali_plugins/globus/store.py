"""Store files in a Globus collection: list with Transfer operations, read over HTTPS, write with tasks."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any
from urllib.parse import quote, urlsplit

from hibali.config.model import GLOBUS_DEADLINE_SECONDS, Site
from hibali.errors import HibaliError, IncompleteError, NotFoundError, RefusedError, UsageError
from hibali.events import Listener, ignore
from hibali.http.client import MAX_RESPONSE_BYTES
from hibali.http.login import Authorization
from hibali.text import printable
from hibali_plugins.globus.clients import open_access
from hibali_plugins.globus.errors import error_of, fault_of, with_details
from hibali_plugins.globus.paths import LINE_ENDS, below, delete_body, label_of
from hibali_plugins.globus.requests import Globus
from hibali_plugins.globus.submitter import Submitter
from hibali_plugins.globus.tasks import Following
from transfers.agent.identity import Identity
from transfers.engine.collections import identity_of_collection, path_in_collection
from transfers.model.entry import Entry, Kind, Verification
from transfers.model.facts import Facts, is_own_name, is_partial_name, unsafe_component
from transfers.model.store import read_renamed
from transfers.model.units import Committed, Item, ListingIncompleteError, Payload, Problem, Unit
from transfers.stores.s3.credentials import check_endpoint
from transfers.stores.server.listing import walk_tree
from transfers.stores.server.reading import Got, RequestStore
from transfers.stores.server.web import Web

MOST_NAMES = 100_000  # maximum for listing a folder in Globus
_PAGE = 10_000

Page = Callable[[bytes, int, int], dict[str, Any]]
_TOO_MANY = "folder-too-large"  # also the translation of Globus's own error
_NAMED = frozenset({"denied", "not-found", _TOO_MANY})
_Troubles = list[tuple[bytes, Problem]]


def list_below(get_page: Page, subject: str, *, shallow: bool = False) -> Iterator[Entry]:
    """Yield all entries below the root; `get_page` returns a page of a folder, given an offset and a maximum.

    Raises `ListingIncompleteError` at the end if folders could not be listed, and errors of `get_page` for the
    root.
    """
    problems: _Troubles = []

    def children(folder: bytes) -> list[Entry]:
        try:
            return _children(get_page, folder)
        except HibaliError as problem:
            if not folder or problem.code not in _NAMED:
                raise
            problems.append((folder, Problem(problem.code, problem.message)))
            return []

    yield from walk_tree(children, shallow=shallow)
    if problems:
        raise ListingIncompleteError(subject, problems)


def _children(get_page: Page, folder: bytes) -> list[Entry]:
    found: list[Entry] = []
    offset = 0
    while True:
        page = get_page(folder, offset, _PAGE)
        found += [entry for document in page["DATA"] if (entry := _child(folder, document)) is not None]
        offset += len(page["DATA"])
        total = int(page.get("total") or offset)
        if total > MOST_NAMES:
            raise IncompleteError(
                _TOO_MANY,
                f"Globus does not list folders with more than {MOST_NAMES} names",
                subject=printable(folder),
            )
        if offset >= total or not page["DATA"]:
            return sorted(found, key=lambda entry: entry.order)


def _child(folder: bytes, document: dict[str, Any]) -> Entry | None:
    name = str(document["name"]).encode("utf-8", "surrogateescape")
    path = folder + b"/" + name if folder else name
    return None if is_own_name(path) and not is_partial_name(path) else entry_of(path, document)


def entry_of(path: bytes, document: dict[str, Any]) -> Entry:
    """Convert a document of Globus to an entry; times are whole seconds, and links are not followed."""
    when = _time_of(str(document.get("last_modified") or ""))
    link = document.get("link_target")
    if link is not None:
        return Entry(path, Kind.LINK, link=str(link).encode("utf-8", "surrogateescape"))
    kind = {"dir": Kind.FOLDER, "file": Kind.FILE}.get(str(document["type"]), Kind.SPECIAL)
    size = int(document.get("size") or 0) if kind is Kind.FILE else 0
    return Entry(path, kind, size, when)


def _time_of(text: str) -> int:
    """Convert `2026-11-23 01:00:00+00:00` to nanoseconds since 1970; return 0 if it is invalid."""
    try:
        when = datetime.fromisoformat(text)
        aware = when if when.tzinfo else when.replace(tzinfo=UTC)
        return int(aware.timestamp()) * 1_000_000_000
    except (ValueError, OverflowError):  # the first and last day of the calendar in another time zone
        return 0


TASK_NAMES = 5_000
_NO_PROGRESS_SECONDS = 600.0  # seconds; the next plan repeats deletions that failed
_CHANGED = Problem("target-changed", "it changed after it was listed, so it was left unchanged")
_NOT_EMPTY = Problem(
    "folder-not-empty", "the folder contains entries that were not listed, so it was not removed"
)

Listed = Callable[[bytes], dict[bytes, Entry]]


class CollectionRemover:
    """Deletions below one folder of a collection. Each entry is checked again just before its deletion."""

    def __init__(
        self,
        globus: Globus,
        collection: str,
        root: str,
        label: str,
        listed: Listed,
        on_event: Listener,
        *,
        deadline_seconds: float = GLOBUS_DEADLINE_SECONDS,
    ) -> None:
        """`listed` returns a folder's current entries by path, or raises `NotFoundError`."""
        self._globus = globus
        self._collection = collection
        self._root = root
        self._label = label
        self._listed = listed
        self._on_event = on_event
        self._deadline_seconds = deadline_seconds

    def remove(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Problem | None]]:
        """See Store: remove files first, then the folders that are empty by then."""
        coming = iter(entries)
        while batch := list(islice(coming, TASK_NAMES)):
            files = [entry for entry in batch if entry.kind is not Kind.FOLDER]
            folders = [entry for entry in batch if entry.kind is Kind.FOLDER]
            results = {entry.path: problem for entry, problem in self._files(files)}
            results |= {entry.path: problem for entry, problem in self._folders(folders)}
            for entry in batch:
                yield entry, results[entry.path]

    def _files(self, entries: Sequence[Entry]) -> Iterator[tuple[Entry, Problem | None]]:
        existing = self._existing(entries)
        ready: list[Entry] = []
        for entry in entries:
            found = existing.get(entry.path)
            if found is None:
                yield entry, None
            elif _is_same(found, entry):
                ready.append(entry)
            else:
                yield entry, _CHANGED
        problem = self._delete(ready, recursive=False)
        remaining = self._existing(ready) if problem is not None else {}
        for entry in ready:
            yield entry, problem if entry.path in remaining else None

    def _folders(self, entries: Sequence[Entry]) -> Iterator[tuple[Entry, Problem | None]]:
        """Remove folders after listing each, deepest first: Globus deletes a folder with its contents."""
        ready: list[Entry] = []
        removed: set[bytes] = set()
        for entry in entries:
            try:
                inside = set(self._listed(entry.path))
            except NotFoundError:
                yield entry, None
                continue
            if inside <= removed:
                removed.add(entry.path)
                ready.append(entry)
            else:
                yield entry, _NOT_EMPTY
        tops = [entry for entry in ready if entry.path.rpartition(b"/")[0] not in removed]
        problem = self._delete(tops, recursive=True)
        for entry in ready:
            yield entry, problem

    def _existing(self, entries: Iterable[Entry]) -> dict[bytes, Entry]:
        found: dict[bytes, Entry] = {}
        for folder in {entry.path.rpartition(b"/")[0] for entry in entries}:
            try:
                found |= self._listed(folder)
            except NotFoundError:
                continue
        return found

    def _delete(self, entries: Sequence[Entry], *, recursive: bool) -> Problem | None:
        """Delete entries with one task; return its problem. A task without progress is cancelled."""
        if not entries:
            return None
        paths = [below(self._root, entry.path) for entry in entries]
        body = delete_body(
            self._collection,
            paths,
            submission=self._globus.submission(),
            label=self._label,
        )
        submitter = Submitter(self._globus, 0, _NO_PROGRESS_SECONDS, self._on_event)
        task = submitter.submit({**body, "recursive": recursive}, self._deadline_seconds)
        following = Following(self._globus, task, self._on_event, give_up_after=_NO_PROGRESS_SECONDS)
        end = following.until_over(on_interruption=lambda: self._globus.cancel(task))
        if not end.code:
            return None
        fault = fault_of(end.code)
        if not fault.of_item:
            raise error_of(end.code, f"{self._collection}:{self._root}", end.details)
        return Problem(fault.code, with_details(fault.message, end.details))


def _is_same(found: Entry, listed: Entry) -> bool:
    """Return whether an entry is unchanged since it was listed; an unknown time is not compared."""
    same = (found.kind, found.size) == (listed.kind, listed.size)
    return same and (not listed.mtime_ns or found.mtime_ns == listed.mtime_ns)


_THREADS = 8
_PIECE = 8 * 1024 * 1024
_FACTS = Facts(
    kind="globus",
    read_verification=Verification.CLAIMED,
    write_verification=Verification.CLAIMED,
    links=False,
    modes=False,
    mtime_unit_ns=1_000_000_000,
    locks=False,
    swaps=False,
    utf8_names=True,
    refuses=LINE_ENDS,
    hashes=False,
    globus=True,
    only_globus=True,
    segment_bytes=_PIECE,
    least_segment_bytes=_PIECE,
)
_BY_TASKS = Problem(
    "only-by-globus", "only Globus can write to this collection, and the source has no collection"
)


class GlobusStore(RequestStore):
    """A store over the operations of Globus Transfer."""

    def __init__(self, site: Site, root_path: str, *, on_event: Listener = ignore) -> None:
        """`root_path` is a path of the site. Raise `UsageError`, or `AccessError` without a login."""
        assert site.globus is not None
        root = path_in_collection(site, root_path)
        assert root is not None
        super().__init__(self.get, lambda path: path, threads=_THREADS, name="globus")
        self.site = site
        self.root = root
        self.root_path = root_path.encode("utf-8", "surrogateescape")
        self._facts = _facts(https=site.globus.https)
        self.collection = site.globus.collection
        self._on_event = on_event
        self._access = open_access([site])
        self.globus = Globus(self._access.transfer(), site, on_event=on_event)
        self._web: Web | None = None

    @property
    def facts(self) -> Facts:
        """See Store."""
        return self._facts

    def identities(self) -> Sequence[Identity]:
        """See Store."""
        return [identity_of_collection(self.collection, self.root)]

    def _path(self, path: bytes) -> str:
        """Return the path in the collection; raise `RefusedError` if it is unsafe or not UTF-8 (S1)."""
        reason = unsafe_component(path) if path else None
        try:
            found = below(self.root, path)
        except UnicodeDecodeError:
            found, reason = "", "it is not UTF-8"
        if reason:
            raise RefusedError(
                "unsafe-name", f"{printable(path)} cannot be a path: {reason}", subject=self.site.name
            )
        return found

    def stat(self, path: bytes = b"") -> Entry | None:
        """See Store."""
        try:
            return entry_of(path, self.globus.stat(self.collection, self._path(path)))
        except NotFoundError:
            return None
        except IncompleteError as problem:
            if problem.code == "in-the-way":  # a parent is a file
                return None
            raise

    def list(self, *, shallow: bool = False) -> Iterator[Entry]:
        """See Store."""
        root = self.stat()
        if root is None:
            raise NotFoundError("no-such-place", "it does not exist", subject=self.site.name)
        if root.kind is Kind.FOLDER:
            yield from list_below(self._page, self.site.name, shallow=shallow)

    def _page(self, folder: bytes, offset: int, limit: int) -> dict[str, Any]:
        return self.globus.page(self.collection, self._path(folder), offset=offset, limit=limit)

    def read(self, units: Iterable[Unit]) -> Iterator[Payload]:
        """See Store: read over HTTPS; folders and links need no request."""
        return read_renamed(super().read, units, lambda entry: entry._replace(etag=_tag(entry)))

    def digest(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        """See Store: read every file over HTTPS, if the site's settings allow it."""
        if not self._facts.hashes:
            why = Problem(
                "cannot-hash", "files cannot be read without `https = true` in the site's globus table"
            )
            return ((entry, None, why) for entry in entries)
        return super().digest(entries)

    def _size_now(self, entry: Entry) -> int | None:
        found = self.stat(entry.path)
        return None if found is None else found.size

    def get(
        self,
        path: bytes,
        *,
        etag: str | None = None,
        offset: int = 0,
        length: int | None = None,
        most: int = MAX_RESPONSE_BYTES,
    ) -> Got:
        """Return bytes of a file for `Reading`; with an `etag`, also query its current tag and size."""
        self._path(path)
        got = self._https().get(path, offset=offset, length=length, most=most)
        if etag is None:
            return got
        found = self.stat(path)
        if found is None:
            raise NotFoundError("vanished", "it does not exist", subject=self.site.name)
        return Got(got.content, _tag(found), found.size)

    def _https(self) -> Web:
        """Return the collection's HTTPS server with its own token. Raise `UsageError` if it has none."""
        if self._web is None:
            if not self._facts.hashes:
                raise UsageError(
                    "globus-needs-both",
                    "only Globus can read from this collection, and the target has no collection",
                    subject=self.site.name,
                    hint=f"Choose a target with a globus table, or allow reading over HTTPS: set https = true in [sites.{self.site.name}.globus]",
                )
            server = str(self.globus.endpoint(self.collection).get("https_server") or "")
            if not server:
                raise UsageError(
                    "no-https",
                    "this collection has no HTTPS access",
                    subject=self.site.name,
                    hint=f"Remove `https` from [sites.{self.site.name}.globus].",
                )
            parts = urlsplit(server)
            check_endpoint(f"{parts.scheme}://{parts.netloc}", self.site.name)
            root = self.root
            if root.startswith("/~"):
                page = self.globus.page(self.collection, root, offset=0, limit=1)
                root = str(page["absolute_path"])
            base = server.rstrip("/") + quote(root.rstrip("/"), safe="/-_.~") + "/"
            header = self._access.https_header(self.collection)
            self._web = Web(base, self.site.name, Authorization(lambda _: header))
        return self._web

    def write(self, payloads: Iterable[Payload]) -> Generator[Committed, None, None]:
        """See Store: create folders; only Globus tasks write files."""
        for payload in payloads:
            for position, item in enumerate(payload.unit.items):
                if payload.unit.last:
                    problem = payload.problems.get(position) or self._put(item)
                    yield Committed(
                        item,
                        None,
                        Verification.NONE if problem else self.facts.write_verification,
                        problem=problem,
                    )

    def _put(self, item: Item) -> Problem | None:
        if item.entry.kind is not Kind.FOLDER:
            return _BY_TASKS
        try:
            self._make(item.entry.path)
        except HibaliError as problem:
            return Problem(problem.code, problem.message)
        return None

    def _make(self, path: bytes) -> None:
        """Create one folder, unless it exists."""
        try:
            self.globus.make_folder(self.collection, self._path(path))
        except HibaliError as problem:
            found = self.stat(path) if problem.code == "in-the-way" else None
            if found is None or found.kind is not Kind.FOLDER:
                raise

    def remove(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Problem | None]]:
        """See Store."""
        label = label_of("delete", self.collection)
        assert self.site.globus is not None
        removing = CollectionRemover(
            self.globus,
            self.collection,
            self.root,
            label,
            self._listed,
            self._on_event,
            deadline_seconds=self.site.globus.deadline_seconds,
        )
        return removing.remove(entries)

    def _listed(self, folder: bytes) -> dict[bytes, Entry]:
        below_it = list_below(
            lambda path, offset, limit: self._page(_joined(folder, path), offset, limit),
            self.site.name,
            shallow=True,
        )
        return {_joined(folder, entry.path): entry for entry in below_it}

    def make_root(self) -> None:
        """See Store; parents are created, too."""
        missing: list[str] = []
        path = self.root.rstrip("/")
        while path not in {"", "/~"} and not self._exists(path):
            missing.append(path)
            path = path.rpartition("/")[0]
        for folder in reversed(missing):
            self.globus.make_folder(self.collection, folder)

    def _exists(self, path: str) -> bool:
        try:
            self.globus.stat(self.collection, path)
        except NotFoundError:
            return False
        return True

    def close(self) -> None:
        """See Store."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._web is not None:
            self._web.close()
        self._access.close()


def _facts(*, https: bool) -> Facts:
    """Return the facts; with HTTPS, written files are read back and read files are hashed here."""
    return (
        replace(
            _FACTS, hashes=True, write_verification=Verification.DIGEST, read_verification=Verification.SIZE
        )
        if https
        else _FACTS
    )


def _tag(entry: Entry) -> str:
    """Return a version tag from size and time, the only such data of Globus."""
    return f"{entry.size}-{entry.mtime_ns}"


def _joined(folder: bytes, name: bytes) -> bytes:
    return folder + b"/" + name if folder and name else folder or name
