"""What every container runtime promises: the tool as words, the environment checked, options on a short list."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hibali.errors import RefusedError, UsageError
from hibali.plugins import built_in_words
from registry.pipeline import Container as Wanted
from runs.container import (
    Bind,
    Container,
    Task,
    check_environment,
    load_container,
    read_options,
)
from transfers.far import Finished

RUN = "20260102-030405-0a1b2c3d"
HOSTILE = "a b,'c\"d:e\n$(touch pwned) ; é*"


@pytest.fixture(params=built_in_words("runs.containers"))
def container(request: pytest.FixtureRequest) -> Container:
    return load_container(request.param)


def task(folder: str, **more: object) -> Task:
    values = {
        "run": RUN,
        "command": f"{folder}/command",
        "shell": "sh",
        "work": f"{folder}/work",
        "sees_work": f"{folder}/work",
        "environment": {"NAME": HOSTILE},
        "image": "0" * 64,
    }
    return Task(**{**values, **more})  # type: ignore[arg-type]


def words_of(start: str, tmp_path: Path, runtime: str) -> list[str]:
    """The words that reach the runtime, or env(1) without one, when a shell reads the start line."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for program in ("env", runtime):
        (programs / program).write_text('#!/bin/sh\nprintf "%s\\0" "$@"\n')
        (programs / program).chmod(0o755)
    ended = subprocess.run(
        ["/bin/sh", "-c", start],
        env={"PATH": f"{programs}:{os.environ['PATH']}"},
        capture_output=True,
        check=True,
        cwd=tmp_path,
    )
    return ended.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]


def test_every_word_reaches_the_runtime_as_it_is(container: Container, tmp_path: Path) -> None:
    folder = f"/w/{HOSTILE}"
    binds = (Bind(f"/cache/{HOSTILE}", f"{folder}/inputs/0/{HOSTILE}"),) if container.isolates else ()
    start = container.start(task(folder, binds=binds))
    words = words_of(start, tmp_path, container.name)
    assert f"{folder}/command" in words
    assert any(word.endswith(f"NAME={HOSTILE}") for word in words)
    assert not (tmp_path / "pwned").exists()


def test_one_that_isolates_grants_nothing(tmp_path: Path) -> None:
    for word in built_in_words("runs.containers"):
        container = load_container(word)
        if not container.isolates:
            assert container.image_name(None) == ""
            continue
        start = container.start(task("/w", binds=(Bind("/cache/x", "/w/inputs/0/x"),)))
        assert "--network=none" in start
        assert "--cap-drop=all" in start
        assert "no-new-privileges" in start
        assert "privileged" not in start.replace("no-new-privileges", "")
        mounts = [each for each in words_of(start, tmp_path, word) if each.startswith("--mount=")]
        writable = [each for each in mounts if not each.endswith(",ro=true")]
        assert len(writable) == 1
        assert "src=/w/work,dst=/w/work" in writable[0]
        with pytest.raises(UsageError):
            container.image_name(None)


@pytest.mark.parametrize(
    "name",
    [
        "LD_PRELOAD",
        "BASH_ENV",
        "ENV",
        "PYTHONPATH",
        "SLURM_X",
        "APPTAINERENV_A",
        "SINGULARITY_B",
        "DOCKER_HOST",
        "HIBALI_STATE",
        "1A",
        "A=B",
        "A B",
        "A\n",
        "",
        "Ä",
    ],
)
def test_variables_that_reach_beyond_the_tool_are_refused(name: str) -> None:
    with pytest.raises(RefusedError):
        check_environment({name: "x"})


@pytest.mark.parametrize(
    "options",
    [
        ("--privileged",),
        ("-v", "/:/host"),
        ("-v /tmp:/tmp",),
        ("--mount=type=bind,src=/,dst=/x",),
        ("--network=host",),
        ("--user=0",),
        ("--cap-add=all",),
        ("-e", "LD_PRELOAD=/x"),
        ("-e",),
        ("-e", "NAME"),
        ("--shm-size=1g --privileged",),
        ("--entrypoint=/bin/sh",),
        ("'",),
    ],
)
def test_container_options_are_a_short_list(options: tuple[str, ...]) -> None:
    with pytest.raises(RefusedError):
        read_options(Wanted("docker", "a/b", options=options), "/w/work")


def test_the_harmless_options_are_understood() -> None:
    wanted = Wanted("docker", "a/b", options=("-e", "HOME=$PWD", "--rm", "--env=A=1 2", "--shm-size=64m"))
    with pytest.raises(RefusedError):
        read_options(wanted, "/w/work")  # `--env=A=1 2` is two words
    wanted = Wanted("docker", "a/b", options=("-e", "HOME=$PWD", "--rm", "--env=A=$x", "--shm-size=64m"))
    assert read_options(wanted, "/w/work") == ({"HOME": "/w/work", "A": "$x"}, "64m")


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        (Wanted("docker", "a/b:1"), "a/b:1"),
        (Wanted("docker", "a/b", index="index.docker.io"), "a/b"),
        (Wanted("docker", "a/b", index="docker://"), "a/b"),
        (Wanted("docker", "a/b", index="ghcr.io"), "ghcr.io/a/b"),
        (Wanted("singularity", "docker://a/b:1"), "a/b:1"),
        (Wanted("singularity", "a/b", index="docker://"), "a/b"),
    ],
)
def test_podman_names_images_as_descriptors_do(wanted: Wanted, name: str) -> None:
    assert load_container("podman").image_name(wanted) == name


@pytest.mark.parametrize(
    "wanted",
    [
        Wanted("singularity", "a/b", index="shub://"),
        Wanted("rootfs", url="http://x/y"),
        Wanted("docker", "--privileged"),
        Wanted("docker", "a b"),
    ],
)
def test_podman_refuses_what_it_cannot_start(wanted: Wanted) -> None:
    with pytest.raises(UsageError):
        load_container("podman").image_name(wanted)


def test_podman_tells_an_absent_image_from_an_absent_podman() -> None:
    podman = load_container("podman")
    missing = Finished(125, b"[]\n", b"Error: inspecting object: a/b: image not known\n")
    assert podman.read_image(missing) is None
    with pytest.raises(UsageError):
        podman.read_image(Finished(127, b"", b""))
    answer = b'[{"Id":"%s","Digest":"sha256:%s","RepoDigests":["a/b@sha256:%s"]}]' % (
        b"a" * 64,
        b"b" * 64,
        b"c" * 64,
    )
    found = podman.read_image(Finished(0, answer, b""))
    assert found is not None
    assert (found.id, found.digests) == ("a" * 64, (f"sha256:{'b' * 64}", f"sha256:{'c' * 64}"))
