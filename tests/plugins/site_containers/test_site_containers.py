"""Test Sarus and Shifter: images by name and id, and consent, because both mount writable folders of the site."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hibali.errors import UsageError
from hibali_plugins.site_containers.shifter import CONTAINER as SHIFTER
from runs.containers.base import load_container
from tests.contracts.test_container import argv_of, task
from tests.end_to_end.run_tools import Bench, doing
from tests.unit.runs.test_prepare import FOLDER, prepared
from transfers.remote.host import CommandResult


def test_shifter_gets_its_image_and_no_environment_of_the_site(tmp_path: Path) -> None:
    """shifter.c of 18.03: options, then `--`, then the command; Shifter passes all of the environment to the tool."""
    shifter = load_container("shifter")
    given = task("/w", environment={"NAME": "x", "PATH": "."})
    argv = argv_of(shifter.start(given), tmp_path, "shifter")
    at = argv.index("=env=")
    assert argv[:at] == [
        f"--image=id:{'0' * 64}",
        "--workdir=/w/work",
        "--module=none",
        "--",
        "sh",
        "/w/command",
    ]
    assert {word.partition("=")[0] for word in argv[at + 1 :]} - {"PWD", "_"} == {"PATH", "HOME", "NAME"}
    with pytest.raises(UsageError):
        shifter.start(task("/w", sees_work="/data"))


def test_shifter_images_are_found_by_name_and_by_id() -> None:
    """`shifterimg lookup` prints the id, or nothing without such an image."""
    shifter = load_container("shifter")
    assert shifter.image_argv("lab/tool:1") == ("shifterimg", "lookup", "docker:lab/tool:1")
    assert shifter.image_argv(f"sha256:{'a' * 64}")[-1] == f"docker:{'a' * 64}"
    found = shifter.read_image(CommandResult(0, b"a" * 64 + b"\n", b""), "lab/tool:1")
    assert found is not None
    assert found.id == "a" * 64
    for stderr in (b"", b"ERROR: failed to contact the image gateway.\n"):
        assert shifter.read_image(CommandResult(1, stderr, b""), "lab/tool:1") is None
    with pytest.raises(UsageError):
        shifter.read_image(CommandResult(127, b"", b""), "lab/tool:1")


def test_sarus_images_are_found_by_their_loaded_name() -> None:
    """`sarus images`, as its user guide (1.6.4) shows it."""
    sarus = load_container("sarus")
    listed = (
        "REPOSITORY               TAG          IMAGE ID       CREATED               SIZE         SERVER\n"
        "alpine                   latest       e3671980822d   2022-03-25T13:17:13   2.61MB       docker.io\n"
        f"load/library/hibali-{'a' * 64}   latest   2fe79f06fa6d   2018-01-31T15:08:56   47.04MB   load\n"
    ).encode()
    found = sarus.read_image(CommandResult(0, listed, b""), f"sha256:{'a' * 64}")
    assert found is not None
    assert found.id == "a" * 64
    assert sarus.read_image(CommandResult(0, listed, b""), f"sha256:{'b' * 64}") is None
    assert sarus.read_image(CommandResult(0, listed, b""), "alpine") is None


def test_tools_in_shifter_get_copies_of_inputs() -> None:
    """Shifter has no read-only binds, so the tool must not get the original files of the site."""
    found = prepared({"more": ["y", "z"]}, SHIFTER)
    assert [copy.target for copy in found.copies] == [f"{FOLDER}/inputs/{n}/name" for n in range(3)]
    assert f"cat {FOLDER}/inputs/0/name" in found.command
    assert "/c/0" not in found.command + found.start


def test_a_runtime_that_does_not_confine_the_tool_needs_consent(hibali: Any) -> None:
    bench = Bench(hibali, {**doing("cat [IN] >[OUT]"), "container-image": {"type": "docker", "image": "a/b"}})
    (hibali.home.state / "trust.jsonl").unlink()
    for word in ("sarus", "shifter", "podman-hpc"):
        bench.add_local_site(f"at-{word}", word)
        refused = bench.run(bench.answers(), exit=8).last
        assert (refused["code"], refused["hint"].count("pipelines trust")) == ("not-trusted", 1)
        assert not (bench.folder / f"work-at-{word}").exists()
    assert bench.run_ids() == []
