"""Test every container runtime: arguments, a checked environment, and a short list of options."""

from __future__ import annotations

import csv
import io
import os
import re
import subprocess
import tomllib
from itertools import takewhile
from pathlib import Path

import pytest

from hibali.errors import RefusedError, UsageError
from hibali.plugins import built_in_names
from registry.pipeline import Container as Wanted
from runs.containers.base import Bind, Container, Task, check_environment, load_container, read_options
from runs.schedulers.base import load_scheduler
from transfers.remote.host import CommandResult

RUN = "20260102-030405-0a1b2c3d"
HOSTILE = "a b,'c\"d:e\n$(touch pwned) ; é*"
PROGRAMS = {"bare": "env", "bubblewrap": "bwrap", "charliecloud": "ch-run"}
PROGRAMS |= {"pyxis": "srun", "container-engine": "srun"}
OF_SRUN = ("pyxis", "container-engine")
# characters that each cannot represent in a path; such a path is refused (8) before anything starts
REFUSES = {"charliecloud": ":", "sarus": ',="\\\n', "shifter": " ,'\":\n$();é*=\\"}
REFUSES |= dict.fromkeys(OF_SRUN, " ,'\":\n$();é*\\")
# variables of the site that no tool may see, and those of launchers and schedulers for each task
NOISE = {
    "APPTAINER_BIND": "/",
    "SINGULARITYENV_LD_PRELOAD": "/x",
    "APPTAINERENV_A": "1",
    "SHIFTER_VOLUME": "/:/x",
    "SLURM_JWT": "secret",
    "AWS_SECRET_ACCESS_KEY": "secret",
}
RANK = {"SLURM_PROCID": "1", "PMIX_RANK": "1", "OMPI_COMM_WORLD_RANK": "1"}
DEVICES = {"CUDA_VISIBLE_DEVICES": "2,3", "ROCR_VISIBLE_DEVICES": "2,3", "ZE_AFFINITY_MASK": "2,3"}


@pytest.fixture(params=built_in_names("runs.containers"))
def container(request: pytest.FixtureRequest) -> Container:
    return load_container(request.param)


def isolating() -> list[str]:
    return [word for word in built_in_names("runs.containers") if load_container(word).isolates]


def binding() -> list[str]:
    """Return the runtimes with bind options: Shifter mounts what the site configures."""
    found = [load_container(word) for word in isolating()]
    return [each.name for each in found if each.binds_inputs or each.place]


def task(folder: str, **more: object) -> Task:
    values = {
        "run": RUN,
        "command": f"{folder}/command",
        "sees_command": f"{folder}/command",
        "shell": "sh",
        "work": f"{folder}/work",
        "sees_work": f"{folder}/work",
        "environment": {"NAME": HOSTILE},
        "image": "0" * 64,
        "launched": load_scheduler("slurm").variables.launched,
        "launcher": ("srun",),
    }
    return Task(**{**values, **more})  # type: ignore[arg-type]


def argv_of(start: str, tmp_path: Path, runtime: str) -> list[str]:
    """Return the arguments that reach the runtime through a shell, `=env=`, then its environment as
    NAME=VALUE."""
    program = tmp_path / "programs" / PROGRAMS.get(runtime, runtime)
    program.parent.mkdir(exist_ok=True)
    help_text = '[ "$1" != --help ] || { echo --container-unshare=NS; exit; }'
    program.write_text(f'#!/bin/sh\n{help_text}\nprintf "%s\\0" "$@" =env=\nexec /usr/bin/env -0\n')
    program.chmod(0o755)
    start = re.sub("^edf=.*", f"edf={tmp_path}/environment.toml", start, flags=re.MULTILINE)
    ended = subprocess.run(
        ["/bin/sh", "-c", start],
        env={"PATH": f"{program.parent}:{os.environ['PATH']}", "HOME": "/h", **NOISE, **RANK, **DEVICES},
        capture_output=True,
        check=True,
        cwd=tmp_path,
    )
    return ended.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]


def is_passed(argv: list[str], name: str, value: str) -> bool:
    """Return whether a variable reaches the tool, in any way that the runtime supports."""
    pair = f"{name}={value}"
    whole = {
        pair,
        f"--env={pair}",
        f"APPTAINERENV_{pair}",
        f"SINGULARITYENV_{pair}",
        f"--set-env={name}='{value}'",
    }
    return bool(whole & set(argv)) or ["--setenv", name, value] in [
        argv[at : at + 3] for at in range(len(argv))
    ]


