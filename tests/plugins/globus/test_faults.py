"""Test faults of Globus: the right message and exit code, no data lost, and the same command completes."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.services.globus import Globus
from tests.support.globus_sites import GlobusSites, globus_sites
from tests.support.strace import RENAME, kill_at, require_strace
from tests.support.trees import Tree, many_files, read_tree
from tests.support.waiting import wait_for

pytestmark = pytest.mark.heavy
FILES = 12


@pytest.fixture
def sites(hibali: Any, globus: Globus, tmp_path: Path, request: pytest.FixtureRequest) -> GlobusSites:
    """Return a laptop with files, and a site `host` that hibali and Globus both reach."""
    made = globus_sites(hibali, globus, tmp_path, request.getfixturevalue)
    made.add_local("far", tmp_path / "far")
    made.make(_tree())
    return made


def _tree() -> Tree:
    return {**many_files(FILES, 3000, folders=3)}


@dataclass(frozen=True)
class Case:
    """A fault, and the expected result of a push while it lasts: exit code, error code, words of the message, and number of files."""

    kind: str
    exit: int
    code: str = ""
    words: str = ""
    arrive: int | None = None
    where: dict[str, Any] = field(default_factory=dict)


_FIRST = {"path": "*file-00000*"}
_LATE = {"after": 5}
_ONCE = {"times": 1}
CASES = [
    Case("file_not_found", 6, "vanished", "FILE_NOT_FOUND", FILES - 1, _FIRST),
    Case("permission_denied", 6, "denied", "PERMISSION_DENIED", FILES - 1, _FIRST),
    Case("task_error", 6, "denied", "PERMISSION_DENIED", 5, {"code": "PERMISSION_DENIED", **_LATE}),
    Case("quota", 6, "no-quota", "QUOTA_EXCEEDED", 5, _LATE),
    Case("no_space", 6, "no-space", "NO_SPACE_LEFT", 5, _LATE),
    Case("checksum", 6, "corrupt", "VERIFY_CHECKSUM", FILES - 1, _FIRST),
    Case("checksum", 0, "", "VERIFY_CHECKSUM", FILES, _ONCE),
    Case("corrupted_later", 0, "", "", FILES, _ONCE),
    Case("timeout", 0, "", "TIMEOUT", FILES, _ONCE),
    Case("timeout", 5, "timed-out", "TIMEOUT", FILES - 1, _FIRST),
    Case("task_error", 5, "globus-fault", "MPU_NOT_FOUND", 0, {"code": "MPU_NOT_FOUND"}),
    Case("offline", 5, "collection-offline", "", 0),
    Case(
        "paused",
        5,
        "task-paused",
        "the machine is in maintenance",
        0,
        {"message": "the machine is in maintenance"},
    ),
    Case("inactive", 4, "denied", "AUTH", 0),
    Case("too_many_requests", 0, "", "", FILES, {"retry_after": 1, **_ONCE}),
    Case("unavailable", 0, "", "", FILES, {"retry_after": 1, **_ONCE}),
    Case("unauthorized", 0, "", "", FILES, _ONCE),
    Case("unauthorized", 4, "login-expired", "hibali sites login", 0),
    Case("consent_required", 4, "consent-needed", "hibali sites login", 0),
    Case("conflict", 5, "globus-conflict", "", 0),
    Case("lost_answer", 0, "", "", FILES, _ONCE),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}-{case.exit}")
def test_a_fault_has_its_exit_code_and_message(sites: GlobusSites, case: Case) -> None:
    fault = sites.globus.fault(case.kind, **case.where)
    answer = sites.push("--give-up-after", "1s", code=case.exit)
    assert fault.clear() > 0 or case.kind in {"offline", "paused", "inactive"}
    report = str(answer)
    assert case.words in report
    if case.code:
        assert case.code in {line.get("code") for line in answer.lines}, report
    target = sites.roots["far"] / "data"
    files = [name for name in read_tree(target) if name.endswith(b".dat")] if target.exists() else []
    assert case.arrive is None or len(files) == case.arrive, report
    if files:
        assert (answer.last.get("proof_moved"), answer.last.get("checked_by")) in {
            ("digest", "hibali"),
            (None, None),
        }
    if case.exit:
        assert sites.push().last["files_failed"] == 0
    assert sites.same()
    assert sites.ours() == []
    assert sites.push().last["files_moved"] == 0


def _wait_for_task(sites: GlobusSites) -> str:
    wait_for(lambda: bool(sites.transfers()))
    return str(sites.transfers()[0]["task_id"])


def _start(sites: GlobusSites, *words: str) -> Any:
    return sites.hibali.start("push", sites.here / "data", "far:data", "--json", *words)


def _output(sites: GlobusSites) -> str:
    """Return the output of the commands that were started."""
    return "".join(file.read_text() for file in sorted(sites.hibali.home.folder.glob("*.err")))


def _one_task(sites: GlobusSites) -> bool:
    """Return whether exactly one task was ever submitted."""
    ids = {one["submission_id"] for one in sites.globus.submissions()}
    return len(ids) == len(sites.transfers()) == 1


def test_a_kill_between_the_submission_and_its_answer_submits_one_task(sites: GlobusSites) -> None:
    """Check that the submission id is stored before it is used, so that the same command finds the same task."""
    fault = sites.globus.fault("lost_answer")
    process = _start(sites)
    _wait_for_task(sites)
    process.send_signal(signal.SIGKILL)
    process.wait()
    fault.clear()
    assert sites.push().last["files_moved"] == FILES
    assert sites.same()
    assert _one_task(sites)
    codes = [one["code"] for one in sites.globus.submissions()]
    assert codes[0] == "Accepted"
    assert codes[-1] == "Duplicate"
    assert sites.ours() == []


def test_a_kill_while_the_task_runs_submits_one_task(sites: GlobusSites) -> None:
    held = sites.globus.fault("held", after=3)
    process = _start(sites)
    task = _wait_for_task(sites)
    process.send_signal(signal.SIGKILL)
    process.wait()
    held.clear()
    sites.globus.wait(task)
    next((sites.here / "data").rglob("file-00000.dat")).unlink()  # its partial upload is no longer needed
    answer = sites.push()
    assert (answer.last["files_moved"], answer.last["proof_moved"]) == (FILES - 1, "digest")
    assert sites.same()
    assert _one_task(sites)
    assert sites.ours() == []


@pytest.mark.parametrize("name", ["far", "vault"])
def test_a_kill_at_any_point_is_completed_by_the_same_command(
    sites: GlobusSites, tmp_path: Path, name: str
) -> None:
    """Kill at a site that renames: before and during the renames; at a collection that only Globus reaches: between any two requests."""
    require_strace()
    if name == "vault":
        sites.add_vault(tmp_path / "vault")
    for number in (3, 6, 9):
        sites.make({b"more %d/%s" % (number, path): leaf for path, leaf in _tree().items()})
        if name == "far":
            words = ("push", sites.here / "data", "far:data", "--json")
            command = [*kill_at(RENAME, number), *sites.hibali.command(*words)]
            subprocess.run(command, env=sites.hibali.env, capture_output=True, check=False)
        else:
            limit = len(sites.globus.requests()) + number
            process = sites.hibali.start("push", sites.here / "data", "vault:data", "--json")
            wait_for(
                lambda limit=limit, process=process: (
                    process.poll() is not None or len(sites.globus.requests()) >= limit
                )
            )  # type: ignore[misc]
            process.kill()
            process.wait()
        wait_for(lambda: sites.hibali("push", sites.here / "data", f"{name}:data", "--json").exit == 0)
        assert sites.same(name)
        assert sites.ours(name) == []
        assert len({one["submission_id"] for one in sites.globus.submissions()}) == len(sites.globus.tasks())


def test_an_interruption_leaves_the_task_or_cancels_it(sites: GlobusSites) -> None:
    held = sites.globus.fault("held", after=3)
    process = _start(sites)
    task = _wait_for_task(sites)
    wait_for(lambda: f"Globus task {task} transfers" in _output(sites))
    time.sleep(0.5)  # until it follows the task
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert f"Globus task {task} continues at Globus. Run the same command again to follow it" in _output(
        sites
    )
    assert sites.transfers()[0]["status"] == "ACTIVE"
    operation = sites.hibali("history", "--json", exit=0).lines[0]["id"]
    assert task in " ".join(sites.hibali("history", "show", operation, "--json", exit=0).last["notes"])
    held.clear()
    assert sites.push().last["files_moved"] == FILES
    assert _one_task(sites)

    sites.make({b"one more": b"x"})
    held = sites.globus.fault("held")
    process = _start(sites, "--cancel-on-interrupt")
    wait_for(lambda: len(sites.transfers()) == 2)
    wait_for(lambda: _output(sites).count(" transfers ") == 2)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert sites.transfers()[1]["fatal_error"]["code"] == "CANCELED"
    held.clear()
    assert sites.push().last["files_moved"] == 1
    assert sites.same()
    assert sites.ours() == []


@pytest.mark.parametrize("end", ["expired", "cancelled"])
def test_a_task_that_expires_or_is_cancelled_is_reported(sites: GlobusSites, end: str) -> None:
    held = sites.globus.fault("held", after=4)
    process = _start(sites)
    task = _wait_for_task(sites)
    wait_for(lambda: sites.transfers()[0]["files_transferred"] == 4)
    sites.globus.expire(task=task) if end == "expired" else sites.globus.cancel(task)
    assert process.wait(60) == 5
    last = json.loads((sites.hibali.home.folder / "0.out").read_text().splitlines()[-1])
    assert last["code"] == f"task-{end}"
    held.clear()
    answer = sites.push()
    assert (answer.last["files_moved"], answer.last["files_kept"]) == (FILES - 4, 4)
    assert sites.same()
    assert sites.ours() == []


def test_the_same_transfer_of_another_ledger_is_waited_for(sites: GlobusSites, tmp_path: Path) -> None:
    """Check a collection that only Globus reaches: files get final names there, so two submissions may be identical."""
    vault = sites.add_vault(tmp_path / "vault")
    held = sites.globus.fault("held")
    process = sites.hibali.start("push", sites.here / "data", "vault:data", "--json")
    task = _wait_for_task(sites)
    process.send_signal(signal.SIGKILL)
    process.wait()
    other = tmp_path / "other state"
    other.mkdir(mode=0o700)
    second = sites.hibali.start(
        "push", sites.here / "data", "vault:data", "--json", env={"HIBALI_STATE": str(other)}
    )
    wait_for(lambda: f"waiting until task {task} ends" in _output(sites))
    held.clear()
    assert second.wait(60) == 0
    assert read_tree(vault / "data") == read_tree(sites.here / "data")

    # files of the first task that were not verified are verified, and not sent again
    answer = sites.push(to="vault:data")
    assert (answer.last["files_moved"], answer.last["checked_by"]) == (FILES, "globus")
    assert sum(one["sync_level"] is None for one in sites.transfers()) == 2


def test_a_folder_with_more_names_than_globus_lists_is_reported(sites: GlobusSites, tmp_path: Path) -> None:
    """Check that the folder and its contents are reported, all other files are transferred, and nothing is deleted."""
    vault = sites.add_vault(tmp_path / "vault")
    (vault / "large").mkdir()
    for number in range(12):
        (vault / "large" / f"file {number}").write_bytes(b"x")
    (vault / "small").write_bytes(b"y")
    sites.globus.settings(folder_limit=10)
    answer = sites.move("pull", "vault:", sites.here / "back", "--delete", code=6)
    assert "folder-too-large" in {line.get("code") for line in answer.lines}
    assert "large" in str(answer)
    assert (sites.here / "back" / "small").read_bytes() == b"y"
