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
from hibali.system_errors import explain
from hibali.text import printable
from hibali_cli.interruption import listen_for_interruption
from transfers.datasets.annex_contents import AnnexContents
from transfers.entry import Entry

VERSION = "VERSION 1"
# The requests that are understood, and how many words each has; the last one may hold spaces.
WORDS: Final[Mapping[str, int]] = {
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
    """One request: its word, and what follows."""

    word: str
    rest: tuple[str, ...]


def read_request(line: bytes) -> AnnexRequest | None:
    """What a line asks for; None for a word that is not understood. Raises `UsageError` where words are missing."""
    text = line.removesuffix(b"\n").decode("utf-8", "surrogateescape")
    word, _, rest = text.partition(" ")
    if word not in WORDS:
        return None
    count = WORDS[word]
    words = tuple(rest.split(" ", count - 1)) if count else ()
    if len(words) != count or (count > 1 and not all(words)):
        raise UsageError("protocol", f"{word} takes {count} words", subject=printable(text))
    return AnnexRequest(word, words)


def line_of(*words: str) -> bytes:
    """One line of ours; whatever could end it early is escaped."""
    text = " ".join(words).replace("\n", "\\n").replace("\r", "\\r").replace("\0", "\\0")
    return text.encode("utf-8", "surrogateescape") + b"\n"


def told(problem: HibaliError) -> str:
    """An error in one line: what it is about, what is wrong, and what to do."""
    subject = f"{problem.subject}: " if problem.subject else ""
    hint = f" ({problem.hint})" if problem.hint else ""
    return printable(f"{subject}{problem.message}{hint}".replace("\n", "; "))


LOCATION = "location"
_PROGRESS_SECONDS = 0.1

Answers = Iterator[tuple[str, ...]]
Handler = Callable[["Talk", AnnexRequest], Answers]


class Talk:
    """One conversation with one git-annex, about one place. `name` is of the file that a tree's next request is about."""

    def __init__(self, requests: IO[bytes], answers: IO[bytes]) -> None:
        self._requests = requests
        self._answers = answers
        self._speaking = threading.Lock()
        self._location: Location | None = None
        self._contents: AnnexContents | None = None
        self._noted: set[str] = set()
        self._told = 0.0
        self.informs = False
        self.name = ""

    def run(self, handlers: Mapping[str, Handler]) -> int:
        """Answer until git-annex has no more requests; the exit code."""
        self.say(VERSION)
        try:
            while line := self._requests.readline():
                if not self._serve(line, handlers):
                    return 1
        finally:
            if self._contents is not None:
                self._contents.close()
        return 0

    def _serve(self, line: bytes, handlers: Mapping[str, Handler]) -> bool:
        """Answer one request; False where git-annex and we do not understand each other."""
        if line.startswith(b"ERROR "):  # git-annex has given up on us
            return False
        self._told = 0.0  # the first progress of each request is told
        try:
            asked = read_request(line)
            for words in handlers[asked.word](self, asked) if asked else [("UNSUPPORTED-REQUEST",)]:
                self.say(*words)
        except UsageError as problem:
            self.say("ERROR", told(problem))
            return False
        return True

    def say(self, *words: str) -> None:
        """One line."""
        with self._speaking:
            self._answers.write(line_of(*words))

    def value(self, setting: str) -> str:
        """What the remote is configured with, asked of git-annex. Raises `UsageError` where it says something else."""
        self.say("GETCONFIG", setting)
        word, _, value = self._requests.readline().removesuffix(b"\n").partition(b" ")
        if word != b"VALUE":
            raise UsageError("protocol", "git-annex did not tell a setting", subject=setting)
        return value.decode("utf-8", "surrogateescape")

    def place(self) -> Location:
        """Where the contents lie, by this account's own configuration. Raises `UsageError` where it does not know the site."""
        if self._location is None:
            text = self.value(LOCATION)
            if not text:
                raise UsageError(
                    "no-location",
                    "the special remote has no location",
                    hint="git annex initremote NAME type=external externaltype=hibali encryption=none location=SITE:PATH",
                )
            found = read_location(text, load_sites())
            if found.typed_local:
                raise UsageError(
                    "no-site",
                    "the location of a special remote is SITE:PATH, also for folders of this machine",
                    subject=printable(text),
                    hint="`hibali sites add NAME --local FOLDER` makes a site of a folder.",
                )
            self._location = found
        return self._location

    def contents(self) -> AnnexContents:
        """What lies there; nobody has been gone to yet."""
        if self._contents is None:
            self._contents = AnnexContents(self.place(), self._hear)
        return self._contents

    def _hear(self, event: Event) -> None:
        if isinstance(event, Noted) and event.message not in self._noted:  # each content is a call of its own
            self._noted.add(event.message)
            self.inform(printable(event.message))

    def inform(self, text: str) -> None:
        """Something that a person should read."""
        self.say("INFO" if self.informs else "DEBUG", text)

    def progress(self, done: int) -> None:
        """So many bytes are through."""
        now = time.monotonic()
        if now - self._told >= _PROGRESS_SECONDS:
            self._told = now
            self.say("PROGRESS", str(done))

    def tried(
        self, act: Callable[[], object], success: tuple[str, ...], failure: tuple[str, ...]
    ) -> tuple[str, ...]:
        """The answer after `act`; whatever goes wrong is told in one line behind `failure`."""
        try:
            act()
        except BrokenPipeError:
            raise
        except Exception as problem:  # noqa: BLE001  # git-annex is told of bugs, too
            return (*failure, _words_for(problem))
        return success

    def carried(self, asked: AnnexRequest, name: Callable[[], str]) -> tuple[str, ...]:
        """The answer to a transfer, of what lies under that name."""
        way, key, file = asked.rest

        def carry() -> None:
            path, contents = as_bytes(name()), self.contents()
            if way == "STORE":
                contents.store(path, Path(file), self.progress)
            else:
                contents.retrieve(path, Path(file), self.progress, digest_of(key))

        return self.tried(carry, ("TRANSFER-SUCCESS", way, key), ("TRANSFER-FAILURE", way, key))

    def looked(self, asked: AnnexRequest, name: Callable[[], str]) -> tuple[str, ...]:
        """The answer to whether something is there under that name: yes, no, or nobody can tell now."""
        key, found = asked.rest[0], []

        def look() -> None:
            found.append(self.contents().is_present(as_bytes(name()), size_of(key)))

        unknown = self.tried(look, (), ("CHECKPRESENT-UNKNOWN", key))
        return unknown or ("CHECKPRESENT-SUCCESS" if found[0] else "CHECKPRESENT-FAILURE", key)

    def removed(self, asked: AnnexRequest, name: Callable[[], str]) -> tuple[str, ...]:
        """The answer to the removal of what lies under that name."""
        key = asked.rest[0]
        return self.tried(
            lambda: self.contents().remove(as_bytes(name())), ("REMOVE-SUCCESS", key), ("REMOVE-FAILURE", key)
        )


def _words_for(problem: Exception) -> str:
    if isinstance(problem, HibaliError):
        return told(problem)
    refused = explain(problem)
    if refused is not None:
        return told(refused)
    from hibali_cli.failure import write_bug_report

    where = write_bug_report(problem)
    return f"a bug in hibali: {type(problem).__name__}" + (
        f"; please report it with {where}" if where else ""
    )


def as_bytes(text: str) -> bytes:
    """A name again as it came."""
    return text.encode("utf-8", "surrogateescape")


def supported(talk: Talk, asked: AnnexRequest) -> Answers:
    """Trees can be exported, and imported."""
    del talk
    yield (f"{asked.word}-SUCCESS",)


def name(talk: Talk, asked: AnnexRequest) -> Answers:
    """Which file of the tree the next request is about; not answered."""
    talk.name = asked.rest[0]
    yield from ()


def transfer(talk: Talk, asked: AnnexRequest) -> Answers:
    """A file of the exported tree goes or comes."""
    yield talk.carried(asked, lambda: talk.name)


def look(talk: Talk, asked: AnnexRequest) -> Answers:
    """Whether a file of a tree is there."""
    yield talk.looked(asked, lambda: talk.name)


def remove(talk: Talk, asked: AnnexRequest) -> Answers:
    """A file of the exported tree goes; an absent one is gone."""
    yield talk.removed(asked, lambda: talk.name)


def remove_folder(talk: Talk, asked: AnnexRequest) -> Answers:
    """A folder that the exported tree has no longer; it stays where it holds anything else."""
    folder = as_bytes(asked.rest[0].rstrip("/"))
    success, failure = (f"{asked.word}-SUCCESS",), (f"{asked.word}-FAILURE",)
    word, *reason = talk.tried(lambda: talk.contents().remove_folder(folder), success, failure)
    if reason:  # that answer has no room for it
        talk.inform(reason[0])
    yield (word,)


def rename(talk: Talk, asked: AnnexRequest) -> Answers:
    """A file of the exported tree gets another name; where the place cannot do that, git-annex sends it again."""
    key, other = asked.rest
    done: list[bool] = []
    answer = talk.tried(
        lambda: done.append(talk.contents().rename(as_bytes(talk.name), as_bytes(other))),
        ("RENAMEEXPORT-SUCCESS", key),
        ("RENAMEEXPORT-FAILURE", key),
    )
    if not done:  # that answer has no room for the reason
        talk.inform(answer[-1])
        yield answer[:-1]
    else:
        yield answer if done[0] else ("UNSUPPORTED-REQUEST",)


def list_files(talk: Talk, asked: AnnexRequest) -> Answers:
    """All files that can be imported, each with what differs when it changes."""
    found: list[Entry] = []
    success, failure = (f"{asked.word}-SUCCESS",), (f"{asked.word}-FAILURE",)
    answer = talk.tried(lambda: found.extend(talk.contents().files()), success, failure)
    for entry in found:
        if b"\n" in entry.path:
            talk.inform(f"{printable(entry.path)}: git-annex cannot be told of a name with a newline")
            continue
        yield "IMPORTABLECONTENT", str(entry.size), entry.path.decode("utf-8", "surrogateescape")
        yield "IMPORTABLECONTENTIDENTIFIER", _identifier(entry)
    yield answer


def _identifier(entry: Entry) -> str:
    """What no other content here has: git-annex takes two files of one identifier for the same, whatever they are called.

    A tag may be no more than the time of a file, so it counts for one path alone.
    """
    place = (entry.inode,) if entry.inode else (entry.path, entry.etag)
    told = ascii((entry.size, entry.mtime_ns, *place)).encode("ascii")
    return hashlib.sha256(told).hexdigest()[:32]


def fetch(talk: Talk, asked: AnnexRequest) -> Answers:
    """A file that is imported; nobody knows its key yet."""
    file = Path(asked.rest[0])
    yield talk.tried(
        lambda: talk.contents().retrieve(as_bytes(talk.name), file, talk.progress),
        ("RETRIEVEIMPORT-SUCCESS",),
        ("RETRIEVEIMPORT-FAILURE",),
    )


_USAGE = """\
git-annex-remote-hibali is started by git-annex, for contents at a site of hibali:

    git annex initremote NAME type=external externaltype=hibali encryption=none location=SITE:PATH

SITE is one of `hibali sites list`. See docs/git-annex.md.
"""
_COSTS = {"local": 100, "ssh": 175}  # as git-annex calls cheap and semi-expensive; others are expensive
_EXPENSIVE = 200


def _extensions(talk: Talk, asked: AnnexRequest) -> Answers:
    """What both sides may use beyond the plain protocol."""
    talk.informs = "INFO" in asked.rest[0].split()
    yield ("EXTENSIONS", "INFO") if talk.informs else ("EXTENSIONS",)


def _settings(talk: Talk, asked: AnnexRequest) -> Answers:
    """What `git annex initremote` takes."""
    del talk, asked
    yield "CONFIG", LOCATION, "where the contents lie, as SITE:PATH of hibali's own configuration (required)"
    yield ("CONFIGEND",)


def _initialise(talk: Talk, asked: AnnexRequest) -> Answers:
    """The place is made, or reached where it is there."""
    yield talk.tried(
        lambda: talk.contents().make_place(), (f"{asked.word}-SUCCESS",), (f"{asked.word}-FAILURE",)
    )


def _prepare(talk: Talk, asked: AnnexRequest) -> Answers:
    """The configuration is looked at; nobody logs in anywhere before there is something to do."""
    yield talk.tried(talk.contents, (f"{asked.word}-SUCCESS",), (f"{asked.word}-FAILURE",))


def _cost(talk: Talk, asked: AnnexRequest) -> Answers:
    """By the kind of the site."""
    del asked
    yield "COST", str(_COSTS.get(_kind(talk), _EXPENSIVE))


def _availability(talk: Talk, asked: AnnexRequest) -> Answers:
    """A folder of this machine is there only for this one."""
    del asked
    yield "AVAILABILITY", "LOCAL" if _kind(talk) == "local" else "GLOBAL"


def _kind(talk: Talk) -> str:
    try:
        return talk.place().site.kind
    except HibaliError:
        return ""


def _info(talk: Talk, asked: AnnexRequest) -> Answers:
    """What `git annex info REMOTE` shows."""
    del asked
    value = talk.value(LOCATION)
    yield "INFOFIELD", LOCATION
    yield "INFOVALUE", value
    yield ("INFOEND",)


def _transfer(talk: Talk, asked: AnnexRequest) -> Answers:
    """A content goes or comes, by its key."""
    yield talk.carried(asked, lambda: place_of(asked.rest[1]))


def _look(talk: Talk, asked: AnnexRequest) -> Answers:
    """Whether a content is there."""
    yield talk.looked(asked, lambda: place_of(asked.rest[0]))


def _remove(talk: Talk, asked: AnnexRequest) -> Answers:
    """A content goes; an absent one is gone."""
    yield talk.removed(asked, lambda: place_of(asked.rest[0]))


def _find(talk: Talk, asked: AnnexRequest) -> Answers:
    """Where a content lies, in words that hibali understands."""
    try:
        place = talk.place().text.rstrip("/")
        yield "WHEREIS-SUCCESS", printable(f"{place}/{place_of(asked.rest[0])}")
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
    "CHECKPRESENT": _look,
    "REMOVE": _remove,
    "WHEREIS": _find,
    "EXPORTSUPPORTED": supported,
    "EXPORT": name,
    "TRANSFEREXPORT": transfer,
    "CHECKPRESENTEXPORT": look,
    "REMOVEEXPORT": remove,
    "REMOVEEXPORTDIRECTORY": remove_folder,
    "RENAMEEXPORT": rename,
    "IMPORTSUPPORTED": supported,
    "LISTIMPORTABLECONTENTS": list_files,
    "IMPORT": name,
    "RETRIEVEIMPORT": fetch,
    "CHECKPRESENTIMPORT": look,
}


def main() -> NoReturn:
    """The console entry. Whatever else writes to stdout in this process or its children ends up on stderr."""
    if sys.argv[1:]:
        sys.stdout.write(f"hibali {__version__}\n" if sys.argv[1:] == ["--version"] else _USAGE)
        sys.exit(0 if sys.argv[1] in {"--help", "--version"} else 2)
    try:
        listen_for_interruption()
        requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        sys.exit(Talk(requests, answers).run(_HANDLERS))
    except KeyboardInterrupt as interrupted:
        sys.exit(int(getattr(interrupted, "exit", Exit.INTERRUPTED)))
    except BrokenPipeError:
        sys.exit(int(Exit.INTERRUPTED))
