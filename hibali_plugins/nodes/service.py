"""Define what runs shards at a site, and the request for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from hibali.config.model import Site
from hibali.events import Listener
from hibali.locations import Location
from transfers.remote.host import RemoteHost


@dataclass(frozen=True, slots=True)
class ShardJobs:
    """The tasks to submit: a program that takes the folder of the transfer, the number of a shard and that of the attempt."""

    folder: bytes
    program: bytes
    shards: Sequence[int]
    attempt: int


class ShardRunner(Protocol):
    """Runs shards as tasks of job arrays at one site."""

    def open_host(self, on_event: Listener) -> RemoteHost:
        """Connect to the site."""

    def make_folder(self, host: RemoteHost, name: bytes) -> bytes:
        """Create a private folder for a transfer below the work folder of the site, and return its path."""

    def submit(self, host: RemoteHost, jobs: ShardJobs, on_event: Listener) -> str:
        """Submit a task for each shard, once for each attempt; return the id of the run, also of one that was submitted before."""

    def follow(self, run: str, look: Callable[[RemoteHost], bool], on_event: Listener) -> Mapping[int, str]:
        """Wait until the tasks of a run have ended, or until `look` returns that they did everything.

        `look` is called meanwhile, and once after their end. Returns why tasks failed, by their number; raises `RunFailedError` if
        someone cancelled them.
        """

    def has_ended(self, host: RemoteHost, run: str) -> bool:
        """Query whether the tasks of a run have ended."""

    def cancel(self, host: RemoteHost, run: str) -> None:
        """Cancel the tasks of a run, unless they have ended."""

    def clean(self, host: RemoteHost, run: str) -> None:
        """Remove the folder of a run whose tasks did everything; a problem only leaves it."""


@dataclass(frozen=True, slots=True)
class NodesRequest:
    """The request that compute nodes of `site` do the transfer: so many shards, run by `runner`.

    With `detach` the call ends once they are submitted.
    """

    count: int
    site: Site
    runner: ShardRunner
    detach: bool = False

    def reaches(self, location: Location) -> bool:
        """Return whether the nodes share the filesystem of a location."""
        both_here = location.site.kind == self.site.kind == "local"
        return both_here or location.site.name == self.site.name
