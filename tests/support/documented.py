"""What the documentation tells people to type: sessions with their outputs, and single lines."""

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
class Typed:
    """Commands that are pasted together, and what they print."""

    command: str
    output: str


def sessions(page: Path) -> Iterator[Typed]:
    """The page's `sh` blocks, as they are pasted, each with the `text` block that shows what it prints."""
    command: str | None = None
    for fence in _FENCE.finditer(page.read_text()):
        if fence["word"] == "sh":
            if command is not None:
                yield Typed(command, "")
            command = fence["text"].rstrip("\n")
        elif fence["word"] == "text" and command is not None:
            yield Typed(command, fence["text"])
            command = None
    if command is not None:
        yield Typed(command, "")


def is_as_shown(shown: str, printed: str) -> bool:
    """Whether what was printed is what the page shows, where `...` stands for anything.

    The order of lines is not compared: messages and results come by two streams, and are in order on a terminal only.
    """
    wanted = [_pattern(line) for line in shown.splitlines() if line.strip()]
    there = [line.rstrip() for line in printed.splitlines() if line.strip()]
    return all(any(pattern.fullmatch(line) for line in there) for pattern in wanted) and all(
        any(pattern.fullmatch(line) for pattern in wanted) for line in there
    )


def _pattern(shown: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in shown.rstrip().split(ANYTHING)))


def pages() -> list[Path]:
    """The README and the pages that people read to do something; decisions are about the past."""
    docs = REPOSITORY / "docs"
    return [REPOSITORY / "README.md", *sorted(docs.glob("*.md")), *sorted(docs.glob("troubleshooting/*.md"))]


def calls_of_hibali(page: Path) -> Iterator[list[str]]:
    """The words after `hibali` wherever the page calls it: in blocks and in the midst of sentences, without redirections."""
    text = page.read_text()
    blocks = [fence["text"] for fence in _FENCE.finditer(text) if fence["word"] != "text"]
    blocks += _INLINE.findall(_INDENTED.sub("", _FENCE.sub("", text)))
    blocks += [found[0] for found in _INDENTED.finditer(_FENCE.sub("", text))]
    for block in blocks:
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            yield from calls_in_line(line.strip())


def calls_in_line(line: str) -> Iterator[list[str]]:
    """The words after each `hibali` of a shell line that stands where a command can stand."""
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
        if word == "hibali" and _stands_as_command(words[:place]):
            rest = words[place + 1 :]
            end = next((at for at, each in enumerate(rest) if each in _STOPS), len(rest))
            yield rest[:end]


def _stands_as_command(before: list[str]) -> bool:
    """Whether a command may stand behind these words: variables that are set for it do not count."""
    while before and re.match(r"[A-Z_]+=", before[-1]):
        before = before[:-1]
    return (before[-1] if before else "") in _BEFORE_A_COMMAND
