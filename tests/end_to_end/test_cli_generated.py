"""Test that man pages and completions match the commands, and that the programs that read them accept them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

import hibali
from docs.tools.api_page import python_page
from docs.tools.generate import generated_files, settings_page, stale_files, write_files
from docs.tools.man_pages import escape
from hibali_cli.help_text import EXIT_STATUS
from tests.support.folders import describes_all
from tests.support.requirements import skip_or_fail

CLONE = Path(__file__).resolve().parents[2]
BASH_COMPLETION = shlex.quote(f"{CLONE}/completions/hibali.bash")  # a clone may be in any folder
PAGES = sorted((CLONE / "man").glob("*.1"))  # they are those that the commands generate: see the first test


@describes_all
def test_no_generated_file_in_the_clone_is_stale() -> None:
    assert stale_files(CLONE) == []


def test_stale_missing_and_obsolete_files_are_reported(tmp_path: Path) -> None:
    write_files(tmp_path)
    assert stale_files(tmp_path) == []
    (tmp_path / "man" / "hibali.1").write_text("old")
    (tmp_path / "man" / "hibali-gone.1").write_text("old")
    (tmp_path / "completions" / "_hibali").unlink()
    assert stale_files(tmp_path) == ["completions/_hibali", "man/hibali-gone.1", "man/hibali.1"]


def test_generated_files_do_not_depend_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    before = generated_files()
    monkeypatch.setenv("COLUMNS", "31")
    monkeypatch.setenv("LINES", "7")
    assert generated_files() == before


def test_every_page_has_its_sections_and_codes() -> None:
    wanted = ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "FILES", "ENVIRONMENT", "EXAMPLES"]
    assert len(PAGES) > 90
    for page in PAGES:
        text = page.read_text()
        sections = [line[4:] for line in text.splitlines() if line.startswith(".SH ")]
        assert [section for section in sections if section != "COMMANDS"] == wanted, page
        for code in EXIT_STATUS:
            assert f"\n.B {code}\n" in text, page
        assert "\n\n" not in text, page


def test_groff_reports_no_warnings() -> None:
    groff = shutil.which("groff")
    if groff is None:
        skip_or_fail("groff is not installed")
    done = subprocess.run([groff, "-ww", "-man", "-Tutf8", "-z", *PAGES], capture_output=True, check=True)
    assert done.stderr == b""


def test_roff_is_escaped() -> None:
    assert escape(".TH it's -x \\n") == "\\&.TH it\\(aqs \\-x \\en"
    assert escape("é") == "\\[u00E9]"


@pytest.mark.parametrize(
    ("shell", "name"), [("bash", "hibali.bash"), ("zsh", "_hibali"), ("fish", "hibali.fish")]
)
def test_shells_can_read_their_completions(shell: str, name: str) -> None:
    if shutil.which(shell) is None:
        skip_or_fail(f"{shell} is not installed")
    done = subprocess.run([shell, "-n", str(CLONE / "completions" / name)], check=False)
    assert done.returncode == 0


def test_bash_completes_commands(tmp_path: Path) -> None:
    script = (
        f"source {BASH_COMPLETION}; COMP_LINE='hibali sites a'; COMP_POINT=14; "
        "_hibali_completion hibali; echo ${COMPREPLY[*]}"
    )
    path = f"{Path(os.sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": path, "HOME": str(tmp_path)},
    )
    assert done.stdout.split() == ["add"]


def test_the_page_of_the_python_api_describes_every_public_name() -> None:
    page = python_page()
    for name in set(dir(hibali)) - {"__version__"}:
        assert f"`hibali.{name}`" in page
    assert "hibali.sites.add(name: str, table: Mapping[str, Any]" in page
    assert "## `hibali.Run`" in page
    assert "hibali.Run.wait" in page
    assert "checksum: Compare by sha256 at both ends instead of by size and time." in page
    for name in re.findall(r"see `(\w+)`", page):
        assert f"## `{name}`" in page or f"## `hibali.{name}`" in page
    assert set(re.findall(r"## `(\w+)`", page)) <= {"ShareOptions"}  # of the module hibali.shares


def test_the_settings_page_describes_every_key() -> None:
    page = settings_page()
    assert "| `persist` | `10m` | how long a login is kept" in page
    assert "## `[sites.NAME.reached_from.NAME]`" in page
    assert "- `s3`: `s3`\n" in page
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) > 100
    assert all(len(row) == 3 and len(row[2]) > 3 for row in rows)
