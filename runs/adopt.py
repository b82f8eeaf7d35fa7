"""Adopt runs at a site that this ledger does not know, from the manifests in their folders."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from hibali.config.kinds import kind_of, service_name
from hibali.config.model import Site
from hibali.documents import MAXIMUM_BYTES, line_of_json, read_json
from hibali.errors import HibaliError, RefusedError
from hibali.locations import work_path
from hibali.plugins import has
from hibali.signing import is_signed, sign
from hibali.text import path_fields, printable
from runs.clean import check_work_folder
from runs.model import RUN_ID, Run
from runs.queue_places import QueuePlaces
from runs.records import fold_records
from runs.schedulers.base import NotSubmitted, Submitted, Unclear
from runs.services.base import load_job_system
from runs.store import RunStore
from runs.submit import find_submission, submitted_at
from transfers.remote.host import RemoteHost

_NAME = b"/run.json"
_BULKY = ("invocation", "asked", "inputs")
_BULKY_BYTES = 1 << 20
_KEY = re.compile(r"[0-9a-f]{64}")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?Z")
# The fields of the first record of a run; other fields of a manifest are ignored.
_FIELDS: dict[str, type] = {
    **dict.fromkeys(
        ("id", "key", "at", "pipeline", "pipeline_digest", "name", "scheduler", "container"), str
    ),
    **dict.fromkeys(("hibali", "origin", "ledger"), str),
    **dict.fromkeys(("outputs", "after", "inputs", "resources"), list),
    **dict.fromkeys(("hold", "proxy"), bool),
    **dict.fromkeys(("invocation", "asked"), dict),
    "schema": int,
    "sweep": object,
}
_INPUT = {"id", "name", "location", "identity"}
_FLAGS = ("optional", "is_list", "is_pattern")
_TEXTS = ("pipeline", "pipeline_digest", "name", "scheduler", "container")


def write_run_manifest(host: RemoteHost, folder: bytes, run_store: RunStore, run: Run) -> None:
    """Write the run manifest into the run's folder: its first record in the ledger, without bulky fields and the tasks of a sweep."""
    manifest = {**run_store.records(run.id)[0], "kind": "run-card", "ledger": socket.gethostname()}
    manifest["mark"] = sign(_NAME.decode(), run.id.encode("ascii"))
    if run.sweep is not None:
        manifest["sweep"] = True
    content = line_of_json(manifest).encode("ascii")
    if len(content) > _BULKY_BYTES:
        content = line_of_json({name: manifest[name] for name in manifest if name not in _BULKY}).encode(
            "ascii"
        )
    host.put(folder + _NAME, content + b"\n")


def read_run_manifest(host: RemoteHost, folder: bytes, run_id: str) -> dict[str, Any] | None:
    """Read the run manifest as the first record of a ledger, with the field `ledger` added; None if it is not valid for this run."""
    content = host.get(folder + _NAME, maximum=MAXIMUM_BYTES + 1)
    if content is None:
        return None
    try:
        manifest = read_json(content, "run.json")
        texts = [manifest[name] for name in _TEXTS] + [each["path"] for each in manifest["outputs"]]
        known = (
            manifest["id"] == run_id and _KEY.fullmatch(manifest["key"]) and _TIME.fullmatch(manifest["at"])
        )
        if not known or not all(isinstance(text, str) for text in texts):
            return None
        if any(_leaves_folder(each["path"]) for each in manifest["outputs"]):
            return None
        if not _is_sound(manifest):
            return None
        record = {
            **{name: manifest[name] for name in manifest if name in _FIELDS},
            "kind": "prepared",
            "sweep": bool(manifest.get("sweep")),
            "ledger": printable(str(manifest.get("ledger", "")))[:200],
        }
        run = fold_records(run_id, [{**record, "site": "", "sweep": None}])
        line_of_json(run.to_whole_record()).encode("ascii")  # every command must be able to show it
    except (HibaliError, LookupError, TypeError, AttributeError, ValueError):
        return None
    return record


def _is_sound(manifest: dict[str, Any]) -> bool:
    """Return whether optional fields have the types that a ledger writes, so that no command fails because of them."""
    return (
        all(_is(manifest[name], kind) for name, kind in _FIELDS.items() if name in manifest)
        and all(isinstance(each, str) for each in manifest.get("after", ()))
        and all(_is_texts(each) and each.keys() >= _INPUT for each in manifest.get("inputs", ()))
        and all(
            isinstance(each["id"], str) and all(isinstance(each[name], bool) for name in _FLAGS)
            for each in manifest["outputs"]
        )
    )


def _is(value: Any, kind: type) -> bool:
    return isinstance(value, kind) or (kind is str and value is None)


def _is_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())


def _leaves_folder(path: str) -> bool:
    return path.startswith("/") or ".." in path.split("/") or "\0" in path


