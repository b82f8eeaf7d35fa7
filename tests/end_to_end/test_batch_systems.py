"""Test that no job runs on a login node by mistake: a batch system there is found, proposed, and named before a run."""

from __future__ import annotations

from typing import Any

import pytest

from runs.site_commands import find_batch_systems


@pytest.mark.parametrize(
    ("programs", "found"),
    [
        (["sbatch"], ["slurm"]),
        # Slurm's wrappers for the commands of PBS
        (["sbatch", "squeue", "scancel", "sacct", "scontrol", "sinfo", "qsub", "qstat", "qdel"], ["slurm"]),
        (["squeue", "qstat", "sh", "setsid"], []),
    ],
)
def test_a_batch_system_is_known_by_its_programs(programs: list[str], found: list[str]) -> None:
    systems = find_batch_systems(lambda names: {n: f"/usr/bin/{n}" if n in programs else None for n in names})
    assert list(systems)[: len(found)] == found
    assert bool(systems) == bool(found)


@pytest.mark.parametrize(("option", "code"), [("scheduler", "scheduler"), ("container", "container")])
def test_an_unknown_scheduler_or_container_is_refused_when_a_site_is_added(
    hibali: Any, option: str, code: str
) -> None:
    words = ("sites", "add", "far", "--ssh", "far.example.org", "--no-check", f"--{option}", "slurmm")
    refused = hibali(*words, "--json", exit=2).last
    assert (refused["code"], refused["about"]) == ("not-built", "far")
    assert code in refused["message"]
    assert not hibali.home.config.exists()
    hibali(*words, "--dry-run", exit=2)
    hibali("sites", "add", "far", "--ssh", "far.example.org", "--no-check", exit=0)
    before = hibali.home.config.read_bytes()
    hibali("config", "set", f"sites.far.{option}.name", "slurmm", exit=2)
    assert hibali.home.config.read_bytes() == before
