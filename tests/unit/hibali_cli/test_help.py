"""Test that `--help` lists every command once, in few sections, the everyday ones first."""

from __future__ import annotations

import re

import click
import pytest

from hibali_cli.root import root

_SECTION = re.compile(r"^(\w[\w ]*):$", re.MULTILINE)


def sections(*words: str) -> dict[str, list[str]]:
    """Return the commands of a group by section, as its help lists them."""
    context = root.make_context("hibali", [*words], resilient_parsing=True)
    for word in words:
        group = context.command
        assert isinstance(group, click.Group)
        found = group.get_command(context, word)
        assert found is not None
        context = click.Context(found, info_name=word, parent=context)
    parts = _SECTION.split(context.command.get_help(context))
    return {
        title: re.findall(r"^  ([a-z]+) ", text, re.MULTILINE)
        for title, text in zip(parts[1::2], parts[2::2], strict=True)
        if title not in {"Options", "Exit status", "Examples"}
    }


def test_the_help_lists_every_command_in_at_most_six_sections() -> None:
    found = sections()
    assert len(found) <= 6
    title, everyday = next(iter(found.items()))
    assert (title, len({*everyday} - {"history"})) == ("Everyday commands", 9)  # history is of a folder
    listed = [name for names in found.values() for name in names]
    assert sorted(listed) == root.list_commands(click.Context(root))
    assert "copy" not in listed


@pytest.mark.parametrize("word", ["runs", "pipelines", "sites"])
def test_the_help_of_a_group_lists_every_command_of_it(word: str) -> None:
    context = click.Context(root)
    group = root.get_command(context, word)
    assert isinstance(group, click.Group)
    listed = [name for names in sections(word).values() for name in names]
    assert sorted(listed) == sorted(group.list_commands(click.Context(group, info_name=word, parent=context)))
