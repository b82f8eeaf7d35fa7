"""Read and write job specifications of PSI/J (exaworks.org/job-api-spec), as psij-python 0.9.11 writes them in JSON.

A specification is one command with its arguments, not a tool with parameters: what is read becomes a descriptor whose only input is the list
of these arguments, which they are by default; what is written is a pipeline with the values of one invocation.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Mapping
from typing import Any

from hibali.errors import UsageError
from hibali_plugins.formats.conversion import Conversion, ConversionError, Draft, Identifiers
from registry.command_line import CommandLine, build_command_line
from registry.images.record import wanted_name
from registry.invocation import Invocation
from registry.pipeline import Pipeline
from registry.problems import Problem

_KNOWN = frozenset(
    [
        "executable",
        "arguments",
        "directory",
        "name",
        "inherit_environment",
        "environment",
        "stdin_path",
        "stdout_path",
        "stderr_path",
        "resources",
        "attributes",
        "pre_launch",
        "post_launch",
        "launcher",
    ]
)
_RESOURCES = frozenset(
    [
        "node_count",
        "process_count",
        "processes_per_node",
        "cpu_cores_per_process",
        "gpu_cores_per_process",
        "exclusive_node_use",
        "__version",
    ]
)
_ATTRIBUTES = frozenset(
    ["duration", "queue_name", "account", "project_name", "reservation_id", "custom_attributes"]
)
_SECONDS = {
    "": 60.0,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}  # minutes without a unit (psij parse_walltime)
_LAUNCHER = "apptainer"
_DEFAULT_SECONDS = 600  # of a specification that says nothing


def is_job_specification(document: Any) -> bool:
    """Return whether a JSON document looks like a job specification."""
    return (
        isinstance(document, dict)
        and isinstance(document.get("executable"), str)
        and not set(document) - _KNOWN
    )


def convert_psij(source: str, subject: str, *, name: str, version: str) -> Conversion:
    """Make a descriptor of a job specification.

    Args:
        source: The JSON text.
        subject: The file, as errors name it.
        name: The name of the pipeline; "" for that of the job.
        version: The version of the tool, which a specification does not have.

    Raises:
        UsageError: It is no job specification.
        ConversionError: A part that changes how the job runs cannot be in a descriptor.
    """
    try:
        document = json.loads(source)
    except (ValueError, RecursionError):
        document = None
    if not is_job_specification(document):
        message = "it is no job specification of PSI/J: a JSON object with executable"
        raise UsageError("not-a-job-specification", message, subject=subject)
    return _Reader(document, source).convert(name, version, subject)


class _Reader:
    def __init__(self, document: dict[str, Any], source: str) -> None:
        self._document = document
        self._draft = Draft()
        self._identifiers = Identifiers(source)
        self._more: dict[str, Any] = {}

    def convert(self, name: str, version: str, subject: str) -> Conversion:
        document, draft = self._document, self._draft
        draft.words.append(shlex.quote(document["executable"]))
        self._add_arguments()
        self._add_streams()
        self._add_environment()
        self._add_resources()
        for key in ("pre_launch", "post_launch"):
            if document.get(key):
                draft.refuse(key, "a script that runs beside the tool changes how it runs")
        launcher = document.get("launcher")
        if launcher not in {None, "", "single"}:
            draft.refuse("launcher", f"{launcher} starts several processes: put it into the command line")
        if document.get("directory"):
            draft.note("directory", "was left out: the tool runs in the folder of its run")
        if document.get("inherit_environment") is False:
            draft.note("inherit_environment", "was left out: a job has the environment that its site gives")
        draft.note("output-files", "a job specification does not say what the tool writes: add them")
        title = name or str(document.get("name") or document["executable"].rpartition("/")[2])
        return draft.finish(title, version, "", subject, self._more)

    def _add_arguments(self) -> None:
        """Add the list of arguments; a descriptor needs an input, so also an empty one."""
        given = self._document.get("arguments") or []
        if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
            self._draft.refuse("arguments", "must be a list of strings")
            return
        made: dict[str, Any] = {"id": self._identifiers.new_id("arguments"), "name": "arguments"}
        made |= {"type": "String", "list": True, "optional": True}
        if given:
            made["default-value"] = given
        made["value-key"] = self._identifiers.new_key(made["id"])
        self._draft.inputs.append(made)
        self._draft.words.append(made["value-key"])

    def _add_streams(self) -> None:
        document, draft = self._document, self._draft
        if path := document.get("stdin_path"):
            made = {"id": self._identifiers.new_id("stdin"), "name": "standard input", "type": "File"}
            made["value-key"] = self._identifiers.new_key("stdin")
            draft.inputs.append(made)
            draft.words += ["<", made["value-key"]]
            draft.note("stdin_path", f"{path} is a value of the input stdin")
        for name, sign in (("stdout", ">"), ("stderr", "2>")):
            if path := document.get(f"{name}_path"):
                file = str(path).rpartition("/")[2]
                key = self._identifiers.new_key(name)
                draft.outputs.append(
                    {
                        "id": self._identifiers.new_id(name),
                        "name": f"standard {name[3:]}",
                        "path-template": file,
                        "value-key": key,
                    }
                )
                draft.words += [sign, key]

    def _add_environment(self) -> None:
        environment = self._document.get("environment") or {}
        if not isinstance(environment, dict):
            self._draft.refuse("environment", "must be an object")
            return
        if environment:
            made = [{"name": name, "value": str(value)} for name, value in environment.items()]
            self._more["environment-variables"] = made

    def _add_resources(self) -> None:
        resources = self._document.get("resources") or {}
        attributes = self._document.get("attributes") or {}
        if not isinstance(resources, dict) or not isinstance(attributes, dict):
            self._draft.refuse("resources", "resources and attributes must be objects")
            return
        suggested: dict[str, Any] = {}
        for key, wanted in (("cpu_cores_per_process", "cpu-cores"), ("node_count", "number-of-nodes")):
            if isinstance(resources.get(key), int):
                suggested[wanted] = resources[key]
        seconds = _seconds(attributes.get("duration"))
        if seconds is not None:
            suggested["walltime-estimate"] = seconds
        if suggested:
            self._more["suggested-resources"] = suggested
        carried = {"cpu_cores_per_process", "node_count", "duration", "__version"}
        for key in [*resources, *attributes]:
            if key not in _RESOURCES | _ATTRIBUTES:
                self._draft.refuse(key, "it is not in the specification of PSI/J")
            elif key not in carried and {**resources, **attributes}[key]:
                self._draft.note(
                    key, "was left out: it belongs to the site, give it as an option of hibali run"
                )


def _seconds(text: Any) -> int | None:
    """Return a duration in seconds: `600.0 s`, `10m`, minutes alone, or `HH:MM[:SS]`."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhd]?)\s*", str(text).lower())
    if found:
        return math.ceil(float(found[1]) * _SECONDS[found[2]])
    parts = (
        [int(part) for part in re.findall(r"\d+", str(text))]
        if re.fullmatch(r"\d+(:\d+){1,2}", str(text))
        else []
    )
    if len(parts) == 2:
        return parts[0] * 3600 + parts[1] * 60
    return parts[0] * 3600 + parts[1] * 60 + parts[2] if parts else None


