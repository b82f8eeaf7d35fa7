"""Test that a signal ends the special remote of git-annex."""

from __future__ import annotations

import signal
import time

import pytest

from tests.support.annex_protocol import AnnexRemoteClient
from tests.support.command_signals import ENDS, TOLERATED_SECONDS
from tests.support.transfers import Transfers


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_special_remote_of_git_annex(local_there: Transfers, number: int) -> None:
    there = local_there
    conversation = AnnexRemoteClient(there.hibali.env, there.hibali.home.home, "there:annex")
    try:
        assert conversation.request("INITREMOTE") == "INITREMOTE-SUCCESS"
        began = time.monotonic()
        conversation.process.send_signal(number)
        assert conversation.process.wait(10) in ENDS[signal.Signals(number)]
        assert time.monotonic() - began <= TOLERATED_SECONDS
    finally:
        conversation.kill()
