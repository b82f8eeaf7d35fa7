"""Send SFTP requests by name."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from hibali.errors import AccessError, HibaliError, IncompleteError, NotFoundError
from hibali.system_errors import message_of
from hibali.text import printable
from transfers.entry import Entry, Kind
from transfers.stores.base import Problem, Space
from transfers.stores.sftp import channel
from transfers.stores.sftp.channel import Attributes, Channel, Pending, StatusError

_PLAIN_CHUNK = 32 * 1024  # what every server of version 3 has to take
_LARGEST_CHUNK = 255 * 1024
_ROOM_KEPT = 64 * 1024  # a filesystem with less than this is full, whatever it says


@dataclass(frozen=True, slots=True)
class Listed:
    """One name as a folder's listing tells it."""

    name: bytes
    attributes: Attributes


class Client:
    """Paths are absolute bytes there. Any thread may ask."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.where = channel.where
        self._offers = channel.extensions
        self.read_bytes, self.write_bytes = self._limits()

    def offers(self, name: bytes) -> bool:
        """Whether the server has this extension, such as b"fsync@openssh.com"."""
        return name in self._offers

    def _limits(self) -> tuple[int, int]:
        """The longest read and write the server takes (limits@openssh.com), bounded by what is useful."""
        found = [0, 0]
        if self.offers(b"limits@openssh.com"):
            with contextlib.suppress(StatusError, channel.WireError):
                reader = self._extended(b"limits@openssh.com", b"").answer(channel.EXTENDED_REPLY)
                reader.large()
                found = [reader.large(), reader.large()]
        sizes = [min(size or _PLAIN_CHUNK, _LARGEST_CHUNK) for size in found]
        return sizes[0], sizes[1]

    def _extended(self, name: bytes, content: bytes) -> Pending:
        return self.channel.ask(channel.EXTENDED, channel.text(name) + content)

    def ask_stat(self, path: bytes, *, follow: bool = False) -> Pending:
        """What stands there; `attributes_of` the answer."""
        return self.channel.ask(channel.STAT if follow else channel.LSTAT, channel.text(path))

    def ask_handle_stat(self, handle: bytes) -> Pending:
        """What an open file is now."""
        return self.channel.ask(channel.FSTAT, channel.text(handle))

    def attributes_of(self, pending: Pending) -> Attributes:
        """The answer to a question of this kind; raises `StatusError`."""
        with self.understanding():
            return pending.answer(channel.ATTRS).attributes()

    def stat(self, path: bytes, *, follow: bool = False) -> Attributes | None:
        """What stands there, None when absent; raises the error of ours for any other no."""
        try:
            return self.attributes_of(self.ask_stat(path, follow=follow))
        except StatusError as problem:
            if problem.code == channel.NO_SUCH_FILE:
                return None
            raise self.error(problem, path) from None

    def ask_open(self, path: bytes, flags: int, mode: int | None = None) -> Pending:
        """Open a file; `handle_of` the answer."""
        content = channel.text(path) + channel.number(flags) + channel.attributes(mode=mode)
        return self.channel.ask(channel.OPEN, content)

    def ask_open_folder(self, path: bytes) -> Pending:
        """Open a folder for listing; `handle_of` the answer."""
        return self.channel.ask(channel.OPENDIR, channel.text(path))

    def handle_of(self, pending: Pending) -> bytes:
        """What stands for the open file; raises `StatusError`."""
        with self.understanding():
            return pending.answer(channel.HANDLE).text()

    def ask_close(self, handle: bytes) -> Pending:
        """Close a handle."""
        return self.channel.ask(channel.CLOSE, channel.text(handle))

    def ask_read(self, handle: bytes, offset: int, length: int) -> Pending:
        """Up to `length` bytes; `data_of` the answer."""
        content = channel.text(handle) + channel.large(offset) + channel.number(length)
        return self.channel.ask(channel.READ, content, weight=length)

    def data_of(self, pending: Pending) -> bytes:
        """What was read, nothing at the end of the file; raises `StatusError`."""
        try:
            with self.understanding():
                found = pending.answer(channel.DATA).text()
        except StatusError as problem:
            if problem.code == channel.END_OF_FILE:
                return b""
            raise
        return found

    def ask_write(self, handle: bytes, offset: int, content: memoryview) -> list[Pending]:
        """Write all of it from `offset`, in pieces that the server takes."""
        asked = []
        for at in range(0, len(content), self.write_bytes):
            piece = content[at : at + self.write_bytes]
            head = channel.text(handle) + channel.large(offset + at) + channel.number(len(piece))
            asked.append(self.channel.ask(channel.WRITE, head, piece))
        return asked

    def ask_set(self, handle: bytes, *, mode: int | None = None, mtime_ns: int | None = None) -> Pending:
        """Give an open file its mode and time."""
        return self.channel.ask(
            channel.FSETSTAT, channel.text(handle) + channel.attributes(mode=mode, mtime_ns=mtime_ns)
        )

    def ask_set_mode(self, path: bytes, mode: int) -> Pending:
        """Give what stands at a path, or what a link there points to, its mode."""
        return self.channel.ask(channel.SETSTAT, channel.text(path) + channel.attributes(mode=mode))

    def ask_set_link_time(self, path: bytes, mtime_ns: int) -> Pending | None:
        """Give a symlink its own time, where the server can."""
        if not self.offers(b"lsetstat@openssh.com"):
            return None
        content = channel.text(path) + channel.attributes(mtime_ns=mtime_ns)
        return self._extended(b"lsetstat@openssh.com", content)

    def ask_sync(self, handle: bytes) -> Pending | None:
        """Bring an open file to disk, where the server can."""
        if not self.offers(b"fsync@openssh.com"):
            return None
        return self._extended(b"fsync@openssh.com", channel.text(handle))

    def ask_rename(self, old: bytes, new: bytes) -> Pending:
        """Rename over whatever file stands there; without the extension only where nothing stands."""
        content = channel.text(old) + channel.text(new)
        if self.offers(b"posix-rename@openssh.com"):
            return self._extended(b"posix-rename@openssh.com", content)
        return self.channel.ask(channel.RENAME, content)

    def ask_move(self, old: bytes, new: bytes) -> Pending:
        """Rename, a no where anything stands at the new name: what version 3 itself promises."""
        return self.channel.ask(channel.RENAME, channel.text(old) + channel.text(new))

    def ask_copy(self, source: bytes, target: bytes) -> Pending | None:
        """Copy one open file into another, there; None where the server cannot."""
        if not self.offers(b"copy-data"):
            return None
        content = channel.text(source) + channel.large(0) * 2 + channel.text(target) + channel.large(0)
        return self._extended(b"copy-data", content)

    def ask_link(self, old: bytes, new: bytes) -> Pending | None:
        """A second name for a file, where the server can and nothing stands there."""
        if not self.offers(b"hardlink@openssh.com"):
            return None
        return self._extended(b"hardlink@openssh.com", channel.text(old) + channel.text(new))

    def ask_symlink(self, path: bytes, target: bytes) -> Pending:
        """Make a symlink; the words go in OpenSSH's order, which all servers took over from it."""
        return self.channel.ask(channel.SYMLINK, channel.text(target) + channel.text(path))

    def ask_readlink(self, path: bytes) -> Pending:
        """Where a symlink points; `names_of` the answer."""
        return self.channel.ask(channel.READLINK, channel.text(path))

    def ask_names(self, handle: bytes) -> Pending:
        """Some more names of an open folder; `names_of` the answer."""
        return self.channel.ask(channel.READDIR, channel.text(handle))

    def names_of(self, pending: Pending) -> list[Listed]:
        """The names, none at the folder's end; raises `StatusError`."""
        try:
            with self.understanding():
                reader = pending.answer(channel.NAME)
                found = []
                for _ in range(reader.number()):
                    name = reader.text()
                    reader.text()  # the line that ls would show
                    found.append(Listed(name, reader.attributes()))
                return found
        except StatusError as problem:
            if problem.code == channel.END_OF_FILE:
                return []
            raise

    def ask_remove(self, path: bytes) -> Pending:
        """Remove a name that is no folder."""
        return self.channel.ask(channel.REMOVE, channel.text(path))

    def ask_remove_folder(self, path: bytes) -> Pending:
        """Remove an empty folder."""
        return self.channel.ask(channel.RMDIR, channel.text(path))

    def ask_make_folder(self, path: bytes, mode: int) -> Pending:
        """Make a folder; a no where anything stands there."""
        return self.channel.ask(channel.MKDIR, channel.text(path) + channel.attributes(mode=mode))

    def real_path(self, path: bytes) -> bytes:
        """The absolute path of an existing one; `.` is where the server starts. Raises our error for a no."""
        try:
            (found,) = self.names_of(self.channel.ask(channel.REALPATH, channel.text(path)))
        except StatusError as problem:
            raise self.error(problem, path) from None
        except ValueError:
            raise self.channel.broken("gave no path for a path") from None
        if not found.name.startswith(b"/") or b"\0" in found.name:
            raise self.channel.broken("gave no absolute path")
        return found.name

    def small_files(self, paths: Sequence[bytes], longest: int) -> list[bytes]:
        """The contents of files there, cut after `longest` bytes; b"" for one that cannot be read."""
        asked = [self.ask_open(path, channel.FOR_READING) for path in paths]
        return [self._small_file(pending, longest) for pending in asked]

    def _small_file(self, opened: Pending, longest: int) -> bytes:
        content = bytearray()
        try:
            handle = self.handle_of(opened)
            try:
                while len(content) < longest:
                    size = min(self.read_bytes, longest - len(content))
                    part = self.data_of(self.ask_read(handle, len(content), size))
                    if not part:
                        break
                    content += part
            finally:
                self.ask_close(handle)
        except StatusError:
            return b""
        return bytes(content)

    def home_user(self) -> int | None:
        """Whose the folder is that the server starts in: usually ours."""
        found = self.stat(b".", follow=True)
        return None if found is None else found.user

    def space(self, path: bytes) -> Space:
        """Room for an ordinary user at a path that exists; unknown where the server does not tell."""
        if not self.offers(b"statvfs@openssh.com"):
            return Space(None, None)
        try:
            with self.understanding():
                reader = self._extended(b"statvfs@openssh.com", channel.text(path)).answer(
                    channel.EXTENDED_REPLY
                )
                found = [reader.large() for _ in range(8)]
        except StatusError:
            return Space(None, None)
        _, fragment, _, _, available, inodes, _, inodes_available = found
        # Filesystems that make inodes as they go report none in all (btrfs): that is no limit.
        return Space(available * fragment, inodes_available if inodes else None)

    @contextlib.contextmanager
    def understanding(self) -> Iterator[None]:
        """Where an answer is taken apart: one of another shape is a broken protocol."""
        try:
            yield
        except channel.WireError as problem:
            raise self.channel.broken(str(problem)) from None

    def settle(self, asked: Iterable[Pending | None]) -> StatusError | None:
        """Wait for all of them; the first no, or None."""
        first: StatusError | None = None
        for pending in asked:
            try:
                if pending is not None:
                    pending.wait()
            except StatusError as problem:
                first = first or problem
        return first

    def error(self, problem: StatusError, path: bytes) -> HibaliError:
        """A no to a question about one path, as an error of ours."""
        told = problem_of(problem)
        kinds = {"vanished": NotFoundError, "denied": AccessError}
        subject = f"{self.where}:{printable(path)}"
        return kinds.get(told.code, IncompleteError)(told.code, told.message, subject=subject)

    def problem(self, problem: StatusError, folder: bytes, size: int = 0) -> Problem:
        """A no to a write in `folder`: version 3 has no word for a full disk, so the room there is looked at."""
        if problem.code == channel.FAILURE:
            space = self.space(folder)
            full = space.free_bytes is not None and space.free_bytes < max(size, _ROOM_KEPT)
            if full or space.free_inodes == 0:
                return Problem("no-space", message_of("no-space"))
        return problem_of(problem)

    def close(self) -> None:
        """Leave."""
        self.channel.close()


