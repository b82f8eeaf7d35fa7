"""Where a pipeline has run and how that ended, from the ledger; reading it asks no site and loads little."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hibali.errors import NotFoundError
from hibali.ledger import ledger_folder, read_records
from runs.run import RUN_ID, Run, State, fold_records

_FORMAT = ".jsonl"


@dataclass(frozen=True, slots=True)
class SiteRuns:
    """The runs of one pipeline at one site: how many there are in each state, as last heard of, and the last one begun."""

    site: str
    states: Mapping[State, int]
    last: Run

    def to_record(self) -> dict[str, Any]:
        """The fields that `pipelines show --json` has for each site."""
        last = {"id": self.last.id, "state": self.last.state, "created": self.last.created}
        return {
            "site": self.site,
            "count": sum(self.states.values()),
            "states": {str(state): count for state, count in self.states.items()},
            "last": {**last, "ended": self.last.ended or None},
        }


def runs_of(digest: str) -> list[Run]:
    """The runs of this account whose descriptor had that digest, oldest first. Records of others are not parsed."""
    folder = ledger_folder("runs")
    told = digest.encode("ascii")
    runs = []
    for name in sorted(os.listdir(folder)):  # noqa: PTH208  # thousands of them
        run_id = name.removesuffix(_FORMAT)
        if name.endswith(_FORMAT) and RUN_ID.fullmatch(run_id) and told in _content(folder / name):
            with contextlib.suppress(NotFoundError, KeyError, ValueError, TypeError):
                run = fold_records(run_id, read_records(folder / name))
                if run.pipeline_digest == digest:
                    runs.append(run)
    return runs


def by_site(runs: Iterable[Run]) -> list[SiteRuns]:
    """What became of them at each site, where the last one was begun first."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.site, []).append(run)
    sites = [
        SiteRuns(site, _counted(some), max(some, key=lambda run: (run.created, run.id)))
        for site, some in found.items()
    ]
    return sorted(sites, key=lambda each: (each.last.created, each.site), reverse=True)


def _counted(runs: Iterable[Run]) -> dict[State, int]:
    counts = Counter(run.state for run in runs)
    return {state: counts[state] for state in State if counts[state]}


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
