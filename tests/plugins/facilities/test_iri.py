"""Test how the resources of a run become the specification of a job of the IRI Facility API."""

from __future__ import annotations

import pytest

from hibali.errors import UsageError
from hibali_plugins.facilities.iri.client import JobRecord
from hibali_plugins.facilities.iri.service import SYSTEM, _specification, _status_of
from hibali_plugins.facilities.script_jobs import Script
from runs.schedulers.base import Phase, Resources
from tests.support.rest_sites import NAME, SERVICES, SiteCommands, open_site


def script(*lines: str, path: bytes = b"/home/me/.hibali/runs/1/job.sh") -> Script:
    head = "".join(f"{line}\n" for line in lines)
    return Script(path, f"#!/bin/sh\n{head}echo\n".encode(), hold=False)


def test_resources_are_named_as_in_psij() -> None:
    wanted = Resources(
        cores=4, memory_megabytes=2048, seconds=600, nodes=2, tasks=8, gpus=1, account="brain", partition="regular",
        directives=("constraint=gpu",),
    )  # fmt: skip
    found = _specification("mark", script(*SYSTEM.directives(wanted)))
    assert found["resources"] == {
        "exclusive_node_use": False,
        "node_count": 2,
        "process_count": 8,
        "cpu_cores_per_process": 4,
        "gpu_cores_per_process": 1,
        "memory": 2048 * 1024 * 1024,
    }
    assert found["attributes"] == {
        "duration": 600,
        "queue_name": "regular",
        "account": "brain",
        "custom_attributes": {"constraint": "gpu"},
    }
    assert (found["name"], found["directory"]) == ("mark", "/home/me/.hibali/runs/1")


@pytest.mark.parametrize("directive", ["constraint", "constraint=$(id)", "a b=c", "memory=much", "x='"])
def test_directives_that_are_no_setting_are_refused(directive: str) -> None:
    with pytest.raises(UsageError) as raised:
        SYSTEM.directives(Resources(directives=(directive,)))
    assert raised.value.code == "bad-directive"


def test_a_script_whose_path_a_shell_could_misread_is_refused() -> None:
    with pytest.raises(UsageError) as raised:
        _specification("mark", script(path=b"/home/my files/job.sh"))
    assert raised.value.code == "unsafe-word"


@pytest.mark.parametrize(
    ("state", "code", "phase"),
    [
        ("new", None, Phase.WAITING),
        ("queued", None, Phase.WAITING),
        ("held", None, Phase.WAITING),
        ("active", None, Phase.RUNNING),
        ("completed", 0, Phase.ENDED),
        ("failed", 3, Phase.ENDED),
        ("failed", None, Phase.KILLED),
        ("canceled", None, Phase.CANCELLED),
        ("completed-with-joy", 0, Phase.RUNNING),
    ],
)
def test_states_are_mapped_and_unknown_ones_are_no_end(state: str, code: int | None, phase: Phase) -> None:
    assert _status_of(JobRecord("1", "mark", state, "", code)).phase is phase


@pytest.mark.heavy
@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("path", ["~", "~/data"])
def test_an_expired_token_is_named_where_the_home_folder_is_needed(
    request: pytest.FixtureRequest, service: str, path: str
) -> None:
    site = open_site(request, service)
    commands = SiteCommands(request.getfixturevalue("hibali"), site.table().partition("client_id")[0])
    login = 'token_command = ["echo", "an-old-token"]\n'
    commands.set_table(f"{commands.table}{login}")
    site.double.accepts = lambda token: token != "an-old-token"
    refused = commands.hibali("ls", f"{NAME}:{path}", "--json", exit=4).last
    assert refused["code"] == "expired"
    assert "token_command" in refused["hint"]
