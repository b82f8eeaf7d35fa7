"""What a call holds at an agent's target over the life of several lines: the lock, and what former lines left behind."""

from __future__ import annotations

import secrets
from typing import Any

from hibali.errors import TryLaterError
from transfers.agent.former import THERE
from transfers.connection import Connection
from transfers.lock_record import this_client


class Holding:
    """One call at one target. `call` is its mark in the lock and in the journal, the same over all its lines."""

    def __init__(self, lease: int) -> None:
        """`lease` is how many seconds the lock of a holder lasts that says nothing any more."""
        self.lease = lease
        self._call = secrets.token_hex(16)
        self._operation: str | None = None
        self._formers: list[dict[str, Any]] = []
        self.walked = False  # all of it was listed, so that nothing unknown can be left there

    @property
    def held(self) -> bool:
        """Whether the lock was taken and not given back."""
        return self._operation is not None

    def question(self, operation: str, **more: Any) -> tuple[str, dict[str, Any]]:
        """What takes the lock for the first time."""
        self._operation = operation
        told = {"operation": operation, "client": this_client(), "lease": self.lease, "call": self._call}
        return "lock", {**told, **more}

    def given_back(self) -> None:
        """The lock is no longer held."""
        self._operation = None

    def leave(self, *formers: dict[str, Any]) -> None:
        """The lines of these agents are let go of, and nobody knows whether they have ended."""
        self._formers += formers

    def take_back(self, connection: Connection, opening: dict[str, Any], *, anew: bool) -> None:
        """End the agents of former lines, and take the lock again. Raises where somebody else has it, or has landed there.

        With `anew` all is looked at after this, and whoever landed there meanwhile does no harm.
        """
        assert self._operation is not None
        answer = connection.ask("end_formers", formers=self._formers)
        with connection.understanding():
            if THERE in answer.header["found"]:
                message = "the agent of a lost line cannot be ended"
                raise TryLaterError("former-agent", message, about=connection.where)
        # Those on another machine or of another boot stop at their next look at the lock, which they do not hold then.
        self._formers = []
        connection.ask_all(
            [("open", opening), self.question(self._operation, back=not anew, walked=self.walked)]
        )
