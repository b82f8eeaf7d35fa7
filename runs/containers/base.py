"""Define a container runtime: how it starts a tool, as text."""

from __future__ import annotations

import json
import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hibali.errors import AccessError, RefusedError, TryLaterError, UsageError
from hibali.plugins import load
from hibali.text import one_line, printable
from registry.command_line import is_safe_variable, needs_consent
from registry.pipeline import Container as Wanted
from registry.pipeline import Pipeline
from transfers.remote.host import CommandResult

DOCKER_ARCHIVE, OCI_ARCHIVE, SIF = "docker-archive", "oci-archive", "sif"  # formats of image archives
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # for images that set none

_MEMORY = re.compile(r"[0-9]{1,15}[bkmgBKMG]?")
_WITHOUT_EFFECT = frozenset(
    {"--rm", "-i", "-t", "-it", "-ti", "--interactive", "--tty", "--network=none", "--net=none"}
)


@dataclass(frozen=True, slots=True)
class Bind:
    """A file or folder of the site that is mounted read-only at `target`; both paths are absolute."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Task:
    """A tool to start. All paths are absolute; bytes that are not UTF-8 are surrogate escapes.

    Attributes:
        run: The id of the run.
        command: The file with the command line, at `sees_command` in the container.
        shell: The interpreter of the command: sh or bash.
        work: The folder that the tool may write, at `sees_work` in the container.
        environment: The tool's variables.
        binds: Files and folders that are mounted read-only.
        image: The id of the image, or the path of the file or folder it was converted to; "" without one.
        memory: The size of the shared memory, such as `64m`; "" for the default.
        argv: The arguments for the image's own entry point; None if `command` is run instead.
        entrypoint: The image's own entry point, for a runtime that does not read it.
        image_environment: The image's own variables, likewise.
        tasks: The number of processes that a launcher starts, which share the network and memory of a node.
        launched: Patterns of the launcher's variables, as in `JobVariables`.
        gpus: The kind of the GPUs that the tool can use; "" for none.
        launcher: The launcher's command, for a runtime that starts all tasks with it.
        own: The settings that only this runtime has.
    """

    run: str
    command: str
    sees_command: str
    shell: str
    work: str
    sees_work: str
    environment: Mapping[str, str] = field(default_factory=dict)
    binds: tuple[Bind, ...] = ()
    image: str = ""
    memory: str = ""
    argv: tuple[str, ...] | None = None
    entrypoint: tuple[str, ...] = ()
    image_environment: Mapping[str, str] = field(default_factory=dict)
    tasks: int = 1
    launched: tuple[str, ...] = ()
    gpus: str = ""
    launcher: tuple[str, ...] = ()
    own: Any = None


@dataclass(frozen=True, slots=True)
class Image:
    """An image at the site: its id (64 hexadecimal digits) and all its known digests (`sha256:...`)."""

    id: str
    digests: tuple[str, ...] = ()


class Container(ABC):
    """A container runtime: text and values in, text and values out.

    Attributes:
        name: Its name in [container].
        settings: Its own keys of [container], a class made by `hibali.config.schema.table`; `Task.own` is an object of it, or
            None if the site sets none of them.
        programs: The programs that must be installed, the main one first.
        isolates: The tool runs in an image and sees only the folders mounted there, inputs read-only. Otherwise inputs are
            copied.
        confines: The tool can write nothing else. Otherwise it has the user's permissions, and each pipeline needs consent (S11).
        binds_inputs: The runtime can bind read-only; otherwise inputs are copied.
        place: The folder in the image below which all binds must be; "" if they can be anywhere.
        form: The name of the file or folder an image is converted to; "" if the runtime stores images itself.
        formats: The image archives that it can convert or load.
        flattens: It gets a tar of the image's tree instead of the archive.
        gpus: The kinds of GPUs that a tool can use.
        launcher: The launcher with which it starts all tasks of a job itself; "" if the launcher starts a container for each.
    """

    name: str
    settings: ClassVar[type | None] = None
    programs: tuple[str, ...] = ()
    isolates: bool = True
    confines: bool = False
    binds_inputs: bool = True
    place: str = ""
    form: str = ""
    formats: frozenset[str] = frozenset()
    flattens: bool = False
    gpus: frozenset[str] = frozenset()
    launcher: str = ""

    def image_name(self, wanted: Wanted | None) -> str:
        """Return the runtime's name of a pipeline's image, by default Docker's; "" for none; raises `UsageError`."""
        return docker_name(self.name, wanted)

    @abstractmethod
    def start(self, task: Task) -> str:
        """Return the shell line that becomes the tool (`exec`); raises `RefusedError` for an impossible path."""

    def image_argv(self, name: str) -> tuple[str, ...]:
        """Return the query for an image at the site; () if the runtime has no image store."""
        del name
        return ()

    def read_image(self, finished: CommandResult, name: str) -> Image | None:
        """Return the image, or None if it is missing; raises `UsageError` without the runtime."""
        del finished, name
        return None

    def convert_argv(self, archive: str, result: str, kind: str, image: str) -> tuple[tuple[str, ...], ...]:
        """Return the commands that convert an archive of that kind and image id, in order.

        The result is `result`, in a private folder, or an entry of the runtime's store; () if no conversion
        exists.
        """
        del archive, result, kind, image
        return ()

    def version_argv(self) -> tuple[str, ...]:
        """Return the command with which `hibali doctor` tries the runtime."""
        return ((*self.programs, self.name)[0], "--version")

    def read_version(self, finished: CommandResult) -> str:
        """Return what `hibali doctor` shows, by default the first line; raises `HibaliError` if the runtime is incomplete."""
        lines = finished.stdout.strip().splitlines()
        return printable(lines[0][:80]) if lines else self.name


