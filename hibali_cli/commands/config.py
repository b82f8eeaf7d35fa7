"""`hibali config`: get, list, set and edit settings of config.toml."""

from __future__ import annotations

import click

from hibali_cli.command import Section, command, command_group


@command(
    "edit",
    calls="hibali_cli.handlers.config:edit_config",
    examples=[
        ("hibali config edit", "Open config.toml in your editor."),
        ("hibali config edit --from FILE", "Continue with an edited copy that was invalid."),
    ],
)
@click.option("--from", "start", metavar="FILE", help="Start with this text instead of the current file.")
def edit_command() -> None:
    """Open a copy of config.toml in $VISUAL or $EDITOR, check it, and then replace the file.

    An invalid copy is kept, and the message names it; config.toml is not changed then.
    """


@command(
    "get",
    calls="hibali_cli.handlers.config:print_value",
    examples=[("hibali config get sites.juwels.ssh.logins", "Print one setting.")],
)
@click.argument("key", metavar="KEY")
def get_command() -> None:
    """Print the value of a setting in config.toml, or a whole table.

    A setting that is not in the file is an error (3), which names its default.
    """


@command(
    "list",
    calls="hibali_cli.handlers.config:list_values",
    examples=[("hibali config list", "List every setting with its value and its source.")],
)
def list_command() -> None:
    """List every setting: its value, and whether that is a default, from config.toml, or from an environment variable.

    Of a site, the settings of its kind are listed.
    """


@command(
    "path",
    calls="hibali_cli.handlers.config:print_path",
    examples=[("hibali config path", "Print the path of config.toml.")],
)
def path_command() -> None:
    """Print the path of config.toml, which may not exist yet."""


@command(
    "set",
    calls="hibali_cli.handlers.config:change_value",
    examples=[
        ("hibali config set sites.juwels.scheduler.account brain", "Change one setting."),
        ("hibali config set default-site juwels", "Make a site the one that is meant by :PATH."),
        ("hibali config set sites.juwels.read_only '[\"archive\"]'", "Set a list, written as in TOML."),
    ],
)
@click.argument("key", metavar="KEY")
@click.argument("value", metavar="VALUE")
def set_command() -> None:
    """Change one setting of config.toml; its comments are kept.

    VALUE is a number, true, false, a list or a table, written as in TOML; anything else is text. The changed file is checked before
    it is written: an unknown key or a wrong value changes nothing. Secrets are never settings.
    """


@command(
    "unset",
    calls="hibali_cli.handlers.config:remove_value",
    examples=[("hibali config unset sites.juwels.ssh.logins", "Return to the default.")],
)
@click.argument("key", metavar="KEY")
def unset_command() -> None:
    """Remove a setting or a table from config.toml, so that its default applies."""


config_command = command_group(
    "config",
    section=Section.SETUP,
    commands=(edit_command, get_command, list_command, path_command, set_command, unset_command),
    help_text="Get, list, set and edit settings.",
)
