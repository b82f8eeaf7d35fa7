"""Find the git-annex repository around a path, and get annexed contents."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hibali.annex_key import digest_of, size_of
from hibali.errors import IncompleteError, NotFoundError
from hibali.files import account_names
from hibali.subprocesses import CommandResult, run
from hibali.text import printable

POINTER_BYTES = 32 * 1024  # the largest pointer file that git-annex accepts
_OBJECTS = b"/.git/annex/objects/"
POINTER = b"/annex/objects/"  # the start of a pointer file
_KEY = re.compile(rb"[A-Z0-9_]+(?:-[a-zA-Z][0-9]+)*--[^/\n\0]+")


@dataclass(frozen=True, slots=True)
class Key:
    """A git-annex key, named as its files are (`hibali.annex_key.key_of_name`); `size` and `sha256` (hexadecimal) if the key has them, else -1 and None."""

    name: bytes
    size: int
    sha256: str | None


def read_key(name: bytes) -> Key | None:
    """Parse a key (git-annex, "key format"); None for an invalid one."""
    if not _KEY.fullmatch(name):
        return None
    text = os.fsdecode(name)
    size = size_of(text)
    return Key(name, -1 if size is None else size, digest_of(text))


def key_of_link(link: bytes, folder: bytes) -> tuple[bytes, bytes, Key] | None:
    """Resolve the target `link` of a symlink in `folder` (absolute).

    Returns:
        The repository's root, the path below its objects folder, and the key; None for any other symlink.
    """
    if _OBJECTS[1:] not in link or link.startswith(b"/"):
        return None
    root, _, below = os.path.normpath(folder + b"/" + link).partition(_OBJECTS)
    parts = below.split(b"/")
    if len(parts) < 2 or parts[-1] != parts[-2]:
        return None
    key = read_key(parts[-1])
    return (root, below, key) if key is not None else None


def key_of_pointer(content: bytes) -> Key | None:
    """Return the key in a pointer file; None for any other file."""
    if not content.startswith(POINTER):
        return None
    return read_key(content[len(POINTER) :].partition(b"\n")[0])


_PATH_BYTES = 8192
# The repository's own files and folders: not data, so never sent, received or deleted.
RESERVED = frozenset({b".git", b".datalad", b".gitattributes", b".gitmodules"})


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository: absolute `root` without symlinks, git folder, and whether git-annex is used."""

    root: bytes
    git: bytes
    annex: bool

    @property
    def objects(self) -> bytes:
        """The folder of annexed contents."""
        return self.git + b"/annex/objects"


@dataclass(frozen=True, slots=True)
class RepositoryPath:
    """A path without symlinks in a repository; `link` if it is a single annexed file."""

    repository: Repository
    path: bytes
    link: bool = False


def repository_around(folder: bytes) -> Repository | None:
    """Return the nearest repository at or above an absolute path without symlinks.

    None if there is no repository, or one of plain git.
    """
    while not os.path.lexists(folder + b"/.git"):
        above = folder.rpartition(b"/")[0]
        if above == folder:
            return None
        folder = above
    git = _git_folder(_path(folder))
    annex = git is not None and _has_annex(git)
    if git is None or not (annex or _path(folder + b"/.datalad/config").is_file()):
        return None
    return Repository(folder or b"/", os.fsencode(git), annex)


def find_repository_path(root_path: bytes) -> RepositoryPath | None:
    """Return the repository and the resolved form of an absolute path, which may be missing.

    None outside of one. Symlinks are followed, except those of git-annex.
    """
    above, _, name = root_path.rstrip(b"/").rpartition(b"/")
    folder = os.path.realpath(above or b"/")
    path = folder.rstrip(b"/") + b"/" + name
    if _path(path).is_symlink():
        repository = repository_around(folder)
        resolved = key_of_link(os.fsencode(_path(path).readlink()), folder)
        if repository is not None and resolved is not None and resolved[0] == repository.root:
            return RepositoryPath(repository, path, link=True)
        path = os.path.realpath(path)
    repository = repository_around(path if _path(path).is_dir() else path.rpartition(b"/")[0])
    # a path inside .git and the like is used as it is
    inside = path[len(repository.root) :].lower().split(b"/") if repository is not None else []
    return (
        RepositoryPath(repository, path) if repository is not None and RESERVED.isdisjoint(inside) else None
    )


