"""Model a pipeline: a Boutiques tool at name@version with a digest; compare two versions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hibali.errors import UsageError
from hibali.text import printable

_OUTSIDE_NAME = re.compile(r"[^a-z0-9._-]+")
_OUTSIDE_VERSION = re.compile(r"[^A-Za-z0-9._+-]+")
_LETTER = re.compile(r"[a-z0-9]")
# Pipelines of hibali itself, whose command is a value, by their titles, and what starts their jobs.
_OWN = {
    "hibali-nipoppy": "nipoppy submit",
    "hibali-notebook": "notebook",
    "hibali-shards": "--nodes",
    "snakemake-job": "snakemake --executor hibali",
}
_LONGEST = 128  # bytes; two of them and a separator stay well below the 255 of a file name

Value = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Input:
    """One input of a pipeline. `kind` is String, Number, File or Flag; limits are inclusive unless exclusive."""

    id: str
    name: str
    kind: str
    description: str = ""
    value_key: str = ""
    optional: bool = False
    is_list: bool = False
    list_separator: str = " "
    flag: str = ""
    flag_separator: str = " "
    default: Any = None
    choices: tuple[Value, ...] | None = None
    integer: bool = False
    minimum: float | None = None
    maximum: float | None = None
    exclusive_minimum: bool = False
    exclusive_maximum: bool = False
    minimum_entries: float | None = None
    maximum_entries: float | None = None
    requires: tuple[str, ...] = ()
    disables: tuple[str, ...] = ()
    value_requires: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    value_disables: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    uses_absolute_path: bool = False


@dataclass(frozen=True, slots=True)
class OutputFile:
    """One file that the pipeline produces; with `file_template`, a configuration file written before it starts.

    `conditions` are pairs of a condition and the path-template that holds under it, of which the first true one counts;
    an output that has them has no `path_template`.
    """

    id: str
    name: str
    description: str = ""
    value_key: str = ""
    path_template: str = ""
    conditions: tuple[tuple[str, str], ...] = ()
    stripped_extensions: tuple[str, ...] = ()
    is_list: bool = False
    optional: bool = False
    flag: str = ""
    flag_separator: str = " "
    uses_absolute_path: bool = False
    file_template: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """A group of inputs: all or none, at least one, or at most one of them has a value."""

    id: str
    name: str
    members: tuple[str, ...]
    mutually_exclusive: bool = False
    one_is_required: bool = False
    all_or_none: bool = False


@dataclass(frozen=True, slots=True)
class Container:
    """The image of the tool. `kind` is docker, singularity or rootfs (which has a `url`, no `image`)."""

    kind: str
    image: str = ""
    index: str = ""
    url: str = ""
    hash: str = ""
    working_directory: str = ""
    entrypoint: bool = False
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EnvironmentVariable:
    """An environment variable of the tool; its value may contain value-keys."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources that the author suggests: GB of memory and disk, seconds of walltime; None where not given.

    The schema has no key for MPI `tasks` and the `gpus` of a node: they are read below `custom` (registry.advice).
    """

    cpu_cores: int | None = None
    ram_gigabytes: float | None = None
    disk_gigabytes: float | None = None
    nodes: int | None = None
    walltime_seconds: float | None = None
    tasks: int | None = None
    gpus: int | None = None


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """The author's description of one exit code."""

    code: int
    description: str


@dataclass(frozen=True, slots=True)
class Versioned:
    """A name and version in the catalogue."""

    name: str
    version: str

    @property
    def reference(self) -> str:
        """NAME@VERSION, as users write it."""
        return f"{self.name}@{self.version}"


@dataclass(frozen=True, slots=True)
class Pipeline(Versioned):
    """A valid descriptor. `name` and `version` are the catalogue's; `title` is the author's name of it.

    `digest` is the sha256 of the RFC 8785 canonical JSON; `raw` are the original bytes;
    `document` is their parsed content and must not be changed.
    """

    digest: str
    title: str
    description: str
    command_template: str
    shell: str
    inputs: tuple[Input, ...]
    outputs: tuple[OutputFile, ...]
    groups: tuple[Group, ...]
    container: Container | None
    environment: tuple[EnvironmentVariable, ...]
    resources: Resources
    error_codes: tuple[ErrorCode, ...]
    tags: Mapping[str, Any] = field(compare=False)
    raw: bytes = field(repr=False, compare=False)
    document: Mapping[str, Any] = field(repr=False, compare=False)

    @property
    def ids(self) -> frozenset[str]:
        """The ids of inputs and outputs, which conditions can use."""
        return frozenset(each.id for each in self.inputs) | frozenset(each.id for each in self.outputs)

    @property
    def own_command(self) -> str:
        """What starts the jobs of a pipeline of hibali itself; "" for any other. Its digest includes its title, but not its name."""
        return _OWN.get(self.title, "")

    def find_input(self, identifier: str) -> Input | None:
        """Return the input of that id."""
        return next((each for each in self.inputs if each.id == identifier), None)

    def find_group(self, identifier: str) -> Group | None:
        """Return the group of that id."""
        return next((each for each in self.groups if each.id == identifier), None)


