"""Save a run in a DataLad dataset: outputs, and the record that `datalad rerun` needs."""

from __future__ import annotations

import glob
import hashlib
import json
import lzma
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hibali.errors import UsageError
from hibali.files import write_atomic
from hibali.text import printable
from hibali_plugins.datasets.repository import Repository, find_repository_path, run_git
from runs.model import Output, Run
from runs.typed import DatasetRequest, repeated_options
from transfers.engine.request import SaveOptions

_MESSAGE = """\
[DATALAD RUNCMD] {subject}

=== Do not change lines below ===
{record}
^^^ Do not change lines above ^^^
"""
_TRUE = frozenset({"true", "yes", "on", "1"})


@dataclass(frozen=True, slots=True)
class Dataset:
    """A folder for outputs in a repository that also contains the files of the command line."""

    repository: Repository
    folder: str
    request: DatasetRequest


def find_dataset(folder: str, request: DatasetRequest) -> Dataset:
    """Return the dataset of a folder; raises `UsageError` if `datalad rerun` could not repeat the run from what it contains."""
    place = find_repository_path(os.fsencode(os.path.realpath(folder)))
    if place is None:
        raise UsageError(
            "no-dataset",
            "this folder is not in a DataLad dataset on this machine",
            subject=printable(folder),
            hint=f"datalad create --force {printable(folder)}",
        )
    typed = (
        ("the folder in which the command was run", request.folder),
        ("the invocation", request.invocation),
        ("the table of tasks", request.table),
    )
    for file, path in ((file, path) for file, path in typed if path):
        other = find_repository_path(os.fsencode(path))
        if other is None or other.repository != place.repository:
            root = printable(place.repository.root)
            raise UsageError(
                "outside-dataset",
                f"{file} is not in the dataset {root}, and `datalad rerun` could not repeat the run",
                subject=printable(path),
                hint=f"Copy the files that the command names into the dataset, and run the command in a folder of {root}.",
            )
    return Dataset(place.repository, os.fsdecode(place.path), request)


def dataset_saving(dataset: Dataset, run: Run) -> SaveOptions:
    """Return the commit of a successful run: outputs, the files that the command names, and the record in the message.

    If the dataset is configured so, the record goes into a file of its own, which is written here.
    """
    record = run_record(dataset, run, _dataset_id(dataset.repository))
    text = json.dumps(record, indent=1, sort_keys=True, ensure_ascii=False)
    also = [_real(path) for path in dataset.request.files]
    if _configured(dataset.repository, "datalad.run.record-sidecar").lower() in _TRUE:
        name = hashlib.md5(text.encode("utf-8", "surrogateescape"), usedforsecurity=False).hexdigest()
        also.append(_write_sidecar(dataset.repository, name, record))
        text = json.dumps(name)
    subject = f"{run.spec.pipeline} at {run.site}"
    return SaveOptions(message=_MESSAGE.format(subject=subject, record=text), also=tuple(also))


def run_record(dataset: Dataset, run: Run, identifier: str) -> dict[str, Any]:
    """Return the record of `datalad run` (datalad.core.local.run), with additional fields under `hibali`."""
    start = os.fsdecode(_real(dataset.request.folder))
    root = os.fsdecode(dataset.repository.root)

    def relative(path: str) -> str:
        return os.path.relpath(path, start)

    def typed(path: str) -> str:
        return _as_path(relative(os.fsdecode(_real(path))))

    argv = ["hibali", "run", run.spec.pipeline]
    argv += [typed(dataset.request.invocation)] if dataset.request.invocation else []
    argv += ["--each", typed(dataset.request.table)] if dataset.request.table else []
    argv += [f"--param={argument}" for argument in dataset.request.parameters]
    # all of them, because others may be missing when the command is repeated
    argv += [typed(each) if each.startswith("/") else each for each in dataset.request.participants]
    argv += ["--site", run.site, "--wait", "--new"]
    argv += ["--collect", _as_path(relative(dataset.folder)), "--no-save"]
    argv += repeated_options(run, dataset.request)
    inside = [path for path in dataset.request.inputs if _is_in(path, root)]
    named = [relative(os.fsdecode(_real(path))) for path in dataset.request.files]
    return {
        "chain": [],
        "cmd": _plain(shlex.join(argv)),
        **({"dsid": identifier} if identifier else {}),
        "exit": run.status.exit_code or 0,
        "extra_inputs": [],
        "inputs": [_plain(glob.escape(path)) for path in (*named, *map(relative, inside))],
        "outputs": [_plain(relative(path)) for path in _output_patterns(dataset.folder, run)],
        "pwd": os.path.relpath(start, root),
        "hibali": {
            "run": run.id,
            "pipeline_digest": run.spec.pipeline_digest,
            "scheduler": run.placement.scheduler,
        },
    }


