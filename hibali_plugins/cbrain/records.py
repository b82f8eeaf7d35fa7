"""Read the answers of a CBRAIN portal into records: unknown fields are ignored, wrong shapes are errors.

A record is a dataclass, and the type of a field says what it must be.

Source: the portal's swagger document 7.0.0 and the recorded requests of its own tests. Flags come as JSON
booleans or as the strings "true" and "false", and numbers that are not known yet as null.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, ClassVar, Protocol, TypeVar, get_args, get_origin, get_type_hints

from hibali.errors import IncompleteError

_MOST_TEXT = 64 * 1024  # characters of one field
_SURROGATES = re.compile(r"[\ud800-\udfff]")  # JSON can hold them, UTF-8 cannot
_OUTPUT_PREFIX = "_cbrain_output_"

Name = Annotated[str, "a text that must not be empty"]
Outputs = Annotated[Mapping[str, tuple[int, ...]], "ids of userfiles by the id of the descriptor's output"]


class Shape:
    """What errors call a kind of record, and the `names` in the answer of the fields whose names are others there."""

    def __init__(self, what: str, **names: str) -> None:
        self.what, self.names = what, names


class Readable(Protocol):
    """A dataclass that is read."""

    shape: ClassVar[Shape]


Record = TypeVar("Record", bound=Readable)


def not_understood(reason: str, subject: str) -> IncompleteError:
    """Return the error for an answer of an unexpected shape; it repeats no text of the answer."""
    return IncompleteError(
        "bad-answer",
        f"the portal's answer is not understood: {reason}",
        subject=subject,
        hint="Check that the site's url is that of a CBRAIN portal, and report the problem to its operator.",
    )


def read_list(kind: type[Record], content: Any, subject: str) -> list[Record]:
    """Read a list of records."""
    if not isinstance(content, list):
        raise not_understood("it is not a list", subject)
    return [read_record(kind, each, subject) for each in content]


def read_record(kind: type[Record], content: Any, subject: str) -> Record:
    """Read a record; `subject` names the portal in errors."""
    if not isinstance(content, dict):
        raise not_understood(f"{kind.shape.what} is not a JSON object", subject)
    return kind(
        **{
            name: _value(of, content.get(key), kind.shape.what, key, subject)
            for name, key, of in _fields_of(kind)
        }
    )


@cache
def _fields_of(kind: type[Any]) -> list[tuple[str, str, Any]]:
    """Return the name, the name in the answer, and the type of each field."""
    types = get_type_hints(kind, include_extras=True)
    return [
        (each.name, kind.shape.names.get(each.name, each.name), types[each.name]) for each in fields(kind)
    ]


def _is_number(found: Any) -> bool:
    return isinstance(found, int) and not isinstance(found, bool)


def _is_text(found: Any) -> bool:
    return isinstance(found, str) and len(found) <= _MOST_TEXT and not _SURROGATES.search(found)


# By the type of a field: the value for null and for a missing field, what other values must be, and what a wrong one is.
_TYPES: dict[Any, tuple[Any, Callable[[Any], bool], str]] = {
    int: (None, _is_number, "not a whole number"),
    int | None: (None, _is_number, "not a whole number"),
    str: ("", _is_text, "not a text"),
    Name: ("", _is_text, "not a text"),
    bool: (False, lambda found: found in ("true", "false", True, False), "neither true nor false"),
    Mapping[str, Any]: ({}, lambda found: isinstance(found, dict), "not a JSON object"),
    tuple[int, ...]: (
        (),
        lambda found: isinstance(found, list) and all(map(_is_number, found)),
        "not a list of whole numbers",
    ),
}


def _value(kind: Any, found: Any, what: str, key: str, subject: str) -> Any:
    """Return the value of a field of this type, which is `key` of the record `what` in the answer."""
    if kind == Outputs:  # tools set a number or a list
        return {
            name.removeprefix(_OUTPUT_PREFIX): _value(
                tuple[int, ...],
                ids if ids is None or isinstance(ids, list) else [ids],
                "the parameters of a task",
                name,
                subject,
            )
            for name, ids in (found or {}).items()
            if name.startswith(_OUTPUT_PREFIX)
        }
    if kind == tuple[str, ...]:
        return tuple(each for each in found if isinstance(each, str)) if isinstance(found, list) else ()
    if kind not in _TYPES:
        return () if found is None else tuple(read_list(get_args(kind)[0], found, subject))
    empty, is_valid, wrong = _TYPES[kind]
    if found is not None and not is_valid(found):
        raise not_understood(f"{what} has a field {key} that is {wrong}", subject)
    value = empty if found is None else found
    if kind in {int, Name} and value in {None, ""}:
        raise not_understood(f"{what} has no {key}", subject)
    if kind is bool:
        return value in (True, "true")
    return tuple(value) if get_origin(kind) is tuple else value


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session: the user, and the token that authorizes requests; never printed."""

    shape: ClassVar[Shape] = Shape("the session", token="cbrain_api_token")  # noqa: S106  # a name
    user_id: int
    token: Name

    def __repr__(self) -> str:
        return f"SessionInfo(user_id={self.user_id})"


