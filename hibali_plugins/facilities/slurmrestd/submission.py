"""Describe a job to slurmrestd: the `#SBATCH` lines of its script as fields, because slurmrestd does not read them.

Fields are those of v0.0.38 (openapi/v0.0.38/jobs.c, slurm_opt.c) or of v0.0.40 and later (data_parser: JOB_DESC_MSG).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from hibali_plugins.facilities.script_jobs import bad_directive

_OPTION = re.compile(r"--([a-z-]+)(?:[= ]\s*(.*))?|-([A-Za-z])\s*(.*)")
_SHORT = {
    "A": "account",
    "p": "partition",
    "q": "qos",
    "C": "constraint",
    "L": "licenses",
    "t": "time",
    "N": "nodes",
    "n": "ntasks",
    "c": "cpus-per-task",
}
_UNITS = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2}
_MEMORY = re.compile(r"([0-9]{1,12})([KMGT]?)B?", re.IGNORECASE)
_SIGNAL = re.compile(r"(?:[BR]{1,2}:)?[A-Za-z0-9]{1,10}(?:@[0-9]{1,5})?")  # sbatch(1), --signal
_TIME = re.compile(r"(?:([0-9]{1,5})-)?([0-9]{1,7})(?::([0-9]{1,2}))?(?::([0-9]{1,2}))?")


def _minutes(text: str) -> int:
    """Return the minutes of a time limit, rounded up: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S (sbatch(1), --time)."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError(text)
    days, first, second, third = (int(part or 0) for part in found.groups())
    if found[1] is not None or found[4] is not None:
        hours, minutes, seconds = first, second, third
    else:
        hours, minutes, seconds = 0, first, second
    return (days * 24 + hours) * 60 + minutes + (seconds > 0)


def _megabytes(text: str) -> int:
    found = _MEMORY.fullmatch(text)
    if found is None:
        raise ValueError(text)
    return -int(-int(found[1]) * _UNITS[found[2].upper()] // 1)


def _signal(text: str) -> str:
    if not _SIGNAL.fullmatch(text):
        raise ValueError(text)
    return text


_Reader = Callable[[str], Any]
_FIELDS: dict[str, tuple[str, _Reader]] = {
    "account": ("account", str),
    "partition": ("partition", str),
    "reservation": ("reservation", str),
    "qos": ("qos", str),
    "constraint": ("constraints", str),
    "licenses": ("licenses", str),
    "wckey": ("wckey", str),
    "time": ("time_limit", _minutes),
    "nodes": ("nodes", str),
    "ntasks": ("tasks", int),
    "ntasks-per-node": ("tasks_per_node", int),
    "cpus-per-task": ("cpus_per_task", int),
    "mem": ("memory_per_node", _megabytes),
    "mem-per-cpu": ("memory_per_cpu", _megabytes),
    "gres": ("gres", str),
    "gpus-per-node": ("gpus", lambda text: f"gpu:{text}"),  # beside --gres
    "signal": ("signal", _signal),
    "exclusive": ("exclusive", str),
}
_NUMBERS = ("time_limit", "memory_per_node", "memory_per_cpu")  # that may be infinite


def describe(
    lines: list[str], fields: Mapping[str, Any], environment: Mapping[str, str], version: int
) -> dict[str, Any]:
    """Return the description of a job.

    Args:
        lines: The options of the `#SBATCH` lines of its script. Later ones replace earlier ones.
        fields: What hibali sets, with names that are the same in all versions.
        environment: The variables of the job.
        version: The version of the API.

    Raises:
        UsageError: An option has no field, or its value is not valid.
    """
    job = {**dict(_field(line) for line in lines), **fields}
    if resources := ",".join(job.pop(key) for key in ("gres", "gpus") if key in job):
        job["gres"] = resources
    if version < 40:
        return {
            **job,
            **({"exclusive": job["exclusive"] or "exclusive"} if "exclusive" in job else {}),
            "environment": dict(environment),
            "no_requeue": True,  # here `requeue` with any value means true
            "open_mode": "append",
            "kill_on_invalid_dependency": True,
        }
    return {
        **_as_structured(job),
        "environment": [f"{name}={value}" for name, value in environment.items()],
        "requeue": False,
        "open_mode": ["APPEND"],
        "flags": ["KILL_INVALID_DEPENDENCY"],
    }


def _as_structured(job: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that v0.0.40 and later name or type otherwise."""
    for name in _NUMBERS:
        if name in job:
            job[name] = {"set": True, "infinite": False, "number": job[name]}
    if "gres" in job:
        job["tres_per_node"] = ",".join(f"gres/{each}" for each in job.pop("gres").split(","))
    if "exclusive" in job:
        job["shared"] = [job.pop("exclusive") or "none"]
    if "signal" in job:
        flags, _, rest = job.pop("signal").rpartition(":")
        name, _, seconds = rest.partition("@")
        job["kill_warning_signal"] = name
        job["kill_warning_delay"] = {"set": True, "infinite": False, "number": int(seconds or 60)}
        job["kill_warning_flags"] = ["BATCH_JOB"] if "B" in flags else []
    return job


def _field(line: str) -> tuple[str, Any]:
    found = _OPTION.fullmatch(line)
    option = (found[1] or _SHORT.get(found[3], "")) if found else ""
    try:
        name, read = _FIELDS[option]
        value = ((found[2] or found[4] or "") if found else "").strip()
        if value or option == "exclusive":
            return name, read(value)
        raise ValueError(line)
    except (KeyError, ValueError):
        raise bad_directive(line, "slurmrestd", "--constraint=gpu; known are " + ", ".join(_FIELDS)) from None
