"""Build shell text from an author's template and untrusted values (S8)."""

from __future__ import annotations

import re
import shlex

from hibali.errors import UsageError
from hibali.text import printable

_SAFE = re.compile(r"[A-Za-z0-9_./:=@%+,-]*")
_SAFE_PATTERN = re.compile(r"[A-Za-z0-9_./:=@%+,*?\[\]-]*")
_PLAIN_SEPARATOR = re.compile(r"""(?:[A-Za-z0-9_./:=@%+, \t-]|\\[^\n]|'[^'\n]*'|"[^"$`\\\n]*")*""")
_QUIET_SEPARATOR = re.compile(r"[A-Za-z0-9_./:=@%+, -]*")
_RESERVED = frozenset(
    [
        "if",
        "then",
        "elif",
        "else",
        "fi",
        "do",
        "done",
        "case",
        "esac",
        "while",
        "until",
        "for",
        "select",
        "function",
        "in",
        "time",
        "coproc",
    ]
)
_SHELLS = {
    f"{folder}{name}": name
    for name in ("sh", "bash")
    # in the last one Docker's image of bash has it
    for folder in (
        "",
        "/bin/",
        "/usr/bin/",
        "/usr/local/bin/",
    )
}
# Parts of the word after `<<` that hibali reads as a shell does: without blanks, expansions and nested quotes.
_DELIMITER = re.compile(
    r"""(?:[A-Za-z0-9_.:=@%+,!-]|\\[A-Za-z0-9_]|'[A-Za-z0-9_.:=@%+,!-]*'|"[A-Za-z0-9_.:=@%+,!-]*")*"""
)
_WORD_BREAKS = frozenset(" \t\n;&|()<>")
_SINGLE, _DOUBLE, _ANSI, _BACKTICK = "'", '"', "$'", "`"
_COMMAND, _PARENTHESIS, _BRACE, _COMMENT, _DOCUMENT = "$(", "(", "${", "#", "<<"
_ARITHMETIC = "(("


def read_shell(path: str) -> str:
    """Return `sh` or `bash` for a descriptor's `shell`; raises `UsageError` for any other path."""
    found = _SHELLS.get(path)
    if found is None:
        raise UsageError(
            "unknown-shell",
            "the shell must be sh or bash in a system folder",
            subject=printable(path),
            hint="Set `shell` to /bin/sh or /bin/bash in the descriptor.",
        )
    return found


