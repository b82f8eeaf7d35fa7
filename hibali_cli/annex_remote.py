"""`git-annex-remote-hibali`: hibali as git-annex's special remote, one request at a time on stdin, its answer on stdout."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, NoReturn

from hibali import __version__
from hibali.annex_key import place_of, size_of
from hibali.errors import HibaliError, UsageError
from hibali.events import Event, Noted
from hibali.locations import Location, read_location
from hibali.settings import load_sites
from hibali.text import printable
from hibali_cli.annex_protocol import VERSION, Asked, line_of, read_request, told
from transfers.annex_contents import AnnexContents

_USAGE = """\
git-annex-remote-hibali is started by git-annex, for contents at a site of hibali:

    git annex initremote NAME type=external externaltype=hibali encryption=none location=SITE:PATH

SITE is one of `hibali sites list`. See docs/git-annex.md.
"""
_LOCATION = "location"
_COSTS = {"local": 100, "ssh": 175}  # as git-annex calls cheap and semi-expensive; others are expensive
_EXPENSIVE = 200
_PROGRESS_SECONDS = 0.1

_Answers = Iterator[tuple[str, ...]]


class AnnexRemote:
    """One conversation with one git-annex, about one place."""

    def __init__(self, requests: IO[bytes], answers: IO[bytes]) -> None:
        self._requests = requests
        self._answers = answers
        self._speaking = threading.Lock()
        self._informs = False
        self._location: Location | None = None
        self._contents: AnnexContents | None = None
        self._export = ""
        self._told = 0.0

    def run(self) -> int:
        """Answer until git-annex has no more requests; the exit code."""
        self._say(VERSION)
        try:
            while line := self._requests.readline():
                if not self._serve(line):
                    return 1
        finally:
            if self._contents is not None:
                self._contents.close()
        return 0

    def _serve(self, line: bytes) -> bool:
        """Answer one request; False where git-annex and we do not understand each other."""
        try:
            asked = read_request(line)
        except UsageError as problem:
            self._say("ERROR", told(problem))
            return False
        if line.startswith(b"ERROR "):  # git-annex has given up on us
            return False
        if asked is None:
            self._say("UNSUPPORTED-REQUEST")
            return True
        for words in _HANDLERS[asked.word](self, asked):
            self._say(*words)
        return True

    def _say(self, *words: str) -> None:
        with self._speaking:
            self._answers.write(line_of(*words))

    def _value(self, setting: str) -> str:
        """What the remote is configured with, asked of git-annex."""
        self._say("GETCONFIG", setting)
        word, _, value = self._requests.readline().removesuffix(b"\n").partition(b" ")
        if word != b"VALUE":
            raise UsageError("protocol", "git-annex did not tell a setting", about=setting)
        return value.decode("utf-8", "surrogateescape")

    def _place(self) -> Location:
        """Where the contents lie, by this account's own configuration."""
        if self._location is None:
            text = self._value(_LOCATION)
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
                    about=printable(text),
                    hint="hibali sites add NAME --local FOLDER makes a site of a folder.",
                )
            self._location = found
        return self._location

    def _kept(self) -> AnnexContents:
        if self._contents is None:
            self._contents = AnnexContents(self._place(), self._hear)
        return self._contents

    def _hear(self, event: Event) -> None:
        if isinstance(event, Noted):
            self._inform(printable(event.message))

    def _inform(self, text: str) -> None:
        self._say("INFO" if self._informs else "DEBUG", text)

    def _progress(self, done: int) -> None:
        now = time.monotonic()
        if now - self._told >= _PROGRESS_SECONDS:
            self._told = now
            self._say("PROGRESS", str(done))

    def extensions(self, asked: Asked) -> _Answers:
        """What both sides may use beyond the plain protocol."""
        self._informs = "INFO" in asked.rest[0].split()
        yield ("EXTENSIONS", "INFO") if self._informs else ("EXTENSIONS",)

    def settings(self, asked: Asked) -> _Answers:
        """What `git annex initremote` takes."""
        del asked
        yield (
            "CONFIG",
            _LOCATION,
            "where the contents lie, as SITE:PATH of hibali's own configuration (required)",
        )
        yield ("CONFIGEND",)

    def initialise(self, asked: Asked) -> _Answers:
        """The place is made, or reached where it is there."""
        del asked
        yield self._tried(lambda: self._kept().make_place(), ("INITREMOTE-SUCCESS",), ("INITREMOTE-FAILURE",))

    def prepare(self, asked: Asked) -> _Answers:
        """The configuration is looked at; nobody logs in anywhere before there is something to do."""
        del asked
        yield self._tried(self._kept, ("PREPARE-SUCCESS",), ("PREPARE-FAILURE",))

    def cost(self, asked: Asked) -> _Answers:
        """By the kind of the site."""
        del asked
        yield "COST", str(_COSTS.get(self._kind(), _EXPENSIVE))

    def availability(self, asked: Asked) -> _Answers:
        """A folder of this machine is there only for this one."""
        del asked
        yield "AVAILABILITY", "LOCAL" if self._kind() == "local" else "GLOBAL"

    def _kind(self) -> str:
        try:
            return self._place().site.kind
        except HibaliError:
            return ""

    def inform(self, asked: Asked) -> _Answers:
        """What `git annex info REMOTE` shows."""
        del asked
        value = self._value(_LOCATION)
        yield "INFOFIELD", _LOCATION
        yield "INFOVALUE", value
        yield ("INFOEND",)

    def transfer(self, asked: Asked) -> _Answers:
        """A content by its key."""
        way, key, file = asked.rest
        yield self._carried(way, key, file, lambda: place_of(key))

    def transfer_export(self, asked: Asked) -> _Answers:
        """A file of an exported tree, by the name that came before."""
        way, key, file = asked.rest
        yield self._carried(way, key, file, lambda: self._export)

    def _carried(self, way: str, key: str, file: str, name: Callable[[], str]) -> tuple[str, ...]:
        def carry() -> None:
            contents = self._kept()
            move = contents.store if way == "STORE" else contents.retrieve
            move(_bytes(name()), Path(file), self._progress)

        return self._tried(carry, ("TRANSFER-SUCCESS", way, key), ("TRANSFER-FAILURE", way, key))

    def look(self, asked: Asked) -> _Answers:
        """Whether a content is there: yes, no, or nobody can tell now."""
        key = asked.rest[0]
        yield self._looked(key, lambda: place_of(key))

    def look_exported(self, asked: Asked) -> _Answers:
        """The same of a file of an exported tree."""
        yield self._looked(asked.rest[0], lambda: self._export)

    def _looked(self, key: str, name: Callable[[], str]) -> tuple[str, ...]:
        present = False

        def look() -> None:
            nonlocal present
            present = self._kept().is_present(_bytes(name()), size_of(key))

        answer = self._tried(look, (), ("CHECKPRESENT-UNKNOWN", key))
        return answer or ("CHECKPRESENT-SUCCESS" if present else "CHECKPRESENT-FAILURE", key)

    def remove(self, asked: Asked) -> _Answers:
        """A content goes; an absent one is gone."""
        key = asked.rest[0]
        yield self._removed(key, lambda: place_of(key))

    def remove_exported(self, asked: Asked) -> _Answers:
        """The same of a file of an exported tree."""
        yield self._removed(asked.rest[0], lambda: self._export)

    def _removed(self, key: str, name: Callable[[], str]) -> tuple[str, ...]:
        return self._tried(
            lambda: self._kept().remove(_bytes(name())), ("REMOVE-SUCCESS", key), ("REMOVE-FAILURE", key)
        )

    def remove_exported_folder(self, asked: Asked) -> _Answers:
        """A folder that the exported tree has no longer; it stays where it holds anything else."""
        folder = _bytes(asked.rest[0].rstrip("/"))
        success, failure = "REMOVEEXPORTDIRECTORY-SUCCESS", "REMOVEEXPORTDIRECTORY-FAILURE"
        word, *reason = self._tried(lambda: self._kept().remove_folder(folder), (success,), (failure,))
        if reason:  # that answer has no room for it
            self._inform(reason[0])
        yield (word,)

    def find(self, asked: Asked) -> _Answers:
        """Where a content lies, in words that hibali understands."""
        try:
            place = self._place().text.rstrip("/")
            yield "WHEREIS-SUCCESS", printable(f"{place}/{place_of(asked.rest[0])}")
        except HibaliError:
            yield ("WHEREIS-FAILURE",)

    def exports(self, asked: Asked) -> _Answers:
        """Trees can be exported."""
        del asked
        yield ("EXPORTSUPPORTED-SUCCESS",)

    def name_export(self, asked: Asked) -> _Answers:
        """Which file of the tree the next request is about; not answered."""
        self._export = asked.rest[0]
        yield from ()

    def rename_exported(self, asked: Asked) -> _Answers:
        """git-annex removes it and sends it again."""
        del asked
        yield ("UNSUPPORTED-REQUEST",)

    def _tried(
        self, act: Callable[[], object], success: tuple[str, ...], failure: tuple[str, ...]
    ) -> tuple[str, ...]:
        """The answer after `act`; whatever goes wrong is told in one line."""
        try:
            act()
        except BrokenPipeError:
            raise
        except Exception as problem:  # noqa: BLE001  # git-annex is told of bugs, too
            return (*failure, _words_for(problem))
        return success


