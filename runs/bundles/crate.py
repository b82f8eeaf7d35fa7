"""What runs are to others: ro-crate-metadata.json, an RO-Crate of the profile Process Run Crate; of a bundle, or of several runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hibali.text import printable, without_controls
from runs.bundles.described import TERMS, Described, Part, moment, one_or_all

VERSION = "1.1"  # of RO-Crate, on which the profile stands
PROFILE = "https://w3id.org/ro/wfrun/process/0.5"
_LICENSE = "Pipeline, inputs and image keep the licences of their owners; ask whoever made this."


def write_metadata(told: Described) -> bytes:
    """The text of ro-crate-metadata.json of a bundle; the same for the same content."""
    name = f"{told.pipeline.reference}{' at ' + told.record.run.site if told.record.run else ''}"
    words = (
        f"A {'run' if told.record.run else 'call'} of the Boutiques pipeline {printable(told.pipeline.title)},"
        " with what is needed to repeat it: hibali bundle run FILE --site SITE"
    )
    return _text_of([told], name, words)


def write_runs_metadata(told: Sequence[Described]) -> bytes:
    """The same of runs that are only described, each in a folder of its own."""
    pipelines = list(dict.fromkeys(each.pipeline.reference for each in told))
    counted = "A run" if len(told) == 1 else f"{len(told)} runs"
    words = f"{counted} of Boutiques pipelines as hibali recorded them: answers, digests of inputs and outputs, times."
    return _text_of(
        told, f"{counted} of {', '.join(pipelines[:3])}{' and others' if pipelines[3:] else ''}", words
    )


def _text_of(told: Sequence[Described], name: str, description: str) -> bytes:
    document = _harmless(_Crate().generate(told, name, description))
    return (json.dumps(document, indent=2) + "\n").encode("ascii")


def _harmless(value: Any) -> Any:
    """The same, shown as it is by whatever shows it: sites, hosts and reasons are words of others (S17)."""
    if isinstance(value, str):
        return without_controls(value)
    if isinstance(value, dict):
        return {without_controls(name): _harmless(each) for name, each in value.items()}
    return [_harmless(each) for each in value] if isinstance(value, list) else value


class _Crate:
    """The library's crate, filled; nothing is read or written."""

    def __init__(self) -> None:
        from rocrate.rocrate import ROCrate

        self._crate = ROCrate(version=VERSION)
        self._crate.metadata.extra_terms |= {
            "sha256": f"{TERMS}sha256",
            "containerImage": f"{TERMS}containerImage",
            "ContainerImage": f"{TERMS}ContainerImage",
        }

    def generate(self, told: Sequence[Described], name: str, description: str) -> dict[str, Any]:
        """The whole document."""
        root = self._crate.root_dataset
        root["name"] = name
        root["description"] = description
        root["datePublished"] = moment(max(each.published for each in told))
        root["author"] = agent = self.entity("#agent", "Person", name=told[0].agent)
        root["license"] = self.entity("#license", "CreativeWork", name="Not stated", description=_LICENSE)
        parts = [Part(self, each, agent) for each in told]
        if len({part.tool.id for part in parts}) == 1:
            root["mainEntity"] = parts[0].tool
        actions = [action for part in parts for action in part.actions()]
        if actions:
            root["conformsTo"] = self.entity(PROFILE, "CreativeWork", name="Process Run Crate", version="0.5")
            root["mentions"] = one_or_all(actions)
        document: dict[str, Any] = self._crate.metadata.generate()
        return document

    def get(self, identifier: str) -> Any:
        """The entity of that id, or None."""
        return self._crate.get(identifier)

    def file(self, member: str, facts: Mapping[str, Any]) -> Any:
        """A file of the crate."""
        return self._crate.add_file(dest_path=member, properties=dict(facts))

    def dataset(self, member: str, facts: Mapping[str, Any]) -> Any:
        """A folder of the crate."""
        return self._crate.add_dataset(dest_path=member, properties=dict(facts))

    def entity(self, identifier: str, kind: str, /, **facts: Any) -> Any:
        """Something that is no file of the crate."""
        from rocrate.model.contextentity import ContextEntity

        made = ContextEntity(self._crate, identifier, {"@type": kind})
        for name, value in facts.items():
            made[name] = value
        return self._crate.add(made)
