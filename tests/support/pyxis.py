"""Stand in for srun with Pyxis, or with the Container Engine of CSCS, which no package has: `PYTHON pyxis.py FORM SRUN ARGUMENT...`.

It takes the options that Pyxis 0.24 and Enroot 4.1 document (README.md, args.c), or the keys of the EDF reference of docs.cscs.ch
(August 2026), and refuses all others. Then Slurm's own srun starts bwrap for each task, with the image unpacked by unsquashfs as
`enroot create` does. Mounts are split as in Pyxis; a path that Pyxis would not pass on unchanged is refused. Known difference: Pyxis
starts one container for all tasks on a node. The tests marked heavy passed with Pyxis 0.24 and Enroot 4.1.2, too (29 November 2026).
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

VALUES = ("container-image", "container-mounts", "container-workdir", "container-name", "container-save")
VALUES += ("container-env", "container-unshare")
FLAGS = ("container-mount-home", "container-remap-root", "container-entrypoint")
SWITCHES = (*FLAGS, *(f"no-{name}" for name in FLAGS), "container-entrypoint-log", "container-writable")
SWITCHES += ("container-readonly",)
KEYS = {"base_environment": str, "image": str, "workdir": str, "entrypoint": bool, "writable": bool}
KEYS |= {"mounts": list, "env": dict, "annotations": dict}
_UNSAFE = re.compile(r"[\s\"$`\\]")  # Pyxis writes paths between quotation marks into a script of bash


@dataclass
class Wanted:
    """A container to start; by default writable, as in an EDF."""

    image: str = ""
    mounts: list[str] = field(default_factory=list)
    workdir: str = ""
    writable: bool = True
    namespaces: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)


def refuse(reason: str) -> NoReturn:
    sys.exit(f"srun: error: pyxis: {reason}")


def read_options(words: list[str]) -> tuple[Wanted, list[str], list[str]]:
    """Return the container, srun's own options, and the command."""
    wanted, own = Wanted(writable=False), []
    while words and words[0].startswith("-"):
        name, equals, value = words.pop(0).removeprefix("--").partition("=")
        if not (name.startswith(("container", "no-container")) or name == "environment"):
            own.append(f"--{name}{equals}{value}")
        elif name not in (VALUES if equals else SWITCHES) or not (value or not equals):
            refuse(f"unrecognized option '--{name}{equals}{value}'")
        elif name == "container-image":
            wanted.image = value
        elif name == "container-mounts":
            wanted.mounts = value.split(",")
        elif name == "container-workdir":
            wanted.workdir = value
        elif name == "container-unshare":
            wanted.namespaces = value.split(",")
        elif name == "container-writable":
            wanted.writable = True
    return wanted, own, words


def read_edf(words: list[str]) -> tuple[Wanted, list[str], list[str]]:
    """Return the same for `--environment=EDF`."""
    [option] = [word for word in words if word.startswith("--environment=")]
    path = option.partition("=")[2]
    if not path.startswith(("/", "./")):
        refuse(f"not a path: {path}")
    found = tomllib.loads(Path(path).read_text())
    for key, value in found.items():
        if not isinstance(value, KEYS.get(key, ())):
            refuse(f"{path}: {key}")
    texts = [*found["env"].values(), *found["mounts"], found["image"], found["workdir"]]
    if not all(isinstance(text, str) and "$" not in text for text in texts):
        refuse("a value is no text, or would be expanded")
    at = words.index(option)
    after = [*words[:at], *words[at + 1 :]]
    command = next(number for number, word in enumerate(after) if not word.startswith("-"))
    wanted = Wanted(found["image"], found["mounts"], found["workdir"], found["writable"])
    wanted.environment = found["env"]
    return wanted, after[:command], after[command:]


def bwrap_argv(wanted: Wanted, root: str) -> list[str]:
    """Return the command that starts the container for one task, with the mounts of Enroot's 10-system.fstab."""
    argv = ["bwrap", "--bind", root, "/", "--dev-bind", "/dev", "/dev", "--bind", "/proc", "/proc"]
    argv += ["--ro-bind-try", "/sys", "/sys", "--tmpfs", "/tmp"]
    for mount in wanted.mounts:
        source, target, *flags = mount.split(":")
        if not (source.startswith("/") and target.startswith("/")) or flags not in ([], ["ro"]):
            refuse(f"--container-mounts: invalid format: {mount}")
        if _UNSAFE.search(source + target):
            refuse(f"bash would change the path in {mount}")
        argv += ["--ro-bind" if flags else "--bind", source, target]
    argv += [] if wanted.writable else ["--remount-ro", "/"]
    argv += [f"--unshare-{name}" for name in wanted.namespaces]
    for name, value in wanted.environment.items():
        argv += ["--setenv", name, value]
    return [*argv, "--chdir", wanted.workdir, "--"]


def main(form: str, srun: str, words: list[str]) -> None:
    if words == ["--help"]:
        subprocess.run([srun, "--help"], check=True)
        named = ("environment",) if form == "container-engine" else VALUES
        print("\n".join(f"      --{name}=VALUE" for name in named), flush=True)
        return
    wanted, own, command = (read_edf if form == "container-engine" else read_options)(words)
    if not wanted.image.startswith(("/", "./")) or Path(wanted.image).read_bytes()[:4] != b"hsqs":
        refuse(f"not a SquashFS file: {wanted.image}")
    with tempfile.TemporaryDirectory() as folder:
        root = f"{folder}/root"
        unpack = ["unsquashfs", "-no-progress", "-d", root, wanted.image]
        subprocess.run(unpack, check=True, stdout=subprocess.DEVNULL)
        ended = subprocess.run([srun, *own, *bwrap_argv(wanted, root), *command], check=False)
    sys.exit(ended.returncode)


def install(folder: Path, form: str, srun: str) -> str:
    """Write `srun` into the folder; return the line of a prologue that finds it first."""
    folder.mkdir()
    words = shlex.join([sys.executable, "-I", os.path.realpath(__file__), form, srun])
    (folder / "srun").write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    (folder / "srun").chmod(0o755)
    return f"export PATH={shlex.quote(str(folder))}:$PATH"


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
