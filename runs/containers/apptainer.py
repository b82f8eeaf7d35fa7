"""Start tools in Apptainer and SingularityCE (apptainer-exec(1), singularity-exec(1)).

`--no-eval`, without which values would be read as shell text in the image, exists since Apptainer 1.1 and SingularityCE
3.10. Older versions reject the option and start nothing.
"""

from __future__ import annotations

from registry.pipeline import Container as Wanted
from runs.containers.base import (
    DOCKER_ARCHIVE,
    OCI_ARCHIVE,
    SHARED_MEMORY,
    SIF,
    Container,
    Task,
    docker_name,
    forwarded_variables,
    mount_option,
    quoted,
    unsafe_path,
    without_network,
)

# These variables could add binds and variables of the site or the user to the container.
_FORGET = r"""
for name in $(env | sed -n 's/^\(\(APPTAINER\|SINGULARITY\)[A-Za-z0-9_]*\)=.*/\1/p'); do
  case $name in *R_CACHEDIR|*R_TMPDIR|*R_CONFIGDIR|*Y_CACHEDIR|*Y_TMPDIR|*Y_CONFIGDIR) ;; *) unset "$name" ;; esac
done
"""
_OFFLINE = without_network("--net --network=none")
_GPUS = {"": [], "nvidia": ["--nv"], "amd": ["--rocm"]}
# The runtime sets HOME itself; hibali sets it to the work folder.
_AT_HOME = 'HOME=$1; export HOME; shift; exec "$@"'


class Apptainer(Container):
    """SIF files, started by their exact path; Docker and OCI archives are converted to SIF."""

    confines = True
    form = "image.sif"
    formats = frozenset({DOCKER_ARCHIVE, OCI_ARCHIVE, SIF})
    gpus = frozenset({"nvidia", "amd"})

    def __init__(self, name: str) -> None:
        """Set the command's name; in capitals, it is the prefix of its variables."""
        self.name = name
        self.programs = (name,)

    def image_name(self, wanted: Wanted | None) -> str:
        """Return Docker's name of an image; a SIF file of its own keeps its name."""
        if (
            wanted is not None
            and wanted.kind == "singularity"
            and "docker://" not in wanted.index + wanted.image
        ):
            return f"{wanted.index}{wanted.image}"
        return docker_name(self.name, wanted)

    def start(self, task: Task) -> str:
        """Return the line; mounts are CSV for nearly any path, values are variables, which are not split."""
        variables = [f"{self.name.upper()}ENV_{name}={value}" for name, value in task.environment.items()]
        argv = ["env", *variables, self.name, "exec" if task.argv is None else "run"]
        argv += ["--containall", "--cleanenv", "--no-home", "--no-eval", "--no-privs"]
        argv += _GPUS[task.gpus]
        argv.append(f"--pwd={task.sees_work}")
        argv.append(mount_option(task.work, task.sees_work))
        if task.argv is None:
            argv.append(mount_option(task.command, task.command, "ro"))
        argv += [mount_option(bind.source, bind.target, "ro") for bind in task.binds]
        if task.tasks > 1:
            argv.append(mount_option(SHARED_MEMORY, SHARED_MEMORY))
        after = [task.image]
        if task.argv is None:
            after += [task.shell, "-c", _AT_HOME, task.shell, task.sees_work, task.shell, task.command]
        else:
            after += task.argv
        known = forwarded_variables(task, f'export "{self.name.upper()}ENV_$name=$value"')
        network = "set --\n" if task.tasks > 1 else _OFFLINE
        return f'{_FORGET}{known}{network}exec {quoted(argv)} "$@" {quoted(after)}'

    def convert_argv(self, archive: str, result: str, kind: str, image: str) -> tuple[tuple[str, ...], ...]:
        """Copy a SIF, or build an archive without root; temporary files are in the same folder as the result."""
        del image
        if kind == SIF:
            return (("cp", "--reflink=auto", "--", archive, result),)
        if ":" in archive:
            raise unsafe_path(archive, "a colon")
        folder = result.rpartition("/")[0]
        aside = f"{self.name.upper()}_TMPDIR={folder}"
        return (("env", aside, self.name, "build", "--disable-cache", result, f"{kind}:{archive}"),)


CONTAINER = Apptainer("apptainer")