def _path(name: bytes) -> Path:
    return Path(os.fsdecode(name))


def _git_folder(root: Path) -> Path | None:
    """Return the git folder that all work trees share; None if `.git` is not valid."""
    git = (root / ".git").resolve()
    try:
        if git.is_file():
            before, _, named = git.read_bytes()[:_PATH_BYTES].partition(b"gitdir: ")
            if before or not named:
                return None
            git = (root / os.fsdecode(named.rstrip(b"\n"))).resolve()
        common = git / "commondir"
        if common.is_file():
            git = (git / os.fsdecode(common.read_bytes()[:_PATH_BYTES].rstrip(b"\n"))).resolve()
    except (OSError, ValueError):
        return None
    return git if (git / "HEAD").is_file() else None


def _has_annex(git: Path) -> bool:
    """Return whether git-annex is initialised there, or in a remote that was fetched."""
    if (git / "annex").is_dir() or (git / "refs" / "heads" / "git-annex").is_file():
        return True
    try:
        if any((remote / "git-annex").is_file() for remote in (git / "refs" / "remotes").iterdir()):
            return True
    except OSError:
        pass  # it has no remotes
    try:
        with (git / "packed-refs").open("rb") as packed:
            return any(line.rstrip(b"\n").endswith(b"/git-annex") for line in packed)
    except OSError:
        return False


_SECONDS = 20 * 86400.0  # long, because content may come from tape; poll(2) allows no longer timeout
# Removed from the environment: a caller such as a git hook sets them for another repository.
_ELSEWHERE = frozenset(
    {
        "GIT_DIR",
        "GIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "GIT_PREFIX",
        "GIT_COMMON_DIR",
        "GIT_NAMESPACE",
        "GIT_OBJECT_DIRECTORY",
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_QUARANTINE_PATH",
        "GIT_CEILING_DIRECTORIES",
    }
)


def run_git(
    repository: Repository,
    *arguments: str | bytes,
    stdin: bytes = b"",
    more: Mapping[str, str] | None = None,
    seconds: float = _SECONDS,
) -> CommandResult:
    """Run a git command without hooks and without the repository's file system monitor (S13)."""
    quiet = ["-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false"]
    argv: list[str | bytes] = ["git", "-C", repository.root, *quiet, *arguments]
    return run(argv, stdin=stdin, timeout=seconds, environment={**git_environment(), **(more or {})})


def git_output(
    repository: Repository,
    *arguments: str | bytes,
    stdin: bytes = b"",
    more: Mapping[str, str] | None = None,
    seconds: float = _SECONDS,
) -> bytes:
    """Return the output of a git command. Raises `IncompleteError` if it fails."""
    finished = run_git(repository, *arguments, stdin=stdin, more=more, seconds=seconds)
    if finished.exit_code != 0:
        raise IncompleteError("git-failed", failure_text("git", finished), subject=printable(repository.root))
    return finished.stdout


def run_annex_json(
    repository: Repository, *arguments: str, stdin: bytes = b""
) -> tuple[CommandResult, Iterator[dict[str, Any]]]:
    """Return the result and records of `git annex WORDS --json`. Raises `NotFoundError` without git-annex."""
    finished = run_annex(repository, *arguments, "--json", "--json-error-messages", stdin=stdin)
    return finished, _records(finished.stdout)


