"""Submit Globus tasks when the account may have another one."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from hibali.errors import TryLaterError
from hibali.events import Listener, Noted
from hibali.ledger import ledger_folder
from hibali.locks import wait_for_lock
from hibali.retry import when_free
from hibali.text import counted
from hibali_plugins.globus.clients import client_of
from hibali_plugins.globus.errors import TOO_MANY_TASKS, too_many_tasks
from hibali_plugins.globus.paths import deadline_after
from hibali_plugins.globus.requests import Document, Globus


class Submitter:
    """Submits tasks, and waits while the account has too many.

    Globus runs three transfers and three deletions of an account at a time and queues the others (Transfer API, "Task
    Behavior"); it accepts a hundred of them. `most` is a lower limit of the account's transfers, 0 for none.
    """

    def __init__(self, globus: Globus, most: int, patience: float, on_event: Listener) -> None:
        """`patience` is how many seconds a submission waits."""
        self._globus = globus
        self._most = most
        self._patience = patience
        self._on_event = on_event

    def submit(self, body: Document, seconds: float, *, besides: str | None = None) -> str:
        """Submit a task, which may take so many seconds from then, and return its id.

        Only one process of this machine counts and submits at a time.
        Active tasks with the label `besides` do not count. Raises `TryLaterError("too-many-tasks")` after `patience`.
        """
        noted = False

        def attempt() -> str:
            nonlocal noted
            try:
                with self._lock():
                    self._check(besides)
                    return self._globus.submit({**body, "deadline": deadline_after(seconds)})
            except TryLaterError as problem:
                if problem.code == TOO_MANY_TASKS and not noted:
                    noted = True
                    self._on_event(Noted(f"waiting until a Globus task ends: {problem.message}"))
                raise

        return when_free(
            attempt,
            subject=self._globus.site.name,
            patience=self._patience,
            code=TOO_MANY_TASKS,
            on_event=self._on_event,
        )

    def _lock(self) -> AbstractContextManager[object]:
        if not self._most:
            return nullcontext()
        return wait_for_lock(ledger_folder("globus-limit", client_of(self._globus.site).client_id))

    def _check(self, besides: str | None) -> None:
        """Raise `TryLaterError` if the account has as many active transfers as it may."""
        if not self._most:
            return
        active = [task for task in self._globus.active() if besides is None or task.get("label") != besides]
        if len(active) >= self._most:
            raise too_many_tasks(
                f"this account has {counted(len(active), 'active transfer')}, and `globus_tasks` allows {self._most}",
                self._globus.site.name,
            )
