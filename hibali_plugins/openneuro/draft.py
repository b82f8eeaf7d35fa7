"""Read the draft of a dataset from a fetch of its branch, and change it by one commit that is pushed.

The private repository, which has no work tree, is removed when it is closed. git gets the login in its configuration file, 0600 (S16),
reads no other, follows no redirect and runs no hook (S13).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import struct
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from hibali.annex_key import extension_of, key_of
from hibali.errors import AccessError, HibaliError, IncompleteError, TryLaterError
from hibali.files import lock_file, state_folder
from hibali.subprocesses import CommandResult, run
from hibali.text import printable
from hibali_plugins.openneuro.service import DraftService
from transfers.model.entry import enclosing
from transfers.model.facts import unsafe_component
from transfers.model.units import PACK_BYTES

_PREFIX = "openneuro-"
_SECONDS = 3600.0  # of a fetch or a push, which also end when nothing arrives
_CONFIG = """[core]
\trepositoryformatversion = 0
\tbare = true
\thooksPath = /dev/null
\tattributesFile = /dev/null
[gc]
\tauto = 0
[http]
\tfollowRedirects = false
\tlowSpeedLimit = 1
\tlowSpeedTime = 120
"""
_LOGIN = '\textraHeader = "Authorization: {}"\n'
_BRANCHES = ("main", "master")  # that the server takes; pre-receive
_KEY = re.compile(rb"(?P<name>[A-Z0-9]+)-s(?P<size>[0-9]{1,18})--(?P<digits>[0-9a-f]+)(\..*)?", re.DOTALL)
_POINTER = re.compile(rb"/annex/objects/(?:[^\r\n]*/)?(?P<name>[^/\r\n]+)")  # git-annex's page "pointer file"
_LETTERS = "0123456789zqjxkmvwgpfZQJXKMVWGPF"
_LARGER_THAN = re.compile(r"largerthan=([0-9]{1,12})(kb|mb|gb)?", re.IGNORECASE)
_UNITS = {"": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3}
_OWN = frozenset(
    {b".datalad", b".git", b".gitattributes", b".gitignore", b".gitmodules"}
)  # of the repository
_PENDING_BYTES = 64 * 1024 * 1024  # of blobs that wait for git
_DEEPEST = 256  # folders around a link
_ATTEMPTS = 4  # of a push, while others commit
_MIXED_UP = re.compile(rb"Working directory has (un)?staged changes")  # git's updateInstead
_CORRECT = "Correct what it names, then run the same command again: contents are not sent again."
_REPAIR = (
    "Pushes at the same moment left changes in OpenNeuro's own copy of the draft. Run the same command again; "
    "if that fails too, ask OpenNeuro's support to repair it before anyone changes the draft on its page."
)


class DraftFile(NamedTuple):
    """A file of the draft: the id of its blob, its size and sha256, "" if unknown, and its git-annex key, "" in git.

    `link` is the target of a symlink that is none of git-annex.
    """

    blob: str
    size: int
    sha256: str = ""
    key: str = ""
    link: bytes = b""


class Draft:
    """The draft at one moment, and what will be changed in it."""

    def __init__(self, service: DraftService) -> None:
        """Fetch the draft. Raises connection errors."""
        self._service = service
        with lock_file(
            state_folder() / "openneuro.lock"
        ):  # no other command sees a folder before it is locked
            for left in state_folder().glob(f"{_PREFIX}*"):
                _remove_abandoned(left)
            self._folder = tempfile.TemporaryDirectory(prefix=_PREFIX, dir=state_folder())
            self._held = _locked(self._folder.name)
        self._looking = Lock()
        self._pending: list[bytes] = []
        self._changes: dict[bytes, tuple[str, str] | None] = {}
        self.branch, self.head = "", ""
        try:
            self._init()
            self._update()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the repository; safe to call twice."""
        self._folder.cleanup()
        held, self._held = self._held, None
        if held is not None:
            os.close(held)

    # What exists

    def _init(self) -> None:
        git = Path(self._folder.name)
        for folder in ("objects", "refs", "info"):
            (git / folder).mkdir()
        (git / "HEAD").write_text("ref: refs/heads/none\n")
        self._configure()

    def _configure(self, header: str = "") -> None:
        """Write the configuration, with the login where a command needs it."""
        config = Path(self._folder.name, "config")
        config.touch(0o600)
        config.write_text(_CONFIG + (_LOGIN.format(header) if header else ""))

    def _git(self, *arguments: str, stdin: bytes = b"", seconds: float = 600.0) -> CommandResult:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        more = {
            "GIT_DIR": self._folder.name,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "true",
            "GIT_ALLOW_PROTOCOL": "https:http",  # http is this machine; see settings
            "LC_ALL": "C",
        }
        return run(["git", *arguments], stdin=stdin, timeout=seconds, environment={**kept, **more})

    def _output(self, *arguments: str, stdin: bytes = b"") -> bytes:
        finished = self._git(*arguments, stdin=stdin)
        if finished.exit_code:
            raise IncompleteError(
                "git-failed",
                f"git {arguments[0]} ended with status {finished.exit_code}: {_last_words(finished)}",
                subject=self._service.subject,
            )
        return finished.stdout

    def _contact(self, *arguments: str) -> CommandResult:
        """Run a git command that contacts the server, with another login if it refuses the first one."""
        for _ in range(2):
            header = self._service.login.header()
            self._configure(header)
            try:
                finished = self._git(*arguments, seconds=_SECONDS)
            finally:
                self._configure()
            denied = re.search(rb"Authentication failed|could not read|error: 401", finished.stderr)
            if finished.exit_code == 0 or not denied or not self._service.login.renew(header):
                break
        return finished

    def _fetch(self) -> None:
        """Fetch the branch of the draft, with its history: the worker fails at a push from a shallow clone. Raise `HibaliError`."""
        url = self._service.git_url
        listed = self._contact("ls-remote", "--symref", url, "HEAD")
        found = re.match(rb"ref: refs/heads/([a-z]+)\tHEAD\n([0-9a-f]{40})\tHEAD\n", listed.stdout)
        if listed.exit_code or found is None or found[1].decode() not in _BRANCHES:
            raise self._failure("not-fetched", "the draft cannot be fetched", listed)
        self.branch = found[1].decode()
        wanted = f"+refs/heads/{self.branch}:refs/heads/fetched"
        fetched = self._contact("fetch", "--quiet", "--no-tags", url, wanted)
        if fetched.exit_code:
            raise self._failure("not-fetched", "the draft cannot be fetched", fetched)
        self.head = self._output("rev-parse", "--verify", "refs/heads/fetched").decode().strip()

    def _failure(self, code: str, message: str, finished: CommandResult) -> HibaliError:
        if b"error: 403" in finished.stderr:
            return AccessError(
                "denied",
                f"{message}: {_last_words(finished)}",
                subject=self._service.subject,
                hint="Check the permissions of the dataset on its page.",
            )
        return TryLaterError(
            code,
            f"{message}: {_last_words(finished)}",
            subject=self._service.subject,
            hint="Run the same command again: what the server has is not sent again.",
            transient=False,
        )

    def _list(self) -> Iterator[tuple[bytes, DraftFile]]:
        """Yield the files of the draft, without those that belong to git and DataLad, and without submodules; note the paths of all."""
        found: list[tuple[bytes, bytes, bytes]] = []
        self._paths: set[bytes] = set()
        for line in self._output("ls-tree", "-r", "-z", self.head).split(b"\0")[:-1]:
            about, _, path = line.partition(b"\t")
            mode, kind, blob = about.split(b" ")
            self._paths.add(path)
            if path == b".gitattributes":
                attributes = self._output("cat-file", "blob", blob.decode())
                Path(self._folder.name, "info", "attributes").write_bytes(attributes)
            if kind == b"blob" and _OWN.isdisjoint(path.split(b"/")) and unsafe_component(path) is None:
                found.append((path, mode, blob))
        self._folders = {above for path in self._paths for above in enclosing(path)}
        asked = b"".join(blob + b"\n" for _, _, blob in found)
        contents = self._output("cat-file", "--batch=%(objectsize)", stdin=asked)
        at = 0
        for path, mode, blob in found:
            end = contents.index(b"\n", at)
            size = int(contents[at:end])
            content = contents[end + 1 : end + 1 + size]
            at = end + 1 + size + 1
            yield path, _described(mode, blob.decode(), content)

    def read(self, blob: str) -> bytes:
        """Return the content of a file that is in git itself."""
        return self._output("cat-file", "blob", blob)

    def annexes(self, paths: Sequence[bytes]) -> dict[bytes, int]:
        """Return for each path from which size on its content goes to the annex, as .gitattributes of the draft says."""
        asked = b"".join(path + b"\0" for path in paths)
        answer = self._output("check-attr", "-z", "--stdin", "annex.largefiles", stdin=asked).split(b"\0")
        found = {}
        for path, value in zip(answer[::3], answer[2::3], strict=False):
            found[path] = _least_size(value.decode("ascii", "replace"))
        return found

    def is_blocked(self, path: bytes) -> bool:
        """Return whether a file of that name would replace a folder, or something that is no file, or what is above it."""
        above = any(folder in self._paths for folder in enclosing(path))
        return above or path in self._folders or (path in self._paths and path not in self.files)

    def points_at(self, key: str) -> bool:
        """Return whether a commit of the branch or of a snapshot has the key now, as a link of any depth or as git-annex's unlocked file."""
        with self._looking:
            wanted = f"+refs/heads/{self.branch}:refs/heads/seen", "+refs/tags/*:refs/tags/*"
            fetched = self._contact("fetch", "--quiet", self._service.git_url, *wanted)
        if fetched.exit_code:
            raise self._failure("not-fetched", "the draft cannot be fetched", fetched)
        contents = [link_of(b"/" * depth, key) for depth in range(_DEEPEST)]
        contents.append(b"/annex/objects/%s\n" % key.encode())
        asked = b"".join(_id_of(content).encode() + b"\n" for content in contents)
        return b" blob " in self._output("cat-file", "--batch-check", stdin=asked)

    # What changes

    def put(self, path: bytes, content: bytes) -> str:
        """Note the content of a file that is in git itself; return its id."""
        return self._add(path, "100644", content)

    def link(self, path: bytes, key: str) -> str:
        """Note a file whose content is in the annex under a key; return the id of its pointer."""
        return self._add(path, "120000", link_of(path, key))

    def remove(self, path: bytes) -> None:
        """Note that a file is removed."""
        self._changes[path] = None

    def _add(self, path: bytes, mode: str, content: bytes) -> str:
        self._pending.append(content)
        if sum(map(len, self._pending)) > _PENDING_BYTES:
            self._store_blobs()
        blob = _id_of(content)
        self._changes[path] = (mode, blob)
        return blob

    def _store_blobs(self) -> None:
        pending, self._pending = self._pending, []
        self._import(b"".join(b"blob\ndata %d\n%s\n" % (len(content), content) for content in pending))

    def _import(self, stream: bytes) -> None:
        self._output("fast-import", "--quiet", "--force", "--done", stdin=stream + b"done\n")

    def commit(self) -> None:
        """Commit the changes and push them; afterwards the draft is as it was pushed.

        Raises:
            IncompleteError: The server refused the commit, or someone changed the same files meanwhile.
            TryLaterError: The server cannot be reached, or it is not known whether it took the commit.
        """
        changes, self._changes = self._changes, {}
        if self._pending:
            self._store_blobs()
        wanted = {path: change[1] if change is not None else None for path, change in changes.items()}
        before = self._blobs(changes)
        if before == wanted:
            return
        pushed: CommandResult | None = None
        for _ in range(_ATTEMPTS):
            # two pushes at once leave files of both in the index of the server, which then refuses every later one
            with lock_file(state_folder() / f"draft-{self._service.dataset}.lock"):
                pushed = self._push(changes, before, wanted)
            if pushed is None:
                return
        assert pushed is not None
        raise self._failure("not-committed", "the commit of the draft cannot be pushed", pushed)

    def _push(
        self,
        changes: dict[bytes, tuple[str, str] | None],
        before: dict[bytes, str | None],
        wanted: dict[bytes, str | None],
    ) -> CommandResult | None:
        """Commit and push once, on the draft as it is now; return the result of a push that may succeed if it is repeated."""
        self._update()
        now = self._blobs(changes)
        if now == wanted:
            return None
        overtaken = any(now[path] not in {before[path], wanted[path]} for path in changes)
        if overtaken or any(self.is_blocked(path) for path in changes if changes[path] is not None):
            raise self._overtaken(
                "someone changed the same files of the draft meanwhile, so nothing was committed"
            )
        head, new = self.head, self._committed(changes)
        pushed = self._contact("push", "--quiet", self._service.git_url, f"{new}:refs/heads/{self.branch}")
        self._update()
        if self._blobs(changes) == wanted:  # also where the answer was lost
            return None
        if self._git("merge-base", "--is-ancestor", new, self.head).exit_code == 0:
            raise self._overtaken("the commit was made, but someone changed the same files after it")
        if self.head == head and b"[remote rejected]" in pushed.stderr:
            raise IncompleteError(
                "commit-refused",
                f"OpenNeuro refused the commit of the draft: {_last_words(pushed)}",
                subject=self._service.subject,
                hint=_REPAIR if _MIXED_UP.search(pushed.stderr) else _CORRECT,
            )
        return pushed

    def _update(self) -> None:
        self._fetch()
        self.files = dict(self._list())

    def _overtaken(self, message: str) -> IncompleteError:
        return IncompleteError(
            "target-changed",
            message,
            subject=self._service.subject,
            hint="Run the same command again, which compares with the draft as it is now.",
        )

    def _blobs(self, paths: Iterable[bytes]) -> dict[bytes, str | None]:
        return {path: self.files[path].blob if path in self.files else None for path in paths}

    def _committed(self, changes: dict[bytes, tuple[str, str] | None]) -> str:
        """Return a commit with the changes on the head."""
        name, address = self._service.author
        message = b"[hibali] Changed files"
        person = f"{name} <{address}> {int(time.time())} +0000".encode()
        lines = [b"commit refs/heads/draft", b"author " + person, b"committer " + person]
        lines += [b"data %d\n%s" % (len(message), message), b"from " + self.head.encode()]
        lines += [b"D " + _quoted(path) for path, change in changes.items() if change is None]
        lines += [
            f"M {change[0]} {change[1]} ".encode() + _quoted(path)
            for path, change in changes.items()
            if change is not None
        ]
        self._import(b"\n".join(lines) + b"\n\n")
        return self._output("rev-parse", "--verify", "refs/heads/draft").decode().strip()


