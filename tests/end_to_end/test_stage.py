"""Test images at a site: staged and converted once, and their tools see only their inputs."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.image_tools import RUNTIMES, Tool, catalogued, ready
from tests.end_to_end.run_tools import Bench, doing
from tests.services.podman import write_tools
from tests.services.processes import program
from tests.support.small_filesystem import small_filesystem
from tests.support.waiting import wait_for

LOOKS = (
    "cat [IN] [MORE] >[OUT]; echo more >>[IN]; echo $NOTE; echo $HOME; pwd; ls /root /home; touch /x;"
    " touch $HOME/kept; cat /proc/net/dev; env; exit [CODE]"
)


def with_image(command: str, tool: Tool) -> dict[str, Any]:
    return {
        **doing(command),
        "container-image": {"type": "docker", "image": tool.name},
        "environment-variables": [{"name": "NOTE", "value": "'it''s $(id) [SAY]'"}],
    }


def converted(work: Path, word: str) -> list[Path]:
    """Return all files below the images of a runtime, including hidden ones."""
    return sorted(path for each in (work / "images" / word).iterdir() for path in each.iterdir())


@pytest.mark.heavy
@pytest.mark.parametrize("word", RUNTIMES)
def test_an_image_is_staged_once_and_used_automatically(
    word: str, request: pytest.FixtureRequest, hibali: Any, tool: Tool
) -> None:
    ready(word, request, hibali)
    bench = Bench(hibali, with_image(LOOKS, tool))
    work = bench.add_local_site("box", word)
    identifier = catalogued(bench, tool)
    stage = ("pipelines", "stage", bench.reference, "--site", "box", "--json")
    first, second = (hibali(*stage, exit=0).last for _ in range(2))
    assert (first["fresh"], second["fresh"]) == (True, False)
    assert {**second, "fresh": True} == first
    assert first["id"] == identifier
    if first["path"]:
        assert Path(first["path"]).parent.name == "ready"
        assert converted(work, word) == [Path(first["path"]).parent]
    hostile = "a,b\"c 'd=e\nf\\" + ("" if word == "charliecloud" else ":g")
    (bench.folder / hostile).write_text("strange\n")
    run_id = bench.run(bench.answers(more=[f"./{hostile}"]), "--wait", exit=0).last["id"]
    output = hibali("runs", "logs", run_id, exit=0).out.decode()
    errors = hibali("runs", "logs", run_id, "--stderr", exit=0).out.decode()
    assert output.splitlines()[0] == "'it''s $(id) done'"
    assert output.splitlines()[1] == output.splitlines()[2] != str(Path.home())
    assert "Read-only file system" in errors or word in {"podman", "docker"}
    assert (work / "runs" / run_id / "work" / "kept").exists()
    if word != "charliecloud":  # this site gives the host's network and copies of inputs
        assert "eth0" not in output
        assert errors.count("Read-only file system") >= 1
    assert not {"HIBALI_STATE", "PYTHONPATH", "TEST_SERVICES"} & {
        line.partition("=")[0] for line in output.splitlines()
    }
    hibali("runs", "collect", run_id, "back", exit=0)
    assert (bench.folder / "back" / "out.txt").read_text() == "hello\nstrange\n"
    assert (bench.folder / "input.txt").read_text() == "hello\n"
    cached = [path for path in (work / "cache" / "sha256").rglob("*") if path.is_file()]
    assert sorted(path.read_text() for path in cached if path.stat().st_size < 100) == [
        "hello\n",
        "strange\n",
    ]


class Held:
    """A wrapper around a real program that counts its calls and waits before each until it is released."""

    def __init__(self, hibali: Any, name: str) -> None:
        self.folder: Path = hibali.home.folder / "wrapped"
        self.folder.mkdir()
        real = program(name, name)
        (self.folder / name).write_text(
            f'#!/bin/sh\necho "$$" >>{self.folder}/calls\n'
            f'while [ ! -e {self.folder}/go ]; do sleep 0.05; done\nexec {real} "$@"\n'
        )
        (self.folder / name).chmod(0o755)
        hibali.env["PATH"] = f"{self.folder}:{hibali.env['PATH']}"

    @property
    def calls(self) -> int:
        path = self.folder / "calls"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def release(self) -> None:
        (self.folder / "go").touch()


@pytest.fixture
def bubblewrap_bench(request: pytest.FixtureRequest, hibali: Any, tool: Tool) -> Bench:
    """Return a pipeline with its image, and a site that runs bubblewrap."""
    ready("bubblewrap", request, hibali)
    bench = Bench(hibali, with_image("cat [IN] >[OUT]", tool))
    bench.add_local_site("box", "bubblewrap")
    catalogued(bench, tool)
    return bench


@pytest.mark.heavy
def test_two_commands_that_stage_at_once_convert_once(bubblewrap_bench: Bench) -> None:
    hibali = bubblewrap_bench.hibali
    tar = Held(hibali, "tar")
    line = ("pipelines", "stage", bubblewrap_bench.reference, "--site", "box", "--json", "-v")
    started = [hibali.start(*line) for _ in range(2)]
    outputs = [hibali.home.folder / f"{number}.out" for number in range(2)]
    wait_for(lambda: tar.calls == 1)
    wait_for(lambda: any(b"waiting for it" in each.read_bytes() for each in outputs))
    tar.release()
    assert [process.wait(60) for process in started] == [0, 0]
    assert tar.calls == 1
    fresh = [json.loads(each.read_text().splitlines()[-1])["fresh"] for each in outputs]
    assert sorted(fresh) == [False, True]


@pytest.mark.heavy
def test_a_killed_conversion_is_repeated(bubblewrap_bench: Bench) -> None:
    hibali = bubblewrap_bench.hibali
    tar = Held(hibali, "tar")
    line = ("pipelines", "stage", bubblewrap_bench.reference, "--site", "box")
    process = hibali.start(*line)
    wait_for(lambda: tar.calls == 1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(60)
    tar.release()
    assert hibali(*line, "--json", exit=0).last["fresh"]
    assert tar.calls == 2
    [left] = converted(bubblewrap_bench.folder / "work-box", "bubblewrap")
    assert left.name == "ready"
    bubblewrap_bench.run(bubblewrap_bench.answers(), "--wait", exit=0)
    assert tar.calls == 2


@pytest.mark.heavy
def test_a_modified_image_is_converted_again(bubblewrap_bench: Bench) -> None:
    hibali = bubblewrap_bench.hibali
    line = ("pipelines", "stage", bubblewrap_bench.reference, "--site", "box", "--json")
    path = Path(hibali(*line, exit=0).last["path"])
    (path / "bin" / "busybox").write_bytes(b"#!/bin/false\n")
    assert hibali(*line, exit=0).last["fresh"]
    assert (path / "bin" / "busybox").stat().st_size > 100
    shutil.rmtree(path.parents[2])
    identifier = hibali("pipelines", "image", "show", bubblewrap_bench.reference, "--json", exit=0).last["id"]
    bubblewrap_bench.run(bubblewrap_bench.answers(), "--wait", "--image", identifier, exit=0)


@pytest.mark.heavy
def test_a_full_disk_is_reported_and_leaves_no_partial_image(bubblewrap_bench: Bench, tool: Tool) -> None:
    work = bubblewrap_bench.folder / "work-box"
    size = tool.archive.stat().st_size
    with small_filesystem(work, f"size={size * 5 // 2}"):
        work.chmod(0o700)
        line = ("pipelines", "stage", bubblewrap_bench.reference, "--site", "box", "--json")
        failed = bubblewrap_bench.hibali(*line, exit=6).last
        assert failed["code"] == "no-space"
        assert converted(work, "bubblewrap") == []


@pytest.mark.heavy
def test_images_that_a_runtime_cannot_use_are_reported(
    request: pytest.FixtureRequest, hibali: Any, tool: Tool
) -> None:
    ready("bubblewrap", request, hibali)
    bench = Bench(hibali, with_image("cat [IN] >[OUT]", tool))
    bench.add_local_site("plain")
    line = ("pipelines", "stage", bench.reference, "--json", "--site")
    assert hibali(*line, "plain", exit=2).last["code"] == "no-image"
    bench.add_local_site("box", "bubblewrap")
    assert hibali(*line, "box", exit=3).last["code"] == "no-image"
    assert bench.run(bench.answers(), exit=3).last["code"] == "no-image"
    staged = hibali(*line, "box", "--image", tool.archive, exit=0).last
    bench.run(bench.answers(), "--wait", "--image", staged["id"], exit=0)
    (bench.folder / "broken.tar").write_bytes(tool.archive.read_bytes()[:100_000])
    assert hibali(*line, "box", "--image", "broken.tar", exit=2).last["code"] == "bad-image-archive"
    bench.add_local_site("none", "apptainer")
    assert hibali(*line, "none", "--image", tool.archive, exit=2).last["code"] == "no-runtime"


@pytest.mark.heavy
def test_a_tag_of_another_image_is_refused(hibali: Any, podman: Any, tool: Tool) -> None:
    hibali.env |= podman.env
    bench = Bench(hibali, with_image("cat [IN] >[OUT]", tool))
    bench.add_local_site("box", "podman")
    other = bench.folder / "other.tar"
    write_tools(other, tool.name, {"mark": b"another"})
    podman.run("load", "--input", str(other))
    there = podman.run("image", "inspect", "--format={{.Id}}", tool.name).stdout.strip()
    identifier = catalogued(bench, tool)
    for line in (
        ("pipelines", "stage", bench.reference, "--site", "box"),
        bench.line(bench.answers()),
    ):
        refused = hibali(*line, "--json", exit=8).last
        assert refused["code"] == "image-differs"
        assert there in refused["message"]
        assert identifier in refused["message"]
    bench.run(bench.answers(), "--wait", "--image", f"sha256:{there}", exit=0)
    podman.run("rmi", "--force", tool.name)
    bench.run(bench.answers(), "--wait", "--new", exit=0)


@pytest.mark.heavy
@pytest.mark.parametrize("word", ["bubblewrap", "charliecloud", "apptainer"])
def test_an_image_is_sent_to_a_cluster_once_and_used_by_its_jobs(
    word: str, request: pytest.FixtureRequest, hibali: Any, slurm: Any, tool: Tool
) -> None:
    ready(word, request, hibali)
    bench = Bench(hibali, with_image("cat [IN] >[OUT]", tool))
    work = bench.add_slurm_site(slurm)
    config = hibali.home.config
    config.write_text(
        config.read_text().replace('directives = ["--mem=50"]', 'prologue = ["FOUND=here", "export FOUND"]')
        + f'[sites.cluster.container]\nname = "{word}"\n'
    )
    catalogued(bench, tool)
    ids = [bench.run(bench.answers(code=0), "--name", str(number), exit=0).last["id"] for number in range(2)]
    for run_id in ids:
        hibali("runs", "wait", run_id, exit=0)
    hibali("runs", "collect", ids[-1], "back", exit=0)
    assert (bench.folder / "back" / "out.txt").read_text() == "hello\n"
    [folder] = converted(work, word)
    assert not hibali("pipelines", "stage", bench.reference, "--site", "cluster", "--json", exit=0).last[
        "fresh"
    ]
    assert converted(work, word) == [folder]


@pytest.mark.heavy
def test_a_sif_file_is_used_as_it_is(request: pytest.FixtureRequest, hibali: Any, tool: Tool) -> None:
    ready("apptainer", request, hibali)
    file = tool.archive.with_suffix(".sif")
    build = ("apptainer", "build", "--disable-cache", file, f"docker-archive:{tool.archive}")
    subprocess.run(build, env=hibali.env, check=True, capture_output=True)
    image = {"type": "singularity", "image": "tool.sif", "index": "file://"}
    bench = Bench(hibali, {**doing("cat [IN] >[OUT]"), "container-image": image})
    work = bench.add_local_site("box", "apptainer")
    catalogued(bench, Tool(file, tool.name))
    bench.run(bench.answers(), "--wait", "--collect", "back", exit=0)
    assert (bench.folder / "back" / "out.txt").read_text() == "hello\n"
    [folder] = converted(work, "apptainer")
    assert (folder / "image.sif").read_bytes() == file.read_bytes()


@pytest.mark.heavy
def test_a_published_pipeline_runs_at_a_cluster_for_another_account(
    request: pytest.FixtureRequest, hibali: Any, slurm: Any, tool: Tool, tmp_path: Path
) -> None:
    """Check two accounts that share a bare git repository and an image store."""
    ready("bubblewrap", request, hibali)
    subprocess.run(["git", "init", "-q", "--bare", tmp_path / "lab.git"], check=True)
    write_tools(tool.archive, tool.name, {"filler": os.urandom(50_000_000)})
    bench = Bench(hibali, with_image("cat [IN] >[OUT]", tool))
    published = {"HIBALI_STATE": str(tmp_path / "ada"), "HIBALI_CONFIG": str(tmp_path / "ada.toml")}
    there = (tmp_path / "lab.git", "--images", tmp_path / "images")
    for line in (
        ("add", "tool.json"),
        ("image", "add", bench.reference, "--archive", tool.archive),
        ("remotes", "add", "lab", *there),
        ("publish", "--to", "lab"),
    ):
        hibali("pipelines", *line, env=published, exit=0)
    hibali("pipelines", "remove", bench.reference, exit=0)
    hibali("pipelines", "remotes", "add", "lab", *there, exit=0)
    hibali("pipelines", "fetch", "--from", "lab", exit=0)
    bench.add_slurm_site(slurm)
    with hibali.home.config.open("a") as config:
        config.write('[sites.cluster.container]\nname = "bubblewrap"\n')
    stage = ("pipelines", "stage", bench.reference, "--site", "cluster", "--json")
    missing = hibali(*stage, exit=3).last
    assert missing["code"] == "image-not-here"
    hibali("pipelines", "image", "get", bench.reference, "--from", "lab", exit=0)
    shown = [
        hibali("pipelines", "image", "show", bench.reference, "--json", env=env, exit=0).last
        for env in ({}, published)
    ]
    assert (
        shown[0]["digest"]
        == shown[1]["digest"]
        == f"sha256:{hashlib.sha256(tool.archive.read_bytes()).hexdigest()}"
    )
    assert hibali(*stage, exit=0).last["id"] == shown[0]["id"]
    run_id = bench.run(bench.answers(), "--wait", exit=0).last["id"]
    hibali("runs", "collect", run_id, "back", exit=0)
    assert (bench.folder / "back" / "out.txt").read_text() == "hello\n"