def run_annex(repository: Repository, *arguments: str, stdin: bytes = b"") -> CommandResult:
    """Run a git-annex command; return its result, or that of a failed `init`.

    Raises `NotFoundError` without git-annex. In a clone without `init`, git-annex would initialise itself,
    enable special remotes marked with autoenable, and run their programs: `externaltype=x/y` names a file of
    the work tree (S13).
    """
    environment = require_annex(repository)
    annex: list[str | bytes] = ["git", "-C", repository.root, "-c", "core.fsmonitor=false", "annex"]
    if run_git(repository, "config", "annex.uuid").exit_code != 0:
        begun = run([*annex, "init", "--quiet", "--no-autoenable"], timeout=_SECONDS, environment=environment)
        if begun.exit_code != 0:
            return begun
    return run([*annex, *arguments], stdin=stdin, timeout=_SECONDS, environment=environment)


def require_annex(repository: Repository) -> dict[str, str]:
    """Return an environment in which git finds git-annex. Raises `NotFoundError` if it is not installed."""
    environment = git_environment()
    if shutil.which("git-annex", path=environment["PATH"]) is None:
        raise NotFoundError(
            "no-such-program",
            "git-annex is not installed",
            subject=printable(repository.root),
            hint="pip install 'hibali[annex]'",
        )
    return environment


def push_to_sibling(repository: Repository, sibling: str) -> None:
    """Run `datalad push`. Raises `IncompleteError` with the command to repeat."""
    environment = git_environment()
    program = shutil.which("datalad", path=environment["PATH"]) or "datalad"
    argv: list[str | bytes] = [program, "push", "-d", repository.root, f"--to={sibling}"]
    finished = run(argv, timeout=_SECONDS, environment=environment)
    if finished.exit_code != 0:
        root = printable(repository.root)
        raise IncompleteError(
            "not-pushed",
            f"the commit was saved, but the push to {printable(sibling)} failed: {failure_text('datalad push', finished)}",
            subject=root,
            hint=f"datalad push -d {root} --to {printable(sibling)}",
        )


def identity(repository: Repository) -> dict[str, str]:
    """Return variables for a committer made of account and host; empty if git has one configured."""
    if run_git(repository, "var", "GIT_COMMITTER_IDENT").exit_code == 0:
        return {}
    name, email = account_names()
    roles = ("AUTHOR", "COMMITTER")
    return {
        f"GIT_{role}_{field}": value for role in roles for field, value in (("NAME", name), ("EMAIL", email))
    }


def failure_text(program: str, finished: CommandResult) -> str:
    """Return the exit code and the end of a program's output, in one line."""
    text = printable(b" ".join((finished.stderr.strip() or finished.stdout.strip())[-500:].split()))
    return f"{program} exited with status {finished.exit_code}: {text}"


def git_environment() -> dict[str, str]:
    """Return the user's environment without git's variables and prompts; hibali's PATH is last."""
    inherited = {name: value for name, value in os.environ.items() if name not in _ELSEWHERE}
    program_folder = str(Path(sys.executable).parent)
    path = os.pathsep.join(part for part in (inherited.get("PATH", os.defpath), program_folder) if part)
    return {**inherited, "PATH": path, "GIT_TERMINAL_PROMPT": "0", "DATALAD_UI_PROGRESSBAR": "none"}


def _records(lines: bytes) -> Iterator[dict[str, Any]]:
    for line in lines.splitlines():
        try:
            record = json.loads(line.decode("utf-8", "surrogateescape"))
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            yield record


def zero_ended(names: Iterable[bytes]) -> bytes:
    """Return names as the option `-z` reads them, each followed by a NUL."""
    return b"".join(name + b"\0" for name in names)


_LINE_BYTES = 4096


def is_reserved(path: bytes) -> bool:
    """Return whether a relative path belongs to the repository itself and is not data."""
    return b"." in path and not RESERVED.isdisjoint(path.lower().split(b"/"))


def read_start(name: bytes) -> bytes:
    """Return the start of a file that can be a pointer; b"" for a larger or unreadable one."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        small = os.fstat(descriptor).st_size <= POINTER_BYTES
        return os.read(descriptor, _LINE_BYTES) if small else b""
    except OSError:
        return b""
    finally:
        os.close(descriptor)
