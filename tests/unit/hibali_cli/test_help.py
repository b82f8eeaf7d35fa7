"""Test the help: every command in few sections, every option in one, and the topics of `hibali help`."""

from __future__ import annotations

import re

import click
import pytest

from hibali_cli.help_text import EXIT_STATUS, TOPICS
from hibali_cli.root import root, run_command

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
        if title not in {"Options", "Examples"}
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


LONG = [["push"], ["pull"], ["sync"], ["plan"], ["cp"], ["run"], ["sites", "add"]]


def printed(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """Return what a command line prints; it ends with `code`."""
    assert run_command(list(words)) == code
    read = capsys.readouterr()
    return read.out if code == 0 else read.err


@pytest.mark.parametrize("words", LONG, ids=" ".join)
def test_a_long_help_has_at_most_60_lines_and_says_where_the_rest_is(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    first = printed(capsys, *words, "--help")
    every = printed(capsys, *words, "--help-all")
    assert len(first.splitlines()) <= 60
    assert f"hibali {' '.join(words)} --help-all" in " ".join(first.split())
    context = root.make_context("hibali", [*words], resilient_parsing=True)
    for word in words:
        assert isinstance(context.command, click.Group)
        found = context.command.get_command(context, word)
        assert found is not None
        context = click.Context(found, info_name=word, parent=context)
    for option in context.command.get_params(context):
        record = option.get_help_record(context) if isinstance(option, click.Option) else None
        if record is not None:
            assert f"  {record[0]}" in every
    assert "\nOptions:" not in every  # each is in a section with a name
    assert "More options" not in every


def test_help_shows_the_help_of_a_command_and_topics(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "help") == printed(capsys, "--help")
    assert printed(capsys, "help", "sites", "add") == printed(capsys, "sites", "add", "--help")
    for name, (sentence, terms) in TOPICS.items():
        text = printed(capsys, "help", name)
        assert text.startswith(sentence)
        assert all(f"  {term} " in text for term in terms)
    assert "locations" in printed(capsys, "help", "location", code=2)
    assert "push" in printed(capsys, "help", "pusch", code=2)
    assert "subcommand" in printed(capsys, "help", "push", "data", code=2)


def test_only_the_topic_has_the_table_of_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--help"], ["sites", "--help"], ["ls", "--help"], ["push", "--help-all"]):
        text = printed(capsys, *words)
        assert "hibali help exit-codes" in text
        assert EXIT_STATUS[6] not in text
    assert EXIT_STATUS[6] in printed(capsys, "help", "exit-codes")