def load_container(name: str) -> Container:
    """Return the container runtime that a site names; raises `UsageError` for an unknown one."""
    module = load("runs.containers", name)
    found: Container = getattr(module, "CONTAINER", module)
    return found


def check_environment(environment: Mapping[str, str], reserved: tuple[str, ...] = ()) -> None:
    """Raise `RefusedError` for variables that affect more than the tool, or invalid names (S10).

    `reserved` are prefixes of names that belong to the scheduler.
    """
    for name, value in environment.items():
        if not is_safe_variable(name) or name.startswith(reserved):
            raise RefusedError(
                "unsafe-variable",
                f"pipelines cannot set the variable {printable(name)}",
                subject=printable(name),
                hint="Remove it from `environment-variables` in the descriptor.",
            )
        if "\0" in value:
            raise RefusedError("unsafe-variable", "the value contains a NUL byte", subject=name)


def find_consent_reasons(pipeline: Pipeline, container: Container) -> list[str]:
    """Return why this pipeline needs the user's consent in this container, if it does (S10, S11).

    Raises `RefusedError` for container options that are not allowed.
    """
    reasons = []
    if not container.confines:
        place = (
            f"in {container.name}, which mounts folders of the site"
            if container.isolates
            else "without a container"
        )
        reasons.append(f"runs {place}, with your permissions on all your files")
    options = read_options(pipeline.container, "")[0] if container.isolates else {}
    names = needs_consent([*(each.name for each in pipeline.environment), *options])
    if names:
        listed = ", ".join(dict.fromkeys(names))
        reasons.append(
            f"sets {listed}: this changes which programs run, what they load or where they connect"
        )
    return reasons


def read_options(wanted: Wanted | None, home: str) -> tuple[dict[str, str], str]:
    """Return the variables and the shared memory that a descriptor's `container-opts` request (S11).

    The size is such as `64m`, "" for the default. `$PWD` as a value is `home`, the tool's work folder. Any other option
    raises `RefusedError`.
    """
    environment: dict[str, str] = {}
    memory = ""
    argv = [argument for text in (wanted.options if wanted else ()) for argument in _split(text)]
    while argv:
        argument = argv.pop(0)
        name, separator, value = argument.partition("=")
        if argument in _WITHOUT_EFFECT:
            continue
        if argument in {"-e", "--env"} and argv:
            _add_variable(argv.pop(0), environment, home)
        elif name == "--env" and separator:
            _add_variable(value, environment, home)
        elif name == "--shm-size" and _MEMORY.fullmatch(value):
            memory = value
        else:
            raise _refused(argument)
    check_environment(environment)
    return environment, memory


