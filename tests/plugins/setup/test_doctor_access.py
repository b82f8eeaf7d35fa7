"""Test `hibali doctor` at sites with other means of access: GSI, a data host, GridFTP, Globus, servers that end sessions, a package."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.test_one_session import add_site as add_single_session_site
from tests.end_to_end.test_plugin import add_box
from tests.end_to_end.test_refused_sessions import CLOSED
from tests.end_to_end.test_refused_sessions import add_site as add_forced_site
from tests.plugins.setup.test_doctor import PROPOSED, steps
from tests.services.globus import Globus
from tests.services.grid import Grid
from tests.services.processes import free_port
from tests.services.sshd import SshServer
from tests.support.backends import FolderBackend, add_site
from tests.support.globus_sites import SECRET, globus_sites


@pytest.mark.heavy
def test_the_proxy_is_checked_before_the_login_and_data_host_and_gridftp_after_it(
    hibali: Any, ssh_server: SshServer, grid: Grid, tmp_path: Path
) -> None:
    add_site(hibali.home.config, "far", FolderBackend("ssh", tmp_path / "site", ssh_server))
    hibali.env.update(grid.env)
    ways = tmp_path / "ways"
    ways.write_text(
        ssh_server.config.read_text().replace(f"Host {ssh_server.host}\n", f"Host {ssh_server.host} data\n")
    )
    config: Path = hibali.home.config
    text = config.read_text().replace(f'"{ssh_server.config}"', f'"{ways}"')
    text = text.replace("\nhost = ", '\ndata_host = "data"\nauth = "gsi"\nhost = ')

    def gridftp_at(port: int) -> None:
        config.write_text(f'{text}\n[sites.far.gridftp]\nurl = "gsiftp://localhost:{port}"\n')

    gridftp_at(grid.port)
    verdicts, _, _ = steps(hibali, "far", exit=0)
    in_order = [name for name in verdicts if name in {"connection", "proxy", "login", "data host", "gridftp"}]
    assert in_order == ["connection", "proxy", "login", "data host", "gridftp"]
    assert {verdicts[name] for name in in_order} == {"ok"}
    gridftp_at(free_port())
    _, fault, _ = steps(hibali, "far", exit=5)
    assert (fault["name"], fault["code"]) == ("gridftp", "unreachable")
    gridftp_at(ssh_server.port)
    _, fault, _ = steps(hibali, "far", exit=5)
    assert (fault["name"], fault["code"]) == ("gridftp", "no-gridftp-server")

    hibali.env["X509_USER_PROXY"] = str(grid.make_proxy(tmp_path / "expired", -60))
    verdicts, fault, _ = steps(hibali, "far", exit=4)
    assert (fault["name"], fault["code"]) == ("proxy", "proxy-expired")
    assert (verdicts["login"], verdicts["gridftp"]) == ("not-tried", "not-tried")


def test_an_unknown_key_of_a_data_host_is_reported_once(
    hibali: Any, ssh_server: SshServer, tmp_path: Path
) -> None:
    add_site(hibali.home.config, "far", FolderBackend("ssh", tmp_path / "site", ssh_server))
    known_hosts = tmp_path / "known_hosts"
    known_hosts.touch()
    ways = tmp_path / "ways"
    named = ssh_server.config.read_text()
    lines = [line for line in named.splitlines() if "KnownHosts" not in line and not line.startswith("Host ")]
    unknown = "\n".join(
        ["Host data", *lines, f"UserKnownHostsFile {known_hosts}", "GlobalKnownHostsFile none"]
    )
    ways.write_text(f"{named}\n{unknown}\n")
    config: Path = hibali.home.config
    text = config.read_text().replace(f'"{ssh_server.config}"', f'"{ways}"')
    config.write_text(text.replace("\nhost = ", '\ndata_host = "data"\nhost = '))
    step_lines = [line for line in hibali("doctor", "far", "--json", exit=0).lines if line["kind"] == "step"]
    names = [line["name"] for line in step_lines]
    assert sorted(set(names)) == sorted(names)
    (step,) = (line for line in step_lines if line["name"] == "data host")
    assert step["verdict"] == "warning"
    assert "host key is in no known_hosts file" in step["found"]
    assert "answers in" in step["found"]


def test_the_globus_collection_is_checked_with_and_without_ssh(
    hibali: Any, globus: Globus, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    sites = globus_sites(hibali, globus, tmp_path, request.getfixturevalue)
    sites.add_ssh("far")
    (tmp_path / "vault").mkdir()
    sites.add_vault(tmp_path / "vault")
    verdicts, _, _ = steps(hibali, "far", exit=0)
    assert [each for each in verdicts if each not in PROPOSED][-2:] == ["globus login", "collection"]
    del verdicts["scheduler"]  # a warning where the machine of the test has a batch system
    assert set(verdicts.values()) == {"ok"}
    verdicts, _, _ = steps(hibali, "vault", exit=0)
    assert verdicts == {"settings": "ok", "globus login": "ok", "collection": "ok"}

    config: Path = hibali.home.config
    config.write_text(config.read_text().replace(sites.collections["vault"].id, str(uuid.uuid4())))
    verdicts, fault, _ = steps(hibali, "vault", exit=3)
    assert (fault["name"], verdicts["globus login"]) == ("collection", "ok")
    assert fault["fix"].endswith("hibali sites show vault")
    del hibali.env[SECRET]
    verdicts, fault, _ = steps(hibali, "vault", exit=4)
    assert (fault["name"], verdicts["collection"]) == ("globus login", "not-tried")


def test_a_job_runs_where_a_login_has_one_session(hibali: Any, host: Any, tmp_path: Path) -> None:
    more = '[sites.far.scheduler]\nname = "direct"\n[sites.far.container]\nname = "bare"\n'
    add_single_session_site(hibali, tmp_path / "data", host.host, host.command, more)
    verdicts, _, _ = steps(hibali, "far", "--job", exit=0)
    assert verdicts["job"] == "ok"


def test_doctor_blames_the_server_and_not_the_login(hibali: Any, forced: tuple[SshServer, Path]) -> None:
    server, file = forced
    file.write_text(f"#!/bin/sh\n{CLOSED}\n")
    add_forced_site(hibali, server)
    verdicts, fault, _ = steps(hibali, "far", exit=4)
    assert list(verdicts.values()).count("fault") == 1
    assert (fault["name"], fault["code"]) == ("transport", "session-refused")
    assert "closed on 2026-01-01" in fault["found"]


@pytest.mark.heavy
def test_a_package_adds_a_kind_of_site_and_a_step(with_plugin: Any) -> None:
    add_box(with_plugin)
    (with_plugin.home.folder / "a").write_bytes(b"a")
    with_plugin("push", "a", "crate:kept/", exit=0)
    records = with_plugin("doctor", "crate", "--json", exit=0).lines
    found = {each["name"]: each["found"] for each in records if each["kind"] == "step"}
    assert list(found) == ["settings", "endpoint", "writes", "files"]
    assert found["files"] == "1 file"
