"""Send SFTP requests by name."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from hibali.errors import AccessError, HibaliError, IncompleteError, NotFoundError
from hibali.system_errors import message_of
from hibali.text import printable
from transfers.model.entry import Entry, Kind
from transfers.model.units import Problem, Space
from transfers.stores.sftp import channel
from transfers.stores.sftp.channel import Attributes, Channel, Pending, StatusError

_PLAIN_CHUNK = 32 * 1024  # every server of version 3 must accept this
_LARGEST_CHUNK = 255 * 1024
_AHEAD = 8  # requests in flight while a folder is listed
_MIN_FREE_BYTES = 64 * 1024  # with less free space, the filesystem counts as full


@dataclass(frozen=True, slots=True)
class Listed:
    """One entry of a folder listing."""

    name: bytes
    attributes: Attributes


class Client:
    """SFTP requests; paths are absolute bytes at the server. Thread-safe."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.borrowed = False  # see transfers.remote.lending
        self.subject = channel.subject
        self._offers = channel.extensions
        self.read_bytes, self.write_bytes = self._limits()

    def offers(self, name: bytes) -> bool:
        """Return whether the server has an extension, such as b"fsync@openssh.com"."""
        return name in self._offers

    def _limits(self) -> tuple[int, int]:
        """Return the maximum read and write length (limits@openssh.com), with upper bounds of our own."""
        found = [0, 0]
        if self.offers(b"limits@openssh.com"):
            with contextlib.suppress(StatusError, channel.MalformedPacketError):
                reader = self._extended(b"limits@openssh.com", b"").reply(channel.EXTENDED_REPLY)
                reader.large()
                found = [reader.large(), reader.large()]
        sizes = [min(size or _PLAIN_CHUNK, _LARGEST_CHUNK) for size in found]
        return sizes[0], sizes[1]

    def _extended(self, name: bytes, content: bytes) -> Pending:
        return self.channel.request(channel.EXTENDED, channel.text(name) + content)

    def request_stat(self, path: bytes, *, follow: bool = False) -> Pending:
        """Request the attributes of a path; parse the reply with `attributes_of`."""
        return self.channel.request(channel.STAT if follow else channel.LSTAT, channel.text(path))

    def request_handle_stat(self, handle: bytes) -> Pending:
        """Request the attributes of an open file."""
        return self.channel.request(channel.FSTAT, channel.text(handle))

    def attributes_of(self, pending: Pending) -> Attributes:
        """Return the attributes in a reply. Raise `StatusError`."""
        with self.understanding():
            return pending.reply(channel.ATTRS).attributes()

    def stat(self, path: bytes, *, follow: bool = False) -> Attributes | None:
        """Return the attributes of a path, None if it is missing. Raise a hibali error for other failures."""
        try:
            return self.attributes_of(self.request_stat(path, follow=follow))
        except StatusError as problem:
            if problem.code == channel.NO_SUCH_FILE:
                return None
            raise self.error(problem, path) from None

    def request_open(self, path: bytes, flags: int, mode: int | None = None) -> Pending:
        """Request to open a file; parse the reply with `handle_of`."""
        content = channel.text(path) + channel.number(flags) + channel.attributes(mode=mode)
        return self.channel.request(channel.OPEN, content)

    def request_open_folder(self, path: bytes) -> Pending:
        """Request to open a folder for listing; parse the reply with `handle_of`."""
        return self.channel.request(channel.OPENDIR, channel.text(path))

    def handle_of(self, pending: Pending) -> bytes:
        """Return the handle in a reply. Raise `StatusError`."""
        with self.understanding():
            return pending.reply(channel.HANDLE).text()

    def request_close(self, handle: bytes) -> Pending:
        """Request to close a handle."""
        return self.channel.request(channel.CLOSE, channel.text(handle))

    def request_read(self, handle: bytes, offset: int, length: int) -> Pending:
        """Request up to `length` bytes; parse the reply with `data_of`."""
        content = channel.text(handle) + channel.large(offset) + channel.number(length)
        return self.channel.request(channel.READ, content, weight=length)

    def data_of(self, pending: Pending) -> bytes:
        """Return the bytes in a reply, b"" at the end of the file. Raise `StatusError`."""
        try:
            with self.understanding():
                found = pending.reply(channel.DATA).text()
        except StatusError as problem:
            if problem.code == channel.END_OF_FILE:
                return b""
            raise
        return found

    def request_write(self, handle: bytes, offset: int, content: memoryview) -> list[Pending]:
        """Send write requests for all of `content` from `offset`, in chunks that the server accepts."""
        requests = []
        for at in range(0, len(content), self.write_bytes):
            piece = content[at : at + self.write_bytes]
            head = channel.text(handle) + channel.large(offset + at) + channel.number(len(piece))
            requests.append(self.channel.request(channel.WRITE, head, piece))
        return requests

    def request_set(self, handle: bytes, *, mode: int | None = None, mtime_ns: int | None = None) -> Pending:
        """Request to set mode and time of an open file."""
        return self.channel.request(
            channel.FSETSTAT, channel.text(handle) + channel.attributes(mode=mode, mtime_ns=mtime_ns)
        )

    def request_set_mode(self, path: bytes, mode: int) -> Pending:
        """Request to set the mode of a path; follows a symlink."""
        return self.channel.request(channel.SETSTAT, channel.text(path) + channel.attributes(mode=mode))

    def request_set_link_time(self, path: bytes, mtime_ns: int) -> Pending | None:
        """Request to set a symlink's own time; None if unsupported."""
        if not self.offers(b"lsetstat@openssh.com"):
            return None
        content = channel.text(path) + channel.attributes(mtime_ns=mtime_ns)
        return self._extended(b"lsetstat@openssh.com", content)

    def request_sync(self, handle: bytes) -> Pending | None:
        """Request to sync an open file to disk; None if unsupported."""
        if not self.offers(b"fsync@openssh.com"):
            return None
        return self._extended(b"fsync@openssh.com", channel.text(handle))

    def request_rename(self, old: bytes, new: bytes) -> Pending:
        """Request a rename that replaces a file; without the extension, an existing file is an error."""
        content = channel.text(old) + channel.text(new)
        if self.offers(b"posix-rename@openssh.com"):
            return self._extended(b"posix-rename@openssh.com", content)
        return self.channel.request(channel.RENAME, content)

    def request_move(self, old: bytes, new: bytes) -> Pending:
        """Request a rename that fails if the new name exists, as version 3 defines."""
        return self.channel.request(channel.RENAME, channel.text(old) + channel.text(new))

    def request_copy(self, source: bytes, target: bytes) -> Pending | None:
        """Request a copy between two open files at the server; None if unsupported."""
        if not self.offers(b"copy-data"):
            return None
        content = channel.text(source) + channel.large(0) * 2 + channel.text(target) + channel.large(0)
        return self._extended(b"copy-data", content)

    def request_link(self, old: bytes, new: bytes) -> Pending | None:
        """Request a hard link, which fails if the name exists; None if unsupported."""
        if not self.offers(b"hardlink@openssh.com"):
            return None
        return self._extended(b"hardlink@openssh.com", channel.text(old) + channel.text(new))

    def request_symlink(self, path: bytes, target: bytes) -> Pending:
        """Request a symlink; arguments in OpenSSH's order, which other servers adopted."""
        return self.channel.request(channel.SYMLINK, channel.text(target) + channel.text(path))

    def request_readlink(self, path: bytes) -> Pending:
        """Request a symlink's target; parse the reply with `names_of`."""
        return self.channel.request(channel.READLINK, channel.text(path))

    def request_names(self, handle: bytes) -> Pending:
        """Request more names of an open folder; parse the reply with `names_of`."""
        return self.channel.request(channel.READDIR, channel.text(handle))

    def names_of(self, pending: Pending) -> list[Listed]:
        """Return the names in a reply, none at the folder's end. Raise `StatusError`."""
        try:
            with self.understanding():
                reader = pending.reply(channel.NAME)
                found = []
                for _ in range(reader.number()):
                    name = reader.text()
                    reader.text()  # the line for `ls -l`
                    found.append(Listed(name, reader.attributes()))
                return found
        except StatusError as problem:
            if problem.code == channel.END_OF_FILE:
                return []
            raise

    def request_remove(self, path: bytes) -> Pending:
        """Request to remove a name that is not a folder."""
        return self.channel.request(channel.REMOVE, channel.text(path))

    def request_remove_folder(self, path: bytes) -> Pending:
        """Request to remove an empty folder."""
        return self.channel.request(channel.RMDIR, channel.text(path))

    def request_make_folder(self, path: bytes, mode: int) -> Pending:
        """Request to make a folder, which fails if the name exists."""
        return self.channel.request(channel.MKDIR, channel.text(path) + channel.attributes(mode=mode))

    def real_path(self, path: bytes) -> bytes:
        """Return the absolute path of an existing one; `.` is the start folder. Raise a hibali error."""
        try:
            (found,) = self.names_of(self.channel.request(channel.REALPATH, channel.text(path)))
        except StatusError as problem:
            raise self.error(problem, path) from None
        except ValueError:
            raise self.channel.broken("sent no path") from None
        if not found.name.startswith(b"/") or b"\0" in found.name:
            raise self.channel.broken("sent a path that is not absolute")
        return found.name

    def small_files(self, paths: Sequence[bytes], longest: int) -> list[bytes]:
        """Return the contents of files, cut after `longest` bytes; b"" for an unreadable file."""
        requests = [self.request_open(path, channel.FOR_READING) for path in paths]
        return [self._small_file(pending, longest) for pending in requests]

    def _small_file(self, opened: Pending, longest: int) -> bytes:
        content = bytearray()
        try:
            handle = self.handle_of(opened)
            try:
                while len(content) < longest:
                    size = min(self.read_bytes, longest - len(content))
                    part = self.data_of(self.request_read(handle, len(content), size))
                    if not part:
                        break
                    content += part
            finally:
                self.request_close(handle)
        except StatusError:
            return b""
        return bytes(content)

    def home_user(self) -> int | None:
        """Return the owner of the server's start folder, usually our own user id."""
        found = self.stat(b".", follow=True)
        return None if found is None else found.user

    def space(self, path: bytes) -> Space:
        """Return the free space for an ordinary user at an existing path; unknown if unsupported."""
        if not self.offers(b"statvfs@openssh.com"):
            return Space(None, None)
        try:
            with self.understanding():
                reader = self._extended(b"statvfs@openssh.com", channel.text(path)).reply(
                    channel.EXTENDED_REPLY
                )
                found = [reader.large() for _ in range(8)]
        except StatusError:
            return Space(None, None)
        _, fragment, _, _, available, inodes, _, inodes_available = found
        # Filesystems that create inodes on demand report 0 in total (btrfs): no limit.
        return Space(available * fragment, inodes_available if inodes else None)

    @contextlib.contextmanager
    def understanding(self) -> Iterator[None]:
        """Convert a parse error of a reply to the error for a broken protocol."""
        try:
            yield
        except channel.MalformedPacketError as problem:
            raise self.channel.broken(str(problem)) from None

    def settle(self, requests: Iterable[Pending | None]) -> StatusError | None:
        """Wait for all requests; return the first error status, or None."""
        first: StatusError | None = None
        for pending in requests:
            try:
                if pending is not None:
                    pending.wait()
            except StatusError as problem:
                first = first or problem
        return first

    def error(self, problem: StatusError, path: bytes) -> HibaliError:
        """Convert an error status for one path to a hibali error."""
        found = problem_of(problem)
        kinds = {"vanished": NotFoundError, "denied": AccessError}
        subject = f"{self.subject}:{printable(path)}"
        return kinds.get(found.code, IncompleteError)(found.code, found.message, subject=subject)

    def problem(self, problem: StatusError, folder: bytes, size: int = 0) -> Problem:
        """Convert a failed write in `folder`; SFTP 3 has no status for a full disk, so check free space."""
        if problem.code == channel.FAILURE:
            space = self.space(folder)
            full = space.free_bytes is not None and space.free_bytes < max(size, _MIN_FREE_BYTES)
            if full or space.free_inodes == 0:
                return Problem("no-space", message_of("no-space"))
        return problem_of(problem)

    def close(self) -> None:
        """Close the channel, or give it back."""
        if self.borrowed:  # replies that no one waits for anymore are dropped when they arrive
            self.borrowed = False
        else:
            self.channel.close()

    @property
    def idle(self) -> bool:
        """Whether another can use it: replies are matched to their requests until the channel ends."""
        return not self.channel.ended