def catalogue_name(title: str) -> str:
    """Convert the author's name to a catalogue name: lower-cased, runs outside `[a-z0-9._-]` become `-`.

    Raises `UsageError` for a result without a letter or digit (as of names in other scripts), one that begins with a dot
    (`..`, `.git`), and one that is too long.
    """
    name = _checked_component(_OUTSIDE_NAME.sub("-", title.lower()), title, "name")
    if not _LETTER.search(name):
        raise _unusable("name", title, "have an ASCII letter or digit")
    return name


def name_of_title(title: str) -> str:
    """Return the catalogue name for an author's title: without dashes at its beginning, where commands have options (`-tool`)."""
    return catalogue_name(_OUTSIDE_NAME.sub("-", title.lower()).lstrip("-") or title)


def catalogue_version(version: str) -> str:
    """Convert the author's version to a folder name: runs outside `[A-Za-z0-9._+-]` become `-`; raises `UsageError`."""
    return _checked_component(_OUTSIDE_VERSION.sub("-", version), version, "version")


def split_reference(reference: str) -> tuple[str, str | None]:
    """Split NAME[@VERSION] into the catalogue's name and version (None: the one added last); raises `UsageError`."""
    name, separator, version = reference.rpartition("@")
    if not separator:
        return _referred_name(reference), None
    return _referred_name(name), catalogue_version(version)


def _referred_name(name: str) -> str:
    """Return the catalogue name; accept one of dashes, which older versions stored."""
    return name if name and not name.strip("-") else catalogue_name(name)


def _checked_component(component: str, entry: str, kind: str) -> str:
    if not component or component.startswith(".") or len(component) > _LONGEST:
        raise _unusable(kind, entry, f"have 1 to {_LONGEST} characters and must not begin with a dot")
    return component


def _unusable(kind: str, entry: str, rule: str) -> UsageError:
    return UsageError(
        "unusable-pipeline-name" if kind == "name" else "unusable-pipeline-version",
        f"in the catalogue a pipeline's {kind} must {rule}, but this one is '{printable(entry[:200])}'",
        subject=kind,
        hint="Give one with --name NAME." if kind == "name" else "Correct `tool-version` in the descriptor.",
    )


_SECTIONS = {"inputs": "input", "output-files": "output", "groups": "group"}
_BREAKING_KEYS = frozenset({"type", "list", "integer", "value-choices", "minimum", "maximum", "value-key"})


@dataclass(frozen=True, slots=True)
class Change:
    """`kind` is added, removed or changed; `path` is the changed element (`input infile`, `container-image.image`).

    `before` and `after` are the values in the descriptors, None where absent. `breaking`: an invocation that was valid
    before may now be invalid or have another meaning.
    """

    kind: str
    path: str
    before: Any
    after: Any
    breaking: bool = False


def find_changes(old: Pipeline, new: Pipeline) -> list[Change]:
    """Return all changes, sections in the order of the schema, within one in the order of the new descriptor."""
    return [
        *_of_keys("", _plain(old.document), _plain(new.document), breaking=frozenset({"command-line"})),
        *_of_keys(
            "container-image",
            _table(old.document, "container-image"),
            _table(new.document, "container-image"),
        ),
        *(change for section, label in _SECTIONS.items() for change in _of_section(old, new, section, label)),
    ]


def _of_section(old: Pipeline, new: Pipeline, section: str, label: str) -> Iterator[Change]:
    before, after = _by_id(old.document, section), _by_id(new.document, section)
    for identifier, entry in after.items():
        path = f"{label} {identifier}"
        if identifier not in before:
            needed = section == "inputs" and not entry.get("optional") and "default-value" not in entry
            yield Change("added", path, None, entry, breaking=needed or section == "groups")
        else:
            yield from _of_part(path, before[identifier], entry, section)
    for identifier, entry in before.items():
        if identifier not in after:
            yield Change("removed", f"{label} {identifier}", entry, None, breaking=section != "groups")


def _of_part(
    path: str, before: Mapping[str, Any], after: Mapping[str, Any], section: str
) -> Iterator[Change]:
    for change in _of_keys(path, before, after, breaking=_BREAKING_KEYS):
        needed = change.path.endswith(".optional") and not after.get("optional") and section == "inputs"
        strict = section == "groups" and not change.path.endswith((".name", ".description"))
        if needed or strict:
            yield Change(change.kind, change.path, change.before, change.after, breaking=True)
        else:
            yield change


def _of_keys(
    path: str, before: Mapping[str, Any], after: Mapping[str, Any], *, breaking: frozenset[str] = frozenset()
) -> Iterator[Change]:
    for key in dict.fromkeys([*after, *before]):
        old, new = before.get(key), after.get(key)
        if old == new and type(old) is type(new):
            continue
        kind = "added" if key not in before else "removed" if key not in after else "changed"
        yield Change(kind, f"{path}.{key}" if path else key, old, new, breaking=key in breaking)


def _plain(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that are compared as a whole."""
    apart = {*_SECTIONS, "container-image", "tool-version"}
    return {key: value for key, value in document.items() if key not in apart}


def _table(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = document.get(key)
    return found if isinstance(found, dict) else {}


def _by_id(document: Mapping[str, Any], section: str) -> dict[str, Mapping[str, Any]]:
    return {str(each["id"]): each for each in document.get(section) or ()}
