"""Extract the commands in the documentation: sessions with their outputs, and single lines."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
ANYTHING = "..."
_FENCE = re.compile(r"^```(?P<word>\S*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:^(?: {4}|\t).*\n?|^\n(?= {4}))+", re.MULTILINE)
_INLINE = re.compile(r"`(hibali [^`]*)`")
_STOPS = frozenset({"|", "||", "&&", ";", ">", ">>", "<", "&", "2>", "2>&1", ")"})
_BEFORE_A_COMMAND = frozenset(
    {"", "|", "||", "&&", ";", "until", "while", "if", "do", "!", "then", "time", "exec", "sudo"}
)


@dataclass(frozen=True, slots=True)
class DocumentedSession:
    """Commands of one block, and their output."""

    command: str
    output: str


def sessions(page: Path) -> Iterator[DocumentedSession]:
    """Yield the page's `sh` blocks, each with the `text` block of its output."""
    command: str | None = None
    for fence in _FENCE.finditer(page.read_text()):
        if fence["word"] == "sh":
            if command is not None:
                yield DocumentedSession(command, "")
            command = fence["text"].rstrip("\n")
        elif fence["word"] == "text" and command is not None:
            yield DocumentedSession(command, fence["text"])
            command = None
    if command is not None:
        yield DocumentedSession(command, "")


def is_as_shown(shown: str, printed: str) -> bool:
    """Return whether the output is what the page shows, where `...` matches anything.

    The order of lines is not compared: messages and results use two streams, ordered only on a terminal.
    """
    wanted = [_pattern(line) for line in shown.splitlines() if line.strip()]
    there = [line.rstrip() for line in printed.splitlines() if line.strip()]
    return all(any(pattern.fullmatch(line) for line in there) for pattern in wanted) and all(
        any(pattern.fullmatch(line) for pattern in wanted) for line in there
    )


def _pattern(shown: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in shown.rstrip().split(ANYTHING)))


def pages() -> list[Path]:
    """Return the README and the pages of instructions; decisions describe the past."""
    docs = REPOSITORY / "docs"
    folders = ("", "troubleshooting/", "frameworks/")
    return [
        REPOSITORY / "README.md",
        *(path for each in folders for path in sorted(docs.glob(f"{each}*.md"))),
    ]


def calls_of_hibali(page: Path) -> Iterator[list[str]]:
    """Yield the arguments of each call of `hibali` in the page, in blocks and sentences, without
    redirections."""
    text = page.read_text()
    blocks = [fence["text"] for fence in _FENCE.finditer(text) if fence["word"] != "text"]
    blocks += _INLINE.findall(_INDENTED.sub("", _FENCE.sub("", text)))
    blocks += [found[0] for found in _INDENTED.finditer(_FENCE.sub("", text))]
    for block in blocks:
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            yield from calls_in_line(line.strip())


def calls_in_line(line: str) -> Iterator[list[str]]:
    """Yield the arguments of each `hibali` in a shell line that is in the position of a command."""
    if not re.search(r"\bhibali\b", line):
        return
    for inner in re.findall(r"\$\(([^()]*)\)", line):
        yield from calls_in_line(inner)
    lexer = shlex.shlex(re.sub(r"\$\([^()]*\)", "WORD", line), posix=True, punctuation_chars=";&|<>()")
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:  # prose, or output with an apostrophe
        return
    for place, word in enumerate(words):
        if word == "hibali" and _is_command(words[:place]):
            rest = words[place + 1 :]
            end = next((at for at, each in enumerate(rest) if each in _STOPS), len(rest))
            yield rest[:end]


def _is_command(before: list[str]) -> bool:
    """Return whether a command may follow these words; variables set for it are ignored."""
    while before and re.match(r"[A-Z_]+=", before[-1]):
        before = before[:-1]
    return (before[-1] if before else "") in _BEFORE_A_COMMAND
