"""A command's page of the documentation, from the command itself: text in, Markdown out."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click

from hibali_cli.command import EXIT_STATUS
from hibali_cli.manual import page_name

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$])")


def reference_page(context: click.Context) -> str:
    """The page of the command that `context` is about."""
    return "\n".join(_lines(context)) + "\n"


def reference_index(contexts: list[click.Context]) -> str:
    """The page that leads to all of them: a table, and the order in which they are turned."""
    rows = (
        f"| [`{context.command_path}`]({page_name(context)}.md) | {_escape(_sentence(context.command))} |"
        for context in contexts
    )
    names = (page_name(context) for context in contexts)
    head = ["# Commands", "", "| command | what it does |", "|---|---|"]
    return "\n".join([*head, *rows, "", "```{toctree}", ":hidden:", "", *names, "```", ""])


def _lines(context: click.Context) -> Iterator[str]:
    command = context.command
    yield from (f"# {context.command_path}", "")
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield from ("```text", usage, "```", "")
    yield from _paragraphs(command.help or "")
    yield from _commands(context)
    yield from ("## Options", "")
    for option in command.get_params(context):
        record = option.get_help_record(context) if isinstance(option, click.Option) else None
        if record is not None:
            yield from _item(f"`{record[0]}`", record[1])
    yield from ("## Exit codes", "", "| code | meaning |", "|---|---|")
    yield from (f"| {code} | {_escape(meaning)} |" for code, meaning in EXIT_STATUS.items())
    yield ""
    yield from _examples(context)


def _commands(context: click.Context) -> Iterator[str]:
    command = context.command
    if isinstance(command, click.Group):
        yield from ("## Commands", "")
        for word in command.list_commands(context):
            found = command.get_command(context, word)
            if found is not None:
                yield from _item(f"[`{word}`]({page_name(context)}-{word}.md)", _sentence(found))


def _examples(context: click.Context) -> Iterator[str]:
    examples = getattr(context.command, "examples", ())
    if examples:
        yield from ("## Examples", "")
        for line, meaning in examples:
            yield from (_escape(meaning), "", "```text", line, "```", "")


def _item(term: str, meaning: str) -> Iterator[str]:
    yield from (term, f": {_escape(meaning)}", "")


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in text.replace("\b\n", "").strip().split("\n\n"):
        yield from (_escape(" ".join(paragraph.split())), "")


def _sentence(command: click.Command) -> str:
    """The first paragraph of the help."""
    return " ".join((command.help or "").strip().split("\n\n")[0].split())


def _escape(text: str) -> str:
    """Text that Markdown shows as it is."""
    return _SPECIAL.sub(r"\\\1", text)
