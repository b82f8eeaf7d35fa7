"""Start tools with Enroot in Slurm: by Pyxis, or by the Container Engine of CSCS.

Pyxis adds options to srun; facts are from the README and args.c of Pyxis 0.24 (May 2026) and the documentation of Enroot 4.1.
`--container-readonly` exists since 0.11 (June 2021); older versions reject it and start nothing. The Container Engine is a Pyxis of
CSCS that reads a file, the environment definition file (EDF), in place of these options: "EDF reference", "Running containerized
environments" and "Container hooks" of docs.cscs.ch (August 2026).
"""

from __future__ import annotations

import re
from typing import ClassVar

from hibali.errors import IncompleteError
from runs.containers.base import (
    DOCKER_ARCHIVE,
    OCI_ARCHIVE,
    PATH,
    Container,
    Task,
    forwarded_variables,
    quoted,
    unsafe_path,
    without_network,
)
from transfers.remote.host import CommandResult

# Pyxis splits mounts at commas and colons, and writes them between quotation marks into a script of bash
# (enroot_create_start_config in its pyxis_slurmstepd.c); the Container Engine replaces ${NAME} in the EDF.
_PATH = re.compile(r"[A-Za-z0-9_.+@%=~/-]*")
# What a user sets for other containers would be used for this one, too: another image's files, or the home folder.
_FORGET = "unset PYXIS_CONTAINER_NAME PYXIS_CONTAINER_SAVE PYXIS_CONTAINER_ENV\nexport ENROOT_MOUNT_HOME=n\n"
# Enroot's hook for NVIDIA, and that of CSCS, add the driver unless the first of these is `void`.
_GPUS = {
    "": "export NVIDIA_VISIBLE_DEVICES=void\n",
    "nvidia": "export NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility\n",
    "amd": "export NVIDIA_VISIBLE_DEVICES=void\n",  # Enroot shows the devices of the node
}
# Since Pyxis 0.24. Enroot's 10-cgroups.sh (4.1.2) then fails on nodes with control groups of version 1.
_WITHOUT_NETWORK = f"""\
{without_network("--container-unshare=net")}\
[ -e /sys/fs/cgroup/cgroup.controllers ] || set --
case $(srun --help) in *--container-unshare*) ;; *) set -- ;; esac
"""


class Pyxis(Container):
    """Flattened Docker images as SquashFS, which srun starts by their path, for all tasks of a job at once.

    Attributes:
        option: The option of srun that names the image.
    """

    name = "pyxis"
    programs = ("srun", "tar", "mksquashfs")
    confines = False  # the administrators' mounts are in every container, and writable
    launcher = "srun"
    form = "image.sqsh"
    formats = frozenset({DOCKER_ARCHIVE, OCI_ARCHIVE})
    flattens = True
    gpus = frozenset({"nvidia", "amd"})
    option: ClassVar[str] = "--container-image"

    def start(self, task: Task) -> str:
        """Return the line; `--overlap` (since Slurm 20.11) shares the job with the steps of other tasks of a pilot.

        Pyxis adds the job's whole environment, so a shell in the container removes it. It knows what Slurm gave each task.
        """
        environment = {"PATH": PATH, **task.image_environment, "HOME": task.sees_work, **task.environment}
        known = forwarded_variables(task, 'set -- "$name=$value" "$@"')
        inside = ["/bin/sh", "-c", f'PATH={PATH}\nexport PATH\n{known}exec env -i "$@"', "hibali"]
        inside += [f"{name}={value}" for name, value in environment.items()]
        inside += [task.shell, task.sees_command] if task.argv is None else [*task.entrypoint, *task.argv]
        lines, options = self.select(task, _checked(task.image), _mounts(task), _checked(task.sees_work))
        argv = [*task.launcher, "--overlap", *options]
        return f'{_FORGET}{_GPUS[task.gpus]}{lines}exec {quoted(argv)} "$@" {quoted(inside)}'

    def select(self, task: Task, image: str, mounts: list[str], work: str) -> tuple[str, list[str]]:
        """Return shell lines, which put options into `$@`, and the options that select image, mounts and work folder."""
        options = [f"{self.option}={image}", f"--container-mounts={','.join(mounts)}"]
        options += [f"--container-workdir={work}", "--container-readonly", "--no-container-mount-home"]
        options += ["--no-container-remap-root", "--no-container-entrypoint"]
        return ("set --\n" if task.tasks > 1 else _WITHOUT_NETWORK), options

    def convert_argv(self, archive: str, result: str, kind: str, image: str) -> tuple[tuple[str, ...], ...]:
        """Unpack the flat tar and convert it; mksquashfs reads tar archives only since 4.5."""
        del kind, image
        folder = result.rpartition("/")[0] + "/tree"
        unpack = ("tar", "--extract", "--no-same-owner", "--delay-directory-restore")
        return (
            ("mkdir", folder),
            (*unpack, f"--file={archive}", f"--directory={folder}"),
            ("mksquashfs", folder, result, "-noappend", "-no-progress", "-all-root"),
        )

    def version_argv(self) -> tuple[str, ...]:
        """Return the query for srun's options, which are the plugin's, too."""
        return ("srun", "--help")

    def read_version(self, finished: CommandResult) -> str:
        """Require that the plugin is there."""
        if f"{self.option}=".encode("ascii") not in finished.stdout:
            raise IncompleteError(
                "container-fails",
                f"srun has no option {self.option}",
                hint="Correct [container] name: this cluster does not start containers with it.",
            )
        return f"srun {self.option}"


class ContainerEngine(Pyxis):
    """The same images, named in an EDF that the job writes next to its command, where the tool cannot write."""

    name = "container-engine"
    option = "--environment"

    def select(self, task: Task, image: str, mounts: list[str], work: str) -> tuple[str, list[str]]:
        """Write the EDF. The hook for Slurm would let the tool submit jobs; that for the network needs an image with glibc."""
        lines = [f'image = "{image}"', f'workdir = "{work}"', "entrypoint = false", "writable = false"]
        lines += ["mounts = [", *(f'  "{mount}",' for mount in mounts), "]"]
        lines += ["[env]", 'ENROOT_SLURM_HOOK = "0"']
        lines += ["[annotations]", 'com.hooks.cxi.enabled = "false"'] if task.tasks == 1 else []
        path = f"{_checked(task.command).rpartition('/')[0]}/environment.toml"
        write = f"edf={path}\nprintf '%s\\n' {quoted(lines)} >\"$edf\" || exit 75\n"
        return f'{write}set -- "{self.option}=$edf"\n', []


def _mounts(task: Task) -> list[str]:
    """Format the mounts of Pyxis and of EDFs, which are the same."""
    command = () if task.argv is not None else ((task.command, task.sees_command),)
    mounts = [f"{_checked(task.work)}:{_checked(task.sees_work)}"]
    for source, target in (*command, *((bind.source, bind.target) for bind in task.binds)):
        mounts.append(f"{_checked(source)}:{_checked(target)}:ro")
    return mounts


def _checked(path: str) -> str:
    if not _PATH.fullmatch(path):
        raise unsafe_path(path, "other characters than letters, digits and _.+@%=~/-")
    return path


CONTAINER = Pyxis()
CONTAINER_ENGINE = ContainerEngine()
