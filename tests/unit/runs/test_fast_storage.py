"""Test fast storage in a job, with a real shell: copying there and back, and cleaning up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hibali.config.model import Site, Tier
from hibali.config.settings import SettingsError, parse_settings
from hibali.errors import UsageError
from runs.containers.base import load_container
from runs.fast_storage import NOTHING_FAST, Fast, FastOptions, check_fast, choose_fast_storage
from runs.model import Input
from runs.schedulers.base import JobVariables, load_scheduler
from runs.script import job_script, start_script
from tests.support.waiting import wait_for

RUN = "20260102-030405-0a1b2c3d"
HOSTILE = "-n $(touch pwned) 'a\"b\n*.txt"
TIERS = {"local": Tier("$FAST"), "burst": Tier("$FAST/burst", "#BB create name=x")}


class Job:
    """The folder of a run with a job, and a node with fast storage."""

    def __init__(self, folder: Path, start: str, fast: Fast, *inputs: Input) -> None:
        self.folder = folder / RUN
        self.node = folder / "node"
        (self.node / "burst").mkdir(parents=True)
        (self.folder / "work").mkdir(parents=True)
        (self.folder / "job.sh").write_text(job_script(RUN, (), JobVariables()))
        (self.folder / "start").write_text(start_script((), start))
        (self.folder / "fast.sh").write_text(fast.script(inputs))

    def start(self, **environment: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["/bin/sh", self.folder / "job.sh", "7"],
            cwd=self.folder,
            env={**os.environ, "FAST": str(self.node), **environment},
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def execute(self, **environment: str) -> int:
        process = self.start(**environment)
        process.communicate(timeout=60)
        return process.returncode

    @property
    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "exit.json").read_text())
        return found

    def remaining_names(self) -> list[str]:
        return sorted(path.name for path in self.node.rglob("*"))


def an_input(number: int, source: Path, name: str = "name") -> Input:
    return Input("in", number, "text", name, source=str(source))


def test_inputs_are_copied_to_the_node_and_removed_after_the_run(tmp_path: Path) -> None:
    one, tree = tmp_path / HOSTILE, tmp_path / "tree"
    one.write_text("content")
    tree.mkdir()
    (tree / "a").write_text("1")
    (tree / "link").symlink_to("a")
    fast = Fast({0: "local", 1: "burst"}, tiers=TIERS)
    inputs = [an_input(0, one, HOSTILE), an_input(1, tree)]
    moved = fast.inputs_in(str(tmp_path / RUN), inputs)
    script = "cat ../fast/0/* >read; ls -l ../fast/1/name >listed; readlink ../fast/0 ../fast/1 >where"
    job = Job(tmp_path, script, fast, *inputs)
    assert job.execute() == 0
    assert (job.folder / "work" / "read").read_text() == "content"
    assert "link -> a" in (job.folder / "work" / "listed").read_text()
    where = (job.folder / "work" / "where").read_text().splitlines()
    assert where[0].startswith(f"{job.node}/hibali-{RUN}-")
    assert where[1].startswith(f"{job.node}/burst/hibali-{RUN}-")
    assert moved[0].source == f"{job.folder}/fast/0/{HOSTILE}"
    assert job.remaining_names() == ["burst"]
    assert not (job.folder / "fast").exists()
    assert not list(tmp_path.rglob("pwned"))


@pytest.mark.parametrize("code", [0, 3])
def test_outputs_are_copied_back_even_if_the_tool_fails(tmp_path: Path, code: int) -> None:
    start = (
        f"pwd -P >where; cat config >out; mkdir -p deep; echo x >deep/y; ln -s /etc/passwd leak; exit {code}"
    )
    job = Job(tmp_path, start, Fast(work="local", tiers=TIERS))
    (job.folder / "work" / "config").write_text("given")
    assert job.execute() == code
    work = job.folder / "work"
    assert (work / "out").read_text() == "given"
    assert (work / "deep" / "y").read_text() == "x\n"
    assert (work / "leak").is_symlink()
    assert str(job.node) in (work / "where").read_text()
    assert job.record["code"] == code
    assert job.remaining_names() == ["burst"]


@pytest.mark.parametrize("whom", [os.kill, os.killpg])
def test_outputs_are_copied_back_after_a_signal(tmp_path: Path, whom: Any) -> None:
    job = Job(tmp_path, "echo half >out; exec sleep 60", Fast(work="local", tiers=TIERS))
    process = job.start()
    out = job.folder / "fast" / "work" / "out"
    wait_for(lambda: out.exists() and out.read_text() == "half\n")
    whom(process.pid, signal.SIGTERM)
    process.communicate(timeout=60)
    assert (job.folder / "work" / "out").read_text() == "half\n"
    assert (job.record["code"], job.record["signal"]) == (143, "TERM")
    assert job.remaining_names() == ["burst"]


@pytest.mark.heavy  # there is a grace period
def test_a_tool_that_ignores_a_signal_is_killed(tmp_path: Path) -> None:
    start = "trap '' TERM; echo half >out; while :; do sleep 1; done"
    job = Job(tmp_path, start, Fast(work="local", tiers=TIERS))
    process = job.start()
    out = job.folder / "fast" / "work" / "out"
    wait_for(lambda: out.exists() and out.read_text() == "half\n")
    process.terminate()
    process.communicate(timeout=60)
    assert (job.folder / "work" / "out").read_text() == "half\n"
    assert (job.record["code"], job.record["signal"]) == (137, "TERM")


@pytest.mark.parametrize("value", ["", "relative", "/nowhere/at/all"])
def test_a_missing_tier_is_reported_and_the_tool_does_not_run(tmp_path: Path, value: str) -> None:
    job = Job(tmp_path, "echo ran >ran", Fast(work="local", tiers=TIERS))
    assert job.execute(FAST=value) == 75
    assert b"the fast storage local is not on" in (job.folder / "stderr").read_bytes()
    assert not (job.folder / "work" / "ran").exists()
    assert job.record["code"] == 75


def test_a_missing_input_prevents_the_start(tmp_path: Path) -> None:
    job = Job(tmp_path, "echo ran >ran", Fast({0: "local"}, tiers=TIERS), an_input(0, tmp_path / "gone"))
    assert job.execute() == 75
    assert not (job.folder / "work" / "ran").exists()
    assert job.remaining_names() == ["burst"]


def test_outputs_that_cannot_be_copied_back_are_kept_and_the_job_fails(tmp_path: Path) -> None:
    start = 'echo precious >out; rm -rf "$HERE/work"; : >"$HERE/work"'
    job = Job(tmp_path, start, Fast(work="local", tiers=TIERS))
    assert job.execute(HERE=str(job.folder)) == 74
    assert b"not all files of the tool could be copied back" in (job.folder / "stderr").read_bytes()
    [kept] = job.node.glob("hibali-*/work/out")
    assert kept.read_text() == "precious\n"


def test_variables_of_the_node_do_not_affect_the_script(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    job = Job(tmp_path, "true", Fast(work="local", tiers=TIERS))
    assert job.execute(FAST="", fast_0=str(mine), tool="1", work=str(mine)) == 75
    assert mine.exists()


def test_options_name_inputs_and_tiers() -> None:
    site = Site("a", "local", tiers=TIERS)
    inputs = [Input("in", 0, "x"), Input("more", 1, "y"), Input("more", 2, "z")]
    there = [False, True, False]
    assert choose_fast_storage(site, inputs, there, FastOptions()) == Fast(tiers=TIERS)
    found = choose_fast_storage(site, inputs, there, FastOptions(("more=burst", "in=local"), "local"))
    assert (found.inputs, found.work) == ({0: "local", 1: "burst", 2: "burst"}, "local")
    for wrong in (
        FastOptions(("in",)),
        FastOptions(("in=x",)),
        FastOptions(("none=local",)),
        FastOptions(work="x"),
    ):
        with pytest.raises(UsageError):
            choose_fast_storage(site, inputs, there, wrong)
    default = Site("a", "local", tiers=TIERS, fast="burst")
    found = choose_fast_storage(default, inputs, there, FastOptions(("in=local",)))
    assert (found.inputs, found.work) == ({0: "local", 2: "burst"}, "burst")
    assert choose_fast_storage(default, inputs, there, FastOptions(none=True)) == NOTHING_FAST
    one = Site("a", "local", tiers={"local": Tier("/nvme")})
    assert choose_fast_storage(one, inputs, there, FastOptions(("in",))).inputs == {0: "local"}


def test_directives_request_the_tier_and_time_to_copy_back() -> None:
    slurm, direct = load_scheduler("slurm"), load_scheduler("direct")
    both = Fast({0: "burst"}, "local", TIERS)
    assert both.lines(slurm, 7200) == ("#BB create name=x", "#SBATCH --signal=B:TERM@60")
    assert both.lines(slurm, 300)[1] == "#SBATCH --signal=B:TERM@30"
    assert both.lines(slurm, None)[1] == "#SBATCH --signal=B:TERM@60"
    assert both.lines(direct, 7200) == ("#BB create name=x",)
    assert Fast({0: "local"}, tiers=TIERS).lines(slurm, 7200) == ()
    assert NOTHING_FAST.script([]) == ""


def test_a_container_with_copied_inputs_is_rejected() -> None:
    check_fast(load_container("bare"))
    check_fast(load_container("podman"))
    with pytest.raises(UsageError):
        check_fast(load_container("charliecloud"))


def tiers_of(text: str) -> Site:
    return parse_settings(f'version = 1\n[sites.aa]\nkind = "local"\n{text}', Path("/c")).sites["aa"]


def test_tiers_are_configured_in_the_table_of_the_site() -> None:
    site = tiers_of(
        'fast = "local"\n[sites.aa.tiers]\nlocal = "$TMPDIR"\n'
        'burst = { path = "$BB_PATH/x", directive = "#DW jobdw capacity=1GB" }\nnvme = "/nvme/tmp"'
    )
    assert site.fast == "local"
    assert site.tiers == {
        "local": Tier("$TMPDIR"),
        "burst": Tier("$BB_PATH/x", "#DW jobdw capacity=1GB"),
        "nvme": Tier("/nvme/tmp"),
    }


@pytest.mark.parametrize(
    "text",
    [
        'fast = "x"',
        '[sites.aa.tiers]\nlocal = "relative"',
        '[sites.aa.tiers]\nlocal = "$(id)"',
        '[sites.aa.tiers]\nlocal = "$A/../b"',
        '[sites.aa.tiers]\nlocal = "/a b"',
        '[sites.aa.tiers]\nlocal = "/a;b"',
        "[sites.aa.tiers]\nlocal = 1",
        "[sites.aa.tiers]\nLocal = '/x'",
        '[sites.aa.tiers.local]\ndirective = "#BB x"',
        '[sites.aa.tiers.local]\npath = "/x"\ndirective = "rm -rf /"',
        '[sites.aa.tiers.local]\npath = "/x"\nother = 1',
    ],
)
def test_a_tier_path_with_shell_syntax_is_rejected(text: str) -> None:
    with pytest.raises(SettingsError):
        tiers_of(text)
