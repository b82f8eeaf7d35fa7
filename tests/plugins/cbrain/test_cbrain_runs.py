"""Test runs at a CBRAIN portal (a double), from an invocation to verified outputs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from typing import Any

import pytest

from tests.end_to_end.run_tools import DESCRIPTOR, Bench
from tests.services import cbrain as double
from tests.services.cbrain import CbrainDouble
from tests.services.cbrain_http import LostAnswer

KILLS = int(os.environ.get("HIBALI_CBRAIN_KILLS", "4"))  # 100 for the figures of the closing notes


class Portal:
    """A bench whose site is a portal that has the tool and one input."""

    def __init__(self, hibali: Any, portal: CbrainDouble, descriptor: dict[str, Any] | None = None) -> None:
        self.double = portal
        self.provider = portal.add_provider("lab")
        portal.add_userfile(self.provider, "in.txt", b"hello\n")
        self.tool = portal.add_tool("Count Letters", descriptor or DESCRIPTOR)
        portal.runner = self.count
        self.bench = Bench(hibali)
        self.bench.add_site(
            "mcgill",
            f'kind = "cbrain"\n[sites.mcgill.cbrain]\nurl = "{portal.url}"\nlogin = "me"\n'
            f'password_command = ["echo", "{double.PASSWORD}"]\n[sites.mcgill.limits]\npoll = "1s"\nsettling = "2s"',
        )

    @staticmethod
    def count(running: double.RunningTask) -> double.Outputs:
        _name, content = running.inputs[running.invoke["in"]]
        assert isinstance(content, bytes)
        if running.invoke["code"]:
            raise double.TaskFailedError
        return {"out_file": [(f"out-{running.id}.txt", content)]}

    def answers(self, **values: Any) -> str:
        return self.bench.answers(**{"in": "mcgill:@lab/in.txt", **values})


@pytest.fixture
def portal(hibali: Any, cbrain: CbrainDouble) -> Portal:
    return Portal(hibali, cbrain)


def test_a_run_goes_from_a_userfile_to_verified_outputs(portal: Portal) -> None:
    bench = portal.bench
    ended = bench.run(portal.answers(), "--wait", exit=0).last
    assert (ended["state"], ended["scheduler"]) == ("SUCCEEDED", "cbrain")
    [task] = portal.double.tasks.values()
    assert task.description.split()[0] == ended["id"]
    assert task.params["invoke"]["in"] == int(task.params["interface_userfile_ids"][0])
    receipt = bench.hibali("runs", "collect", ended["id"], "results", "--json", exit=0).last
    assert (receipt["files"], receipt["proof_moved"] is not None) == (1, True)
    assert (bench.folder / "results" / f"out-{task.id}.txt").read_bytes() == b"hello\n"
    assert portal.double.refused == []


def test_a_local_input_is_copied_to_the_portal_first(portal: Portal) -> None:
    ended = portal.bench.run(portal.bench.answers(), "--wait", exit=0).last
    assert ended["state"] == "SUCCEEDED"
    [copied] = portal.double.named(portal.provider)["input.txt"]
    [task] = portal.double.tasks.values()
    assert task.params["interface_userfile_ids"] == [copied.id]
    again = portal.bench.run(portal.bench.answers(), "--new", "--wait", exit=0).last
    assert again["state"] == "SUCCEEDED"
    assert len(portal.double.named(portal.provider)["input.txt"]) == 1
    assert portal.double.refused == []


def test_a_failed_task_is_exit_7(portal: Portal) -> None:
    portal.bench.run(portal.answers(code=3), "--wait", exit=7)
    [run_id] = portal.bench.run_ids()
    failed = portal.bench.hibali("runs", "show", run_id, "--json", exit=0).last
    assert failed["state"] == "FAILED"
    [task] = failed["tasks"]
    assert task["native"] == "Failed On Cluster"


def test_a_task_is_cancelled(portal: Portal) -> None:
    portal.double.automatic = False
    started = portal.bench.hibali(*portal.bench.line(portal.answers()), exit=0).out.decode().strip()
    assert portal.bench.hibali("runs", "show", started, "--json", exit=0).last["state"] == "WAITING"
    cancelled = portal.bench.hibali("runs", "cancel", started, "--json", exit=0).last
    assert cancelled["state"] == "CANCELLED"
    [task] = portal.double.tasks.values()
    assert task.status == "Terminated"


@pytest.mark.heavy
def test_a_run_after_another_one_is_created_when_that_has_ended(portal: Portal) -> None:
    portal.double.automatic = False
    first = portal.bench.hibali(*portal.bench.line(portal.answers()), exit=0).out.decode().strip()
    line = portal.bench.line(portal.answers(say="later"), "--after", first)
    portal.bench.hibali(*line, exit=5)
    assert len(portal.double.tasks) == 1
    portal.double.automatic = True
    portal.bench.hibali("runs", "wait", first, exit=0)
    portal.bench.hibali(*line, "--wait", exit=0)
    assert len(portal.double.tasks) == 2


@pytest.mark.parametrize(
    "more", [("--hold",), ("--image", "other.tar"), ("--each", "rows.csv"), ("--pilot",)]
)
def test_what_cbrain_cannot_do_is_refused_before_anything_starts(
    portal: Portal, more: tuple[str, ...]
) -> None:
    (portal.bench.folder / "rows.csv").write_text("say\na\nb\n")
    refused = portal.bench.hibali(*portal.bench.line(portal.answers(), *more))
    assert refused.exit in {2, 3, 8}
    assert portal.double.tasks == {}
    assert portal.bench.run_ids() == []


def test_a_tool_with_another_descriptor_is_named_with_the_difference(
    hibali: Any, cbrain: CbrainDouble
) -> None:
    portal = Portal(hibali, cbrain, {**DESCRIPTOR, "description": "Another text.", "custom": {"cbrain:x": 1}})
    started = portal.bench.hibali(*portal.bench.line(portal.answers(), "--wait"), exit=0)
    assert b"different: custom, description" in started.err


def test_a_pipeline_is_added_from_the_portal_with_its_own_keys(portal: Portal) -> None:
    descriptor = {
        **DESCRIPTOR,
        "name": "mask",
        "custom": {"cbrain:author": "me", "cbrain:inherits-from-class": "X"},
    }
    tool = portal.double.add_tool("mask", descriptor)
    config = portal.bench.hibali.home.config
    config.write_text(
        f'{config.read_text()}[catalogue]\ncbrain = "{portal.double.url}"\norigins = ["{portal.double.url}"]\n'
    )
    portal.bench.hibali("pipelines", "add", f"cbrain:{tool.config_id}", exit=0)
    [kept] = portal.bench.hibali.home.state.rglob("mask/1.0/*.json")
    assert json.loads(kept.read_bytes())["custom"] == descriptor["custom"]


@pytest.mark.heavy
def test_kills_between_a_request_and_its_answer_leave_one_task_a_run(portal: Portal) -> None:
    """The portal kills the client when it has the request: before it executes it, or before it answers."""
    bench = portal.bench
    answering = portal.double.answer
    victim: list[subprocess.Popen[bytes]] = []
    armed = threading.Event()

    def answer(request: Any) -> Any:
        if (request.method, request.path) != ("POST", "/tasks") or not armed.is_set():
            return answering(request)
        armed.clear()
        if number % 2:
            answering(request)
        victim[0].send_signal(signal.SIGKILL)
        raise LostAnswer

    portal.double.answer = answer  # type: ignore[method-assign]
    for number in range(KILLS):
        line = bench.line(portal.answers(say=f"{number}"))
        process = bench.hibali.start(*line)
        victim[:] = [process]
        armed.set()
        process.wait()
        assert process.returncode == -signal.SIGKILL
    for number in range(KILLS):
        bench.hibali(*bench.line(portal.answers(say=f"{number}"), "--wait"), exit=0)
    marks = [task.description.split()[0] for task in portal.double.tasks.values()]
    assert (len(marks), len(set(marks))) == (KILLS, KILLS)
    assert portal.double.refused == []
