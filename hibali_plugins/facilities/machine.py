"""Handle the files of a machine that is reached by single calls of a service: private files of runs, paths as users write them, and failed commands."""

from __future__ import annotations

import json
import secrets
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn, TypeVar

from hibali.errors import AccessError, HibaliError, IncompleteError, NotFoundError, RefusedError, UsageError
from hibali.events import Listener
from hibali.http.client import Response
from hibali.locations import Location
from hibali.text import printable
from transfers.model.entry import Entry, Kind
from transfers.remote.host import CommandResult, OnceResult, SmallFile
from transfers.stores.server.filesystem import Filesystem
from transfers.stores.server.own_files import OWN
from transfers.stores.server.records import PIECE_BYTES, Found
from transfers.stores.server.store import ServerStore

MACHINE_AHEAD = PIECE_BYTES + 1  # two pieces: what is under way at a kill is received again
_MOST_SHOWN = 300  # characters of what a service says

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class MachineFiles(Filesystem):
    """The files of a Linux machine, as one account sees them. Paths are absolute; `children` and `stat` do not follow symlinks."""

    @abstractmethod
    def home(self) -> bytes:
        """Return the home folder of the account."""

    @abstractmethod
    def user(self) -> str:
        """Return the name of the account at the machine, "" if the service does not tell it."""

    @abstractmethod
    def is_private(self, path: bytes) -> bool:
        """Return whether it is a folder of this account or root that others cannot write; follows symlinks."""

    @abstractmethod
    def set_mode(self, path: bytes, mode: int) -> None:
        """Set the permissions of a file or folder."""

    @abstractmethod
    def copy(self, source: bytes, target: bytes) -> None:
        """Copy a file or a tree at the machine, to a name that does not exist, never as a hard link."""

    def is_empty(self, folder: bytes) -> bool:
        """See Files; an empty folder of locks, which stays, counts as nothing."""
        names = [name for name, _ in self.children(folder)]
        return not names or (names == [OWN] and not self.children(folder + b"/" + OWN))

    def variable(self, name: str) -> bytes | None:
        """Return the path in an environment variable of the account, None if it is not known."""
        del name
        return None

    def stat_followed(self, path: bytes) -> Found | None:
        """Return the properties of a path, following a symlink in its last component; None if it is missing."""
        return self.stat(path)

    def put_private(self, path: bytes, content: bytes, *, executable: bool = False) -> None:
        """Write a small file of mode 0600 or 0700, which appears under its name when it is complete."""
        partial = path.rpartition(b"/")[0] + b"/.hibali-" + secrets.token_hex(16).encode("ascii")
        try:
            self.put(partial, content)
            self.set_mode(partial, 0o700 if executable else 0o600)
            self.move(partial, path)
        except HibaliError:
            self.delete(partial)
            raise

    def expand(self, path: str) -> bytes:
        """Expand a path that may start with `~` or `$NAME` to an absolute one. Raise `UsageError` for an unknown variable."""
        start, slash, rest = path.partition("/")
        below = (slash + rest).encode("utf-8", "surrogateescape")
        if start == "~":
            return (self.home() + below).rstrip(b"/") or b"/"
        if start.startswith("$"):
            name = start[1:].removeprefix("{").removesuffix("}")
            found = self.variable(name)
            if found is None:
                raise UsageError(
                    "unknown-variable",
                    f"the service does not tell the value of {printable(start)}",
                    subject=self.subject,
                    hint="Write the path in full in the settings of the site: hibali config edit",
                )
            return (found + below).rstrip(b"/") or b"/"
        return path.encode("utf-8", "surrogateescape")


def open_machine_store(files: MachineFiles, location: Location, on_event: Listener) -> ServerStore:
    """Return the store of a folder at a machine; the store closes `files`."""
    try:
        root = files.expand(location.path)
    except BaseException:
        files.close()
        raise
    site = location.site
    return ServerStore(
        files,
        site.name,
        root.rstrip(b"/"),
        slash=location.slash,
        on_event=on_event,
        lease=site.limits.lease_seconds,
    )


