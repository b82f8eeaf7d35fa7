"""Test how many cores of a machine count, and whether it is shared with other people."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hibali import cores


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return a folder with the files of a machine with eight cores."""
    monkeypatch.setattr(cores, "_CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(cores, "_PROCESSES", tmp_path / "proc")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/1").mkdir()
    return tmp_path


def limit(machine: Path, group: str, quotas: dict[str, str]) -> None:
    (machine / "proc/self/cgroup").write_text(group)
    for name, content in quotas.items():
        path = machine / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


@pytest.mark.parametrize(
    ("group", "quotas", "expected"),
    [
        ("0::/\n", {}, 8),
        ("0::/user.slice\n", {"user.slice/cpu.max": "max 100000\n"}, 8),
        ("0::/user.slice\n", {"user.slice/cpu.max": "350000 100000\n"}, 3),
        (
            "0::/user.slice/own\n",
            {"user.slice/own/cpu.max": "max 100000\n", "user.slice/cpu.max": "200000 100000\n"},
            2,
        ),
        ("0::/user.slice\n", {"user.slice/cpu.max": "20000 100000\n"}, 1),
        ("0::/user.slice\n", {"user.slice/cpu.max": "nonsense\n"}, 8),
        (
            "4:cpu,cpuacct:/user\n1:name=systemd:/user\n",
            {"cpu/user/cpu.cfs_quota_us": "400000\n", "cpu/user/cpu.cfs_period_us": "100000\n"},
            4,
        ),
        (
            "4:cpu,cpuacct:/user\n",
            {"cpu/user/cpu.cfs_quota_us": "-1\n", "cpu/user/cpu.cfs_period_us": "100000\n"},
            8,
        ),
    ],
)
def test_cores_are_those_of_the_affinity_within_the_quota(
    machine: Path, group: str, quotas: dict[str, str], expected: int
) -> None:
    limit(machine, group, quotas)
    assert cores.usable_cores() == expected


def test_without_control_groups_the_affinity_counts() -> None:
    assert cores.usable_cores() == 8


@pytest.mark.parametrize(
    ("owner", "is_shared"), [(0, False), (104, False), (1000, False), (1001, True), (65534, False)]
)
def test_a_machine_is_shared_if_another_person_has_processes(
    machine: Path, monkeypatch: pytest.MonkeyPatch, owner: int, is_shared: bool
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setattr(cores, "_owner", lambda entry: owner if entry.name == "17" else 0)
    (machine / "proc/17").mkdir()
    assert cores.is_shared_machine() is is_shared


def test_a_machine_that_hides_processes_counts_as_shared(machine: Path) -> None:
    (machine / "proc/1").rmdir()
    assert cores.is_shared_machine()
