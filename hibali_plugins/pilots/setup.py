"""Set up a pilot job at a site: check its Python, put its files, write its scripts."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hibali.config.model import Site, local_site
from hibali.documents import canonical_json
from hibali.errors import RefusedError, UsageError
from hibali.locations import Location
from hibali.text import as_bytes, as_text, counted, one_line, printable
from runs.fast_storage import FastOptions
from runs.identity import Identity, identify_local
from runs.model import Pilot
from runs.prepare import Prepared
from runs.request import Request
from runs.resources import DecidedResources
from runs.schedulers.base import JobVariables
from runs.script import ENTER_CHUNK, RUN_TOOL, first_set, read_variables, script_head
from runs.stage import Cache
from transfers.remote.host import RemoteHost, SmallFile

VERSION = "0.27.0"
MACHINE, LIBC = "x86_64", (2, 28)  # the platform of its wheel: manylinux_2_28_x86_64
PYTHON = (3, 9)  # abi3 from 3.9 on
# hyperqueue/hyperqueue.abi3.so, by the RECORD of hyperqueue-0.27.0-cp39-abi3-manylinux_2_28_x86_64.whl
SHA256 = "9bc593684ddd3ca7192d05585c85fc55c8f5588ca29a61d6effa374d3dd4065b"


def find_library() -> tuple[Path, Identity]:
    """Return HyperQueue's file and identity. Raises `UsageError` if it is not installed, `RefusedError` if it is another version.

    The package is not imported, because it only has to run at the site.
    """
    spec = find_spec("hyperqueue")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    path = next((found for each in folders if (found := Path(each, "hyperqueue.abi3.so")).is_file()), None)
    if path is None:
        raise UsageError(
            "no-hyperqueue",
            "a pilot needs HyperQueue, which is not installed here",
            subject="--pilot",
            hint=f"pip install 'hibali[pilot]' (hyperqueue {VERSION}); or leave out --pilot: job arrays do not need it.",
        )
    identity = identify_local(path)
    if identity.digest != SHA256:
        raise RefusedError(
            "other-hyperqueue",
            f"this is not the HyperQueue {VERSION} that hibali supports: its sha256 is {identity.digest}",
            subject=os.fspath(path),
            hint=f"pip install --force-reinstall hyperqueue=={VERSION}",
        )
    return path, identity


# A requeued job continues; another job of the same chunk does nothing.
_ALLOCATION = r"""
job=${1:-$native_job}
job=$(printf '%s' "$job" | tr -cd '][A-Za-z0-9._:+-')
if mkdir started 2>/dev/null; then
  printf '%s\n' "$job" >started/job.partial && mv started/job.partial started/job || exit 75
else
  first=
  read -r first <started/job
  if [ -z "$job" ] || [ "$job" != "$first" ]; then
    echo "hibali: allocation $chunk of run $run was started before, by job $first; this job does nothing" >&2
    exit 75
  fi
  printf '%s\n' "$job" >>again
fi
IFS= read -r python <../../pilot/python || exit 75
exec "$python" -I ../../pilot/program.py "$job" "$mask" "$native_cores"
"""
# HyperQueue starts this in the folder of the task, with its number. It reports its start and end to the pilot through a pipe, which it
# also opens for reading: without a reader it would wait for ever. HyperQueue's variables, which include a key, are hidden from tools.
# No task starts after the allocation was stopped or the next allocation was created.
_TASK = r"""
mask=${HIBALI_MASK:-022} job=${HIBALI_JOB:-} host=${HIBALI_HOST:-} events=${HIBALI_TOLD:-/dev/null} task=${1:-}
unset HIBALI_MASK HIBALI_JOB HIBALI_HOST HIBALI_TOLD
unset HQ HQ_ACCESS_KEY HQ_CPUS HQ_ENTRY HQ_ERROR_FILENAME HQ_INSTANCE_ID HQ_JOB_ID HQ_PIN HQ_RESOURCE_REQUEST_cpus HQ_RESOURCE_VALUES_cpus HQ_SERVER_DIR HQ_SUBMIT_DIR HQ_TASK_DIR HQ_TASK_ID
umask 077
case "$task" in ''|*[!0-9]*) exit 75 ;; esac
case "$PWD" in */"$run/tasks/$task") ;; *) exit 75 ;; esac
[ ! -e "../../chunks/$chunk/stop" ] && [ ! -e "../../chunks/$((chunk+1))" ] || exit 0
trap 'printf "e %s\n" "$task" 1<>"$events"; exit 0' EXIT
printf 'b %s %s\n' "$task" "$$" 1<>"$events"
run=$run/$task
runs=../../..
cancel_file=../../cancel
"""


def allocation_script(run: str, chunk: int, directives: Sequence[str], variables: JobVariables) -> str:
    """Return the script that the scheduler starts in a chunk's folder (S9); `directives` are checked comment lines."""
    cores = f"native_cores={first_set(variables.cores)}\n"
    return f"{script_head(run, directives)}{read_variables(variables)}{cores}chunk={chunk:d}{ENTER_CHUNK}{_ALLOCATION}"


