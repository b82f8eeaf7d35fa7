"""Check that a command line is valid, without running it."""

from __future__ import annotations

import click

from hibali_cli.root import root


def check_call(words: list[str], *, whole: bool) -> None:
    """Parse the arguments of `hibali` with the tree of commands; raises `click.UsageError`.

    A `whole` call is complete; otherwise required arguments may be missing. Values are not checked: the files
    and sites of an example do not exist here.
    """
    context = click.Context(root, info_name="hibali")
    command: click.Command = root
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, found, words = command.resolve_command(context, words)
        assert found is not None
        command, context = found, click.Context(found, parent=context, info_name=name)
    if {"--help", "--version"} & set(words):
        return
    if isinstance(command, click.Group) and not command.invoke_without_command and whole:
        raise click.UsageError("a command is missing", context)
    values, left, _ = command.make_parser(context).parse_args(list(words))
    if left and not isinstance(command, click.Group):
        raise click.UsageError(f"too much: {left}", context)
    for parameter in command.get_params(context) if whole else ():
        given = values.get(str(parameter.name))
        if (
            isinstance(parameter, click.Argument)
            and parameter.required
            and not isinstance(given, str | tuple)
        ):
            raise click.UsageError(f"{parameter.name} is missing", context)


def misunderstood(words: list[str]) -> str | None:
    """Return what is wrong with a call in the documentation; None if nothing is."""
    try:
        check_call(words, whole=False)
    except click.UsageError as problem:
        return problem.format_message()
    return None
