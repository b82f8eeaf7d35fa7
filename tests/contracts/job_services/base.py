"""Define what the contract tests need of the double of a job service."""

from __future__ import annotations

from typing import Protocol

from runs.services.base import ServiceHost, ServiceJob, ServiceMachine

SITE = "site"


class Backend(Protocol):
    """A double of a service, which can be told to fail.

    Attributes:
        config: The keys of the site in config.toml, from `kind` on.
        odd_state: A state that the service does not document.
    """

    config: str
    odd_state: str

    def job(self, host: ServiceHost | ServiceMachine, mark: str) -> ServiceJob:
        """Return a job that waits or runs until `end`, with all that it needs at the site."""

    def lose_answer(self) -> None:
        """Execute the next creation without an answer."""

    def garble_answer(self) -> None:
        """Execute the next creation, with an answer that is not understood."""

    def drop_request(self) -> None:
        """Execute the next creation not at all, without an answer."""

    def answer_with(self, status: int) -> None:
        """Answer the next question about jobs with this status."""

    def expire_login(self) -> None:
        """Make the current login invalid."""

    def end(self, job: str, *, well: bool) -> None:
        """Let a job run to its end, which is no success unless `well`."""

    def jobs(self) -> list[str]:
        """Return the ids of all jobs."""

    def forget(self, job: str) -> None:
        """Remove a job from what the service lists and knows."""

    def rename_state(self, job: str, state: str) -> None:
        """Set a job's state to one that is not documented."""

    def add_many(self, count: int) -> None:
        """Create other jobs of this account."""