def seen_environment(runtime: str, argv: list[str]) -> dict[str, str]:
    """Return the tool's variables, without those of the runtime."""
    at = argv.index("=env=")
    given, around = argv[:at], [each.partition("=")[::2] for each in argv[at + 1 :]]
    if runtime in OF_SRUN:
        return environment_inside(given, dict(around))
    if runtime in {"bare", "sarus", "shifter"}:
        found = dict(around)
    else:
        prefix = f"{runtime.upper()}ENV_"
        found = {name.removeprefix(prefix): value for name, value in around if name.startswith(prefix)}
    for number, word in enumerate(given):
        if word.startswith("--env="):
            name, _, value = word.removeprefix("--env=").partition("=")
            found[name] = value
        elif word.startswith("--set-env="):
            name, _, value = word.removeprefix("--set-env=").partition("=")
            found[name] = value[1:-1]
        elif word == "--setenv":
            found[given[number + 1]] = given[number + 2]
    return found


def environment_inside(given: list[str], around: dict[str, str]) -> dict[str, str]:
    """Return the tool's variables after the shell that starts it in the container."""
    shell = given[given.index("/bin/sh") :]
    variables = takewhile(lambda word: "=" in word, shell[4:])
    line = [*shell[:4], *variables, "/usr/bin/env", "-0"]
    ended = subprocess.run(line, env=around, capture_output=True, check=True)
    found = ended.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]
    return dict(each.partition("=")[::2] for each in found)


def mounts_of(container: Container, argv: list[str]) -> list[tuple[str, str, bool]]:
    """Return every requested bind: source, target, whether read-only."""
    found = []
    for at, word in enumerate(argv):
        if word in {"--bind", "--ro-bind"}:
            found.append((argv[at + 1], argv[at + 2], word == "--ro-bind"))
        elif word.startswith("--bind="):
            source, _, target = word.removeprefix("--bind=").partition(":")
            found.append((source, target, False))
        elif word.startswith("--mount="):
            [fields] = csv.reader(io.StringIO(word.removeprefix("--mount=")))
            given = dict(field.partition("=")[::2] for field in fields)
            source, target = (
                given.get(a, given.get(b, "")) for a, b in (("src", "source"), ("dst", "destination"))
            )
            found.append((source, target, bool({"ro", "readonly"} & set(given))))
        elif word.startswith("--container-mounts="):
            found += [read_mount(each) for each in word.partition("=")[2].split(",")]
        elif word.startswith("--environment="):
            edf = tomllib.loads(Path(word.partition("=")[2]).read_text())
            found += [read_mount(each) for each in edf["mounts"]]
    return [each for each in found if container.form == "" or each[0] != "0" * 64]


def read_mount(text: str) -> tuple[str, str, bool]:
    source, target, *flags = text.split(":")
    assert flags in ([], ["ro"])
    return source, target, bool(flags)


def test_every_argument_reaches_the_runtime_unchanged(container: Container, tmp_path: Path) -> None:
    hostile = "".join(letter for letter in HOSTILE if letter not in REFUSES.get(container.name, ""))
    folder = f"/w/{hostile}"
    inside = f"{container.place}/1/0/{hostile}" if container.place else f"{folder}/inputs/0/{hostile}"
    binds = (Bind(f"/cache/{hostile}", inside),) if container.isolates else ()
    start = container.start(task(folder, binds=binds))
    argv = argv_of(start, tmp_path, container.name)
    assert f"{folder}/command" in argv
    assert is_passed(argv, "NAME", HOSTILE)
    assert not (tmp_path / "pwned").exists()
    if container.isolates:
        assert is_passed(argv, "HOME", f"{folder}/work") or "HOME=$1" in str(argv)
    if container.name in binding():
        mounts = mounts_of(container, argv)
        assert (f"/cache/{hostile}", inside, container.binds_inputs) in mounts
        assert (f"{folder}/work", f"{folder}/work", False) in mounts


@pytest.mark.parametrize("word", isolating())
def test_a_path_that_a_mount_option_cannot_express_is_refused(word: str) -> None:
    container = load_container(word)
    for letter in REFUSES.get(word, ""):
        with pytest.raises(RefusedError) as refused:
            container.start(task(f"/w/{letter}"))
        assert refused.value.exit == 8
    if container.place == "" and word != "sarus":
        with pytest.raises(RefusedError):
            container.start(task("/w/\r"))


@pytest.mark.parametrize("word", isolating())
def test_the_tool_gets_only_its_own_environment(word: str, tmp_path: Path) -> None:
    """S10: variables of the site, a launcher or a scheduler reach the tool only where needed."""
    container = load_container(word)
    seen = seen_environment(word, argv_of(container.start(task("/w")), tmp_path, word))
    assert seen["NAME"] == HOSTILE
    assert not seen.keys() & {*NOISE, *RANK, *DEVICES}
    together = seen_environment(word, argv_of(container.start(task("/w", tasks=2)), tmp_path, word))
    assert together.items() >= RANK.items()
    assert not together.keys() & {*NOISE, *DEVICES}


