"""Words that several container runtimes share: quoted lines, mounts as CSV, names and answers as Docker has them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable

from hibali.errors import AccessError, RefusedError, TryLaterError, UsageError
from hibali.text import printable
from registry.pipeline import Container as Wanted
from runs.container import Image, Task, wrong_kind
from transfers.far import Finished

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - of the node, where the tasks of one job find each other
_ID = re.compile(r"[0-9a-f]{64}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,511}")
_HUBS = {"", "docker.io", "index.docker.io", "registry.hub.docker.com"}
_ABSENT = (b"no such image", b"image not known")
_DENIED = b"permission denied"


def quoted(words: Iterable[str]) -> str:
    """The words as a shell reads them back."""
    return " ".join(shlex.quote(word) for word in words)


def mount_word(source: str, target: str, *more: str) -> str:
    """`--mount=` with one line of CSV (RFC 4180), so that nearly any path can be written.

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


def unsafe_path(path: str, what: str) -> RefusedError:
    """The error for a path that cannot be written as this runtime reads mounts."""
    return RefusedError(
        "unsafe-name",
        f"the container runtime of this site cannot be given a path with {what}",
        about=printable(path),
        hint="Rename it, or run at a site with another [container].",
    )


# What a launcher tells each task: Slurm, PMI and PMIx, Open MPI and its PRRTE, MPICH's Hydra, Intel MPI, MVAPICH. By name,
# because SLURM_JWT is a credential.
_LAUNCHED = (
    "PMI_[A-Za-z0-9_]*",
    "PMI2_[A-Za-z0-9_]*",
    "PMIX_[A-Za-z0-9_]*",
    "PRTE_[A-Za-z0-9_]*",
    "OMPI_[A-Za-z0-9_]*",
    "HYDI_[A-Za-z0-9_]*",
    "MPI_LOCAL[A-Z]*",
    "MV2_COMM_[A-Z_]*",
    *(
        f"SLURM_{name}"
        for name in (
            "PROCID",
            "LOCALID",
            "NODEID",
            "NTASKS",
            "NPROCS",
            "NNODES",
            "JOBID",
            "JOB_ID",
            "JOB_NODELIST",
            "NODELIST",
            "TASKS_PER_NODE",
            "STEPID",
            "STEP_[A-Z_]*",
        )
    ),
)
# Which GPUs are the job's: CUDA, ROCm, HIP, OpenCL.
_GIVEN = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")


def handed_on(task: Task, each: str) -> str:
    """Shell lines that hand on what only the job knows, each variable `$name` with its `$value` by `each`; "" where it is nothing.

    A clean environment (S10) is without them, and then a task would not know which one it is, or which GPUs are its own.
    """
    wanted = (*(_LAUNCHED if task.tasks > 1 else ()), *(_GIVEN if task.gpus else ()))
    if not wanted:
        return ""
    names = "\\|".join(wanted)
    return f"""\
for name in $(env | sed -n 's/^\\({names}\\)=.*/\\1/p'); do
  value=$(printenv "$name") || continue
  {each}
done
"""


def alone_or_together(task: Task) -> tuple[str, ...]:
    """For Docker and Podman: one container has a name of its own and no network; those of several tasks share the node's."""
    if task.tasks == 1:
        return (f"--name=hibali-{task.run}", "--network=none")
    return ("--network=host", "--ipc=host")


def without_network(options: str) -> str:
    """Shell lines that leave these options in `$@`, unless the site forbids network namespaces altogether (namespaces(7))."""
    return f"""\
set --
[ "$(cat /proc/sys/user/max_net_namespaces 2>/dev/null)" = 0 ] || set -- {options}
"""


def docker_name(runtime: str, wanted: Wanted | None) -> str:
    """`image` with its `index` before it, where that is a host; a `docker://` before either is dropped."""
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
        raise UsageError("bad-image", "this is not the name of an image", about=printable(name))
    return name


def read_inspected(runtime: str, finished: Finished) -> Image | None:
    """What `image inspect` says: its id is what is started, its digests are what a descriptor can name."""
    check_answered(runtime, finished)
    if finished.exit_code != 0:
        if any(words in finished.stderr.lower() for words in _ABSENT):
            return None
        if _DENIED in finished.stderr.lower():
            raise AccessError(
                "runtime-denied",
                f"{runtime} cannot be used by this account: {printable(finished.stderr.strip()[-300:])}",
            )
        said = printable(finished.stderr.strip()[-500:])
        raise TryLaterError("runtime-silent", f"{runtime} gave no answer: {said}")
    try:
        found = json.loads(finished.stdout)[0]
        identifier = str(found["Id"]).removeprefix("sha256:")
        names = [str(found.get("Digest", "")), *(str(each) for each in found.get("RepoDigests") or ())]
    except (ValueError, LookupError, TypeError, AttributeError):
        raise TryLaterError("runtime-silent", f"{runtime} gave an answer that cannot be read") from None
    if not _ID.fullmatch(identifier):
        raise TryLaterError("runtime-silent", f"{runtime} gave an image without an id")
    digests = {digest for name in names for digest in _DIGEST.findall(name)}
    return Image(identifier, tuple(sorted(digests)))


def check_answered(runtime: str, finished: Finished) -> None:
    """Raise `UsageError` where there is no such program at the site."""
    if finished.exit_code == 127:
        raise UsageError(
            "no-runtime",
            f"there is no {runtime} at the site",
            hint="Correct [container] name, PATH of non-interactive logins there, or `prologue`.",
        )
