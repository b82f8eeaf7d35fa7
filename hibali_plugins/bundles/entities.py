"""Make the entities of an RO-Crate; it is the only module that uses rocrate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TERMS = "https://w3id.org/ro/terms/workflow-run#"
_VERSION = "1.1"  # the RO-Crate version that the profiles 0.5 of the Workflow Run Crates extend


class Crate:
    """An RO-Crate in memory; no file is read or written, and entities may refer to each other."""

    def __init__(self) -> None:
        from rocrate.rocrate import ROCrate  # start-up: slow

        self.library = ROCrate(version=_VERSION)
        self.library.metadata.extra_terms |= {
            "sha256": f"{TERMS}sha256",
            "containerImage": f"{TERMS}containerImage",
            "ContainerImage": f"{TERMS}ContainerImage",
            "ParameterConnection": f"{TERMS}ParameterConnection",
            "connection": f"{TERMS}connection",
            "sourceParameter": f"{TERMS}sourceParameter",
            "targetParameter": f"{TERMS}targetParameter",
        }

    def get(self, identifier: str) -> Any:
        """Return the entity of that id, or None."""
        return self.library.get(identifier)

    def file(self, member: str, facts: Mapping[str, Any]) -> Any:
        """Add a file of the crate."""
        return self.library.add_file(dest_path=member, properties=dict(facts))

    def dataset(self, member: str, facts: Mapping[str, Any]) -> Any:
        """Add a folder of the crate."""
        return self.library.add_dataset(dest_path=member, properties=dict(facts))

    def entity(self, identifier: str, kind: str, /, **facts: Any) -> Any:
        """Add an entity that is not a file of the crate."""
        from rocrate.model.contextentity import ContextEntity  # start-up: slow

        made = ContextEntity(self.library, identifier, {"@type": kind})
        for name, value in facts.items():
            made[name] = value
        return self.library.add(made)
