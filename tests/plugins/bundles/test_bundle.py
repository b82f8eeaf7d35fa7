"""Test bundles: created from a run at one site, repeated at another, and compared file by file."""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.run_tools import DESCRIPTOR, Bench, doing
from tests.support.crates import crate_issues, has_validator, required_issues
from tests.support.waiting import wait_for


def run_at(bench: Bench, answers: str, *more: str, exit: int = 0) -> str:  # noqa: A002
    """Run the pipeline to its end and return the id."""
    lines = bench.run(answers, "--wait", *more, exit=exit).lines
    return next(line["id"] for line in lines if line["kind"] == "run")


def add_ssh_site(bench: Bench, server: Any, name: str) -> None:
    argv = ", ".join(f'"{word}"' for word in server.command)
    bench.add_site(
        name,
        f'kind = "ssh"\nwork = "{bench.folder}/far-{name}"\n[sites.{name}.ssh]\nhost = "{server.host}"\n'
        f'command = [{argv}]\n[sites.{name}.scheduler]\nname = "direct"\n[sites.{name}.limits]\npoll = "1s"',
    )


@pytest.fixture
def bench(hibali: Any) -> Bench:
    made = Bench(hibali)
    made.add_local_site("first")
    return made


def test_a_bundle_reproduces_its_outputs_at_another_site(hibali: Any, ssh_server: Any) -> None:
    bench = Bench(hibali)
    add_ssh_site(bench, ssh_server, "first")
    run_id = run_at(bench, bench.answers())
    made = hibali("bundle", "create", run_id, "-o", "bet.zip", "--json", exit=0).last
    assert (made["kind"], made["run"]["state"], made["outputs"]["files"]) == ("bundle", "SUCCEEDED", 1)
    assert [(each["id"], each["included"]) for each in made["inputs"]] == [("in", True)]
    bench.add_local_site("second")
    (bench.folder / "input.txt").unlink()  # all that is needed is in the bundle
    result = hibali("bundle", "run", "bet.zip", "--site", "second", "--json", exit=0)
    [compared] = [line for line in result.lines if line["kind"] == "compared"]
    assert (compared["path"], compared["fate"]) == ("out.txt", "equal")
    assert compared["recorded"] == compared["found"]
    assert (result.last["kind"], result.last["equal"], result.last["different"]) == ("comparison", 1, 0)
    assert (bench.folder / result.last["run"] / "out.txt").read_text() == "hello\n"
    assert not list((hibali.home.state / "bundles").iterdir())


@pytest.mark.heavy
def test_differing_outputs_are_reported_file_by_file(hibali: Any) -> None:
    bench = Bench(
        hibali, doing("mkdir [OUT]; cp [IN] [OUT]/same; date +%N >[OUT]/other; touch [OUT]/$(date +%N)")
    )
    bench.add_local_site("first")
    run_id = run_at(bench, bench.answers())
    hibali("bundle", "create", run_id, "-o", "b.zip", exit=0)
    bench.add_local_site("second")
    argv = ("bundle", "run", "b.zip", "--site", "second", "-o", "again")
    result = hibali(*argv, "--json", exit=6)
    outcomes = {line["path"]: line["fate"] for line in result.lines if line["kind"] == "compared"}
    assert outcomes.pop("out.txt/same") == "equal"
    assert outcomes.pop("out.txt/other") == "different"
    assert sorted(outcomes.values()) == ["extra", "missing"]
    assert [result.last[key] for key in ("equal", "different", "missing", "extra", "exit")] == [
        1,
        1,
        1,
        1,
        6,
    ]
    assert (bench.folder / "again" / "out.txt" / "same").read_text() == "hello\n"


@pytest.mark.heavy
def test_bundles_are_reproducible_and_a_killed_command_resumes(bench: Bench) -> None:
    hibali = bench.hibali
    (bench.folder / "a b%.txt").write_text("strange\n")
    run_id = run_at(bench, bench.answers(more=["./a b%.txt"]), "--name", "strange")
    for what, name in ((run_id, "one.zip"), ("strange", "two.zip")):
        hibali("bundle", "create", what, "-o", name, exit=0)
    assert (bench.folder / "one.zip").read_bytes() == (bench.folder / "two.zip").read_bytes()
    with zipfile.ZipFile(bench.folder / "one.zip") as archive:
        assert "inputs/1/a%20b%25.txt" in archive.namelist()
    submitted = hibali("bundle", "run", "one.zip", "--site", "first", "--no-wait", "--json", exit=0).last
    result = hibali("bundle", "run", "one.zip", "--site", "first", "--json", exit=0)
    assert (result.last["run"], result.last["equal"]) == (submitted["id"], 1)
    # the end of that run was reported, so this is another run
    answer = hibali("bundle", "run", "one.zip", "--site", "first", exit=0)
    assert answer.out == b"equal      out.txt\n"
    assert b"Equal outputs: 1 of 1" in answer.err
    assert submitted["id"].encode() not in answer.err


