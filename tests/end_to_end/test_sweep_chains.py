"""Test tasks of sweeps as inputs of other runs: one task or all, with dependencies, at the same or another site."""

from __future__ import annotations

from typing import Any

import pytest

from tests.end_to_end.run_tools import Bench, doing
from tests.support.chains import Chain, output, waiting_for

pytestmark = pytest.mark.timeout(600)  # a chain is several runs, one after the other

HERE = ("--site", "here", "--wait")
SAY_VALUES = ("--param", "say=a,b,c")


@pytest.fixture
def chain(hibali: Any) -> Chain:
    """Return runs on this machine; the pipeline writes its input and a value."""
    bench = Bench(hibali, doing("cat [IN] [MORE] >[OUT]; echo [SAY] >>[OUT]; exit [CODE]"))
    bench.add_local_site()
    (bench.folder / "input.txt").write_text("")
    return Chain(bench)


def task(run: dict[str, Any], number: int) -> str:
    return f"run:{run['id']}.{number}/out_file"


def test_one_task_or_all_tasks_in_order_can_be_inputs(chain: Chain) -> None:
    sweep = chain.step("sweep", "input.txt", *HERE, *SAY_VALUES).last
    moved = chain.receipts()
    taken = chain.step("taken", task(sweep, 2), *HERE, more=[output(sweep)], say="d").last
    assert chain.receipts() == moved  # used in place
    left = chain.folder / "work-here" / "runs" / taken["id"] / "work" / "out.txt"
    assert left.read_text() == "b\na\nb\nc\nd\n"
    assert [each["from"] for each in taken["sources"]] == [task(sweep, number) for number in (2, 1, 2, 3)]
    several = chain.step("x", output(sweep), *HERE, exit=2).last
    assert (several["code"], several["hint"]) == (
        "several-files",
        f"Name one task of the sweep: {task(sweep, 1)}",
    )
    assert chain.step("x", task(sweep, 4), *HERE, exit=3).last["code"] == "no-such-task"
    assert (
        chain.step("x", f"run:{sweep['id']}.2/out_fil", *HERE, exit=3).last["hint"]
        == "Did you mean out_file?"
    )


@pytest.mark.heavy
def test_a_sweep_uses_outputs_of_a_sweep(chain: Chain) -> None:
    sweep = chain.step("sweep", "input.txt", *HERE, *SAY_VALUES).last
    rows = "".join(f"{task(sweep, number)},x{number}\n" for number in (3, 1))
    (chain.folder / "table.csv").write_text("in,say\n" + rows)
    more = {"more": [output(sweep)]}
    taken = chain.step("taken", "input.txt", *HERE, "--each", "table.csv", **more).last
    tasks = chain.folder / "work-here" / "runs" / taken["id"] / "tasks"
    assert (tasks / "1" / "work" / "out.txt").read_text() == "c\na\nb\nc\nx3\n"
    assert (tasks / "2" / "work" / "out.txt").read_text() == "a\na\nb\nc\nx1\n"
    start = (tasks / "2" / "start").read_text()
    assert start.count("hibali_left 2") == 3  # each once, however often it is used
    (tasks.parent.parent / sweep["id"] / "tasks" / "1" / "work" / "out.txt").unlink()
    gone = chain.step("taken", "input.txt", *HERE, "--each", "table.csv", "--new", exit=3, **more).last
    assert gone["code"] == "no-such-output"


@pytest.mark.heavy
def test_a_successful_task_of_a_failed_sweep_can_be_an_input(chain: Chain) -> None:
    (chain.folder / "table.csv").write_text("say,code\na,0\nb,3\n")
    chain.step("sweep", "input.txt", *HERE, "--each", "table.csv", exit=7)
    sweep = chain.shown(chain.bench.run_ids()[0])
    taken = chain.step("taken", task(sweep, 1), *HERE).last
    assert taken["state"] == "SUCCEEDED"
    failed = chain.step("x", task(sweep, 2), *HERE, exit=7).last
    assert failed["code"] == "needed-run-failed"
    assert f"run {sweep['id']}.2 failed" in failed["message"]
    assert (
        chain.step("x", "input.txt", *HERE, more=[output(sweep)], exit=7).last["code"] == "needed-run-failed"
    )


@pytest.mark.heavy
def test_only_the_used_task_is_transferred_between_sites_and_reused_by_content(chain: Chain) -> None:
    chain.bench.add_local_site("there")
    sweep = chain.step("sweep", "input.txt", "--site", "there", "--wait", *SAY_VALUES).last
    before = len(chain.receipts())
    taken = chain.step("taken", task(sweep, 3), *HERE).last
    assert [each["bytes_moved"] for each in chain.receipts()[before:]] == [len("c\n")]
    (chain.folder / "out.txt").write_text("c\n")
    again = chain.step("again", "out.txt", *HERE, "--reuse").last
    assert (again["id"], again["reused"]) == (taken["id"], True)


@pytest.fixture
def cluster(hibali: Any, slurm: Any) -> Chain:
    """Return runs on Slurm."""
    bench = Bench(hibali, doing("cat [IN] [MORE] >[OUT]; echo [SAY] >>[OUT]; exit [CODE]"))
    bench.add_slurm_site(slurm)
    (bench.folder / "input.txt").write_text("")
    return Chain(bench)


@pytest.fixture(params=["here", "cluster"])
def queue(request: pytest.FixtureRequest) -> tuple[Chain, str]:
    """Return runs at a site where jobs can wait: without a scheduler, and on Slurm."""
    if request.param == "cluster":
        return request.getfixturevalue("cluster"), "cluster"
    return request.getfixturevalue("chain"), "here"