class ShellText:
    """A script for sh or bash, built from the left; it tracks the author's quoting.

    An author's text is not changed. A value becomes a quoted word of its own; where the author's text
    has opened quotes, backticks, `$( )`, `${ }`, a comment or a here-document, quoting would not hold, so there
    a value may only have the characters `[A-Za-z0-9_./:=@%+,-]`. (POSIX.1-2024, Shell Command Language, 2.2, 2.3, 2.7.4.)
    Where the author's text cannot be parsed reliably, values are refused.
    """

    def __init__(self, shell: str = "sh") -> None:
        """`shell` is `sh` or `bash`, as `read_shell` returns it."""
        self._has_ansi_quotes = shell == "bash"
        self._pieces: list[str] = []
        self._contexts: list[str] = []
        self._previous = "\n"
        self._escaped = False
        self._before_escape = ("\n", 0)
        self._angles = 0
        self._delimiter: str | None = None
        self._raw_delimiter = ""
        self._is_unreliable = False
        self._documents: list[tuple[str, bool]] = []
        self._strip_tabs = False
        self._line = ""
        self._line_has_value = False

    def __str__(self) -> str:
        return "".join(self._pieces)

    def add_author_text(self, text: str) -> None:
        """Append text of the descriptor unchanged."""
        self._pieces.append(text)
        for character in text:
            self._read(character)

    def add_value(
        self, value: str, subject: str, *, before: str = "", has_own_wildcards: bool = False
    ) -> None:
        """Append a value as one word or a part of one; `before` is the author's character that follows.

        With `has_own_wildcards`, wildcards in it are the author's, who could have written them there. Raises `UsageError` where the value cannot be quoted safely.
        """
        if self._is_plain():
            self._add_quietly(_quote(value, self._previous, before))
            return
        location = self._describe()
        if self._is_unreliable:
            raise _unquotable(subject, location, "no value can be inserted there")
        names_end = self._delimiter is not None or self._angles == 2
        if names_end or (self._previous == "$" and self._expands()):
            raise _unquotable(subject, location, "no value can be inserted there")
        safe = _SAFE_PATTERN if has_own_wildcards and not self._escaped else _SAFE
        if not safe.fullmatch(value) or (self._escaped and (not value or self._top() == _ANSI)):
            raise _unquotable(
                subject, location, "there a value can only have ASCII letters, digits and _./:=@%+,-"
            )
        if value:
            self._add_quietly(value)
        elif self._splits_words():
            self._add_quietly("''")

    def add_separator(self, separator: str, subject: str) -> None:
        """Append the author's separator of list items, which must not end the command."""
        if self._is_plain():
            if _PLAIN_SEPARATOR.fullmatch(separator):
                self.add_author_text(separator)
            else:
                self._add_quietly(shlex.quote(separator))
        elif _QUIET_SEPARATOR.fullmatch(separator) and not self._is_unreliable:
            self.add_author_text(separator)
        else:
            raise _unquotable(subject, self._describe(), "the separator of the list cannot be used there")

    def drop_space(self) -> None:
        """Remove one space at the end: that before the key of an absent input."""
        if self._pieces and self._pieces[-1].endswith(" ") and self._previous == " ":
            self._pieces[-1] = self._pieces[-1][:-1]
            self._line = self._line.removesuffix(" ")

    def _add_quietly(self, text: str) -> None:
        """Append text that does not change the quoting state."""
        self._pieces.append(text)
        self._escaped = False
        self._angles = 0
        self._previous = "x"
        self._line += text
        self._line_has_value = True

    def _top(self) -> str:
        return self._contexts[-1] if self._contexts else ""

    def _is_plain(self) -> bool:
        return (
            not self._contexts
            and not self._escaped
            and self._previous != "$"
            and self._delimiter is None
            and self._angles != 2
            and not self._is_unreliable
        )

    def _splits_words(self) -> bool:
        """Return whether an unquoted empty text would vanish: in a command substitution, outside of its quotes."""
        return self._top() in {_COMMAND, _PARENTHESIS, _BACKTICK} and not self._is_arithmetic()

    def _is_arithmetic(self) -> bool:
        """Return whether this is inside `$(( ))`, and not in a command substitution inside it."""
        for context in reversed(self._contexts):
            if context in {_ARITHMETIC, _COMMAND, _BACKTICK}:
                return context == _ARITHMETIC
        return False

    def _expands(self) -> bool:
        return self._top() not in {_SINGLE, _ANSI, _COMMENT}

    def _describe(self) -> str:
        if self._is_unreliable:
            return "after a here-document whose end hibali cannot determine"
        if self._delimiter is not None or self._angles == 2:
            return "as the word that ends a here-document"
        if self._escaped:
            return "after a backslash"
        names = {
            _SINGLE: "inside single quotes",
            _DOUBLE: "inside double quotes",
            _ANSI: "inside $' '",
            _BACKTICK: "inside backticks",
            _COMMAND: "inside $( )",
            _PARENTHESIS: "inside $( )",
            _ARITHMETIC: "inside $(( ))",
            _BRACE: "inside ${ }",
            _COMMENT: "inside a comment",
            _DOCUMENT: "inside a here-document",
        }
        return names.get(self._top(), "after a $")

    def _read(self, character: str) -> None:
        if self._top() == _DOCUMENT:
            self._read_document(character)
            return
        if self._delimiter is not None or (self._angles == 2 and character != "<"):
            if self._read_delimiter(character):
                return
        elif self._escaped:
            self._escaped = False
            if character == "\n" and self._top() != _ANSI:  # the shell removes both characters
                self._previous, self._angles = self._before_escape
            else:
                if character == "'" and self._top() == _ANSI and not self._has_ansi_quotes:
                    self._is_unreliable = True  # a sh older than POSIX.1-2024 ends $'...' there
                self._previous = "x"
            return
        before = self._previous, self._angles
        self._angles = self._angles + 1 if character == "<" and self._opens_documents() else 0
        self._read_context(character)
        if self._escaped:
            self._before_escape = before
        self._previous = "x" if character == self._previous == "$" else character  # `$$` is a word of its own

    def _read_context(self, character: str) -> None:
        top = self._top()
        if top == _COMMENT:
            if character != "\n":
                return
            self._contexts.pop()
            top = self._top()
        if top == _SINGLE:
            if character == "'":
                self._contexts.pop()
        elif character == "\\":
            self._escaped = True
        elif top == _ANSI:
            if character == "'":
                self._contexts.pop()
        elif character == "`":
            self._read_backtick()
        elif top == _DOUBLE and character == '"':
            self._contexts.pop()
        elif self._previous == "$" and character in "({":
            self._contexts.append("$" + character)
        elif top != _DOUBLE:
            self._read_unquoted(character)

    def _read_unquoted(self, character: str) -> None:
        top = self._top()
        if character == "'":
            self._contexts.append(_ANSI if self._previous == "$" else _SINGLE)
        elif character == '"':
            self._contexts.append(_DOUBLE)
        elif character == "(" and self._contexts:
            opened = top == _COMMAND and self._previous == "("  # nothing between the two of `$((`
            self._contexts.append(_ARITHMETIC if opened else _PARENTHESIS)
        elif (character == ")" and top in {_COMMAND, _PARENTHESIS, _ARITHMETIC}) or (
            character == "}" and top == _BRACE
        ):
            self._contexts.pop()
        elif character == "#" and top != _BRACE and self._previous in _WORD_BREAKS:
            self._contexts.append(_COMMENT)
        elif character == "\n" and self._documents:
            self._contexts.append(_DOCUMENT)
            self._line, self._line_has_value = "", False

    def _read_backtick(self) -> None:
        """Handle a backtick: the second one closes every quote and bracket opened since the first."""
        if _BACKTICK in self._contexts:
            del self._contexts[self._contexts.index(_BACKTICK) :]
        else:
            self._contexts.append(_BACKTICK)

    def _opens_documents(self) -> bool:
        quoting = {_SINGLE, _DOUBLE, _ANSI, _BRACE, _COMMENT}
        return self._top() not in quoting and not self._is_arithmetic()

    def _read_delimiter(self, character: str) -> bool:
        """Read the word after `<<`; False when the character is not part of it."""
        if self._delimiter is None:
            self._delimiter, self._raw_delimiter, self._angles = "", "", 0
            self._strip_tabs = character == "-"
            if character == "-":
                return True
        if character in " \t" and not self._raw_delimiter:
            return True
        if character in _WORD_BREAKS:
            self._is_unreliable |= not _DELIMITER.fullmatch(self._raw_delimiter)
            self._documents.append((self._delimiter, self._strip_tabs))
            self._delimiter = None
            return False
        self._raw_delimiter += character
        if character not in "'\"\\":
            self._delimiter += character
        return True

    def _read_document(self, character: str) -> None:
        if character != "\n":
            self._line += character
            return
        if (len(self._line) - len(self._line.rstrip("\\"))) % 2:
            # A line that continues cannot end the document, unless its word is quoted; shells differ in the joined line.
            self._is_unreliable = True
        delimiter, strip_tabs = self._documents[0]
        line = self._line.lstrip("\t") if strip_tabs else self._line
        if line == delimiter:
            if self._line_has_value:
                raise _unquotable("", "inside a here-document", "a value would end it")
            del self._documents[0]
            if not self._documents:
                self._contexts.pop()
        self._line, self._line_has_value = "", False
        self._previous = "\n"


def _quote(value: str, previous: str, following: str) -> str:
    """Quote one word, also where it would be an assignment, a reserved word, a home folder, or the number of a redirection."""
    quoted = shlex.quote(value)
    special = (
        "=" in value or value in _RESERVED or previous == "~" or (value.isdigit() and following in {"<", ">"})
    )
    return f"'{value}'" if quoted == value and special else quoted


def _unquotable(subject: str, location: str, rule: str) -> UsageError:
    return UsageError(
        "unquotable-value",
        f"the command line of this pipeline uses this value {location}; {rule}",
        subject=subject,
        hint="Give another value, or ask the pipeline's author to remove the quotes around the value-key.",
    )
