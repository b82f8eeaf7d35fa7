"""`hibali config`: get, set and edit settings of config.toml."""

from __future__ import annotations

import click

from hibali_cli.command import Section, command, command_group
from hibali_cli.options import Common


@command(
    "edit",
    examples=[
        ("hibali config edit", "Open config.toml in your editor."),
        ("hibali config edit --from FILE", "Continue with an edited copy that was invalid."),
    ],
)
@click.option("--from", "start", metavar="FILE", help="Start with this text instead of the current file.")
def edit_command(common: Common, start: str | None) -> int | None:
    """Open a copy of config.toml in $VISUAL or $EDITOR, check it, and then replace the file.

    An invalid copy is kept, and the message names it; config.toml is not changed then.
    """
    from hibali_cli.handlers.config import edit_config

    return edit_config(common, start)


@command("get", examples=[("hibali config get sites.juwels.ssh.logins", "Print one setting.")])
@click.argument("key", metavar="KEY")
def get_command(common: Common, key: str) -> int | None:
    """Print the value of a setting in config.toml, or a whole table.

    A setting that is not in the file is an error (3), which names its default.
    """
    from hibali_cli.handlers.config import print_value

    return print_value(common, key)


@command("path", examples=[("hibali config path", "Print the path of config.toml.")])
def path_command(common: Common) -> int | None:
    """Print the path of config.toml, which may not exist yet."""
    from hibali_cli.handlers.config import print_path

    return print_path(common)


@command(
    "set",
    examples=[
        ("hibali config set sites.juwels.scheduler.account brain", "Change one setting."),
        ("hibali config set sites.juwels.read_only '[\"archive\"]'", "Set a list, written as in TOML."),
    ],
)
@click.argument("key", metavar="KEY")
@click.argument("value", metavar="VALUE")
def set_command(common: Common, key: str, value: str) -> int | None:
    """Change one setting of config.toml; its comments are kept.

    VALUE is a number, true, false, a list or a table, written as in TOML; anything else is text. The changed file is checked before
    it is written: an unknown key or a wrong value changes nothing. Secrets are never settings.
    """
    from hibali_cli.handlers.config import change_value

    return change_value(common, key, value)


@command("unset", examples=[("hibali config unset sites.juwels.ssh.logins", "Return to the default.")])
@click.argument("key", metavar="KEY")
def unset_command(common: Common, key: str) -> int | None:
    """Remove a setting or a table from config.toml, so that its default applies."""
    from hibali_cli.handlers.config import remove_value

    return remove_value(common, key)


config_command = command_group(
    "config",
    section=Section.SETUP,
    commands=(edit_command, get_command, path_command, set_command, unset_command),
    help_text="Get, set and edit settings.",
)
