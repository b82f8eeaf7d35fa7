"""Serve as a git-annex external special remote: `git-annex-remote-hibali`."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Final, NamedTuple, NoReturn

from hibali import __version__
from hibali.annex_key import digest_of, place_of, size_of
from hibali.config.settings import load_sites
from hibali.errors import Exit, HibaliError, UsageError
from hibali.events import Event, Noted
from hibali.locations import Location, read_location
from hibali.system_errors import exit_of, explain
from hibali.text import printable
from hibali_cli.interruption import listen_for_interruption
from hibali_plugins.datasets.annex_contents import AnnexContents
from transfers.model.entry import Entry

VERSION = "VERSION 1"
# The known requests with their number of arguments; the last one may contain spaces.
ARGUMENT_COUNTS: Final[Mapping[str, int]] = {
    "EXTENSIONS": 1,
    "LISTCONFIGS": 0,
    "INITREMOTE": 0,
    "PREPARE": 0,
    "GETCOST": 0,
    "GETAVAILABILITY": 0,
    "GETINFO": 0,
    "TRANSFER": 3,
    "CHECKPRESENT": 1,
    "REMOVE": 1,
    "WHEREIS": 1,
    "EXPORTSUPPORTED": 0,
    "EXPORT": 1,
    "TRANSFEREXPORT": 3,
    "CHECKPRESENTEXPORT": 1,
    "REMOVEEXPORT": 1,
    "REMOVEEXPORTDIRECTORY": 1,
    "RENAMEEXPORT": 2,
    "IMPORTSUPPORTED": 0,
    "LISTIMPORTABLECONTENTS": 0,
    "IMPORT": 1,
    "RETRIEVEIMPORT": 1,
    "CHECKPRESENTIMPORT": 1,
}


class AnnexRequest(NamedTuple):
    """One request: its name and arguments."""

    name: str
    arguments: tuple[str, ...]


def read_request(line: bytes) -> AnnexRequest | None:
    """Parse a request line; None for an unknown name. Raises `UsageError` where arguments are missing."""
    text = line.removesuffix(b"\n").decode("utf-8", "surrogateescape")
    name, _, rest = text.partition(" ")
    if name not in ARGUMENT_COUNTS:
        return None
    count = ARGUMENT_COUNTS[name]
    arguments = tuple(rest.split(" ", count - 1)) if count else ()
    if len(arguments) != count or (count > 1 and not all(arguments)):
        raise UsageError("protocol", f"{name} takes {count} arguments", subject=printable(text))
    return AnnexRequest(name, arguments)


def one_line(*arguments: str) -> bytes:
    """Join fields to one line, with line ends escaped."""
    text = " ".join(arguments).replace("\n", "\\n").replace("\r", "\\r").replace("\0", "\\0")
    return text.encode("utf-8", "surrogateescape") + b"\n"


def error_line(problem: HibaliError) -> str:
    """Format an error in one line: its subject, message and hint."""
    subject = f"{problem.subject}: " if problem.subject else ""
    hint = f" ({problem.hint})" if problem.hint else ""
    return printable(f"{subject}{problem.message}{hint}".replace("\n", "; "))


LOCATION = "location"
_PROGRESS_SECONDS = 0.1

Replies = Iterator[tuple[str, ...]]
Handler = Callable[["Conversation", AnnexRequest], Replies]


class Conversation:
    """The conversation with one git-annex about one remote. `name` is the file of the next request about a tree."""

    def __init__(self, requests: IO[bytes], replies: IO[bytes]) -> None:
        self._requests = requests
        self._replies = replies
        self._send_lock = threading.Lock()
        self._location: Location | None = None
        self._contents: AnnexContents | None = None
        self._noted: set[str] = set()
        self._reported_at = 0.0
        self.supports_info = False
        self.name = ""

    def run(self, handlers: Mapping[str, Handler]) -> int:
        """Answer requests until git-annex sends no more; return the exit code."""
        self.send(VERSION)
        try:
            while line := self._requests.readline():
                if not self._serve(line, handlers):
                    return 1
        finally:
            if self._contents is not None:
                self._contents.close()
        return 0

    def _serve(self, line: bytes, handlers: Mapping[str, Handler]) -> bool:
        """Answer one request; False after a protocol error."""
        if line.startswith(b"ERROR "):  # git-annex reported an error and ends
            return False
        self._reported_at = 0.0  # report the first progress of each request
        try:
            request = read_request(line)
            for arguments in handlers[request.name](self, request) if request else [("UNSUPPORTED-REQUEST",)]:
                self.send(*arguments)
        except UsageError as problem:
            self.send("ERROR", error_line(problem))
            return False
        return True

    def send(self, *arguments: str) -> None:
        """Send one line."""
        with self._send_lock:
            self._replies.write(one_line(*arguments))

    def value(self, setting: str) -> str:
        """Request a setting of the remote from git-annex. Raises `UsageError` for another answer."""
        self.send("GETCONFIG", setting)
        word, _, value = self._requests.readline().removesuffix(b"\n").partition(b" ")
        if word != b"VALUE":
            raise UsageError(
                "protocol", "git-annex did not answer with the value of a setting", subject=setting
            )
        return value.decode("utf-8", "surrogateescape")

    def place(self) -> Location:
        """Return the location of the contents, by this account's configuration. Raises `UsageError` for an unknown site."""
        if self._location is None:
            text = self.value(LOCATION)
            if not text:
                raise UsageError(
                    "no-location",
                    "the special remote has no location",
                    hint="git annex initremote NAME type=external externaltype=hibali encryption=none location=SITE:PATH",
                )
            # every clone of the dataset uses this text, and each may have another default site
            found = None if text.startswith(":") else read_location(text, load_sites())
            if found is None or found.typed_local:
                raise UsageError(
                    "no-site",
                    "the location of a special remote must be SITE:PATH, also for folders of this machine",
                    subject=printable(text),
                    hint="To make a folder a site: hibali sites add NAME --local FOLDER",
                )
            self._location = found
        return self._location

    def contents(self) -> AnnexContents:
        """Return the stored contents; no connection is made yet."""
        if self._contents is None:
            self._contents = AnnexContents(self.place(), self._on_event)
        return self._contents

    def _on_event(self, event: Event) -> None:
        # each content is a separate operation
        if isinstance(event, Noted) and event.message not in self._noted:
            self._noted.add(event.message)
            self.send_info(printable(event.message))

    def send_info(self, text: str) -> None:
        """Send a message for the user."""
        self.send("INFO" if self.supports_info else "DEBUG", text)

    def progress(self, done: int) -> None:
        """Report the bytes transferred so far."""
        now = time.monotonic()
        if now - self._reported_at >= _PROGRESS_SECONDS:
            self._reported_at = now
            self.send("PROGRESS", str(done))

    def attempt(
        self, act: Callable[[], object], success: tuple[str, ...], failure: tuple[str, ...]
    ) -> tuple[str, ...]:
        """Call `act` and send the answer; errors are sent in one line after `failure`."""
        try:
            act()
        except BrokenPipeError:
            raise
        except Exception as problem:  # noqa: BLE001  # bugs are reported to git-annex, too
            return (*failure, _error_text(problem))
        return success

    def transfer_content(self, request: AnnexRequest, name: Callable[[], str]) -> tuple[str, ...]:
        """Transfer the file with that name, and answer."""
        direction, key, file = request.arguments

        def transfer_file() -> None:
            path, contents = as_bytes(name()), self.contents()
            if direction == "STORE":
                contents.store(path, Path(file), self.progress)
            else:
                contents.retrieve(path, Path(file), self.progress, digest_of(key))

        return self.attempt(
            transfer_file, ("TRANSFER-SUCCESS", direction, key), ("TRANSFER-FAILURE", direction, key)
        )

    def check_content(self, request: AnnexRequest, name: Callable[[], str]) -> tuple[str, ...]:
        """Answer whether a file with that name exists: yes, no, or unknown now."""
        key, found = request.arguments[0], []

        def check_present() -> None:
            found.append(self.contents().is_present(as_bytes(name()), size_of(key)))

        unknown = self.attempt(check_present, (), ("CHECKPRESENT-UNKNOWN", key))
        return unknown or ("CHECKPRESENT-SUCCESS" if found[0] else "CHECKPRESENT-FAILURE", key)

    def remove_content(self, request: AnnexRequest, name: Callable[[], str]) -> tuple[str, ...]:
        """Remove the file with that name, and answer."""
        key = request.arguments[0]
        return self.attempt(
            lambda: self.contents().remove(as_bytes(name())), ("REMOVE-SUCCESS", key), ("REMOVE-FAILURE", key)
        )