@dataclass(frozen=True, slots=True)
class Userfile:
    """A registered file or collection.

    Attributes:
        size: In bytes, of a collection that of all its files; None while the portal does not know it.
        type: The class of the file, such as TextFile or FileCollection.
        files: The number of files in it, if known.
        browse_path: The folder on a provider with several levels, else "".
    """

    shape: ClassVar[Shape] = Shape("a userfile", provider_id="data_provider_id", files="num_files")
    id: int
    name: Name
    size: int | None
    type: str
    provider_id: int
    group_id: int | None
    user_id: int | None
    files: int | None
    browse_path: str
    description: str
    group_writable: bool

    @property
    def is_collection(self) -> bool:
        """Whether it is a folder; the portal does not say so, but the names of its classes do."""
        if self.type.endswith(("File", "Archive")):
            return False
        return is_collection_type(self.type) or (self.files or 0) > 1


def is_collection_type(file_type: str) -> bool:
    """Return whether this is the name of a class of collections."""
    return file_type.endswith(("Collection", "Dataset", "Output", "Study", "Subject", "Subset", "Workdir"))


@dataclass(frozen=True, slots=True)
class DataProvider:
    """A storage area; `browsable`: files that are stored there otherwise can be registered."""

    shape: ClassVar[Shape] = Shape("a data provider", browsable="is_browsable")
    id: int
    name: Name
    type: str
    online: bool
    read_only: bool
    browsable: bool
    user_id: int | None
    group_id: int | None


@dataclass(frozen=True, slots=True)
class Registration:
    """The result of registering names: those that were new, those that were registered before, and the activity that registers others."""

    shape: ClassVar[Shape] = Shape(
        "the registration",
        new="newly_registered_userfiles",
        known="previously_registered_userfiles",
        activity="background_activity_id",
    )
    new: tuple[Userfile, ...]
    known: tuple[Userfile, ...]
    error: str
    activity: int | None


@dataclass(frozen=True, slots=True)
class Deletion:
    """The result of a deletion: the ids that were deleted, or the activity that deletes them."""

    shape: ClassVar[Shape] = Shape(
        "the deletion",
        removed="deleted_list",
        unregistered="unregistered_list",
        activity="background_activity_id",
    )
    removed: tuple[int, ...]
    unregistered: tuple[int, ...]
    activity: int | None

    @property
    def deleted(self) -> tuple[int, ...]:
        """The ids that are no longer registered."""
        return self.removed + self.unregistered


_UNDER_WAY = frozenset({"InProgress", "Scheduled", "Suspended", "SuspendedScheduled"})


@dataclass(frozen=True, slots=True)
class Activity:
    """A background activity, and its messages, among which are the reasons of failures."""

    shape: ClassVar[Shape] = Shape("a background activity")
    status: str
    messages: tuple[str, ...]

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.status not in _UNDER_WAY


@dataclass(frozen=True, slots=True)
class Group:
    """A project; `type` is UserGroup for the one that every user has for itself."""

    shape: ClassVar[Shape] = Shape("a project")
    id: int
    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool, whose installed versions are tool configs."""

    shape: ClassVar[Shape] = Shape("a tool")
    id: int
    name: str
    category: str
    description: str
    url: str


@dataclass(frozen=True, slots=True)
class ToolConfig:
    """A version of a tool at one execution server."""

    shape: ClassVar[Shape] = Shape("a tool config", version="version_name", cores="ncpus")
    id: int
    tool_id: int | None
    version: str
    description: str
    group_id: int | None
    cores: int | None


@dataclass(frozen=True, slots=True)
class Task:
    """A task; `outputs` are the ids of its output userfiles by the id of the descriptor's output."""

    shape: ClassVar[Shape] = Shape("a task", results_provider_id="results_data_provider_id", outputs="params")
    id: int
    type: str
    status: Name
    description: str
    tool_config_id: int | None
    results_provider_id: int | None
    params: Mapping[str, Any]
    outputs: Outputs


@dataclass(frozen=True, slots=True)
class Operated:
    """The result of an operation on tasks: the ids that were accepted, and the others by the reason."""

    shape: ClassVar[Shape] = Shape(
        "the operation", accepted="success_list", skipped_lists="skipped_list", failed_lists="failed_list"
    )
    accepted: tuple[int, ...]
    skipped_lists: Mapping[str, Any]
    failed_lists: Mapping[str, Any]

    @property
    def skipped(self) -> int:
        """The number of tasks that were not accepted."""
        others = (*self.skipped_lists.values(), *self.failed_lists.values())
        return sum(len(ids) for ids in others if isinstance(ids, list))


@dataclass(frozen=True, slots=True)
class ProviderState:
    """Whether the portal can reach a data provider."""

    shape: ClassVar[Shape] = Shape("the state of a data provider")
    is_alive: bool
