"""Test fast storage of nodes: inputs are read and outputs written there, locally, in a container, and at a time limit of Slurm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.run_tools import Bench, doing
from tests.services.podman import write_tools
from tests.services.processes import MissingPackageError, program
from tests.support.requirements import skip_or_fail

pytestmark = pytest.mark.timeout(1200)  # Slurm's time limit is long, and the machine is shared


def with_tiers(bench: Bench, more: str = "") -> Path:
    """Configure two kinds of fast storage for the bench's site, and return the folder that contains both."""
    node = bench.folder / "node"
    (node / "burst").mkdir(parents=True)
    config = bench.hibali.home.config
    site = f"[sites.{bench.site}]\n"
    text = config.read_text().replace(site, site + more, 1)
    config.write_text(f'{text}[sites.{bench.site}.tiers]\nlocal = "{node}"\nburst = "{node}/burst"\n')
    return node


def test_inputs_are_read_and_outputs_written_on_fast_storage(hibali: Any) -> None:
    bench = Bench(hibali, doing("readlink -f [IN]; pwd -P; cat [IN] [MORE] >[OUT]; exit [CODE]"))
    work = bench.add_local_site()
    node = with_tiers(bench)
    hostile = "-n $(touch pwned) 'a\"b\n*.txt"
    (bench.folder / hostile).write_text("strange\n")
    (bench.folder / "there").write_text("there\n")
    more = [f"./{hostile}", f"here:{bench.folder}/there"]
    marks = ("--fast", "in=burst", "--fast", "more=local", "--fast-work", "local")
    failed = bench.run(bench.answers(more=more, code=3), "--wait", *marks, exit=7)
    [run_id] = bench.run_ids()
    output = (work / "runs" / run_id / "stdout").read_text().splitlines()
    assert output[0].startswith(f"{node}/burst/hibali-{run_id}-"), failed
    assert output[1].startswith(f"{node}/hibali-{run_id}-")
    hibali("runs", "collect", run_id, "back", exit=7)
    assert (bench.folder / "back" / "out.txt").read_text() == "hello\nstrange\nthere\n"
    assert [path.name for path in node.rglob("*")] == ["burst"]
    assert not list(bench.folder.rglob("pwned"))


@pytest.mark.heavy
def test_the_default_of_a_site_applies_to_all_its_runs(hibali: Any) -> None:
    bench = Bench(hibali, doing("pwd -P; cat [IN] >[OUT]"))
    work = bench.add_local_site()
    node = with_tiers(bench, 'fast = "burst"\n')
    shown = bench.run(bench.answers(), "--dry-run", exit=0).last
    assert f"{node}/burst" in shown["files"]["fast.sh"]
    for marks, there in (((), True), (("--no-fast",), False)):
        run_id = bench.run(bench.answers(), "--wait", *marks, exit=0).last["id"]
        output = hibali("runs", "logs", run_id, exit=0).out.decode()
        assert output.startswith(str(node if there else work))
    assert bench.run(bench.answers(), "--fast", "no-such", exit=2).last["code"] == "no-such-input"
    assert bench.run(bench.answers(), "--fast", "in=none", exit=2).last["code"] == "no-such-tier"
    assert bench.run(bench.answers(), "--fast", "in", "--no-fast", exit=2).last["code"] == "contradiction"


@pytest.mark.parametrize(
    "word",
    [
        pytest.param("bubblewrap", marks=pytest.mark.heavy),
        pytest.param("podman", marks=pytest.mark.heavy),
        pytest.param("docker", marks=pytest.mark.heavy),
    ],
)
def test_a_container_sees_the_fast_storage(
    word: str, request: pytest.FixtureRequest, hibali: Any, tmp_path: Path
) -> None:
    archive, image = tmp_path / "tool.tar", "localhost/hibali-fast:1"
    try:
        write_tools(archive, image, {"mark": word.encode()})
        if word == "bubblewrap":
            program("bwrap", "bubblewrap")
        else:
            hibali.env |= request.getfixturevalue(word).env
    except MissingPackageError as problem:
        skip_or_fail(str(problem))
    command = "cat [IN] [MORE] >[OUT]; (echo more >>[IN]); true"
    bench = Bench(hibali, {**doing(command), "container-image": {"type": "docker", "image": image}})
    bench.add_local_site("box", word)
    node = with_tiers(bench)
    (bench.folder / "other").write_text("other\n")
    answers = bench.answers(more=["other"])
    marks = ("--fast", "in=local", "--fast-work", "burst", "--image", str(archive))
    run_id = bench.run(answers, "--wait", *marks, exit=0).last["id"]
    hibali("runs", "collect", run_id, "back", exit=0)
    assert (bench.folder / "back" / "out.txt").read_text() == "hello\nother\n"
    assert b"Read-only file system" in hibali("runs", "logs", run_id, "--stderr", exit=0).out
    assert [path.name for path in node.rglob("*")] == ["burst"]


@pytest.mark.heavy  # Slurm's time limits are in minutes
def test_outputs_written_before_the_time_limit_are_copied_back(hibali: Any, slurm: Any) -> None:
    bench = Bench(hibali, doing("echo half >[OUT]; exec sleep 600; : [IN]"))
    bench.add_slurm_site(slurm)
    config = hibali.home.config
    config.write_text(config.read_text().replace('name = "slurm"', 'name = "slurm"\ntime = "00:02:00"'))
    node = with_tiers(bench)
    (bench.folder / "answers.json").write_text(json.dumps({"in": "tool.json"}))
    run_id = bench.run("answers.json", "--fast", "in=burst", "--fast-work", "local", exit=0).last["id"]
    hibali("runs", "wait", run_id, exit=7, timeout=600)
    hibali("runs", "collect", run_id, "back", exit=7)
    assert (bench.folder / "back" / "out.txt").read_text() == "half\n"
    assert [path.name for path in node.rglob("*")] == ["burst"]