def _locked(folder: str | Path) -> int | None:
    """Return a descriptor that locks a folder while this process lives, None if another one has it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _remove_abandoned(folder: Path) -> None:
    """Remove what a killed command left, which may have a login in it."""
    with contextlib.suppress(FileNotFoundError):  # its command ends just now
        descriptor = _locked(folder)
        if descriptor is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)


def _id_of(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def annex_key(path: bytes, size: int, sha256: str) -> str:
    """Return the git-annex key of a content."""
    return key_of(size, sha256, extension_of(os.fsdecode(path)))


def link_of(path: bytes, key: str) -> bytes:
    """Return the symlink by which git-annex names a content: git-annex's page "hashing", the mixed one."""
    word = struct.unpack("<I", hashlib.md5(key.encode(), usedforsecurity=False).digest()[:4])[0]
    one, two, three, four = (_LETTERS[word >> (6 * at) & 31] for at in range(4))
    up = "../" * path.count(b"/")
    return os.fsencode(f"{up}.git/annex/objects/{two}{one}/{four}{three}/{key}/{key}")


def pointer_name(content: bytes) -> bytes:
    """Return the name in the annex at which a file points that git-annex calls unlocked, b"" if it is none."""
    found = _POINTER.match(content)
    return found["name"] if found is not None else b""


