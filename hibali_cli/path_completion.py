"""Complete paths of this machine, and names at sites that were seen before."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from hibali.errors import HibaliError
from hibali.files import open_regular, read_regular, write_atomic
from hibali.ledger import journal_names, ledger_folder
from hibali.text import printable
from registry.invocation import write_typed
from transfers.model.entry import Entry, Kind

_MOST = 200  # candidates


def complete_last(text: str, words: Sequence[str]) -> list[str]:
    """Complete the last of several words; the words before it are kept."""
    begun, _, last = text.rpartition(" ")
    before = f"{begun} " if begun else ""
    return [before + word for word in words if word.startswith(last)][:_MOST]


def complete_path(text: str, folder: Path) -> list[str]:
    """Return the paths with the typed prefix, relative to `folder`, as a user would type them; folders end in a slash.

    Names with control characters, blanks or quotation marks are JSON strings. Names that are not UTF-8 cannot be written in an
    invocation and are omitted.
    """
    typed = _plain(text)
    above, _, begun = typed.rpartition("/")
    root = folder / (above + "/" if above or typed.startswith("/") else "")
    found = []
    try:
        with os.scandir(root) as entries:
            for entry in entries:
                hidden = entry.name.startswith(".") and not begun.startswith(".")
                if entry.name.startswith(begun) and not hidden and _is_text(entry.name):
                    found.append(f"{entry.name}/" if _is_folder(entry) else entry.name)
    except (OSError, ValueError):
        return []
    before = typed[: len(typed) - len(begun)]
    return [_shown(before + name, quoted=text.startswith('"')) for name in sorted(found)[:_MOST]]


def _plain(text: str) -> str:
    """Return the text typed so far, decoded from an unfinished JSON string."""
    if not text.startswith('"'):
        return text
    for end in ('"', "", '\\"'):  # not closed yet, closed already, or in the middle of an escape
        try:
            return str(json.loads(text + end))
        except ValueError:
            continue
    return text


def _shown(path: str, *, quoted: bool) -> str:
    """Return a completion; the string of a folder stays open, so that the user can continue to type in it."""
    text = json.dumps(path) if quoted else write_typed(path)
    is_open = text.startswith('"') and path.endswith("/")
    return text[:-1] if is_open else text


def _is_text(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


_MOST_NAMES = 1000  # of one folder
_MOST_FOLDERS = 200  # of one site
_MOST_OPERATIONS = 100  # operations that are read
_FIRST_LINE = 16 * 1024


class SeenNames:
    """The names of one folder as they are listed, stored once the listing is complete. Failures are ignored."""

    def __init__(self, site: str, typed: str) -> None:
        """`typed` is the text after the colon."""
        self._site = site
        self._typed = typed.rstrip("/")
        self._names: list[str] = []

    def add(self, entry: Entry) -> None:
        """Add a name, if it can be typed."""
        if len(self._names) < _MOST_NAMES and b"/" not in entry.path:
            with contextlib.suppress(UnicodeDecodeError):
                name = entry.path.decode("utf-8")
                if printable(name) == name:
                    self._names.append(name + ("/" if entry.kind is Kind.FOLDER else ""))

    def save(self, *, unless: bytes) -> None:
        """Store the names for later calls, `unless` only that file was listed."""
        if self._names == [unless.decode("utf-8", "replace")]:
            return
        record = {"schema": 1, "folder": self._typed, "names": self._names}
        with contextlib.suppress(HibaliError, OSError):
            write_atomic(_file(self._site, self._typed), json.dumps(record).encode("ascii") + b"\n")
            files = sorted(_folder(self._site).glob("*.json"), key=lambda path: path.stat().st_mtime)
            for path in files[:-_MOST_FOLDERS]:
                path.unlink(missing_ok=True)


def places_like(site: str, typed: str) -> Iterator[str]:
    """Return known places of a site with the typed prefix, each up to the next slash. May raise OSError."""
    folder, slash, _ = typed.rpartition("/")
    above = f"{site}:{folder}{slash}"
    found = {f"{above}{name}": None for name in _names_in(site, folder)}
    for place in _moved_places(site):
        if place.startswith(f"{site}:{typed}"):
            rest = place[len(above) :]
            name, more, _ = rest.partition("/")
            found[above + name + more] = None
    yield from (place for place in found if place != above)


def _names_in(site: str, folder: str) -> list[str]:
    try:
        record = json.loads(read_regular(_file(site, folder)))
        return [name for name in record["names"] if isinstance(name, str)]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []


def _moved_places(site: str) -> Iterator[str]:
    """Return sources and targets of the last operations at this site."""
    folder = ledger_folder("operations")
    for name in sorted(journal_names(folder), reverse=True)[:_MOST_OPERATIONS]:
        try:
            with os.fdopen(open_regular(folder / f"{name}.jsonl"), "rb") as stream:
                record = json.loads(stream.readline(_FIRST_LINE))
            ends = [record["source"], record["target"]]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
        for end in ends:
            if isinstance(end, str) and end.startswith(f"{site}:") and printable(end) == end:
                yield end


def _folder(site: str) -> Path:
    return ledger_folder("sites", site, "seen")


def _file(site: str, typed: str) -> Path:
    digest = hashlib.sha256(typed.rstrip("/").encode("utf-8", "surrogateescape")).hexdigest()
    return _folder(site) / f"{digest[:32]}.json"