class Adoption(StrEnum):
    """The result for a run that was found."""

    FOUND = "found"
    ADOPTED = "adopted"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class FoundRun:
    """A run at a site that this ledger does not know; `manifest` has its fields, {} for none."""

    id: str
    site: str
    folder: bytes
    manifest: dict[str, Any]
    job: str = ""
    result: Adoption = Adoption.FOUND
    because: str = ""

    def to_record(self) -> dict[str, Any]:
        """Return the fields of the JSON line of kind `stray`."""
        return {
            "id": self.id,
            "site": self.site,
            "pipeline": str(self.manifest.get("pipeline", "")),
            "name": str(self.manifest.get("name", "")),
            "created": self.manifest.get("at"),
            "ledger": str(self.manifest.get("ledger", "")),
            "job": self.job,
            **path_fields(self.folder, "folder"),
            "fate": str(self.result),
            "because": self.because,
        }


def find_unknown_runs(host: RemoteHost, site: Site, run_store: RunStore) -> Iterator[FoundRun]:
    """Yield every run with a folder at the site that the ledger does not know, oldest first.

    Raises `RefusedError` if others can write there, because the manifests may then be forged (S22).
    """
    runs = check_work_folder(host, site, b"runs") + b"/runs"
    for name in host.names(runs):
        run_id = name.decode("ascii", "replace")
        if RUN_ID.fullmatch(run_id) and not run_store.knows(run_id):
            yield _inspect(host, site, run_id, runs + b"/" + name)


def refuse_unrecorded(host: RemoteHost, site: Site, run_store: RunStore, key: str) -> None:
    """Raise `RefusedError` if this ledger has lost the record of a run of the same command, or of any run that may be at the site.

    The run's manifest says so. Without a work folder, the ledger alone knows its runs.
    """
    run_store.require_known(site.name)
    if not kind_of(site).has_work_folder:
        return
    runs, known = host.expand(work_path(site)) + b"/runs/", {each.encode() for each in run_store.ids()}
    names = [
        name for name in host.names(runs) if name not in known and RUN_ID.fullmatch(name.decode("latin-1"))
    ]
    contents = host.get_all([runs + name + _NAME for name in names], maximum=_BULKY_BYTES)
    for name, content in zip(names, contents, strict=True):
        if content is not None and key.encode() in content and _is_own(name, content):
            raise RefusedError(
                "unrecorded-run",
                "this ledger started the same command before and has lost the record of that run",
                subject=f"{site.name}:{printable(runs + name)}",
                hint=f"To start another run, add --new. To record it again: hibali runs adopt {name.decode()}",
            )


def _is_own(run_id: bytes, content: bytes) -> bool:
    """Return whether this ledger wrote the manifest of a run."""
    with contextlib.suppress(HibaliError, AttributeError):
        return is_signed(_NAME.decode(), run_id, str(read_json(content, "run.json").get("mark")))
    return False


def _inspect(host: RemoteHost, site: Site, run_id: str, folder: bytes) -> FoundRun:
    def skipped(because: str, manifest: dict[str, Any] | None = None) -> FoundRun:
        return FoundRun(run_id, site.name, folder, manifest or {}, result=Adoption.LEFT, because=because)

    if not host.is_private(folder):
        return skipped("the folder belongs to another account, or others can write to it")
    manifest = read_run_manifest(host, folder, run_id)
    if manifest is None:
        return skipped("its folder has no valid run manifest")
    name, service = manifest["scheduler"], has("runs.services", manifest["scheduler"])
    if not (service or has("runs.schedulers", name)):
        return skipped(f"this installation does not support its scheduler: {printable(name)}", manifest)
    if service and name != service_name(site):
        return skipped(f"its jobs run through {name}, which [scheduler] of the site does not name", manifest)
    if manifest["sweep"]:
        return skipped(f"it is a sweep, and only the ledger of {manifest['ledger']} has its tasks", manifest)
    submission = submitted_at(host, folder)
    found = find_submission(host, load_job_system(name), run_id, folder, manifest["at"][:10])
    match found:
        case NotSubmitted() if service:  # only the other ledger knows whether it was requested
            return skipped(f"{name} has no job of it, or none any more", manifest)
        case NotSubmitted():
            return skipped(
                f"it was never submitted; to resume it, run its command again on {manifest['ledger']}",
                manifest,
            )
        case Unclear():
            return skipped(
                "it is not known whether it was submitted; to find out, run its own `hibali run` command again",
                manifest,
            )
        case Submitted(job):
            if submission.age < site.limits.settling_seconds and not submission.has_reply:
                return skipped("another ledger is submitting it now", manifest)
            return FoundRun(run_id, site.name, folder, manifest, job)


def adopt(run_store: RunStore, found_run: FoundRun) -> Run:
    """Record a found run in this ledger; adopting it again changes nothing."""
    manifest = {name: value for name, value in found_run.manifest.items() if name not in {"ledger", "sweep"}}
    records = [
        {**manifest, "site": found_run.site},
        {"kind": "staged", **path_fields(found_run.folder, "folder")},
        {"kind": "submitting"},
        {"kind": "submitted", "job": found_run.job},
        {"kind": "adopted", "ledger": found_run.manifest["ledger"]},
    ]
    run = run_store.adopt(found_run.id, str(manifest["key"]), records)
    if not run.state.ended:
        with contextlib.suppress(OSError):
            QueuePlaces(found_run.site).set_places(found_run.id, 1)
    return run
