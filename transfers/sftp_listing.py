"""Listing a tree over SFTP in the canonical order, many folders ahead."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from hibali.errors import IncompleteError
from hibali.text import printable
from transfers import sftp_wire as wire
from transfers.agent import own_names
from transfers.entry import Entry, Kind
from transfers.sftp_beneath import Beneath
from transfers.sftp_channel import StatusError
from transfers.sftp_client import Client, entry_of, kind_of, listed_names, problem_of
from transfers.sftp_own import Own
from transfers.store import Problem

_FOLDERS_AHEAD = 32
_THREADS = 8

_Found = tuple[list[Entry], list[tuple[bytes, Problem]]]


class Listing:
    """One walk: iterate it, then look at `problems` and `orphans`."""

    def __init__(self, client: Client, beneath: Beneath, own: Own, *, shallow: bool = False) -> None:
        self._client = client
        self._beneath = beneath
        self._own = own
        self._shallow = shallow
        self._seeds: list[bytes] = []
        self._ahead: dict[bytes, Future[_Found]] = {}
        self.problems: list[tuple[bytes, Problem]] = []
        self.orphans: list[bytes] = []
        self.places: list[bytes] = []  # folders below that were targets by themselves

    def __iter__(self) -> Iterator[Entry]:
        """Entries by the bytes of the whole path, a folder's with a slash behind it."""
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="list")
        try:
            stack = [iter(self._children(b""))]
            while stack:
                entry = next(stack[-1], None)
                if entry is None:
                    stack.pop()
                    continue
                if entry.path.rpartition(b"/")[2] != own_names.FOLDER or entry.kind is not Kind.FOLDER:
                    yield entry
                if entry.kind is Kind.FOLDER and not self._shallow:
                    stack.append(iter(self._children(entry.path)))
        finally:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _children(self, folder: bytes) -> list[Entry]:
        """What one folder holds, sorted, without names of our own; the folders in it are asked ahead."""
        asked = self._ahead.pop(folder, None)
        found, problems = asked.result() if asked is not None else self._look(folder)
        self.problems += problems
        if any(entry.path.rpartition(b"/")[2] == own_names.FOLDER for entry in found):
            self._seeds += self._own.seeds(folder)
            if folder:
                self.places.append(folder)
        kept = [entry for entry in found if not self._is_own(folder, entry.path)]
        kept.sort(key=lambda entry: entry.order)
        if not self._shallow:
            for entry in kept:
                if len(self._ahead) >= _FOLDERS_AHEAD:
                    break
                if entry.kind is Kind.FOLDER:
                    self._ahead[entry.path] = self._pool.submit(self._look, entry.path)
        return kept

    def _is_own(self, folder: bytes, path: bytes) -> bool:
        name = path.rpartition(b"/")[2]
        inside_own = folder.rpartition(b"/")[2] == own_names.FOLDER
        if inside_own and (name in own_names.OWN or own_names.is_lock_part(name)):
            return True
        if own_names.has_partial_shape(name) and any(
            own_names.is_partial_of(seed, name) for seed in self._seeds
        ):
            self.orphans.append(path)
            return True
        return False

    def _look(self, folder: bytes) -> _Found:
        """The names in one folder; runs in threads of the pool."""
        try:
            listed = listed_names(self._client, self._beneath.full(folder).rstrip(b"/") or b"/")
        except StatusError as problem:
            if problem.code == wire.NO_SUCH_FILE and folder:
                return [], []  # vanished meanwhile: it is not there, which is what a listing says
            return [], [(folder, problem_of(problem))]
        seen: set[bytes] = set()
        for one in listed:
            if not one.name or b"/" in one.name or b"\0" in one.name or one.name in seen:
                raise self._violation(folder, one.name)
            seen.add(one.name)
        prefix = folder + b"/" if folder else b""
        entries = [entry_of(prefix + one.name, one.attributes) for one in listed]
        # Some servers tell a link's target or nothing at all: what is no plain file or folder is looked at.
        plain = [entry for entry in entries if entry.kind in {Kind.FILE, Kind.FOLDER}]
        other = [entry.path for entry in entries if entry.kind not in {Kind.FILE, Kind.FOLDER}]
        looked, problems = self._look_again(other)
        return plain + looked, problems

    def _look_again(self, paths: list[bytes]) -> _Found:
        client, full = self._client, self._beneath.full
        asked = [(path, client.ask_stat(full(path)), client.ask_readlink(full(path))) for path in paths]
        found: list[Entry] = []
        problems: list[tuple[bytes, Problem]] = []
        for path, looked, pointed in asked:
            try:
                attributes = client.attributes_of(looked)
                link = b""
                if kind_of(attributes) is Kind.LINK:
                    (named,) = client.names_of(pointed)
                    link = named.name
                found.append(entry_of(path, attributes, link))
            except StatusError as problem:
                if problem.code != wire.NO_SUCH_FILE:
                    problems.append((path, problem_of(problem)))
            except ValueError:
                problems.append((path, Problem("failed", "the SFTP server told no target of a link")))
        return found, problems

    def _violation(self, folder: bytes, name: bytes) -> IncompleteError:
        return IncompleteError(
            "listing-violation",
            f"the listing cannot be trusted: it has the name {printable(name)} twice, or one that is no name",
            about=f"{self._client.where}:{printable(folder)}",
            hint="Nothing was deleted. Report it to the site if it happens again.",
        )
