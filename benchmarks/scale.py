"""What a transfer by compute nodes costs by its size, to 10^9 files and 1 PB: `python -m benchmarks.scale`.

The costs of a file and of a unit are measured with generated plans; larger sizes are extrapolated, which the table says. Jobs, networks and
filesystems are not part of it: it shows what hibali itself needs, and what breaks first.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hibali.amounts import format_size
from hibali_plugins.nodes.cutting import Cut, Cutter
from hibali_plugins.nodes.records import item_fields, line_of, read_results, unit_fields
from transfers.model.entry import Entry, Kind
from transfers.model.units import Item

_MIB = 1 << 20
_DAY = 86_400.0
_POLL = 120.0  # seconds between two queries of a sweep in its later course (runs/monitor.py)
_LOOK = (
    20.0  # seconds between two looks at the journals, after some minutes (hibali_plugins/nodes/running.py)
)
_SIZES = (10**5, 10**6, 10**7, 10**8, 10**9)
_AVERAGE = 10**6  # bytes of a file: 10^9 files are 1 PB


@dataclass(frozen=True)
class Costs:
    """Measured costs for a number of files: seconds and bytes of each kind."""

    files: int
    units: int
    planning: float
    staged: int
    journal: int
    collecting: float
    peak: int


def plan(files: int) -> Iterator[Item]:
    """Yield a plan: paths of 60 characters, most files small, one in a thousand of a gigabyte."""
    for number in range(files):
        size = 512 * _MIB if number % 1000 == 0 else 488_000
        path = b"derivatives/sub-%06d/ses-%02d/anat/slice-%09d_T1w.nii.gz" % (
            number // 500,
            number % 4,
            number,
        )
        yield Item(
            number, Entry(path, Kind.FILE, size, 1_700_000_000_000_000_000 + number, 0o644, inode=number)
        )


def measure(files: int, shards: int) -> Costs:
    """Cut a plan, make the records of its units, and collect the results that nodes would write."""
    cutter = Cutter(Cut(shards, 64 * _MIB, hashes=True, finishes=True))
    units = staged = journal = 0
    planning = collecting = 0.0
    coming = cutter.cut(plan(files))
    while True:
        began = time.process_time()
        found = next(coming, None)
        if found is None:
            break
        _, unit = found
        fields = [item_fields(item, item.entry.path, None) for item in unit.items]
        staged += len(zlib.compress(line_of(unit_fields(unit, fields)), 1))
        units += 1
        planning += time.process_time() - began
        lines = line_of(_result_of(unit.number, unit.kind, [item.number for item in unit.items]))
        journal += len(lines)
        began = time.process_time()
        for _ in read_results(lines, "site"):
            pass
        collecting += time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Costs(files, units, planning, staged, journal, collecting, peak)


def _result_of(number: int, kind: str, files: Sequence[int]) -> dict[str, Any]:
    digest = "ab" * 32
    if kind != "pack":
        return {"unit": number, "file": files[0], "sha256": digest, "etag": "", "bytes": 16 * _MIB}
    results = [{"number": one, "digest": digest, "problem": None} for one in files]
    return {"unit": number, "results": results, "bytes": 4 * _MIB}


def table(found: Costs, shards: int, node_rate: float) -> list[list[str]]:
    """Return the costs by size, those beyond what was measured in proportion."""
    rows = [
        ["files", "bytes", "", "cut and stage, CPU", "units at the site", "journals", "collect, CPU",
         "records of units here", "moving", "queries a day"]
    ]  # fmt: skip
    for files in _SIZES:
        ratio = files / found.files
        size = files * _AVERAGE
        days = size / (shards * node_rate) / _DAY
        rows.append(
            [
                f"{files:,}",
                format_size(size),
                "measured" if files <= found.files else "extrapolated",
                _time(found.planning * ratio),
                format_size(int(found.staged * ratio)),
                format_size(int(found.journal * ratio)),
                _time(found.collecting * ratio),
                format_size(int((found.staged + 12 * found.units) * ratio)),
                _time(days * _DAY),
                f"{_DAY / _POLL:,.0f} of the scheduler, {_DAY / _LOOK * shards:,.0f} reads of journals",
            ]
        )
    return rows


def _time(seconds: float) -> str:
    for unit, size in (("d", _DAY), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def main() -> None:
    """Measure, and print the table as Markdown."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--files", type=int, default=10**6, help="files of the measured plan")
    options.add_argument("--shards", type=int, default=32)
    options.add_argument("--rate", type=float, default=1e9, help="of one node, bytes a second")
    chosen = options.parse_args()
    found = measure(chosen.files, chosen.shards)
    print(json.dumps({**found.__dict__, "shards": chosen.shards, "rate": chosen.rate}))
    rows = table(found, chosen.shards, chosen.rate)
    for row in [rows[0], ["---"] * len(rows[0]), *rows[1:]]:
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
