"""Record the command line of a run as it was typed, for the record that `datalad rerun` repeats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hibali.errors import UsageError
from runs.inputs import Located
from runs.model import Run


@dataclass(frozen=True, slots=True)
class DatasetRequest:
    """The command line of a run, as it was typed: the folder, the invocation file, and the local files that it names.

    `options` are the options for the job. For a sweep the invocation file may be "", `table` is that of `--each` or "", and
    `parameters` are the values of `--param`. `participants` are the option for the participants or sessions of a BIDS dataset and that dataset.
    """

    folder: str
    invocation: str
    inputs: tuple[str, ...] = ()
    image: str = ""
    options: tuple[str, ...] = ()
    table: str = ""
    parameters: tuple[str, ...] = ()
    participants: tuple[str, ...] = ()

    @property
    def files(self) -> list[str]:
        """The files that the command line itself names, besides the inputs."""
        return [path for path in (self.invocation, self.table) if path]

    def to_fields(self) -> dict[str, Any]:
        """Return the fields for the ledger."""
        return {
            "folder": self.folder,
            "invocation": self.invocation,
            "inputs": list(self.inputs),
            "image": self.image,
            "options": list(self.options),
            **({"table": self.table} if self.table else {}),
            **({"parameters": list(self.parameters)} if self.parameters else {}),
            **({"participants": list(self.participants)} if self.participants else {}),
        }


def typed_request(
    invocation: Path | None,
    located: Sequence[Located],
    image: str,
    table: Path | None = None,
    parameters: Sequence[str] = (),
    participants: Sequence[str] = (),
) -> DatasetRequest:
    """Record the command line with absolute paths, as typed from the current folder: symlinks are not resolved."""
    here = Path.cwd()
    inputs = (str(here / each.input.text) for each in located if each.place.typed_local)
    answers, rows = ("" if path is None else str(here / path) for path in (invocation, table))
    return DatasetRequest(
        str(here),
        answers,
        tuple(dict.fromkeys(inputs)),
        image,
        table=rows,
        parameters=tuple(parameters),
        participants=tuple(participants),
    )


def recorded_request(records: Sequence[Mapping[str, Any]], run_id: str) -> DatasetRequest:
    """Read the command line from the ledger; raises `UsageError` for a run of an older version."""
    fields = records[0].get("asked") if records else None
    if not isinstance(fields, dict) or not fields.get("folder"):
        raise UsageError(
            "not-recorded", "the ledger does not have the command line of this run", subject=run_id
        )
    options = tuple(str(argument) for argument in fields.get("options", ()))
    return DatasetRequest(
        fields["folder"],
        fields["invocation"],
        tuple(fields["inputs"]),
        fields["image"],
        options,
        fields.get("table", ""),
        tuple(str(argument) for argument in fields.get("parameters", ())),
        tuple(str(argument) for argument in fields.get("participants", ())),
    )


def repeated_options(run: Run, request: DatasetRequest) -> list[str]:
    """Return the options, besides the site, with which the command makes the same job again."""
    pilot = run.sweep.pilot if run.sweep is not None else None
    return [
        # the resources of the command line are those of the pilot, not of each task
        *(["--pilot", f"--allocations={pilot.allocations}"] if pilot is not None else []),
        *([f"--name={run.spec.name}"] if run.spec.name else []),
        *([f"--image={request.image}"] if request.image else []),
        *request.options,
    ]
