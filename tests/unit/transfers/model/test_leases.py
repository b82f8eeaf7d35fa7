"""Test how the holder of a lock is described."""

from __future__ import annotations

import os
import socket

import pytest

from hibali.files import account_names
from transfers.model.leases import locked, this_client


def test_a_lock_names_the_account_and_the_host_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("USER", raising=False)
    client = this_client()
    assert client == f"the account {account_names()[0]} at {socket.gethostname()}, process {os.getpid()}"
    holder = {"operation": "push", "client": client, "pid": 7, "host": "login1"}
    assert locked(holder, "x").message == (
        f"the target is locked by push from {client}; its agent is process 7 on login1"
    )