class FilesHost:
    """The machine behind a service (transfers.remote.host.RemoteHost), where no commands can be run."""

    def __init__(self, files: MachineFiles, site: str) -> None:
        self.files = files
        self._site = site
        self._folders: set[bytes] = set()  # that exist

    def expand(self, path: str) -> bytes:
        """See RemoteHost."""
        return self.files.expand(path)

    def facts(self) -> dict[str, str]:
        """See RemoteHost: only what the service tells."""
        home = printable(self.files.home())
        return {
            "host": self._site,
            "user": self.files.user(),
            "home": home,
            "python": "",
            "boot": "",
            "clock": "",
        }

    def stat(self, path: bytes) -> Entry | None:
        """See RemoteHost."""
        found = self.files.stat_followed(path)
        return (
            None
            if found is None
            else Entry(b"", found.kind, found.size, found.mtime_ns, etag=found.tag or None)
        )

    def is_private(self, path: bytes) -> bool:
        """See RemoteHost."""
        return self.files.is_private(path)

    def make_folder(self, path: bytes, *, exclusive: bool = False) -> bool:
        """See RemoteHost."""
        if path in self._folders and not exclusive:
            return False
        if not exclusive and self._is_folder(path):
            return False
        above = path.rpartition(b"/")[0]
        if above and above not in self._folders and not self._is_folder(above):
            self.make_folder(above)
        made = True
        if exclusive:
            made = self.files.claim_folder(path)
        else:
            self.files.make_folder(path)
        if made:
            self.files.set_mode(path, 0o700)
        self._folders.add(path)
        return made

    def _is_folder(self, path: bytes) -> bool:
        """Return whether a folder exists. Raise `IncompleteError` for a file of that name."""
        found = self.files.stat_followed(path)
        if found is None:
            return False
        if not found.folder:
            raise name_of_folder_is_taken(self._subject(path))
        self._folders.add(path)
        return True

    def put(self, path: bytes, content: bytes, *, executable: bool = False) -> None:
        """See RemoteHost."""
        self.files.put_private(path, content, executable=executable)

    def get(self, path: bytes, *, maximum: int = 1 << 20, offset: int = 0) -> bytes | None:
        """See RemoteHost."""
        found = self.files.stat(path)
        if found is None:
            return None
        if found.kind is not Kind.FILE:
            raise IncompleteError("not-a-file", "it is not a regular file", subject=self._subject(path))
        length = min(maximum, max(found.size - offset, 0))
        try:
            return self.files.read(path, offset, length) if length else b""
        except NotFoundError:
            return None

    def put_all(self, files: Sequence[SmallFile], folders: Sequence[bytes] = ()) -> None:
        """See RemoteHost: several requests at a time."""
        for path in folders:  # parents first
            self.make_folder(path)
        self._at_once(lambda each: self.put(each.path, each.content, executable=each.executable), files)

    def get_all(self, paths: Sequence[bytes], *, maximum: int = 1 << 16) -> list[bytes | None]:
        """See RemoteHost: several requests at a time."""
        return self._at_once(lambda path: self._get_one(path, maximum), paths)

    def _get_one(self, path: bytes, maximum: int) -> bytes | None:
        try:
            return self.get(path, maximum=maximum)
        except (IncompleteError, AccessError):
            return None

    def _at_once(self, act: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
        listed = list(items)
        if len(listed) < 2:
            return [act(each) for each in listed]
        with ThreadPoolExecutor(min(len(listed), max(1, self.files.traits.threads))) as pool:
            return list(pool.map(act, listed))

    def copy_all(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        """See RemoteHost."""
        self._at_once(lambda pair: self.files.copy(*pair), pairs)

    def names(self, path: bytes) -> list[bytes]:
        """See RemoteHost."""
        try:
            return sorted(name for name, _ in self.files.children(path))
        except NotFoundError:
            return []

    def copy(self, source: bytes, target: bytes) -> None:
        """See RemoteHost."""
        self.files.copy(source, target)

    def move(self, source: bytes, target: bytes) -> None:
        """See RemoteHost; the request would replace a file, so the target is looked for first."""
        if self.files.stat(target) is None:
            self.files.move(source, target)

    def remove_tree(self, path: bytes) -> None:
        """See RemoteHost; symlinks are removed, not followed."""
        if not path.strip(b"/"):
            raise RefusedError("unsafe-name", "refusing to remove /", subject=self._site)
        self._folders = {each for each in self._folders if each != path and not each.startswith(path + b"/")}
        found = self.files.stat(path)
        if found is None:
            return
        if found.folder:
            self.files.remove_tree(path)
        else:
            self.files.delete(path)

    def digest(self, path: bytes) -> str:
        """See RemoteHost."""
        found = self.files.stat_followed(path)
        if found is None or found.kind is not Kind.FILE:
            raise NotFoundError("no-digest", "it is not a regular file", subject=self._subject(path))
        return self.files.digest(path, found.size)[0]

    def run(
        self,
        argv: Sequence[bytes | str],
        *,
        stdin: bytes = b"",
        folder: bytes | None = None,
        timeout: float = 60.0,
    ) -> CommandResult:
        """See RemoteHost; always refused."""
        del argv, stdin, folder, timeout
        self._refuse()

    def run_once(
        self, marker: bytes, argv: Sequence[bytes | str], *, folder: bytes | None = None
    ) -> OnceResult:
        """See RemoteHost; always refused."""
        del marker, argv, folder
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise UsageError(
            "no-machine",
            f"commands cannot be run at {self._site}, only jobs",
            subject=self._site,
            hint="Use an ssh or local site: hibali sites list",
        )

    def _subject(self, path: bytes) -> str:
        return f"{self._site}:{printable(path)}"

    def close(self) -> None:
        """See RemoteHost."""
        self.files.close()


NO_JOB = "there is no such job"
_REASONS: tuple[tuple[str, type[HibaliError], str, str], ...] = (
    ("no space left", IncompleteError, "no-space", "the filesystem has no free space"),
    ("quota exceeded", IncompleteError, "no-space", "the quota is exceeded"),
    ("permission denied", AccessError, "denied", "the site denied access"),
    ("access is denied", AccessError, "denied", "the site denied access"),
    ("not permitted", AccessError, "denied", "the site denied access"),
    # FirecREST and IRI, of paths above what they give access to
    ("any of the defined filesystem paths", AccessError, "denied", "the service has no filesystem there"),
    ("path outside sandbox", AccessError, "denied", "the service has no filesystem there"),
    ("already completing or completed", NotFoundError, "vanished", "the job has ended"),  # scancel
    ("job has finished", NotFoundError, "vanished", "the job has ended"),  # qdel
    ("unknown job id", NotFoundError, "vanished", NO_JOB),
    ("invalid job id", NotFoundError, "vanished", NO_JOB),
    ("no such file", NotFoundError, "vanished", "it does not exist"),
    ("file exists", IncompleteError, "not-a-folder", "a part of its path is a file"),
    ("not a directory", IncompleteError, "not-a-folder", "a part of its path is a file"),
    ("is a directory", IncompleteError, "not-a-file", "it is a folder"),
)
_GENERAL = frozenset({401, 403, 404, 405, 408, 412, 413, 423, 425, 429})  # their status says enough


def reason_in(response: Response, *keys: str) -> str:
    """Return what a service says about an error in one of these fields, printable and short."""
    try:
        record = json.loads(response.body)
        return printable(str(next(filter(None, map(record.get, keys)), "")))[:_MOST_SHOWN]
    except (ValueError, AttributeError, RecursionError):
        return ""


def failure_of(reason: str, subject: str) -> HibaliError | None:
    """Return the error that the message of a failed command names (strerror(3), in the C locale), None for an unknown one."""
    lowered = reason.lower()
    for text, kind, code, message in _REASONS:
        if text in lowered:
            return kind(code, message, subject=subject)
    return None


def refusal_of(status: int, reason: str, subject: str) -> HibaliError | None:
    """Return the error for a request that a service refuses with a reason of its own; None for other failures, or without a reason."""
    if not reason or status in _GENERAL or not 400 <= status < 500:
        return None
    message = f"the service refuses the request: {reason} (status {status})"
    return IncompleteError("refused-by-server", message, subject=subject)


def name_of_folder_is_taken(subject: str) -> IncompleteError:
    """Return the error for a folder that cannot be created."""
    return IncompleteError(
        "not-a-folder", "a file with the name of the folder already exists", subject=subject
    )