def task_script(run: str, chunk: int) -> str:
    """Return the script of each task of a chunk; see `runs.script.array_script`."""
    return f"{script_head(run, ())}chunk={chunk:d}{_TASK}{RUN_TOOL}"


# Print one line for each existing interpreter. -S skips the site's packages, whose import may take seconds.
_FIND_PYTHONS = r"""
for each; do
  command -v "$each" >/dev/null 2>&1 || continue
  "$each" -I -S -c '
import json, platform, sys
free = bool(getattr(sys, "_is_gil_enabled", lambda: True)()) is False
print(json.dumps([sys.executable, sys.version_info[:2], sys.platform, platform.machine(), platform.libc_ver(), free]))
' </dev/null 2>/dev/null
done
exit 0
"""
_NAMES = ("python3", *(f"python3.{minor}" for minor in range(20, PYTHON[1] - 1, -1)))
_HINT = "Leave out --pilot: job arrays do not need it. Or name a Python that fits as `python` of the site."


def program() -> bytes:
    """Return the program that runs in each allocation."""
    return Path(__file__).with_name("program.py").read_bytes()


def find_python(host: RemoteHost, site: Site) -> str:
    """Return the path of the site's first Python that can load the library. Raises `RefusedError` if there is none."""
    first = site.ssh.python if site.ssh else "python3"
    names = dict.fromkeys((first, *_NAMES))
    finished = host.run(("/bin/sh", "-c", _FIND_PYTHONS, "hibali", *names))
    seen: list[str] = []
    for line in finished.stdout.splitlines():
        found = _read(line)
        if found is None:
            continue
        path, lacking = found
        if not lacking:
            return path
        seen.append(f"{printable(path.encode('utf-8', 'replace'))} {lacking}")
    because = "; ".join(seen) or "no Python was found"
    raise RefusedError(
        "no-pilot-there",
        f"a pilot needs Python {'.'.join(map(str, PYTHON))} or later on Linux {MACHINE} with glibc {'.'.join(map(str, LIBC))}: {because}",
        subject=site.name,
        hint=_HINT,
    )


def _read(line: bytes) -> tuple[str, str] | None:
    """Return the path of a Python and its problem, "" for none; None for a line that does not describe one."""
    try:
        path, version, system, machine, libc, free = json.loads(line)
        number = (int(version[0]), int(version[1]))
        known = tuple(int(part) for part in str(libc[1]).split(".")[:2])
    except (ValueError, TypeError, LookupError, RecursionError):
        return None
    if not isinstance(path, str) or not path.startswith("/") or not path.isprintable():
        return None
    if number < PYTHON:
        return path, f"is {number[0]}.{number[1]}"
    if (system, machine) != ("linux", MACHINE):
        return path, f"runs on {printable(f'{system} {machine}')}"
    if libc[0] != "glibc" or known < LIBC:
        return path, f"has {printable(f'{libc[0]} {libc[1]}')}"
    return path, "is a free-threaded build" if free else ""


def stage_library(host: RemoteHost, site: Site, cache: Cache, python: str) -> str:
    """Stage the library, load it once, and return its path at the site. Raises `UsageError` if it cannot be loaded."""
    path, identity = find_library()
    text = as_text(os.fsencode(path.absolute()))
    place = Location(local_site(), text, text, typed_local=True)
    staged = as_text(cache.stage_with_retries(identity, place))
    finished = host.run((python, "-I", "-", "--check", staged, SHA256), stdin=program())
    reply: Any = None
    if finished.exit_code == 0:
        try:
            reply = json.loads(finished.stdout)
        except (ValueError, RecursionError):
            reply = None
    if not isinstance(reply, dict) or reply.get("hyperqueue") != f"v{VERSION}":
        because = one_line(finished.stderr or finished.stdout)
        raise UsageError(
            "no-pilot-there",
            f"HyperQueue cannot be loaded by {python}: {because or finished.exit_code}",
            subject=site.name,
            hint=_HINT,
        )
    return staged


