"""Test runs in a container: the tool sees its inputs and no other files."""

from __future__ import annotations

from typing import Any

import pytest

from tests.end_to_end.run_tools import Bench, doing


def with_image(command: str, podman: Any, **more: Any) -> dict[str, Any]:
    return {
        **doing(command),
        "container-image": {"type": "docker", "image": podman.image, **more},
        "environment-variables": [{"name": "NOTE", "value": "it's $(id) [SAY]"}],
    }


@pytest.fixture
def podman_hibali(hibali: Any, podman: Any) -> Any:
    hibali.env |= podman.env
    return hibali


def test_the_tool_runs_as_its_image_and_sees_inputs_read_only(podman_hibali: Any, podman: Any) -> None:
    command = "cat [IN] [MORE] >[OUT]; echo more >>[IN]; echo $NOTE; ls /root /home /etc; pwd; exit [CODE]"
    bench = Bench(podman_hibali, with_image(command, podman))
    work = bench.add_local_site("box", "podman")
    hostile = "a,b\"c 'd:e\nf"
    (bench.folder / hostile).write_text("strange\n")
    run_id = bench.run(bench.answers(more=[f"./{hostile}"]), "--wait", exit=0).last["id"]
    output = bench.hibali("runs", "logs", run_id, exit=0).out.decode()
    assert output.splitlines()[0] == "it's $(id) done"
    assert output.splitlines()[-1] == f"{work}/runs/{run_id}/work"
    assert "hibali" not in output.partition("\n")[2].rpartition(str(work))[0]
    assert b"Read-only file system" in bench.hibali("runs", "logs", run_id, "--stderr", exit=0).out
    bench.hibali("runs", "collect", run_id, "back", exit=0)
    assert (bench.folder / "back" / "out.txt").read_text() == "hello\nstrange\n"
    assert (bench.folder / "input.txt").read_text() == "hello\n"


def test_an_input_at_the_site_is_mounted_from_its_location(podman_hibali: Any, podman: Any) -> None:
    bench = Bench(podman_hibali, with_image("cat [MORE] >[OUT]; echo x >>[MORE]; true", podman))
    bench.add_local_site("box", "podman")
    there = bench.folder / "there.txt"
    there.write_text("in place\n")
    run_id = bench.run(bench.answers(more=[f"box:{there}"]), "--wait", exit=0).last["id"]
    bench.hibali("runs", "collect", run_id, "back", exit=0)
    assert (bench.folder / "back" / "out.txt").read_text() == "in place\n"
    assert there.read_text() == "in place\n"


def test_the_tool_cannot_access_the_files_of_the_run_itself(podman_hibali: Any, podman: Any) -> None:
    bench = Bench(
        podman_hibali, with_image("touch [OUT]; rm -f ../exit.json ../job.sh; ls ..; exit 3", podman)
    )
    work = bench.add_local_site("box", "podman")
    run_id = bench.run(bench.answers(), "--wait", exit=7).lines[-2]["id"]
    seen = bench.hibali("runs", "logs", run_id, "--stdout", exit=0).out.decode().split()
    assert not {"job.sh", "start", "started", "stdout"} & set(seen)
    assert (work / "runs" / run_id / "job.sh").exists()


def test_an_image_archive_can_be_given_and_another_image_of_its_name_is_refused(
    podman_hibali: Any, podman: Any
) -> None:
    bench = Bench(podman_hibali, with_image("cat [IN] >[OUT]", podman))
    bench.add_local_site("box", "podman")
    answers = bench.answers()
    bench.run(answers, "--wait", "--image", str(podman.archive), exit=0)
    pins = bench.hibali.home.state / "runs" / "images.pins"
    [pin] = pins.read_text().splitlines()
    image = podman.run("image", "inspect", "--format={{.Id}}", podman.image).stdout.strip()
    assert image in pin
    pins.write_text(pin.replace(image, "f" * 64) + "\n")
    refused = bench.run(answers, exit=8).last
    assert refused["code"] == "image-changed"
    bench.run(answers, "--wait", "--image", f"sha256:{image}", exit=0)
    bench.run(answers, "--image", "input.txt", exit=2)
    bench.run(answers, "--image", f"sha256:{'e' * 64}", exit=3)


def test_forbidden_requests_of_a_descriptor_are_refused_before_the_run(
    podman_hibali: Any, podman: Any
) -> None:
    options = {"container-opts": ["--privileged"]}
    bench = Bench(podman_hibali, with_image("cat [IN] >[OUT]", podman, **options))
    bench.add_local_site("box", "podman")
    assert bench.run(bench.answers(), exit=8).last["code"] == "container-option"
    assert bench.run_ids() == []
