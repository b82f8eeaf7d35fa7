"""`hibali help`."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from hibali.text import did_you_mean
from hibali_cli.command import Section
from hibali_cli.help_text import TOPICS, topic_text, write_topics_hint
from hibali_cli.options import add_help_option
from hibali_cli.output import Output


class _HelpCommand(click.Command):
    section = Section.SETUP

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """End the help with where exit codes are explained."""
        del ctx
        write_topics_hint(formatter)


def _complete(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    given = context.params.get(str(parameter.name)) or ()
    try:
        command = _find(context.find_root(), given).command
    except click.UsageError:
        return []
    names = command.list_commands(context.find_root()) if isinstance(command, click.Group) else []
    return [
        CompletionItem(each) for each in (*names, *(TOPICS if not given else ())) if each.startswith(begun)
    ]


@add_help_option
@click.command("help", cls=_HelpCommand, add_help_option=False)
@click.argument("words", metavar="[COMMAND...|TOPIC]", nargs=-1, shell_complete=_complete)
@click.pass_context
def help_command(context: click.Context, words: tuple[str, ...]) -> None:
    """Show the help of a command, or of a topic: exit-codes, locations, environment.

    Without a word it lists all commands, as `hibali --help` does.
    """
    root = context.find_root()
    if len(words) == 1 and words[0] in TOPICS:
        text = topic_text(words[0], root).rstrip("\n")
    else:
        text = _find(root, words).get_help()
    Output().text(text + "\n")


def _find(context: click.Context, words: tuple[str, ...]) -> click.Context:
    """Return the context of a command by its words. Raises `click.UsageError`."""
    for position, word in enumerate(words):
        group = context.command
        if not isinstance(group, click.Group):
            raise click.UsageError(f"{context.command_path} has no subcommand {word!r}.", context)
        if position == 0 and group.get_command(context, word) is None:
            hint = did_you_mean(word, TOPICS)
            if hint:
                raise click.UsageError(f"No such command or topic {word!r}. {hint.rstrip()}", context)
        name, found, _ = group.resolve_command(context, [word])
        assert found is not None
        context = click.Context(found, info_name=name, parent=context)
    return context
