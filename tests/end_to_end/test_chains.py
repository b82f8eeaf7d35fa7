"""Test chains of runs: an output of one run is the input of the next, used in place or transferred once, and computed once."""

from __future__ import annotations

import os
import shutil
from typing import Any

import pytest

from tests.end_to_end.run_tools import Bench, doing
from tests.support.chains import Chain, output, waiting_for
from tests.support.waiting import wait_for

pytestmark = pytest.mark.timeout(600)  # a chain is several runs, one after the other

LARGE = 3_000_000
SMALL = 1000
SHORTEN = {**doing(f"head -c {SMALL} [IN] >[OUT]"), "name": "Shorten"}


@pytest.fixture
def chain(hibali: Any) -> Chain:
    """Return runs on this machine."""
    bench = Bench(hibali)
    bench.add_local_site()
    (bench.folder / "input.txt").write_text("hello\n")
    return Chain(bench)


HERE = ("--site", "here", "--wait")


def test_an_output_is_used_in_place_and_nothing_is_transferred(chain: Chain) -> None:
    first = chain.step("first", "input.txt", *HERE).last
    moved = chain.receipts()
    second = chain.step("second", output(first), *HERE).last
    assert chain.receipts() == moved
    work = chain.folder / "work-here" / "runs"
    assert f"{work / first['id']}/work/out.txt" in (work / second["id"] / "command").read_text()
    assert (work / second["id"] / "work" / "out.txt").read_text() == "hello\n"
    assert second["sources"] == [{"input": "in", "from": output(first)}]
    text = chain.hibali("runs", "show", second["id"], exit=0).out.decode()
    assert output(first) in text


@pytest.mark.heavy  # tests/unit/runs/test_script_preflight.py tests the same function alone
def test_a_symlink_among_the_outputs_is_not_read_by_the_next_run(chain: Chain) -> None:
    secret = chain.folder / "secret"
    secret.write_text("PRIVATE")
    link = chain.add({**doing(f"ln -s {secret} [OUT]"), "name": "Link"})
    first = chain.step("first", "input.txt", *HERE, of=link).last
    failed = chain.step("second", output(first), *HERE, exit=7)
    assert "symlink" in failed.last["message"]
    assert "not started" in failed.last["message"]
    [second] = [each for each in chain.bench.run_ids() if each != first["id"]]
    assert not list((chain.folder / "work-here" / "runs" / second / "work").iterdir())


@pytest.mark.heavy
def test_unusable_inputs_from_runs_are_reported_before_anything_starts(chain: Chain) -> None:
    failed = chain.step("failed", "input.txt", *HERE, exit=7, code=3).lines[0]
    good = chain.step("good", "input.txt", *HERE).last
    runs = chain.bench.run_ids()
    assert chain.step("x", output(failed), *HERE, exit=7).last["code"] == "needed-run-failed"
    assert (
        chain.step("x", f"run:{good['id']}/out_fil", *HERE, exit=3).last["hint"] == "Did you mean out_file?"
    )
    assert chain.step("x", output(good, "/below"), *HERE, exit=3).last["code"] == "no-such-output"
    assert chain.step("x", output(good, "/../../x"), *HERE, exit=2).last["code"] == "bad-reference"
    assert chain.step("x", "run:20260102-030405-0a1b2c3d/out", *HERE, exit=3).last["code"] == "no-such-run"
    assert chain.step("x", "input.txt", *HERE, "--after", "nonsense", exit=3).last["code"] == "no-such-run"
    assert (
        chain.step("x", "input.txt", *HERE, "--after", failed["id"], exit=7).last["code"]
        == "needed-run-failed"
    )
    assert chain.bench.run_ids() == runs


