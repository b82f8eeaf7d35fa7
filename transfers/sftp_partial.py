"""Files and symlinks under partial names at an SFTP server, until they are whole, proven and renamed (S1, S18)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from transfers import sftp_wire as wire
from transfers.agent import own_names
from transfers.entry import Kind
from transfers.sftp_beneath import Beneath
from transfers.sftp_channel import Pending, StatusError
from transfers.sftp_client import Client, kind_of
from transfers.store import Item, Problem

_NEW = wire.FOR_WRITING | wire.CREATE | wire.EXCLUSIVE


@dataclass(slots=True)
class Partial:
    """One item on its way; `problem` is why it will not land."""

    item: Item
    name: bytes = b""  # relative, like the item's path
    handle: bytes = b""
    offset: int = 0
    asked: list[Pending | None] = field(default_factory=list)
    digest: str | None = None
    problem: Problem | None = None

    @property
    def folder(self) -> bytes:
        """Where it lies."""
        return self.item.entry.path.rpartition(b"/")[0]


class Partials:
    """Makes, fills, ends and drops partial files. Any thread may ask, one at a time for each file."""

    def __init__(self, client: Client, beneath: Beneath, seed: bytes) -> None:
        self._client = client
        self._beneath = beneath
        self._seed = seed
        self.left = False

    def name_for(self, path: bytes, what: bytes = b"", *, seed: bytes | None = None) -> bytes:
        """The partial name in the folder of `path`; `what` tells apart several for one path, `seed` is another operation's."""
        folder = path.rpartition(b"/")[0]
        name = own_names.partial_name(seed or self._seed, what + path)
        return folder + b"/" + name if folder else name

    def open_all(self, partials: list[Partial]) -> None:
        """An empty file for each, under its partial name."""
        for one in partials:
            one.name = self.name_for(one.item.entry.path)
        for again in (False, True):
            waiting = [one for one in partials if not one.handle and one.problem is None]
            if again:
                # An earlier attempt of this very operation may have left something under the name.
                self._client.settle(
                    [self._client.ask_remove(self._beneath.full(one.name)) for one in waiting]
                )
            asked = [
                self._client.ask_open(self._beneath.full(one.name), _NEW, _first_mode(one.item))
                for one in waiting
            ]
            for one, pending in zip(waiting, asked, strict=True):
                try:
                    one.handle = self._client.handle_of(pending)
                except StatusError as problem:
                    if again or problem.code != wire.FAILURE:
                        one.problem = self.why(problem, one)
                        one.name = b""

    def resume(self, one: Partial, seeds: Sequence[bytes]) -> int:
        """Take over what an interrupted operation had of this very file; how many bytes of it are there.

        Whether they are the right ones has to be looked at.
        """
        client, full = self._client, self._beneath.full
        new = self.name_for(one.item.entry.path)
        names = [self.name_for(one.item.entry.path, seed=seed) for seed in seeds]
        for name, look in zip(names, [client.ask_stat(full(name)) for name in names], strict=True):
            try:
                found = client.attributes_of(look)
                usable = kind_of(found) is Kind.FILE and 0 < (found.size or 0) <= one.item.entry.size
                if usable and client.settle([client.ask_rename(full(name), full(new))]) is None:
                    flags = wire.FOR_READING | wire.FOR_WRITING
                    one.handle = client.handle_of(client.ask_open(full(new), flags))
                    one.name = new
                    return found.size or 0
            except StatusError:
                continue
        return 0

    def write(self, one: Partial, content: memoryview) -> None:
        """Send more of it; `finish` waits for the answers."""
        one.asked += self._client.ask_write(one.handle, one.offset, content)
        one.offset += len(content)
        self._client.channel.data_bytes += len(content)

    def finish(self, partials: list[Partial]) -> None:
        """Everything is sent: the mode and time, to disk where the server can, closed; and wait."""
        for one in partials:
            entry = one.item.entry
            one.asked.append(
                self._client.ask_set(one.handle, mode=_kept_mode(one.item), mtime_ns=entry.mtime_ns)
            )
            one.asked.append(self._client.ask_sync(one.handle))
            one.asked.append(self._client.ask_close(one.handle))
            one.handle = b""
        for one in partials:
            refused = self._client.settle(one.asked)
            one.asked = []
            if refused is not None and one.problem is None:
                one.problem = self.why(refused, one)

    def make_links(self, partials: list[Partial]) -> None:
        """A symlink for each, under its partial name, with its target as it was asked."""
        client, full = self._client, self._beneath.full
        for one in partials:
            one.name = self.name_for(one.item.entry.path)
        client.settle([client.ask_remove(full(one.name)) for one in partials])
        made = [client.ask_symlink(full(one.name), one.item.entry.link) for one in partials]
        timed = [client.ask_set_link_time(full(one.name), one.item.entry.mtime_ns) for one in partials]
        looks = [client.ask_readlink(full(one.name)) for one in partials]
        for one, pending, look in zip(partials, made, looks, strict=True):
            try:
                pending.wait()
                if [found.name for found in client.names_of(look)] != [one.item.entry.link]:
                    one.problem = Problem("corrupt", "the link that was made points elsewhere")
            except StatusError as problem:
                one.problem, one.name = self.why(problem, one), b""
        client.settle(timed)  # a link without its time is still the link

    def rename_all(self, partials: list[Partial]) -> None:
        """Give each its final name, over whatever file stands there."""
        full = self._beneath.full
        asked = [self._client.ask_rename(full(one.name), full(one.item.entry.path)) for one in partials]
        for one, pending in zip(partials, asked, strict=True):
            try:
                pending.wait()
            except StatusError as problem:
                one.problem = (
                    self._rename_slowly(one) if self._must_move_away(one, problem) else self.why(problem, one)
                )

    def _must_move_away(self, one: Partial, problem: StatusError) -> bool:
        """Whether the server only refuses because its rename cannot replace anything."""
        replaces = one.item.replaces
        cannot = not self._client.offers(b"posix-rename@openssh.com") and problem.code == wire.FAILURE
        return cannot and replaces is not None and replaces.kind is not Kind.FOLDER

    def _rename_slowly(self, one: Partial) -> Problem | None:
        """What stands there goes aside first, and comes back if the new one cannot have its name."""
        client = self._client
        path = self._beneath.full(one.item.entry.path)
        aside = self._beneath.full(self.name_for(one.item.entry.path, b"aside/"))
        refused = client.settle([client.ask_rename(path, aside)])
        if refused is None:
            refused = client.settle([client.ask_rename(self._beneath.full(one.name), path)])
            client.settle([client.ask_rename(aside, path) if refused else client.ask_remove(aside)])
        return None if refused is None else self.why(refused, one)

    def drop(self, partials: list[Partial]) -> None:
        """Remove what will not land; what cannot be removed is `left` for the next run, which knows its name."""
        for one in partials:
            if one.handle:
                self._client.settle(one.asked)
                self._client.ask_close(one.handle)
                one.handle, one.asked = b"", []
        named = [one for one in partials if one.name]
        asked = [self._client.ask_remove(self._beneath.full(one.name)) for one in named]
        for pending in asked:
            try:
                pending.wait()
            except StatusError:  # gone with its folder is not gone: the folder may have been moved
                self.left = True
        for one in named:
            one.name = b""

    def leave(self, partials: list[Partial]) -> None:
        """Close what will not be finished now; its name is known to the next run."""
        for one in partials:
            self.left = True
            self._client.settle(one.asked)
            if one.handle:
                self._client.ask_close(one.handle)
            one.handle, one.asked = b"", []

    def why(self, problem: StatusError, one: Partial) -> Problem:
        """A no to a write, with the words of a full disk where there is no room."""
        return self._client.problem(problem, self._beneath.full(b""), one.item.entry.size)