_PROBLEMS = {
    channel.NO_SUCH_FILE: ("vanished", message_of("vanished")),
    channel.PERMISSION_DENIED: ("denied", message_of("denied")),
    channel.UNSUPPORTED: ("not-supported", "the SFTP server does not support this"),
    channel.BAD_MESSAGE: ("not-accepted", "the SFTP server rejected this name"),
    channel.END_OF_FILE: ("source-changed", "the file ended early"),
}


def expand(client: Client, path: bytes) -> bytes:
    """Return the absolute path of one that may start with `~`; SFTP servers have no variables."""
    if path.startswith(b"/"):
        return path
    if path.startswith(b"$"):
        raise NotFoundError(
            "no-variables",
            "an SFTP server cannot expand variables",
            subject=f"{client.subject}:{path.decode('utf-8', 'replace')}",
            hint="Write the site's root as an absolute path.",
        )
    home = client.real_path(b".").rstrip(b"/")
    relative = path.removeprefix(b"~").lstrip(b"/")
    return home + b"/" + relative if relative else home or b"/"


def problem_of(problem: StatusError) -> Problem:
    """Convert an error status to an entry's problem; SFTP 3 gives few reasons."""
    code, message = _PROBLEMS.get(problem.code, ("failed", "the SFTP server gave no reason"))
    return Problem(code, message)


