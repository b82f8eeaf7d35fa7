"""Upload files to a data provider: each is copied by the portal, read back, and recorded in its description.

The portal has one userfile of each name, does not replace contents, and answers an upload without its id. So a name
that exists is adopted if its content is the same; else it is deleted first, if the plan replaces it. The same
holds for an upload whose answer was lost, which therefore never makes a second userfile.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Executor

from hibali.errors import RefusedError, TryLaterError
from hibali.http.client import Bytes
from hibali_plugins.cbrain.contents import Contents
from hibali_plugins.cbrain.described import Described, described, description_of, tag_of
from hibali_plugins.cbrain.names import guess_type
from hibali_plugins.cbrain.portal import Portal
from hibali_plugins.cbrain.records import DataProvider, Userfile
from transfers.model.entry import Verification
from transfers.model.units import Committed, Item, Problem
from transfers.stores.server.lease import NoLease
from transfers.stores.server.streaming import (
    EARLIER,
    Refused,
    StreamedFile,
    StreamingWriter,
    UploadAbandonedError,
    UploadRestartedError,
)

_MOST_JOBS = 4  # uploads at a time; a portal serves them from few processes
_ATTEMPTS = 3  # uploads of one small file
_CORRUPT = Problem("corrupt", "the stored file differs when it is read back", retryable=True)
_CHANGED = Problem(
    "target-changed", "it changed at the target after the plan was made, so it was not replaced"
)
_ANOTHER = Problem("exists", "the data provider has another file with this name, which was not replaced")
_COLLECTION = Problem("folder-in-the-way", "the data provider has a collection with this name")
_AGAIN = Problem("earlier-segment", "the earlier file was removed; this one is sent again", retryable=True)
_LOOKUP_SECONDS = 30.0  # until the userfile of an upload is in a listing

Target = Callable[[bytes], tuple[DataProvider, str]]  # returns the provider and the name of a path


class _Taken(Exception):  # noqa: N818  # on its way to the file that has the name
    """The portal has a userfile of this name."""

    def __init__(self, userfile: Userfile) -> None:
        super().__init__(userfile.name)
        self.userfile = userfile


class _Source(ABC):
    """The content of one file to upload."""

    item: Item

    @abstractmethod
    def pieces(self) -> Iterator[Bytes]:
        """Yield the content; `repeatable` tells whether that is possible again. Raise `Refused`."""

    @abstractmethod
    def digest(self) -> str:
        """Return the sha256; a stream is consumed for that. Raise `Refused`."""

    repeatable: bool


class _Small(_Source):
    """A file in memory, whose digest was checked."""

    repeatable = True

    def __init__(self, item: Item, content: memoryview, digest: str) -> None:
        self.item, self._content, self._digest = item, content, digest

    def pieces(self) -> Iterator[Bytes]:
        yield self._content

    def digest(self) -> str:
        return self._digest


class _Stream(_Source):
    """A file that arrives in segments, once."""

    repeatable = False

    def __init__(self, large: StreamedFile, stopped: Callable[[], bool]) -> None:
        self.item, self._large, self._stopped = large.item, large, stopped
        self.is_consumed = False

    def pieces(self) -> Iterator[Bytes]:
        if self.is_consumed:
            raise Refused(_AGAIN)
        self.is_consumed = True
        try:
            yield from self._large.pieces(self._stopped)
        except UploadAbandonedError:
            if self._large.restarted:
                raise UploadRestartedError from None
            raise Refused(self._large.problem or EARLIER) from None

    def digest(self) -> str:
        if not self.is_consumed:
            for _ in self.pieces():
                pass
        if self._large.digest is None:
            raise Refused(EARLIER)
        return self._large.digest


class PortalWriter(StreamingWriter):
    """The writer of userfiles."""

    cannot_store = Problem("unsupported-kind", "a data provider cannot store symlinks and special files")

    def __init__(self, portal: Portal, contents: Contents, pool: Executor, target: Target) -> None:
        super().__init__(NoLease(), pool, _MOST_JOBS)
        self._portal = portal
        self._contents = contents
        self._target = target

    def _make_folder(self, item: Item) -> None:
        self._fail(item, Problem("not-supported", "a data provider has no folders"))

    def _put_small(self, item: Item, content: memoryview, digest: str) -> None:
        self._store(_Small(item, content, digest))

    def _put_large(self, large: StreamedFile) -> None:
        self._store(_Stream(large, self._stopped))

    def _store(self, source: _Source) -> None:
        """Adopt or replace what has the name, or upload and verify a file; then record and report it."""
        item = source.item
        provider, name = self._target(item.entry.path)
        # A name that is not known to exist is uploaded at once: the portal tells if it does.
        known = self._portal.find(provider.id, name) if item.replaces is not None else None
        userfile = None if known is None else self._adopted(source, known)
        if userfile is None:
            try:
                userfile = self._uploaded(source, provider, name)
            except _Taken as taken:
                userfile = self._adopted(source, taken.userfile)
                if userfile is None:
                    raise Refused(_AGAIN) from None
        self._describe(source, userfile)
        self._jobs.report(Committed(item, source.digest(), Verification.DIGEST, tag_of(userfile)))

    def _adopted(self, source: _Source, known: Userfile) -> Userfile | None:
        """Return the userfile that has the same content; None after another one, which the plan replaces, was deleted."""
        item = source.item
        if known.is_collection:
            raise Refused(_COLLECTION)
        known = self._portal.copied(known)
        if known.size == item.entry.size and self._has(known, source):
            return known
        if item.replaces is None:
            raise Refused(_ANOTHER)
        if item.exact and item.replaces.etag != tag_of(known):
            raise Refused(_CHANGED)
        self._portal.delete(known)
        return None

    def _uploaded(self, source: _Source, provider: DataProvider, name: str) -> Userfile:
        """Upload a file and return its userfile when it is verified. Raise `_Taken` for a name that exists."""
        for attempts_left in reversed(range(_ATTEMPTS if source.repeatable else 1)):
            try:
                userfile, is_ours = self._sent(source, provider, name)
                break
            except TryLaterError as problem:
                if problem.transient and not source.repeatable:
                    raise Refused(Problem(problem.code, problem.message, retryable=True)) from None
                if not attempts_left or problem.code == "interrupted":
                    raise
        self._count(source.item.entry.size)
        userfile = self._portal.copied(userfile)
        if userfile.size == source.item.entry.size and self._has(userfile, source):
            return userfile
        if is_ours:
            self._portal.delete(userfile)
        raise Refused(_CORRUPT)

    def _sent(self, source: _Source, provider: DataProvider, name: str) -> tuple[Userfile, bool]:
        """Send a file once; return its userfile, and whether it is certainly the one that was sent.

        Raises `TryLaterError` if the portal does not have it, and `_Taken` for a name that exists.
        """
        try:
            self._portal.client.upload(
                name,
                source.pieces(),
                source.item.entry.size,
                provider_id=provider.id,
                group_id=self._portal.group_id(),
                file_type=self._portal.settings.type or guess_type(name),
            )
        except TryLaterError as problem:
            if problem.transient:  # the portal did not execute it
                raise
            found = self._portal.appeared(provider.id, name, self._settling)
            if found is None:
                raise
            return found, False
        except RefusedError:
            found = self._portal.find(provider.id, name)
            if found is None:
                raise
            raise _Taken(found) from None
        found = self._portal.appeared(provider.id, name, _LOOKUP_SECONDS)
        if found is None:
            raise TryLaterError(
                "not-copied-yet",
                "the portal accepted the upload, but does not list it",
                subject=name,
                hint="Run the same command again later; it finds the upload.",
                transient=False,
            )
        return found, True

    @property
    def _settling(self) -> float:
        """Seconds until the userfile of an upload appears whose answer was lost."""
        return min(self._portal.site.limits.settling_seconds, _LOOKUP_SECONDS)

    def _has(self, userfile: Userfile, source: _Source) -> bool:
        """Return whether a userfile has the content of the source; it is read back."""
        size = source.item.entry.size
        found = self._contents.digest(userfile, size)
        self._count(size)
        return found == (source.digest(), size)

    def _describe(self, source: _Source, userfile: Userfile) -> None:
        """Record digest and time in the description, and set a type that was given for this transfer."""
        entry, digest = source.item.entry, source.digest()
        wanted = Described(digest, entry.mtime_ns, entry.mode & 0o777 if entry.mode >= 0 else -1)
        if described(userfile) != wanted:
            text = description_of(entry, digest, userfile.description)
            self._portal.client.describe_userfile(userfile.id, text)
        given = self._portal.settings.type
        if given is not None and userfile.type != given:
            self._portal.client.retype_userfile(userfile.id, given)
