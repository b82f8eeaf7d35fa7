"""Test a login left behind by a killed command: a new login that starts at the same time uses it without waiting."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hibali.config.model import Limits, SshSettings
from hibali.ssh.sessions import Login


@pytest.fixture
def settings(ssh_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshSettings]:
    """Return a site whose ssh logs in twice: first as an orphan that takes the socket, then as configured."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    ssh = tmp_path / "ssh"
    real = shlex.join(ssh_server.command)
    ssh.write_text(f'#!/bin/sh\ncase " $* " in *" -N "*) {real} "$@" ;; esac\nexec {real} "$@"\n')
    ssh.chmod(0o755)
    found = SshSettings(ssh_server.host, command=(str(ssh),))
    yield found
    Login(found, Limits(login_interval_seconds=0)).close()


def test_a_login_that_was_completed_first_is_used(settings: SshSettings) -> None:
    login = Login(settings, Limits(login_interval_seconds=0))
    began = time.monotonic()
    login.ensure()
    assert time.monotonic() - began < 60
    login.ensure()
    assert login.logins == 1
