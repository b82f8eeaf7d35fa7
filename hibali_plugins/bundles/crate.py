"""Describe runs as entities of an RO-Crate (Process Run Crate)."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from hibali.text import counted, printable, without_controls
from hibali_plugins.bundles.archive import (
    DESCRIPTOR,
    IMAGE,
    INPUTS,
    INVOCATION,
    MANIFEST,
    OUTPUTS,
    RECORD,
    RUN,
    TASKS,
)
from hibali_plugins.bundles.entities import TERMS, Crate
from hibali_plugins.bundles.read import PackedInput, Record, RunFacts
from hibali_plugins.bundles.workflow import Step, describe_workflow
from registry.images.record import ImageRecord
from registry.pipeline import Pipeline
from runs.model import State

_ANY_FORMAT = "application/octet-stream"  # the format is unknown
_MOST_RESULTS = 5_000  # with more, only outputs.sha256 lists them
_PROPERTIES = {
    DESCRIPTOR: ("The pipeline as a Boutiques descriptor", "application/json"),
    INVOCATION: ("The values of the pipeline's inputs", "application/json"),
    RECORD: ("The record of the run", "application/json"),
    RUN: ("The record of the run", "application/json"),
    TASKS: ("The values that each task has of its own", "application/jsonl"),
    IMAGE: ("The container image's digest", "application/json"),
    INPUTS: ("sha256 of every input, as sha256sum writes it", "text/plain"),
    OUTPUTS: ("sha256 of every output, as sha256sum writes it", "text/plain"),
    MANIFEST: ("sha256 of every other file here but the inputs", "text/plain"),
}


@dataclass(frozen=True, slots=True)
class Action:
    """An executed run or task: `identifier` is the run's id, `number` the task's in a sweep.

    `values` are the task's own values, `inputs` the members that it read. Times are RFC 3339.
    """

    identifier: str
    state: str
    exit_code: int | None
    reason: str
    started: str
    ended: str
    inputs: Sequence[str]
    number: int = 0
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Described:
    """The data of the metadata. `members` are sizes by name, `inputs` and `outputs` sha256 and size by name
    or path.

    `published` is RFC 3339, `agent` the account's name. `identities` maps names to known identities of inputs
    that were not hashed for this. All members are located below `folder`, which is "" or ends in a slash. A
    sweep has `tasks`, and its outputs are named `N/PATH`.
    """

    record: Record
    pipeline: Pipeline
    members: Mapping[str, int]
    published: str
    agent: str
    inputs: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    outputs: Mapping[bytes, tuple[str, int]] = field(default_factory=dict)
    image: ImageRecord | None = None
    image_file: str = ""
    identities: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""
    tasks: Sequence[Action] = ()


class Part:
    """A run's part of a crate; entities that several runs share are added once."""

    def __init__(self, crate: Crate, described: Described, agent: Any) -> None:
        """Add everything but the actions."""
        self._crate = crate
        self._described = described
        self._agent = agent
        self.tool = self._tool()
        for name, size in described.members.items():
            if name in _PROPERTIES:
                description, form = _PROPERTIES[name]
                self._file(name, size, name=description, encodingFormat=form)
        self._inputs = {each.member: self._input(each) for each in described.record.inputs}
        self._image = self._add_image()

    def actions(self) -> list[Any]:
        """Add and return the actions: none, one run, or every task of a sweep."""
        run = self._described.record.run
        if run is None:
            return []
        if self._described.tasks:
            results = self._results_of_tasks()
            return [
                self._action(run, each, results.get(each.number, results.get(0, [])))
                for each in self._described.tasks
            ]
        members = [each.member for each in self._described.record.inputs]
        whole = Action(run.id, run.state, run.exit_code, run.reason, run.started, run.ended, members)
        return [self._action(run, whole, list(self._results(self._described.outputs)))]

    def _action(self, run: RunFacts, done: Action, results: list[Any]) -> Any:
        succeeded = done.state == State.SUCCEEDED
        ended = f" ended with exit code {done.exit_code}" if done.exit_code is not None else ""
        began = done.started or run.started or run.created
        called = f"Task {done.number} of run {run.id}" if done.number else f"Run {run.id}"
        used = [*(self._inputs[name] for name in done.inputs), *self._values(done)]
        facts: dict[str, Any] = {
            "name": f"{called} of {self._described.pipeline.reference}",
            "description": f"At {run.site} with {run.scheduler} and {run.container}{ended}.",
            "instrument": self.tool,
            "agent": self._agent,
            "object": [*used, self._crate.get(self._member(INVOCATION))],
            "startTime": moment(began),
            "endTime": moment(done.ended or began),
            "actionStatus": f"http://schema.org/{'Completed' if succeeded else 'Failed'}ActionStatus",
        }
        if results:
            facts["result"] = results
        if not succeeded:
            facts["error"] = f"{done.state}: {done.reason or 'the tool' + (ended or ' failed')}"
        if self._image is not None:
            facts["containerImage"] = self._image
        identifier = f"#run-{quote(done.identifier)}{f'-{done.number}' if done.number else ''}"
        return self._crate.entity(identifier, "CreateAction", **facts)

    def _values(self, done: Action) -> list[Any]:
        """Add the values that a task has of its own."""
        return [
            self._crate.entity(
                f"#{self._described.folder}{done.number}/{quote(name)}",
                "PropertyValue",
                name=printable(name),
                value=printable(value) if isinstance(value, str) else json.dumps(value),
            )
            for name, value in done.values.items()
        ]

    def _tool(self) -> Any:
        """Add the pipeline, identified by its digest (RFC 6920), which is more exact than name and version."""
        pipeline = self._described.pipeline
        digest = base64.urlsafe_b64encode(bytes.fromhex(pipeline.digest)).decode("ascii").rstrip("=")
        identifier = f"ni:///sha-256;{digest}"
        known = self._crate.get(identifier)
        if known is not None:
            return known
        facts: dict[str, Any] = {
            "name": printable(pipeline.title),
            "description": printable(pipeline.description),
            "softwareVersion": printable(str(pipeline.document["tool-version"])),
            "identifier": f"sha256:{pipeline.digest}",
            "subjectOf": {"@id": self._member(DESCRIPTOR)},
        }
        url = pipeline.document.get("url")
        if isinstance(url, str) and url.startswith(("https://", "http://")):
            facts["url"] = printable(url)
        return self._crate.entity(identifier, "SoftwareApplication", **facts)

    def _input(self, each: PackedInput) -> Any:
        name = printable(each.member.rpartition("/")[2])
        identity = self._described.identities.get(each.member)
        facts: dict[str, Any] = {"name": f"{each.id}: {name}"}
        description = ""
        if identity is not None:
            facts |= {"identifier": identity} | _digest_in(identity)
        elif each.type == "folder":
            description = f"{counted(each.files, 'file')} and {counted(each.bytes, 'byte')}; see {INPUTS}"
        else:
            facts |= {
                "contentSize": str(each.bytes),
                "sha256": self._described.inputs[each.member][0],
                "encodingFormat": _ANY_FORMAT,
            }
        if not each.included:
            facts["description"] = f"Not included; its location was {printable(each.location)}"
            return self._crate.entity(f"#{quote(self._member(each.member))}", "CreativeWork", **facts)
        if each.type == "folder":
            return self._crate.dataset(self._member(each.member), {**facts, "description": description})
        return self._crate.file(self._member(each.member), facts)

    def _results_of_tasks(self) -> dict[int, list[Any]]:
        """Return the results by task number; 0 for those of all tasks."""
        outputs = self._described.outputs
        if len(outputs) > _MOST_RESULTS:
            return {0: list(self._results(outputs))}
        found: dict[int, dict[bytes, tuple[str, int]]] = {}
        for name, facts in outputs.items():
            found.setdefault(int(name.partition(b"/")[0]), {})[name] = facts
        return {number: list(self._results(some)) for number, some in found.items()}

    def _results(self, outputs: Mapping[bytes, tuple[str, int]]) -> Iterable[Any]:
        if not outputs or len(outputs) > _MOST_RESULTS:
            listed = self._crate.get(self._member(OUTPUTS))
            yield from [] if listed is None else [listed]
            return
        for path, (digest, size) in outputs.items():
            yield self._crate.entity(
                f"#{self._described.folder}output-{quote(path)}",
                "CreativeWork",
                name=printable(path),
                contentSize=str(size),
                sha256=digest,
            )

    def _add_image(self) -> Any:
        image, run = self._described.image, self._described.record.run
        facts: dict[str, Any]
        if self._described.image_file:
            assert image is not None
            facts = {"name": "The container image", "sha256": image.hex, "encodingFormat": _ANY_FORMAT}
            self._file(self._described.image_file, image.size, **facts)
        if image is None and not (run and run.image):
            return None
        wanted = self._described.pipeline.container
        sif = image is not None and image.format == "sif"
        facts = {
            "additionalType": {"@id": f"{TERMS}{'SIF' if sif else 'Docker'}Image"},
            "name": printable(wanted.image) if wanted else "",
            "identifier": image.id if image else (run.image if run else ""),
        }
        if image is not None:
            facts["sha256"] = image.hex
        return self._crate.entity(f"#{self._described.folder}image", "ContainerImage", **facts)

    def _file(self, member: str, size: int, /, **facts: Any) -> Any:
        return self._crate.file(self._member(member), {**facts, "contentSize": str(size)})

    def _member(self, name: str) -> str:
        return f"{self._described.folder}{name}"