@pytest.mark.heavy
def test_only_the_output_is_transferred_between_sites_and_not_twice(chain: Chain) -> None:
    chain.bench.add_local_site("there")
    tree = chain.add(
        {
            **doing("mkdir -p [OUT]/deep; cp [IN] [OUT]/deep/a; head -c 9999 /dev/zero >scratch"),
            "name": "Tree",
        }
    )
    first = chain.step("first", "input.txt", "--site", "there", "--wait", of=tree, out="tree").last
    other = chain.step("first", "input.txt", "--site", "there", "--wait", "--new", of=tree, out="tree").last
    before = len(chain.receipts())
    second = chain.step("second", output(first, "/deep/a"), *HERE, "--after", first["id"]).last
    assert [each["bytes_moved"] for each in chain.receipts()[before:]] == [len("hello\n")]
    third = chain.step("third", output(other, "/deep/a"), *HERE, more=[output(first, "/deep/a")]).last
    assert len(chain.receipts()) == before + 1  # the cache already has this content
    for run, text in ((second, "hello\n"), (third, "hello\nhello\n")):
        chain.hibali("runs", "collect", run["id"], run["id"], exit=0)
        assert (chain.folder / run["id"] / "out.txt").read_text() == text


@pytest.mark.heavy
def test_a_list_input_takes_all_outputs_that_match_a_pattern(chain: Chain) -> None:
    parts = {**doing("for n in 2 1 3; do echo $n >part-$n; done"), "name": "Parts"}
    parts["output-files"] = [{"id": "parts", "name": "parts", "path-template": "part-*", "list": True}]
    parts["command-line"] = parts["command-line"].replace("[OUT]", "")
    parts["inputs"] = [each for each in parts["inputs"] if each["id"] != "out"]
    first = chain.step("first", "input.txt", *HERE, of=chain.add(parts)).last
    taken = f"run:{first['id']}/parts"
    second = chain.step("second", "input.txt", *HERE, more=[taken, "input.txt"]).last
    chain.hibali("runs", "collect", second["id"], "back", exit=0)
    assert (chain.folder / "back" / "out.txt").read_text() == "hello\n1\n2\n3\nhello\n"
    assert chain.step("third", taken, *HERE, exit=2).last["code"] == "several-files"


@pytest.mark.heavy
def test_results_are_reused_until_something_differs(chain: Chain) -> None:
    first = chain.step("first", "input.txt", *HERE).last
    assert first["reused"] is False
    moved = chain.receipts()
    (chain.folder / "copy").mkdir()
    (chain.folder / "copy" / "input.txt").write_text("hello\n")
    again = chain.step("again", "copy/input.txt", *HERE, "--reuse").last
    assert (again["id"], again["reused"], again["state"]) == (first["id"], True, "SUCCEEDED")
    quiet = chain.hibali("run", chain.bench.reference, "again.json", *HERE, "-q", "--reuse", exit=0)
    assert (quiet.out.decode(), quiet.err) == (f"{first['id']}\n", b"")
    chain.hibali.env["HIBALI_REUSE"] = "1"
    assert chain.step("again", "input.txt", *HERE).last["reused"] is True
    assert chain.receipts() == moved
    assert chain.bench.run_ids() == [first["id"]]
    for other in (["--fresh"], ["--new"]):
        assert chain.step("again", "input.txt", *HERE, *other).last["reused"] is False
    assert chain.step("again", "input.txt", *HERE, say="else").last["reused"] is False
    (chain.folder / "other").mkdir()
    (chain.folder / "other" / "input.txt").write_text("other\n")
    assert chain.step("again", "other/input.txt", *HERE).last["reused"] is False
    chain.bench.add_local_site("there")
    # without a container, equal tools at two sites cannot be assumed
    assert chain.step("again", "input.txt", "--site", "there", "--wait").last["reused"] is False


def test_missing_outputs_are_not_reused(chain: Chain) -> None:
    first = chain.step("first", "input.txt", *HERE).last
    left = chain.folder / "work-here" / "runs" / first["id"] / "work" / "out.txt"
    left.rename(left.with_name("elsewhere"))
    second = chain.step("first", "input.txt", *HERE, "--reuse").last
    assert second["reused"] is False
    third = chain.step("first", "input.txt", *HERE, "--reuse").last
    assert (third["id"], third["reused"]) == (second["id"], True)


