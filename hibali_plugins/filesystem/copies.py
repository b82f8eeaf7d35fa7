"""Copy the files of a recursive get, put or copy of fsspec in as few transfers as possible."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from hibali.locations import Location
from hibali_api.calls import Call
from hibali_plugins.filesystem.os_errors import NoSuchFileError
from hibali_plugins.filesystem.site_files import SiteFiles, below
from transfers.model.entry import Kind
from transfers.model.rules import Rules

Pair = tuple[str, str]


class Batch(NamedTuple):
    """Copies from names below one folder to the same names below another one."""

    source: str
    target: str
    names: tuple[str, ...]


class Pairs:
    """Take the place of a filesystem while fsspec decides which path is copied to which."""

    def __init__(self, filesystem: Any) -> None:
        self._filesystem = filesystem
        self.found: list[Pair] = []

    def __getattr__(self, name: str) -> Any:
        """Return what the filesystem has."""
        return getattr(self._filesystem, name)

    def get_file(self, source: str, target: str, **options: Any) -> None:
        """Note a copy instead of making it."""
        del options
        self.found.append((source, target))

    put_file = cp_file = get_file


def group(pairs: Iterable[Pair]) -> list[Batch]:
    """Group copies into as few batches as possible: one if all names below both folders are the same.

    The name "" is the folder itself.
    """
    parted = [(_parts(source), _parts(target)) for source, target in dict.fromkeys(pairs)]
    if not parted:
        return []
    whole = _batch(parted)
    if whole is not None:
        return [whole]
    by_folders: dict[tuple[tuple[str, ...], tuple[str, ...]], list[tuple[list[str], list[str]]]] = {}
    for source, target in parted:
        by_folders.setdefault((tuple(source[:-1]), tuple(target[:-1])), []).append((source, target))
    batches = []
    for copies in by_folders.values():
        found = _batch(copies)
        batches += [found] if found is not None else [_single(*copy) for copy in copies]
    return batches


def _batch(parted: list[tuple[list[str], list[str]]]) -> Batch | None:
    """Return one batch of all copies; None if a name differs from that of its copy."""
    above = -1 if len(parted) == 1 else None
    source = _common([each[:above] for each, _ in parted])
    target = _common([each[:above] for _, each in parted])
    names = [each[len(source) :] for each, _ in parted]
    if names != [each[len(target) :] for _, each in parted]:
        return None
    return Batch("/".join(source), "/".join(target), tuple("/".join(each) for each in names))


def _single(source: list[str], target: list[str]) -> Batch:
    return Batch("/".join(source), "/".join(target), ())


def _parts(path: str) -> list[str]:
    return path.rstrip("/").split("/")


def _common(paths: list[list[str]]) -> list[str]:
    """Return the components with which all paths start."""
    first, last = min(paths), max(paths)
    length = next(
        (at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), None
    )
    return first[: min(len(first), len(last)) if length is None else length]


class Side(Protocol):
    """One side of a copy: paths of this machine, or of sites."""

    def location(self, call: Call, path: str) -> Location:
        """Return the location of a path."""

    def kinds(self, folder: str, names: Sequence[str]) -> dict[str, Kind]:
        """Return the kind of each existing name below a folder."""

    def make(self, path: str) -> object:
        """Create a folder."""


class ThisMachine:
    """Paths of this machine."""

    def location(self, call: Call, path: str) -> Location:
        """See Side."""
        return call.location(Path(path))

    def kinds(self, folder: str, names: Sequence[str]) -> dict[str, Kind]:
        """See Side."""
        paths = {name: Path(below(folder, name)) for name in names}
        return {
            name: Kind.FOLDER if path.is_dir() else Kind.FILE for name, path in paths.items() if path.exists()
        }

    def make(self, path: str) -> None:
        """See Side."""
        Path(path).mkdir(parents=True, exist_ok=True)


class Copies:
    """Copies from one side to another, of which at least one is `files`."""

    def __init__(self, files: SiteFiles, source: Side, target: Side) -> None:
        self._files = files
        self._source = source
        self._target = target

    def make_all(
        self,
        pairs: Iterable[Pair],
        on_bytes: Callable[[int], None] | None = None,
        *,
        missing_is_error: bool = True,
    ) -> None:
        """Copy files; create folders without their content. Raises FileNotFoundError for a missing source."""
        for batch in group(pairs):
            names = batch.names or ("",)
            kinds = self._source.kinds(batch.source, names)
            if missing_is_error and len(kinds) < len(names):
                missing = next(name for name in names if name not in kinds)
                path = below(batch.source, missing)
                raise NoSuchFileError("no-such-place", "no file with that name exists", subject=path)
            files = [name for name in names if kinds.get(name) is Kind.FILE]
            for name in names:
                inside = f"{name}/" if name else ""
                if kinds.get(name) is Kind.FOLDER and not any(each.startswith(inside) for each in files):
                    self._target.make(below(batch.target, name))
            if files:
                self._copy(batch, files, on_bytes)

    def _copy(self, batch: Batch, files: Sequence[str], on_bytes: Callable[[int], None] | None) -> None:
        one = files[0] if len(files) == 1 else ""
        rules = None if len(files) == 1 else Rules(files_from=frozenset(map(os.fsencode, files)))
        self._files.transfer(
            lambda call: (
                self._source.location(call, below(batch.source, one)),
                self._target.location(call, below(batch.target, one)),
            ),
            rules,
            on_bytes,
        )
