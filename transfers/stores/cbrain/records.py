"""Read the answers of a CBRAIN portal into records: unknown fields are ignored, wrong shapes are errors.

Source: the portal's swagger document 7.0.0 and the recorded requests of its own tests. Flags come as JSON
booleans or as the strings "true" and "false", and numbers that are not known yet as null.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from hibali.errors import IncompleteError

Record = TypeVar("Record")

_MOST_TEXT = 64 * 1024  # characters of one field
_SURROGATES = re.compile(r"[\ud800-\udfff]")  # JSON can hold them, UTF-8 cannot
_FLAGS = {True: True, False: False, "true": True, "false": False, None: False}


class Fields:
    """The fields of one JSON object; each method returns one, or raises that the answer is not understood."""

    def __init__(self, content: Any, what: str, subject: str) -> None:
        """`what` names the record and `subject` the portal in errors."""
        self._what, self._subject = what, subject
        if not isinstance(content, dict):
            raise self.wrong("is not a JSON object")
        self._content: Mapping[str, Any] = content

    def wrong(self, reason: str) -> IncompleteError:
        """Return the error for this record."""
        return not_understood(f"{self._what} {reason}", self._subject)

    def number(self, name: str) -> int:
        """Return a whole number that must be there."""
        found = self.number_or_none(name)
        if found is None:
            raise self.wrong(f"has no {name}")
        return found

    def number_or_none(self, name: str) -> int | None:
        """Return a whole number, or None for null and for a missing field."""
        found = self._content.get(name)
        if found is None or (isinstance(found, int) and not isinstance(found, bool)):
            return found
        raise self.wrong(f"has a field {name} that is not a whole number")

    def text(self, name: str) -> str:
        """Return a text, "" for null and for a missing field."""
        found = self._content.get(name)
        if found is None:
            return ""
        if isinstance(found, str) and len(found) <= _MOST_TEXT and not _SURROGATES.search(found):
            return found
        raise self.wrong(f"has a field {name} that is not a text")

    def name(self, name: str) -> str:
        """Return a text that must not be empty."""
        found = self.text(name)
        if not found:
            raise self.wrong(f"has no {name}")
        return found

    def flag(self, name: str) -> bool:
        """Return a boolean, False for null and for a missing field."""
        found = self._content.get(name)
        if isinstance(found, str | int | None) and found in _FLAGS:
            return _FLAGS[found]
        raise self.wrong(f"has a field {name} that is neither true nor false")

    def mapping(self, name: str) -> dict[str, Any]:
        """Return an object, empty for null and for a missing field."""
        found = self._content.get(name)
        if found is None:
            return {}
        if isinstance(found, dict):
            return found
        raise self.wrong(f"has a field {name} that is not a JSON object")

    def numbers(self, name: str) -> tuple[int, ...]:
        """Return a list of whole numbers, empty for null and for a missing field."""
        found = self._content.get(name)
        if found is None:
            return ()
        if isinstance(found, list) and all(type(each) is int for each in found):
            return tuple(found)
        raise self.wrong(f"has a field {name} that is not a list of whole numbers")

    def records(self, name: str, read: Callable[[Any, str], Record]) -> tuple[Record, ...]:
        """Return a list of records, empty for null and for a missing field."""
        found = self._content.get(name)
        return () if found is None else tuple(read_list(found, read, self._subject))


def not_understood(reason: str, subject: str) -> IncompleteError:
    """Return the error for an answer of an unexpected shape; it repeats no text of the answer."""
    return IncompleteError(
        "bad-answer",
        f"the portal's answer is not understood: {reason}",
        subject=subject,
        hint="Check that the site's url is that of a CBRAIN portal, and report the problem to its operator.",
    )


def read_list(content: Any, read: Callable[[Any, str], Record], subject: str) -> list[Record]:
    """Read a list of records."""
    if not isinstance(content, list):
        raise not_understood("it is not a list", subject)
    return [read(each, subject) for each in content]


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session: the user, and the token that authorizes requests; never printed."""

    user_id: int
    token: str

    def __repr__(self) -> str:
        return f"SessionInfo(user_id={self.user_id})"


def read_session(content: Any, subject: str) -> SessionInfo:
    """Read the answer of a login, or of a question about the session."""
    fields = Fields(content, "the session", subject)
    return SessionInfo(fields.number("user_id"), fields.name("cbrain_api_token"))


@dataclass(frozen=True, slots=True)
class Userfile:
    """A registered file or collection.

    Attributes:
        size: In bytes, of a collection that of all its files; None while the portal does not know it.
        type: The class of the file, such as TextFile or FileCollection.
        files: The number of files in it, if known.
        browse_path: The folder on a provider with several levels, else "".
    """

    id: int
    name: str
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


def read_userfile(content: Any, subject: str) -> Userfile:
    """Read a userfile."""
    fields = Fields(content, "a userfile", subject)
    return Userfile(
        id=fields.number("id"),
        name=fields.name("name"),
        size=fields.number_or_none("size"),
        type=fields.text("type"),
        provider_id=fields.number("data_provider_id"),
        group_id=fields.number_or_none("group_id"),
        user_id=fields.number_or_none("user_id"),
        files=fields.number_or_none("num_files"),
        browse_path=fields.text("browse_path"),
        description=fields.text("description"),
        group_writable=fields.flag("group_writable"),
    )


@dataclass(frozen=True, slots=True)
class DataProvider:
    """A storage area; `browsable`: files that are stored there otherwise can be registered."""

    id: int
    name: str
    type: str
    online: bool
    read_only: bool
    browsable: bool
    user_id: int | None
    group_id: int | None