def _digest_in(identity: str) -> dict[str, str]:
    """Return the sha256 of a file, if its identity is one."""
    kind, _, digest = identity.partition(":")
    return {"sha256": digest} if kind == "sha256" else {}


def moment(text: str) -> str:
    """Format a time as the profile requires: with seconds and a numeric zone."""
    return f"{text[:19]}+00:00"


PROFILE = "https://w3id.org/ro/wfrun/process/0.5"
_LICENSE = "Pipeline, inputs and image keep the licences of their owners; ask the author of this file."


def write_metadata(described: Described) -> bytes:
    """Return the text of a bundle's ro-crate-metadata.json; the same for the same content."""
    name = (
        f"{described.pipeline.reference}{' at ' + described.record.run.site if described.record.run else ''}"
    )
    description = (
        f"A {'run' if described.record.run else 'call'} of the Boutiques pipeline {printable(described.pipeline.title)},"
        " with everything needed to repeat it: hibali bundle run FILE --site SITE"
    )
    return _text_of([described], name, description)


def write_runs_metadata(described: Sequence[Described], steps: Sequence[Step] = ()) -> bytes:
    """Return the metadata of exported runs, each in a folder of its own; `steps` if they are a workflow."""
    pipelines = list(dict.fromkeys(each.pipeline.reference for each in described))
    count = "A run" if len(described) == 1 else f"{len(described)} runs"
    description = f"{count} of Boutiques pipelines as hibali recorded them: input values, digests of inputs and outputs, times."
    return _text_of(
        described,
        f"{count} of {', '.join(pipelines[:3])}{' and others' if pipelines[3:] else ''}",
        description,
        steps,
    )