def _error_text(problem: Exception) -> str:
    if isinstance(problem, HibaliError):
        return error_line(problem)
    refused = explain(problem)
    if refused is not None:
        return error_line(refused)
    from hibali_cli.failure import write_bug_report  # start-up: only after a bug

    report_path = write_bug_report(problem)
    return f"a bug in hibali: {type(problem).__name__}" + (
        f"; please report it with {report_path}" if report_path else ""
    )


def as_bytes(text: str) -> bytes:
    """Return a name's original bytes."""
    return text.encode("utf-8", "surrogateescape")


def supported(conversation: Conversation, request: AnnexRequest) -> Replies:
    """Answer that trees can be exported and imported."""
    del conversation
    yield (f"{request.name}-SUCCESS",)


def name(conversation: Conversation, request: AnnexRequest) -> Replies:
    """Note the file of the next request; not answered."""
    conversation.name = request.arguments[0]
    yield from ()


def transfer(conversation: Conversation, request: AnnexRequest) -> Replies:
    """Transfer a file of the exported tree."""
    yield conversation.transfer_content(request, lambda: conversation.name)


def check_present(conversation: Conversation, request: AnnexRequest) -> Replies:
    """Answer whether a file of a tree exists."""
    yield conversation.check_content(request, lambda: conversation.name)


