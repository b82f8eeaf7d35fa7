"""Select the part of a BIDS dataset that one participant or session needs: its folder, and what applies to it on the levels above.

Source: Brain Imaging Data Structure 1.10, "Common principles" (inheritance principle): a file on a level above applies to a data file if
its suffix is the same and its entities are among those of the data file. The part has the same relative paths, and is a valid dataset: its
participants.tsv has only this participant, as the validator wants, and others' data do not leave the dataset.

An input names a part as `DATASET/./sub-LABEL` or `DATASET/./sub-LABEL/ses-LABEL`, also of a dataset of derivatives, or of any other folder
with a folder for each participant (`links.py`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from hibali.documents import read_json
from hibali.errors import HibaliError, NotFoundError, UsageError
from hibali.events import Listener, Noted, ignore
from hibali.locations import Location
from hibali.text import as_text, counted, printable
from runs.identity import Part
from transfers.listing import list_entries
from transfers.model.entry import Entry, Kind
from transfers.model.patterns import gitignore_matcher
from transfers.model.rules import Rules
from transfers.single_files import contents
from transfers.stores.open_views import ViewOpener, fetch_content

DESCRIPTION = b"dataset_description.json"
PATH = re.compile(r"sub-[0-9A-Za-z+]+(?:/ses-[0-9A-Za-z+]+)?")
_SUBJECT = re.compile(rb"(sub-[0-9A-Za-z+]+)(?:[_.].*)?")
_PAIR = re.compile(r"[0-9A-Za-z]+-[0-9A-Za-z+]+")
_IGNORE = b".bidsignore"
_PERSON = b"participant_id"
_OF_PARTICIPANTS = frozenset({b"participants.tsv", b"samples.tsv"})  # tables with rows of each participant
_ALWAYS = frozenset(
    {"coordsystem", "description", "participants", "samples"}
)  # suffixes of files that describe no single data file
_SAME_SUFFIX = frozenset({"json", "bval", "bvec"})
EMPTY_ROOM = "emptyroom"  # the label of recordings without a person, which MEG data of all need
_STIMULI = b"stimuli"
_EMPTY_ROOM = f"sub-{EMPTY_ROOM}".encode("ascii")
_ANNEX = b".git/annex/objects/"
_TABLES = (b".tsv", b".csv", b".tsv.gz", b".csv.gz", b".xls", b".xlsx", b".ods", b".parquet")
_OF_DATA = frozenset(  # suffixes of tables that describe data files, and not participants
    {
        "aslcontext",
        "blood",
        "channels",
        "dseg",
        "electrodes",
        "events",
        "motion",
        "optodes",
        "physio",
        "probseg",
        "stim",
    }
)
NO_FILES = "files (is it a subdataset that is not installed?)"
_MOST_BYTES = 64 * 1024 * 1024
_MOST_NAMED = 100


class Name(NamedTuple):
    """A file name: its entities, its suffix and its extension, without the dot; of one that is not `exact` only what could be read."""

    entities: frozenset[str]
    suffix: str
    extension: str
    exact: bool = True

    def has(self, entities: frozenset[str]) -> bool:
        """Return whether it has these entities; one that is not exact must only not have others."""
        if self.exact:
            return entities <= self.entities
        wanted = {_key(each) for each in entities}
        return all(each in entities for each in self.entities if _key(each) in wanted)

    def may_be(self, suffix: str) -> bool:
        """Return whether this is its suffix, or none could be read."""
        return suffix == self.suffix or not self.suffix


def _key(pair: str) -> str:
    return pair.partition("-")[0]


def read_name(name: bytes) -> Name | None:
    """Split the name of a file; None if it is not made of entities and a suffix."""
    stem, _, extension = as_text(name).partition(".")
    *pairs, suffix = stem.split("_")
    if not suffix.isalnum() or not all(map(_PAIR.fullmatch, pairs)):
        return None
    return Name(frozenset(pairs), suffix, extension)


def _read_data_name(name: bytes) -> Name | None:
    """Split the name of a data file, also one that BIDS does not allow: metadata too many do no harm, but those that lack do."""
    found = read_name(name)
    if found is not None or name.startswith(b".") or not (b"_" in name or b"." in name):
        return found
    *pairs, last = as_text(name).split("_")
    suffix, _, extension = last.partition(".")
    read = frozenset(each for each in pairs if _PAIR.fullmatch(each))
    return Name(read, suffix if suffix.isalnum() and pairs else "", extension, exact=False)


def applying(level: Iterable[bytes], data: Iterable[bytes]) -> set[bytes]:
    """Return which files of a level above apply to data files, by their names; other files than metadata apply to all.

    Metadata of a recording, such as its events, has another suffix: then the entities decide. Positions of sensors have a `space` of their own.
    """
    known = {name for name in map(_read_data_name, data) if name is not None}
    found, sidecars = set(), []
    for each in level:
        name = read_name(each)
        if name is None or name.suffix in _ALWAYS or not (name.entities or name.extension in _SAME_SUFFIX):
            found.add(each)
        elif name.extension in _SAME_SUFFIX:
            sidecars.append((each, name))
        elif any(
            other.has(frozenset(pair for pair in name.entities if not pair.startswith("space-")))
            for other in known
        ):
            found.add(each)
    known |= {name for name in map(read_name, found) if name is not None}
    described = [each for each in known if each.extension not in _SAME_SUFFIX]
    found |= {
        each
        for each, name in sidecars
        if any(other.may_be(name.suffix) and other.has(name.entities) for other in described)
    }
    return found


@dataclass(frozen=True, slots=True)
class Selected:
    """The part of a participant or session, the number of its files and of those that .bidsignore leaves out, and the patterns without a file."""

    part: Part
    count: int
    ignored: int
    lacks: tuple[str, ...] = ()


@dataclass
class Dataset:
    """The upper level of a dataset: its files, its folders, and what its own files say.

    A dataset of derivatives may need files that its .bidsignore names, because BIDS does not define them yet: there it has no effect.
    `names_files`: its parts name each file instead of patterns, which would concern other datasets that are staged with it.
    `written` are files of the upper level with other contents, and `refused` says why datasets to which it links are not staged with it, by the
    links' names.
    """

    root: Location
    files: frozenset[bytes]
    folders: frozenset[bytes]
    description: Mapping[str, Any] = field(default_factory=dict)
    patterns: tuple[str, ...] = ()
    tables: Mapping[bytes, bytes] = field(default_factory=dict)
    names_files: bool = False
    written: Mapping[bytes, bytes] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_described(self) -> bool:
        """Whether it says that it is a dataset."""
        return bool(self.description)

    @property
    def subjects(self) -> frozenset[str]:
        """The names of the folders of participants."""
        return frozenset(as_text(each) for each in self.folders if PATH.fullmatch(as_text(each)))

    @property
    def left_out(self) -> list[str]:
        """The folders that no part has."""
        rest = (each for each in self.folders if each != _STIMULI and not each.startswith((b".", b"sub-")))
        return sorted(printable(each) for each in rest)

    @property
    def unreadable_tables(self) -> list[bytes]:
        """The tables of participants that do not say whose their rows are."""
        return [name for name, table in self.tables.items() if _PERSON not in _columns(table)]

    @property
    def tables_of_others(self) -> frozenset[bytes]:
        """The tables of the upper level that BIDS does not know: they may have rows of each participant, so no part has them."""
        found = set()
        for each in self.files - self.tables.keys():
            name = read_name(each)
            known = name is not None and (name.entities or name.suffix in _OF_DATA)
            if each.lower().endswith(_TABLES) and not each.startswith(b"sub-") and not known:
                found.add(each)
        return frozenset(found)

    def ignores(self) -> Callable[[bytes], bool]:
        """Return whether .bidsignore leaves out a path; that of a folder ends in a slash."""
        matches = gitignore_matcher(self.patterns)
        return lambda path: matches(as_text(path))

    def select(self, paths: Iterable[str], required: Sequence[str] = ()) -> dict[str, Selected]:
        """Select the parts of participants or sessions; those without a folder are left out of the result.

        `required` are patterns of files that each must have.
        """
        wanted: dict[bytes, list[str]] = {}
        for path in paths:
            wanted.setdefault(path.partition("/")[0].encode("ascii"), []).append(path)
        found: dict[str, Selected] = {}
        requires = [(each, gitignore_matcher([each])) for each in required]
        for subject, entries in groupby(self._entries(frozenset(wanted)), _top):
            listed = list(entries)
            for path in wanted.get(subject, ()):
                selected = self._select(path.encode("ascii"), listed, requires)
                if selected is not None:
                    found[path] = selected
        return found

    def require(self, paths: Iterable[str]) -> dict[str, Part]:
        """Select parts as `select` does. Raises `NotFoundError` with all that do not exist."""
        found = self.select(paths)
        missing = sorted(each for each in set(paths) if each not in found or not found[each].count)
        if missing:
            lines = [
                f"{self.root.text} has no folder {each}"
                if each not in found
                else f"{self.root.text}/{each} has no {NO_FILES}"
                for each in missing[:_MOST_NAMED]
            ]
            if len(missing) > len(lines):
                lines.append(f"and {len(missing) - len(lines)} more")
            message = "\n".join([counted(len(missing), "input is missing", "inputs are missing"), *lines])
            raise NotFoundError("no-such-input", message)
        return {path: each.part for path, each in found.items()}

    def _entries(self, names: frozenset[bytes]) -> Iterator[Entry]:
        store = ViewOpener(ignore, fetches=False).open(self.root)
        with closing(store):
            store.list_only(names)
            yield from (each for each in store.list() if _top(each) in names)

    def _select(
        self, path: bytes, entries: Sequence[Entry], requires: Sequence[tuple[str, Callable[[str], bool]]]
    ) -> Selected | None:
        ignores = self.ignores()
        everything = [each.path for each in entries if each.kind is not Kind.FOLDER]
        files = [each for each in everything if not ignores(each)]
        inside = [each for each in files if each == path or each.startswith(path + b"/")]
        if not inside and all(each.path != path for each in entries):
            return None
        # some recordings are folders: their names have the entities
        data = {part for each in inside for part in each.split(b"/")[1:]}
        names = set(inside) if self.names_files else {path}
        above = path.rpartition(b"/")[0]
        if above:  # beside the sessions there are files that apply to them, and in derivatives folders of all sessions
            level = {each.rpartition(b"/")[2]: each for each in files if each.rpartition(b"/")[0] == above}
            beside = [
                each for each in files if each.count(b"/") > 1 and b"/ses-" not in each[: len(above) + 5]
            ]
            names |= set(beside) if self.names_files else {b"/".join(each.split(b"/")[:2]) for each in beside}
            data |= {part for each in beside for part in each.split(b"/")[1:]}
            applied = applying(level, data)
            names |= {level[each] for each in applied}
            data |= applied
        rows = {name: _rows_of(table, _top_name(path)) for name, table in self.tables.items()}
        written = {**rows, **self.written}
        upper = [
            each
            for each in self.files - written.keys() - self.tables_of_others
            if not each.startswith(b"sub-") or _subject_of(each) == _top_name(path)
        ]
        shared = applying(upper, data) | (
            self.folders & ({_STIMULI, _EMPTY_ROOM} if b"meg" in data else {_STIMULI})
        )
        rules = Rules(files_from=frozenset(names | shared), exclude=() if self.names_files else self.patterns)
        dangling = self._dangling(entries) if requires else frozenset()
        below = [as_text(each[len(path) + 1 :]) for each in inside if each not in dangling]
        lacks = tuple(text for text, matches in requires if not any(map(matches, _with_sessions(below))))
        ignored = sum(each == path or each.startswith(path + b"/") for each in everything) - len(inside)
        return Selected(Part(rules, written, frozenset(shared)), len(inside), ignored, lacks)

    def _dangling(self, entries: Sequence[Entry]) -> frozenset[bytes]:
        """Return the symlinks without a file. At a site those that lead elsewhere are not followed."""
        links = {each.path: each.link for each in entries if each.kind is Kind.LINK}
        if self.root.typed_local:
            return frozenset(each for each in links if is_dangling(os.path.join(self.root.raw, each)))  # noqa: PTH118
        known = {each.path for each in entries}
        found = set()
        for path, target in links.items():
            place = os.path.normpath(os.path.join(os.path.dirname(path), target))  # noqa: PTH118, PTH120
            above = (place.rsplit(b"/", count)[0] for count in range(place.count(b"/") + 1))
            within = _top_name(place) == _top_name(path) and _ANNEX not in target
            if within and place not in known and links.keys().isdisjoint(above):
                found.add(path)
        return frozenset(found)


def is_dangling(path: bytes) -> bool:
    """Return whether a path of this machine is a symlink without a file; the content of git-annex's may be elsewhere."""
    if os.path.exists(path):  # noqa: PTH110
        return False
    return os.path.islink(path) and _ANNEX not in os.readlink(path)  # noqa: PTH114, PTH115


