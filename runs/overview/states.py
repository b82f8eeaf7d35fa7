"""How many runs are in each state, without all else that is known of them: a group has thousands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hibali.errors import NotFoundError
from hibali.ledger import ledger_folder, read_records
from runs.run import RUN_ID, State, fold_records


def count_states() -> dict[str, int]:
    """Of every run in the ledger, by the name of its state."""
    found: Counter[str] = Counter()
    for path in ledger_folder("runs").glob("*.jsonl"):
        if RUN_ID.fullmatch(path.stem):
            state = _state_of(path)
            if state is not None:
                found[state] += 1
    return dict(found)


def _state_of(path: Path) -> State | None:
    records = list(read_records(path))
    if not records:
        return None
    try:
        if records[0].get("sweep"):
            return fold_records(path.stem, records).state
        return last_state(records)
    except (NotFoundError, KeyError, ValueError):
        return None


def last_state(records: Iterable[Mapping[str, Any]]) -> State | None:
    """The state of a run that is no sweep; as `fold_records` has it, and without the rest. Raises ValueError and KeyError."""
    state: State | None = None
    for record in records:
        kind = record.get("kind")
        if kind == "prepared" and state is None:
            state = State.PREPARED
        elif state is None or state.final:
            continue
        elif kind == "staged":
            state = State.STAGED
        elif kind == "submitted":
            state = state if state.ended else State.SUBMITTED
        elif kind == "seen":
            state = State(record["state"])
    return state