def remove(conversation: Conversation, request: AnnexRequest) -> Replies:
    """Remove a file of the exported tree; a missing one counts as removed."""
    yield conversation.remove_content(request, lambda: conversation.name)


def remove_folder(conversation: Conversation, request: AnnexRequest) -> Replies:
    """Remove a folder that the exported tree no longer has; it stays where it is not empty."""
    folder = as_bytes(request.arguments[0].rstrip("/"))
    success, failure = (f"{request.name}-SUCCESS",), (f"{request.name}-FAILURE",)
    word, *reason = conversation.attempt(
        lambda: conversation.contents().remove_folder(folder), success, failure
    )
    if reason:  # the protocol has no field for the error
        conversation.send_info(reason[0])
    yield (word,)


def rename(conversation: Conversation, request: AnnexRequest) -> Replies:
    """Rename a file of the exported tree; where the store cannot do that, git-annex sends it again."""
    key, other = request.arguments
    done: list[bool] = []
    reply = conversation.attempt(
        lambda: done.append(conversation.contents().rename(as_bytes(conversation.name), as_bytes(other))),
        ("RENAMEEXPORT-SUCCESS", key),
        ("RENAMEEXPORT-FAILURE", key),
    )
    if not done:  # the protocol has no field for the reason
        conversation.send_info(reply[-1])
        yield reply[:-1]
    else:
        yield reply if done[0] else ("UNSUPPORTED-REQUEST",)


def list_files(conversation: Conversation, request: AnnexRequest) -> Replies:
    """List all files that can be imported, each with an identifier that changes with its content."""
    found: list[Entry] = []
    success, failure = (f"{request.name}-SUCCESS",), (f"{request.name}-FAILURE",)
    reply = conversation.attempt(lambda: found.extend(conversation.contents().files()), success, failure)
    for entry in found:
        if b"\n" in entry.path:
            conversation.send_info(
                f"{printable(entry.path)}: skipped: the protocol of git-annex cannot express a name with a newline"
            )
            continue
        yield "IMPORTABLECONTENT", str(entry.size), entry.path.decode("utf-8", "surrogateescape")
        yield "IMPORTABLECONTENTIDENTIFIER", _identifier(entry)
    yield reply


def _identifier(entry: Entry) -> str:
    """Return a unique identifier of a content: git-annex takes two files with one identifier for the same content.

    A tag may depend only on the time of a file, so the path is included.
    """
    place = (entry.inode,) if entry.inode else (entry.path, entry.etag)
    error_line = ascii((entry.size, entry.mtime_ns, *place)).encode("ascii")
    return hashlib.sha256(error_line).hexdigest()[:32]


def fetch(conversation: Conversation, request: AnnexRequest) -> Replies:
    """Fetch an imported file, whose key is not known yet."""
    file = Path(request.arguments[0])
    yield conversation.attempt(
        lambda: conversation.contents().retrieve(as_bytes(conversation.name), file, conversation.progress),
        ("RETRIEVEIMPORT-SUCCESS",),
        ("RETRIEVEIMPORT-FAILURE",),
    )


_USAGE = """\
git-annex-remote-hibali is started by git-annex, for contents at a site of hibali:

    git annex initremote NAME type=external externaltype=hibali encryption=none location=SITE:PATH

SITE is one of `hibali sites list`. See docs/git-annex.md.
"""
_COSTS = {"local": 100, "ssh": 175}  # cheap and semi-expensive, in git-annex's terms; others are expensive
_EXPENSIVE = 200


def _extensions(conversation: Conversation, request: AnnexRequest) -> Replies:
    """Answer which protocol extensions both sides support."""
    conversation.supports_info = "INFO" in request.arguments[0].split()
    yield ("EXTENSIONS", "INFO") if conversation.supports_info else ("EXTENSIONS",)


