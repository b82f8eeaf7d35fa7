"""Identify inputs by their content or metadata: files, folders, and parts of folders."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from hibali.config.model import Site
from hibali.errors import IncompleteError, NotFoundError, UsageError
from hibali.ledger import Journal, ledger_folder, read_records
from hibali.locations import Location
from hibali.plugins import find
from hibali.system_errors import reason_of
from hibali.text import printable
from runs.cache import CONTENT, ORIGIN, Name
from transfers.model.entry import Entry, Kind
from transfers.model.rules import Rules, concerns, selector
from transfers.model.store import Store
from transfers.planning.protected_roots import path_relation
from transfers.remote.host import RemoteHost
from transfers.remote.lending import lending
from transfers.stores.open_store import open_store
from transfers.stores.open_views import datasets_at

_RESOLVE_SECONDS = 20.0
_FRESH_NS = 2_000_000_000  # a file changed this shortly before it was hashed can change again unseen
PART = "/./"  # before the part of a folder, as rsync --relative has it


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a folder that is an input: what `rules` select, and small files by path that are `written` in place of the folder's own.

    `shared` are the names that other parts of the same folder have, too.
    """

    rules: Rules = field(default_factory=Rules)
    written: Mapping[bytes, bytes] = field(default_factory=dict)
    shared: frozenset[bytes] = frozenset()

    @property
    def is_whole(self) -> bool:
        """Whether it is the folder itself."""
        return self.rules.files_from is None

    def check_link(self, path: bytes, target: bytes, subject: str) -> None:
        """Raise `UsageError` for a symlink out of the part, whose content would be missing at the site."""
        inside = os.path.normpath(os.path.join(os.path.dirname(path), target))  # noqa: PTH118, PTH120  # bytes
        if self.is_whole or selector(self.rules)(Entry(inside, Kind.FILE)):
            return
        raise UsageError(
            "link-out-of-part",
            f"{printable(path)} is a symlink to {printable(target)}, which is not staged with it",
            subject=subject,
            hint="Put the file itself there, or stage the whole folder: with --each-participant, add --whole-dataset.",
        )


WHOLE = Part()


class Parts(Protocol):
    """What knows the parts of folders: an entry point `parts` in `hibali.inputs`."""

    def folder_of(self, path: str) -> str | None:
        """Return the path below a folder that the tool gets of a part of it, "" for the folder; None if a path names no part."""

    def select_parts(self, folder: Location, paths: Sequence[str]) -> Mapping[str, Part]:
        """Return the parts that these paths name. Raises `NotFoundError` with all that do not exist."""


def split_part(text: str) -> tuple[str, str, str]:
    """Return the folder of an input, the part of it that is the input, and the path below it that the tool gets; "" for what is no part."""
    folder, mark, path = text.rpartition(PART)
    parts = _known_parts() if mark else None
    below = None if parts is None else parts.folder_of(path)
    return (text, "", "") if below is None else (folder, path, below)


def select_parts(folder: Location, paths: Iterable[str]) -> Mapping[str, Part]:
    """Return the parts of a folder that these paths name. Raises `NotFoundError` with all that do not exist."""
    selected: Mapping[str, Part] = _known_parts().select_parts(folder, tuple(paths))
    return selected


def _known_parts() -> Any:
    """Return an object like `Parts`; None without that feature."""
    return find("hibali.inputs", "parts")


def absent_parts(parts: Iterable[tuple[Location, set[str]]]) -> Iterable[NotFoundError]:
    """Yield an error for each part without a folder: the whole folder is used in place, so nothing else would miss it."""
    for folder, paths in parts:
        with contextlib.closing(open_store(folder)) as store:
            for path in sorted(paths):
                if store.stat(os.fsencode(path)) is None:
                    message = "the input does not exist at the site"
                    yield NotFoundError("no-such-input", message, subject=f"{folder.text}{PART}{path}")


