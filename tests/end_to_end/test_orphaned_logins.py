"""A login that a killed call left behind may come in between: whoever logs in meanwhile uses it, and does not wait."""

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
    """A site whose ssh logs in twice: first as an orphan that takes the socket, then as it was told."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    ssh = tmp_path / "ssh"
    real = shlex.join(ssh_server.command)
    ssh.write_text(f'#!/bin/sh\ncase " $* " in *" -N "*) {real} "$@" ;; esac\nexec {real} "$@"\n')
    ssh.chmod(0o755)
    found = SshSettings(ssh_server.host, command=(str(ssh),))
    yield found
    Login(found, Limits(login_interval_seconds=0)).close()


def test_a_login_that_came_in_before_ours_is_taken(settings: SshSettings) -> None:
    login = Login(settings, Limits(login_interval_seconds=0))
    began = time.monotonic()
    login.ensure()
    assert time.monotonic() - began < 60
    login.ensure()
    assert login.logins == 1
