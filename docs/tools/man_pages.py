"""Write the man page of a command (groff_man(7))."""

from __future__ import annotations

from collections.abc import Iterator

import click

from hibali_cli.help_text import ENVIRONMENT, EXIT_STATUS, FILES

_ESCAPES = str.maketrans(
    {"\\": "\\e", "-": "\\-", "'": "\\(aq", "`": "\\(ga", "^": "\\(ha", "~": "\\(ti", '"': "\\(dq"}
)


def manual_page(context: click.Context) -> str:
    """Return the man page of the command of `context`."""
    return "\n".join(_lines(context)) + "\n"


def page_name(context: click.Context) -> str:
    """Return the name of the command and its page, such as `hibali-sites-add`."""
    return context.command_path.replace(" ", "-")


def escape(text: str) -> str:
    """Escape text for roff: no escapes, no requests, ASCII only."""
    shown = text.translate(_ESCAPES)
    shown = "".join(letter if letter.isascii() else f"\\[u{ord(letter):04X}]" for letter in shown)
    return "\\&" + shown if shown.startswith(".") else shown


def _lines(context: click.Context) -> Iterator[str]:
    command = context.command
    name = page_name(context)
    yield f'.TH "{escape(name.upper())}" "1" "" "hibali" "hibali manual"'
    yield from (".SH NAME", f"{escape(name)} \\- {escape(_summary(command))}")
    yield from (".SH SYNOPSIS", f".B {escape(context.command_path)}")
    yield escape(" ".join(command.collect_usage_pieces(context)))
    yield ".SH DESCRIPTION"
    yield from _paragraphs(command.help or "")
    yield from _commands(context)
    yield ".SH OPTIONS"
    for option in command.get_params(context):
        record = option.get_help_record(context) if isinstance(option, click.Option) else None
        if record is not None:
            yield from _item(*record)
    yield ".SH EXIT STATUS"
    for code, meaning in EXIT_STATUS.items():
        yield from _item(str(code), meaning)
    for title, items in (("FILES", FILES), ("ENVIRONMENT", ENVIRONMENT)):
        yield f".SH {title}"
        for term, meaning in items.items():
            yield from _item(term, meaning)
    yield from _examples(context)


def _commands(context: click.Context) -> Iterator[str]:
    command = context.command
    if isinstance(command, click.Group):
        yield ".SH COMMANDS"
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None:
                yield from _item(f"{page_name(context)}-{name}(1)", _sentence(found))


def _examples(context: click.Context) -> Iterator[str]:
    yield ".SH EXAMPLES"
    for line, meaning in getattr(context.command, "examples", ()) or [
        (f"{context.command_path} --help", "Show the help.")
    ]:
        yield from (".PP", escape(meaning), ".PP", ".RS 4", ".nf", escape(line), ".fi", ".RE")


def _item(term: str, meaning: str) -> Iterator[str]:
    yield from (".TP", f".B {escape(term)}", escape(meaning))


def _paragraphs(text: str) -> Iterator[str]:
    for number, paragraph in enumerate(text.replace("\b\n", "").strip().split("\n\n")):
        if number:
            yield ".PP"
        yield escape(" ".join(paragraph.split()))


def _sentence(command: click.Command) -> str:
    """Return the first paragraph of the help."""
    return " ".join((command.help or "").strip().split("\n\n")[0].split())


def _summary(command: click.Command) -> str:
    """Return the first sentence for the section NAME: no capital, no full stop."""
    sentence = _sentence(command).removesuffix(".")
    return sentence[:1].lower() + sentence[1:]
