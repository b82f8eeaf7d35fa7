"""Identify jobs, pack a workflow's sources, and remember what was requested until the end of a job was reported."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hibali.files import write_atomic

Values = dict[str, Any]

_VARYING = frozenset(
    {"jobid", "groupid", "resources", "local"}
)  # other ones in each call, or of no effect on outputs

_RESOURCES = {  # Snakemake's names and those of hibali.run
    "nodes": "nodes",
    "tasks": "tasks",
    "gpu": "gpus",
    "gpus": "gpus",
    "slurm_partition": "partition",
    "partition": "partition",
    "slurm_account": "account",
    "account": "account",
}


def identify(properties: Mapping[str, Any], *others: Any) -> str:
    """Return the identity of a job, which a restarted Snakemake computes again.

    Args:
        properties: of the job, as Snakemake lists them.
        others: everything else on which its outputs depend, as values of JSON.
    """
    kept = {name: value for name, value in properties.items() if name not in _VARYING}
    text = json.dumps([kept, *others], sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def job_options(threads: int, resources: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of `hibali.run` for Snakemake's resources."""
    known = {name: value for name, value in resources.items() if isinstance(value, int | str) and value != ""}
    options: dict[str, Any] = {"cores": threads}
    if "mem_mb" in known:
        options["memory"] = f"{known['mem_mb']}M"
    if "runtime" in known:
        options["time"] = int(known["runtime"]) * 60
    return options | {ours: known[theirs] for theirs, ours in _RESOURCES.items() if theirs in known}


def pack(sources: Iterable[str], more: Mapping[str, bytes]) -> bytes:
    """Return a tar file of sources below the current folder, and of further contents by their names.

    The same contents are always the same file, so that each site stores it once. Sources in other folders are left
    out, as Snakemake does.
    """
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(set(sources)):
            path = Path(name)
            if not path.is_absolute() and ".." not in path.parts:
                _add(archive, name, path.read_bytes(), executable=os.access(path, os.X_OK))
        for name, content in sorted(more.items()):
            _add(archive, name, content)
    return stream.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes, *, executable: bool = False) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o755 if executable else 0o644
    archive.addfile(member, io.BytesIO(content))


class Requests:
    """What was requested for each job, in a folder: it is written before the job is submitted.

    Parts of a job's command differ in each call of Snakemake. A restarted one repeats the recorded request, by which
    hibali finds the run that was started, instead of making another one.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def find(self, identity: str) -> Values | None:
        """Return the values that were requested for a job; None if there are none, or if their sources are gone."""
        try:
            found = json.loads(self.path(identity).read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        return found if isinstance(found, dict) and Path(str(found.get("sources"))).exists() else None

    def write(self, identity: str, values: Values) -> Values:
        """Record the values for a job, durably, and return them."""
        write_atomic(self.path(identity), json.dumps(values).encode())
        return values

    def forget(self, identity: str) -> None:
        """Remove the record of a job whose end was reported."""
        self.path(identity).unlink(missing_ok=True)

    def store_sources(self, content: bytes) -> Path:
        """Store the sources; remove those of earlier calls if no job needs them."""
        path = self._folder / f"sources-{hashlib.sha256(content).hexdigest()[:16]}.tar"
        if not any(self._folder.glob("*.json")):
            for earlier in self._folder.glob("sources-*.tar"):
                earlier.unlink(missing_ok=True)
        write_atomic(path, content)
        return path

    def path(self, identity: str) -> Path:
        """Return the file with the record of a job."""
        return self._folder / f"{identity}.json"
