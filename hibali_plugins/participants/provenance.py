"""Describe collected results of participants as a BIDS dataset of derivatives, if the pipeline did not."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hibali import __version__
from hibali.documents import read_json_file
from hibali.errors import HibaliError
from hibali.events import Listener, Noted
from hibali.files import write_atomic
from hibali.system_errors import reason_of
from hibali.text import printable
from hibali_plugins.participants.parts import DESCRIPTION
from registry.catalogue import Catalogue
from registry.pipeline import Pipeline
from runs.model import Run
from runs.store import RunStore
from transfers.stores.open_views import datasets_at

_VERSION = "1.10.0"  # of BIDS


def describe_results(
    run: Run, run_store: RunStore, folder: Path, names: Iterable[bytes], on_event: Listener
) -> None:
    """Write dataset_description.json into a folder of results of participants.

    Nothing is written over a file, nor where the pipeline described its results, nor into a DataLad dataset, whose record says the same.
    A failure is noted: the results themselves are complete.
    """
    typed: list[str] = (run_store.records(run.id)[0].get("asked") or {}).get("participants") or []
    described = any(name.rpartition(b"/")[2] == DESCRIPTION for name in names)
    target = folder / os.fsdecode(DESCRIPTION)
    if len(typed) < 2 or described or os.path.lexists(target) or datasets_at(os.fsencode(folder)) is not None:
        return
    text = json.dumps(description_of(run, _pipeline_of(run), str(typed[1])), indent=2)
    try:
        write_atomic(target, f"{text}\n".encode("ascii"), mode=0o666, new=True)
    except FileExistsError:
        return
    except OSError as problem:
        on_event(Noted(f"{printable(str(target))} could not be written: {reason_of(problem)}"))


def _pipeline_of(run: Run) -> Pipeline | None:
    with contextlib.suppress(HibaliError):
        found = Catalogue().find(run.spec.pipeline)
        return found if found.digest == run.spec.pipeline_digest else None
    return None


def description_of(run: Run, pipeline: Pipeline | None, dataset: str) -> dict[str, Any]:
    """Return the description of the results; without the pipeline, which was removed, only its name."""
    name, _, version = run.spec.pipeline.partition("@")
    generated: dict[str, Any] = {"Name": name, "Version": version}
    if pipeline is not None:
        document = pipeline.document
        generated = {"Name": pipeline.title, "Version": str(document["tool-version"])}
        url = document.get("url")
        if isinstance(url, str) and url.startswith(("https://", "http://")):
            generated["CodeURL"] = url
    generated["Description"] = f"Run {run.id} of {run.spec.pipeline} (sha256 {run.spec.pipeline_digest})"
    if pipeline is not None and pipeline.container is not None and run.placement.container != "bare":
        wanted = pipeline.container
        generated["Container"] = {"Type": wanted.kind, "Tag": wanted.image or wanted.url} | (
            {"URI": f"sha256:{run.placement.image.removeprefix('sha256:')}"} if run.placement.image else {}
        )
    source, source_name = _source(dataset)
    hibali = {"Name": "hibali", "Version": run.spec.version or __version__}
    return {
        "Name": f"{generated['Name']}: {source_name}",
        "BIDSVersion": _VERSION,
        "DatasetType": "derivative",
        "GeneratedBy": [generated, hibali],
        "SourceDatasets": [source],
    }


def _source(dataset: str) -> tuple[Mapping[str, str], str]:
    """Return where the dataset is, its DOI if it says one, and its name; one at another site is not read."""
    site, _, path = dataset.partition(":")
    url = f"hibali://{quote(site)}/{quote(path)}"
    read: Any = {}
    if dataset.startswith("/"):
        url = Path(dataset).as_uri()
        with contextlib.suppress(HibaliError):
            read = read_json_file(Path(dataset, os.fsdecode(DESCRIPTION)))
    description = read if isinstance(read, dict) else {}
    doi = description.get("DatasetDOI")
    name = description.get("Name")
    found = {"URL": url} | ({"DOI": doi} if isinstance(doi, str) else {})
    return found, name if isinstance(name, str) else Path(dataset).name
