"""What the words and the answers of several batch systems have in common."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from hibali.errors import TryLaterError, UsageError
from hibali.text import printable
from runs.scheduler import Answer, NotSubmitted, Resources, Submitted, Unclear
from transfers.far import Finished

# A command that refuses because there is nothing left to do has done what it was asked for.
_UNLESS = r"""
over=$1; shift
said=$("$@" 2>&1)
code=$?
[ -z "$said" ] || printf '%s\n' "$said" >&2
[ "$code" = 0 ] || ! printf '%s\n' "$said" | grep -Eq -e "$over" || code=0
exit "$code"
"""


@dataclass(frozen=True, slots=True)
class Submitting:
    """How a system speaks of a submission: its program and name, and by what its errors are known.

    `unclear` matches where the job may have been taken all the same, `later` where asking again may help; `stopped` are
    exit codes of a program that somebody ended.
    """

    program: str
    system: str
    unclear: re.Pattern[bytes]
    later: re.Pattern[bytes]
    stopped: frozenset[int] = frozenset()

    def read(self, finished: Finished, job: str | None) -> Answer:
        """What the answer amounts to, `job` being the id found in it."""
        if job is not None and finished.exit_code == 0:
            return Submitted(job)
        told = finished.stderr + b"\n" + finished.stdout
        said = printable((finished.stderr.strip() or finished.stdout.strip())[-2000:])
        if finished.exit_code == 127:
            return NotSubmitted(
                UsageError(
                    "no-scheduler",
                    f"there is no {self.program} at the site",
                    hint="Correct [scheduler] name, or PATH of non-interactive logins there.",
                )
            )
        stopped = finished.exit_code <= 0 or finished.exit_code in self.stopped
        if stopped or job is not None or self.unclear.search(told):
            return Unclear(said or f"{self.program} gave no job id")
        if self.later.search(told):
            return NotSubmitted(
                TryLaterError("scheduler-busy", f"{self.system} did not take the job: {said}")
            )
        return NotSubmitted(
            UsageError(
                "submission-rejected",
                f"{self.system} refused the job: {said}",
                hint="Correct the site's [scheduler] table (account, partition, time, directives).",
            )
        )


def no_answer(program: str, finished: Finished) -> TryLaterError:
    """The error for a question that was not answered."""
    said = finished.stderr.strip() or finished.stdout.strip()
    return TryLaterError(
        "scheduler-silent",
        f"{program} gave no answer ({finished.exit_code}): {printable(said[-500:])}",
        hint="The run is not affected; ask again later.",
    )


def text_lines(text: bytes) -> list[str]:
    """The lines that say something, without the blanks around them."""
    return [line.strip() for line in text.decode("utf-8", "replace").splitlines() if line.strip()]


def unless(over: str, *words: str) -> tuple[str, ...]:
    """A command that also succeeds where it fails with words that match `over`, an extended regular expression."""
    return ("/bin/sh", "-c", _UNLESS, "hibali", over, *words)


def as_clock(seconds: int) -> str:
    """`H:MM:SS`, never zero: zero asks for no limit at all."""
    minutes, rest = divmod(max(seconds, 1), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def cores_of_a_node(resources: Resources) -> int:
    """How many cores of each node are asked for, at least one."""
    return math.ceil((resources.tasks or 1) * (resources.cores or 1) / (resources.nodes or 1))


def asks_for_cores(resources: Resources) -> bool:
    """Whether anything was said about processes or cores."""
    return resources.tasks is not None or resources.cores is not None


def has_option(resources: Resources, *options: str) -> bool:
    """Whether the site's own directives hold one of these options, which then stands instead of ours."""
    return any(text.startswith(options) for text in resources.directives)


def check_number(text: str, what: str) -> str:
    """Digits, where the system knows only numbers; raises `UsageError`."""
    if not (text.isascii() and text.isdecimal()):
        raise UsageError("bad-number", f"{what} is a number here", about=ascii(text))
    return text
