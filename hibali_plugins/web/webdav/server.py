"""Adapt a WebDAV server to the store of servers: by the properties, conditions and locks that it was found to have."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from hibali.errors import IncompleteError
from hibali.http.client import CONNECTIONS, Bytes
from hibali_plugins.web.webdav.files import DavFiles, date_of, header_seconds, known_value
from hibali_plugins.web.webdav.lock import DavLock, find_lock, remove_empty
from hibali_plugins.web.webdav.multistatus import KNOWN
from hibali_plugins.web.webdav.probe import (
    MODIFIED,
    TIME_HEADER,
    ServerSupport,
    facts_of,
    probe_server,
    recall,
    remember,
)
from transfers.model.entry import Entry, Verification
from transfers.model.facts import Facts
from transfers.model.units import Problem
from transfers.stores.server.files import Files, Put, Traits, Words
from transfers.stores.server.lease import Held, Lease
from transfers.stores.server.records import Found
from transfers.stores.server.streaming import Refused


class DavServer(DavFiles):
    """The files of one WebDAV server."""

    support: ServerSupport | None = None
    traits = Traits(
        "webdav",
        put=Put.RENAMED,
        threads=CONNECTIONS,
        words=Words("server", "a WebDAV server", "this server does not store modification times"),
        manifest=False,
        moves_exactly=True,
        copies=True,
        renames=True,
        tells_space=True,
        stores_late=True,
    )

    @property
    def _seen(self) -> ServerSupport:
        return self.support or ServerSupport()

    def recall(self, site: str) -> None:
        """See Files."""
        self.support = recall(site, self.client.origin, self.client.target(b""))

    def probe(self, site: str, root: bytes) -> None:
        """See Files."""
        self.support = probe_server(self, root)
        remember(site, self.client.origin, self.client.target(b""), self.support)

    def facts(self, root: bytes, read_verification: Verification, *, read_back: bool) -> Facts:
        """See Files."""
        del root
        facts = facts_of(self.support, read_verification, read_back=read_back)
        return replace(facts, complete=self.lists_all)

    def hold(self, root: bytes, operation: str, seconds: int) -> Lease:
        """See Files."""
        return DavLock(self, root, operation, seconds)

    def find_lock(self, folder: bytes) -> Held | None:
        """See Files."""
        return find_lock(self, folder)

    def make_root(self, path: bytes) -> None:
        """See Files."""
        parts = path.split(b"/") if path else []
        if self.stat(path) is None:
            for count in range(1, len(parts) + 1):
                self.make_folder(b"/".join(parts[:count]))

    def put_entry(self, path: bytes, content: Bytes, entry: Entry) -> None:
        """See Files."""
        self.put(path, content, self._time_headers(entry))
        self._set_time(path, entry)

    def send(
        self,
        path: bytes,
        pieces: Iterator[Bytes],
        entry: Entry,
        before_commit: Callable[[], None],
        part_folders: Sequence[bytes] = (),
    ) -> None:
        """See Files: `path` is a partial name, so nothing is checked before the last piece."""
        del before_commit, part_folders
        self.client.put(path, pieces, entry.size, self._time_headers(entry))
        self._set_time(path, entry)

    def copy_file(
        self, source: Files, path: bytes, to: bytes, entry: Entry, stopped: threading.Event
    ) -> bool:
        """See Files."""
        del source, stopped
        self.copy(path, to, entry.size)
        self._set_time(to, entry)
        return False

    def _time_headers(self, entry: Entry) -> dict[str, str]:
        """Return the headers of a PUT."""
        if self._seen.times != "header":
            return {}
        return {TIME_HEADER: str(header_seconds(entry.mtime_ns))}

    def _set_time(self, path: bytes, entry: Entry) -> None:
        """Set the time of a file where PUT does not; its tag may change with it."""
        if self._seen.times == "proppatch":
            self.set_property(path, MODIFIED, date_of(entry.mtime_ns))

    def describe(self, name: bytes, entry: Entry, digest: str, found: Found) -> Found:
        """See Files: MOVE keeps hibali's property."""
        is_set = bool(found.tag) and self._seen.properties
        if is_set and not self.set_property(name, KNOWN, known_value(entry, digest, found.tag)):
            raise Refused(Problem("no-property", "the server did not store its time and digest"))
        return found._replace(mtime_ns=entry.mtime_ns, digest=digest)

    def move_exactly(self, path: bytes, to: bytes, replaced: Found | None, found: Found) -> bool:
        """See Files."""
        headers = {}
        if replaced is not None and self._seen.if_tag and not replaced.tag.startswith("@"):
            headers = self._condition(to, replaced)
        status = self.send_move(path, to, headers, overwrite=replaced is not None)
        if status == 404 and found.folder:
            return False
        if status == 404 and self.digest(to, found.size)[0] != found.digest:
            # A repeated MOVE whose first response was lost finds no source.
            raise IncompleteError(
                "corrupt",
                "it disappeared before it was renamed to its final name",
                subject=self.subject,
                transient=True,
            )
        return status != 412

    def _condition(self, path: bytes, found: Found) -> dict[str, str]:
        return {"If": f'<{self.client.address(path)}> (["{found.tag}"])'}

    def rename(self, path: bytes, to: bytes, found: Found | None) -> bool:
        """See Files (RFC 4918, 9.9): MOVE fails if the new name exists."""
        conditional = found is not None and found.tag and not found.tag.startswith("@")
        headers = self._condition(path, found) if found and conditional and self._seen.if_tag else {}
        return self.send_move(path, to, headers, overwrite=False) not in {404, 412}

    def delete_unchanged(self, path: bytes, found: Found) -> bool:
        """See Files."""
        if self._seen.if_match and not found.tag.startswith("@"):
            if self.send_delete(path, {"If-Match": f'"{found.tag}"'}) != 412:
                return True
            current = self.stat(path)
            if current is None:
                return True
            # The file is unchanged: its tag is weak in its first second, which conditions reject.
            if current != found:
                return False
        self.delete(path)
        return True

    def remove_empty(self, path: bytes) -> Problem | None:
        """See Files."""
        return remove_empty(self, path, locks=self._seen.locks)
