"""A collection that Globus alone reaches, as a store: listed and adjusted by operations, read over HTTPS, filled by tasks."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NoReturn, cast
from urllib.parse import quote, urlsplit

from hibali.answers import MOST_ANSWER
from hibali.errors import HibaliError, IncompleteError, NotFoundError, RefusedError, UsageError
from hibali.events import Listener, ignore
from hibali.locations import Location
from hibali.sites import Site
from hibali.text import printable
from transfers.agent.identity import Identity
from transfers.entry import Entry, Kind, Proof
from transfers.globus.asking import Globus
from transfers.globus.bodies import label_of
from transfers.globus.listing import entry_of, list_below
from transfers.globus.paths import LINE_ENDS, below, identity_of_collection, path_in_collection
from transfers.globus.removing import Removing
from transfers.store import Facts, Item, Landed, Payload, Problem, Space, Unit, unsafe_component
from transfers.stores.s3_bulk import Got
from transfers.stores.s3_endpoint import check_endpoint
from transfers.stores.s3_reading import Reading
from transfers.stores.url_login import Login
from transfers.stores.url_web import Web

_AT_ONCE = 8
_Identities = list[Identity]  # inside the class `list` is a method
_PIECE = 8 * 1024 * 1024
_FACTS = Facts(
    kind="globus",
    proof_read=Proof.CLAIMED,
    proof_write=Proof.CLAIMED,
    links=False,
    modes=False,
    mtime_unit_ns=1_000_000_000,
    locks=False,
    swaps=False,
    utf8_names=True,
    refuses=LINE_ENDS,
    segment_bytes=_PIECE,
    least_segment_bytes=_PIECE,
)
_BY_TASKS = Problem(
    "only-by-globus", "content gets into a collection by Globus alone, and the source has no collection"
)


class GlobusStore:
    """The Store protocol over the operations of Globus Transfer (transfers.store.Store)."""

    logins = 0
    limited_by = None

    def __init__(self, site: Site, where: str, *, tell: Listener = ignore) -> None:
        """`where` is a path of the site. Raises `UsageError`, `AccessError` where nobody is logged in."""
        from transfers.globus.clients import open_access

        assert site.globus is not None
        root = path_in_collection(site, where)
        assert root is not None
        self.site = site
        self.root = root
        self.where = where.encode("utf-8", "surrogateescape")
        self.facts = _facts(https=site.globus.https)
        self.hashes = site.globus.https
        self._collection = site.globus.collection
        self._tell = tell
        self._access = open_access([site])
        self._globus = Globus(self._access.transfer(), site, tell=tell)
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="globus")
        self._web: Web | None = None
        self._read: list[Reading] = []

    @property
    def wire_bytes(self) -> int:
        """See Store."""
        return sum(reading.bytes for reading in self._read)

    def identities(self) -> _Identities:
        """See Identified."""
        return [identity_of_collection(self._collection, self.root)]

    def _path(self, path: bytes) -> str:
        """In the collection; raises `RefusedError` for one that could climb, or that Globus cannot be told (S1)."""
        reason = unsafe_component(path) if path else None
        try:
            found = below(self.root, path)
        except UnicodeDecodeError:
            found, reason = "", "it is not UTF-8"
        if reason:
            raise RefusedError(
                "unsafe-name", f"{printable(path)} cannot be a path: {reason}", about=self.site.name
            )
        return found

    def stat(self, path: bytes = b"") -> Entry | None:
        """See Store."""
        try:
            return entry_of(path, self._globus.stat(self._collection, self._path(path)))
        except NotFoundError:
            return None
        except IncompleteError as problem:
            if problem.code == "in-the-way":  # a file stands above it
                return None
            raise

    def list(self, *, shallow: bool = False) -> Iterator[Entry]:
        """See Store."""
        root = self.stat()
        if root is None:
            raise NotFoundError("no-such-place", "there is nothing there", about=self.site.name)
        if root.kind is Kind.FOLDER:
            yield from list_below(self._page, self.site.name, shallow=shallow)

    def _page(self, folder: bytes, offset: int, limit: int) -> dict[str, Any]:
        return self._globus.page(self._collection, self._path(folder), offset=offset, limit=limit)

    def read(self, units: Iterable[Unit]) -> Iterator[Payload]:
        """See Store: over HTTPS; folders and links are known without it."""
        asked: list[Unit] = []

        def tagged() -> Iterator[Unit]:
            for unit in units:
                asked.append(unit)
                items = [
                    replace(item, entry=item.entry._replace(etag=_tag(item.entry))) for item in unit.items
                ]
                yield replace(unit, items=tuple(items))

        for payload in self._reading().read(tagged()):
            payload.unit = asked.pop(0)
            yield payload

    def digest(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        """See Store: every file is read whole over HTTPS, where the site's settings allow that."""
        if not self.hashes:
            why = Problem(
                "cannot-hash", "without `https` in the site's globus table nothing can be read there"
            )
            return ((entry, None, why) for entry in entries)
        return self._reading().digest(entries, self._size_now, _PIECE)

    def _size_now(self, entry: Entry) -> int | None:
        found = self.stat(entry.path)
        return None if found is None else found.size

    def _reading(self) -> Reading:
        reading = Reading(cast("Any", self), self._pool, lambda path: path)
        self._read.append(reading)
        return reading

    def get(
        self,
        path: bytes,
        *,
        etag: str | None = None,
        offset: int = 0,
        length: int | None = None,
        most: int = MOST_ANSWER,
    ) -> Got:
        """Bytes of a file, as `Reading` asks for them; whoever names a tag is told whether the file still is what was listed."""
        self._path(path)
        got = self._https().get(path, offset=offset, length=length, most=most)
        if etag is None:
            return got
        found = self.stat(path)
        if found is None:
            raise NotFoundError("vanished", "there is nothing of that name", about=self.site.name)
        return Got(got.content, _tag(found), found.size)

    def _https(self) -> Web:
        """The collection's own server, asked with a token of its own. Raises `UsageError` where it has none."""
        if self._web is None:
            if not self.hashes:
                raise UsageError(
                    "globus-needs-both",
                    "what lies in a collection gets out of it by Globus alone, and the other end has no collection",
                    about=self.site.name,
                    hint=f"Name a place with a globus table, or let it be read over HTTPS: https = true in [sites.{self.site.name}.globus]",
                )
            server = str(self._globus.endpoint(self._collection).get("https_server") or "")
            if not server:
                raise UsageError(
                    "no-https",
                    "this collection has no HTTPS access",
                    about=self.site.name,
                    hint=f"Take `https` out of [sites.{self.site.name}.globus].",
                )
            parts = urlsplit(server)
            check_endpoint(f"{parts.scheme}://{parts.netloc}", self.site.name)
            root = self.root
            if root.startswith("/~"):
                page = self._globus.page(self._collection, root, offset=0, limit=1)
                root = str(page["absolute_path"])
            base = server.rstrip("/") + quote(root.rstrip("/"), safe="/-_.~") + "/"
            token = self._access.https_header(self._collection).removeprefix("Bearer ")
            self._web = Web(base, self.site.name, Login(token=token))
        return self._web

    def write(self, payloads: Iterable[Payload]) -> Generator[Landed, None, None]:
        """See Store: folders are made; files come by tasks of Globus, and not this way."""
        for payload in payloads:
            for position, item in enumerate(payload.unit.items):
                if payload.unit.last:
                    problem = payload.problems.get(position) or self._put(item)
                    yield Landed(
                        item, None, Proof.NONE if problem else self.facts.proof_write, problem=problem
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
        """One folder, which may stand there already."""
        try:
            self._globus.make_folder(self._collection, self._path(path))
        except HibaliError as problem:
            found = self.stat(path) if problem.code == "in-the-way" else None
            if found is None or found.kind is not Kind.FOLDER:
                raise

    def remove(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Problem | None]]:
        """See Store."""
        label = label_of("delete", self._collection)
        assert self.site.globus is not None
        removing = Removing(
            self._globus,
            self._collection,
            self.root,
            label,
            self._listed,
            self._tell,
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

    def keep(self, place: Location, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Problem | None]]:
        """See Store."""
        del place, entries
        self._refuse("nothing can be kept aside in a collection")

    def make_root(self) -> None:
        """See Store; those above it are made, too."""
        missing: list[str] = []
        path = self.root.rstrip("/")
        while path not in {"", "/~"} and not self._stands(path):
            missing.append(path)
            path = path.rpartition("/")[0]
        for folder in reversed(missing):
            self._globus.make_folder(self._collection, folder)

    def _stands(self, path: str) -> bool:
        try:
            self._globus.stat(self._collection, path)
        except NotFoundError:
            return False
        return True

    def lock(self, operation: str, *, make: bool = False) -> Any:
        """See Store: there is nothing to hold."""
        del operation, make
        self._refuse("a collection cannot be locked")

    def _refuse(self, words: str) -> NoReturn:
        raise RefusedError(
            "not-by-globus",
            words,
            about=self.site.name,
            hint="Where the site has ssh, name it as an ssh site with a globus table.",
        )

    def expect(self, size: int) -> None:
        """See Store: connections are opened as they are needed."""

    def begun(self, item: Item) -> int:
        """See Store."""
        del item
        return 0

    def space(self) -> Space:
        """See Store: Globus does not tell."""
        return Space(None, None)

    def close(self) -> None:
        """See Store."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._web is not None:
            self._web.close()
        self._access.close()


def _facts(*, https: bool) -> Facts:
    """What is written is read back where that is allowed; what is only read is hashed here as it comes."""
    return replace(_FACTS, proof_write=Proof.DIGEST, proof_read=Proof.SIZE) if https else _FACTS


def _tag(entry: Entry) -> str:
    """What tells one content of a file from another, as far as Globus does."""
    return f"{entry.size}-{entry.mtime_ns}"


def _joined(folder: bytes, name: bytes) -> bytes:
    return folder + b"/" + name if folder and name else folder or name
