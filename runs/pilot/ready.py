"""Whether a sweep can go by a pilot, decided and looked up before anything is sent, and kept in the ledger until it is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hibali.errors import UsageError
from hibali.events import Listener, Noted
from runs.book import Book
from runs.fast import Marks
from runs.pilot.library import find_library
from runs.pilot.pilot import Pilot
from runs.pilot.site import find_python
from runs.resources import Asked
from runs.run import Run
from runs.sweeps.sweep import sweep_of
from transfers.far import Far

if TYPE_CHECKING:
    from runs.launch import Request


def check_wishes(asked: Asked) -> int:
    """The cores of each task, in an allocation that asks for this; pure.

    What a sweep's job asks for is the allocation's then, and the author's suggestion for the tool is each task's. Raises
    `UsageError` for what cannot be shared among tasks.
    """
    wished = asked.resources
    shared = {"nodes": wished.nodes or 1, "MPI tasks": wished.tasks or 1}
    for what, count in shared.items():
        if count > 1:
            raise UsageError(
                "not-in-a-pilot",
                f"the tasks of a pilot share one node, and the job asks for {count} {what}",
                about="--pilot",
                hint="Leave out --pilot: job arrays give each task its own.",
            )
    if wished.gpus:
        raise UsageError(
            "not-in-a-pilot",
            f"nobody would share the {wished.gpus} GPUs out among the tasks of a pilot",
            about="--pilot",
            hint="Leave out --pilot: job arrays give each task its own. --gpus 0 asks for none.",
        )
    each = asked.suggested.cores or 1
    return each if wished.cores is None else min(each, wished.cores)


def by_pilot(request: Request, allocations: int) -> Request:
    """The request of a sweep whose tasks share so many allocations at most, with nothing on fast storage; pure.

    Raises `UsageError` for what cannot be shared among tasks.
    """
    check_wishes(request.ask())
    if request.marks.inputs or request.marks.work:
        raise UsageError(
            "not-in-a-pilot",
            "the tasks of a pilot share their node's fast storage, and nobody would share it out",
            about="--pilot, --fast",
            hint="Leave out --fast, or --pilot.",
        )
    return replace(request, allocations=allocations, marks=Marks(none=True))


def prepare_pilot(request: Request, far: Far) -> Pilot:
    """How the sweep is to go. Raises `UsageError` or `RefusedError` where it cannot, here or at its site; nothing is sent."""
    asked = request.ask()
    cores = check_wishes(asked)
    find_library()
    python = find_python(far, request.site)
    return Pilot(python, cores, asked.resources.cores, request.allocations)


def settle_pilot(book: Book, run: Run, pilot: Pilot | None, tell: Listener, *, wanted: bool) -> Run:
    """The sweep, going by this pilot, or as job arrays where there is none, unless it is on its way already.

    How the tasks go is no part of a run's key, as what their jobs ask for is not.
    """
    sweep = sweep_of(run)
    if sweep.chunks:
        if (sweep.pilot is not None) is not wanted:
            before, now = ("by a pilot", "job arrays") if sweep.pilot else ("as job arrays", "a pilot")
            tell(Noted(f"run {run.id} was begun {before}, and goes on so; --new starts one with {now}"))
        return run
    if sweep.pilot == pilot:
        return run
    return book.note(run.id, "pilot", {"pilot": None if pilot is None else pilot.to_fields()})
