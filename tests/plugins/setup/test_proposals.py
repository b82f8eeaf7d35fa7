"""Test what is proposed for a host: container runtimes, environment modules and data nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hibali_plugins.setup.proposals import find_data_node
from tests.plugins.setup.test_login_nodes import install


@pytest.mark.parametrize(
    ("alias", "names", "found"),
    [
        ("juwels", ["juwels", "juwels-data", "daint"], "juwels-data"),
        ("juwels01", ["juwels-dtn"], "juwels-dtn"),
        ("login.hpc.example.org", ["dtn1.hpc.example.org"], "dtn1.hpc.example.org"),
        ("login.hpc.example.org", ["dtn1.other.org"], None),
        ("juwels", ["database.juwels", "juwels"], None),
        ("juwels", [], None),
        ("dragon.nersc.gov", ["dtn01.nersc.gov"], "dtn01.nersc.gov"),
        ("user-host.ac.uk", ["data.rival.ac.uk"], None),
        ("x.org", ["xfer.org"], None),
        ("hpc", ["data.hpcother.org"], None),
        ("login.hpc.example.org", ["login-data.other.org"], None),
    ],
)
def test_a_data_node_has_a_name_for_it_and_belongs_to_the_host(
    alias: str, names: list[str], found: str | None
) -> None:
    assert find_data_node(alias, names) == found


def test_doctor_proposes_containers_and_modules_with_reasons_and_commands(
    hibali: Any, tmp_path: Path
) -> None:
    env = {"PATH": install(tmp_path / "bin", "apptainer")}
    profile = hibali.home.home / ".bash_profile"
    profile.write_text("echo noise\nmodule() { :; }\nLMOD_VERSION=8.7.2\n")
    hibali("sites", "add", "here", "--local", str(tmp_path), "--no-check", exit=0)
    hibali("config", "set", "sites.here.scheduler.name", "direct", exit=0)
    shown = hibali("doctor", "here", env=env, exit=0).out.decode()
    assert "apptainer" in shown
    assert "hibali config set sites.here.container.name apptainer" in shown
    assert "Lmod 8.7.2 is there" in shown
    hibali("config", "set", "sites.here.scheduler.prologue", '["module load NAME"]', exit=0)
    profile.unlink()
    assert "modules" not in hibali("doctor", "here", env=env, exit=0).out.decode()
