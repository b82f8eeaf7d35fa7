"""What a bundle is to others: ro-crate-metadata.json, an RO-Crate of the profile Process Run Crate."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from hibali.text import printable
from registry.image_record import ImageRecord
from registry.pipeline import Pipeline
from runs.bundles.members import (
    DESCRIPTOR,
    IMAGE,
    INPUTS,
    INVOCATION,
    MANIFEST,
    OUTPUTS,
    RECORD,
)
from runs.bundles.record import PackedInput, Record, RunFacts
from runs.run import State

VERSION = "1.1"  # of RO-Crate, on which the profile stands
PROFILE = "https://w3id.org/ro/wfrun/process/0.5"
_TERMS = "https://w3id.org/ro/terms/workflow-run#"
_LICENSE = "Pipeline, inputs and image keep the licences of their owners; ask whoever made this."
_ANY_FORMAT = "application/octet-stream"  # nobody looked into it
_MOST_RESULTS = 5_000  # beyond, outputs.sha256 alone speaks of them
_ABOUT = {
    DESCRIPTOR: ("The pipeline as a Boutiques descriptor", "application/json"),
    INVOCATION: ("The answers to the pipeline's questions", "application/json"),
    RECORD: ("What hibali knows of the run", "application/json"),
    IMAGE: ("The container image's digest", "application/json"),
    INPUTS: ("sha256 of every input, as sha256sum writes it", "text/plain"),
    OUTPUTS: ("sha256 of every output, as sha256sum writes it", "text/plain"),
    MANIFEST: ("sha256 of every other file here but the inputs", "text/plain"),
}


@dataclass(frozen=True, slots=True)
class Described:
    """What the metadata is made of. `members` are sizes by name, `inputs` and `outputs` are sha256 and size by name or path.

    `published` is RFC 3339, `agent` the account's name.
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


def write_metadata(told: Described) -> bytes:
    """The text of ro-crate-metadata.json; the same for the same content."""
    return (json.dumps(_Crate(told).generate(), indent=2) + "\n").encode("ascii")