@pytest.mark.heavy
def test_verified_digests_outlive_the_run_folder(bench: Bench) -> None:
    hibali = bench.hibali
    collected, purged = run_at(bench, bench.answers()), run_at(bench, bench.answers(say="else"))
    hibali("runs", "collect", collected, "back", exit=0)
    shutil.rmtree(bench.folder / "work-first" / "runs")
    made = hibali("bundle", "create", collected, "-o", "b.zip", "--json", exit=0).last
    assert (made["outputs"]["files"], made["outputs"]["problems"]) == (1, [])
    assert hibali("bundle", "create", purged, "-o", "c.zip", "--json", exit=3).last["code"] == "outputs-gone"
    assert hibali("bundle", "run", "b.zip", "--site", "first", "--json", exit=0).last["equal"] == 1


@pytest.mark.heavy
def test_inputs_that_are_not_included_are_named_and_checked(bench: Bench) -> None:
    hibali = bench.hibali
    there = bench.folder / "there.txt"
    there.write_text("in place\n")
    run_id = run_at(bench, bench.answers(more=[f"first:{there}"]))
    made = hibali("bundle", "create", run_id, "-o", "b.zip", "--json", exit=0).last
    assert [(each["included"], each["location"]) for each in made["inputs"]] == [
        (True, ""),
        (False, f"first:{there}"),
    ]
    refused = hibali("bundle", "run", "b.zip", "--site", "first", "--json", exit=3).last
    assert (refused["code"], refused["hint"]) == ("inputs-not-included", "--input more=LOCATION")
    (bench.folder / "copy").write_text("in place\n")
    hibali("bundle", "run", "b.zip", "--site", "first", "--input", "more=copy", exit=0)
    (bench.folder / "copy").write_text("other\n")
    wrong = hibali("bundle", "run", "b.zip", "--site", "first", "--input", "more=copy", "--json", exit=8).last
    assert wrong["code"] == "input-differs"
    hibali("bundle", "create", run_id, "-o", "all.zip", "--with-inputs", exit=0)
    hibali("bundle", "run", "all.zip", "--site", "first", exit=0)
    there.write_text("changed\n")
    assert hibali("bundle", "create", run_id, "-o", "c.zip", "--json", exit=8).last["code"] == "input-changed"
    assert not (bench.folder / "c.zip").exists()


@pytest.mark.heavy
def test_an_invocation_is_bundled_without_a_run(bench: Bench) -> None:
    hibali = bench.hibali
    assert (
        hibali("bundle", "create", bench.answers(), "-o", "b.zip", "--json", exit=2).last["code"] == "usage"
    )
    hibali("bundle", "create", bench.answers(), "--pipeline", bench.reference, "-o", "b.zip", exit=0)
    shown = hibali("bundle", "show", "b.zip", "--json", exit=0).last
    assert (shown["run"], shown["outputs"], shown["inputs"][0]["included"]) == (None, None, True)
    assert b"input 0" in hibali("bundle", "show", "b.zip", exit=0).out
    result = hibali("bundle", "run", "b.zip", "--site", "first", "-o", "out", "--json", exit=0)
    assert (result.last["recorded"], result.last["exit"]) == (False, 0)
    assert (bench.folder / "out" / "out.txt").read_text() == "hello\n"


