"""What runs the tasks of a sweep in allocations that they share, in place of job arrays; a plugin (`hibali.task_runners`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from hibali.plugins import find, not_installed
from runs.model import Pilot
from runs.prepare import Prepared
from runs.request import Request
from runs.schedulers.base import JobVariables
from runs.stage import Cache
from transfers.remote.host import RemoteHost, SmallFile


class TaskRunner(Protocol):
    """A module that runs tasks as the `Pilot` of their run says, which is recorded."""

    def with_pilot(self, request: Request, allocations: int) -> Request:
        """Return the request of a sweep for at most so many allocations. Raises `UsageError` for what its tasks cannot have."""

    def prepare_pilot(self, request: Request, host: RemoteHost) -> Pilot:
        """Check that the tasks can be run by this machine and the site. Raises `UsageError` or `RefusedError`."""

    def stage_pilot(self, pilot: Pilot, request: Request, host: RemoteHost, cache: Cache) -> Pilot:
        """Stage what all allocations need, and return the pilot with it."""

    def program_files(self, folder: bytes, pilot: Pilot) -> list[SmallFile]:
        """Return the files that all allocations need, for a run in this folder."""

    def allocation_texts(
        self, run: str, chunk: int, tasks: Iterable[int], pilot: Pilot, variables: JobVariables
    ) -> dict[str, str]:
        """Return the files of an allocation, by name in its folder; the scheduler starts `job.sh`."""

    def pristine(self, prepared: Prepared) -> bytes | None:
        """Return the content of a task's writable folders before the tool starts; None if they are empty."""


def load_task_runner() -> TaskRunner:
    """Return what runs pilots. Raises `UsageError` if it is not installed."""
    found: TaskRunner | None = find("hibali.task_runners", "pilot")
    if found is None:
        raise not_installed("pilots", "--pilot")
    return found