_PROBLEMS = {
    channel.NO_SUCH_FILE: ("vanished", message_of("vanished")),
    channel.PERMISSION_DENIED: ("denied", message_of("denied")),
    channel.UNSUPPORTED: ("not-supported", "the SFTP server cannot do this"),
    channel.BAD_MESSAGE: ("not-accepted", "the SFTP server does not take this name"),
    channel.END_OF_FILE: ("source-changed", "it ended early"),
}


def expand(client: Client, path: bytes) -> bytes:
    """An absolute path from one that may start with `~`; an SFTP server knows no variables."""
    if path.startswith(b"/"):
        return path
    if path.startswith(b"$"):
        raise NotFoundError(
            "no-variables",
            "an SFTP server cannot say what a variable means",
            subject=f"{client.where}:{path.decode('utf-8', 'replace')}",
            hint="Write the site's root in full.",
        )
    home = client.real_path(b".").rstrip(b"/")
    rest = path.removeprefix(b"~").lstrip(b"/")
    return home + b"/" + rest if rest else home or b"/"


def problem_of(problem: StatusError) -> Problem:
    """A no as a problem of one entry; SFTP 3 tells little more than that it failed."""
    code, message = _PROBLEMS.get(problem.code, ("failed", "the SFTP server gave no reason"))
    return Problem(code, message)