def _output_patterns(folder: str, run: Run) -> list[str]:
    """Return patterns of the outputs; each task of a sweep has a folder of its own."""
    if run.sweep is None:
        return [str(Path(folder, _pattern(each))) for each in run.spec.outputs]
    tasks = {"/".join("*" for _ in name.split("/")) for name in run.task_names().values()}
    outputs = [_pattern(each) for outputs in run.sweep.sets for each in outputs]
    patterns = (str(Path(folder, task, output)) for task in sorted(tasks) for output in outputs)
    return list(dict.fromkeys(patterns))


def _pattern(output: Output) -> str:
    return output.path if output.is_pattern else glob.escape(output.path)


def _plain(text: str) -> str:
    """Escape braces, which are placeholders of `datalad run`."""
    return text.replace("{", "{{").replace("}", "}}")


def _as_path(path: str) -> str:
    """Return a path that no program takes for an option or a site."""
    plain = not path.startswith("-") and ":" not in path.partition("/")[0]
    return path if plain else f"./{path}"


def _is_in(path: str, root: str) -> bool:
    """Return whether a path is in a folder, without following the file itself, which may be an annexed symlink."""
    folder, _, name = path.rstrip("/").rpartition("/")
    return f"{os.path.realpath(folder or '/')}/{name}".startswith(root.rstrip("/") + "/")


def _real(path: str) -> bytes:
    """Resolve the symlinks of the folder but not of the name, because an annexed file is a symlink."""
    folder, _, name = path.rstrip("/").rpartition("/")
    whole = Path(os.path.realpath(folder or "/"), name)
    return os.fsencode(whole.resolve() if whole.is_dir() else whole)


def _dataset_id(repository: Repository) -> str:
    finished = run_git(repository, "config", "-f", ".datalad/config", "datalad.dataset.id").stdout
    return finished.decode("utf-8", "replace").strip()


def _configured(repository: Repository, name: str) -> str:
    """Return a setting of the user, else of the dataset."""
    for argv in (["config", name], ["config", "-f", ".datalad/config", name]):
        finished = run_git(repository, *argv)
        if finished.exit_code == 0:
            return finished.stdout.decode("utf-8", "replace").strip()
    return ""


def _write_sidecar(repository: Repository, name: str, record: Mapping[str, Any]) -> bytes:
    """Write the record to a file, compressed like DataLad does; return its absolute name."""
    folder = _configured(repository, "datalad.run.record-directory") or ".datalad/runinfo"
    root = Path(os.fsdecode(repository.root))
    path = root / folder / name
    if not path.resolve().is_relative_to(root):
        raise UsageError(
            "bad-dataset", "datalad.run.record-directory is outside the dataset", subject=str(root)
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(record, sort_keys=True, ensure_ascii=False, separators=(",", ":")) + "\n"
    write_atomic(path, lzma.compress(line.encode("utf-8", "surrogateescape")), mode=0o644)
    return os.fsencode(path)