_HANDLERS: Mapping[str, Callable[[AnnexRemote, Asked], _Answers]] = {
    "EXTENSIONS": AnnexRemote.extensions,
    "LISTCONFIGS": AnnexRemote.settings,
    "INITREMOTE": AnnexRemote.initialise,
    "PREPARE": AnnexRemote.prepare,
    "GETCOST": AnnexRemote.cost,
    "GETAVAILABILITY": AnnexRemote.availability,
    "GETINFO": AnnexRemote.inform,
    "TRANSFER": AnnexRemote.transfer,
    "CHECKPRESENT": AnnexRemote.look,
    "REMOVE": AnnexRemote.remove,
    "WHEREIS": AnnexRemote.find,
    "EXPORTSUPPORTED": AnnexRemote.exports,
    "EXPORT": AnnexRemote.name_export,
    "TRANSFEREXPORT": AnnexRemote.transfer_export,
    "CHECKPRESENTEXPORT": AnnexRemote.look_exported,
    "REMOVEEXPORT": AnnexRemote.remove_exported,
    "REMOVEEXPORTDIRECTORY": AnnexRemote.remove_exported_folder,
    "RENAMEEXPORT": AnnexRemote.rename_exported,
}


def main() -> NoReturn:
    """The console entry. Whatever else writes to stdout in this process or its children ends up on stderr."""
    if sys.argv[1:]:
        sys.stdout.write(f"hibali {__version__}\n" if sys.argv[1:] == ["--version"] else _USAGE)
        sys.exit(0 if sys.argv[1] in {"--help", "--version"} else 2)
    try:
        requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        sys.exit(AnnexRemote(requests, answers).run())
    except (KeyboardInterrupt, BrokenPipeError):
        sys.exit(130)


def _words_for(problem: Exception) -> str:
    if isinstance(problem, HibaliError):
        return told(problem)
    from hibali_cli.bug_report import write_bug_report

    where = write_bug_report(problem)
    return f"a bug in hibali: {type(problem).__name__}" + (
        f"; please report it with {where}" if where else ""
    )


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