class LocalContent:
    """Digests of local files, including those of earlier calls."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {
            record["mark"]: record["digest"]
            for record in read_records(_digests_path(), is_cache=True)
            if isinstance(record.get("mark"), str) and isinstance(record.get("digest"), str)
        }

    def of_file(self, path: bytes, found: os.stat_result) -> str:
        """Return the sha256 of a file; it is remembered while size, times, device and inode stay the same.

        Raises `UsageError` if the file cannot be read, `IncompleteError` if it changed meanwhile.
        """
        mark = f"{found.st_dev}:{found.st_ino}:{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}"
        if mark in self._known:
            return self._known[mark]
        try:
            with Path(os.fsdecode(path)).open("rb", buffering=0) as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
                after = os.fstat(stream.fileno())
        except OSError as problem:
            raise _unreadable(path, problem) from None
        if (after.st_size, after.st_mtime_ns) != (found.st_size, found.st_mtime_ns):
            raise IncompleteError(
                "input-changed", "the input changed while it was read", subject=printable(path)
            )
        if time.time_ns() - found.st_ctime_ns > _FRESH_NS:
            self._known[mark] = digest
            with contextlib.closing(Journal(_digests_path())) as journal:
                journal.append({"schema": 1, "kind": "digest", "mark": mark, "digest": digest})
        return digest

    def of_tree(self, root: bytes, part: Part = WHOLE) -> tuple[str, dict[bytes, str], int]:
        """Return the digest of a folder's sorted names, kinds and contents; the digests of its files; and their size in bytes.

        In a dataset, annexed files are files. Raises as `of_file` and `Part.check_link` do.
        """
        whole = hashlib.sha256()
        files: dict[bytes, str] = {}
        size = 0
        datasets = datasets_at(root)
        contents = None if datasets is None else datasets.open_contents(root)
        selects = selector(part.rules)
        for path, status in _walk(root, b"", part.rules.files_from):
            if contents is not None and contents.is_reserved(path):
                continue
            content = contents.find(path) if contents is not None and stat.S_ISLNK(status.st_mode) else None
            name, found = content if content is not None else (root + b"/" + path, status)
            if not selects(Entry(path, Kind.FOLDER if stat.S_ISDIR(found.st_mode) else Kind.FILE)):
                continue
            if stat.S_ISLNK(found.st_mode):
                target = os.fsencode(Path(os.fsdecode(root + b"/" + path)).readlink())
                part.check_link(path, target, printable(root))
                mark_text = b"l " + target
            elif stat.S_ISDIR(found.st_mode):
                mark_text = b"d"
            elif stat.S_ISREG(found.st_mode):
                files[path] = self.of_file(name, found)
                size += found.st_size
                mark_text = b"f " + files[path].encode("ascii")
            else:
                raise UsageError(
                    "bad-input", "a device, FIFO or socket cannot be staged", subject=printable(path)
                )
            whole.update(b"%d:%b%b\n" % (len(path), path, mark_text))
        for path, written in sorted(part.written.items()):
            files[path] = hashlib.sha256(written).hexdigest()
            size += len(written)
            whole.update(b"%d:%bf %b\n" % (len(path), path, files[path].encode("ascii")))
        return whole.hexdigest(), files, size


def _walk(
    root: bytes, below: bytes, names: frozenset[bytes] | None
) -> Iterable[tuple[bytes, os.stat_result]]:
    """Yield everything below a folder, or only what concerns `names`, parents first."""
    try:
        with os.scandir(root + b"/" + below) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
        for entry in entries:
            path = below + b"/" + entry.name if below else entry.name
            if names is not None and not concerns(path, names):
                continue
            found = entry.stat(follow_symlinks=False)
            yield path, found
            if stat.S_ISDIR(found.st_mode):
                yield from _walk(root, path, names)
    except OSError as problem:
        raise _unreadable(root + b"/" + below, problem) from None


def _digests_path() -> Path:
    return ledger_folder("runs", "cache") / "here.digests"


def _unreadable(path: bytes, problem: OSError) -> UsageError:
    """Return the error for an input that cannot be read."""
    return UsageError(
        "unreadable-input", f"the input cannot be read: {reason_of(problem)}", subject=printable(path)
    )


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of an input: `text` is part of the run's key; `digest` names it in the cache, "" if it is used in place.

    `files` are the digests by relative path of the files to stage (b"" for a single file), None if they are not known before. `size` is in
    bytes, None if unknown. `part` is the part of a folder that is staged.
    """

    text: str
    digest: str = ""
    files: dict[bytes, str] | None = None
    size: int | None = None
    part: Part = WHOLE

    @property
    def content(self) -> str:
        """The identity of the content, the same at every site; "" if only the location is known."""
        return "" if self.files is None else f"{'sha256' if b'' in self.files else 'tree'}:{self.digest}"

    @property
    def name(self) -> Name:
        """The input's entry in a cache."""
        return Name(ORIGIN if self.files is None else CONTENT, self.digest)