@pytest.mark.heavy
def test_a_running_run_cannot_be_bundled_and_a_failed_one_is_bundled_as_failed(
    bench: Bench,
) -> None:
    hibali = bench.hibali
    run_id = hibali(*bench.line(bench.answers(sleep=60)), exit=0).out.decode().strip()
    assert hibali("bundle", "create", run_id, "-o", "b.zip", "--json", exit=5).last["code"] == "not-ended"
    hibali("runs", "cancel", run_id, exit=0)
    failed = run_at(bench, bench.answers(code=3), exit=7)
    made = hibali("bundle", "create", failed, "-o", "f.zip", "--json", exit=0).last
    assert (made["run"]["state"], made["run"]["exit_code"]) == ("FAILED", 3)
    with zipfile.ZipFile(bench.folder / "f.zip") as archive:
        graph = json.loads(archive.read("ro-crate-metadata.json"))["@graph"]
    [action] = [each for each in graph if each["@type"] == "CreateAction"]
    assert action["actionStatus"].endswith("FailedActionStatus")
    assert "3" in action["error"]
    again = hibali("bundle", "run", "f.zip", "--site", "first", "--json", exit=7).last
    assert (again["kind"], again["equal"], again["exit"]) == ("comparison", 1, 7)
    assert (
        hibali("bundle", "create", "20260102-030405-0a1b2c3d", "-o", "g.zip", "--json", exit=3).last["code"]
        == "no-such-run"
    )


@pytest.mark.heavy
def test_trust_rules_of_the_catalogue_apply_to_the_pipeline_of_a_bundle(bench: Bench, hibali: Any) -> None:
    run_id = run_at(bench, bench.answers())
    hibali("bundle", "create", run_id, "-o", "b.zip", exit=0)
    hibali("pipelines", "remove", bench.reference, exit=0)
    bench._write("other.json", {**DESCRIPTOR, "description": "Another one."})
    hibali("pipelines", "add", "other.json", exit=0)
    refused = hibali("bundle", "run", "b.zip", "--site", "first", "--json", exit=8).last
    assert refused["code"] == "immutable-version"
    renamed = ("bundle", "run", "b.zip", "--site", "first", "--as", "peer", "--json")
    assert hibali(*renamed, exit=0).last["kind"] == "comparison"  # its content was trusted
    (hibali.home.state / "trust.jsonl").unlink()
    assert hibali(*renamed, exit=8).last["code"] == "not-trusted"
    hibali("pipelines", "trust", "peer@1.0", exit=0)
    hibali(*renamed, exit=0)


@pytest.mark.heavy
def test_a_modified_bundle_starts_nothing(bench: Bench) -> None:
    hibali = bench.hibali
    run_id = run_at(bench, bench.answers())
    hibali("bundle", "create", run_id, "-o", "b.zip", exit=0)
    whole = (bench.folder / "b.zip").read_bytes()
    assert whole.count(b"hello\n") == 1
    (bench.folder / "b.zip").write_bytes(whole.replace(b"hello\n", b"hallo\n"))
    before = bench.run_ids()
    assert hibali("bundle", "run", "b.zip", "--site", "first", "--json", exit=8).last["code"] == "bad-bundle"
    assert bench.run_ids() == before
    assert (
        hibali("bundle", "run", "nothing.zip", "--site", "first", "--json", exit=3).last["code"]
        == "no-such-file"
    )


@pytest.mark.heavy
def test_a_killed_command_resumes_its_run(hibali: Any) -> None:
    go = hibali.home.folder / "go"
    go.touch()
    bench = Bench(hibali, doing(f"until [ -e {go} ]; do sleep 0.1; done; cp [IN] [OUT]"))
    bench.add_local_site("first")
    run_id = run_at(bench, bench.answers())
    hibali("bundle", "create", run_id, "-o", "b.zip", exit=0)
    go.unlink()
    argv = ("bundle", "run", "b.zip", "--site", "first", "--json")
    killed = hibali.start(*argv)
    wait_for(lambda: _is_submitted(bench, run_id))
    killed.kill()
    killed.wait()
    go.touch()
    result = hibali(*argv, exit=0)
    assert sorted([run_id, result.last["run"]]) == bench.run_ids()
    assert result.last["equal"] == 1
    assert not list((hibali.home.state / "bundles").iterdir())


def _is_submitted(bench: Bench, first: str) -> bool:
    others = [each for each in bench.run_ids() if each != first]
    return any(record["kind"] == "submitted" for each in others for record in bench.records(each))


@pytest.mark.heavy
def test_a_container_run_of_a_cluster_is_repeated_locally(hibali: Any, slurm: Any) -> None:
    bench = Bench(hibali)
    bench.add_slurm_site(slurm)
    hibali.env |= slurm.env
    run_id = run_at(bench, bench.answers())
    hibali("runs", "collect", run_id, "back", exit=0)
    hibali("bundle", "create", run_id, "-o", "b.zip", exit=0)
    bench.add_local_site("second")
    assert hibali("bundle", "run", "b.zip", "--site", "second", "--json", exit=0).last["equal"] == 1
    assert hibali("bundle", "run", "b.zip", "--site", "cluster", "--json", exit=0).last["equal"] == 1


