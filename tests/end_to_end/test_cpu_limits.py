"""Test hosts that end a process after some CPU time, as login nodes do: the agent says so, and a transfer continues."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.services.processes import end_all
from tests.services.sshd import start_sshd_with_command
from tests.support.trees import make_tree, many_files, random_bytes, read_tree
from tests.support.waiting import wait_for


@pytest.fixture
def limited(hibali: Any, tmp_path: Path) -> Iterator[Callable[[str, str], Path]]:
    """Return a function that configures an ssh site below a `ulimit` and with a limit of hibali; it returns the site's folder."""
    session = tmp_path / "host"
    session.mkdir()
    with ExitStack() as stack:
        stack.callback(end_all, session)

        def start(ulimit: str, reconnect: str = "10m") -> Path:
            wrapper = session / "shell"
            wrapper.write_text(f'#!/bin/bash\nulimit {ulimit}\nexec sh -c "$SSH_ORIGINAL_COMMAND"\n')
            wrapper.chmod(0o755)
            server = start_sshd_with_command(session, session / "ssh", lambda _: str(wrapper))
            with hibali.home.config.open("a") as stream:
                stream.write(
                    f'[sites.far]\nkind = "ssh"\n[sites.far.ssh]\nhost = "{server.host}"\n'
                    f'command = {json.dumps(server.command)}\n[sites.far.limits]\nreconnect = "{reconnect}"\n'
                )
            return tmp_path / "there"

        yield start


@pytest.mark.heavy
@pytest.mark.parametrize(
    "ulimit",
    ["-t 600", pytest.param("-S -t 600", marks=pytest.mark.heavy)],
    ids=["both limits", "soft limit"],
)
def test_a_transfer_continues_with_a_new_agent(
    limited: Callable[..., Path], hibali: Any, tmp_path: Path, ulimit: str
) -> None:
    """Send what the kernel sends after that time (setrlimit(2), RLIMIT_CPU)."""
    there = limited(ulimit)
    tree = many_files(300, 20_000)
    make_tree(tmp_path / "here", tree)
    process = hibali.start("push", tmp_path / "here", f"far:{there}", "--json", "--bwlimit", "1M")
    wait_for(lambda: sum(path.is_file() for path in there.rglob("[!.]*")) > 20)
    os.kill(json.loads((there / ".hibali/lock").read_text())["pid"], signal.SIGXCPU)
    assert process.wait(120) == 0
    last = json.loads((hibali.home.folder / "0.out").read_bytes().splitlines()[-1])
    assert (last["files_moved"], last["reconnects"]) == (len(tree), 1)
    assert "a process may use 600 s of CPU time at this host" in (hibali.home.folder / "0.err").read_text()
    assert read_tree(there) == tree


@pytest.mark.heavy
def test_what_takes_too_long_is_told_from_a_lost_line(limited: Callable[..., Path], hibali: Any) -> None:
    there = limited("-t 2", "0s")
    there.mkdir()
    (there / "0").write_bytes(random_bytes(1, 100_000_000))
    for number in range(1, 80):
        (there / str(number)).hardlink_to(there / "0")
    hibali("ls", f"far:{there}", exit=0)
    answer = hibali("manifest", f"far:{there}", "--json", exit=5)
    assert (answer.last["code"], answer.last["about"]) == ("cpu-limit", "far")
    assert "a process may use 2 s of CPU time at this host" in answer.last["message"]
