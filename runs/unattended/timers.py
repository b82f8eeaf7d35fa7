"""A schedule as the text of a systemd user timer and of the service that it starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hibali.errors import UsageError

_FIRST = "# Written by `hibali schedule`, and again at every change.\n"


def timer_text(name: str, calendar: Sequence[str], *, make_up: bool) -> str:
    """The timer; `make_up` lets systemd start it at once where a time was missed."""
    lines = "".join(f"OnCalendar={line}\n" for line in calendar)
    return (
        f"{_FIRST}[Unit]\nDescription=hibali schedule {name}\n\n[Timer]\n{lines}AccuracySec=1s\n"
        f"Persistent={'true' if make_up else 'false'}\n\n[Install]\nWantedBy=timers.target\n"
    )


def service_text(name: str, words: Sequence[str], environment: Mapping[str, str], output: str) -> str:
    """The service; its end is told as its exit code. Raises `UsageError` for a newline."""
    settings = "".join(f"Environment={_quoted(f'{key}={value}')}\n" for key, value in environment.items())
    command = " ".join(_quoted(word, command=True) for word in words)
    # who stops it gives it the time to end cleanly
    text = (
        f"{_FIRST}[Unit]\nDescription=hibali schedule {name}\n\n[Service]\nType=oneshot\n{settings}"
        f"ExecStart={command}\nStandardOutput=append:{output.replace('%', '%%')}\nStandardError=inherit\n"
        "KillSignal=SIGTERM\nKillMode=mixed\nTimeoutStopSec=60\n"
    )
    if not text.replace("\n", "").isprintable() or "\n" in output:
        raise _unfit(name)
    return text


def _quoted(word: str, *, command: bool = False) -> str:
    r"""A word as systemd.syntax(7) reads it: specifiers begin with %, variables in commands with $."""
    if not word.isprintable():
        raise _unfit(word)
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return '"' + (text.replace("$", "$$") if command else text) + '"'


def _unfit(word: str) -> UsageError:
    return UsageError(
        "unfit-for-systemd",
        "a newline or another control character cannot stand in a unit of systemd",
        about=ascii(word),
        hint="Keep hibali, its configuration and its state below folders with plain names.",
    )