def stage_pilot(pilot: Pilot, request: Request, host: RemoteHost, cache: Cache) -> Pilot:
    """See TaskRunner."""
    return replace(
        pilot,
        library=stage_library(host, request.compute.site, cache, pilot.python),
        directives=request.compute.scheduler.directives(request.decide_resources().resources),
    )


def program_files(folder: bytes, pilot: Pilot) -> list[SmallFile]:
    """Return the program and its settings, for a run in this folder."""
    plan = {"library": pilot.library, "sha256": SHA256, "cores": pilot.cores, "asked": pilot.asked}
    below = folder + b"/pilot/"
    return [
        SmallFile(below + b"program.py", program()),
        SmallFile(below + b"plan.json", canonical_json(plan)),
        SmallFile(below + b"python", as_bytes(pilot.python) + b"\n"),
    ]


def allocation_texts(
    run: str, chunk: int, tasks: Iterable[int], pilot: Pilot, variables: JobVariables
) -> dict[str, str]:
    """Return the files of an allocation, by name in its folder."""
    return {
        "task.sh": task_script(run, chunk),
        "tasks": "".join(f"{number:d}\n" for number in tasks),
        "job.sh": allocation_script(run, chunk, pilot.directives, variables),
    }


def pristine(prepared: Prepared) -> bytes | None:
    """Return the content of a task's writable folders before the tool starts; None if they are empty."""
    folder = as_bytes(prepared.folder) + b"/"
    files = {
        folder + b"work/" + as_bytes(path): as_bytes(content)
        for path, content in prepared.configuration_files.items()
    }
    command = as_bytes(prepared.command_path)
    if command.startswith(folder + b"inputs/"):
        files[command] = as_bytes(prepared.command)
    copies = {as_bytes(each.target): as_bytes(each.source) for each in prepared.copies}
    if not files and not copies:
        return None
    return canonical_json(
        {
            "files": [[_text(path.removeprefix(folder)), _text(content)] for path, content in files.items()],
            "copies": [
                [_text(source), _text(target.removeprefix(folder))] for target, source in copies.items()
            ],
        }
    )


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def check_pilot_resources(decided: DecidedResources) -> int:
    """Return the cores of each task in an allocation with these resources.

    The command line's resources are those of the allocation, the pipeline's suggestion those of each task. Raises `UsageError` for resources
    that cannot be divided among tasks.
    """
    resources = decided.resources
    shared = {"nodes": resources.nodes or 1, "MPI tasks": resources.tasks or 1}
    for unit, count in shared.items():
        if count > 1:
            raise UsageError(
                "not-in-a-pilot",
                f"the tasks of a pilot share one node, but the job requests {count} {unit}",
                subject="--pilot",
                hint="Leave out --pilot: job arrays give each task its own.",
            )
    if resources.gpus:
        raise UsageError(
            "not-in-a-pilot",
            f"a pilot cannot divide {counted(resources.gpus, 'GPU')} among its tasks",
            subject="--pilot",
            hint="Leave out --pilot: job arrays give each task its own. --gpus 0 requests none.",
        )
    each = decided.suggested.cores or 1
    return each if resources.cores is None else min(each, resources.cores)


def with_pilot(request: Request, allocations: int) -> Request:
    """Return the request of a sweep that a pilot runs in at most so many allocations, without fast storage.

    Raises `UsageError` for resources that cannot be divided among tasks.
    """
    check_pilot_resources(request.decide_resources())
    if request.job.fast_options.inputs or request.job.fast_options.work:
        raise UsageError(
            "not-in-a-pilot",
            "the tasks of a pilot share their node's fast storage, which cannot be divided among them",
            subject="--pilot, --fast",
            hint="Leave out --fast, or --pilot.",
        )
    return request.with_job(allocations=allocations, fast_options=FastOptions(none=True))


def prepare_pilot(request: Request, host: RemoteHost) -> Pilot:
    """Check that a pilot can run here and at the site, and return it. Raises `UsageError` or `RefusedError`."""
    decided = request.decide_resources()
    cores = check_pilot_resources(decided)
    find_library()
    python = find_python(host, request.compute.site)
    return Pilot(python, cores, decided.resources.cores, request.job.allocations)
