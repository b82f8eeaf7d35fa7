"""Write example invocations, or prompt for their values in a dialogue (`pipelines example --ask`)."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hibali.errors import UsageError
from hibali.files import WholeFile, refuse_existing
from hibali.subprocesses import has_terminal
from hibali.text import printable
from hibali_cli.dialogue import read_line, terminal_as_stdout
from hibali_cli.options import Common
from hibali_cli.output import write_message
from hibali_cli.path_completion import complete_last, complete_path
from hibali_plugins.authoring.example import (
    AskInput,
    ChooseInput,
    Completed,
    Dialogue,
    OfferInputs,
    Unsatisfiable,
    find_entry_problems,
    find_value_conflicts,
    make_example,
    next_step,
    unwrap_for_schema,
)
from registry.catalogue import Catalogue
from registry.invocation import read_typed, write_typed
from registry.pipeline import Input, Pipeline
from registry.problems import Problem

_BACK = "<"
_HELP = f"TAB completes, Enter accepts the [default] or skips, {_BACK} goes back one answer, Ctrl-C quits."
_FILE = Input("file", "file", "File")
_SEPARATORS = re.compile(r"[\s,]+")


def prompt_for_invocation(pipeline: Pipeline, target: Path | None) -> tuple[dict[str, Any], Path | None]:
    """Prompt for the answers on the terminal, and for their target; None is stdout.

    Raises `UsageError` without a terminal, `KeyboardInterrupt` when the user leaves.
    """
    if not has_terminal():
        raise UsageError(
            "no-terminal",
            "questions are not possible: stdin or stderr is not a terminal",
            subject="--ask",
            hint=f"Edit an example instead: hibali pipelines example {pipeline.reference} > invocation.json",
        )
    with terminal_as_stdout():
        try:
            values = ExampleDialogue(pipeline).run()
            while target is not None and os.path.lexists(target):
                text = read_line(f"{printable(str(target))} exists. Replace it? [y/N] ", lambda _: [])
                if text.strip().lower() in {"y", "yes"}:
                    break
                text = read_line("Another file [stdout]: ", lambda begun: complete_path(begun, Path.cwd()))
                target = Path(str(read_typed(_FILE, text))) if text.strip() else None
        except KeyboardInterrupt:
            _print("No file was written.")
            raise
    return values, target


class _UndoError(Exception):
    """The user typed `<`."""


class ExampleDialogue:
    """One dialogue on a terminal; `read` reads a line with a prompt and a completer."""

    def __init__(
        self,
        pipeline: Pipeline,
        read: Callable[[str, Callable[[str], list[str]]], str] = read_line,
    ) -> None:
        self._dialogue = Dialogue(pipeline)
        self._before: list[Dialogue] = []  # the state before each answer
        self._read = read
        self._listed: tuple[str, ...] = ()

    def run(self) -> dict[str, Any]:
        """Prompt until the answers are a valid invocation. Raises `KeyboardInterrupt`, and `UsageError` where no answer can be valid."""
        pipeline = self._dialogue.pipeline
        _print(f"{pipeline.reference}: {printable(' '.join(pipeline.description.split()))}")
        _print(_HELP)
        while not isinstance(step := next_step(self._dialogue), Completed):
            try:
                self._run_step(step)
            except _UndoError:
                self._undo()
            except UsageError as refused:  # the input was not text
                _print(f"  {refused.message}")
        return dict(step.values)

    def _run_step(self, step: AskInput | ChooseInput | OfferInputs | Unsatisfiable) -> None:
        match step:
            case AskInput():
                self._prompt(step)
            case ChooseInput():
                self._choose(step)
            case OfferInputs():
                self._offer(step)
            case Unsatisfiable():
                _show_problems(step.problems)
                if not self._before:
                    raise UsageError(
                        "no-invocation",
                        "; ".join(str(each) for each in step.problems),
                        subject=self._dialogue.pipeline.reference,
                        hint="No invocation can be valid: correct the descriptor.",
                    )
                _print("  The last answer was removed.")
                self._undo()

    def _advance(self, dialogue: Dialogue) -> None:
        self._before.append(self._dialogue)
        self._dialogue = dialogue

    def _undo(self) -> None:
        if self._before:
            self._dialogue = self._before.pop()
        else:
            _print("  This is the first question.")

    def _prompt(self, step: AskInput) -> None:
        tool_input = step.tool_input
        _describe(step)
        if tool_input.is_list:
            value = self._entries(step)
        else:
            text = self._line(f"{tool_input.id}{_shown_default(tool_input)}: ", tool_input)
            value = read_typed(tool_input, text) if text else None
        if value is None:
            if step.can_skip:
                self._advance(self._dialogue.skip(tool_input.id))
            else:
                _print("  This input is required.")
            return
        value = unwrap_for_schema(self._dialogue.pipeline, tool_input, value)
        problems = find_value_conflicts(self._dialogue, tool_input, value)
        _show_problems(problems)
        if not problems:
            if tool_input.kind == "File":
                _note_missing(value)
            self._advance(self._dialogue.answer(tool_input.id, value))

    def _entries(self, step: AskInput) -> list[Any] | None:
        """Read one entry per line until an empty one; None without entries."""
        tool_input, entries = step.tool_input, list[Any]()
        while True:
            hint = _shown_default(tool_input) if not entries else ""
            text = self._line(f"{tool_input.id}, entry {len(entries) + 1}{hint}: ", tool_input)
            if not text:
                return entries or None
            value = read_typed(tool_input, text)
            problems = find_entry_problems(tool_input, value)
            _show_problems(problems)
            if not problems:
                entries.append(value)

    def _choose(self, step: ChooseInput) -> None:
        _print(f"\n{printable(step.reason)}")
        self._table(step.members)
        text = self._line("which: ", [each.id for each in step.members])
        if text in {each.id for each in step.members}:
            self._advance(self._dialogue.request(text))
        else:
            _print(f"  One of: {', '.join(each.id for each in step.members)}")

    def _offer(self, step: OfferInputs) -> None:
        ids = [each.id for each in step.inputs]
        if self._listed != tuple(ids):
            _print("\nOptional inputs:")
            self._table(step.inputs)
            self._listed = tuple(ids)
        text = self._line("set which of them [none]: ", ids)
        named = [each for each in _SEPARATORS.split(text) if each]
        unknown = [each for each in named if each not in ids]
        if unknown:
            _print(f"  Not optional inputs: {', '.join(printable(each) for each in unknown)}")
            return
        dialogue = self._dialogue if named else self._dialogue.close()
        for each in dict.fromkeys(named):
            dialogue = dialogue.request(each)
        self._advance(dialogue)

    def _line(self, prompt: str, subject: Input | Sequence[str]) -> str:
        text = self._read(prompt, partial(_complete, subject)).strip()
        if text == _BACK:
            raise _UndoError
        return text

    def _table(self, inputs: Sequence[Input]) -> None:
        width = max(len(each.id) for each in inputs)
        for each in inputs:
            _print(f"  {each.id:<{width}}  {printable(_kind(each))}: {printable(_one_line(each.name))}")


def _complete(subject: Input | Sequence[str], text: str) -> list[str]:
    if not isinstance(subject, Input):
        return complete_last(text, subject)
    if subject.kind == "File" and not subject.choices:
        return complete_path(text, Path.cwd())
    parts = ["yes", "no"] if subject.kind == "Flag" else [write_typed(each) for each in subject.choices or ()]
    return [part for part in parts if part.startswith(text)]


def _describe(step: AskInput) -> None:
    tool_input = step.tool_input
    reason = f" ({printable(step.reason)})" if step.reason else ""
    _print(f"\n{tool_input.id}: {printable(_one_line(tool_input.name))}{reason}")
    if tool_input.description and tool_input.description != tool_input.name:
        _print(f"  {printable(_one_line(tool_input.description))}")
    _print(
        f"  {printable(_kind(tool_input))}{'; one entry a line, an empty line ends' if tool_input.is_list else ''}"
    )


def _kind(tool_input: Input) -> str:
    """Describe type, limits and choices briefly."""
    parts = ["Integer" if tool_input.integer else tool_input.kind]
    for limit, exclusive, (open_word, closed_word) in (
        (tool_input.minimum, tool_input.exclusive_minimum, ("greater than", "at least")),
        (tool_input.maximum, tool_input.exclusive_maximum, ("less than", "at most")),
    ):
        if limit is not None:
            parts.append(f"{open_word if exclusive else closed_word} {limit:g}")
    if tool_input.choices:
        parts.append("one of " + ", ".join(write_typed(each) for each in tool_input.choices))
    if tool_input.minimum_entries:
        parts.append(f"at least {tool_input.minimum_entries:g} entries")
    if tool_input.maximum_entries:
        parts.append(f"at most {tool_input.maximum_entries:g} entries")
    return f"{'list of ' if tool_input.is_list else ''}{', '.join(parts)}"


def _shown_default(tool_input: Input) -> str:
    if tool_input.default is None:
        return ""
    values = tool_input.default if isinstance(tool_input.default, list) else [tool_input.default]
    return f" [{' '.join(write_typed(each) for each in values)}]"


def _note_missing(value: Any) -> None:
    for each in value if isinstance(value, list) else [value]:
        if ":" not in each.partition("/")[0] and not os.path.lexists(each):  # a SITE:PATH is not checked
            _print(f"  (note: {printable(each)} does not exist on this machine yet)")


def _show_problems(problems: Sequence[Problem]) -> None:
    for each in problems:
        _print(f"  {printable(str(each))}")


def _print(text: str) -> None:
    write_message(text)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def write_example(
    common: Common, pipeline: str, *, complete: bool, ask: bool, output: str | None
) -> int | None:
    """Write an example invocation, or one from a dialogue."""
    if ask and complete:
        raise UsageError("usage", "--ask and --complete cannot be used together")
    found = Catalogue().find(pipeline)
    target = Path(output) if output is not None else None
    if ask:
        invocation, target = prompt_for_invocation(found, target)
    else:
        invocation = make_example(found, complete=complete)
        if target is not None:
            refuse_existing(target, "Choose another name, or use --ask, which can replace it.")
    text = json.dumps(invocation, indent=4) + "\n"
    if target is not None:
        _write(target, text)
        common.output.info(f"Written to {target}.")
    if common.json:
        values = {"name": found.name, "version": found.version, "values": invocation}
        common.output.record("invocation", values)
    elif target is None:
        common.output.text(text)
    return None


def _write(path: Path, text: str) -> None:
    with WholeFile(path) as file:
        file.write(text.encode("ascii"))
        file.commit()