def kind_of(attributes: Attributes) -> Kind:
    """Return the kind of a file; an unknown kind is one that hibali never opens."""
    mode = attributes.mode or 0
    if stat.S_ISREG(mode):
        return Kind.FILE
    if stat.S_ISDIR(mode):
        return Kind.FOLDER
    return Kind.LINK if stat.S_ISLNK(mode) else Kind.SPECIAL


def entry_of(path: bytes, attributes: Attributes, link: bytes = b"") -> Entry:
    """Return a listing's entry; times are whole seconds."""
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
    """Return whether a file matches its listing in kind, size and second of its time (SFTP has no more)."""
    return (
        kind_of(attributes) is entry.kind
        and attributes.size == entry.size
        and channel.whole_seconds(entry.mtime_ns) == attributes.seconds
    )


def listed_names(client: Client, path: bytes) -> Sequence[Listed]:
    """Return all names in a folder, with several requests in flight. Raise `StatusError`."""
    handle = client.handle_of(client.request_open_folder(path))
    found: list[Listed] = []
    requests = [client.request_names(handle)]
    try:
        while requests:
            some = client.names_of(requests.pop(0))
            found += some
            if some:
                requests += [client.request_names(handle) for _ in range(_AHEAD - len(requests))]
            else:
                break
        for pending in requests:
            found += client.names_of(pending)
    finally:
        client.request_close(handle)
    return [one for one in found if one.name not in {b".", b".."}]
