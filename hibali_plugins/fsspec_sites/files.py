"""Query and change files of one fsspec filesystem, with deadlines and without its caches."""

from __future__ import annotations

import contextlib
import logging
import os
import posixpath
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from datetime import UTC, datetime
from functools import cached_property
from importlib import import_module
from typing import Any, TypeVar

from hibali.config.model import Site
from hibali.errors import AccessError, HibaliError, IncompleteError, NotFoundError, UsageError
from hibali.http.client import Bytes
from hibali.http.deadline import request_timeout
from hibali.http.errors import too_slow
from hibali.request_log import observe_aiohttp
from hibali.retry import with_retries
from hibali.system_errors import message_of
from hibali.text import printable
from hibali_plugins.fsspec_sites.errors import error_for
from hibali_plugins.fsspec_sites.options import options_of
from hibali_plugins.fsspec_sites.protocols import known_protocol
from hibali_plugins.fsspec_sites.webhdfs import check_answers
from hibali_plugins.fsspec_sites.xrootd import ThirdPartyCopy, XRootDServer, server_of
from transfers.agent.identity import Identity, identify, this_machine
from transfers.model.entry import Entry, Kind
from transfers.model.identities import AMAZON, identity_of_bucket, identity_of_keys
from transfers.model.units import NOT_COPIED
from transfers.stores.server.checksums import ALGORITHMS, Checksum
from transfers.stores.server.files import LIST_SECONDS, Exclusive, Files, Upload
from transfers.stores.server.filesystem import Filesystem
from transfers.stores.server.records import Found

_MOST_PARTS = 9_000  # object stores allow 10,000 parts of a file
_PART_BYTES = 16 * 1024 * 1024
_MIB = 1024 * 1024
_MILLISECONDS = 100_000_000_000  # later than the year 5000 in seconds, and in 1973 in milliseconds
_LEAST_COPIED = 4 * _MIB  # the client waits 2.5 s for each third-party copy, of which there are 8 at a time
_STOP_SECONDS = 0.2  # until a copy that is stopped is abandoned
_CHECKSUMS = 2  # that an XRootD server computes at a time: above its limit it lets a client wait for 30 s
_QUIET = ("fsspec", "azure", "asyncio", "urllib3", "aiohttp", "botocore", "aiobotocore", "google")
# What implementations do unless their own variables say otherwise.
_VARIABLES = {
    "gcsfs": {
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"
    },  # files of zonal buckets are seen while they are written
    "s3fs": {"AWS_EC2_METADATA_DISABLED": "true"},  # ask no metadata service for credentials (S15)
    "fsspec-xrootd": {
        "XRD_METALINKPROCESSING": "0",  # a file NAME.meta4 would be replaced by what it names
        "XRD_CONNECTIONRETRY": "1",  # hibali itself retries
        "XRD_CONNECTIONWINDOW": "30",
        "XRD_STREAMERRORWINDOW": "0",  # else every request fails for half an hour after a lost connection
    },
}
_TAGS = ("ETag", "etag", "generation", "md5Hash", "content_hash", "rev")
_TIMES = (
    "mtime",
    "updated",
    "LastModified",
    "last_modified",
    "modified",
    "modificationTime",
    "last_write_time",
    "server_modified",
    "time",
    "created",
    "timeCreated",
)
_IDENTIFIERS = ("ino", "fileId")
_PLAIN_TAG = re.compile(r"[!-~]{1,200}")
_Result = TypeVar("_Result")


def found_of(info: dict[str, Any]) -> Found:
    """Convert what an implementation reports about a name; each uses keys of its own."""
    kind = str(info.get("type"))
    if info.get("islink") or kind == "link":
        target = info.get("destination", "")
        link = target if isinstance(target, bytes) else str(target).encode("utf-8", "surrogateescape")
        return Found(Kind.LINK, link=link)
    if kind == "directory":
        return Found(Kind.FOLDER)
    if kind != "file":
        return Found(Kind.SPECIAL)
    size = info.get("size")
    times = (time_of(info[name]) for name in _TIMES if info.get(name) is not None)
    mtime_ns = next((time for time in times if time), 0)
    return Found(
        Kind.FILE,
        size if isinstance(size, int) and size >= 0 else -1,
        mtime_ns,
        _tag_of(info, mtime_ns),
    )


