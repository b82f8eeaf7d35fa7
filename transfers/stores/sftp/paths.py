"""Check every folder above a name over SFTP (S1), and who owns symlinks in a root's path (S21).

SFTP takes whole paths, so a folder can be replaced after its check. The path is therefore resolved
once and checked again before each change. docs/sftp.md lists what is not guaranteed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hibali.errors import HibaliError, IncompleteError, NotFoundError, RefusedError
from hibali.system_errors import message_of
from hibali.text import printable
from transfers.model.entry import Kind
from transfers.model.facts import unsafe_component
from transfers.model.units import Problem
from transfers.stores.sftp import channel
from transfers.stores.sftp.channel import Attributes, StatusError
from transfers.stores.sftp.client import Client, expand, kind_of, problem_of

_LONGEST_NAME = 255
_LONGEST_PATH = 4096
_FOLDER_MODE = 0o777  # the server's umask decides


def refusal(path: bytes) -> Problem | None:
    """Return why a relative path is refused, or None."""
    reason = unsafe_component(path)
    if reason:
        return Problem("unsafe-name", f"the name is not a safe relative path: {reason}")
    if len(path) > _LONGEST_PATH or any(len(part) > _LONGEST_NAME for part in path.split(b"/")):
        return Problem("name-too-long", "File name too long")
    return None


class SafePaths:
    """Safe paths below one root; thread-safe."""

    def __init__(self, client: Client, root: bytes) -> None:
        self._client = client
        self._prefix = root if root.endswith(b"/") else root + b"/"

    def full(self, path: bytes) -> bytes:
        """Return the absolute path of a relative one; b"" is the root."""
        return self._prefix + path

    def parents(self, paths: Iterable[bytes], *, make: bool = False) -> dict[bytes, Problem]:
        """Check all folders above these paths at once; with `make` create missing ones. Return problems.

        A symlink or a file in place of a folder is a problem of every path below it.
        """
        all_paths = list(paths)
        wrong = {path: problem for path in all_paths if (problem := refusal(path)) is not None}
        folders = sorted({above for path in all_paths if path not in wrong for above in _above(path)})
        found = self._check_or_create(folders, make=make)
        for path in all_paths:
            if path not in wrong:
                bad = next((found[above] for above in _above(path) if above in found), None)
                if bad is not None:
                    wrong[path] = bad
        return wrong

    def _check_or_create(self, folders: list[bytes], *, make: bool) -> dict[bytes, Problem]:
        """Return the problems by folder; `folders` is sorted, so parents come first."""
        wrong, missing = self._check(folders)
        if not (make and missing):
            return {**wrong, **dict.fromkeys(missing, _VANISHED)}
        requests = [self._client.request_make_folder(self.full(folder), _FOLDER_MODE) for folder in missing]
        refused: dict[bytes, StatusError] = {}
        for folder, pending in zip(missing, requests, strict=True):
            try:
                pending.wait()
            except StatusError as problem:  # another client may have made it
                refused[folder] = problem
        still_wrong, absent = self._check(missing)
        for folder in absent:
            cause = refused.get(folder)
            still_wrong[folder] = self._client.problem(cause, self.full(b"")) if cause else _VANISHED
        return {**wrong, **still_wrong}

    def _check(self, folders: list[bytes]) -> tuple[dict[bytes, Problem], list[bytes]]:
        """Return the problems of existing names that are no folders, and the missing folders."""
        requests = [self._client.request_stat(self.full(folder)) for folder in folders]
        wrong: dict[bytes, Problem] = {}
        missing = []
        for folder, pending in zip(folders, requests, strict=True):
            try:
                kind = kind_of(self._client.attributes_of(pending))
            except StatusError as problem:
                if problem.code == channel.NO_SUCH_FILE:
                    missing.append(folder)
                else:
                    wrong[folder] = problem_of(problem)
                continue
            if kind is Kind.LINK:
                wrong[folder] = Problem("symlink-in-the-way", message_of("symlink-in-the-way"))
            elif kind is not Kind.FOLDER:
                wrong[folder] = Problem("not-a-folder", message_of("not-a-folder"))
        return wrong, missing


_VANISHED = Problem("vanished", message_of("vanished"))


def _above(path: bytes) -> list[bytes]:
    """Return the folders above a path, outermost first, without the root."""
    parts = path.split(b"/")[:-1]
    return [b"/".join(parts[: count + 1]) for count in range(len(parts))]


_MOST_LINKS = 40


@dataclass(frozen=True, slots=True)
class Reached:
    """A path resolved as far as it exists; `inside` and `foreign` as in `safe_path.OpenedFolder`."""

    path: bytes
    inside: bool
    foreign: RefusedError | None


class Guard:
    """The configured roots of one site; the roots and the folders above them are trusted."""

    def __init__(self, client: Client, roots: Iterable[str]) -> None:
        """Set the fields; `roots` have the format of `Location.path`."""
        self._client = client
        self._written = tuple(roots)
        self._roots: list[bytes] | None = None
        self._user: int | None = None

    def reach(self, path: bytes, *, writes: bool = False, confined: bool = False) -> Reached:
        """Resolve an absolute path. Raise `RefusedError` for a symlink of another account below a root.

        With `writes`, also refuse such a symlink outside all roots; with `confined`, refuse a path that
        leads out of the innermost configured root that it names.
        """
        self._prepare()
        assert self._roots is not None
        above = [root for root in self._roots if is_below(path, root)]
        walk = _Walk(self._client, self._user, above[0] if above else b"/", guarded=bool(above))
        innermost = above[-1] if above else b"/"
        walk.follow(_names(innermost[len(above[0] if above else b"/") :]))
        root = walk.path
        walk.follow(_names(path[len(innermost) :]))
        found = Reached(walk.path, not above or is_below(walk.path, root), walk.foreign)
        if writes and found.foreign is not None:
            raise found.foreign
        if confined and not found.inside:
            raise RefusedError(
                "leaves-root",
                f"symlinks in this path lead out of the configured root, to {printable(found.path)}",
                subject=f"{self._client.subject}:{printable(path)}",
                hint="To delete files there, use that path instead, or configure it as a root of the site.",
            )
        return found

    def check_above(self, paths: Sequence[bytes]) -> None:
        """Raise `RefusedError` if a symlink of another account is above one of these paths."""
        for folder in {path.rpartition(b"/")[0] or b"/" for path in paths}:
            self.reach(folder, writes=True)

    def check_same(self, path: bytes, before: bytes) -> None:
        """Raise `IncompleteError` if a path resolves to another place than `before`."""
        now = self.reach(path, writes=True).path
        if now != before:
            raise IncompleteError(
                "root-changed",
                f"this path led to {printable(before)} before and leads to {printable(now)} now",
                subject=f"{self._client.subject}:{printable(path)}",
                hint="Check which accounts can write to the folders above it.",
            )

    def _prepare(self) -> None:
        if self._roots is not None:
            return
        found = set()
        for root in self._written:
            try:
                found.add(expand(self._client, root.encode("utf-8", "surrogateescape")))
            except NotFoundError:  # a root with a variable
                continue
        self._roots = sorted(found, key=len)
        self._user = self._client.home_user()


class _Walk:
    """A path resolution by component; `path` has no symlink below its start."""

    def __init__(self, client: Client, user: int | None, start: bytes, *, guarded: bool) -> None:
        self._client = client
        self._user = user
        self._guarded = guarded
        self._links = 0
        self.path = _real(client, start)
        self.foreign: RefusedError | None = None

    def follow(self, names: list[bytes]) -> None:
        """Resolve these names (the list is emptied) and the symlinks among them."""
        names.reverse()
        known: dict[bytes, Attributes | None] = {}
        while names:
            if not known:
                known = self._stat_components(names)
            name = names.pop()
            if name == b"..":
                self.path = self.path.rpartition(b"/")[0] or b"/"
                known = {}
                continue
            full = _join(self.path, name)
            found = known.pop(full, None)
            if found is None or kind_of(found) is not Kind.LINK:
                self.path = full
                continue
            names += reversed(_names(self._target(full, found)))
            known = {}

    def _stat_components(self, names: list[bytes]) -> dict[bytes, Attributes | None]:
        """Request the attributes of all next components in one round trip; symlinks are rare."""
        path, requests = self.path, []
        for name in reversed(names):
            if name == b"..":
                break
            path = _join(path, name)
            requests.append((path, self._client.request_stat(path)))
        found: dict[bytes, Attributes | None] = {}
        for path, pending in requests:
            try:
                found[path] = self._client.attributes_of(pending)
            except StatusError:  # missing, or the later use reports the error
                found[path] = None
        return found

    def _target(self, full: bytes, found: Attributes) -> bytes:
        self._links += 1
        if self._links > _MOST_LINKS:
            raise IncompleteError(
                "symlink-in-the-way", "too many levels of symbolic links", subject=self._subject(full)
            )
        try:
            names = self._client.names_of(self._client.request_readlink(full))
        except StatusError as problem:
            raise self._client.error(problem, full) from None
        target = names[0].name if names else b""
        if found.user is None or found.user not in {0, self._user}:
            self._meet_foreign(full, found.user, target)
        if target.startswith(b"/"):
            self.path = b"/"
        return target

    def _meet_foreign(self, full: bytes, owner: int | None, target: bytes) -> None:
        whose = "an unknown account" if owner is None else f"another account (uid {owner})"
        refusal = RefusedError(
            "foreign-symlink",
            f"{printable(full)} is a symlink to {printable(target)} that belongs to {whose}",
            subject=self._subject(full),
            hint="If you trust its target, use that path instead.",
        )
        if self._guarded:
            raise refusal
        self.foreign = self.foreign or refusal

    def _subject(self, full: bytes) -> str:
        return f"{self._client.subject}:{printable(full)}"


def _real(client: Client, path: bytes) -> bytes:
    try:
        return client.real_path(path)
    except HibaliError:  # some servers resolve only existing paths
        return path


def _join(folder: bytes, name: bytes) -> bytes:
    return folder.rstrip(b"/") + b"/" + name


def _names(path: bytes) -> list[bytes]:
    return [name for name in path.split(b"/") if name not in {b"", b"."}]


def is_below(path: bytes, root: bytes) -> bool:
    """Return whether a path is a root or below it, compared as text."""
    return path == root or path.startswith(root.rstrip(b"/") + b"/")