def _described(mode: bytes, blob: str, content: bytes) -> DraftFile:
    is_link = mode == b"120000"
    name = content.rpartition(b"/")[2] if is_link else pointer_name(content)
    key = _KEY.fullmatch(name) if not is_link or b".git/annex/objects/" in content else None
    if key is None and is_link:
        return DraftFile(blob, len(content), link=content)
    if key is None:
        return DraftFile(blob, len(content), hashlib.sha256(content).hexdigest())
    is_sha256 = key["name"] in {b"SHA256", b"SHA256E"} and len(key["digits"]) == 64
    return DraftFile(
        blob, int(key["size"]), key["digits"].decode() if is_sha256 else "", name.decode("utf-8", "replace")
    )


def _least_size(largefiles: str) -> int:
    """Return the size from which on files are annexed: expressions other than those of OpenNeuro's own datasets mean all."""
    if largefiles == "nothing":
        return PACK_BYTES + 1
    found = _LARGER_THAN.fullmatch(largefiles)
    if found is None:
        return 0
    return min(PACK_BYTES, int(found[1]) * _UNITS[(found[2] or "").lower()]) + 1


def _quoted(path: bytes) -> bytes:
    """Return a path as fast-import reads it."""
    return (
        b'"'
        + b"".join(b"\\%03o" % byte if byte < 32 or byte in b'"\\' else bytes([byte]) for byte in path)
        + b'"'
    )


def _last_words(finished: CommandResult) -> str:
    text = b" ".join(finished.stderr.split())[-400:]
    return printable(text) or f"git ended with status {finished.exit_code}"
