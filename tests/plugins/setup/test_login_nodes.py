"""Test that no job of a new site runs on a login node by mistake: `init` and `sites import` find its batch system."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.run_tools import Bench
from tests.support.restartable_server import restartable_server
from tests.support.terminal import Terminal


def install(folder: Path, *names: str) -> str:
    """Create programs that fail, as those of a cluster that is under maintenance; return the PATH with them."""
    folder.mkdir()
    for name in names:
        (folder / name).write_text("#!/bin/sh\necho 'Unable to contact the controller' >&2\nexit 1\n")
        (folder / name).chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def test_init_on_a_login_node_gives_its_site_the_batch_system(hibali: Any, tmp_path: Path) -> None:
    env = {"PATH": install(tmp_path / "bin", "bsub", "bjobs", "bkill", "bhist", "bacct", "bresume", "bstop")}
    said = hibali("init", "--yes", env=env, exit=0).err.decode()
    assert hibali("config", "get", "sites.this-machine.scheduler.name", exit=0).out == b"lsf\n"
    assert "hibali config set sites.this-machine.scheduler.name direct" in said
    hibali(*["config", "set", "sites.this-machine.scheduler.name", "direct"], exit=0)
    shown = hibali("doctor", "this-machine", env=env, exit=0).out.decode()
    [line] = [line for line in shown.splitlines() if " scheduler " in line]
    assert line.startswith("warning"), shown
    assert "bsub" in line
    assert "hibali config set sites.this-machine.scheduler.name lsf" in shown
    facts = hibali("sites", "check", "this-machine", env=env, exit=0)
    assert b"bsub" in facts.out
    assert b"hibali config set sites.this-machine.scheduler.name lsf" in facts.err


@pytest.mark.heavy
def test_a_host_imported_from_ssh_runs_no_job_on_its_login_node(hibali: Any, tmp_path: Path) -> None:
    bench = Bench(hibali)
    with restartable_server("ssh", tmp_path) as own:
        server = own.place.server
        path = install(tmp_path / "bin", "bsub", "bjobs", "bkill", "bhist", "bacct", "bresume", "bstop")
        with (server.home / ".bashrc").open("a") as start_up:
            start_up.write(f"PATH={path}\n")
        (hibali.home.folder / "config").write_text(server.config.read_text())
        words = ("--ssh-config", "config", "--only", server.host)
        hibali("sites", "import", "ssh", *words, "--yes", exit=0)
        bench.site = server.host
        refused = bench.run(bench.answers(), exit=2).last
        assert (refused["code"], refused["about"]) == ("scheduler-not-set", server.host)
        assert f"hibali config set sites.{server.host}.scheduler.name lsf" in refused["hint"]
        assert not (server.home / ".hibali").exists()
        hibali("sites", "remove", server.host, exit=0)
        command = hibali.command("init", "--from", "ssh", *words, "--no-push")
        terminal = Terminal(command, hibali.env, cwd=hibali.home.folder, columns=200, rows=60)
        terminal.until(lambda screen: f"Submit the jobs of {server.host} to lsf? [Y/n]" in screen)
        terminal.press(b"\r")
        assert terminal.end() == 0, terminal.written.decode()
    assert hibali("config", "get", f"sites.{server.host}.scheduler.name", exit=0).out == b"lsf\n"
