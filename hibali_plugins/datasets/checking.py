"""Check the sources of a dataset, and print what was found."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from hibali.config.settings import Settings
from hibali.errors import UsageError
from hibali.locations import read_location
from hibali.text import counted, path_fields, printable
from hibali_cli.failure import print_error
from hibali_cli.fields import write_list
from hibali_cli.options import Common
from hibali_plugins.datasets.check import DatasetReport, check_dataset
from hibali_plugins.datasets.sources import Source, State


def check_and_print(
    common: Common, dataset: str, paths: Sequence[str], seconds: float, fields: tuple[str, ...] | None
) -> int:
    """Check a dataset and print its sources and problems; return the exit code."""
    settings = common.settings()
    report = check_dataset(
        _local_path(dataset, settings), list(map(os.fsencode, paths)), settings.web_logins(), seconds
    )
    code = int(report.exit)
    if fields is not None:
        write_list(common, "source", map(source_record, report.sources), fields, code=code)
    elif common.json:
        _write_records(common, report, code)
    else:
        _write_tables(common, report)
    for problem in report.problems:
        print_error(problem)
    if not common.json:
        common.output.info(_summary(report))
    return code


def _local_path(dataset: str, settings: Settings) -> bytes:
    location = read_location(dataset, settings)
    if location.site.kind == "local" and location.path.startswith("/"):
        return location.raw
    raise UsageError(
        "no-dataset",
        "only datasets of this machine can be checked: their sources are those that this machine can reach",
        subject=printable(dataset),
        hint="At the site itself: hibali datasets check DIR",
    )


def source_record(source: Source) -> dict[str, Any]:
    """Return the JSON fields of a source, with its first problem."""
    problem = next(iter(source.outcome.problems), None)
    return {
        "name": source.name,
        "type": source.type,
        "address": source.address,
        "uuid": source.uuid,
        "enabled": source.enabled,
        "files": source.files,
        "bytes": source.size,
        "state": str(source.state),
        "code": problem.code if problem is not None else None,
        "message": problem.message if problem is not None else None,
        "hint": problem.hint if problem is not None else None,
    }


def _write_records(common: Common, report: DatasetReport, code: int) -> None:
    for source in report.sources:
        common.output.record("source", source_record(source))
    if common.output.verbose:
        for path, because in report.counts.unavailable.items():
            common.output.record("unavailable", {**path_fields(path), "because": because})
    common.output.record(
        "dataset-check",
        {
            **path_fields(report.root),
            "files": report.files,
            "bytes": report.size,
            "files_here": report.counts.here,
            "files_available": report.counts.available,
            "files_unavailable": len(report.counts.unavailable),
            "files_unknown": report.counts.unknown,
            "problems": [problem.to_record() for problem in report.problems],
            "exit": code,
        },
    )


def _write_tables(common: Common, report: DatasetReport) -> None:
    rows = [
        (source.name, source.type, source.address or None, source.files, _state(source))
        for source in report.sources
    ]
    common.output.table(["source", "type", "address", "files", "state"], rows)
    if common.output.verbose and report.counts.unavailable:
        common.output.table(["file", "no content, because of"], report.counts.unavailable.items())


def _state(source: Source) -> str:
    codes = dict.fromkeys(problem.code for problem in source.outcome.problems)
    return f"{source.state}: {', '.join(codes)}" if source.state is State.FAILED else str(source.state)


def _summary(report: DatasetReport) -> str:
    counts = report.counts
    parts = [
        f"{counts.here} here",
        f"{counts.available} can be fetched",
        *([f"{len(counts.unavailable)} cannot be fetched now"] if counts.unavailable else []),
        *([f"{counts.unknown} unknown"] if counts.unknown else []),
    ]
    end = "" if report.problems else " All sources work."
    return f"{printable(report.root)}: {counted(report.files, 'annexed file')}: {', '.join(parts)}.{end}"
