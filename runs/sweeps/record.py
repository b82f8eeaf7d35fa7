"""A sweep in the JSON line of its run: every task, and how many there are in each state."""

from __future__ import annotations

from typing import Any

from runs.sweeps.sweep import Sweep


def sweep_record(sweep: Sweep) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The items of `tasks`, and the fields that only a sweep has."""
    places = sweep.places()
    tasks = []
    for number, values in sweep.all_values():
        task = sweep.tasks[number]
        chunk, index = places.get(number, (None, 0))
        tasks.append(
            {
                "number": number,
                "values": values,
                "state": task.state,
                "job": chunk.jobs[0] if chunk is not None and chunk.jobs else "",
                "index": index,
                "native": task.native,
                "reason": task.reason,
                "exit_code": task.exit_code,
                "host": task.host,
                "started": task.started or None,
                "ended": task.ended or None,
                "cpu_seconds": task.cpu_seconds,
                "memory_bytes": task.memory_bytes,
                "missing_outputs": list(task.missing),
            }
        )
    pilot = None
    if sweep.pilot is not None:
        pilot = {
            "allocations": sum(bool(chunk.jobs) for chunk in sweep.chunks),
            "most": sweep.pilot.allocations,
        }
    counts = {str(state): count for state, count in sweep.counts().items()}
    return tasks, {"counts": counts, "pilot": pilot}
