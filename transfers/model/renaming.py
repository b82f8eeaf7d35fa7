"""Read the rules of `--rename`, and rewrite paths by them in another process.

A regular expression can need exponential time for a short name, in which Python handles no signal. The other process
(`transfers.model.rewriting`) ends after some seconds of CPU time for one batch.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import signal
import sys
from collections.abc import Sequence
from typing import cast

from hibali.errors import HibaliError, TryLaterError, UsageError
from hibali.subprocesses import Process
from hibali.text import counted
from transfers.model.rewriting import CPU_SECONDS, TOO_MUCH, Renaming

BATCH = 1_000  # paths that are rewritten at a time
_PROGRAM = "from transfers.model.rewriting import main; main()"
_DELIMITERS = "/|,#:;!@%~"
_EXPECTED = (
    "it is written s/PATTERN/REPLACEMENT/, such as 's/sub-/s/'"  # without a backslash, which messages escape
)


def read_renaming(text: str) -> Renaming:
    r"""Read `s/PATTERN/REPLACEMENT/`, with the flags `g` and `i` of sed, any of several delimiters, or without `s` before a slash.

    >>> read_renaming(r"sub-(\d+)/s\1/").pattern
    'sub-(\\d+)'
    >>> read_renaming("s|raw/|&old/|g").replacement
    '\\g<0>old/'

    Raises:
        UsageError: it is not such a rule, or its pattern or replacement is not valid.
    """
    if not isinstance(text, str):  # from Python
        raise _invalid(repr(text), _EXPECTED)
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as problem:
        raise _invalid(ascii(text), f"no path has such a character: {problem.reason}") from None
    given = len(text) > 1 and text[0] == "s" and text[1] in _DELIMITERS
    mark, rest = (text[1], text[2:]) if given else ("/", text)
    part = rf"((?:\\.|[^\\{mark}])*)"  # no mark is special in a set of characters
    found = re.fullmatch(rf"{part}[{mark}]{part}[{mark}]([gi]*)", rest, re.DOTALL)
    if found is None:
        raise _invalid(text, f"{_EXPECTED}; a {mark} in it needs a backslash before it")
    if not found[1]:
        raise _invalid(text, f"the pattern is empty: {_EXPECTED}")
    rule = Renaming(found[1], _template(found[2], mark), "g" in found[3], "i" in found[3])
    try:
        names = {number: name for name, number in rule.compiled().groupindex.items()}
        groups = range(1, rule.compiled().groups + 1)
        # the replacement is checked without a use of the pattern, which may take long
        alike = "".join(f"(?P<{names[each]}>)" if each in names else "()" for each in groups)
        re.sub(alike, rule.replacement, "")
    except (re.error, IndexError, OverflowError, RecursionError) as problem:
        raise _invalid(text, f"not a valid regular expression or replacement: {problem}") from None
    return rule


def _template(replacement: str, mark: str) -> str:
    """Return the replacement as `re.sub` takes it: `&` is the whole match, as in sed."""

    def changed(found: re.Match[str]) -> str:
        if found[0] == "&":
            return r"\g<0>"
        return found[1] if found[1] in {mark, "&"} else found[0]

    return re.sub(r"\\(.)|&", changed, replacement, flags=re.DOTALL)


def _invalid(text: str, reason: str) -> UsageError:
    return UsageError("bad-rename", reason, subject=f"--rename {text}")


class Rewriting:
    """A process that rewrites paths by rules, one after the other; close it."""

    def __init__(self, rules: Sequence[str]) -> None:
        """Start it. Raises `UsageError` for an invalid rule."""
        self._text = " ".join(f"--rename {rule}" for rule in rules)
        read = [read_renaming(rule) for rule in rules]
        self._process = Process([sys.executable, "-P", "-c", _PROGRAM])
        self._answers = io.BufferedReader(cast("io.RawIOBase", self._process.stdout))
        self._send(read)

    def rewrite(self, paths: Sequence[bytes]) -> list[bytes]:
        """Return the new paths, of which some may be no safe ones; one longer than `MOST_BYTES` may be cut.

        Raises:
            UsageError: a rule needs too much time or memory.
            TryLaterError: the process was killed.
        """
        self._send([path.decode("utf-8", "surrogateescape") for path in paths])
        line = self._answers.readline()
        if not line.endswith(b"\n"):
            raise self._ended(len(paths))
        return [path.encode("utf-8", "surrogateescape") for path in json.loads(line)]

    def _send(self, message: object) -> None:
        content = memoryview(json.dumps(message).encode("ascii") + b"\n")
        with contextlib.suppress(BrokenPipeError):  # it has ended, which the reader notes
            while content:
                content = content[self._process.stdin.write(content) :]

    def _ended(self, count: int) -> HibaliError:
        code = self._process.end()
        if code not in {-signal.SIGPROF, TOO_MUCH}:
            return TryLaterError(
                "worker-lost",
                "the process that rewrites names was killed",
                hint="Run the same command again.",
            )
        return UsageError(
            "rename-too-slow",
            f"the rule needs more than {CPU_SECONDS:g} s or 1 GiB for {counted(count, 'name')}",
            subject=self._text,
            hint="Repetitions inside repetitions, such as (a+)+, can take unlimited time: write a simpler pattern.",
        )

    def close(self) -> None:
        """End it."""
        self._process.end(1.0)
