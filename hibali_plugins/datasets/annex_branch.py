"""Read what git-annex records: special remotes, trust, and the copies and URLs of contents.

The records are in the branch `git-annex`, those of clones that were not merged yet in branches of the same name of
remotes, and the most recent ones in a journal. git-annex itself is not run: it would change the repository.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from hibali.annex_key import key_of_name, place_of
from hibali.errors import HibaliError
from hibali_plugins.datasets.git_objects import find_blobs, local_git, read_objects
from hibali_plugins.datasets.repository import Repository

WEB = "00000000-0000-0000-0000-000000000001"
BITTORRENT = "00000000-0000-0000-0000-000000000002"
_MOST_RECORD = 256 * 1024  # of one key
_MOST_RECORDS = 4 * 1024 * 1024  # of all remotes
_MOST_COMMITS = 16
_MOST_URLS = 100  # of one key
_LINE = re.compile(rb"([0-9]+(?:\.[0-9]+)?)s (\S+) (.+)")
_DATED = re.compile(rb"(\S+) (.*?) ?timestamp=([0-9]+(?:\.[0-9]+)?)s?")
_ESCAPED = re.compile(r"&([0-9]{1,7});")

Settings = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """The repositories that have a content, by uuid, and its URLs."""

    copies: frozenset[str] = frozenset()
    urls: tuple[str, ...] = ()


@dataclass
class AnnexBranch:
    """The records of one repository; `unread` counts those that are too large to be git-annex's."""

    repository: Repository
    unread: int = 0
    commits: Sequence[str] = field(init=False)

    def __post_init__(self) -> None:
        self.commits = _commits(self.repository)

    @cached_property
    def special_remotes(self) -> dict[str, Settings]:
        """The settings of all special remotes, by uuid."""
        return {uuid: _settings(text) for uuid, text in self._dated("remote.log").items()}

    @cached_property
    def descriptions(self) -> dict[str, str]:
        """The descriptions of all repositories, by uuid."""
        return self._dated("uuid.log")

    @cached_property
    def dead(self) -> frozenset[str]:
        """The repositories that are marked as dead."""
        return frozenset(uuid for uuid, trust in self._dated("trust.log").items() if trust == "X")

    def records(self, keys: Iterable[bytes]) -> dict[bytes, KeyRecord]:
        """Return the copies and URLs of keys."""
        paths = {key: path for key in keys if (path := _path(key)) is not None}
        logs = self._read(
            [path + end for path in paths.values() for end in (b".log", b".log.web")], _MOST_RECORD
        )
        found = {}
        for key, path in paths.items():
            copies = _present(logs.get(path + b".log", b""))
            urls = sorted(_present(logs.get(path + b".log.web", b"")))
            found[key] = KeyRecord(frozenset(map(_text, copies)), tuple(map(_text, urls[:_MOST_URLS])))
        return found

    def _dated(self, name: str) -> dict[str, str]:
        """Return the newest value of each uuid in a file with one line for each: `UUID VALUE timestamp=SECONDS`."""
        newest: dict[bytes, tuple[float, bytes]] = {}
        for line in self._read([name.encode()], _MOST_RECORDS).get(name.encode(), b"").split(b"\n"):
            matched = _DATED.fullmatch(line)
            if matched is not None:
                uuid, value, time = matched.groups()
                newest[uuid] = max(newest.get(uuid, (0.0, b"")), (float(time), value))
        return {_text(uuid): _text(value) for uuid, (_, value) in newest.items()}

    def _read(self, paths: Sequence[bytes], most: int) -> dict[bytes, bytes]:
        """Return the lines that all branches and the journal have at these paths."""
        found: dict[bytes, bytes] = {}
        for commit in self.commits:
            blobs = find_blobs(self.repository, commit, paths)
            contents = read_objects(self.repository, list(blobs.values()), most)
            for path, content in zip(blobs, contents, strict=True):
                if content is None:
                    self.unread += 1
                else:
                    found[path] = found.get(path, b"") + content + b"\n"
        for path, content in self._journalled(paths, most):
            found[path] = found.get(path, b"") + content
        return found

    def _journalled(self, paths: Sequence[bytes], most: int) -> Iterator[tuple[bytes, bytes]]:
        folder = Path(os.fsdecode(self.repository.git)) / "annex" / "journal"
        try:
            names = {os.fsencode(name) for name in os.listdir(folder)}  # noqa: PTH208  # many names
        except OSError:
            return
        for path in paths:
            name = path.replace(b"_", b"__").replace(b"/", b"_")
            if name not in names:
                continue
            try:
                with (folder / os.fsdecode(name)).open("rb") as stream:
                    content = stream.read(most + 1)
            except OSError:  # git-annex committed it meanwhile
                continue
            if len(content) > most:
                self.unread += 1
            else:
                yield path, content


def _commits(repository: Repository) -> list[str]:
    """Return the commit of the branch git-annex, and those of remotes that are not merged into it."""
    lines = local_git(repository, "for-each-ref", "--format=%(objectname)", "refs/heads/git-annex").split()
    own = [line.decode() for line in lines]
    merged = [f"--no-merged={own[0]}"] if own else []
    others = local_git(
        repository, "for-each-ref", "--format=%(objectname) %(refname)", *merged, "refs/remotes"
    )
    fetched = [line.split(b" ", 1) for line in others.splitlines()]
    more = [commit.decode() for commit, name in fetched if name.endswith(b"/git-annex")]
    return list(dict.fromkeys([*own, *more]))[:_MOST_COMMITS]


def _path(key: bytes) -> bytes | None:
    """Return the path of the records of a key's file name in the branch, without their ends; None for an invalid key."""
    try:
        return place_of(_text(key_of_name(key))).encode("utf-8", "surrogateescape")
    except HibaliError:
        return None


def _present(lines: bytes) -> set[bytes]:
    """Return the values whose newest line, `SECONDSs STATUS VALUE`, has the status 1."""
    newest: dict[bytes, tuple[float, bytes]] = {}
    for line in lines.split(b"\n"):
        matched = _LINE.fullmatch(line)
        if matched is not None:
            time, status, value = matched.groups()
            newest[value] = max(newest.get(value, (0.0, b"")), (float(time), status))
    return {value for value, (_, status) in newest.items() if status == b"1"}


def _settings(text: str) -> Settings:
    """Parse the settings of a special remote, in which `&32;` is a space."""
    pairs = (part.partition("=") for part in text.split(" "))
    return {name: _ESCAPED.sub(_unescape, value) for name, _, value in pairs if name}


def _unescape(matched: re.Match[str]) -> str:
    number = int(matched[1])
    return chr(number) if number < 0xD800 else matched[0]


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")