def _add_variable(text: str, environment: dict[str, str], home: str) -> None:
    name, separator, value = text.partition("=")
    if not separator:
        raise _refused(f"-e {text}")
    environment[name] = home if value in {"$PWD", "${PWD}"} else value


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        raise _refused(text) from None


def _refused(argument: str) -> RefusedError:
    return RefusedError(
        "container-option",
        f"the descriptor requests the container option {printable(argument)}, which is not allowed",
        subject=printable(argument),
        hint="Allowed are -e NAME=VALUE and --shm-size=SIZE; remove the others from `container-opts`.",
    )


def wrong_kind(container: str, wanted: Wanted) -> UsageError:
    """Return the error for an image that a runtime cannot start."""
    return UsageError(
        "wrong-image-kind",
        f"{container} cannot start an image of type {printable(wanted.kind)}",
        subject=printable(wanted.image or wanted.url),
        hint="Run it at a site whose container runtime can, or use a descriptor with a docker image.",
    )


SHARED_MEMORY = "/dev/shm"  # noqa: S108 - of the node, where the tasks of one job find each other
_ID = re.compile(r"[0-9a-f]{64}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,511}")
_HUBS = {"", "docker.io", "index.docker.io", "registry.hub.docker.com"}
_ABSENT = (b"no such image", b"image not known")
_DENIED = b"permission denied"


def quoted(argv: Iterable[str]) -> str:
    """Quote arguments for a shell."""
    return " ".join(shlex.quote(argument) for argument in argv)


def mount_option(source: str, target: str, *more: str) -> str:
    """Return `--mount=` with one line of CSV (RFC 4180), which can express nearly any path.

    Raises `RefusedError` for a path with a carriage return: the readers of this CSV drop it before a newline.
    """
    fields = ["type=bind", f"src={source}", f"dst={target}", *more]
    return "--mount=" + ",".join(_csv(each) for each in fields)


def _csv(field: str) -> str:
    if "\r" in field:
        raise unsafe_path(field.partition("=")[2], "a carriage return")
    if any(letter in field for letter in ',"\n'):
        return '"' + field.replace('"', '""') + '"'
    return field


def unsafe_path(path: str, reason: str) -> RefusedError:
    """Return the error for a path that this runtime's mount syntax cannot express."""
    return RefusedError(
        "unsafe-name",
        f"the container runtime of this site does not support a path with {reason}",
        subject=printable(path),
        hint="Rename the file or folder, or run at a site with another container runtime.",
    )


# Variables of MPI launchers other than the scheduler's own (`JobVariables.launched`): PMI and PMIx, Open MPI and its PRRTE,
# MPICH's Hydra, Intel MPI, MVAPICH.
_LAUNCHED = (
    "PMI_[A-Za-z0-9_]*",
    "PMI2_[A-Za-z0-9_]*",
    "PMIX_[A-Za-z0-9_]*",
    "PRTE_[A-Za-z0-9_]*",
    "OMPI_[A-Za-z0-9_]*",
    "HYDI_[A-Za-z0-9_]*",
    "MPI_LOCAL[A-Z]*",
    "MV2_COMM_[A-Z_]*",
)
# The GPUs of the job for CUDA, ROCm, HIP, OpenCL and Level Zero.
_GPU_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "ZE_AFFINITY_MASK",
)


