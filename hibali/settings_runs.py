"""The tables of a site that say how runs are started there; what is wrong is noted, not raised."""

from __future__ import annotations

from hibali.settings_table import Table
from hibali.settings_values import read_job_time, read_size, read_words
from hibali.sites import GPU_KINDS, Gpus, SchedulerSettings

_WORD = r"[a-z][a-z0-9_-]*"
_LEAST_MEMORY = 1024**2  # schedulers count in MiB


def read_scheduler(table: Table | None) -> SchedulerSettings | None:
    """The scheduler and its defaults, where there is one."""
    if table is None:
        return None
    if not table.has("name"):
        table.note("needs name")
    found = SchedulerSettings(
        name=table.text("name", _WORD, "a scheduler's word") or "direct",
        account=table.text("account", r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*", "an account"),
        partition=table.text("partition", r"[A-Za-z0-9_][A-Za-z0-9_.,+-]*", "a partition"),
        time=_read_time(table),
        directives=table.texts("directives"),
        prologue=table.texts("prologue"),
        nodes=_read_count(table, "nodes"),
        tasks=_read_count(table, "tasks"),
        cores=_read_count(table, "cores"),
        memory=_read_memory(table),
        gpus=_read_count(table, "gpus"),
        reservation=table.text("reservation", r"[A-Za-z0-9_][A-Za-z0-9_.,@+-]*", "a reservation"),
        mpi=_read_launcher(table),
    )
    table.finish()
    return found


def read_container(table: Table | None) -> str:
    """The container runtime's word."""
    if table is None:
        return "bare"
    if not table.has("name"):
        table.note("needs name")
    name = table.text("name", _WORD, "a container runtime's word") or "bare"
    table.finish()
    return name


def read_gpus(table: Table | None) -> Gpus | None:
    """What the site has of them, where it says so."""
    if table is None:
        return None
    if not table.has("per_node"):
        table.note("needs per_node, how many a node has")
    found = Gpus(
        per_node=table.whole("per_node", 1, most=1024), kind=table.choice("kind", GPU_KINDS, "nvidia")
    )
    table.finish()
    return found


def _read_count(table: Table, key: str) -> int | None:
    return table.whole(key, 1) if table.has(key) else None


def _read_time(table: Table) -> str | None:
    time = table.text("time")
    if time is not None:
        try:
            read_job_time(time)
        except ValueError as problem:
            table.note(str(problem), "time")
    return time


def _read_memory(table: Table) -> int | None:
    if not table.has("memory"):
        return None
    memory = int(table.quantity("memory", read_size, _LEAST_MEMORY))
    if memory < _LEAST_MEMORY:
        table.note("must be at least 1M", "memory")
    return memory


def _read_launcher(table: Table) -> tuple[str, ...]:
    """A command as one string, as people type it, or as a list of words."""
    if table.has("mpi") and isinstance(table.content["mpi"], list):
        return table.words("mpi", ())
    text = table.text("mpi")
    if text is None:
        return ()
    try:
        return read_words(text)
    except ValueError as problem:
        table.note(str(problem), "mpi")
        return ()
