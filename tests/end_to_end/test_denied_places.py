"""Test that an error about permissions names the folder, with a hint that can be pasted."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.services.sshd import SshServer

DENIED = Path("/sys/kernel")  # also root creates nothing there


@pytest.mark.parametrize("kind", ["local", "ssh"])
@pytest.mark.parametrize("command", ["push", "rm", "mkdir"])
def test_an_error_about_permissions_names_the_whole_path(
    hibali: Any, ssh_server: SshServer, kind: str, command: str
) -> None:
    ssh = f'[sites.here.ssh]\nhost = "{ssh_server.host}"\ncommand = {json.dumps(ssh_server.command)}\n'
    hibali.home.config.write_text(
        f'version = 1\n[sites.here]\nkind = "{kind}"\n{ssh if kind == "ssh" else ""}'
    )
    hibali.home.config.chmod(0o600)
    (hibali.home.folder / "d").mkdir()
    (hibali.home.folder / "d/f").write_text("1")
    words = {
        "push": ("push", "d", f"here:{DENIED}"),
        "rm": ("rm", f"here:{DENIED}/notes"),
        "mkdir": ("mkdir", f"here:{DENIED}/new"),
    }[command]
    error = hibali(*words, "--json", exit=4).last
    assert error["code"] == "denied", error
    assert error["about"].startswith(f"here:{DENIED}"), error
    hint, _, line = error["hint"].partition(": ")
    assert "permissions" in hint
    assert shlex.split(line)[:2] == ["namei", "-l"]
    assert shlex.split(line)[2].startswith(str(DENIED))