@pytest.mark.heavy
def test_a_job_waits_for_the_tasks_that_it_needs(queue: tuple[Chain, str]) -> None:
    chain, name = queue
    there = ("--site", name)
    go = chain.folder / "go"
    sweep = chain.step("sweep", "input.txt", *there, *SAY_VALUES, of=chain.add(waiting_for(go, "Wait"))).last
    one = chain.step("one", task(sweep, 2), *there).last
    everything = chain.step("all", "input.txt", *there, more=[output(sweep)]).last
    after = chain.step("after", "input.txt", *there, "--after", sweep["id"]).last
    for run in (one, everything, after):
        assert chain.shown(run["id"])["state"] == "WAITING"
        assert not (chain.folder / f"work-{name}" / "runs" / run["id"] / "started").exists()
    go.touch()
    ids = [run["id"] for run in (sweep, one, everything, after)]
    chain.hibali("runs", "wait", *ids, exit=0)


@pytest.mark.heavy
def test_runs_that_need_a_failed_task_are_cancelled_with_the_reason(queue: tuple[Chain, str]) -> None:
    chain, name = queue
    there = ("--site", name)
    go = chain.folder / "go"
    waiting = chain.add(waiting_for(go, "Wait"))
    sweep = chain.step("sweep", "input.txt", *there, "--param", "code=0,3,0", of=waiting).last
    one = chain.step("one", task(sweep, 2), *there).last
    everything = chain.step("all", "input.txt", *there, more=[output(sweep)]).last
    good = chain.step("good", task(sweep, 3), *there).last
    go.touch()
    for run in (one, everything):
        answer = chain.hibali("runs", "wait", run["id"], "--json", exit=7)
        assert answer.lines[0]["state"] == "CANCELLED"
        assert f"run {sweep['id']}.2 failed" in answer.last["message"]
    # without a scheduler, jobs wait for whole arrays, and this one fails
    chain.hibali("runs", "wait", good["id"], exit=0 if name == "cluster" else 7)


@pytest.mark.heavy
def test_tasks_that_are_not_submitted_yet_must_end_first(chain: Chain) -> None:
    config = chain.hibali.home.config
    config.write_text(config.read_text().replace('poll = "1s"', 'poll = "1s"\nqueued_jobs = 2'))
    go = chain.folder / "go"
    sweep = chain.step(
        "sweep", "input.txt", "--site", "here", *SAY_VALUES, of=chain.add(waiting_for(go, "Wait"))
    ).last
    assert sweep["counts"] == {"SUBMITTED": 2, "STAGED": 1} or sweep["counts"] == {
        "SUBMITTED": 1,
        "STAGED": 2,
    }
    assert chain.step("x", task(sweep, 3), "--site", "here", exit=5).last["code"] == "not-ended"
    go.touch()
    assert chain.step("x", task(sweep, 3), *HERE).last["state"] == "SUCCEEDED"


def two_sites(chain: Chain) -> None:
    """Return two sites that `auto` considers; `beta` is not the first by name."""
    for name in ("alpha", "beta"):
        chain.bench.add_site(
            name,
            f'kind = "local"\nwork = "{chain.folder}/work-{name}"\n[sites.{name}.scheduler]\nname = "direct"\n'
            f'[sites.{name}.limits]\npoll = "1s"',
        )


AUTO = ("--site", "alpha", "--site", "beta")


@pytest.mark.heavy
def test_a_chain_selects_the_site_that_has_its_inputs(chain: Chain) -> None:
    two_sites(chain)
    go = chain.folder / "go"
    large = chain.add(
        {**doing(f"until [ -e {go} ]; do sleep 0.1; done; head -c 3000000 /dev/zero >[OUT]"), "name": "Large"}
    )
    first = chain.step("first", "input.txt", "--site", "beta", of=large).last
    early = chain.step("early", output(first), *AUTO, "--explain")
    choice = early.lines[0]
    assert choice["site"] == "beta"
    [other] = [each for each in choice["candidates"] if each["site"] == "alpha"]
    assert "has not ended yet" in other["why_not"]
    assert chain.step("early", output(first), *AUTO).last["id"] == early.last["id"]
    after = chain.step("after", "input.txt", *AUTO, "--after", first["id"], "--hold").last
    assert (after["site"], after["on_hold"]) == ("beta", True)
    go.touch()
    chain.hibali("runs", "release", after["id"], exit=0)
    chain.hibali("runs", "wait", first["id"], early.last["id"], after["id"], exit=0)
    late = chain.step("late", output(first), *AUTO, "--explain", "--wait", "--new")
    assert {each["site"]: each["bytes_to_move"] for each in late.lines[0]["candidates"]} == {
        "alpha": 3_000_000,
        "beta": 0,
    }
    assert late.last["site"] == "beta"


@pytest.mark.heavy
def test_the_command_waits_if_no_site_can_wait_for_all_inputs(chain: Chain) -> None:
    two_sites(chain)
    go = chain.folder / "go"
    waiting = chain.add(waiting_for(go, "Wait"))
    runs = [chain.step(name, "input.txt", "--site", name, of=waiting).last for name in ("alpha", "beta")]
    more = [word for run in runs for word in ("--after", run["id"])]
    assert chain.step("last", "input.txt", *AUTO, *more, exit=5).last["code"] == "no-site"
    go.touch()
    assert chain.step("last", "input.txt", *AUTO, *more, "--wait").last["state"] == "SUCCEEDED"
    failing = chain.step("failing", "input.txt", "--site", "beta", "--wait", code=3, exit=7).lines[0]
    refused = chain.step("x", output(failing), *AUTO, exit=7).last
    assert refused["code"] == "needed-run-failed"