def kind_of(attributes: Attributes) -> Kind:
    """What stands there; where a server does not say, it is nothing that is ever opened."""
    mode = attributes.mode or 0
    if stat.S_ISREG(mode):
        return Kind.FILE
    if stat.S_ISDIR(mode):
        return Kind.FOLDER
    return Kind.LINK if stat.S_ISLNK(mode) else Kind.SPECIAL


def entry_of(path: bytes, attributes: Attributes, link: bytes = b"") -> Entry:
    """An entry as a listing gives it; times are whole seconds."""
    kind = kind_of(attributes)
    return Entry(
        path=path,
        kind=kind,
        size=(attributes.size or 0) if kind is Kind.FILE else 0,
        mtime_ns=(attributes.seconds or 0) * 1_000_000_000,
        mode=-1 if attributes.mode is None else stat.S_IMODE(attributes.mode),
        link=link,
    )


def is_unchanged(entry: Entry, attributes: Attributes) -> bool:
    """Whether a file still is what was listed, as far as this protocol tells: kind, size, second of its time."""
    return (
        kind_of(attributes) is entry.kind
        and attributes.size == entry.size
        and channel.whole_seconds(entry.mtime_ns) == attributes.seconds
    )


def listed_names(client: Client, path: bytes, ahead: int = 8) -> Sequence[Listed]:
    """Everything in one folder, `ahead` requests under way; raises `StatusError`."""
    handle = client.handle_of(client.ask_open_folder(path))
    found: list[Listed] = []
    asked = [client.ask_names(handle)]
    try:
        while asked:
            some = client.names_of(asked.pop(0))
            found += some
            if some:
                asked += [client.ask_names(handle) for _ in range(ahead - len(asked))]
            else:
                break
        for pending in asked:
            found += client.names_of(pending)
    finally:
        client.ask_close(handle)
    return [one for one in found if one.name not in {b".", b".."}]