def _top(entry: Entry) -> bytes:
    return _top_name(entry.path)


def _top_name(path: bytes) -> bytes:
    return path.partition(b"/")[0]


def _subject_of(name: bytes) -> bytes:
    found = _SUBJECT.fullmatch(name)
    return found[1] if found is not None else b""


def _with_sessions(paths: Iterable[str]) -> Iterator[str]:
    """Yield paths below a participant's folder, and below each of its sessions' folders."""
    for path in paths:
        yield path
        first, _, rest = path.partition("/")
        if rest and first.startswith("ses-"):
            yield rest


def _columns(table: bytes) -> list[bytes]:
    return table.splitlines()[0].lstrip(b"\xef\xbb\xbf").strip().split(b"\t")


def _rows_of(table: bytes, subject: bytes) -> bytes:
    """Return a table with the rows of one participant, bytes as they are; some tables have the label without `sub-`.

    Without a column participant_id nobody knows whose the rows are: it has none.
    """
    head, *rows = table.splitlines(keepends=True)
    columns = _columns(table)
    if _PERSON not in columns:
        return head
    column = columns.index(_PERSON)
    cells = ((row, row.strip(b"\r\n").split(b"\t")) for row in rows)
    names = {subject, subject.removeprefix(b"sub-")}
    return head + b"".join(row for row, found in cells if not names.isdisjoint(found[column : column + 1]))


