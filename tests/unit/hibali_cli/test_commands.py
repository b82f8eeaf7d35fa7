"""Test that each command calls a function with its parameters."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click
import pytest

from hibali.plugins import object_of
from hibali_cli.command import HibaliCommand, ListingGroup
from hibali_cli.options import COMMON_NAMES
from hibali_cli.root import root


def contexts_below(context: click.Context) -> Iterator[click.Context]:
    """Yield the context of each command of a group."""
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            each = context.command.get_command(context, name)
            assert each is not None
            yield from contexts_below(click.Context(each, info_name=name, parent=context))


CONTEXTS = {each.command_path: each for each in contexts_below(click.Context(root, info_name="hibali"))}
COMMANDS = [name for name, each in CONTEXTS.items() if isinstance(each.command, HibaliCommand | ListingGroup)]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_fits_the_function_that_it_calls(name: str) -> None:
    made = CONTEXTS[name].command
    assert isinstance(made, HibaliCommand | ListingGroup)
    names = [str(each.name) for each in made.params if each.expose_value and each.name not in COMMON_NAMES]
    instead = [added for added in made.added.values() if added.calls]
    for added in instead:
        inspect.signature(object_of(added.calls)).bind(None, **dict.fromkeys(names))
    for option in (each for added in instead for each in added.options):
        names.remove(str(option.name))
    function = made.calls if callable(made.calls) else object_of(made.calls)
    inspect.signature(function).bind(None, **dict.fromkeys(names))
