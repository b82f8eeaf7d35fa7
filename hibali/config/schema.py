"""Declare tables of a TOML file as data classes, and read them, reporting every wrong key.

A table is a class with the decorator `table`. Each of its keys is a field made by `setting`, which defines a
reader (the valid values), the default and a line of help. Plugins declare their own keys in the same way.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, NamedTuple, TypeVar, dataclass_transform, get_args, overload

from hibali.amounts import (
    check_count,
    check_duration,
    check_size,
    read_duration,
    read_job_time,
    read_size,
    split_command,
)
from hibali.errors import UsageError
from hibali.plugins import built_in_names, load
from hibali.text import nearest

T = TypeVar("T")
Default = TypeVar("Default")
# note(message, *keys): what is wrong with the value at `keys`, relative to the table
Note = Callable[..., None]
Reader = Callable[[Any, Note], T]  # returns the value, or raises ValueError with the reason

_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")  # and bytes that are not UTF-8
_SECRET = re.compile(r"secret|password|passphrase|token|access_key|private_key")


class Wrong(NamedTuple):
    """One wrong key: its path from the top of the file, and the reason."""

    keys: tuple[str, ...]
    message: str


@dataclass(frozen=True, slots=True)
class Key:
    """The reader and documentation of one key; `inline` for a field whose own keys are in the same table."""

    name: str
    read: Reader[Any]
    doc: str
    required: bool = False
    inline: type | None = None


@overload
def setting(read: Reader[T], *, name: str = "", doc: str = "") -> T: ...
@overload
def setting(
    read: Reader[T], *, default: Default, name: str = "", doc: str = "", required: bool = False
) -> T | Default: ...
def setting(
    read: Reader[Any], *, default: Any = MISSING, name: str = "", doc: str = "", required: bool = False
) -> Any:
    """Declare a key of a table, which is required without a `default`; `name` replaces the field's name.

    With `required` a default applies only to objects made in code: the file must have the key.
    """
    metadata = {"key": Key(name, read, doc, required or default is MISSING)}
    if default == {}:
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


def inline(declared: type[T], *, default: Default) -> T | Default:
    """Declare a field whose keys are in the same table; the field has its default if none of them is
    given.
    """
    unread: Reader[T] = lambda value, note: read_table(declared, value, note)  # noqa: E731
    return field(default=default, metadata={"key": Key("", unread, "", inline=declared)})


@dataclass_transform(frozen_default=True, field_specifiers=(setting, inline, field))
def table(declared: type[T]) -> type[T]:
    """Make a frozen data class of the declared keys.

    A method `finish(present_keys, note)` may check keys together; it returns the object, or a replacement. `present_keys`
    are the keys in the file.
    """
    return dataclass(frozen=True, slots=True)(declared)


def keys_of(declared: type) -> dict[str, Key]:
    """Return the keys of a table by their names in the file, including those of inline tables."""
    return {name: one for each in fields(declared) for name, one in keys_of_field(each).items()}


def keys_of_field(declared: Field[Any]) -> dict[str, Key]:
    """Return the key of a field by its name in the file; those of an inline table; none if it is not a
    key.
    """
    one: Key | None = declared.metadata.get("key")
    if one is None:
        return {}
    return keys_of(one.inline) if one.inline else {one.name or declared.name: one}


def read_table(
    declared: type[T],
    content: Any,
    note: Note,
    *,
    belongs: Callable[[str], bool] = lambda _: True,
    others: Collection[str] = (),
    **values: Any,
) -> T:
    """Read a table; a missing or wrong key gets its default, and `note` is called with each error.

    Keys for which `belongs` is false are not read, the caller reads `others`, and `values` are fields that
    are not keys.
    """
    if not isinstance(content, dict):
        note("must be a table")
    mapping: dict[str, Any] = content if isinstance(content, dict) else {}
    for each in fields(declared):  # type: ignore[arg-type]  # it is one, by `table`
        one: Key | None = each.metadata.get("key")
        if one is None or each.name in values:
            continue
        name = one.name or each.name
        if one.inline is not None:
            part = {key: mapping[key] for key in keys_of(one.inline) if key in mapping}
            if part:
                values[each.name] = one.read(part, note)
        elif name in mapping and belongs(name):
            try:
                values[each.name] = one.read(mapping[name], _below(note, name))
            except ValueError as problem:
                note(str(problem), name)
        elif one.required and name not in mapping:
            note(f"needs {name}: {one.doc}" if one.doc else f"needs {name}")
        if each.default is MISSING and each.default_factory is MISSING:
            values.setdefault(each.name, None)
    known = {*keys_of(declared), *others}
    for name in mapping:
        if name not in known:
            note(_unknown(name, known), name)
    found = declared(**values)
    finish = getattr(found, "finish", None)
    return finish(mapping, note) if finish is not None else found


def collect(wrong: list[Wrong], *keys: str) -> Note:
    """Return a `note` that adds to `wrong`, for a table at `keys`."""

    def note(message: str, *below: str) -> None:
        wrong.append(Wrong((*keys, *below), message))

    return note


def _below(note: Note, name: str) -> Note:
    return lambda message, *keys: note(message, name, *keys)


def _unknown(name: str, known: Collection[str]) -> str:
    if _SECRET.search(name.lower()):
        return "secrets are not allowed here: set a profile or a credentials_command"
    similar = nearest(name, known)
    return f"unknown key; did you mean {similar}?" if similar else "unknown key"


def _typed(value: Any, kind: type[T], meaning: str) -> T:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"must be {meaning}")  # raised by readers
    return value


def line(value: Any, note: Note) -> str:
    """Read a string of one line."""
    del note
    text = _typed(value, str, "a string")
    if _CONTROL.search(text):
        raise ValueError("must be one line of UTF-8 without control characters")
    return text


def text(pattern: str, meaning: str) -> Reader[str]:
    """Read a string of one line that matches `pattern` in full; `meaning` says what it should be."""

    def read(value: Any, note: Note) -> str:
        found = line(value, note)
        if not re.fullmatch(pattern, found):
            raise ValueError(f"{found!r} is not {meaning}")
        return found

    return read


def choice(literal: Any) -> Reader[Any]:
    """Read one of the words of a `Literal`."""
    allowed = get_args(literal)

    def read(value: Any, note: Note) -> str:
        found = line(value, note)
        if found not in allowed:
            raise ValueError(f"{found!r} must be one of {', '.join(allowed)}")
        return found

    return read


def flag(value: Any, note: Note) -> bool:
    """Read true or false."""
    del note
    return _typed(value, bool, "true or false")


def whole(least: int = 1, most: int = 1_000_000) -> Reader[int]:
    """Read a whole number within limits."""

    def read(value: Any, note: Note) -> int:
        del note
        return check_count(_typed(value, int, "a whole number"), least, most)

    return read


def lines(value: Any, note: Note) -> tuple[str, ...]:
    """Read a list of strings of one line each."""
    del note
    found = _typed(value, list, "a list of strings")
    if not all(isinstance(item, str) and not _CONTROL.search(item) for item in found):
        raise ValueError("must be a list of strings of one line each")
    return tuple(found)


def lines_of(read: Reader[str]) -> Reader[tuple[str, ...]]:
    """Read a list of strings that are each read by `read`, without repetitions."""

    def read_all(value: Any, note: Note) -> tuple[str, ...]:
        return tuple(dict.fromkeys(read(item, note) for item in lines(value, note)))

    return read_all


def argv(value: Any, note: Note) -> tuple[str, ...]:
    """Read a command: a list with at least the program."""
    found = lines(value, note)
    if not found or not found[0]:
        raise ValueError('must be a list of words such as ["ssh"]')
    return found


def argv_or_line(value: Any, note: Note) -> tuple[str, ...]:
    """Read a command as one string, as people type it, or as a list of words."""
    return argv(value, note) if isinstance(value, list) else split_command(line(value, note))


def strings(value: Any, note: Note) -> dict[str, str]:
    """Read a table of strings."""
    found = _typed(value, dict, "a table of strings")
    for name, item in found.items():
        if not isinstance(item, str) or _CONTROL.search(item):
            note("must be a string of one line", name)
    return {name: item for name, item in found.items() if isinstance(item, str)}


def path_pairs(value: Any, note: Note) -> dict[str, str]:
    """Read a table that maps absolute paths to absolute paths."""
    found = strings(value, note)
    if not all(part.startswith("/") for pair in found.items() for part in pair):
        note("both sides must be absolute paths")
    return found


def _quantity(value: Any, parse: Callable[[str], float]) -> float:
    if not isinstance(value, int | float):
        return parse(line(value, lambda *_: None))
    if isinstance(value, bool) or not 0 <= value < math.inf:
        raise ValueError("must be a number, zero or more")
    return value


def duration(least: str = "", most: str = "", *, no: bool = False) -> Reader[float]:
    """Read a duration in seconds, `10m` or a number; with `no`, that word is 0."""

    def read(value: Any, note: Note) -> float:
        del note
        found = 0.0 if no and value == "no" else float(check_duration(_quantity(value, read_duration)))
        if (least and found < read_duration(least)) or (most and found > read_duration(most)):
            raise ValueError(f"must be from {least} to {most}" if least else f"must be at most {most}")
        return found

    return read


def whole_duration(least: str = "", most: str = "", *, no: bool = False) -> Reader[int]:
    """Read a duration as `duration` does, in whole seconds."""
    read = duration(least, most, no=no)
    return lambda value, note: int(read(value, note))


def size(least: str = "") -> Reader[int]:
    """Read a size in bytes, `16G` or a number."""

    def read(value: Any, note: Note) -> int:
        del note
        found = check_size(_quantity(value, read_size))
        if least and found < read_size(least):
            raise ValueError(f"must be at least {least}")
        return found

    return read


def job_time(value: Any, note: Note) -> str:
    """Read the time limit of a job, which is kept as written."""
    found = line(value, note)
    read_job_time(found)
    return found


def table_of(declared: type[T]) -> Reader[T]:
    """Read a nested table."""
    return lambda value, note: read_table(declared, value, note)


def plugin_table(declared: type[T], *packages: str) -> Reader[T]:
    """Read a table whose key `name` is that of a scheduler, service or container, which may declare further keys.

    These become the field `own`: an object of the class that is the `settings` of the scheduler or container. hibali's own ones
    are imported only if there are further keys, so that reading config.toml stays fast.
    """

    def read(value: Any, note: Note) -> T:
        common = keys_of(declared)
        mapping = value if isinstance(value, dict) else {}
        further = {name: each for name, each in mapping.items() if name not in common}
        own = _declared_by(packages, mapping.get("name"), needed=bool(further))
        if own is None:
            return read_table(declared, value, note)
        values = {name: each for name, each in mapping.items() if name in common}
        return read_table(declared, values, note, own=read_table(own, further, note, others=common))

    return read


def _declared_by(packages: Sequence[str], name: Any, *, needed: bool) -> type | None:
    package = next((each for each in packages if name in built_in_names(each)), packages[0])
    if not isinstance(name, str) or not (needed or name not in built_in_names(package)):
        return None
    try:
        module = load(package, name)
    except UsageError:
        return None  # an unknown name is an error where the site is used
    made = "SYSTEM" if package == "runs.services" else package.rpartition(".")[2].removesuffix("s").upper()
    found = getattr(module, made, module)
    return getattr(found, "settings", None)


def tables(read: Callable[[str, Any, Note], T], name: str, meaning: str) -> Reader[dict[str, T]]:
    """Read a table of tables by name: `name` is the pattern of names, `meaning` describes valid ones in
    errors.
    """

    def read_all(value: Any, note: Note) -> dict[str, T]:
        found: dict[str, T] = {}
        for each, content in _typed(value, dict, "a table").items():
            if not re.fullmatch(name, each):
                note(meaning, each)
            found[each] = read(each, content, _below(note, each))
        return found

    return read_all
