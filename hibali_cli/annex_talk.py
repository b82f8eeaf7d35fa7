"""The two ends of the talk with git-annex: what it asks for, what it is told, and the place that this is about."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO

from hibali.annex_key import digest_of, size_of
from hibali.config.settings import load_sites
from hibali.errors import HibaliError, UsageError
from hibali.events import Event, Noted
from hibali.locations import Location, read_location
from hibali.system_errors import explain
from hibali.text import printable
from hibali_cli.annex_protocol import VERSION, Asked, line_of, read_request, told
from transfers.datasets.annex_contents import AnnexContents

LOCATION = "location"
_PROGRESS_SECONDS = 0.1

Answers = Iterator[tuple[str, ...]]
Handler = Callable[["Talk", Asked], Answers]


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
            raise UsageError("protocol", "git-annex did not tell a setting", about=setting)
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
                    about=printable(text),
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

    def carried(self, asked: Asked, name: Callable[[], str]) -> tuple[str, ...]:
        """The answer to a transfer, of what lies under that name."""
        way, key, file = asked.rest

        def carry() -> None:
            path, contents = as_bytes(name()), self.contents()
            if way == "STORE":
                contents.store(path, Path(file), self.progress)
            else:
                contents.retrieve(path, Path(file), self.progress, digest_of(key))

        return self.tried(carry, ("TRANSFER-SUCCESS", way, key), ("TRANSFER-FAILURE", way, key))

    def looked(self, asked: Asked, name: Callable[[], str]) -> tuple[str, ...]:
        """The answer to whether something is there under that name: yes, no, or nobody can tell now."""
        key, found = asked.rest[0], []

        def look() -> None:
            found.append(self.contents().is_present(as_bytes(name()), size_of(key)))

        unknown = self.tried(look, (), ("CHECKPRESENT-UNKNOWN", key))
        return unknown or ("CHECKPRESENT-SUCCESS" if found[0] else "CHECKPRESENT-FAILURE", key)

    def removed(self, asked: Asked, name: Callable[[], str]) -> tuple[str, ...]:
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
    from hibali_cli.bug_report import write_bug_report

    where = write_bug_report(problem)
    return f"a bug in hibali: {type(problem).__name__}" + (
        f"; please report it with {where}" if where else ""
    )


def as_bytes(text: str) -> bytes:
    """A name again as it came."""
    return text.encode("utf-8", "surrogateescape")
