"""Read and write the files of all sites through fsspec, as `hibali://SITE/PATH`.

pandas, pyarrow, zarr, nibabel and Dask read files through this. Listings are never cached. A file that is open keeps
its version: after it was replaced, reading it is an error and never a mixture of both.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.spec import AbstractFileSystem

from hibali.errors import UsageError
from hibali_plugins.filesystem.copies import Copies, Pairs, ThisMachine
from hibali_plugins.filesystem.file_objects import ReadFile, WriteFile, open_spool
from hibali_plugins.filesystem.os_errors import ExistsError, IsAFolderError, NoSuchFileError
from hibali_plugins.filesystem.site_files import Found, Range, SiteFiles, Version, changed
from hibali_plugins.filesystem.small_files import SmallFiles
from transfers.model.entry import Entry, Kind
from transfers.model.patterns import ANY_FOLDERS, wildcard_expression
from transfers.model.units import PACK_BYTES

_MAGIC = frozenset("*?[")
_FSSPEC_OPTIONS = {
    "asynchronous",
    "batch_size",
    "listings_expiry_time",
    "loop",
    "max_paths",
    "use_listings_cache",
}

# ruff: noqa: FBT001, FBT002  # the signatures are fsspec's


class _FreshPins(type(AbstractFileSystem)):  # type: ignore[misc]  # fsspec has no types
    """Let fsspec reuse no filesystem with pins of its own: a later use may see later versions."""

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        if options.get("pin") and not options.get("pins"):
            options["skip_instance_cache"] = True
        return super().__call__(*arguments, **options)


class HibaliFileSystem(AbstractFileSystem, metaclass=_FreshPins):  # type: ignore[misc]  # fsspec has no types
    """The files of all sites of config.toml.

    Args:
        config: another config.toml than that of the command line.
        pin: keep the version of each file that this filesystem saw first, also in copies of it in other processes:
            a file that is replaced afterwards is an error. For Dask and zarr, whose tasks open a file many times.
        pins: the versions seen so far; filled by pickling.

    >>> import fsspec
    >>> with fsspec.open("hibali://scratch/scans/a.nii", "rb") as file:
    ...     file.read(5)
    b'scan '
    """

    protocol = "hibali"
    root_marker = ""

    def __init__(
        self,
        config: str | None = None,
        *,
        pin: bool = False,
        pins: Mapping[str, Sequence[Any]] | None = None,
        **storage_options: Any,
    ) -> None:
        unknown = sorted(storage_options.keys() - _FSSPEC_OPTIONS)
        if unknown:  # a misspelt or nested `pin` must not be ignored
            raise TypeError(f"hibali:// got an unexpected option {unknown[0]!r}")
        storage_options["use_listings_cache"] = False
        super().__init__(**storage_options)
        self._pin = pin
        self._pins: dict[str, Version] = {path: tuple(each) for path, each in (pins or {}).items()}
        self._files = SiteFiles(config)
        self._small = SmallFiles(self._files)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments, and with `pin` the versions of files."""
        make, (kind, arguments, options) = super().__reduce__()
        return make, (kind, arguments, {**options, "pins": dict(self._pins)} if self._pins else options)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        """Return SITE/PATH without the protocol and the slash at the end."""
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        return os.fspath(path).removeprefix("hibali://").removeprefix("hibali:").rstrip("/")

    # ---- listing

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Return name, size, type and time of a path. Raises FileNotFoundError."""
        del kwargs
        path = self._strip_protocol(path)
        return _info(path, self._files.require(path).entry) if path else _folder_info("")

    def exists(self, path: str, **kwargs: Any) -> bool:
        """Return whether a path exists. Raises an OSError if its site cannot tell, such as an unreachable one."""
        return self._type_of(path, **kwargs) is not None

    def isdir(self, path: str) -> bool:
        """Return whether a path is a folder. Raises as `exists` does."""
        return self._type_of(path) == "directory"

    def isfile(self, path: str) -> bool:
        """Return whether a path is a file. Raises as `exists` does."""
        return self._type_of(path) == "file"

    def _type_of(self, path: str, **kwargs: Any) -> str | None:
        """Return the type of a path, None if nothing exists there."""
        try:
            return str(self.info(path, **kwargs)["type"])
        except (FileNotFoundError, NotADirectoryError):
            return None

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        """List a folder, or a file itself; without a path the sites."""
        del kwargs
        path = self._strip_protocol(path)
        if path:
            infos = [_info(name, entry) for name, entry in self._files.entries(path, recursive=False)]
        else:
            infos = [_folder_info(name) for name in self._files.sites()]
        return infos if detail else [each["name"] for each in infos]

    def find(
        self,
        path: str,
        maxdepth: int | None = None,
        withdirs: bool = False,
        detail: bool = False,
        **kwargs: Any,
    ) -> Any:
        """List all files below a path, in one request to the site."""
        path = self._strip_protocol(path)
        if maxdepth is not None or not path:
            return super().find(path, maxdepth=maxdepth, withdirs=withdirs, detail=detail, **kwargs)
        infos = []
        with suppress(FileNotFoundError):
            infos = [_info(name, entry) for name, entry in self._files.entries(path, recursive=True)]
            if withdirs and path not in {each["name"] for each in infos}:
                infos.append(self.info(path))
        named = {each["name"]: each for each in infos if withdirs or each["type"] != "directory"}
        found = dict(sorted(named.items()))
        return found if detail else list(found)

    def glob(self, path: str, maxdepth: int | None = None, **kwargs: Any) -> Any:
        """List the paths that match wildcards; the expressions of fsspec itself backtrack exponentially."""
        text = self._strip_protocol(path)
        if _MAGIC.isdisjoint(text):
            return super().glob(path, maxdepth=maxdepth, **kwargs)
        detail, withdirs = kwargs.pop("detail", False), kwargs.pop("withdirs", True)
        parts = text.split("/")
        fixed = next(number for number, part in enumerate(parts) if not _MAGIC.isdisjoint(part))
        depth: int | None = len(parts) - fixed
        if ANY_FOLDERS in parts:
            depth = None if maxdepth is None else parts.index(ANY_FOLDERS) - fixed + maxdepth
        found = self.find("/".join(parts[:fixed]), depth, withdirs=withdirs, detail=True, **kwargs)
        expression = wildcard_expression(parts)
        matching: dict[str, Any] = {}
        for name, info in sorted(found.items()):
            folder = info["type"] == "directory"
            # a last `**` matches the folder itself, too, as it does in fsspec
            inside = f"{name}/-" if folder and parts[-1] == ANY_FOLDERS else name
            if expression.fullmatch(inside) and (folder or not path.endswith("/")):
                matching[name] = info
        return matching if detail else list(matching)

    def created(self, path: str) -> Any:
        """Raise NotImplementedError: no site keeps this time."""
        raise NotImplementedError(path)

    def modified(self, path: str) -> datetime:
        """Return the time of the last change."""
        return datetime.fromtimestamp(self.info(path)["mtime"], UTC)

    def ukey(self, path: str) -> str:
        """Return a text that is another one for another version of the file."""
        found = self._pinned(path)
        return hashlib.sha256(repr((found.location.text, found.version)).encode()).hexdigest()

    def checksum(self, path: str) -> int:
        """Return a number that is another one for another version of the file."""
        return int(self.ukey(path), 16)

    # ---- reading

    def _pinned(self, path: str) -> Found:
        """Return a file or folder; with `pin`, raise an error if a file has another version than at first."""
        path = self._strip_protocol(path)
        found = self._files.require(path)
        if self._pin and found.is_file and self._pins.setdefault(path, found.version) != found.version:
            raise changed(path)
        return found

    def _file(self, path: str) -> Found:
        found = self._pinned(path)
        if not found.is_file:
            raise IsAFolderError("is-a-folder", "this is no regular file", subject=path)
        return found

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        if mode == "rb":
            return ReadFile(self, path, self._file(path), block_size, dict(cache_options or {}), **kwargs)
        if mode not in {"wb", "xb", "ab"}:
            raise UsageError("usage", f"files cannot be opened with mode {mode!r}", subject=path)
        if mode == "xb" and self.exists(path):
            raise _exists(path)
        self._files.check_target(path)
        spool = open_spool()
        if mode == "ab" and self.isfile(path):
            spool.write(self.cat_file(path))
        return WriteFile(spool, lambda: self._send(spool, path), autocommit=autocommit)

    def reopen(self, path: str, version: Version, **kwargs: Any) -> Any:
        """Open the same version of a file in another process. Raises OSError if it was replaced."""
        opened = self._open(path, **kwargs)
        if opened.found.version != version:
            raise changed(path)
        return opened

    def read_ranges(self, found: Found, ranges: Sequence[Range]) -> list[bytes]:
        """Read ranges (start, end) of one version of a file. Raises OSError if it was replaced."""
        return self._files.read_ranges(found, ranges)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        """Read a file or a range of it."""
        del kwargs
        if not start and end is None and not self._pin:
            content = self._small.read(self._strip_protocol(path))
            if content is not None:
                return content
        found = self._file(path)
        return self.read_ranges(found, [_bounded(start, end, found.entry.size)])[0]

    def cat_ranges(
        self,
        paths: list[str],
        starts: Any,
        ends: Any,
        max_gap: int | None = None,
        on_error: str = "return",
        **kwargs: Any,
    ) -> list[Any]:
        """Read many ranges, all of one file in one request; each file is one version in all of them."""
        del max_gap, kwargs
        starts = list(starts) if isinstance(starts, Iterable) else [starts] * len(paths)
        ends = list(ends) if isinstance(ends, Iterable) else [ends] * len(paths)
        if not len(paths) == len(starts) == len(ends):
            raise ValueError("paths, starts and ends must have the same length")
        results: list[Any] = [None] * len(paths)
        for path in dict.fromkeys(paths):
            places = [place for place, each in enumerate(paths) if each == path]
            try:
                found = self._file(path)
                bounds = [_bounded(starts[place], ends[place], found.entry.size) for place in places]
                contents: Sequence[Any] = self.read_ranges(found, bounds)
            except OSError as problem:
                if on_error == "raise":
                    raise
                contents = [problem] * len(places)
            for place, content in zip(places, contents, strict=True):
                results[place] = content
        return results

    # ---- writing

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        """Write a whole file, which appears complete."""
        del kwargs
        if mode == "create" and self.exists(path):
            raise _exists(path)
        self._pipe([(path, value)])

    def pipe(self, path: Any, value: bytes | None = None, **kwargs: Any) -> None:
        """Write a whole file, or those of a dictionary together; see fsspec."""
        if isinstance(path, dict) and not kwargs:
            self._pipe(list(path.items()))
        else:
            super().pipe(path, value, **kwargs)

    def _pipe(self, files: Sequence[tuple[str, bytes]]) -> None:
        named = [(self._strip_protocol(path), bytes(value)) for path, value in files]
        for path, value in self._small.write(named):
            with open_spool() as spool:
                spool.write(value)
                self._transfer(spool, path)

    def _send(self, spool: Any, path: str) -> None:
        """Send a temporary file."""
        if spool.seek(0, os.SEEK_END) > PACK_BYTES:
            self._transfer(spool, path)
            return
        spool.seek(0)
        for _ in self._small.write([(self._strip_protocol(path), spool.read())]):
            self._transfer(spool, path)

    def _transfer(self, spool: Any, path: str) -> None:
        spool.flush()
        target = self._strip_protocol(path)
        self._files.transfer(
            lambda call: (call.location(Path(spool.name)), self._files.location(call, target))
        )

    def put_file(
        self, lpath: Any, rpath: str, callback: Any = DEFAULT_CALLBACK, mode: str = "overwrite", **kwargs: Any
    ) -> None:
        """Send a file by a transfer of hibali; a folder is created."""
        del kwargs
        if mode == "create" and self.exists(rpath):
            raise _exists(rpath)
        self._put([(lpath, rpath)], callback)

    def put(
        self,
        lpath: Any,
        rpath: Any,
        recursive: bool = False,
        callback: Any = DEFAULT_CALLBACK,
        maxdepth: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Send files and folders, a tree by one transfer; see fsspec."""
        pairs = Pairs(self)
        AbstractFileSystem.put(pairs, lpath, rpath, recursive=recursive, maxdepth=maxdepth, **kwargs)
        self._put(pairs.found, callback)

    def _put(self, pairs: Iterable[tuple[Any, Any]], callback: Any) -> None:
        named = [(_local_name(source), self._strip_protocol(target)) for source, target in pairs]
        Copies(self._files, ThisMachine(), self._files).make_all(named, callback.relative_update)

    def get_file(
        self, rpath: str, lpath: Any, callback: Any = DEFAULT_CALLBACK, outfile: Any = None, **kwargs: Any
    ) -> None:
        """Fetch a file by a transfer of hibali; a folder is created."""
        if outfile is not None or hasattr(lpath, "write"):
            super().get_file(rpath, lpath, callback=callback, outfile=outfile, **kwargs)
        else:
            self._get([(rpath, lpath)], callback)

    def get(
        self,
        rpath: Any,
        lpath: Any,
        recursive: bool = False,
        callback: Any = DEFAULT_CALLBACK,
        maxdepth: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Fetch files and folders, a tree by one transfer; see fsspec."""
        pairs = Pairs(self)
        AbstractFileSystem.get(pairs, rpath, lpath, recursive=recursive, maxdepth=maxdepth, **kwargs)
        self._get(pairs.found, callback)

    def _get(self, pairs: Iterable[tuple[Any, Any]], callback: Any) -> None:
        named = [(self._strip_protocol(source), _local_name(target)) for source, target in pairs]
        Copies(self._files, self._files, ThisMachine()).make_all(named, callback.relative_update)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Copy a file, within a site on the server where it can; a folder is created."""
        del kwargs
        self._copy([(path1, path2)], missing_is_error=True)

    def copy(
        self,
        path1: Any,
        path2: Any,
        recursive: bool = False,
        maxdepth: int | None = None,
        on_error: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Copy files and folders, a tree by one transfer; see fsspec."""
        pairs = Pairs(self)
        AbstractFileSystem.copy(
            pairs, path1, path2, recursive=recursive, maxdepth=maxdepth, on_error=on_error, **kwargs
        )
        self._copy(pairs.found, missing_is_error=on_error == "raise" or (on_error is None and not recursive))

    def _copy(self, pairs: Iterable[tuple[Any, Any]], *, missing_is_error: bool) -> None:
        named = [(self._strip_protocol(source), self._strip_protocol(target)) for source, target in pairs]
        Copies(self._files, self._files, self._files).make_all(named, missing_is_error=missing_is_error)

    # ---- folders and removal

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        """Create a folder; nothing happens in an object store, which has none."""
        del kwargs
        path = self._strip_protocol(path)
        if not create_parents and not self.isdir(path.rpartition("/")[0]):
            raise NoSuchFileError("no-such-place", "the parent folder does not exist", subject=path)
        self.makedirs(path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Create a folder and its parents."""
        path = self._strip_protocol(path)
        if not self._files.make(path) and not exist_ok:
            raise _exists(path)

    def rmdir(self, path: str) -> None:
        """Remove an empty folder. Raises OSError if it is not empty."""
        path = self._strip_protocol(path)
        if self.ls(path, detail=False):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        self._files.remove(path, recursive=True)

    def rm_file(self, path: str) -> None:
        """Remove a file. Raises OSError for a folder."""
        self._files.remove(self._strip_protocol(path), recursive=False)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove files, and with `recursive` folders, each with one request."""
        for each in [path] if isinstance(path, str) else list(path):
            text = self._strip_protocol(each)
            if maxdepth is None and _MAGIC.isdisjoint(text):
                self._files.remove(text, recursive=recursive)
                continue
            for found in reversed(self.expand_path(text, recursive=recursive, maxdepth=maxdepth)):
                with suppress(FileNotFoundError):  # removed with its folder
                    self._files.remove(found, recursive=recursive)

    def close(self) -> None:
        """Close the connections that are kept open for this and all other filesystems with the same sites."""
        self._files.close()


def _info(path: str, entry: Entry) -> dict[str, Any]:
    """Return the properties of a path, by the names that other filesystems of fsspec use."""
    kinds = {Kind.FILE: "file", Kind.FOLDER: "directory", Kind.LINK: "link", Kind.SPECIAL: "other"}
    found: dict[str, Any] = {
        "name": path,
        "size": entry.size if entry.kind is Kind.FILE else 0,
        "type": kinds[entry.kind],
        "mtime": entry.mtime_ns / 1_000_000_000 if entry.mtime_ns else None,
        "mode": entry.mode if entry.mode >= 0 else None,
        "ETag": entry.etag,
        "sha256": entry.digest,
    }
    return {name: value for name, value in found.items() if value is not None}


def _folder_info(name: str) -> dict[str, Any]:
    return {"name": name, "size": 0, "type": "directory"}


def _exists(path: str) -> ExistsError:
    return ExistsError("exists", "a file or folder with that name exists", subject=path)


def _local_name(path: Any) -> str:
    text: str = os.fspath(path)
    return os.path.abspath(text.removeprefix("file://"))  # noqa: PTH100  # resolve would follow symlinks


def _bounded(start: int | None, end: int | None, size: int) -> Range:
    """Return a range within a file, of which negative numbers count from its end."""
    first = 0 if start is None else max(0, size + start) if start < 0 else min(start, size)
    last = size if end is None else size + end if end < 0 else min(end, size)
    return first, max(first, last)
