"""Test `pipelines example --ask` on a real terminal."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from registry.catalogue import Catalogue
from tests.properties.descriptors import make_document, make_input
from tests.support.terminal import Terminal

LINE = "tool [INFILE] [FRACTION] [MODE] [ROBUST] [SEEDS]"
INPUTS = (
    make_input("infile", "File", description="The image."),
    make_input("fraction", "Number", minimum=0, maximum=1, default_value=0.5),
    make_input("mode", value_choices=["fast", "thorough"], optional=True),
    make_input("robust", "Flag", optional=True, command_line_flag="-R", requires_inputs=["seeds"]),
    make_input("seeds", "Number", list=True, integer=True, optional=True),
)


@pytest.fixture
def folder(hibali_home: Any) -> Path:
    """Return the current folder of the user, with a pipeline in the catalogue."""
    Catalogue().add(json.dumps(make_document(LINE, *INPUTS)).encode())
    folder = Path(hibali_home.folder)
    (folder / "scans").mkdir()
    (folder / "scans/a\x1b[2Jhostile\nname.nii").touch()
    return folder


def open_dialogue(hibali: Any, *words: str, **more: Any) -> Terminal:
    command = hibali.command("pipelines", "example", "tool", "--ask", *words)
    return Terminal(command, hibali.env, cwd=Path(hibali.home.folder), **more)


def type_line(terminal: Terminal, prompt: str, keys: str) -> None:
    """Wait for the prompt, then type."""
    terminal.until(lambda screen: screen.splitlines()[-1].startswith(prompt) if screen else False)
    terminal.press(keys.encode())


def test_answers_are_checked_at_once_and_yield_a_valid_invocation(hibali: Any, folder: Path) -> None:
    terminal = open_dialogue(hibali, "-o", "made.json")
    type_line(terminal, "infile:", "\r")
    terminal.until(lambda screen: "This input is required" in screen)
    type_line(terminal, "infile:", "sc\t")
    terminal.until(lambda screen: screen.endswith("infile: scans/"))
    terminal.press(b"a\t")
    terminal.until(lambda screen: screen.endswith('hostile\\nname.nii"'))
    terminal.press(b"\r")
    type_line(terminal, "fraction [0.5]:", "1.5\r")
    terminal.until(lambda screen: "must be at most 1" in screen)
    type_line(terminal, "fraction [0.5]:", "\r")
    type_line(terminal, "set which of them", "robust mode\r")
    type_line(terminal, "seeds, entry 1:", "half\r")
    terminal.until(lambda screen: "must be a whole number" in screen)
    type_line(terminal, "seeds, entry 1:", "3\r")
    type_line(terminal, "seeds, entry 2:", "4\r")
    type_line(terminal, "seeds, entry 3:", "\r")
    type_line(terminal, "mode:", "th\t\r")
    assert terminal.end() == 0, terminal.screen()
    assert b"\x1b[2J" not in terminal.written
    assert json.loads((folder / "made.json").read_text()) == {
        "infile": "scans/a\x1b[2Jhostile\nname.nii",
        "mode": "thorough",
        "robust": True,
        "seeds": [3, 4],
    }
    hibali("pipelines", "validate", _descriptor(folder), "made.json", exit=0, cwd=folder)


def _descriptor(folder: Path) -> Path:
    path = folder / "descriptor.json"
    path.write_text(json.dumps(make_document(LINE, *INPUTS)))
    return path


def test_an_answer_is_withdrawn_and_a_file_is_not_replaced_without_confirmation(
    hibali: Any, folder: Path
) -> None:
    (folder / "mine.json").write_text("mine")
    terminal = open_dialogue(hibali, "-o", "mine.json")
    type_line(terminal, "infile:", "one.nii\r")
    type_line(terminal, "fraction [0.5]:", "<\r")
    type_line(terminal, "infile:", "two.nii\r")
    type_line(terminal, "fraction [0.5]:", "0.25\r")
    type_line(terminal, "set which of them", "\r")
    type_line(terminal, "mine.json exists. Replace it?", "\r")
    type_line(terminal, "Another file [stdout]:", "other.json\r")
    assert terminal.end() == 0
    assert (folder / "mine.json").read_text() == "mine"
    assert json.loads((folder / "other.json").read_text()) == {"infile": "two.nii", "fraction": 0.25}


def test_results_go_to_stdout_and_questions_to_the_terminal(hibali: Any, folder: Path) -> None:
    with (folder / "out").open("wb") as stdout:
        terminal = open_dialogue(hibali, stdout=stdout)
        type_line(terminal, "infile:", "scans/\t")
        terminal.until(lambda screen: screen.endswith('.nii"'))
        terminal.press(b"\r")
        type_line(terminal, "fraction [0.5]:", "\r")
        type_line(terminal, "set which of them", "\r")
        assert terminal.end() == 0
    assert json.loads((folder / "out").read_text()) == {"infile": "scans/a\x1b[2Jhostile\nname.nii"}


@pytest.mark.parametrize("keys", [b"\x03", b"\x04"])
def test_leaving_the_dialogue_writes_no_file(hibali: Any, folder: Path, keys: bytes) -> None:
    terminal = open_dialogue(hibali, "-o", "made.json")
    type_line(terminal, "infile:", "one.nii\r")
    terminal.until(lambda screen: screen.endswith("fraction [0.5]:"))
    terminal.press(keys)
    assert terminal.end() == 130
    assert "No file was written" in terminal.screen()
    assert not (folder / "made.json").exists()


@pytest.mark.usefixtures("folder")
def test_without_a_terminal_the_alternative_command_is_shown(hibali: Any) -> None:
    answer = hibali("pipelines", "example", "tool", "--ask", "--json", exit=2)
    assert answer.last["code"] == "no-terminal"
    assert "hibali pipelines example tool@1.0 > invocation.json" in answer.last["hint"]
    hibali("pipelines", "example", "tool", "-o", "x.json", exit=0)
    assert (
        hibali("pipelines", "example", "tool", "-o", "x.json", "--json", exit=2).last["code"] == "file-exists"
    )


@pytest.mark.usefixtures("folder")
def test_interrupted_questions_do_not_mention_resuming(hibali: Any) -> None:
    terminal = open_dialogue(hibali)
    terminal.until(lambda screen: re.search(r"[]:?>]\s*$", screen) is not None)
    terminal.press(b"\x03")
    assert terminal.end(15) == 130
    assert "interrupted" in terminal.screen()
    assert "again" not in terminal.screen().partition("interrupted")[2]