def _settings(conversation: Conversation, request: AnnexRequest) -> Replies:
    """Answer which settings `git annex initremote` takes."""
    del conversation, request
    yield (
        "CONFIG",
        LOCATION,
        "where the contents are stored: SITE:PATH, with a site of hibali's configuration (required)",
    )
    yield ("CONFIGEND",)


def _initialise(conversation: Conversation, request: AnnexRequest) -> Replies:
    """Create the folder, or connect to an existing one."""
    yield conversation.attempt(
        lambda: conversation.contents().make_place(),
        (f"{request.name}-SUCCESS",),
        (f"{request.name}-FAILURE",),
    )


def _prepare(conversation: Conversation, request: AnnexRequest) -> Replies:
    """Check the configuration, without a login."""
    yield conversation.attempt(
        conversation.contents, (f"{request.name}-SUCCESS",), (f"{request.name}-FAILURE",)
    )


def _cost(conversation: Conversation, request: AnnexRequest) -> Replies:
    """Answer the cost, by the kind of the site."""
    del request
    yield "COST", str(_COSTS.get(_kind(conversation), _EXPENSIVE))


def _availability(conversation: Conversation, request: AnnexRequest) -> Replies:
    """Answer the availability: a local folder is available only on this machine."""
    del request
    yield "AVAILABILITY", "LOCAL" if _kind(conversation) == "local" else "GLOBAL"


def _kind(conversation: Conversation) -> str:
    try:
        return conversation.place().site.kind
    except HibaliError:
        return ""


def _info(conversation: Conversation, request: AnnexRequest) -> Replies:
    """Answer what `git annex info REMOTE` shows."""
    del request
    value = conversation.value(LOCATION)
    yield "INFOFIELD", LOCATION
    yield "INFOVALUE", value
    yield ("INFOEND",)


def _transfer(conversation: Conversation, request: AnnexRequest) -> Replies:
    """Transfer a content by its key."""
    yield conversation.transfer_content(request, lambda: place_of(request.arguments[1]))


def _check_present(conversation: Conversation, request: AnnexRequest) -> Replies:
    """Answer whether a content exists."""
    yield conversation.check_content(request, lambda: place_of(request.arguments[0]))


def _remove(conversation: Conversation, request: AnnexRequest) -> Replies:
    """Remove a content; a missing one counts as removed."""
    yield conversation.remove_content(request, lambda: place_of(request.arguments[0]))


def _locate(conversation: Conversation, request: AnnexRequest) -> Replies:
    """Answer the location of a content as SITE:PATH."""
    try:
        place = conversation.place().text.rstrip("/")
        yield "WHEREIS-SUCCESS", printable(f"{place}/{place_of(request.arguments[0])}")
    except HibaliError:
        yield ("WHEREIS-FAILURE",)


_HANDLERS: Final[Mapping[str, Handler]] = {
    "EXTENSIONS": _extensions,
    "LISTCONFIGS": _settings,
    "INITREMOTE": _initialise,
    "PREPARE": _prepare,
    "GETCOST": _cost,
    "GETAVAILABILITY": _availability,
    "GETINFO": _info,
    "TRANSFER": _transfer,
    "CHECKPRESENT": _check_present,
    "REMOVE": _remove,
    "WHEREIS": _locate,
    "EXPORTSUPPORTED": supported,
    "EXPORT": name,
    "TRANSFEREXPORT": transfer,
    "CHECKPRESENTEXPORT": check_present,
    "REMOVEEXPORT": remove,
    "REMOVEEXPORTDIRECTORY": remove_folder,
    "RENAMEEXPORT": rename,
    "IMPORTSUPPORTED": supported,
    "LISTIMPORTABLECONTENTS": list_files,
    "IMPORT": name,
    "RETRIEVEIMPORT": fetch,
    "CHECKPRESENTIMPORT": check_present,
}


def main() -> NoReturn:
    """Run the remote. Other output to stdout of this process or its children is redirected to stderr."""
    if sys.argv[1:]:
        sys.stdout.write(f"hibali {__version__}\n" if sys.argv[1:] == ["--version"] else _USAGE)
        sys.exit(0 if sys.argv[1] in {"--help", "--version"} else 2)
    try:
        listen_for_interruption()
        requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        sys.exit(Conversation(requests, replies).run(_HANDLERS))
    except KeyboardInterrupt as interrupted:
        sys.exit(int(exit_of(interrupted)))
    except BrokenPipeError:
        sys.exit(int(Exit.INTERRUPTED))
