"""Test that a signal ends a scheduled run and its command."""

from __future__ import annotations

import signal

import pytest

from tests.end_to_end.test_signals import FEW
from tests.support.agent_signals import wait_for_agent_exit
from tests.support.command_signals import check_end, signal_after
from tests.support.transfers import Transfers
from tests.support.waiting import wait_for


@pytest.mark.heavy
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.heavy)])
def test_a_signal_ends_a_scheduled_run_and_its_command(local_there: Transfers, number: int) -> None:
    there = local_there
    there.make(FEW)
    there.hibali(
        *("schedule", "add", "nightly", "--cron", "0 2 * * *", "--"),
        *("push", str(there.source), "there:data", "--bwlimit", "1M"),
        exit=0,
    )
    process = there.hibali.start("schedule", "run", "nightly")
    wait_for(lambda: bool(there.committed_files()) or process.poll() is not None)
    end = signal_after(process, 0, number)
    assert end.code != 0
    check_end(there.hibali, process, end, number)
    wait_for_agent_exit(there)
    there.push()
    assert there.there() == FEW
