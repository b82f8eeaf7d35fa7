"""Suggest what users of other tools, and those who mistype, mean: commands and options of rsync, rclone, gh, globus and Slurm."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import click

from hibali.text import nearest

Command = TypeVar("Command", bound=Callable[..., Any])

# Commands of other tools, and subcommands without their group: what does the same here.
_COMMANDS: Final[Mapping[str, str]] = {
    "add": "sites add",
    "auth": "sites login",
    "cancel": "runs cancel",
    "check": "verify",
    "clone": "pull",
    "collect": "runs collect",
    "compare": "verify",
    "delete": "rm",
    "diff": "status FOLDER",
    "dir": "ls",
    "download": "pull",
    "edit": "config edit",
    "endpoint": "sites",
    "get": "pull",
    "hashsum": "manifest",
    "info": "sites show",
    "install": "pipelines add",
    "job": "runs",
    "jobs": "runs",
    "kill": "runs cancel",
    "list": "ls",
    "listremotes": "sites list",
    "login": "sites login",
    "logout": "sites logout",
    "logs": "runs logs",
    "lsd": "ls",
    "lsf": "ls",
    "lsjson": "ls --json",
    "lsl": "ls -l",
    "md5sum": "manifest",
    "mirror": "sync",
    "move": "mv",
    "ncdu": "du",
    "ps": "runs list",
    "purge": "rm -r",
    "put": "push",
    "qdel": "runs cancel",
    "qstat": "runs list",
    "qsub": "run",
    "queue": "runs list",
    "remote": "sites",
    "remove": "rm",
    "rename": "mv",
    "rsync": "sync",
    "sbatch": "run",
    "scancel": "runs cancel",
    "scp": "push",
    "setup": "init",
    "sha256sum": "manifest",
    "size": "du",
    "squeue": "runs list",
    "submit": "run",
    "tail": "runs logs",
    "task": "history",
    "transfer": "sync",
    "tree": "ls -R",
    "upload": "push",
    "version": "--version",
    "wait": "runs wait",
    "watch": "runs watch",
    "whoami": "doctor SITE",
}
# Verbs of other tools in a group of hibali; the first that the group has is suggested.
_VERBS: Final[Mapping[str, tuple[str, ...]]] = {
    "create": ("add", "create"),
    "delete": ("remove", "cancel", "unset"),
    "info": ("show",),
    "kill": ("cancel",),
    "ls": ("list",),
    "new": ("add", "create"),
    "rm": ("remove", "clean", "unset"),
    "status": ("show", "list"),
    "stop": ("cancel",),
    "tail": ("logs",),
    "view": ("show",),
}
_ARCHIVE = (
    "modes",
    "Folders, symlinks and times are always transferred; add --modes keep for permission bits.",
)
_COMPRESS = ("modes", "hibali does not compress; ssh does, with `Compression yes` in ~/.ssh/config.")
_FORCE = ("yes", "To remove without a question, add --yes.")
# Options of other tools: the parameter of the command without which the hint is not meant, and the hint.
_OPTIONS: Final[Mapping[str, tuple[str, str]]] = {
    "-a": _ARCHIVE,
    "--archive": _ARCHIVE,
    "-p": ("modes", "Times are always kept; add --modes keep for permission bits."),
    "-z": _COMPRESS,
    "--compress": _COMPRESS,
    "-f": _FORCE,
    "--force": _FORCE,
    "--transfers": ("workers", "hibali opens as many channels as are useful; see: hibali push --help-all"),
    "--checkers": ("workers", "hibali opens as many channels as are useful; see: hibali push --help-all"),
    "--delete-after": ("delete", "--delete deletes at the end, after everything was transferred."),
    "--delete-excluded": ("delete", "--delete never deletes what is left out; see: hibali push -n --delete"),
    "--remove-source-files": ("move", "use `--move`, which removes what is proven at the target."),
    "--transform": ("rename", "use --rename, with a rule such as 's/sub-/s/'."),
    "-e": ("modes", "Options of ssh belong in ~/.ssh/config."),
}


def explain_unknown_command(name: str, group: click.Group, context: click.Context) -> str | None:
    """Return the command that an unknown name means in this group; None if nothing is similar."""
    if context.parent is None:
        meant = _COMMANDS.get(name, "")
        if meant.startswith("-") or (meant and group.get_command(context, meant.split()[0])):
            return meant
        if ":" in name:
            return f"ls {name}"
    else:
        meant = next((each for each in _VERBS.get(name, ()) if group.get_command(context, each)), "")
        if meant:
            return meant
    return nearest(name, group.list_commands(context))


def explain_unknown_option(
    problem: click.NoSuchOption, words: Sequence[str], command: click.Command
) -> click.UsageError:
    """Return the error for an unknown option, with what it is here."""
    known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    parameters = {each.name for each in command.params}
    needed, hint = _OPTIONS.get(problem.option_name, ("", ""))
    long = next((f"-{word}" for word in words if f"-{word}" in known and not word.startswith("--")), None)
    if long is not None:
        return _usage(problem, f"No such option {long[1:]!r}. Did you mean {long!r}?")
    if hint and needed in parameters:
        return _usage(problem, f"No such option {problem.option_name!r}. {hint}")
    if problem.option_name == "-r" and "-R" in known:
        return _usage(problem, "No such option '-r'. Did you mean '-R'?")
    return problem


def _usage(problem: click.UsageError, message: str) -> click.UsageError:
    return click.UsageError(message, problem.ctx)


def habit(*names: str) -> Callable[[Command], Command]:
    """Return a hidden flag for what a command does anyway, as users of other tools type it."""
    return click.option(
        *names, is_flag=True, hidden=True, expose_value=False, help="The command does so anyway."
    )


HUMAN_READABLE: Final = "--human-readable"


def without_human_letter(words: Sequence[str], command: click.Command) -> list[str]:
    """Return the words without `h` in groups of short options, as in `ls -lh`, for a command that has this habit.

    `-h` alone is the help everywhere.
    """
    if not any(HUMAN_READABLE in each.opts for each in command.params):
        return list(words)
    end = words.index("--") if "--" in words else len(words)
    return (
        [
            word.replace("h", "")
            if len(word) > 2 and word[0] == "-" and word[1:].isalpha() and set(word) != {"-", "h"}
            else word  # a dash and two letters
            for word in words[:end]
        ]
        + list(words[end:])
    )
