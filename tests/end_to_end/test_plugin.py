"""Test a plugin package with a kind of site, a scheduler and a container: the example of docs/extending.md."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.run_tools import Bench, doing
from tests.schemas import check_line

PLUGIN = Path(__file__).parents[1] / "support" / "plugin"


@pytest.fixture
def with_plugin(hibali: Any, tmp_path: Path) -> Any:
    """Return hibali with the package on PYTHONPATH."""
    shutil.copytree(PLUGIN, tmp_path / "plugin")
    hibali.env["PYTHONPATH"] += os.pathsep + str(tmp_path / "plugin")
    return hibali


def add_box(hibali: Any) -> Path:
    box = hibali.home.folder / "box"
    hibali("sites", "add", "other", "--kind", "box", "--set", f"box.folder={box}", "--no-check", exit=0)
    hibali("sites", "add", "crate", "--box", box, "--no-check", exit=0)
    assert b"--box FOLDER" in hibali("sites", "add", "--help-all", exit=0).out
    return Path(box)


@pytest.mark.heavy
def test_a_kind_of_site_is_added_listed_shown_and_checked(with_plugin: Any) -> None:
    box = add_box(with_plugin)
    assert f'[sites.crate.box]\nfolder = "{box}"\n' in with_plugin.home.config.read_text()
    site = with_plugin("sites", "list", "--json", exit=0).lines[0]
    assert (site["type"], site["own"]) == ("box", {"folder": str(box), "most_files": 1000})
    assert str(box) in with_plugin("sites", "list", exit=0).out.decode()
    assert "own.most_files" in with_plugin("sites", "show", "crate", exit=0).out.decode()
    assert check_line(with_plugin("sites", "check", "crate", "--json", exit=0).last)["problems"] == []


def test_wrong_keys_of_plugins_are_reported_with_their_lines(with_plugin: Any) -> None:
    with_plugin.home.config.write_text("""version = 1
[sites.crate]
kind = "box"
work = "/w"
[sites.crate.box]
foldr = "/b"
most_files = "many"
[sites.here]
kind = "local"
[sites.here.scheduler]
name = "spool"
queue = "Night"
quene = "night"
[sites.here.container]
name = "polite"
niceness = 20
""")
    with_plugin.home.config.chmod(0o600)
    message = with_plugin("sites", "list", "--json", exit=2).last["message"]
    assert message.splitlines() == [
        "7 problems",
        "line 4: sites.crate.work: does not belong to a site of kind box",
        "line 5: sites.crate.box: needs folder: the folder that is the box",
        "line 6: sites.crate.box.foldr: unknown key; did you mean folder?",
        "line 7: sites.crate.box.most_files: must be a whole number",
        "line 12: sites.here.scheduler.queue: 'Night' is not a queue",
        "line 13: sites.here.scheduler.quene: unknown key; did you mean queue?",
        "line 16: sites.here.container.niceness: 20 must be from 1 to 19",
    ]


def test_without_the_package_its_kind_is_an_error_in_the_file(hibali: Any) -> None:
    hibali.home.config.write_text('[sites.crate]\nkind = "box"\n[sites.crate.box]\nfolder = "/b"\n')
    hibali.home.config.chmod(0o600)
    message = hibali("sites", "list", "--json", exit=2).last["message"]
    assert "line 2: sites.crate.kind: 'box' must be one of ssh, s3, local" in message


def test_files_are_pushed_to_and_pulled_from_its_store(with_plugin: Any) -> None:
    box = add_box(with_plugin)
    source = with_plugin.home.folder / "source"
    (source / "below").mkdir(parents=True)
    (source / "a").write_bytes(b"a")
    (source / "below" / "large").write_bytes(os.urandom(20_000_000))
    receipt = with_plugin("push", source, "crate:kept", "--json", exit=0).last
    assert (receipt["files"], receipt["proof_moved"]) == (2, "digest")
    assert (box / "kept" / "below" / "large").read_bytes() == (source / "below" / "large").read_bytes()
    assert with_plugin("push", source, "crate:kept", "--json", exit=0).last["files_moved"] == 0
    with_plugin("pull", "crate:kept", "back", exit=0)
    assert (with_plugin.home.folder / "back" / "below" / "large").stat().st_size == 20_000_000
    assert [line["path"] for line in with_plugin("ls", "crate:kept", "--json").lines[:-1]] == ["a", "below"]


@pytest.mark.heavy
def test_its_command_and_its_options_are_as_those_of_hibali(with_plugin: Any) -> None:
    add_box(with_plugin)
    (with_plugin.home.folder / "source").mkdir()
    (with_plugin.home.folder / "source" / "a").write_bytes(b"a")
    with_plugin("push", "source", "crate:kept", exit=0)
    assert with_plugin("crate", "crate", exit=0).out == b"1 file\n"
    assert b"Count the files of a site of kind box." in with_plugin("--help", exit=0).out
    assert b"hibali help exit-codes" in with_plugin("crate", "--help", exit=0).out
    assert with_plugin("sites", "show", "crate", "--files", exit=0).out == b"1 file\n"
    assert b"most_files" in with_plugin("sites", "show", "crate", exit=0).out
    assert b"--files" in with_plugin("sites", "show", "--help", exit=0).out
    assert b"Did you mean 'crate'?" in with_plugin("crats", exit=2).err


@pytest.mark.heavy
def test_its_scheduler_and_container_run_a_tool(with_plugin: Any) -> None:
    bench = Bench(with_plugin, doing("nice >[OUT]; echo $SPOOL_JOB >>[OUT]"))
    work = bench.folder / "work"
    bench.add_site(
        "here",
        f'kind = "local"\nwork = "{work}"\n[sites.here.scheduler]\nname = "spool"\nqueue = "night"\n'
        '[sites.here.container]\nname = "polite"\nniceness = 7\n[sites.here.limits]\npoll = "1s"',
    )
    shown = with_plugin("sites", "show", "here", exit=0).out.decode()
    assert all(key in shown for key in ("scheduler.queue", "container_own.niceness"))
    facts = with_plugin("sites", "check", "here", "--json", exit=0).last["facts"]
    assert {"setsid", "nice"} <= facts.keys()
    ended = bench.run(bench.answers(), "--wait", exit=0).last
    assert ended["state"] == "SUCCEEDED"
    with_plugin("runs", "collect", ended["id"], "results", exit=0)
    niceness, job = (bench.folder / "results" / "out.txt").read_text().split()
    assert (int(niceness) - os.nice(0), job) == (7, ended["id"])
    script = (work / "runs" / ended["id"] / "job.sh").read_text()
    assert "\n#SPOOL --queue=night\n" in script
    assert "native_job=${SPOOL_JOB:-}\n" in script


def test_the_page_matches_the_example() -> None:
    page = (PLUGIN.parents[2] / "docs" / "extending.md").read_text()
    example = [path.read_text() for path in sorted(PLUGIN.glob("hibali_example/*.py"))]
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 7
    for block in blocks:
        assert any(block in text for text in example), block
