"""Render errors for people and as JSON; save the traceback of a bug in a private file."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import click

from hibali import __version__
from hibali.errors import Exit, HibaliError, IncompleteError, NotFoundError, UsageError
from hibali.text import printable
from hibali_cli.interruption import OutOfTime, interruption_hint
from hibali_cli.output import PIPE_CLOSED, Output, coloured, log_message, record_text, write_message


def write_bug_report(failure: BaseException) -> str | None:
    """Write it below the state folder; returns the file's path, None where it could not be written.

    It contains neither the command line nor values of variables, which may be secret (S16), and secrets in the exception's
    message are hidden.
    """
    import traceback  # start-up: only after a bug

    from hibali.files import private_folder, state_folder, write_atomic  # start-up: only after a bug
    from hibali.subprocesses import without_secrets  # start-up: only after a bug

    now = datetime.now(UTC)
    lines = [
        f"hibali {__version__}, python {platform.python_version()}, {sys.platform}, {now.isoformat()}\n\n",
        without_secrets("".join(traceback.format_exception(failure))),
    ]
    try:
        folder = private_folder(state_folder() / "bugs")
        report = folder / f"{now:%Y%m%dT%H%M%S}-{os.getpid()}.txt"
        write_atomic(report, "".join(lines).encode("utf-8", "backslashreplace"))
    except (HibaliError, OSError):
        return None
    return str(report)


def render_failure(failure: BaseException, *, json: bool) -> int:
    """Print an error to stderr, with `json` also the error record to stdout; returns the exit code.

    A group without a command shows its help on stdout: nothing failed, but nothing was done either, so the exit code is 2.
    Tracebacks are never shown: that of a bug goes to a file in the state folder, which is named.
    """
    from hibali.system_errors import exit_of  # start-up: only after an error

    if isinstance(failure, click.exceptions.NoArgsIsHelpError):
        try:
            _show_help(failure)
        except HibaliError as closed:  # stdout cannot be written
            failure = closed
        else:
            return int(Exit.USAGE)
    if isinstance(failure, click.Abort):
        failure = KeyboardInterrupt()
    error = _as_error(failure)
    code = int(exit_of(failure if isinstance(failure, KeyboardInterrupt) else error))
    print_error(error)
    if json:
        _write_record({**error.to_record(), **_problems(error), "exit": code})
    return code


class Failures:
    """The failures of a command on several things: each is tried, and the worst failure ends the command.

    The others are printed at once, with `json` also as error records. The worst has the largest exit code.
    """

    def __init__(self, *, json: bool = False) -> None:
        self._json = json
        self._worst: HibaliError | None = None

    @contextlib.contextmanager
    def collect(self) -> Iterator[None]:
        """Keep an error of hibali that the block raises, and continue."""
        try:
            yield
        except HibaliError as problem:
            self.add(problem)

    def add(self, problem: HibaliError) -> None:
        """Add a failure."""
        if self._worst is None:
            self._worst = problem
            return
        lesser, self._worst = sorted((problem, self._worst), key=lambda each: int(each.exit))
        render_failure(lesser, json=self._json)

    def __bool__(self) -> bool:
        return self._worst is not None

    def end(self, code: int = 0) -> int:
        """Raise the worst failure; without one, or if `code` is worse, return `code`."""
        if self._worst is None:
            return code
        if int(self._worst.exit) >= code:
            raise self._worst
        render_failure(self._worst, json=self._json)
        return code


def _as_error(failure: BaseException) -> HibaliError:
    if isinstance(failure, HibaliError):
        return failure
    if isinstance(failure, KeyboardInterrupt):
        return _interrupted(failure)
    if isinstance(failure, click.ClickException):
        return _usage(failure)
    return _refused_by_the_system(failure) or _bug(failure)


def _refused_by_the_system(failure: BaseException) -> HibaliError | None:
    """Return the error for a full, read-only or broken filesystem, or for a limit of this machine; None for a bug."""
    from hibali.files import state_root  # start-up: only after an error
    from hibali.system_errors import explain  # start-up: only after an error

    if isinstance(failure, FileNotFoundError) and not failure.filename:
        if not _has_current_folder():
            return NotFoundError(
                "no-current-folder", "the current folder was removed", hint="Change to an existing folder."
            )
        if "temporary directory" in str(failure):
            return IncompleteError(
                "no-temporary-folder",
                "no temporary folder is writable",
                hint="Free some space in /tmp, or set TMPDIR to another folder.",
            )
    if isinstance(failure, RuntimeError) and "home directory" in str(failure):
        return UsageError(
            "no-home",
            "the home folder for ~ cannot be found",
            hint="Set HOME, or write the path in full.",
        )
    return explain(failure, state=state_root())


def _has_current_folder() -> bool:
    try:
        return bool(os.getcwd())  # noqa: PTH109  # pathlib says the same in more steps
    except OSError:
        return False


def _interrupted(failure: KeyboardInterrupt) -> HibaliError:
    if isinstance(failure, OutOfTime):
        return failure.to_error()
    return HibaliError("interrupted", "interrupted", hint=interruption_hint(), transient=True)


def _usage(failure: click.ClickException) -> UsageError:
    context = getattr(failure, "ctx", None)
    subject = context.command_path if isinstance(context, click.Context) else ""
    message = failure.format_message().replace("a valid integer range", "a whole number")
    every = f"{subject or 'hibali'} --help"
    of_group = not isinstance(context, click.Context) or isinstance(context.command, click.Group)
    hint = f"All {'commands' if of_group else 'options'}: {every}"
    if isinstance(context, click.Context):
        example = next((line for line, _ in getattr(context.command, "examples", ())), "")
        if isinstance(failure, click.MissingParameter) and example:
            hint = f"For example: {example}; all options: {every}"
        elif "unexpected extra argument" in message:
            usage = " ".join([subject, *context.command.collect_usage_pieces(context)])
            hint = f"Usage: {usage}; all options: {every}"
    return UsageError("usage", message, subject=subject, hint=hint)


def _show_help(failure: click.exceptions.NoArgsIsHelpError) -> None:
    """Show the help of a group; for hibali itself the first commands to run on this machine."""
    if failure.ctx.parent is None:
        lines = [
            "First steps:",
            *(f"  {line}" for line in _first_steps()),
            "All commands: hibali --help",
        ]
        for line in lines:
            Output().line(line)
    else:
        Output().text(f"{failure.format_message()}\n")


def _bug(failure: BaseException) -> HibaliError:

    report_path = write_bug_report(failure)
    return HibaliError(
        "bug",
        f"a bug in hibali: {type(failure).__name__}",
        subject=report_path or "",
        hint="Please report it with that file."
        if report_path
        else "The report could not be written to the state folder.",
    )


def _problems(error: HibaliError) -> dict[str, Any]:
    """Return the list of problems that some errors have."""
    found = getattr(error, "problems", None)
    return {"problems": found} if isinstance(found, list) else {}


def print_error(error: HibaliError) -> None:
    """Print the error to stderr: what failed, its subject, its code in brackets, and what to do next.

    The pages of docs/troubleshooting/ are sorted by the codes.
    """
    if error.code == PIPE_CLOSED:
        return
    mark = "\x1b[31mhibali:\x1b[0m" if coloured(sys.stderr) else "hibali:"
    named = "" if error.subject == "hibali" else error.subject.removeprefix("hibali ")
    first, *more = error.message.split("\n")
    if first.startswith(f"{named} "):  # such as an option that needs another one
        named = ""
    subject = f"{printable(named).removesuffix(':')}: " if named else ""
    following = [f"  {printable(line)}" for line in more]
    if error.hint:  # one line: it may contain names of others
        following.append(f"  {printable(error.hint)}")
    if more:  # a heading of these lines, after which the code comes
        first = first.removesuffix(":")
    text = "\n".join([f"{subject}{printable(first)} [{error.code}]", *following])
    log_message(f"error    {text}")
    write_message(f"{mark} {text}")


def _write_record(record: dict[str, Any]) -> None:
    if sys.stdout is not None:
        try:
            sys.stdout.write(record_text(record))
        except OSError:
            return  # main finds the same problem when it flushes


def _first_steps() -> list[str]:
    """Return the first commands to run on this machine, each line a command and its effect."""
    from hibali.plugins import if_offered  # start-up: not for other failures

    names = _site_names()
    if not names:
        lines = [
            (if_offered("init", "hibali init"), "add a first site, and send a first file to it"),
            (
                if_offered("sites.import", "hibali sites import"),
                "show the sites that ssh and rclone already know",
            ),
            ("hibali sites add NAME --ssh HOST", if_offered("init", "or ") + "add one yourself"),
        ]
    else:
        site = names[0]
        lines = [
            ("hibali sites list", f"your sites: {', '.join(names[:4])}{' ...' * (len(names) > 4)}"),
            (if_offered("doctor", f"hibali doctor {site}"), "check the site, from its name to a job"),
            (f"hibali ls {site}:", "list its files"),
            (f"hibali push FOLDER {site}:FOLDER", "send a folder and verify it"),
        ]
    width = max(len(line) for line, _ in lines)
    return [f"{line:<{width}}   {meaning}" for line, meaning in lines if line]


def _site_names() -> list[str]:
    """Return the sites of config.toml; empty if it cannot be read, which the next command reports."""
    from hibali.config.settings import load_sites  # start-up: only where sites are listed

    try:
        return sorted(load_sites().sites)
    except HibaliError:
        return []
