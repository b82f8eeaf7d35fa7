"""Move files that are too large for one request of the IRI Facility API: in parts, which a job joins and splits there."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Sequence

from hibali.errors import HibaliError, IncompleteError, NotFoundError
from hibali.http.client import Bytes
from hibali.text import printable
from hibali_plugins.facilities.iri.client import IriClient
from hibali_plugins.facilities.iri.jobs import run_job
from hibali_plugins.facilities.operations.base import quoted_path
from transfers.stores.server.files import LIST_SECONDS, Upload
from transfers.stores.server.state_records import StateRecord

PART_BYTES = 4 * 1024 * 1024
_DIGITS = 6  # of the number in the name of a part
_JOIN, _SPLIT = "join.sh", "split.sh"
_NAMES_AT_ONCE = 100_000  # in a file with names of parts
_JOIN_SCRIPT = """#!/bin/sh
cd {folder} || exit 1
: >joined || exit 1
for names in {lists}; do
  while read -r name; do
    cat "$name" >>joined || exit 1
  done <"$names"
done
"""


def _part_name(number: int) -> bytes:
    return b"%0*d" % (_DIGITS, number)


def _part_sizes(client: IriClient, folder: bytes) -> dict[bytes, int]:
    """Return the sizes of the parts in a folder, by their names."""
    lines = client.ls(folder, seconds=LIST_SECONDS)
    return {line.name: line.size for line in lines if line.name[:_DIGITS].isdigit()}


class JoinedUpload(Upload):
    """A large file: its parts are files in a folder beside it, with their digests in their names, and a job joins them.

    A part that is there with its size is not sent again; the digest of the whole file decides. If that is wrong, the parts are removed,
    and the next attempt begins anew.
    """

    def __init__(
        self, client: IriClient, folders: Sequence[bytes], finish: Callable[[bytes, str], None]
    ) -> None:
        """`folders` are those for parts, of this operation and of interrupted ones; `finish` gets the joined file and its sha256."""
        self._client = client
        self._finish = finish
        self._folders = folders
        self._folder, self._there = self._find()
        self._summed = hashlib.sha256()
        self._held = bytearray()
        self._names: list[bytes] = []

    def _find(self) -> tuple[bytes, dict[bytes, int]]:
        """Return the folder with the parts of an interrupted upload, and their sizes; otherwise a new one."""
        for folder in self._folders:
            try:
                if parts := _part_sizes(self._client, folder):
                    return folder, parts
            except NotFoundError:
                continue
        self._client.mkdir(self._folders[0], parents=True)
        return self._folders[0], {}

    @property
    def discards(self) -> bool:
        """See Upload."""
        return True

    def write(self, content: Bytes) -> None:
        """See Upload."""
        self._held += content
        while len(self._held) >= PART_BYTES:
            part = bytes(self._held[:PART_BYTES])
            del self._held[:PART_BYTES]
            self._add(part)

    def _add(self, part: bytes) -> None:
        self._summed.update(part)
        digest = hashlib.sha256(part).hexdigest()[:32].encode("ascii")
        name = _part_name(len(self._names)) + b"-" + digest
        self._names.append(name)
        if self._there.get(name) != len(part):
            self._client.upload(self._folder + b"/" + name, part)

    def commit(self) -> None:
        """See Upload."""
        if self._held:
            self._add(bytes(self._held))
            self._held.clear()
        lists = self._write_names()
        script = _JOIN_SCRIPT.format(folder=quoted_path(self._folder), lists=" ".join(lists))
        try:
            run_job(self._client, self._folder, _JOIN, script, "joins the parts")
            self._finish(self._folder + b"/joined", self._summed.hexdigest())
        except IncompleteError:
            self._client.remove(self._folder)  # the parts are not what was sent
            raise
        for folder in self._folders:
            self._client.remove(folder)

    def _write_names(self) -> list[str]:
        """Write the names of the parts, and return those of the files with them."""
        lists: list[str] = []
        for first in range(0, len(self._names), _NAMES_AT_ONCE):
            lists.append(f"names{len(lists)}")
            lines = b"".join(name + b"\n" for name in self._names[first : first + _NAMES_AT_ONCE])
            self._client.upload(self._folder + b"/" + lists[-1].encode("ascii"), lines)
        return lists

    def abandon(self) -> None:
        """See Upload; the parts stay for the next one."""


class SplitFiles:
    """Large files that a job split into parts in a folder of hibali, from where they are received; thread-safe."""

    def __init__(self, client: IriClient, new_folder: Callable[[], bytes]) -> None:
        """`new_folder` returns the path of a folder for parts, which does not exist yet."""
        self._client = client
        self._new_folder = new_folder
        self._known: dict[bytes, tuple[str, bytes]] = {}  # by path: the tag of the file, and the folder
        self._unread: dict[bytes, set[int]] = {}  # by folder: the parts that were not read
        self._guard = threading.Lock()

    def read(self, path: bytes, tag: str, size: int, offset: int, length: int) -> bytes:
        """Return a piece of a file that has this tag and size; less of it, if parts are missing."""
        folder = self._folder_of(path, tag, size)
        end = min(offset + length, size)
        pieces = []
        try:
            for number in range(offset // PART_BYTES, -(-end // PART_BYTES)):
                content = self._client.download(folder + b"/" + _part_name(number))
                start = number * PART_BYTES
                pieces.append(content[max(offset - start, 0) : end - start])
                self._unread[folder].discard(number)
        except NotFoundError:
            self._forget(path)
        return b"".join(pieces)

    def _folder_of(self, path: bytes, tag: str, size: int) -> bytes:
        """Return the folder with the parts of a file; what an interrupted operation split is used again."""
        with self._guard:
            known, folder = self._known.get(path, ("", b""))
            if known == tag:
                return folder
            record = StateRecord("iri", "split", self._client.subject, path)
            kept = record.read()
            folder = str(kept.get("folder", "")).encode("utf-8", "surrogateescape")
            if kept.get("tag") != tag or not self._is_whole(folder, size):
                folder = self._split(path, size)
                record.remove_old()
                record.write({"tag": tag, "folder": folder.decode("utf-8", "surrogateescape")})
            self._known[path] = tag, folder
            self._unread[folder] = set(range(-(-size // PART_BYTES)))
            return folder

    def _is_whole(self, folder: bytes, size: int) -> bool:
        try:
            return sum(_part_sizes(self._client, folder).values()) == size
        except HibaliError:
            return False

    def _split(self, path: bytes, size: int) -> bytes:
        folder = self._new_folder()
        self._client.mkdir(folder, parents=True)
        script = f"#!/bin/sh\nexec split -b {PART_BYTES} -a {_DIGITS} -d -- {quoted_path(path)} {quoted_path(folder + b'/')}\n"
        run_job(self._client, folder, _SPLIT, script, "splits the file")
        if not self._is_whole(folder, size):
            raise IncompleteError(
                "cut-off",
                "the service sent less than it has of the file",
                subject=f"{self._client.subject}:{printable(path)}",
                transient=True,
            )
        return folder

    def close(self) -> None:
        """Remove the parts of files that were read whole."""
        for path, (_, folder) in list(self._known.items()):
            if not self._unread.get(folder):
                with contextlib.suppress(HibaliError):
                    self._client.remove(folder)
                    self._forget(path)

    def _forget(self, path: bytes) -> None:
        with self._guard:
            self._known.pop(path, None)
            StateRecord("iri", "split", self._client.subject, path).remove()