def _text_of(
    described: Sequence[Described], name: str, description: str, steps: Sequence[Step] = ()
) -> bytes:
    crate = Crate()
    root = crate.library.root_dataset
    root["name"] = name
    root["description"] = description
    root["datePublished"] = moment(max(each.published for each in described))
    root["author"] = agent = crate.entity("#agent", "Person", name=described[0].agent)
    root["license"] = crate.entity("#license", "CreativeWork", name="Not stated", description=_LICENSE)
    parts = [Part(crate, each, agent) for each in described]
    if len({part.tool.id for part in parts}) == 1:
        root["mainEntity"] = parts[0].tool
    made = [part.actions() for part in parts]
    actions = [action for some in made for action in some]
    if steps:
        runs = [each.record.run.id for each in described if each.record.run is not None]
        describe_workflow(crate, steps, dict(zip(runs, made, strict=True)), agent)
    elif actions:
        root["conformsTo"] = crate.entity(PROFILE, "CreativeWork", name="Process Run Crate", version="0.5")
        root["mentions"] = actions
    document = _harmless(crate.library.metadata.generate())
    document["@graph"] = [_with_single_values(each) for each in document["@graph"]]
    return (json.dumps(document, indent=2) + "\n").encode("ascii")


def _with_single_values(entity: dict[str, Any]) -> dict[str, Any]:
    """Return the entity with each list of one as its single value (RO-Crate 1.1)."""
    return {
        name: value[0] if isinstance(value, list) and len(value) == 1 else value
        for name, value in entity.items()
    }


def _harmless(value: Any) -> Any:
    """Return the value safe to display: sites, hosts and reasons are untrusted text (S17)."""
    if isinstance(value, str):
        return without_controls(value)
    if isinstance(value, dict):
        return {without_controls(name): _harmless(each) for name, each in value.items()}
    return [_harmless(each) for each in value] if isinstance(value, list) else value