def export_psij(pipeline: Pipeline, invocation: Invocation) -> Conversion:
    """Return the job specification of a pipeline with the values of one invocation.

    Raises:
        ConversionError: The pipeline writes configuration files, which a job specification cannot.
        UsageError: A value cannot be quoted where the author put it.
    """
    command = build_command_line(pipeline, invocation)
    if command.configuration_files:
        problem = Problem("output-files", "a job specification cannot write configuration files")
        raise ConversionError([problem], subject=pipeline.reference)
    notes = [Problem("inputs", "files are named as they were given, and are not transferred")]
    words = _words(pipeline, command, notes)
    outside = command.environment if words[0] != _LAUNCHER else {}  # in a container it is given to that
    document: dict[str, Any] = {
        "executable": words[0],
        "arguments": words[1:],
        "name": pipeline.name,
        **({"environment": dict(outside)} if outside else {}),
        "resources": _resources(pipeline, notes),
        "attributes": {
            "duration": f"{math.ceil(pipeline.resources.walltime_seconds or _DEFAULT_SECONDS)}.0 s"
        },
    }
    return Conversion(document, tuple(notes))


def _words(pipeline: Pipeline, command: CommandLine, notes: list[Problem]) -> list[str]:
    """Return the words that start the tool, by apptainer if it has an image of a registry."""
    inside = [f"/bin/{command.shell}", "-c", command.script]
    if pipeline.container is None:
        return inside
    image = wanted_name(pipeline.container)
    if not image:
        notes.append(
            Problem(
                "container-image", "its image was left out: only those of registries have a name to start"
            )
        )
        return inside
    notes.append(
        Problem("container-image", "started by apptainer, with the folders that the site binds by default")
    )
    variables = [f"--env={name}={value}" for name, value in command.environment.items()]
    return [_LAUNCHER, "exec", *variables, f"docker://{image}", *inside]


def _resources(pipeline: Pipeline, notes: list[Problem]) -> Mapping[str, Any]:
    wanted = pipeline.resources
    values = {
        "node_count": wanted.nodes or 1,
        "process_count": wanted.tasks,
        "cpu_cores_per_process": wanted.cpu_cores,
        "gpu_cores_per_process": wanted.gpus,
    }
    for name, value in (("ram", wanted.ram_gigabytes), ("disk-space", wanted.disk_gigabytes)):
        if value is not None:
            notes.append(Problem(f"suggested-resources.{name}", "PSI/J has no memory and no disk space"))
    return {**{name: value for name, value in values.items() if value is not None}, "__version": 1}