def open_dataset(root: Location, on_event: Listener = ignore, *, parts: bool = True) -> Dataset:
    """Read the upper level of a dataset. Raises `NotFoundError`, and `UsageError` for a file of it that cannot be understood.

    Without `parts` such a file is noted and has no effect.
    """
    entries = [(each.path.rstrip(b"/"), each.kind) for each in list_entries(root, on_event, recursive=False)]
    folders = frozenset(name for name, kind in entries if kind is Kind.FOLDER)
    files = frozenset(
        name
        for name, kind in entries
        if kind in {Kind.FILE, Kind.LINK} and (not name.startswith(b".") or name == _IGNORE)
    )
    linked = frozenset(name for name, kind in entries if kind is Kind.LINK and PATH.fullmatch(as_text(name)))
    description: Mapping[str, Any] = {}
    patterns: tuple[str, ...] = ()
    try:
        if DESCRIPTION in files:
            description = _read_description(root)
        if _IGNORE in files and not _is_derivative(description):
            patterns = _read_patterns(root)
    except HibaliError as problem:
        if parts:
            raise
        on_event(Noted(f"{problem.subject}: {problem.message}. The file has no effect here."))
    found = Dataset(root, files - linked, folders | linked, description, patterns)
    ignores = found.ignores()
    found.files = frozenset(each for each in found.files if not ignores(each))
    found.folders = frozenset(each for each in found.folders if not ignores(each + b"/"))
    if parts:
        names = sorted(_OF_PARTICIPANTS & found.files)
        found.tables = {name: table for name in names if (table := _read(root, name))}
    return found


