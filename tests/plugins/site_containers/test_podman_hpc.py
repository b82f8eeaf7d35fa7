"""Test podman-hpc: its command lines, and a real one where it can be installed."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hibali.errors import TryLaterError, UsageError
from runs.containers.base import load_container
from tests.contracts.test_container import DEVICES, argv_of, task
from tests.end_to_end.image_tools import Tool, catalogued, make_tool
from tests.end_to_end.run_tools import Bench, doing
from tests.plugins.setup.test_doctor import steps
from tests.services.mounts import unmount_below
from tests.support.podman_hpc import podman_hpc_environment, write_tools_with_mksquashfs
from transfers.remote.host import CommandResult

ID, DIGEST = "a" * 64, f"sha256:{'b' * 64}"
LISTED = {  # `podman images --format=json` of Podman 4.3.1, shortened
    "Id": ID,
    "ParentId": "",
    "RepoTags": None,
    "RepoDigests": [f"docker.io/lab/tool@{DIGEST}"],
    "Names": ["docker.io/lab/tool:1"],
    "Digest": DIGEST,
    "ReadOnly": True,
}


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("lab/tool:1", True),
        ("docker.io/lab/tool:1", True),
        (f"sha256:{ID}", True),
        (f"lab/tool@{DIGEST}", True),
        ("lab/tool", False),
        (f"sha256:{'c' * 64}", False),
        (f"lab/tool@sha256:{'c' * 64}", False),
    ],
)
def test_migrated_images_are_found_by_name_id_and_digest(name: str, found: bool) -> None:
    container = load_container("podman-hpc")
    other = {**LISTED, "Id": "d" * 64, "Names": None, "Digest": "", "RepoDigests": None}
    answer = CommandResult(0, json.dumps([other, LISTED]).encode(), b"")
    image = container.read_image(answer, name)
    assert (image is not None) == found
    assert image is None or (image.id, image.digests) == (ID, (DIGEST,))
    assert container.read_image(CommandResult(0, b"", b""), name) is None


def test_what_cannot_be_read_is_never_a_missing_image() -> None:
    container = load_container("podman-hpc")
    for answer in (b"{", b"[1]", b'{"a": 1}'):
        with pytest.raises(TryLaterError):
            container.read_image(CommandResult(0, answer, b""), "lab/tool:1")
    with pytest.raises(TryLaterError):
        container.read_image(CommandResult(1, b"", b"Error: No crun binary found in PATH"), "a")
    with pytest.raises(UsageError):
        container.read_image(CommandResult(127, b"", b""), "a")


@pytest.fixture
def stores(hibali: Any) -> Iterator[Path]:
    """Yield the folder of podman-hpc's stores, with podman-hpc in `hibali.env`; Podman takes only short paths."""
    with tempfile.TemporaryDirectory(prefix="hpc-") as name:
        folder = Path(name)
        hibali.env |= podman_hpc_environment(folder, hibali.env["PATH"])
        yield folder
        unmount_below(folder)


@pytest.mark.heavy
def test_a_loaded_and_migrated_image_runs_where_only_the_migrated_one_is(hibali: Any, stores: Path) -> None:
    tool = Tool(stores / "tool.tar", "localhost/hibali-hpc:1")
    write_tools_with_mksquashfs(tool.archive, tool.name)
    image = {"container-image": {"type": "docker", "image": tool.name}}
    command = "cat [IN] >[OUT]; echo more >>[IN]; touch $HOME/kept; echo --gpu --help [SAY]; env; exit [CODE]"
    bench = Bench(hibali, {**doing(command), **image})
    work = bench.add_local_site("box", "podman-hpc")
    identifier = catalogued(bench, tool)
    stage = ("pipelines", "stage", bench.reference, "--site", "box", "--json")
    first, second = (hibali(*stage, exit=0).last for _ in range(2))
    assert (first["id"], first["fresh"], second["fresh"]) == (identifier, True, False)
    hibali.env["PODMANHPC_GRAPH_ROOT"] = f"{stores}/graph-of-a-node"
    run_id = bench.run(bench.answers(), "--wait", exit=0).last["id"]
    output = hibali("runs", "logs", run_id, exit=0).out.decode()
    assert output.splitlines()[0] == "--gpu --help done"
    assert "TEST_SERVICES" not in output
    assert (work / "runs" / run_id / "work" / "kept").exists()
    hibali("runs", "collect", run_id, "back", exit=0)
    assert (bench.folder / "back" / "out.txt").read_text() == "hello\n"
    assert (bench.folder / "input.txt").read_text() == "hello\n"
    verdicts, _, _ = steps(hibali, "box", exit=0)
    assert verdicts["container"] == "ok"


@pytest.mark.heavy
def test_a_failed_migration_is_reported(hibali: Any, stores: Path) -> None:
    """`podman-hpc migrate` ends with 0: this image has no mksquashfs."""
    tool = make_tool(stores)
    image = {"container-image": {"type": "docker", "image": tool.name}}
    bench = Bench(hibali, {**doing("cat [IN] >[OUT]"), **image})
    bench.add_local_site("box", "podman-hpc")
    catalogued(bench, tool)
    failed = hibali("pipelines", "stage", bench.reference, "--site", "box", "--json", exit=6).last
    assert failed["code"] == "image-not-staged"
    assert "Squash Failed" in failed["message"]


@pytest.mark.heavy
@pytest.mark.parametrize("gpus", ["", "nvidia"])
def test_the_wrapper_passes_on_all_of_podmans_options(gpus: str, stores: Path, hibali: Any) -> None:
    """Its own parser takes `--gpu` of the site's module, and nothing after `--`."""
    (stores / "modules" / "gpu.yaml").write_text(
        'name: gpu\ncli_arg: gpu\nenv: ENABLE_GPU\nadditional_args: ["--env=FROM_MODULE=1"]\n'
    )
    double = stores / "bin" / "podman"
    double.parent.mkdir()
    double.write_text('#!/bin/sh\nprintf "%s\\0" "$@"\n')
    double.chmod(0o755)
    given = task("/w", gpus=gpus, argv=("--gpu", "--help", "--log-level=x"))
    env = {**hibali.env, **DEVICES, "PATH": f"{double.parent}:{hibali.env['PATH']}"}
    start = load_container("podman-hpc").start(given)
    ended = subprocess.run(["/bin/sh", "-c", start], env=env, capture_output=True, check=True)
    words = ended.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]
    wrapped = argv_of(start, stores, "podman-hpc")
    passed = wrapped[wrapped.index("--") + 1 : wrapped.index("=env=")]
    assert words[0] == "run"
    assert words[-len(passed) :] == passed
    assert ("ENABLE_GPU=1" in words) == ("--env=FROM_MODULE=1" in words) == bool(gpus)