@pytest.mark.heavy
def test_a_bundle_records_the_image_of_its_run(hibali: Any, podman: Any) -> None:
    hibali.env |= podman.env
    image = {"container-image": {"type": "docker", "image": podman.image}}
    bench = Bench(hibali, {**DESCRIPTOR, **image})
    bench.add_local_site("first", "podman")
    run_id = run_at(bench, bench.answers())
    made = hibali("bundle", "create", run_id, "-o", "b.zip", "--json", exit=0).last
    identifier = podman.run("image", "inspect", "--format={{.Id}}", podman.image).stdout.strip()
    assert made["run"]["image"] == f"sha256:{identifier}"
    bench.add_local_site("second", "podman")
    assert hibali("bundle", "run", "b.zip", "--site", "second", "--json", exit=0).last["equal"] == 1
    other = _with_another_image(bench.folder / "b.zip", identifier)
    refused = hibali("bundle", "run", other, "--site", "second", "--json", exit=3).last
    assert refused["code"] == "no-image"
    lacking = hibali("bundle", "create", run_id, "-o", "c.zip", "--with-image", "--json", exit=3).last
    assert lacking["code"] == "no-image-known"
    hibali("pipelines", "image", "add", bench.reference, "--archive", podman.archive, exit=0)
    whole = hibali("bundle", "create", run_id, "-o", "c.zip", "--with-image", "--json", exit=0).last
    assert whole["image"] == {
        "digest": f"sha256:{hashlib.sha256(podman.archive.read_bytes()).hexdigest()}",
        "id": f"sha256:{identifier}",
        "included": True,
    }
    peer = {"HIBALI_STATE": str(hibali.home.folder / "peer")}
    assert hibali("bundle", "run", "c.zip", "--site", "second", "--json", env=peer, exit=0).last["equal"] == 1
    known = hibali("pipelines", "show", bench.reference, "--json", env=peer, exit=0).last
    assert known["image"]["digest"] == whole["image"]["digest"]
    if has_validator():
        assert required_issues(bench.folder / "c.zip") == []


def _with_another_image(path: Path, identifier: str) -> Path:
    """Return the same bundle of a run with another image, which is missing."""
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    before = hashlib.sha256(files["bundle.json"]).hexdigest().encode()
    files["bundle.json"] = files["bundle.json"].replace(identifier.encode(), b"e" * 64)
    after = hashlib.sha256(files["bundle.json"]).hexdigest().encode()
    files["bundle.sha256"] = files["bundle.sha256"].replace(before, after)
    other = path.with_name("other.zip")
    with zipfile.ZipFile(other, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return other


# Recommendations that are not met: a pipeline may have no page (3.2), its id is not a web URL (5.1), and a crate made by a
# command has no publisher (22.3), no organisation (30.2) and no address (30.3) of the account.
_KNOWN = {
    "process-run-crate-0.5_3.2",
    "process-run-crate-0.5_5.1",
    "ro-crate-1.1_22.3",
    "ro-crate-1.1_30.2",
    "ro-crate-1.1_30.3",
}


@pytest.mark.heavy
def test_roc_validator_accepts_the_crates(hibali: Any) -> None:
    bench = Bench(hibali, doing("mkdir [OUT]; cp [IN] [OUT]/a; touch '[OUT]/b c'; exit [CODE]"))
    bench.add_local_site("first")
    folder = bench.folder / "tree" / "below"
    folder.mkdir(parents=True)
    (folder / "a b%.txt").write_text("strange\n")
    whole = run_at(bench, bench.answers(more=["tree", "./tree/below/a b%.txt"]))
    failed = run_at(bench, bench.answers(code=3), exit=7)
    bench_files = {
        "whole.zip": (whole,),
        "bare.zip": (whole, "--without-inputs"),
        "failed.zip": (failed,),
    }
    for name, argv in bench_files.items():
        hibali("bundle", "create", *argv, "-o", name, exit=0)
        issues = {each["check"]: each for each in crate_issues(bench.folder / name)}
        assert [each for each in issues.values() if each["severity"] == "REQUIRED"] == [], name
        assert issues.keys() <= _KNOWN, (name, issues)
    hibali("bundle", "run", "whole.zip", "--site", "first", exit=0)
