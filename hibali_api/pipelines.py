"""The catalogue of pipelines on this machine, as `hibali.pipelines`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

from hibali.errors import NotFoundError, UsageError
from hibali.events import Noted
from hibali_api.calls import CallOptions, Place, calling, place_text
from registry.catalogue import Catalogue, open_local_catalogue
from registry.descriptor import read_descriptor
from registry.invocation import Invocation, check_invocation
from registry.pipeline import Pipeline
from registry.problems import read_file_bytes
from registry.search import Summary
from registry.sources import access_of, find_candidates


def names() -> list[str]:
    """Return NAME@VERSION of all pipelines, in the order of `hibali pipelines list`."""
    return [f"{each.name}@{each.version}" for each in Catalogue().entries() if isinstance(each, Summary)]


def get(name: str) -> Pipeline:
    """Return a pipeline by NAME, for its newest version, or NAME@VERSION. Raises `NotFoundError`."""
    return Catalogue().find(name)


def add(source: Place, name: str | None = None, **options: Unpack[CallOptions]) -> Pipeline:
    """Add the pipeline of a Boutiques descriptor to the catalogue; the same descriptor again changes nothing.

    Args:
        source: a file of this machine, a URL, `zenodo.ID`, `git+URL` or `niwrap:SUITE/TOOL`, with one descriptor.
        name: another name than the descriptor's.
        **options: see `CallOptions`.

    Raises:
        UsageError: the descriptor is invalid; the message lists all problems.
        RefusedError: another descriptor has this name and version.
    """
    place = place_text(source)
    with calling("add", options) as call:
        settings = call.settings.catalogue
        found = list(find_candidates(place, access_of(settings)))
        if not found:
            raise NotFoundError("no-descriptor", "the source has no Boutiques descriptor", subject=place)
        if len(found) > 1:
            raise UsageError(
                "usage",
                f"{len(found)} descriptors were found",
                subject=place,
                hint=f"To choose from them: hibali pipelines add {place}",
            )
        catalogue = open_local_catalogue(settings, lambda text: call.on_event(Noted(text)))
        [each] = found
        return catalogue.add(each.raw, name or each.name, subject=each.subject, origin=each.origin)


def validate(descriptor: Place) -> Pipeline:
    """Read a descriptor of this machine as `add` does, without adding it. Raises `UsageError` with all problems."""
    path = Path(descriptor)
    return read_descriptor(read_file_bytes(path), str(path))


def invocation(name: str, values: Mapping[str, Any]) -> Invocation:
    """Check values for the inputs of a pipeline. Raises `UsageError` with all problems."""
    return check_invocation(get(name), dict(values))
