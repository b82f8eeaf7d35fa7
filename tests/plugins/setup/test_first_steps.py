"""Test the first steps of a new user: `hibali` without arguments, and `init` with and without a terminal."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.services.session import REPOSITORY
from tests.support.terminal import Terminal


def type_line(terminal: Terminal, prompt: str, keys: str) -> None:
    """Wait for the prompt, then type."""
    terminal.until(
        lambda screen: prompt in screen.replace("\n", "").rsplit(":", 2)[-2] + ":" if ":" in screen else False
    )
    terminal.press(keys.encode())


def test_hibali_without_arguments_prints_the_first_command(hibali: Any) -> None:
    first = hibali(exit=2)
    assert b"hibali init" in first.out
    hibali("init", "--yes", exit=0)
    later = hibali(exit=2)
    assert b"hibali doctor this-machine" in later.out
    assert b"hibali init" not in later.out


def test_without_a_terminal_init_asks_nothing_and_a_first_file_arrives(hibali: Any) -> None:
    refused = hibali("init", "--json", exit=2).last
    assert (refused["code"], refused["hint"]) == ("no-terminal", "Without questions: hibali init --yes")
    assert not hibali.home.config.exists()
    *_, receipt = hibali("init", "--yes", "--json", exit=0).lines
    assert (receipt["kind"], receipt["files_moved"], receipt["proof_moved"]) == ("receipt", 1, "digest")
    again = hibali("init", "--yes", exit=0).err.decode()
    [line] = [line for line in again.splitlines() if line.startswith("hibali push")]
    assert "0 files (0 B) moved" in hibali(*line.split()[1:], exit=0).err.decode()
    assert hibali("ls", "this-machine:hibali-first", exit=0).out == b"hello.txt\n"
    assert "here:" not in again
    hibali("init", "--yes", "--here", "/proc/no", exit=3)
    missing = hibali.home.folder / "missing"
    answer = hibali("init", "--yes", "--here", str(missing), "--json", exit=3)
    assert answer.last["hint"].endswith(f"mkdir -p {missing}")
    assert not missing.exists()


def test_the_first_folder_is_not_the_virtual_environment_of_the_quickstart(hibali: Any) -> None:
    quickstart = (REPOSITORY / "docs/quickstart.md").read_text()
    [environment] = set(re.findall(r"python3 -m venv ~/(\S+)", quickstart))
    (hibali.home.home / environment).mkdir()
    hibali("init", "--yes", exit=0)
    assert list((hibali.home.home / environment).iterdir()) == []
    assert (hibali.home.home / "hibali-data/hibali-first/hello.txt").exists()


def test_an_existing_site_named_here_is_kept_and_used(hibali: Any) -> None:
    folder = hibali.home.home / "hibali-data"
    folder.mkdir()
    hibali.home.config.write_text(
        f'version = 1\n[sites.here]\nkind = "local"\ndefault_root = "data"\nroots = {{data = "{folder}"}}\n'
    )
    before = hibali.home.config.read_text()
    hibali("init", "--yes", exit=0)
    assert hibali.home.config.read_text() == before
    assert hibali("ls", "here:hibali-first", exit=0).out == b"hello.txt\n"


def test_a_chosen_ssh_host_becomes_a_site_and_a_first_file_arrives(hibali: Any, ssh_server: Any) -> None:
    folder: Path = hibali.home.folder
    (folder / "config").write_text(
        f"Include {ssh_server.config}\nHost broken\n HostName no.such.host.invalid\n"
    )
    command = hibali.command("init", "--from", "ssh", "--ssh-config", "config")
    terminal = Terminal(command, hibali.env, cwd=folder, columns=160, rows=60)
    type_line(terminal, "or none [none]:", "fra\r")
    terminal.until(lambda screen: "Did you mean far?" in screen)
    terminal.press(b"1 fa\t")
    terminal.until(lambda screen: screen.endswith("1 far"))
    terminal.press(b"\r")
    type_line(terminal, "Where should hibali send a first file?", "broke\t\x15far\r")
    if any(
        shutil.which(program) for program in ("sbatch", "qsub", "oarsub", "bsub")
    ):  # there, too: it is this machine
        type_line(terminal, "Submit the jobs of far to", "n\r")
    assert terminal.end() == 5, terminal.written.decode()  # one of them does not exist
    seen = terminal.written.decode()
    assert "hibali doctor broken" in seen
    assert "verified by sha256 at both ends" in seen, seen
    assert "hibali ls far:hibali-first" in seen
    assert (ssh_server.home / "hibali-first/hello.txt").read_bytes()
    names = {each["name"] for each in hibali("sites", "list", "--json").lines if each["kind"] == "site"}
    assert names == {"broken", "far"}
    leaving = Terminal(
        hibali.command("init", "--from", "ssh", "--ssh-config", "/dev/null"), hibali.env, cwd=folder
    )
    type_line(leaving, "Where should hibali send a first file?", "\x03")
    assert leaving.end() == 130
    assert "interrupted" in leaving.screen()
    assert "again" not in leaving.screen().partition("interrupted")[2]


@pytest.mark.heavy
def test_import_and_doctor_ask_for_confirmation(hibali: Any) -> None:
    folder: Path = hibali.home.folder
    (folder / "config").write_text("Host far\n HostName no.such.host.invalid\n")
    words = ("sites", "import", "ssh", "--ssh-config", "config")
    for keys, taken in (("\r", 0), ("y\r", 1)):
        terminal = Terminal(hibali.command(*words), hibali.env, cwd=folder, columns=120)
        terminal.until(lambda screen: screen.endswith("Add far? [y/N]"))
        terminal.press(keys.encode())
        assert terminal.end() == 0
        assert hibali("sites", "list", "--json").last["count"] == taken
    hibali("sites", "add", "here", "--local", folder, "--scheduler", "direct", "--no-check", exit=0)
    terminal = Terminal(hibali.command("doctor", "here"), hibali.env, cwd=folder, columns=120, rows=40)
    terminal.until(lambda screen: screen.endswith("Also run a test job of one minute at here? [y/N]:"))
    assert b" container " in terminal.written, "the question comes after the steps"
    terminal.press(b"y\r")
    assert terminal.end() == 0
    assert b" and was removed" in terminal.written
    hibali("sites", "add", "lost", "--local", folder / "none", "--scheduler", "lsf", "--no-check", exit=0)
    unable = Terminal(hibali.command("doctor", "lost"), hibali.env, cwd=folder, columns=120, rows=40)
    assert unable.end() == 3
    assert b"Also run" not in unable.written, "a job is offered only where it can run"
