"""Test that an option that is declared once is read from the command line and from Python."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypedDict

import click
import pytest
from click.testing import CliRunner

from hibali.amounts import read_size
from hibali.errors import UsageError
from hibali.options import Option, defaults_of, document, read_options
from hibali_api.transfer_request import TransferOptions, rules_from
from hibali_cli.options import options
from transfers.model.rules import Rules


class Made(TypedDict, total=False):
    """Options of a test."""

    size: Annotated[int | str, Option("At most SIZE.", metavar="SIZE", read=read_size)]
    count: Annotated[int | Literal["none"], Option("How many.", limits=(1, 9))]
    names: Annotated[Sequence[str], Option("The names.", flags="-n --name")]
    way: Annotated[Literal["fast", "slow"], Option("The way.", default="fast")]
    packed_all: Annotated[bool, Option("With --size, all.", needs="size", hint="Add --size.")]
    save: Annotated[bool, Option("Do not save.", flags="--no-save", default=True, python="Save.")]
    push_to: Annotated[str, Option("Push with --packed-all.", needs="save", reason=": only that")]


DEFAULTS: dict[str, Any] = {
    "size": None,
    "count": None,
    "names": (),
    "way": "fast",
    "packed_all": False,
    "save": True,
    "push_to": None,
}


def typed(*words: str) -> dict[str, Any]:
    """Return the values of a command line. Raises the errors of click and hibali."""
    found: list[dict[str, Any]] = []
    command = click.command()(options(Made)(lambda **given: found.append(given)))
    ended = CliRunner().invoke(command, words, standalone_mode=False)
    if ended.exception is not None:
        raise ended.exception
    return found[0]


@pytest.mark.parametrize(
    ("words", "given", "changed"),
    [
        ((), {}, {}),
        (("--size", "2K"), {"size": "2K"}, {"size": 2048}),
        (("--size", "7"), {"size": 7}, {"size": 7}),
        (("--count", "none"), {"count": "none"}, {"count": 0}),
        (("--count", "9"), {"count": 9}, {"count": 9}),
        (("-n", "a", "--name", "b"), {"names": ["a", "b"]}, {"names": ("a", "b")}),
        (("-n", "abc"), {"names": "abc"}, {"names": ("abc",)}),
        (("--way", "slow"), {"way": "slow"}, {"way": "slow"}),
        (("--no-save",), {"save": False}, {"save": False}),
        (("--push-to", "x"), {"push_to": "x"}, {"push_to": "x"}),
        (("--packed-all", "--size", "1"), {"packed_all": True, "size": 1}, {"packed_all": True, "size": 1}),
    ],
)
def test_both_read_the_same_values(
    words: tuple[str, ...], given: dict[str, Any], changed: dict[str, Any]
) -> None:
    assert defaults_of(Made) == DEFAULTS
    assert typed(*words) == read_options(Made, given) == DEFAULTS | changed


@pytest.mark.parametrize(
    ("words", "given", "message"),
    [
        (("--size", "x"), {"size": "x"}, "is not a size"),
        (("--count", "10"), {"count": 10}, "10 "),
        (("--count", "x"), {"count": "x"}, "is not a"),
        (("--way", "x"), {"way": "x"}, "is not one of"),
    ],
)
def test_both_refuse_the_same_values(words: tuple[str, ...], given: dict[str, Any], message: str) -> None:
    with pytest.raises(click.BadParameter, match=message):
        typed(*words)
    with pytest.raises(UsageError, match=message) as refused:
        read_options(Made, given)
    assert refused.value.subject == next(iter(given))


def test_options_are_spelled_as_the_caller_spells_them() -> None:
    with pytest.raises(UsageError) as refused:
        typed("--packed-all")
    assert (refused.value.subject, refused.value.message) == ("--packed-all", "--packed-all needs --size")
    assert refused.value.hint == "Add --size."
    with pytest.raises(UsageError) as refused:
        read_options(Made, {"packed_all": True})
    assert (refused.value.subject, refused.value.message) == ("packed_all", "packed_all needs size")
    with pytest.raises(UsageError, match="--push-to cannot be used with --no-save: only that"):
        typed("--push-to", "x", "--no-save")
    with pytest.raises(UsageError, match="push_to needs save: only that"):
        read_options(Made, {"push_to": "x", "save": False})


def test_python_shows_the_same_help() -> None:
    document(Made)
    assert "    packed_all: With size, all.\n    save: Save.\n    push_to: Push with packed_all." in str(
        Made.__doc__
    )


def test_options_that_are_not_given_are_the_default_rules() -> None:
    assert rules_from({}) == Rules()


def test_an_age_can_be_a_time_or_text() -> None:
    newer = datetime(2026, 1, 31, tzinfo=UTC)
    values = [read_options(TransferOptions, {"newer": each})["newer"] for each in (newer, str(newer))]
    assert values == [int(newer.timestamp()) * 10**9] * 2


class Postponed(TypedDict, total=False):
    """Options of a module whose annotations are only text."""

    size: "Annotated[int, Option('At most SIZE.')]"


def test_postponed_annotations_are_noticed() -> None:
    with pytest.raises(TypeError, match="postpones"):
        defaults_of(Postponed)