def is_whole(one: Partial, content: memoryview, size: int, digest: str | None) -> bool:
    """Whether what is to be sent is what the source hashed; told as the problem where it is not."""
    found = hashlib.sha256(content).hexdigest()
    if size == one.item.entry.size and found == digest:
        one.digest = found
        return True
    one.problem = Problem("corrupt", f"what arrived differs from what was read: sha256 {found}", again=True)
    return False


def _first_mode(item: Item) -> int:
    """Never wider than what will stand there; the server's umask takes its part."""
    if item.permissions is not None:
        return item.permissions | 0o600
    kept = _kept_mode(item)
    if kept is not None:
        return kept
    return 0o777 if item.entry.mode >= 0 and item.entry.mode & 0o100 else 0o666


def folder_mode(item: Item) -> int:
    """What a folder is made with; it has to be filled before it gets its own permissions."""
    return 0o777 if item.permissions is None else item.permissions | 0o700


def _kept_mode(item: Item) -> int | None:
    """Exactly the permissions that were asked for; else those of the file it replaces, but for the execute bits."""
    if item.permissions is not None:
        return item.permissions
    replaced = item.replaces
    if replaced is None or replaced.kind is not Kind.FILE or replaced.mode < 0:
        return None
    old = replaced.mode
    execute = (old >> 2) & 0o111 if item.entry.mode >= 0 and item.entry.mode & 0o100 else 0
    return (old & 0o666) | execute