class _Crate:
    """The library's crate, filled; nothing is read or written."""

    def __init__(self, told: Described) -> None:
        from rocrate.rocrate import ROCrate

        self._told = told
        self._crate = ROCrate(version=VERSION)
        self._crate.metadata.extra_terms |= {
            "sha256": f"{_TERMS}sha256",
            "containerImage": f"{_TERMS}containerImage",
            "ContainerImage": f"{_TERMS}ContainerImage",
        }

    def generate(self) -> dict[str, Any]:
        """The whole document."""
        told = self._told
        root = self._crate.root_dataset
        root["name"] = f"{told.pipeline.reference}{' at ' + told.record.run.site if told.record.run else ''}"
        root["description"] = (
            f"A {'run' if told.record.run else 'call'} of the Boutiques pipeline {printable(told.pipeline.title)},"
            " with what is needed to repeat it: hibali bundle run FILE --site SITE"
        )
        root["datePublished"] = _moment(told.published)
        root["author"] = self._agent = self._entity("#agent", "Person", name=told.agent)
        root["license"] = self._entity("#license", "CreativeWork", name="Not stated", description=_LICENSE)
        tool = self._tool()
        for name, size in told.members.items():
            if name in _ABOUT:
                words, form = _ABOUT[name]
                self._file(name, size, name=words, encodingFormat=form)
        objects = [self._input(each) for each in told.record.inputs]
        image = self._image()
        root["mainEntity"] = tool
        if told.record.run is not None:
            root["conformsTo"] = self._entity(
                PROFILE, "CreativeWork", name="Process Run Crate", version="0.5"
            )
            root["mentions"] = self._action(told.record.run, tool, objects, image)
        document: dict[str, Any] = self._crate.metadata.generate()
        return document

    def _action(self, run: RunFacts, tool: Any, objects: Sequence[Any], image: Any) -> Any:
        succeeded = run.state == State.SUCCEEDED
        ended = f" ended with exit code {run.exit_code}" if run.exit_code is not None else ""
        facts: dict[str, Any] = {
            "name": f"Run {run.id} of {self._told.pipeline.reference}",
            "description": f"At {run.site} with {run.scheduler} and {run.container}{ended}.",
            "instrument": tool,
            "agent": self._agent,
            "object": _one_or_all([*objects, self._crate.get(INVOCATION)]),
            "startTime": _moment(run.started or run.created),
            "endTime": _moment(run.ended or run.started or run.created),
            "actionStatus": f"http://schema.org/{'Completed' if succeeded else 'Failed'}ActionStatus",
        }
        results = list(self._results())
        if results:
            facts["result"] = _one_or_all(results)
        if not succeeded:
            facts["error"] = f"{run.state}: {run.reason or 'the tool' + (ended or ' did not end well')}"
        if image is not None:
            facts["containerImage"] = image
        return self._entity(f"#run-{quote(run.id)}", "CreateAction", **facts)

    def _tool(self) -> Any:
        """The pipeline, called by its digest (RFC 6920): a name and a version say less."""
        pipeline = self._told.pipeline
        digest = base64.urlsafe_b64encode(bytes.fromhex(pipeline.digest)).decode("ascii").rstrip("=")
        facts: dict[str, Any] = {
            "name": printable(pipeline.title),
            "description": printable(pipeline.description),
            "softwareVersion": printable(str(pipeline.document["tool-version"])),
            "identifier": f"sha256:{pipeline.digest}",
            "subjectOf": {"@id": DESCRIPTOR},
        }
        url = pipeline.document.get("url")
        if isinstance(url, str) and url.startswith(("https://", "http://")):
            facts["url"] = printable(url)
        return self._entity(f"ni:///sha-256;{digest}", "SoftwareApplication", **facts)

    def _input(self, each: PackedInput) -> Any:
        name = printable(each.member.rpartition("/")[2])
        facts: dict[str, Any] = {"name": f"{each.id}: {name}"}
        if each.type == "folder":
            facts["description"] = f"{each.files} files and {each.bytes} bytes; see {INPUTS}"
        else:
            facts |= {
                "contentSize": str(each.bytes),
                "sha256": self._told.inputs[each.member][0],
                "encodingFormat": _ANY_FORMAT,
            }
        if not each.included:
            facts["description"] = f"It is not in here; it lay at {printable(each.location)}"
            return self._entity(f"#{quote(each.member)}", "CreativeWork", **facts)
        if each.type == "folder":
            return self._crate.add_dataset(dest_path=each.member, properties=facts)
        return self._crate.add_file(dest_path=each.member, properties=facts)

    def _results(self) -> Iterable[Any]:
        outputs = self._told.outputs
        if not outputs or len(outputs) > _MOST_RESULTS:
            listed = self._crate.get(OUTPUTS)
            yield from [] if listed is None else [listed]
            return
        for path, (digest, size) in outputs.items():
            yield self._entity(
                f"#output-{quote(path)}",
                "CreativeWork",
                name=printable(path),
                contentSize=str(size),
                sha256=digest,
            )

    def _image(self) -> Any:
        image, run = self._told.image, self._told.record.run
        facts: dict[str, Any]
        if self._told.image_file:
            assert image is not None
            facts = {"name": "The container image", "sha256": image.hex, "encodingFormat": _ANY_FORMAT}
            self._file(self._told.image_file, image.size, **facts)
        if image is None and not (run and run.image):
            return None
        wanted = self._told.pipeline.container
        sif = image is not None and image.format == "sif"
        facts = {
            "additionalType": {"@id": f"{_TERMS}{'SIF' if sif else 'Docker'}Image"},
            "name": printable(wanted.image) if wanted else "",
            "identifier": image.id if image else (run.image if run else ""),
        }
        if image is not None:
            facts["sha256"] = image.hex
        return self._entity("#image", "ContainerImage", **facts)

    def _file(self, member: str, size: int, /, **facts: Any) -> Any:
        return self._crate.add_file(dest_path=member, properties={**facts, "contentSize": str(size)})

    def _entity(self, identifier: str, kind: str, /, **facts: Any) -> Any:
        from rocrate.model.contextentity import ContextEntity

        made = ContextEntity(self._crate, identifier, {"@type": kind})
        for name, value in facts.items():
            made[name] = value
        return self._crate.add(made)


def _moment(text: str) -> str:
    """A time of ours as the profile has it: seconds, and the zone as numbers."""
    return f"{text[:19]}+00:00"


def _one_or_all(entities: list[Any]) -> Any:
    """RO-Crate 1.1 writes a list of one as that one."""
    return entities[0] if len(entities) == 1 else entities
