"""Read queries, hibali://SITE/PATH, and decide which folders to list for many of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

PROTOCOL = "hibali://"

_SITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ABSOLUTE = "%2F"  # the slash at the start of an absolute path, encoded as a component
_FEW_FOLDERS = 8


def find_problem(query: str) -> str | None:
    """Return why a query is invalid, None if it is valid; it may have wildcards."""
    if not query.startswith(PROTOCOL):
        return f"it does not begin with {PROTOCOL}"
    site, _, path = query.removeprefix(PROTOCOL).partition("/")
    if not _SITE.fullmatch(site):
        return f"the name of a site is missing: {PROTOCOL}SITE/PATH"
    parts = path.removeprefix("/").split("/")
    if not all(parts):
        return "the path is empty, ends with a slash, or has two in a row"
    if not {".", ".."}.isdisjoint(parts):
        return "the path has a component . or .."
    return None


def path_of(query: str) -> str:
    """Return SITE/PATH."""
    return query.removeprefix(PROTOCOL)


def place_of(path: str) -> str:
    """Return SITE/PATH as hibali's functions take it, SITE:PATH."""
    site, _, rest = path.partition("/")
    return f"{site}:{rest}"


def local_suffix(path: str) -> str:
    """Return the path of the local copy of SITE/PATH; two queries never have the same."""
    site, _, rest = path.partition("/")
    return f"{site}/{_ABSOLUTE}{rest}" if rest.startswith("/") else f"{site}/{rest}"


def folder_of(path: str) -> str:
    """Return the folder of SITE/PATH, "" for one that is directly below the site or its root."""
    folder = path.rpartition("/")[0]
    return folder if folder.partition("/")[2].strip("/") else ""


def folders_above(path: str) -> Iterator[str]:
    """Yield the folders of SITE/PATH, the nearest first."""
    while path := folder_of(path):
        yield path


class Listings:
    """Decide which folder to list, so that 10,000 files in as many folders do not need as many requests."""

    def __init__(self) -> None:
        self._below: Counter[str] = Counter()

    def choose(self, folder: str) -> str:
        """Return a folder itself, or the one above it in which several were listed before."""
        chosen = next((each for each in folders_above(folder) if self._below[each] >= _FEW_FOLDERS), folder)
        replaced = self._below.pop(chosen, 0)
        for above in folders_above(chosen):
            self._below[above] += 1 - replaced
        return chosen
