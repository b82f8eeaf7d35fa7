"""Test the double with an unmodified globus-cli: listing, mkdir, transfer, wait, consent, delete."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.services.globus import Globus
from tests.services.session import REPOSITORY
from tests.support.requirements import require_prepared

_CLI = REPOSITORY / ".cache" / "globus" / "bin" / "globus"


@pytest.fixture
def cli(globus: Globus, tmp_path: Path) -> Callable[..., str]:
    """Run globus-cli and return its output as JSON or text; fail on an unexpected exit code."""
    require_prepared(_CLI, "globus")
    environment = {
        **globus.env,
        "HOME": str(tmp_path / "home"),
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "GLOBUS_CLI_CLIENT_ID": globus.client_id,
        "GLOBUS_CLI_CLIENT_SECRET": globus.client_secret,
    }
    (tmp_path / "home").mkdir()

    def run(*words: str, ends_with: int = 0) -> str:
        done = subprocess.run(
            [_CLI, *words], env=environment, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == ends_with, (words, done)
        return done.stdout

    return run


@pytest.mark.heavy
def test_globus_cli_moves_files_and_waits(globus: Globus, cli: Callable[..., str], tmp_path: Path) -> None:
    here = globus.make_collection(tmp_path / "a", "the laptop", entity_type="GCP_mapped_collection")
    target = globus.make_collection(tmp_path / "b", "the cluster", data_access=True)
    for name in ("one", "in/two", "in/'three' ü"):
        path = here.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(name.encode() * 1000)

    assert globus.client_id in cli("whoami")
    assert target.id in cli("endpoint", "search", "cluster", "--jmespath", "DATA[].id")
    assert "the laptop" in cli("endpoint", "show", here.id)
    assert cli("ls", f"{here.id}:/").splitlines() == ["in/", "one"]
    assert cli("ls", "--recursive", f"{here.id}:/").split("\n")[:4] == [
        "in/",
        "one",
        "in/'three' ü",
        "in/two",
    ]
    cli("mkdir", f"{target.id}:/new")  # globus-cli requests the missing consent itself
    assert "Directory" in cli("stat", f"{target.id}:/new") or "dir" in cli("stat", f"{target.id}:/new")

    words = ("transfer", "--recursive", f"{here.id}:/", f"{target.id}:/new", "--label", "all of it")
    submitted = cli("task", "generate-submission-id").strip()
    quota = globus.fault("quota", path="*/one")
    task = json.loads(cli(*words, "--submission-id", submitted, "-F", "json"))["task_id"]
    globus.wait(task, nice_status="QUOTA_EXCEEDED")
    shown = json.loads(cli("task", "show", task, "-F", "json"))
    assert (shown["status"], shown["nice_status"], shown["label"]) == (
        "ACTIVE",
        "QUOTA_EXCEEDED",
        "all of it",
    )
    cli("task", "wait", task, "--timeout", "1", "--polling-interval", "1", ends_with=1)
    assert "quota exceeded" in cli("task", "event-list", task, "--filter-errors").lower().replace("_", " ")
    quota.clear()
    cli("task", "wait", task, "--timeout", "60", "--polling-interval", "1")
    again = json.loads(cli(*words, "--submission-id", submitted, "-F", "json"))
    assert (again["task_id"], again["code"]) == (task, "Duplicate")
    assert cli("task", "show", "--successful-transfers", task).count("/new/") == 3
    assert (target.root / "new/in/'three' ü").read_bytes() == (here.root / "in/'three' ü").read_bytes()

    cli("rename", target.id, "/new/one", "/new/uno")
    cli("rm", "--recursive", f"{target.id}:/new/in", "--polling-interval", "1")
    assert sorted(path.name for path in (target.root / "new").iterdir()) == ["uno"]
    paused = globus.fault("paused", message="for the night")
    task = json.loads(cli("delete", f"{target.id}:/new/uno", "-F", "json"))["task_id"]
    globus.wait(task, nice_status="PAUSED")
    assert "for the night" in cli("task", "pause-info", task)
    assert "cancelled successfully" in cli("task", "cancel", task)
    paused.clear()
    cli("task", "wait", task, "--polling-interval", "1", ends_with=1)
    assert "FAILED" in cli("task", "list", "--filter-status", "FAILED")


@pytest.mark.heavy
def test_globus_cli_shows_what_moved_shares_bookmarks_and_logs_out(
    globus: Globus, cli: Callable[..., str], tmp_path: Path
) -> None:
    here = globus.make_collection(tmp_path / "a", "the laptop")
    shared = globus.make_collection(tmp_path / "b", "for the lab", entity_type="GCSv5_guest_collection")
    (here.root / "one").write_bytes(b"12345")
    task = json.loads(cli("transfer", f"{here.id}:/one", f"{shared.id}:/one", "-F", "json"))["task_id"]
    cli("task", "wait", task, "--timeout", "60", "--polling-interval", "1")
    [moved] = json.loads(cli("task", "show", "--successful-transfers", task, "-F", "json"))["DATA"]
    assert (moved["size"], moved["checksum_algorithm"], moved["checksum"]) == (
        5,
        "MD5",
        "827ccb0eea8a706c4c34a16891f84e7b",
    )

    rule = ("endpoint", "permission")
    who = ("--identity", globus.client_id)
    made = json.loads(cli(*rule, "create", f"{shared.id}:/x/", "--permissions", "r", *who, "-F", "json"))
    cli(*rule, "create", f"{shared.id}:/x/", "--permissions", "rw", *who, ends_with=1)  # it already exists
    cli(*rule, "create", f"{here.id}:/", "--permissions", "r", *who, ends_with=1)  # a mapped collection
    cli(*rule, "create", f"{shared.id}:/", "--permissions", "rw", "--all-authenticated")
    assert "@clients.auth.globus.org" in cli(*rule, "list", shared.id)
    cli(*rule, "update", shared.id, made["access_id"], "--permissions", "rw")
    assert "rw" in cli(*rule, "show", shared.id, made["access_id"])
    cli(*rule, "delete", shared.id, made["access_id"])
    assert cli(*rule, "list", shared.id, "--jmespath", "DATA[].path", "-F", "unix").split() == ["/"]

    cli("bookmark", "create", f"{shared.id}:/x/", "mine")
    cli("bookmark", "create", f"{shared.id}:/y/", "mine", ends_with=1)
    cli("bookmark", "rename", "mine", "ours")
    assert cli("bookmark", "show", "ours").strip() == f"{shared.id}:/x/"
    assert "for the lab" in cli("bookmark", "list")
    cli("bookmark", "delete", "ours")
    cli("bookmark", "show", "ours", ends_with=1)

    assert "revoked all CLI tokens" in cli("logout", "--yes")
    assert {each["status"] for each in globus.requests() if each["path"].endswith("/revoke")} == {200}