@pytest.mark.heavy
def test_unchanged_collected_outputs_replace_those_missing_at_the_site(chain: Chain) -> None:
    first = chain.step("first", "input.txt", *HERE, "--collect", "back").last
    shutil.rmtree(chain.folder / "work-here" / "runs" / first["id"])
    for folder in ("back", "another"):
        again = chain.step("first", "input.txt", *HERE, "--reuse", "--collect", folder).last
        assert (again["id"], again["reused"]) == (first["id"], True)
        assert (chain.folder / folder / "out.txt").read_text() == "hello\n"
    for folder in ("back", "another"):
        (chain.folder / folder / "out.txt").write_text("HELLO\n")
    assert chain.step("first", "input.txt", *HERE, "--reuse").last["reused"] is False


@pytest.mark.heavy
def test_reuse_goes_through_a_chain_by_content(chain: Chain) -> None:
    first = chain.step("first", "input.txt", *HERE).last
    second = chain.step("second", output(first), *HERE).last
    other = chain.step("first", "input.txt", *HERE, "--new").last
    again = chain.step("second", output(other), *HERE, "--reuse", "--collect", "back")
    runs = [line for line in again.lines if line["kind"] == "run"]
    assert [(run["id"], run["reused"]) for run in runs] == [(second["id"], True)]
    assert (chain.folder / "back" / "out.txt").read_text() == "hello\n"
    there = chain.folder / "there" / "input.txt"
    there.parent.mkdir()
    there.write_text("hello\n")
    at_site = chain.step("first", f"here:{there}", *HERE, "--reuse").last
    assert at_site["reused"] is True


@pytest.fixture
def cluster(hibali: Any, slurm: Any) -> Chain:
    """Return runs on Slurm and on this machine."""
    bench = Bench(hibali)
    bench.add_local_site()
    bench.add_slurm_site(slurm)
    (bench.folder / "input.txt").write_text("hello\n")
    return Chain(bench)


CLUSTER = ("--site", "cluster")


@pytest.fixture(params=["here", "cluster"])
def queue(request: pytest.FixtureRequest) -> tuple[Chain, str]:
    """Return runs at a site where jobs can wait: without a scheduler, and on Slurm."""
    if request.param == "cluster":
        return request.getfixturevalue("cluster"), "cluster"
    return request.getfixturevalue("chain"), "here"


@pytest.mark.heavy
def test_a_job_waits_for_its_dependencies_and_a_held_job_for_its_release(queue: tuple[Chain, str]) -> None:
    chain, name = queue
    there = ("--site", name)
    go = chain.folder / "go"
    first = chain.step("first", "input.txt", *there, of=chain.add(waiting_for(go, "Wait"))).last
    second = chain.step("second", output(first), *there).last
    third = chain.step("third", "input.txt", *there, "--after", second["id"], "--hold").last
    assert third["on_hold"] is True
    assert chain.shown(second["id"])["state"] == "WAITING"
    assert chain.step("third", "input.txt", *there, "--after", second["id"]).last["id"] == third["id"]
    assert chain.hibali("runs", "release", first["id"], "--json", exit=2).last["code"] == "not-on-hold"
    assert not (chain.folder / f"work-{name}" / "runs" / second["id"] / "started").exists()
    go.touch()
    assert chain.hibali("runs", "wait", second["id"], "--json", exit=0).last["state"] == "SUCCEEDED"
    held = chain.shown(third["id"])
    assert (held["state"], held["on_hold"]) == ("WAITING", True)
    assert held["tasks"][0]["reason"] == f"on hold: hibali runs release {third['id']}"
    for _ in range(2):
        released = chain.hibali("runs", "release", third["id"], "--json")
        assert released.exit in {0, 8}
    assert chain.hibali("runs", "wait", third["id"], "--json", exit=0).last["state"] == "SUCCEEDED"
    assert chain.hibali("runs", "release", third["id"], "--json", exit=8).last["code"] == "run-ended"