def _is_derivative(description: Mapping[str, Any]) -> bool:
    """Return whether a dataset is one of derivatives; before BIDS 1.4 they had no DatasetType."""
    older = any(each in description for each in ("GeneratedBy", "PipelineDescription"))
    return bool(description.get("DatasetType", "derivative" if older else "raw") == "derivative")


def _read(root: Location, name: bytes) -> bytes:
    """Read a file of the upper level; a local symlink of git-annex gets its content first."""
    place = root.child(name)
    if place.typed_local:
        fetch_content(place.raw, place.logins)
    content = bytearray()
    for piece in contents(place):
        content += piece
        if len(content) > _MOST_BYTES:
            raise UsageError(
                "unreadable-dataset", f"this file has more than {_MOST_BYTES} bytes", subject=place.text
            )
    return bytes(content)


def _read_description(root: Location) -> dict[str, Any]:
    subject = root.child(DESCRIPTION).text
    found = read_json(_read(root, DESCRIPTION), subject)
    if not isinstance(found, dict):
        raise UsageError(
            "unreadable-dataset", "the description of a dataset is a JSON object", subject=subject
        )
    return found


def _read_patterns(root: Location) -> tuple[str, ...]:
    lines = tuple(_read(root, _IGNORE).decode("utf-8", "surrogateescape").splitlines())
    for number, line in enumerate(lines, start=1):
        try:
            gitignore_matcher([line])
        except ValueError:
            subject = f"{root.child(_IGNORE).text}:{number}"
            raise UsageError("bad-pattern", "this is not a pattern of gitignore", subject=subject) from None
    return lines


def find_dataset(location: Location) -> Dataset | None:
    """Return the dataset at a location if it says that it is one and has folders of participants; None for anything else."""
    try:
        found = open_dataset(location)
    except NotFoundError:
        return None  # all missing inputs are named together later
    return found if found.is_described and found.subjects else None
