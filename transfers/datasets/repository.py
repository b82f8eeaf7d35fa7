"""The repository around a path of this machine, where it is a DataLad dataset or keeps annexed content."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from transfers.datasets.annexed import key_of_link

_PATH_BYTES = 8192
# What makes a repository of a folder: it is no data, neither sent nor taken nor deleted.
RESERVED = frozenset({b".git", b".datalad", b".gitattributes", b".gitmodules"})


@dataclass(frozen=True, slots=True)
class Repository:
    """`root` is absolute and without symlinks, `git` where git keeps its own; `annex` tells whether git-annex is used."""

    root: bytes
    git: bytes
    annex: bool

    @property
    def objects(self) -> bytes:
        """Where the content of annexed files is."""
        return self.git + b"/annex/objects"


@dataclass(frozen=True, slots=True)
class Place:
    """A path without symlinks in a repository; `link` where it is an annexed file by itself."""

    repository: Repository
    path: bytes
    link: bool = False


def repository_around(folder: bytes) -> Repository | None:
    """The nearest repository at or above an absolute path without symlinks; None where that is none or plain git."""
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


def find_place(where: bytes) -> Place | None:
    """What an absolute path means in the repository around it; None outside of one. What is missing may still come.

    A symlink is followed, unless git-annex made it.
    """
    above, _, name = where.rstrip(b"/").rpartition(b"/")
    folder = os.path.realpath(above or b"/")
    path = folder.rstrip(b"/") + b"/" + name
    if _path(path).is_symlink():
        repository = repository_around(folder)
        led = key_of_link(os.fsencode(_path(path).readlink()), folder)
        if repository is not None and led is not None and led[0] == repository.root:
            return Place(repository, path, link=True)
        path = os.path.realpath(path)
    repository = repository_around(path if _path(path).is_dir() else path.rpartition(b"/")[0])
    # what is named inside of what makes the repository is what it is
    inside = path[len(repository.root) :].lower().split(b"/") if repository is not None else []
    return Place(repository, path) if repository is not None and RESERVED.isdisjoint(inside) else None


def _path(name: bytes) -> Path:
    return Path(os.fsdecode(name))


def _git_folder(root: Path) -> Path | None:
    """Where git keeps what all work trees of a repository share; None where `.git` is nothing of git's."""
    git = (root / ".git").resolve()
    try:
        if git.is_file():
            words, _, named = git.read_bytes()[:_PATH_BYTES].partition(b"gitdir: ")
            if words or not named:
                return None
            git = (root / os.fsdecode(named.rstrip(b"\n"))).resolve()
        common = git / "commondir"
        if common.is_file():
            git = (git / os.fsdecode(common.read_bytes()[:_PATH_BYTES].rstrip(b"\n"))).resolve()
    except (OSError, ValueError):
        return None
    return git if (git / "HEAD").is_file() else None


def _has_annex(git: Path) -> bool:
    """Whether git-annex is at work there, or was where it was cloned from."""
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