@pytest.mark.heavy
def test_runs_after_a_failed_run_are_cancelled_with_the_reason(queue: tuple[Chain, str]) -> None:
    chain, name = queue
    there = ("--site", name)
    go = chain.folder / "go"
    first = chain.step("first", "input.txt", *there, of=chain.add(waiting_for(go, "Wait")), code=3).last
    second = chain.step("second", output(first), *there).last
    third = chain.step("third", "input.txt", *there, "--after", second["id"]).last
    go.touch()
    answer = chain.hibali("runs", "wait", third["id"], "--json", exit=7)
    assert answer.lines[0]["state"] == "CANCELLED"
    assert answer.last["message"] == f"the run was cancelled (run {second['id']} was cancelled)"
    answer = chain.hibali("runs", "wait", second["id"], "--json", exit=7)
    assert answer.last["message"] == f"the run was cancelled (run {first['id']} failed)"
    assert (
        chain.step("third", "input.txt", *there, "--after", second["id"], exit=7).last["code"]
        == "needed-run-failed"
    )


@pytest.mark.heavy
def test_a_chain_over_two_sites_transfers_only_what_is_needed_and_is_computed_once(
    cluster: Chain, slurm: Any
) -> None:
    shorten = cluster.add(SHORTEN)
    (cluster.folder / "large").write_bytes(os.urandom(LARGE))
    first = cluster.step("first", "large", *CLUSTER).last
    second = cluster.step("second", output(first), *CLUSTER, "--hold", of=shorten).last
    cluster.hibali("runs", "wait", first["id"], exit=0)
    early = cluster.step("third", output(second), "--site", "here", exit=5).last
    assert early["code"] == "not-ended"
    assert cluster.shown(second["id"])["on_hold"] is True
    cluster.hibali("runs", "release", second["id"], exit=0)
    third = cluster.step("third", output(second), *HERE).last
    work = cluster.folder / "work-here" / "runs" / third["id"] / "work"
    assert (work / "out.txt").read_bytes() == (cluster.folder / "large").read_bytes()[:SMALL]
    crossed = [(each["target"].partition(":")[0], each["bytes_moved"]) for each in cluster.receipts()]
    assert sorted(crossed) == [("cluster", LARGE), ("here", SMALL)]
    assert sum(each["bytes_sent"] for each in cluster.receipts()) < LARGE + 10 * SMALL
    assert all(each["proof_moved"] == "digest" for each in cluster.receipts())

    ids = [each["id"] for each in (first, second, third)]
    assert sorted(ids) == cluster.bench.run_ids()
    again = [
        cluster.step("first", "large", *CLUSTER, "--reuse").last,
        cluster.step("second", output(first), *CLUSTER, "--hold", "--reuse", of=shorten).last,
        cluster.step("third", output(second), *HERE, "--reuse").last,
    ]
    assert [(each["id"], each["reused"]) for each in again] == [(each, True) for each in ids]
    assert sorted(ids) == cluster.bench.run_ids()
    assert len(cluster.receipts()) == len(crossed)
    wait_for(lambda: [slurm.jobs_ended(each) for each in ids] == [1, 1, 0])


@pytest.mark.heavy
def test_results_of_another_site_with_the_same_image_are_reused(hibali: Any, podman: Any) -> None:
    hibali.env |= podman.env
    boxed = {
        **doing("cp [IN] [OUT]"),
        "name": "Boxed",
        "container-image": {"type": "docker", "image": podman.image},
    }
    bench = Bench(hibali, boxed)
    bench.add_local_site("one", "podman")
    bench.add_local_site("two", "podman")
    chain = Chain(bench)
    (bench.folder / "input.txt").write_text("hello\n")
    first = chain.step("first", "input.txt", "--site", "one", "--wait").last
    second = chain.step("first", "input.txt", "--site", "two", "--wait", "--reuse").last
    assert (second["id"], second["site"], second["reused"]) == (first["id"], "one", True)
    third = chain.step("third", output(first), "--site", "two", "--wait").last
    assert chain.step("third", output(first), "--site", "one", "--reuse").last["id"] == third["id"]