@pytest.mark.parametrize("word", isolating())
def test_tasks_of_one_job_share_network_and_memory_with_unique_container_names(
    word: str, tmp_path: Path
) -> None:
    container = load_container(word)
    argv = argv_of(container.start(task("/w", tasks=2)), tmp_path, word)
    granted = " ".join(argv[: argv.index("=env=")]).replace(str(tmp_path), "")  # which may be below /dev/shm
    assert "network=none" not in granted
    assert "--unshare-net" not in granted
    assert f"--name=hibali-{RUN}" not in granted
    shared = ("/dev/shm", "--ipc=host")
    own = word in {"charliecloud", "sarus", "shifter", *OF_SRUN}  # the node shares these anyway
    assert any(each in granted for each in shared) != own
    kept = {"bubblewrap": "--unshare-pid", "apptainer": "--containall", "singularity": "--containall"}
    assert (
        kept.get(word, "") in granted
    )  # another process's /proc/PID/root gives access to all files of its user


# As their manuals say: docker-run(1), podman-run(1) and the Container Device Interface, apptainer-exec(1), shifter's modules.rst;
# Charliecloud and bubblewrap only by the devices, Sarus, Pyxis and the Container Engine by hooks, which read variables.
OF_AMD = ("--device=/dev/kfd", "--device=/dev/dri")
SHOWN = {
    ("docker", "nvidia"): ("--gpus=all",),
    ("docker", "amd"): OF_AMD,
    ("podman", "nvidia"): ("--device=nvidia.com/gpu=all",),
    ("podman", "amd"): OF_AMD,
    ("apptainer", "nvidia"): ("--nv",),
    ("apptainer", "amd"): ("--rocm",),
    ("singularity", "nvidia"): ("--nv",),
    ("singularity", "amd"): ("--rocm",),
    ("bubblewrap", "amd"): ("--dev-bind", "/dev/kfd", "/dev/dri"),
    ("charliecloud", "amd"): (),
    ("sarus", "nvidia"): (),
    ("sarus", "amd"): (),
    ("shifter", "nvidia"): ("--module=gpu",),
    ("shifter", "amd"): ("--module=gpu",),
    ("podman-hpc", "nvidia"): ("--gpu",),
    ("pyxis", "nvidia"): (),
    ("pyxis", "amd"): (),
    ("container-engine", "nvidia"): (),
    ("container-engine", "amd"): (),
    ("bare", "nvidia"): (),
    ("bare", "amd"): (),
}


def test_gpus_are_visible_only_when_requested(container: Container, tmp_path: Path) -> None:
    assert container.gpus == {kind for word, kind in SHOWN if word == container.name}
    everything = {word for argv in SHOWN.values() for word in argv}
    plain = argv_of(container.start(task("/w")), tmp_path, container.name)
    assert not everything & set(plain)
    for kind in container.gpus:
        argv = argv_of(container.start(task("/w", gpus=kind)), tmp_path, container.name)
        assert set(SHOWN[container.name, kind]) <= set(argv)
        assert seen_environment(container.name, argv).items() >= DEVICES.items()


def test_runtimes_that_do_not_confine_tools_need_consent(container: Container) -> None:
    """S11: each pipeline needs consent there. These mount folders of the site, writable or as an image wants it."""
    leaks = {"bare", "sarus", "shifter", "podman-hpc", *OF_SRUN}
    assert container.confines == (container.name not in leaks)


@pytest.mark.parametrize("word", binding())
def test_isolating_runtimes_grant_no_privileges(word: str, tmp_path: Path) -> None:
    container = load_container(word)
    inside = f"{container.place}/1/0/x" if container.place else "/w/inputs/0/x"
    start = container.start(task("/w", binds=(Bind("/cache/x", inside),)))
    argv = argv_of(start, tmp_path, word)
    granted = " ".join(argv)
    assert "privileged" not in granted.replace("no-new-privileges", "")
    for hardening in HARDENING[word]:
        assert hardening in granted, hardening
    mounts = mounts_of(container, argv)
    writable = [each for each in mounts if not each[2]]
    assert ("/w/work", "/w/work", False) in writable
    assert len(writable) == (1 if container.binds_inputs else 2)
    assert {source for source, _, _ in mounts} <= {"/w/work", "/w/command", "/cache/x"}
    with pytest.raises(UsageError):
        container.image_name(None)


