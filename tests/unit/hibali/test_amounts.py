"""Test that durations, counts and sizes have limits in all options, settings and calls from Python."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import click
import pytest

from hibali.amounts import MOST_COUNT, read_duration, read_job_time, read_moment, read_size
from hibali.config.schema import Note, duration, size, whole, whole_duration
from hibali.errors import UsageError
from hibali.options import read_options
from hibali_api.calls import bounded
from hibali_api.job_options import ResourceOptions
from hibali_api.transfer_request import TransferOptions
from hibali_cli.root import root
from transfers.model.rules import read_delete_limit

NINES = "9" * 400


@pytest.mark.parametrize("text", ["9999999999d", NINES, f"{NINES}s", f"{'9' * 20}h", "36526d"])
def test_a_duration_is_at_most_100_years(text: str) -> None:
    with pytest.raises(ValueError, match="longer than 100 years"):
        read_duration(text)


@pytest.mark.parametrize("text", ["9999999999d", "99999-00:00:00", f"{NINES}m"])
def test_the_time_of_a_job_is_at_most_100_years(text: str) -> None:
    with pytest.raises(ValueError, match="longer than 100 years"):
        read_job_time(text)


@pytest.mark.parametrize("text", [NINES, "9223372036854775808", "8192P", f"{NINES}kB"])
def test_a_size_is_less_than_8_eib(text: str) -> None:
    with pytest.raises(ValueError, match="larger than 8 EiB"):
        read_size(text)


def test_the_longest_duration_and_the_largest_size_can_be_used() -> None:
    assert read_duration("36525d") == 36525 * 86400
    for ago in (True, False):
        assert abs(read_moment("36525d", ago=ago) - datetime.now(UTC)) > timedelta(days=36524)
    assert read_size("8191P") == 8191 << 50


@pytest.mark.parametrize("reader", [duration(), whole_duration(), size(), whole()])
@pytest.mark.parametrize("value", [10**30, int(NINES[:400])])
def test_settings_have_the_same_limits(reader: object, value: int) -> None:
    note: Note = lambda *_: None  # type: ignore[assignment]  # noqa: E731
    with pytest.raises(ValueError, match=r"longer than|larger than|must be"):
        reader(value, note)  # type: ignore[operator]


def commands(context: click.Context) -> Iterator[tuple[str, click.Command]]:
    """Yield every command of a group with its path."""
    assert isinstance(context.command, click.Group)
    for name in context.command.list_commands(context):
        command = context.command.get_command(context, name)
        assert command is not None
        below = click.Context(command, info_name=name, parent=context)
        yield below.command_path, command
        if isinstance(command, click.Group):
            yield from commands(below)


def test_every_number_of_an_option_has_limits() -> None:
    """Give each option that takes a number, duration or size a value that no clock, file or index can hold."""
    checked = set()
    handled_later = {
        "hibali sites add",
        "hibali sites cache evict",
    }  # by the readers of settings, and of the folder eviction
    for path, command in commands(click.Context(root, info_name="hibali")):
        for option in command.params:
            if isinstance(option, click.Option) and not option.is_flag and path not in handled_later:
                metavar = str(option.metavar)
                is_count = isinstance(option.type, click.types.IntParamType) and not option.count
                if is_count or any(word in metavar for word in ("DURATION", "SIZE", "TIME", "RATE")):
                    for value in (NINES, "9999999999d", "8192P"):
                        context = click.Context(command, info_name=path)
                        with pytest.raises(click.UsageError):
                            option.process_value(context, (value,) if option.multiple else value)
                    checked.add(option.opts[-1])
    assert checked >= {"--max-time", "--last", "--interval", "--time", "--memory", "--newer", "--min-size"}


def test_calls_from_python_have_the_same_limits() -> None:
    for name in ("nodes", "tasks", "cores", "gpus", "memory", "time"):
        with pytest.raises(UsageError):
            read_options(ResourceOptions, {name: 10**30})
    with pytest.raises(UsageError, match="8 EiB"):
        read_options(TransferOptions, {"min_size": 10**30})
    for longest in (timedelta.max, timedelta.min):
        with pytest.raises(UsageError, match="100 years"):
            read_options(TransferOptions, {"newer": longest})
        with pytest.raises(UsageError, match="100 years"):
            bounded(longest, "until")
    with pytest.raises(UsageError, match="number of files"):
        read_delete_limit(NINES)


def test_the_commands_of_the_report_say_what_is_wrong(hibali: object) -> None:
    for words in (
        ["runs", "list", "--max-time", "9999999999d"],
        ["runs", "list", "--last", "9" * 20],
        ["runs", "list", "--last", str(MOST_COUNT + 1)],
    ):
        answer = hibali(*words, exit=2)  # type: ignore[operator]
        assert words[-2].encode() in answer.err