def _tag_of(info: dict[str, Any], mtime_ns: int) -> str:
    """Return the tag of a version: the server's, else its time and number."""
    for name in _TAGS:
        tag = str(info.get(name) or "").removeprefix("W/").strip('"')
        if _PLAIN_TAG.fullmatch(tag):
            return tag
    if not mtime_ns:
        return ""
    numbers = [str(info[name]) for name in _IDENTIFIERS if isinstance(info.get(name), int)]
    return "@" + ".".join([str(mtime_ns), *numbers])


def time_of(value: Any) -> int:
    """Convert a time to nanoseconds since the epoch; 0 if it is none."""
    try:
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            value = (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
        if not isinstance(value, int | float) or isinstance(value, bool):
            return 0
        seconds = value / 1000 if abs(value) > _MILLISECONDS else value
        return round(seconds * 1_000_000) * 1000
    except (ValueError, OverflowError):
        return 0


class FsspecFiles(Filesystem):
    """The files below the URL of a site, with an implementation of fsspec."""

    def __init__(self, filesystem: Any, base: str, subject: str, word: str, service: str = "") -> None:
        """`base` is the URL's path as the filesystem writes it, `word` its protocol, `service` the server."""
        observe_aiohttp()
        self.subject = subject
        self.protocol = known_protocol(word)
        self.traits = self.protocol.traits
        self.word = word
        self.service = service
        self._filesystem = filesystem
        self._base = base
        self._calls = threading.BoundedSemaphore(self.protocol.threads)
        self._attempts = 1 if self.protocol.retries else 4

    @property
    def implementation(self) -> str:
        """The class of the filesystem."""
        return f"{type(self._filesystem).__module__}.{type(self._filesystem).__qualname__}"

    @property
    def renames(self) -> bool:
        """Whether the implementation has its own rename: fsspec's copies the file and removes it."""
        from fsspec import AbstractFileSystem

        return type(self._filesystem).mv is not AbstractFileSystem.mv

    def full(self, path: bytes) -> str:
        """Return a path as the filesystem writes it."""
        text = path.decode("utf-8", "surrogateescape")
        return f"{self._base.rstrip('/')}/{text}" if text else self._base

    def call(
        self, act: Callable[[Any], _Result], *, content: int = 0, seconds: float | None = None
    ) -> _Result:
        """Call `act` with the filesystem; raise its exception. A call without a result in time is abandoned.

        Raises `TryLaterError("answer-too-slow")`.
        """
        limit = request_timeout(content) if seconds is None else seconds

        def work() -> _Result:
            with self._calls:
                return act(self._filesystem)

        begun = _begin(work)
        wait([begun], timeout=limit)
        if not begun.done():
            raise too_slow(self.subject, limit)
        return begun.result()

    def request(
        self,
        act: Callable[[Any], _Result],
        *,
        content: int = 0,
        seconds: float | None = None,
        once: bool = False,
    ) -> _Result:
        """Call `act` with retries, unless `once`; raise the errors of hibali."""

        def attempt() -> _Result:
            try:
                return self.call(act, content=content, seconds=seconds)
            except Exception as problem:  # noqa: BLE001  # each implementation has its own
                found = error_for(problem, self.subject)
            raise found  # outside of the handler: the exception's text may contain a secret

        return with_retries(attempt, subject=self.subject, attempts=1 if once else self._attempts)

    def stat(self, path: bytes) -> Found | None:
        """Return the properties of a path, None if it is missing."""
        full = self.full(path)
        try:
            info = self.request(lambda files: files.info(full))
        except NotFoundError:
            return None
        return found_of(info) if isinstance(info, dict) else None

    def has_bucket(self) -> bool:
        """Return whether paths are keys, and the bucket or container of the URL exists."""
        if not self.protocol.keys:
            return False
        bucket = self._base.strip("/").partition("/")[0]
        try:
            self.request(lambda files: files.info(bucket))
        except NotFoundError:
            return False
        return True

    def children(self, folder: bytes, *, seconds: float = LIST_SECONDS) -> list[tuple[bytes, Found]]:
        """Return the direct children of a folder in canonical order.

        Raises `NotFoundError("vanished")`, and `IncompleteError("listing-violation")` if the listing has names
        that were not requested (S3).
        """
        full = self.full(folder)
        listed = self.request(lambda files: files.ls(full, detail=True), seconds=seconds)
        return self._in_order(folder, self._named(folder, listed))

    def _named(self, folder: bytes, listed: list[dict[str, Any]]) -> Iterator[tuple[bytes, Found]]:
        """Yield the names below a folder, without the folder itself."""
        itself = self.full(folder).strip("/")
        for info in listed:
            shown = str(info["name"])
            name = shown.strip("/")
            if name == itself:
                if info.get("type") == "file" and len(listed) == 1 and not shown.endswith("/"):
                    raise NotFoundError("vanished", "it is not a folder", subject=self.subject)
                continue  # another tool's object for the folder itself
            child = name.removeprefix(f"{itself}/") if itself else name
            if "/" in child or (itself and child == name):
                raise self._violation(folder, "it contains an unrequested name")
            yield child.encode("utf-8", "surrogateescape"), found_of(info)

    def read(self, path: bytes, offset: int, length: int) -> bytes:
        """See Files."""
        full = self.full(path)
        content: bytes = self.request(
            lambda files: files.cat_file(full, start=offset, end=offset + length), content=length
        )
        if len(content) > length:  # an implementation that ignores ranges
            raise IncompleteError(
                "no-ranges", "the filesystem does not read parts of files", subject=self.subject
            )
        return content

    def put(self, path: bytes, content: Bytes, *, seconds: float | None = None) -> None:
        """Write a whole small file in one call, replacing an existing one."""
        full, whole = self.full(path), bytes(content)
        self.request(lambda files: files.pipe_file(full, whole), content=len(whole), seconds=seconds)

    def create(self, path: bytes, content: bytes, how: Exclusive) -> bool:
        """Write a small file only if the name is free; return False if it is not."""
        full = self.full(path)
        try:
            if how is Exclusive.OPEN:
                self.call(lambda files: _write_new(files, full, content))
            else:
                self.call(lambda files: files.pipe_file(full, content, mode="create"))
        except FileExistsError:
            return False
        except Exception as problem:  # noqa: BLE001  # each implementation has its own
            found = error_for(problem, self.subject)
            if found.code in {"target-changed", "in-the-way"}:  # status 412 of a condition
                return False
        else:
            return True
        raise found

    def make_folder(self, path: bytes) -> None:
        """Make a folder and its parents; an existing one is no error, a file of that name is."""
        if self.protocol.keys:
            return
        found = self.stat(path)
        full = self.full(path)
        if found is None:
            with contextlib.suppress(IncompleteError, NotFoundError):
                self.request(lambda files: files.makedirs(full, exist_ok=True))
            found = self.stat(path)
        if found is None or not found.folder:
            raise IncompleteError("not-a-folder", message_of("not-a-folder"), subject=self.subject)

    def delete(self, path: bytes) -> None:
        """Remove a file; a missing one is no error."""
        full = self.full(path)
        with contextlib.suppress(NotFoundError):
            self.request(lambda files: files.rm_file(full))

    def remove_folder(self, path: bytes) -> None:
        """Remove an empty folder; a missing one is no error."""
        if self.protocol.keys:
            return
        full = self.full(path)
        remove = "rm" if self.word == "webhdfs" else "rmdir"  # it has no rmdir, and `rm` is not recursive
        with contextlib.suppress(NotFoundError):
            self.request(lambda files: getattr(files, remove)(full))

    def move(self, path: bytes, to: bytes) -> None:
        """Rename a file once, without a retry: the answer of a rename that succeeded may be lost."""
        old, new = self.full(path), self.full(to)
        self.request(lambda files: files.mv(old, new), once=True)

    def upload(self, path: bytes, size: int, part_folders: Sequence[bytes] = ()) -> FsspecUpload:
        """See Files; nothing of an interrupted upload can be used."""
        del part_folders
        part = -(-max(_PART_BYTES, size // _MOST_PARTS) // _MIB) * _MIB
        full = self.full(path)
        return FsspecUpload(self, lambda files: files.open(full, "wb", block_size=part), part)

    def identity(self, path: bytes) -> Identity:
        """Return the identity of a path, which is the same at sites of other kinds where that can be known."""
        full = self.full(path)
        if self.word in {"file", "local"}:
            return identify(full.encode("utf-8", "surrogateescape"), this_machine())
        if self.word in {"s3", "s3a"}:
            bucket, _, key = full.partition("/")
            return identity_of_bucket(self.service or AMAZON, bucket, key.encode("utf-8", "surrogateescape"))
        return identity_of_keys(
            f"{self.protocol.package or self.word} {self.service}", full.encode("utf-8", "surrogateescape")
        )

    def close(self) -> None:
        """Close the connections: implementations do that when nothing refers to them."""
        self._filesystem = None


def _begin(act: Callable[[], _Result]) -> Future[_Result]:
    """Call `act` in a thread that may be abandoned."""
    begun: Future[_Result] = Future()

    def work() -> None:
        try:
            begun.set_result(act())
        except BaseException as problem:  # noqa: BLE001  # raised again by the caller's thread
            begun.set_exception(problem)

    threading.Thread(target=work, name="fsspec", daemon=True).start()
    return begun


def _write_new(files: Any, full: str, content: bytes) -> None:
    with files.open(full, "xb") as stream:
        stream.write(content)


class XRootDFiles(FsspecFiles):
    """The files of an XRootD server, which has checksums of its own.

    The server may have stored a checksum earlier: then it finds damage since that time, but the server is trusted to have received the right content.
    """

    least_copied = _LEAST_COPIED

    def __init__(self, filesystem: Any, base: str, subject: str, service: str, *, compares: bool) -> None:
        """`compares` is whether written files are compared with the server's checksum, if it has any."""
        super().__init__(filesystem, base, subject, "root", service)
        self.checksum = self._claimed
        self._wanted = compares
        self._computing = threading.BoundedSemaphore(_CHECKSUMS)

    @cached_property
    def offered(self) -> list[str]:
        """The checksums that the server computes, its usual one first."""
        found: list[str] = self.request(lambda files: files.algorithms())
        return found

    @cached_property
    def algorithm(self) -> str:
        """The server's usual checksum, or the first other one that hibali can compute; "" if there is none."""
        return next((each for each in self.offered if each in ALGORITHMS), "")

    @property
    def compares(self) -> bool:
        """See Files."""
        return self._wanted and bool(self.algorithm)

    def _claimed(self, path: bytes, size: int) -> str:
        """Return the server's checksum of a file, "" if it has none, or does not tell it."""
        with contextlib.suppress(AccessError, IncompleteError, NotFoundError):
            return self.asked(path, size, self.algorithm) if self.algorithm else ""
        return ""

    def asked(self, path: bytes, size: int, algorithm: str) -> str:
        """Return the server's checksum of a file."""
        full = self.full(path)
        with self._computing:
            found: str = self.request(lambda files: files.checksum(full, algorithm), content=size)
        return found

    def put_entry(self, path: bytes, content: Bytes, entry: Entry) -> None:
        """See Files."""
        super().put_entry(path, content, entry)
        if self.compares:
            summed = Checksum(self.algorithm)
            summed.update(content)
            self._compare(path, entry.size, summed)

    def send(
        self,
        path: bytes,
        pieces: Iterator[Bytes],
        entry: Entry,
        before_commit: Callable[[], None],
        part_folders: Sequence[bytes] = (),
    ) -> None:
        """See Files."""
        if not self.compares:
            super().send(path, pieces, entry, before_commit, part_folders)
            return
        summed = Checksum(self.algorithm)

        def added() -> Iterator[Bytes]:
            for piece in pieces:
                summed.update(piece)
                yield piece

        super().send(path, added(), entry, before_commit, part_folders)
        self._compare(path, entry.size, summed)

    def _compare(self, path: bytes, size: int, summed: Checksum) -> None:
        """Compare a written file. Raise `IncompleteError("corrupt")`, which lets it be sent again."""
        if self.asked(path, size, self.algorithm) != summed.text:
            reason = f"the server's {summed.algorithm} of the written file is not that of what was sent"
            raise IncompleteError("corrupt", reason, subject=self.subject, transient=True)

    def copies_from(self, source: Files) -> bool:
        """See Files: from every other server, which may refuse it."""
        return isinstance(source, XRootDFiles) and source.service != self.service

    def copy_file(
        self, source: Files, path: bytes, to: bytes, entry: Entry, stopped: threading.Event
    ) -> bool:
        """See Files. What the servers report of the copy is no proof: both compute a checksum of what they have now."""
        assert isinstance(source, XRootDFiles)
        algorithm = next((each for each in source.offered if each in self.offered), "")
        if not algorithm:
            raise self._not_copied("the two servers have no checksum in common")
        self._let_copy(source.url(path), self.url(to), entry.size, stopped)
        if self.asked(to, entry.size, algorithm) != source.asked(path, entry.size, algorithm):
            raise self._not_copied(f"the {algorithm} of the third-party copy is not that of the source")
        return True

    def _let_copy(self, source: str, target: str, size: int, stopped: threading.Event) -> None:
        """Let the target's server copy, without the limit of other calls, which it would block for hours."""
        if "&" in source:  # parameters for the server are separated by it
            raise self._not_copied("XRootD cannot copy names with an ampersand")
        copying = _begin(ThirdPartyCopy(source, target, size, stopped).run)
        while not copying.done():
            wait([copying], timeout=_STOP_SECONDS)
            if stopped.is_set():
                raise self._not_copied("it was stopped", transient=True)
        problem = copying.exception()
        if problem is None:
            return
        reason = (isinstance(problem, OSError) and problem.strerror) or type(problem).__name__
        if isinstance(problem, TimeoutError | ConnectionError):
            raise self._not_copied(f"the third-party copy broke off: {reason}", transient=True)
        raise self._not_copied(f"the servers refused a third-party copy: {reason}; their logs say why")

    def _not_copied(self, reason: str, *, transient: bool = False) -> IncompleteError:
        """Return the error for a file that is not copied; `transient` if the server may still be copying."""
        return IncompleteError(NOT_COPIED, reason, subject=self.subject, transient=transient)

    def url(self, path: bytes) -> str:
        """Return the URL of a path."""
        found: str = self._filesystem.url(self.full(path))
        return found


class FsspecUpload(Upload):
    """A file that is being written through an opened file of fsspec.

    fsspec's own context manager completes a file also after an exception, and so does its finalizer.
    """

    def __init__(self, files: FsspecFiles, opening: Callable[[Any], Any], part: int) -> None:
        """Open the file."""
        self._files = files
        self._part = part
        self._stream: Any = files.request(opening)

    @property
    def discards(self) -> bool:
        """Whether the file can be left without being completed."""
        from fsspec.spec import AbstractBufferedFile

        return isinstance(self._stream, AbstractBufferedFile)

    def write(self, content: Bytes) -> None:
        """Send the next bytes."""
        stream = self._stream
        self._files.request(lambda _: stream.write(content), content=self._part, once=True)

    def commit(self) -> None:
        """Complete the file."""
        stream, self._stream = self._stream, None
        try:
            self._files.request(lambda _: stream.close(), content=self._part, once=True)
        except HibaliError:
            self._stream = stream
            raise

    def abandon(self) -> None:
        """End the upload without completing it; does nothing after `commit`."""
        stream, self._stream = self._stream, None
        if stream is None:
            return
        with contextlib.suppress(HibaliError):
            self._files.request(lambda _: _discard(stream), once=True)


def _discard(stream: Any) -> None:
    from fsspec.spec import AbstractBufferedFile

    if not isinstance(stream, AbstractBufferedFile):
        stream.close()  # a partial file, which the caller removes
        return
    try:
        stream.discard()
    finally:
        stream.closed = True  # otherwise the finalizer completes the file


def open_files(site: Site) -> FsspecFiles:
    """Load the implementation and connect with the site's options. Raise `UsageError`, `AccessError`."""
    settings = site.own
    word = settings.protocol
    filesystem_class = _load(word, site.name)
    options = options_of(settings, site.name)
    try:
        given = {**filesystem_class._get_kwargs_from_urls(settings.url), **options}  # noqa: SLF001  # as fsspec.core does
        base = str(filesystem_class._strip_protocol(settings.url))  # noqa: SLF001
        filesystem = filesystem_class(**given, use_listings_cache=False, skip_instance_cache=True)
        if word == "webhdfs":
            check_answers(filesystem)
        if word == "root":
            filesystem, base = XRootDServer(filesystem), posixpath.normpath(f"/{base.strip('/')}")
    except Exception as problem:  # noqa: BLE001  # each implementation has its own
        failure = _failed_to_open(problem, site.name)
    else:
        service = _service_of(given)
        if word == "root":
            return XRootDFiles(filesystem, base, site.name, service, compares=not settings.read_back)
        return FsspecFiles(filesystem, base, site.name, word, service)
    raise failure


def _service_of(options: dict[str, Any]) -> str:
    """Return what names the server or the account among the options; never a secret."""
    if "hostid" in options:
        return server_of(options["hostid"])
    client = options.get("client_kwargs")  # of s3fs
    everything = {**(client if isinstance(client, dict) else {}), **options}
    named = (
        everything.get(name) for name in ("endpoint_url", "account_name", "account_host", "host", "port")
    )
    return " ".join(str(value) for value in named if isinstance(value, str | int))


def _failed_to_open(problem: Exception, subject: str) -> HibaliError:
    if isinstance(problem, TypeError | ValueError | KeyError | AttributeError):
        return UsageError(
            "bad-options",
            f"the filesystem does not accept the options ({type(problem).__name__})",
            subject=subject,
            hint=f"Compare them with the documentation of the filesystem: hibali sites show {subject}",
        )
    if isinstance(problem, ImportError):
        return _missing(problem, "", subject)
    return error_for(problem, subject)


def _load(word: str, subject: str) -> Any:
    """Return the class of a filesystem. Raise `UsageError` if its package is missing."""
    import fsspec

    for name, value in _VARIABLES.get(known_protocol(word).package, {}).items():
        os.environ.setdefault(name, value)
    try:
        found = fsspec.get_filesystem_class(word)
        for package in (found.__module__.partition(".")[0], *_QUIET):
            # Without a handler, Python prints their warnings and tracebacks.
            logging.getLogger(package).addHandler(logging.NullHandler())
        if word == "webhdfs":
            import_module("requests")
    except ImportError as problem:
        failure = _missing(problem, known_protocol(word).package, subject)
    except ValueError:
        failure = UsageError(
            "unknown-protocol",
            f"no installed package has a filesystem {word}",
            subject=subject,
            hint="Install the package that adds it to fsspec, into the Python environment of hibali.",
        )
    else:
        return found
    raise failure


def _missing(problem: ImportError, package: str, subject: str) -> UsageError:
    name = package or (problem.name or "").partition(".")[0]
    return UsageError(
        "missing-package",
        f"the Python package {printable(name.encode())} is not installed",
        subject=subject,
        hint=f"Install it into the environment of hibali: pip install {name}",
    )
