"""Descriptors of schema 0.4 written as 0.5, as the reference writes them (boutiques 0.5.33, importer.py, upgrade_04)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hibali.errors import UsageError

OLD, NEW = "0.4", "0.5"


def upgrade_document(document: Any, about: str) -> dict[str, Any]:
    """The same tool in schema 0.5, its keys in their order; raises `UsageError` for one that is not of schema 0.4."""
    if not isinstance(document, dict) or document.get("schema-version") not in (OLD, float(OLD)):
        raise UsageError(
            "not-schema-04",
            f'only descriptors with "schema-version": "{OLD}" can be upgraded',
            about=about,
            hint="`hibali pipelines validate FILE` tells what is wrong with another one.",
        )
    upgraded = {**document, "schema-version": NEW}
    container = document.get("container-image")
    if isinstance(container, dict):
        upgraded["container-image"] = _upgrade_container(container)
    if "walltime-estimate" in upgraded:
        suggested = upgraded.get("suggested-resources")
        known = suggested if isinstance(suggested, dict) else {}
        upgraded["suggested-resources"] = {**known, "walltime-estimate": upgraded.pop("walltime-estimate")}
    return upgraded


def _upgrade_container(container: Mapping[str, Any]) -> dict[str, Any]:
    """A Singularity image was a URL, and a Docker index could be one."""
    kind, url, index = container.get("type"), container.get("url"), container.get("index")
    if kind == "singularity" and isinstance(url, str):
        scheme, separator, image = url.rpartition("://")
        kept = {key: value for key, value in container.items() if key != "url"}
        return {**kept, "image": image, **({"index": f"{scheme}://"} if separator else {})}
    if kind == "docker" and isinstance(index, str):
        return {**container, "index": index.rpartition("://")[2]}
    return dict(container)
