"""A folder at a site or a prefix of an object store as a remote of the catalogue: `NAME/VERSION/...`, the descriptor last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from hibali.errors import RefusedError, TryLaterError, UsageError
from hibali.events import Listener, ignore
from hibali.locations import Location, check_writable
from registry.remote import (
    LARGEST_FILE,
    Offer,
    Parcel,
    Reference,
    gather,
)
from registry.shelf import DESCRIPTOR
from registry.standing import check_standing
from transfers.entry import Entry
from transfers.small_files import SmallFiles, content_mark, open_small_files

_MOST_BYTES = 1024 * 1024 * 1024  # of contents at once; all of them are judged before any is kept
_MOST_FILES = 1_000_000
_REPOSITORY = {b"HEAD", b"config"}  # what every bare git repository has, and no catalogue


class PlaceRemote:
    """The Remote protocol (registry.remote.Remote). It has no history: what was there before is known by pins alone."""

    def __init__(self, location: Location, *, tell: Listener = ignore) -> None:
        self._location = location
        self._tell = tell
        self._files: SmallFiles | None = None

    def look(self, *, accept_rewritten: bool = False, make: bool = False) -> PlaceLook:
        """See Remote; connects the first time."""
        del accept_rewritten, make
        if self._files is None:
            self._files = open_small_files(self._location, tell=self._tell)
        return PlaceLook(self._files, self._location)

    def close(self) -> None:
        """Let go of the connection; safe to call twice."""
        if self._files is not None:
            self._files.close()
            self._files = None


class PlaceLook:
    """The Look protocol. Others may write there: what no catalogue would have written is passed over.

    A version is offered from the moment its descriptor stands, which is made when all beside it stands.
    """

    def __init__(self, files: SmallFiles, location: Location) -> None:
        self._files = files
        self._location = location
        self._entries: dict[str, Entry] = {}

    def offers(self) -> Mapping[Reference, Offer]:
        """See Look; one listing."""
        return gather(self._listed(), self._location.text)

    def _listed(self) -> Iterator[tuple[str, str]]:
        seen: set[bytes] = set()
        for entry in self._files.list():
            if entry.path in _REPOSITORY:
                seen.add(entry.path)
            if entry.size <= LARGEST_FILE and entry.path.isascii() and entry.path[:1] != b".":
                path = entry.path.decode("ascii")
                content = f"{content_mark(entry)}|{path}"
                self._entries[content] = entry
                if len(self._entries) > _MOST_FILES:
                    raise RefusedError(
                        "too-many", f"more than {_MOST_FILES} files", about=self._location.text
                    )
                yield path, content
        if seen == _REPOSITORY:
            raise UsageError(
                "git-repository",
                "a git repository lies there, which is reached as git does it",
                about=self._location.text,
                hint="Name it by its git URL: hibali pipelines remotes add NAME ssh://HOST/PATH --replace",
            )

    def read(self, wanted: Sequence[str]) -> Iterable[bytes]:
        """See Look."""
        entries = [self._entries[content] for content in wanted]
        if sum(entry.size for entry in entries) > _MOST_BYTES:
            raise RefusedError(
                "too-large",
                f"the descriptors asked for have more than {_MOST_BYTES} bytes",
                about=self._location.text,
                hint="Fetch by name: hibali pipelines fetch NAME --from REMOTE",
            )
        return self._files.read(entries)

    def publish(self, parcels: Sequence[Parcel], message: str) -> bool:
        """See Look. Killed in the middle, the same parcels again complete it."""
        del message
        check_writable(self._location)
        descriptors = {path: raw for path, name, raw in _contents(parcels) if name == DESCRIPTOR}
        beside = {path: raw for path, name, raw in _contents(parcels) if name != DESCRIPTOR}
        try:
            with self._files.writing():
                standing = self._files.create(beside)
                for parcel in parcels:
                    for name in parcel.files:
                        if _path(parcel, name) in standing:
                            there = standing[_path(parcel, name)]
                            check_standing(parcel, name, there, self._location.text)
                return not self._files.create(descriptors)
        except TryLaterError as problem:
            if problem.code != "locked":
                raise
            return False


def _contents(parcels: Iterable[Parcel]) -> Iterator[tuple[bytes, str, bytes]]:
    for parcel in parcels:
        for name, content in parcel.files.items():
            yield _path(parcel, name), name, content


def _path(parcel: Parcel, name: str) -> bytes:
    return f"{parcel.name}/{parcel.version}/{name}".encode("ascii")
