"""Keeps what was measured, case by case, and writes it as pages: a run of some cases renews only theirs."""

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

_KEPT = REPOSITORY / ".cache" / "benchmarks"


class Results:
    """The measured cases of this machine; a quick look stands by itself and is forgotten with the next."""

    def __init__(self, page: Path, kept: Path, cases: dict[str, Measured]) -> None:
        self.page = page
        self._kept = kept
        self._cases = cases

    @classmethod
    def open(cls, *, quick: bool) -> Results:
        """What earlier runs at full size measured here, unless this is a quick look."""
        _KEPT.mkdir(parents=True, exist_ok=True)
        if quick:
            return cls(_KEPT / "RESULTS.md", _KEPT / "quick.json", {})
        kept = _KEPT / "measured.json"
        found = json.loads(kept.read_text()) if kept.exists() else {}
        return cls(
            REPOSITORY / "benchmarks" / "RESULTS.md",
            kept,
            {name: _read(entry) for name, entry in found.items()},
        )

    def add(self, measured: Measured) -> None:
        """Put it in the place of what was measured of this case before."""
        self._cases[measured.name] = measured

    def write(self, order: Sequence[str]) -> None:
        """Write the page, the picture beside it and what they are made of; `order` names every case there is."""
        told = {name: asdict(measured) for name, measured in self._cases.items()}
        self._kept.write_text(json.dumps(told, indent=1))
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
