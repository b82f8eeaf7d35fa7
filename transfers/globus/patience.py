"""For how long a task of Globus is waited for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Patience:
    """With tasks: after how many seconds one that stands still is given up (None: when Globus does), and what an interruption does."""

    give_up_after: float | None = None
    cancel_on_interrupt: bool = False
