"""Test the tutorial as written, in an empty home with only Debian's programs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documented_commands import REPOSITORY, is_as_shown, sessions

END = "== the command ended =="


def test_the_summary_block_has_the_same_commands() -> None:
    page = (REPOSITORY / "docs/quickstart.md").read_text()
    [everything] = re.findall(r"^```bash\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    steps = [typed.command for typed in sessions(REPOSITORY / "docs/quickstart.md")]
    assert everything == "\n".join(steps) + "\n"


def test_no_block_to_copy_has_a_prompt() -> None:
    pages = [REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")]
    found = {path.name: re.findall(r"^(?:    )?\$ .*$", path.read_text(), re.MULTILINE) for path in pages}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_the_commands_of_the_tutorial_print_what_it_shows(tmp_path: Path) -> None:
    clone, home = tmp_path / "clone", tmp_path / "home"
    subprocess.run(["git", "clone", "-q", str(REPOSITORY), str(clone)], check=True)
    home.mkdir()
    environment = {
        "HOME": str(home),
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "TMPDIR": str(tmp_path),
    }
    kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    typed = list(sessions(clone / "docs/quickstart.md"))
    assert len(typed) > 10
    with subprocess.Popen(
        ["sh"],
        cwd=clone,
        env=environment | kept,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as shell:
        for each in typed:
            printed = _type(shell, each.command)
            assert is_as_shown(each.output, printed), f"{each.command}\n{printed}\nis not\n{each.output}"


def _type(shell: subprocess.Popen[str], command: str) -> str:
    """Return what the shell prints until the command has ended; the next command finds its exit code in `$?`."""
    assert shell.stdin is not None
    assert shell.stdout is not None
    shell.stdin.write(f"{command}\ncode=$?; echo; echo '{END}'; (exit $code)\n")
    shell.stdin.flush()
    lines: list[str] = []
    while (line := shell.stdout.readline()).rstrip("\n") != END:
        assert line, f"the shell ended at: {command}"
        lines.append(line)
    return "".join(lines)


def install_blocks() -> list[str]:
    """Return the blocks of the README that install hibali."""
    text = (REPOSITORY / "README.md").read_text()
    section = text.partition("\n## Install\n")[2].partition("\n## ")[0]
    return re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


@pytest.mark.heavy
@pytest.mark.timeout(900)
@pytest.mark.parametrize("block", install_blocks(), ids=lambda block: block.split()[0] + str(len(block)))
def test_each_block_that_installs_hibali_works_in_an_empty_home(tmp_path: Path, block: str) -> None:
    clone, home = tmp_path / "clone", tmp_path / "home"
    subprocess.run(["git", "clone", "-q", str(REPOSITORY), str(clone)], check=True)
    home.mkdir()
    kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    path = "/usr/local/bin:/usr/bin:/bin"
    if "pipx" in block:  # where it is no package of the system, as users without root install it
        tools = tmp_path / "tools"
        subprocess.run([sys.executable, "-m", "venv", tools], check=True)
        subprocess.run([tools / "bin/pip", "install", "-q", "pipx"], check=True)
        path = f"{tools}/bin:{path}"
    done = subprocess.run(
        ["sh", "-ec", block],
        cwd=clone,
        env={"HOME": str(home), "PATH": path, "LANG": "C.UTF-8", "TMPDIR": str(tmp_path), **kept},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("hibali ")
