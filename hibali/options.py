"""Declare an option once, for the command line and for Python: a key of a `TypedDict`, annotated with an `Option`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ForwardRef, NamedTuple, get_args, get_origin

from hibali.amounts import NONE, check_count
from hibali.errors import UsageError


class Option(NamedTuple):
    """An option. Its type says what it takes: a `bool` is a flag, a `Sequence` is repeatable, a `Literal` is a choice.

    Attributes:
        help: of the command line; for Python, names of options lose their dashes, or it is the text `python`.
        flags: those of the command line, by default `--NAME`; one without dashes is click's name.
        read: reads a word or a value of Python; it raises ValueError with a message for users.
        limits: the smallest and the largest number.
        default: a flag that is True by default is `--no-NAME`.
        needs: the option without which it is refused, with a `reason`, and on the command line a `hint`.
        use: what the command does with a location or file: "written" or "input".
        name: the key; with its type `kind`, set by `declared_by`.
    """

    help: str
    flags: str = ""
    metavar: str | None = None
    read: Callable[[Any], Any] | None = None
    limits: tuple[int, int] | None = None
    default: Any = None
    needs: str = ""
    reason: str = ""
    hint: str = ""
    use: str = ""
    python: str = ""
    name: str = ""
    kind: Any = None

    @property
    def choices(self) -> tuple[str, ...]:
        """The words of its `Literal`, also of one in a union."""
        literals = (self.kind, *get_args(self.kind))
        return tuple(word for each in literals for word in get_args(each) if isinstance(word, str))

    @property
    def is_many(self) -> bool:
        """Whether it can be repeated."""
        return get_origin(self.kind) is Sequence

    def value(self, given: Any) -> Any:
        """Read a value of Python; None is the default. Raises ValueError with a message for users."""
        if given is None:
            return self.default
        if self.is_many:
            return (given,) if isinstance(given, str) else tuple(given)
        if self.limits is not None:
            if given == NONE and NONE in self.choices:
                return 0
            if not isinstance(given, int):
                raise ValueError(f"{given!r} is not a number")
            return check_count(given, *self.limits)
        if self.choices and given not in self.choices:
            raise ValueError(f"{given!r} is not one of {', '.join(self.choices)}")
        return given if self.read is None else self.read(given)


def declared_by(options: type) -> Iterator[Option]:
    """Yield the options that a TypedDict declares. Raise TypeError if its module postpones annotations."""
    for name, annotation in options.__annotations__.items():
        if isinstance(annotation, ForwardRef) and "Annotated[" in annotation.__forward_arg__:
            raise TypeError(f"{options.__module__} postpones annotations, so {name} declares no option")
        if hasattr(annotation, "__metadata__"):
            option, kind = annotation.__metadata__[0], annotation.__origin__
            missing = False if kind is bool else () if get_origin(kind) is Sequence else None
            default = missing if option.default is None else option.default
            yield option._replace(name=name, kind=kind, default=default)


def defaults_of(options: type) -> dict[str, Any]:
    """Return the value of each option where it is not given."""
    return {each.name: each.default for each in declared_by(options)}


def read_options(options: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of every option that Python was given, or its default.

    Raises:
        UsageError: a value is wrong, or an option needs another one; `subject` is its name.
    """
    values: dict[str, Any] = {}
    for each in declared_by(options):
        try:
            values[each.name] = each.value(given.get(each.name))
        except ValueError as problem:
            raise UsageError("usage", str(problem), subject=each.name) from None
    for each in declared_by(options):
        if each.needs and not values[each.needs] and values[each.name] != each.default:
            raise UsageError("usage", f"{each.name} needs {each.needs}{each.reason}", subject=each.name)
    return values


def document(options: type) -> None:
    """Add the help of its options to the docstring of a TypedDict."""
    lines = [(options.__doc__ or "").rstrip(), "", "Attributes:"]
    for each in declared_by(options):
        said = each.python or re.sub(r"--([a-z][a-z-]*)", lambda flag: flag[1].replace("-", "_"), each.help)
        lines.append(f"    {each.name}: {said}")
    options.__doc__ = "\n".join(lines)