def identify_local(path: Path, part: Part = WHOLE, content: LocalContent | None = None) -> Identity:
    """Identify a local file or folder by its content, which is hashed unless that was done before and it did not change.

    Raises `NotFoundError`, and `UsageError` for anything but a file or folder.
    """
    found = stat_local(path)
    content = content or LocalContent()
    if stat.S_ISREG(found.st_mode):
        digest = content.of_file(os.fsencode(path), found)
        return Identity(f"sha256:{digest}", digest, {b"": digest}, found.st_size)
    if stat.S_ISDIR(found.st_mode):
        digest, files, size = content.of_tree(os.fsencode(path), part)
        return Identity(f"tree:{digest}", digest, files, size, part)
    raise UsageError("bad-input", "an input must be a file or a folder", subject=printable(os.fsencode(path)))


def stat_local(path: Path) -> os.stat_result:
    """Return the status of an input; raises `NotFoundError`, and `UsageError` if it cannot be read."""
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(
            "no-such-input",
            "the input file does not exist",
            subject=printable(os.fsencode(path)),
            hint="Relative paths in an invocation are resolved in the current folder.",
        ) from None
    except OSError as problem:
        raise _unreadable(os.fsencode(path), problem) from None


def identify_elsewhere(location: Location, store: Store, part: Part = WHOLE) -> Identity:
    """Identify what is at a location of another site by the metadata of its store, of a folder by those of all that is in it.

    Raises `NotFoundError`, and `ListingIncompleteError` for a folder that cannot be listed whole.
    """
    found = store.stat()
    if found is None:
        raise NotFoundError("no-such-input", "the input does not exist at that site", subject=location.text)
    if found.kind is Kind.FOLDER:
        whole, size = hashlib.sha256(), 0
        for entry in _select(store, part):
            if entry.kind is Kind.LINK:
                part.check_link(entry.path, entry.link, location.text)
            whole.update(b"%d:%b%b\n" % (len(entry.path), entry.path, _mark(entry).encode()))
            size += entry.size if entry.kind is Kind.FILE else 0
        for path, written in sorted(part.written.items()):
            whole.update(b"%d:%b%b\n" % (len(path), path, hashlib.sha256(written).digest()))
            size += len(written)
        mark = f"{found.kind}:{whole.hexdigest()}"
    else:
        mark, size = _mark(found), found.size
    text = f"site:{location.site.name}:{location.bucket or ''}:{location.path}:{mark}"
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
    return Identity(text, digest, size=size, part=part)


def _select(store: Store, part: Part) -> Iterable[Entry]:
    """List what is in a part of a folder, everything if it is the whole folder."""
    if part.rules.files_from is not None:
        store.list_only(part.rules.files_from)
    return store.list() if part.is_whole else filter(selector(part.rules), store.list())


def _mark(entry: Entry) -> str:
    if entry.kind is Kind.FOLDER:
        return str(entry.kind)
    return ":".join(str(part) for part in (entry.kind, entry.size, entry.mtime_ns, entry.etag or ""))


def identify_for_nodes(host: RemoteHost, site: Site, location: Location) -> tuple[Identity, bytes | None]:
    """Identify an input at the run's site, and return its path there; None if it is staged, because nodes do not see it."""
    identity, path = identify_at_site(host, location)
    if not unseen_by_nodes(host, site, path):
        return identity, path
    with lending(host), contextlib.closing(open_store(location)) as store:
        return identify_elsewhere(location, store), None


def identify_at_site(host: RemoteHost, location: Location) -> tuple[Identity, bytes]:
    """Identify an input at the run's site, and return its absolute path there; raises `NotFoundError`."""
    path = host.expand(location.path)
    found = host.stat(path)
    if found is None:
        raise NotFoundError("no-such-input", "the input does not exist at the site", subject=location.text)
    mark = ":".join(str(part) for part in (found.kind, found.size, found.mtime_ns, found.inode))
    return Identity(f"site:{location.site.name}:{printable(path)}:{mark}"), path


def unseen_by_nodes(host: RemoteHost, site: Site, path: bytes) -> bool:
    """Return whether the innermost root around an absolute path is one that compute nodes do not see, also through symlinks."""
    if all(root.nodes for root in site.roots.values()):
        return False
    roots: list[tuple[bytes, bool]] = []
    for root in site.roots.values():
        with contextlib.suppress(NotFoundError):  # its variable is not set there
            roots.append((host.expand(root), root.nodes))
    paths = [path, *(root for root, _ in roots)]
    found = host.run([b"realpath", b"-z", b"-m", b"--", *paths], timeout=_RESOLVE_SECONDS)
    real = found.stdout.split(b"\0")[:-1]
    if found.exit_code != 0 or len(real) != len(paths):
        real = paths  # the site has no realpath(1)
    around = [
        (len(root), seen)
        for root, (_, seen) in zip(real[1:], roots, strict=True)
        if path_relation(real[0], root) == "in"
    ]
    return bool(around) and not max(around)[1]
