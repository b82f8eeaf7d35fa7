"""Search the runs in the ledger by state, site and pipeline, without opening the journal of each."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hibali.journal_index import IndexRow, JournalIndex, Value
from hibali.ledger import LATEST, ledger_folder
from hibali.unreadable import Unreadable, collect_unreadable
from runs.model import RUN_ID, State, is_run_name
from runs.records import read_run

if TYPE_CHECKING:
    from sqlite3 import Connection

_VERSION = 4
# Once the end of a run and its job are known, later records change none of these.
_COLUMNS = (
    "began",
    "key",
    "state",
    "site",
    "pipeline_digest",
    "has_job",
    "is_sweep",
    "pipeline",
    "command_name",
)
_TIME = len("20260102-030405")  # of an id: when the run was created
_INDEXED = ("began, name", "key", "state, site", "pipeline_digest")


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Conditions on runs; None, () and False are no condition.

    `key` is that of the command, `name` what `--name` gave it, `pipeline` NAME or NAME@VERSION, `has_job` are runs that were submitted, `single` those that are no sweep.
    """

    key: str | None = None
    site: str | None = None
    states: Collection[State] = ()
    pipeline_digest: str | None = None
    pipeline: str | None = None
    name: str | None = None
    has_job: bool = False
    single: bool = False


UNFINISHED = tuple(state for state in State if not state.ended)


def find_run_ids(chosen: RunFilter) -> list[str]:
    """Return the ids of the runs that satisfy a filter, oldest first."""
    return find_latest_run_ids(chosen)[0]


def find_latest_run_ids(chosen: RunFilter, most: int | None = None) -> tuple[list[str], int]:
    """Return the ids of the latest runs that satisfy a filter, oldest first, and the number of all that do."""
    where, parameters = _condition(chosen)
    limit = "" if most is None else f" LIMIT {most}"
    query = f"SELECT began, name FROM entries WHERE {where} ORDER BY began DESC, name DESC{limit}"

    def ask(entries: Connection) -> tuple[list[str], int]:
        found = [str(name) for _, name in entries.execute(query, parameters)]
        [count] = entries.execute(f"SELECT count(*) FROM entries WHERE {where}", parameters).fetchone()
        return found[::-1], int(count)

    return _index().answer(ask)


def find_names(typed: str) -> list[str]:
    """Return the ids of the runs with this name, of `latest` the latest run, and of `latest:PIPELINE` that of a pipeline.

    Raises `UnreadableStateError` if a run whose record is unreadable may be later than the latest one.
    """
    word, colon, pipeline = typed.partition(":")
    with collect_unreadable() as damaged:  # they have no name
        if word == LATEST and (pipeline or not colon):
            found, _ = find_latest_run_ids(RunFilter(pipeline=pipeline or None), 1)
            _refuse_later(damaged, *found)
            return found
        return find_run_ids(RunFilter(name=typed)) if is_run_name(typed) else []


def _refuse_later(damaged: Unreadable, latest: str = "") -> None:
    for path in map(Path, damaged):
        if path.stem[:_TIME] >= latest[:_TIME]:
            read_run(path.stem, path)  # raises, unless only some lines are damaged


def read_latest_names(most: int) -> list[tuple[str, str, str]]:
    """Return the id, the name and the pipeline of the latest runs, the latest first."""
    query = f"SELECT name, command_name, pipeline FROM entries ORDER BY began DESC, name DESC LIMIT {most}"
    with collect_unreadable():
        return _index().select(query, (), lambda row: (str(row[0]), str(row[1]), str(row[2])))


def count_runs_by_state() -> dict[State, int]:
    """Return the number of runs in each state that occurs, in the order of `State`."""
    query = "SELECT state, count(*) FROM entries GROUP BY state"
    found = dict(_index().select(query, (), lambda row: (State(row[0]), int(row[1]))))
    return {state: found[state] for state in State if state in found}


def _condition(chosen: RunFilter) -> tuple[str, list[Value]]:
    found: list[tuple[str, list[Value]]] = [("1", [])]
    if chosen.key is not None:
        found.append(("key = ?", [chosen.key]))
    if chosen.site is not None:
        found.append(("site = ?", [chosen.site]))
    if chosen.states:
        found.append(
            (f"state IN ({', '.join('?' * len(chosen.states))})", [str(each) for each in chosen.states])
        )
    if chosen.pipeline_digest is not None:
        found.append(("pipeline_digest = ?", [chosen.pipeline_digest]))
    if chosen.pipeline is not None:
        found.append(("(pipeline = ? OR instr(pipeline, ?) = 1)", [chosen.pipeline, f"{chosen.pipeline}@"]))
    if chosen.name is not None:
        found.append(("command_name = ?", [chosen.name]))
    if chosen.has_job:
        found.append(("has_job", []))
    if chosen.single:
        found.append(("NOT is_sweep", []))
    values = [each for _, some in found for each in some]
    try:
        "".join(map(str, values)).encode()
    except UnicodeEncodeError:  # SQLite takes, and has, no such text
        return "0", []
    return " AND ".join(text for text, _ in found), values


def _index() -> JournalIndex:
    return JournalIndex(
        ledger_folder("runs"),
        ledger_folder("history") / "runs.sqlite",
        version=_VERSION,
        columns=_COLUMNS,
        indexed=_INDEXED,
        read=_read_row,
    )


def _read_row(path: Path) -> IndexRow | None:
    if not RUN_ID.fullmatch(path.stem):
        return None
    run = read_run(path.stem, path)
    values = (
        run.created,
        run.key,
        str(run.state),
        run.site,
        run.spec.pipeline_digest,
        int(bool(run.job)),
        int(run.sweep is not None),
        str(run.spec.pipeline),
        str(run.spec.name or ""),
    )
    return IndexRow(values, settled=run.state.final and bool(run.job))
