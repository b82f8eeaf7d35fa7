"""Store the measurements per case and write the result pages; a run replaces only the cases it measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from benchmarks.peers import REPOSITORY
from benchmarks.picture import draw
from benchmarks.report import render
from benchmarks.samples import Amount, Bar, Measured, Sample

_CACHE = REPOSITORY / ".cache" / "benchmarks"


class Results:
    """The measured cases of this machine; the next run replaces the results of a quick check."""

    def __init__(self, page: Path, store: Path, cases: dict[str, Measured]) -> None:
        self.page = page
        self._store = store
        self._cases = cases

    @classmethod
    def open(cls, *, quick: bool) -> Results:
        """Load the results of earlier full-size runs on this machine; a quick check starts empty."""
        _CACHE.mkdir(parents=True, exist_ok=True)
        if quick:
            return cls(_CACHE / "RESULTS.md", _CACHE / "quick.json", {})
        store = _CACHE / "measured.json"
        found = json.loads(store.read_text()) if store.exists() else {}
        return cls(
            REPOSITORY / "benchmarks" / "RESULTS.md",
            store,
            {name: _read(entry) for name, entry in found.items()},
        )

    def add(self, measured: Measured) -> None:
        """Store a case's measurements, replacing earlier ones."""
        self._cases[measured.name] = measured

    def write(self, order: Sequence[str]) -> None:
        """Write the page, the chart and the stored measurements; `order` lists all existing cases."""
        entries = {name: asdict(measured) for name, measured in self._cases.items()}
        self._store.write_text(json.dumps(entries, indent=1))
        cases = [self._cases[name] for name in order if name in self._cases]
        absent = [name for name in order if name not in self._cases]
        self.page.write_text(render(cases, absent, machine()))
        self.page.with_name("results.svg").write_text(draw(cases))


def _read(entry: dict[str, Any]) -> Measured:
    samples = {
        name: [Sample(**sample) if sample else None for sample in rounds]
        for name, rounds in entry["samples"].items()
    }
    bars = tuple(Bar(**{**bar, "than": tuple(bar["than"])}) for bar in entry["bars"])
    return Measured(**{**entry, "amount": Amount(**entry["amount"]), "bars": bars, "samples": samples})