# Charliecloud sets no-new-privileges and has no capabilities by itself (ch-run(1)); so has Sarus (its OCI bundle).
OF_DOCKER = ("--network=none", "--cap-drop=all", "--security-opt=no-new-privileges", "--pull=never", "--rm")
OF_APPTAINER = ("--net --network=none", "--containall", "--cleanenv", "--no-home", "--no-eval", "--no-privs")
HARDENING = {
    "podman": OF_DOCKER,
    "docker": (*OF_DOCKER, "--user="),
    "apptainer": OF_APPTAINER,
    "singularity": OF_APPTAINER,
    "bubblewrap": (
        "--unshare-net",
        "--unshare-pid",
        "--cap-drop ALL",
        "--clearenv",
        "--die-with-parent",
        "--remount-ro",
        "--ro-bind-try /proc/sys /proc/sys",
        "--ro-bind-try /proc/sysrq-trigger /proc/sysrq-trigger",
    ),
    "charliecloud": ("--unset-env=*", "--private-tmp", "--env-no-expand"),
    "sarus": ("--pid=private",),
    "podman-hpc": OF_DOCKER,
    "pyxis": (
        "--container-readonly",
        "--no-container-mount-home",
        "--no-container-remap-root",
        "--no-container-entrypoint",
    ),
    "container-engine": ("ENROOT_MOUNT_HOME=n",),  # tests/plugins/site_containers has its file
}


@pytest.mark.parametrize("word", isolating())
def test_an_entry_point_gets_its_arguments_unquoted(word: str, tmp_path: Path) -> None:
    container = load_container(word)
    given = task("/w", argv=("--threshold", "a b"), entrypoint=("/tool",))
    argv = argv_of(container.start(given), tmp_path, word)
    at = argv.index("--threshold")
    assert argv[at + 1] == "a b"
    assert "sh" not in argv
    assert (argv[at - 1] == "/tool") == container.flattens


@pytest.mark.parametrize("word", isolating())
def test_archives_are_converted_to_a_file_or_loaded_into_the_runtime(word: str) -> None:
    container = load_container(word)
    for kind in container.formats:
        lines = container.convert_argv("/c/a", "/i/p/result", kind, "f" * 64)
        assert any("/c/a" in text for argv in lines for text in argv)
        assert any("/i/p/result" in text for argv in lines for text in argv) == bool(container.form)
        assert not any("http" in text or "docker:" in text for argv in lines for text in argv)
    assert bool(container.image_argv("x")) == (container.form == "")


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
        "SHIFTER_VOLUME",
        "SARUS_X",
        "CH_X",
        "PODMAN_X",
        "PODMANHPC_MODULES_DIR",
        "ENROOT_MOUNT_HOME",
        "PYXIS_CONTAINER_MOUNTS",
        "CONTAINERS_CONF",
        "PBS_X",
        "SHELLOPTS",
        "PS4",
        "IFS",
        "1A",
        "A=B",
        "A B",
        "A\n",
        "",
        "Ä",
    ],
)
def test_variables_that_affect_more_than_the_tool_are_refused(name: str) -> None:
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
def test_other_container_options_are_refused(options: tuple[str, ...]) -> None:
    with pytest.raises(RefusedError):
        read_options(Wanted("docker", "a/b", options=options), "/w/work")


def test_harmless_container_options_are_accepted() -> None:
    wanted = Wanted("docker", "a/b", options=("-e", "HOME=$PWD", "--rm", "--env=A=1 2", "--shm-size=64m"))
    with pytest.raises(RefusedError):
        read_options(wanted, "/w/work")  # `--env=A=1 2` is split into two options
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
def test_podman_image_names_match_descriptors(wanted: Wanted, name: str) -> None:
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
def test_podman_refuses_images_it_cannot_start(wanted: Wanted) -> None:
    with pytest.raises(UsageError):
        load_container("podman").image_name(wanted)


@pytest.mark.parametrize(
    ("word", "stderr"),
    [
        ("podman", b"Error: inspecting object: a/b: image not known\n"),
        ("docker", b"Error: No such image: a/b\n"),  # 20.10.24
        ("docker", b"Error response from daemon: No such image: a/b:latest\n"),  # 28.2.2
    ],
)
def test_a_missing_image_differs_from_a_missing_runtime(word: str, stderr: bytes) -> None:
    podman = load_container(word)
    missing = CommandResult(125, b"[]\n", stderr)
    assert podman.read_image(missing, "a/b") is None
    with pytest.raises(UsageError):
        podman.read_image(CommandResult(127, b"", b""), "a/b")
    answer = b'[{"Id":"%s","Digest":"sha256:%s","RepoDigests":["a/b@sha256:%s"]}]' % (
        b"a" * 64,
        b"b" * 64,
        b"c" * 64,
    )
    found = podman.read_image(CommandResult(0, answer, b""), "a/b")
    assert found is not None
    assert (found.id, found.digests) == ("a" * 64, (f"sha256:{'b' * 64}", f"sha256:{'c' * 64}"))