def forwarded_variables(task: Task, each: str) -> str:
    """Return shell lines that pass the variables known only inside the job, formatted by `each`; "" if none.

    Each has `$name` and `$value`. A clean environment (S10) lacks them, and then a task would know neither
    its number nor its GPUs. Of programs only env is used, because the lines can run in an image; their values have one line.
    """
    launched = (*_LAUNCHED, *task.launched) if task.tasks > 1 else ()
    wanted = (*launched, *(_GPU_VARIABLES if task.gpus else ()))
    if not wanted:
        return ""
    # these regular expressions match the same names as patterns of the shell
    return f"""\
IFS='
'
set -f
for line in $(env); do
  name=${{line%%=*}}
  case $name in *[!A-Za-z0-9_]*) continue ;; {"|".join(wanted)}) ;; *) continue ;; esac
  value=${{line#*=}}
  {each}
done
unset IFS
set +f
"""


def alone_or_together(task: Task) -> tuple[str, ...]:
    """Return Docker's and Podman's options: no network for a single task, the node's for several."""
    if task.tasks == 1:
        return (f"--name=hibali-{task.run}", "--network=none")
    return ("--network=host", "--ipc=host")


def without_network(options: str) -> str:
    """Return shell lines that put these options into `$@`, unless the site has no network namespaces.

    See namespaces(7).
    """
    return f"""\
set --
[ "$(cat /proc/sys/user/max_net_namespaces 2>/dev/null)" = 0 ] || set -- {options}
"""


def docker_name(runtime: str, wanted: Wanted | None) -> str:
    """Return `image` with its `index` before it if that is a host, without a leading `docker://`."""
    if wanted is None:
        raise UsageError(
            "no-image",
            "the pipeline names no container image",
            hint='Add `container-image` to its descriptor, or run it at a site with [container] name = "bare".',
        )
    from_docker = wanted.image.startswith("docker://") or wanted.index.startswith("docker://")
    if wanted.kind != "docker" and not (wanted.kind == "singularity" and from_docker):
        raise wrong_kind(runtime, wanted)
    image = wanted.image.removeprefix("docker://")
    index = wanted.index.removeprefix("docker://").strip("/")
    name = image if index in _HUBS else f"{index}/{image}"
    if not _IMAGE.fullmatch(name):
        raise UsageError("bad-image", "this is not the name of an image", subject=printable(name))
    return name


def read_inspected(runtime: str, finished: CommandResult) -> Image | None:
    """Parse `image inspect`: the id is started, and the digests are those that a descriptor can name."""
    require_program(runtime, finished)
    if finished.exit_code != 0:
        if any(text in finished.stderr.lower() for text in _ABSENT):
            return None
        if _DENIED in finished.stderr.lower():
            raise AccessError(
                "runtime-denied",
                f"{runtime} cannot be used by this account: {one_line(finished.stderr, 300)}",
            )
        message = one_line(finished.stderr)
        raise TryLaterError("runtime-silent", f"{runtime} failed: {message}")
    try:
        found = json.loads(finished.stdout)[0]
        identifier = str(found["Id"]).removeprefix("sha256:")
        names = [str(found.get("Digest", "")), *(str(each) for each in found.get("RepoDigests") or ())]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise TryLaterError("runtime-silent", f"the output of {runtime} cannot be parsed") from None
    if not _ID.fullmatch(identifier):
        raise TryLaterError("runtime-silent", f"{runtime} reported an image without an id")
    digests = {digest for name in names for digest in _DIGEST.findall(name)}
    return Image(identifier, tuple(sorted(digests)))


def require_program(runtime: str, finished: CommandResult) -> None:
    """Raise `UsageError` if the program is missing at the site."""
    if finished.exit_code == 127:
        raise UsageError(
            "no-runtime",
            f"{runtime} was not found at the site",
            hint="Correct [container] name, PATH of non-interactive logins there, or `prologue`.",
        )


@dataclass(frozen=True, slots=True)
class Started:
    """The image to start: its id, or the path of the file or folder that the runtime starts.

    `environment` and `entrypoint` are the image's own, set only if the runtime does not read them itself.
    """

    image: str
    environment: Mapping[str, str] = field(default_factory=dict)
    entrypoint: tuple[str, ...] = ()