def read_provider(content: Any, subject: str) -> DataProvider:
    """Read a data provider."""
    fields = Fields(content, "a data provider", subject)
    return DataProvider(
        id=fields.number("id"),
        name=fields.name("name"),
        type=fields.text("type"),
        online=fields.flag("online"),
        read_only=fields.flag("read_only"),
        browsable=fields.flag("is_browsable"),
        user_id=fields.number_or_none("user_id"),
        group_id=fields.number_or_none("group_id"),
    )


@dataclass(frozen=True, slots=True)
class Registration:
    """The result of registering names: those that were new, those that were registered before, and the activity that registers others."""

    new: tuple[Userfile, ...]
    known: tuple[Userfile, ...]
    error: str
    activity: int | None


def read_registration(content: Any, subject: str) -> Registration:
    """Read the answer to a registration."""
    fields = Fields(content, "the registration", subject)
    return Registration(
        new=fields.records("newly_registered_userfiles", read_userfile),
        known=fields.records("previously_registered_userfiles", read_userfile),
        error=fields.text("error"),
        activity=fields.number_or_none("background_activity_id"),
    )


@dataclass(frozen=True, slots=True)
class Deletion:
    """The result of a deletion: the ids that were deleted, or the activity that deletes them."""

    deleted: tuple[int, ...]
    activity: int | None


def read_deletion(content: Any, subject: str) -> Deletion:
    """Read the answer to a deletion."""
    fields = Fields(content, "the deletion", subject)
    return Deletion(
        deleted=fields.numbers("deleted_list") + fields.numbers("unregistered_list"),
        activity=fields.number_or_none("background_activity_id"),
    )


_UNDER_WAY = frozenset({"InProgress", "Scheduled", "Suspended", "SuspendedScheduled"})


@dataclass(frozen=True, slots=True)
class Activity:
    """A background activity: whether it has ended, and its messages, among which are the reasons of failures."""

    is_over: bool
    messages: tuple[str, ...]


def read_activity(content: Any, subject: str) -> Activity:
    """Read a background activity."""
    fields = Fields(content, "a background activity", subject)
    messages = content.get("messages")
    texts = messages if isinstance(messages, list) else []
    return Activity(
        fields.text("status") not in _UNDER_WAY, tuple(each for each in texts if isinstance(each, str))
    )


@dataclass(frozen=True, slots=True)
class Group:
    """A project; `type` is UserGroup for the one that every user has for itself."""

    id: int
    name: str
    type: str


def read_group(content: Any, subject: str) -> Group:
    """Read a project."""
    fields = Fields(content, "a project", subject)
    return Group(fields.number("id"), fields.text("name"), fields.text("type"))


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool, whose installed versions are tool configs."""

    id: int
    name: str
    category: str
    description: str
    url: str


def read_tool(content: Any, subject: str) -> Tool:
    """Read a tool."""
    fields = Fields(content, "a tool", subject)
    return Tool(
        fields.number("id"),
        fields.text("name"),
        fields.text("category"),
        fields.text("description"),
        fields.text("url"),
    )


@dataclass(frozen=True, slots=True)
class ToolConfig:
    """A version of a tool at one execution server."""

    id: int
    tool_id: int | None
    version: str
    description: str
    group_id: int | None
    cores: int | None


def read_tool_config(content: Any, subject: str) -> ToolConfig:
    """Read a tool config; those of all tools have no `tool_id`."""
    fields = Fields(content, "a tool config", subject)
    return ToolConfig(
        id=fields.number("id"),
        tool_id=fields.number_or_none("tool_id"),
        version=fields.text("version_name"),
        description=fields.text("description"),
        group_id=fields.number_or_none("group_id"),
        cores=fields.number_or_none("ncpus"),
    )


@dataclass(frozen=True, slots=True)
class Task:
    """A task; `outputs` are the ids of its output userfiles by the id of the descriptor's output."""

    id: int
    type: str
    status: str
    description: str
    tool_config_id: int | None
    results_provider_id: int | None
    params: Mapping[str, Any]
    outputs: Mapping[str, tuple[int, ...]]


OUTPUT_PREFIX = "_cbrain_output_"


def read_task(content: Any, subject: str) -> Task:
    """Read a task."""
    fields = Fields(content, "a task", subject)
    params = fields.mapping("params")
    return Task(
        id=fields.number("id"),
        type=fields.text("type"),
        status=fields.name("status"),
        description=fields.text("description"),
        tool_config_id=fields.number_or_none("tool_config_id"),
        results_provider_id=fields.number_or_none("results_data_provider_id"),
        params=params,
        outputs={
            name.removeprefix(OUTPUT_PREFIX): _output_ids(value, name, subject)
            for name, value in params.items()
            if name.startswith(OUTPUT_PREFIX)
        },
    )


def _output_ids(value: Any, name: str, subject: str) -> tuple[int, ...]:
    """Return the ids of one output: tools set a number or a list."""
    listed = value if isinstance(value, list) else [] if value is None else [value]
    return Fields({name: listed}, "the parameters of a task", subject).numbers(name)


@dataclass(frozen=True, slots=True)
class Operated:
    """The result of an operation on tasks: the ids that were accepted, and the number of the others."""

    accepted: tuple[int, ...]
    skipped: int


def read_operated(content: Any, subject: str) -> Operated:
    """Read the answer to an operation on tasks."""
    fields = Fields(content, "the operation", subject)
    others = [
        ids
        for name in ("skipped_list", "failed_list")
        for ids in fields.mapping(name).values()
        if isinstance(ids, list)
    ]
    return Operated(fields.numbers("success_list"), sum(map(len, others)))
