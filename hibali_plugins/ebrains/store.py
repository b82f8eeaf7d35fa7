"""Store files as objects in a bucket of the EBRAINS data proxy, or read those of a dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from hibali.errors import HibaliError, NotFoundError, RefusedError
from hibali.events import Listener, ignore
from hibali.text import printable
from hibali_plugins.ebrains.objects import Objects, found_of
from hibali_plugins.ebrains.probe import (
    SEGMENT_BYTES,
    BucketSupport,
    facts_of,
    is_operation,
    probe_bucket,
    recall,
    remember,
)
from hibali_plugins.ebrains.requests import CONNECTIONS, DataProxy
from transfers.agent.protocol import LEASE_SECONDS
from transfers.model.entry import Entry, Kind, Verification
from transfers.model.facts import Facts, is_own_name, name_problem, unsafe_component
from transfers.model.units import Problem
from transfers.stores.server.files import Put, Support, Traits, Words
from transfers.stores.server.keys import Listed, Unlisted, in_order, is_folder_marker
from transfers.stores.server.lease import Held, Lease
from transfers.stores.server.locks import NAME as LOCK
from transfers.stores.server.locks import ConditionalLock, check_unheld, find_lock, is_lock
from transfers.stores.server.manifest import NAME as MANIFEST
from transfers.stores.server.own_files import below
from transfers.stores.server.probe import add_facts
from transfers.stores.server.store import ServerStore

_STATISTICS = b"stat"  # a GET of this key returns those of the bucket
_MANIFEST = b"/" + MANIFEST
_LONGEST_FACT = 200
# Requested before the target takes it: with what is in flight to an agent here, a kill costs at most 64 MiB.
_AHEAD_BYTES = 3 * SEGMENT_BYTES


class _ProxyLock(ConditionalLock):
    """The lock object of one prefix; each check takes two requests."""

    check_seconds = 5.0


class Bucket(Objects):
    """The files of one bucket or dataset, as they were probed."""

    support: BucketSupport | None = None
    traits = Traits(
        "ebrains",
        keys=True,
        put=Put.WHOLE,
        threads=CONNECTIONS,
        words=Words("service", "a bucket", "listings do not show new versions of objects at once"),
        flat=True,
        ahead_bytes=_AHEAD_BYTES,
        unrecorded=Verification.CLAIMED,
    )

    def recall(self, site: str) -> None:
        """See Files."""
        self.support = recall(site, self.address)

    def probe(self, site: str, root: bytes) -> None:
        """See Files."""
        self.support = probe_bucket(self, root)
        remember(site, self.address, self.support)

    def facts(self, root: bytes, read_verification: Verification, *, read_back: bool) -> Facts:
        """See Files."""
        settings = self.proxy.settings
        writable = settings.bucket is not None and settings.has_login
        return facts_of(self.support, root, read_verification, writable=writable, read_back=read_back)

    def hold(self, root: bytes, operation: str, seconds: int) -> Lease:
        """See Files."""
        return _ProxyLock(self, below(root, LOCK), operation, seconds)

    def find_lock(self, folder: bytes) -> Held | None:
        """See Files."""
        return find_lock(self, below(folder, LOCK))


class EbrainsStore(ServerStore):
    """A store over one bucket and prefix, or over one dataset, which is read-only.

    Folders exist only as parts of keys. Digests, times and modes come from `.hibali/manifest.jsonl`, and from
    this machine's cache; without them, an object's time is its upload time.
    """

    def __init__(
        self,
        proxy: DataProxy,
        site: str,
        root: bytes,
        *,
        slash: bool = False,
        exact: bool = False,
        on_event: Listener = ignore,
        lease: int = LEASE_SECONDS,
    ) -> None:
        """Set the fields; `root` has no outer slashes; `slash` prefers a folder to a file of that name.

        With `exact`, the root and every path is the key of an object, also if it cannot be a path.
        """
        self._objects = Bucket(proxy)
        self._proxy = proxy
        self._settings = proxy.settings
        self._exact = exact
        super().__init__(
            self._objects,
            site,
            root,
            slash=slash,
            read_back=proxy.settings.read_back,
            on_event=on_event,
            lease=lease,
        )
        self._locks_below: list[bytes] = []

    def add_facts(self, facts: dict[str, str | int | bool]) -> None:
        """Query the bucket or dataset, and add what `hibali sites check` shows."""
        if self._settings.bucket is None:
            self._objects.has_below(b"")
            facts["writable"] = False
            return
        found = self._proxy.record_of(self._proxy.api("GET", "/" + _STATISTICS.decode()))
        for name in ("objects_count", "bytes", "is_public", "role"):
            value = found.get(name)
            if isinstance(value, int | str):
                facts[name.replace("_", " ")] = (
                    printable(value[:_LONGEST_FACT]) if isinstance(value, str) else value
                )
        if self._settings.has_login:
            add_facts(self.probe(refresh=True), facts)
        else:
            facts["writable"] = False

    def _writable(self, *, refresh: bool = True) -> Support:
        """Return what the bucket supports, probed again if writing was denied earlier."""
        if self._settings.bucket is None:
            self._refuse("be written to")
        if not self._settings.has_login:
            raise RefusedError(
                "read-only-site",
                "this site has no login, so it is read-only",
                subject=self._subject,
                hint="Set the site's token_command: hibali config edit",
            )
        support = self.probe()
        if refresh and not support.writable:
            support = self.probe(refresh=True)
        if not support.writable:
            raise RefusedError(
                "read-only-site",
                "this account cannot write to the bucket",
                subject=self._subject,
                hint="Ask the owner of the collab for the role of an editor.",
            )
        return support

    def _path(self, path: bytes) -> bytes:
        """Return the key of a path. Raise `RefusedError` if the path could climb or is ambiguous (S1)."""
        return self._safe(path, None if self._exact else unsafe_component(path))

    def _target_path(self, path: bytes) -> bytes:
        """Return the key of a path to write, with the checks for names."""
        key = self._safe(path, name_problem(path, self.facts))
        if is_operation(key):
            self._safe(path, "the service takes it for an operation")
        return key

    def _safe(self, path: bytes, reason: str | None) -> bytes:
        key = below(self.root_path, path)
        if key == _STATISTICS:
            reason = "the service answers with the statistics of the bucket"
        if reason:
            raise RefusedError(
                "unsafe-name", f"{printable(path)} cannot be a key: {reason}", subject=self._subject
            )
        return key

    def stat(self, path: bytes = b"") -> Entry | None:
        """See Store. If a file and a folder share the name, return a file with content, or with `slash` the folder."""
        key = self._path(path) if path else self.root_path
        if not path and (self._slash or not key) and self._is_folder(key):
            return Entry(path, Kind.FOLDER)
        listed = self._objects.find(key) if key else None
        if listed is None:
            return Entry(path, Kind.FOLDER) if self._is_folder(key) and not self._exact else None
        if not (listed.size or self._exact) and self._is_folder(key):
            return self._hiding.folder(Entry(path, Kind.FOLDER), key)
        entry = self._records.one(path, found_of(listed))
        self._weaken(entry)
        return entry

    def _is_folder(self, key: bytes) -> bool:
        """Return whether there are objects below a key; the bucket itself may be empty."""
        return self._objects.has_below(key) or not key

    def list(self, *, shallow: bool = False) -> Iterator[Entry]:
        """See Store. Keys that cannot be safe paths, and recorded files that are missing, are reported at the end."""
        unlisted = Unlisted(self._subject, self._prefix())
        self._records.begin(shallow=shallow)
        self._locks_below = []
        # Sorting reads the whole listing before the first entry, so all nested manifests are known by then.
        ordered = in_order(self._listed(shallow=shallow), self._subject)
        first = next(ordered, None)
        if first is None:
            self._check_root()
        for listed in unlisted.data(ordered if first is None else chain((first,), ordered)):
            if listed.size < 0:
                yield Entry(listed.path.removesuffix(b"/"), Kind.FOLDER)
                continue
            entry = self._records.entry_of(listed.path, found_of(listed))
            self._weaken(entry)
            yield entry
        unlisted.add_missing(self._records.missing())
        self._records.close()
        unlisted.end()

    def _listed(self, *, shallow: bool) -> Iterator[Listed]:
        for page in self._objects.pages(self._prefix(), shallow=shallow):
            for listed in page:
                if listed.path.endswith(_MANIFEST):
                    self._records.nested.add(listed.path.removesuffix(_MANIFEST))
                elif is_lock(listed.path):
                    self._locks_below.append(self._prefix() + listed.path)
                yield listed

    def _prefix(self) -> bytes:
        return self.root_path + b"/" if self.root_path else b""

    def _check_root(self) -> None:
        """Raise `NotFoundError` after an empty listing, except for a file, a bucket or a created root."""
        if self.root_path and not self._made and self._objects.find(self.root_path) is None:
            raise NotFoundError("no-such-place", "it does not exist", subject=self._subject)

    def check_no_locks(self, *, itself: bool) -> None:
        """See Store; a prefix has no symlinks."""
        del itself
        check_unheld(self._objects, self.root_path, self._locks_below)

    def remove_own_files(self) -> Sequence[tuple[bytes, Problem]]:
        """See Store; `remove_root` removes these files."""
        return []

    def remove_root(self) -> Problem | None:
        """See Store."""
        self._holder.check(now=True)
        self._holder.release()
        left = [
            listed
            for page in self._objects.pages(self._prefix())
            for listed in page
            if not is_folder_marker(listed)
        ]
        if not all(is_own_name(listed.path) for listed in left):
            return Problem("folder-not-empty", "new objects were added meanwhile, and were not removed")
        try:
            for listed in left:
                key = self._prefix() + listed.path
                found = find_lock(self._objects, key) if is_lock(listed.path) else None
                if found is not None and not found.free:
                    return Problem("locked", "another operation holds the lock")
                self._objects.delete(key)
        except HibaliError as problem:
            return Problem(problem.code, problem.message)
        return None

    def make_root(self) -> None:
        """See Store: probe the bucket; prefixes need no creation, and buckets are never created."""
        self._writable()
        self._made = True
