"""The lines that git-annex and an external special remote exchange (its page "external special remote protocol"); pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from hibali.errors import HibaliError, UsageError
from hibali.text import printable

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


class Asked(NamedTuple):
    """One request: its word, and what follows."""

    word: str
    rest: tuple[str, ...]


def read_request(line: bytes) -> Asked | None:
    """What a line asks for; None for a word that is not understood. Raises `UsageError` where words are missing."""
    text = line.removesuffix(b"\n").decode("utf-8", "surrogateescape")
    word, _, rest = text.partition(" ")
    if word not in WORDS:
        return None
    count = WORDS[word]
    words = tuple(rest.split(" ", count - 1)) if count else ()
    if len(words) != count or (count > 1 and not all(words)):
        raise UsageError("protocol", f"{word} takes {count} words", about=printable(text))
    return Asked(word, words)


def line_of(*words: str) -> bytes:
    """One line of ours; whatever could end it early is escaped."""
    text = " ".join(words).replace("\n", "\\n").replace("\r", "\\r").replace("\0", "\\0")
    return text.encode("utf-8", "surrogateescape") + b"\n"


def told(problem: HibaliError) -> str:
    """An error in one line: what it is about, what is wrong, and what to do."""
    about = f"{problem.about}: " if problem.about else ""
    hint = f" ({problem.hint})" if problem.hint else ""
    return printable(f"{about}{problem.message}{hint}".replace("\n", "; "))
