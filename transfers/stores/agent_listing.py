"""Read the agent's listing; skip pages that are identical at both endpoints."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from transfers.agent import protocol
from transfers.agent.protocol import IS_FILE, IS_FOLDER, RECORD
from transfers.model.entry import HOLE_BYTES, Entry
from transfers.model.facts import unsafe_component
from transfers.model.store import Page, PagedListing, PlainPage
from transfers.model.units import ListingIncompleteError, problem_from
from transfers.remote.agent_host import entries_of, violation
from transfers.remote.connection import Connection


class AgentListing(PagedListing):
    """An agent's listing, as an iterator of entries.

    Iteration raises `IncompleteError` if the listing is malformed or its closing count is wrong,
    and at the end `ListingIncompleteError` if names could not be listed.
    """

    def __init__(
        self,
        replies: Iterator[protocol.Frame],
        connection: Connection,
        on_orphans: Callable[[list[bytes]], None],
    ) -> None:
        self._replies = replies
        self._connection = connection
        self._on_orphans = on_orphans
        self._pages: deque[Page] = deque()
        self._entries: Iterator[Entry] = iter(())
        self._remaining = 0  # remaining entries of the current page
        self._before = b""
        self._files: list[bytes] = []  # files of the plain pages taken last that are a prefix of `_before`
        self._count = 0
        self._over = False
        self._closing: dict[str, Any] = {}

    def __iter__(self) -> Iterator[Entry]:
        return self

    def __next__(self) -> Entry:
        while not self._remaining:
            page = self.page
            if page is None:
                self._close()
                raise StopIteration
            self._pages.popleft()
            self._entries, self._remaining = self._unpacked(page), page.names
        self._remaining -= 1
        return next(self._entries)

    @property
    def page(self) -> Page | None:
        """The page that starts with the next entry; None inside a page and at the end."""
        if self._remaining:
            return None
        while not self._pages and not self._over:
            frame = next(self._replies, None)
            if frame is None:
                self._over = True
            else:
                self._pages.extend(self._pages_of(frame))
                self._closing = frame.header
        return self._pages[0] if self._pages else None

    def skip_page(self) -> None:
        """Skip the next page; the order of its first entry is still checked."""
        page = self._pages.popleft()
        first = next(entries_of(page.packed, self._connection.subject))
        self._check(first)
        self._before = first.order  # an equal digest implies the order of the other entries
        self._count += page.names

    @property
    def next_order(self) -> bytes | None:
        """See PagedListing."""
        page = self.page
        if page is None:
            return None
        return next(entries_of(page.packed, self._connection.subject)).order

    def take_plain_page(self, plain: Callable[[bytes], object]) -> PlainPage | None:
        """See PagedListing."""
        files = self._files.copy()
        found = _plain_page(self._pages[0], self._before, files, plain)
        if found is None:
            return None
        page, self._before = found
        self._files = files
        self._pages.popleft()
        self._count += page.names
        return page

    def _pages_of(self, frame: protocol.Frame) -> list[Page]:
        found, at, body = [], 0, memoryview(bytes(frame.body))
        with self._connection.understanding():
            for names, files, size, length, digest in frame.header["pages"]:
                if int(names) < 1 or not 0 < int(length) <= len(body) - at:
                    raise ValueError("a page without names or bytes")
                found.append(Page(int(names), int(files), int(size), str(digest), body[at : at + length]))
                at += int(length)
            if at != len(body):
                raise ValueError("bytes outside of all pages")
        return found

    def _unpacked(self, page: Page) -> Iterator[Entry]:
        subject, count = self._connection.subject, 0
        for entry in entries_of(page.packed, subject):
            count += 1
            if count > page.names:
                break
            self._check(entry)
            self._before = entry.order
            # The agent omits the bare `.hibali/` folder, also from its count.
            self._count += 1
            yield entry
        if count != page.names:
            raise violation(subject, f"a page of {page.names} names held another number", b"")

    def _check(self, entry: Entry) -> None:
        reason = unsafe_component(entry.path)
        if reason or not self._before < entry.order:
            raise violation(self._connection.subject, reason or "the order is wrong", entry.path)
        if self._files and _is_below(entry.order, self._files):
            raise violation(self._connection.subject, "it is below a file", entry.path)

    def _close(self) -> None:
        subject, closing = self._connection.subject, self._closing
        if closing.get("count") != self._count:
            raise violation(
                subject, f"{self._count} names arrived, but {closing.get('count')} were announced", b""
            )
        with self._connection.understanding():
            self._on_orphans([protocol.bytes_of(text) for text in closing["orphans"]])
            problems = [(protocol.bytes_of(text), problem_from(found)) for text, found in closing["problems"]]
        if problems:
            raise ListingIncompleteError(subject, problems)


def _plain_page(
    page: Page, before: bytes, files: list[bytes], plain: Callable[[bytes], object]
) -> tuple[PlainPage, bytes] | None:
    """Return a page without making its entries, and the order of its last name; None if it is not plain.

    Args:
        page: the page.
        before: the order of the last name before it.
        files: files before it that are a prefix of `before`; those of the last name of the page afterwards.
        plain: whether a name can be held by the target.
    """
    packed, unpack, head = bytes(page.packed), RECORD.unpack_from, RECORD.size
    position = names = count = size = holes = 0
    try:
        while position < len(packed):
            path_length, link_length, more_length, kind, length, _, _, _, _, _, _, offline, allocated = (
                unpack(packed, position)
            )
            begin = position + head
            position = begin + path_length
            path = order = packed[begin:position]
            if kind == IS_FILE:
                count += 1
                size += length
                if allocated <= length - HOLE_BYTES:
                    holes += length - allocated
            elif kind == IS_FOLDER:
                order = path + b"/"
            else:
                return None
            names += 1
            if link_length or more_length or offline or length < 0:
                return None
            if not before < order or not plain(path):
                return None
            while files and not order.startswith(files[-1]):  # here, because a call takes longer
                files.pop()
            if files and _is_below(order, files):
                return None
            if kind == IS_FILE:
                files.append(path)
            before = order
    except struct.error:
        return None
    if names != page.names or position != len(packed):
        return None
    return PlainPage(names, count, size, holes, packed), before


def _is_below(order: bytes, files: list[bytes]) -> bool:
    """Return whether a name is below one of the files; drop files that cannot be above the names after it."""
    while files and not order.startswith(files[-1]):
        files.pop()
    return any(order.startswith(file + b"/") for file in files)


class BothSides:
    """Two listings to merge, which skip a page when it is next in both and identical.

    Each endpoint is iterated separately. Skipping identical pages does not change the result for other names.
    """

    def __init__(
        self, source: PagedListing, target: PagedListing, on_skipped: Callable[[Page], None]
    ) -> None:
        """`on_skipped` is called with every skipped page."""
        self._source = source
        self._target = target
        self._on_skipped = on_skipped

    def source(self) -> Iterator[Entry]:
        """Yield the source's entries that are not skipped."""
        return self._unskipped(self._source)

    def target(self) -> Iterator[Entry]:
        """Yield the target's entries that are not skipped."""
        return self._unskipped(self._target)

    def _unskipped(self, side: PagedListing) -> Iterator[Entry]:
        while True:
            self._skip_equal_pages()
            try:
                entry = next(side)
            except StopIteration:
                return
            yield entry

    def _skip_equal_pages(self) -> None:
        while (source_page := self._source.page) is not None and source_page.digest:
            target_page = self._target.page
            if target_page is None or target_page.digest != source_page.digest:
                return
            self._on_skipped(source_page)
            self._source.skip_page()
            self._target.skip_page()
