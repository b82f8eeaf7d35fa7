"""Test slurmrestd: fields and answers of all versions of its API, and runs over the real one."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any, cast

import pytest

from hibali.config.settings import load_sites
from hibali.errors import (
    AccessError,
    HibaliError,
    IncompleteError,
    NotFoundError,
    TryLaterError,
    UsageError,
)
from hibali.http.client import Response
from hibali.http.rest import Call
from hibali.request_limits import RequestLimit
from hibali_plugins.facilities.slurmrestd.client import SlurmrestdClient
from hibali_plugins.facilities.slurmrestd.records import (
    accounted_status,
    error_in,
    job_of,
    number_of,
    queued_status,
    task_statuses,
)
from hibali_plugins.facilities.slurmrestd.service import SlurmrestdJobs
from hibali_plugins.facilities.slurmrestd.settings import SlurmrestdSettings
from hibali_plugins.facilities.slurmrestd.submission import describe
from runs.request import compute_site
from runs.schedulers.base import TIME_LIMIT, Job, Phase, Resources, Status
from tests.end_to_end.run_tools import Bench
from tests.services import rest
from tests.services.rest import Reply, Request, RestDouble, Route
from tests.services.slurmrestd import SlurmrestdRelay, user_name
from transfers.remote.host import RemoteHost
from transfers.stores.bearer.settings import BearerSettings

LINES = [
    "--account=brain",
    "-p short,long",
    "--time=1-02:03:04",
    "--nodes=2",
    "--ntasks=8",
    "--cpus-per-task=4",
    "--mem=2048M",
    "--gres=gpu:2",
    "--signal=B:TERM@60",
    "-C haswell&ssd",
    "-qdebug",
    "--exclusive",
]
SAME = {
    "account": "brain",
    "partition": "short,long",
    "nodes": "2",
    "tasks": 8,
    "cpus_per_task": 4,
    "constraints": "haswell&ssd",
    "qos": "debug",
    "name": "mark",
}


def test_lines_are_fields_of_version_38() -> None:
    assert describe(LINES, {"name": "mark"}, {"PATH": "/bin"}, 38) == {
        **SAME,
        "time_limit": 26 * 60 + 4,
        "memory_per_node": 2048,
        "gres": "gpu:2",
        "signal": "B:TERM@60",
        "exclusive": "exclusive",
        "environment": {"PATH": "/bin"},
        "no_requeue": True,
        "open_mode": "append",
        "kill_on_invalid_dependency": True,
    }


def test_lines_are_fields_of_later_versions() -> None:
    """The names and types of JOB_DESC_MSG (data_parser/v0.0.40 to v0.0.46)."""
    assert describe(LINES, {"name": "mark"}, {"PATH": "/bin"}, 44) == {
        **SAME,
        "time_limit": {"set": True, "infinite": False, "number": 26 * 60 + 4},
        "memory_per_node": {"set": True, "infinite": False, "number": 2048},
        "tres_per_node": "gres/gpu:2",
        "kill_warning_signal": "TERM",
        "kill_warning_delay": {"set": True, "infinite": False, "number": 60},
        "kill_warning_flags": ["BATCH_JOB"],
        "shared": ["none"],
        "environment": ["PATH=/bin"],
        "requeue": False,
        "open_mode": ["APPEND"],
        "flags": ["KILL_INVALID_DEPENDENCY"],
    }


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("90", 90),
        ("90:01", 91),
        ("1:30:00", 90),
        ("1-0", 1440),
        ("1-1:30", 1530),
        ("2-00:00:30", 2881),
        ("5:00", 5),
    ],
)
def test_time_limits_are_minutes(text: str, minutes: int) -> None:
    assert describe([f"--time={text}"], {}, {}, 38)["time_limit"] == minutes


@pytest.mark.parametrize(
    ("text", "megabytes"), [("100", 100), ("4G", 4096), ("1T", 1048576), ("1500K", 2), ("2gb", 2048)]
)
def test_memory_is_megabytes(text: str, megabytes: int) -> None:
    assert describe([f"--mem={text}"], {}, {}, 38)["memory_per_node"] == megabytes


@pytest.mark.parametrize(
    "line",
    ["--export=ALL", "--time=soon", "--mem=-1", "--ntasks=many", "-Z", "hello", "--time", "--time=1:2:3:4"],
)
def test_a_line_without_a_field_is_refused(line: str) -> None:
    with pytest.raises(UsageError) as raised:
        describe([line], {}, {}, 38)
    assert raised.value.code == "bad-directive"


def test_a_later_line_and_hibalis_own_fields_come_first() -> None:
    assert describe(["--qos=a", "--qos=b", "--account=x"], {"account": "y"}, {}, 38)["qos"] == "b"
    assert describe(["--account=x"], {"account": "y"}, {}, 38)["account"] == "y"
    together = describe(["--gres=tmp:100G", "--gpus-per-node=2"], {}, {}, 38)
    assert together["gres"] == "tmp:100G,gpu:2"
    with pytest.raises(UsageError):
        describe(["--signal=TERM@x"], {}, {}, 44)


def number(value: int) -> dict[str, Any]:
    return {"set": True, "infinite": False, "number": value}


UNSET = {"set": False, "infinite": False, "number": 0}


@pytest.mark.parametrize(
    ("value", "found"),
    [(3, 3), (None, None), (number(3), 3), (UNSET, None), (True, None), ("3", None), ({}, None)],
)
def test_numbers_of_all_versions(value: Any, found: int | None) -> None:
    assert number_of(value) == found


@pytest.mark.parametrize(
    ("state", "reason", "status"),
    [
        ("PENDING", "Resources", Status(Phase.WAITING, "PENDING", "Resources")),
        (["PENDING"], "None", Status(Phase.WAITING, "PENDING")),
        (["RUNNING", "CONFIGURING", "POWER_UP_NODE"], "None", Status(Phase.WAITING, "CONFIGURING")),
        (["COMPLETED", "COMPLETING"], "None", Status(Phase.RUNNING, "COMPLETING")),
        (["COMPLETED", "UPDATE_DB"], "None", Status(Phase.ENDED, "COMPLETED")),
        (["FAILED", "LAUNCH_FAILED"], "None", Status(Phase.BROKEN, "LAUNCH_FAILED")),
        ("TIMEOUT", "TimeLimit", Status(Phase.KILLED, "TIMEOUT", TIME_LIMIT)),
    ],
)
def test_states_of_all_versions(state: Any, reason: str, status: Status) -> None:
    assert queued_status({"job_state": state, "state_reason": reason, "exit_code": 0}) == status


@pytest.mark.parametrize("state", [[], None, 7, {}, ["THINKING"], [["x"]]])
def test_a_state_that_is_not_known_is_no_end(state: Any) -> None:
    found = queued_status({"job_state": state})
    assert (found.phase, bool(found.reason)) == (Phase.RUNNING, True)


@pytest.mark.parametrize(
    "code",
    [
        9,  # of slurmctld in v0.0.38, as wait(2) has it
        {"status": "SIGNALED", "return_code": 0, "signal": {"signal_id": 9, "name": "KILL"}},
        {"status": ["SIGNALED"], "return_code": UNSET, "signal": {"id": number(9), "name": "KILL"}},
    ],
)
def test_a_script_that_a_signal_ended_was_killed(code: Any) -> None:
    assert queued_status({"job_state": "FAILED", "exit_code": code}) == Status(
        Phase.KILLED, "FAILED", "signal 9"
    )
    exited = {"status": ["ERROR"], "return_code": number(3), "signal": {"id": UNSET, "name": ""}}
    assert queued_status({"job_state": ["FAILED"], "exit_code": exited}).phase is Phase.ENDED


def test_the_accounting_of_a_later_version() -> None:
    memory = {"type": "mem", "name": "", "id": 2}
    record = {
        "state": {"current": ["OUT_OF_MEMORY"], "reason": "None"},
        "exit_code": {
            "status": ["SIGNALED"],
            "return_code": number(0),
            "signal": {"id": number(125), "name": ""},
        },
        "tres": {"requested": [{"type": "cpu", "count": 1}, {**memory, "count": 50}]},
        "steps": [
            {
                "tres": {"requested": {"max": [{**memory, "count": 60_000_000}]}},
                "time": {"total": {"seconds": 3, "microseconds": 500000}},
            },
            {"tres": {"requested": {"max": [{**memory, "count": 1000}]}}},
            {"tres": None},
        ],
        "job_id": 7,
        "array": {"job_id": 5, "task_id": number(2)},
    }
    found = accounted_status(record)
    assert (found.phase, found.native, found.cpu_seconds) == (Phase.KILLED, "OUT_OF_MEMORY", 3.5)
    assert (found.memory_bytes, found.reason) == (
        60_000_000,
        "out of memory: used 60.0 MB, requested 52.4 MB",
    )
    assert job_of(record) == "5"


def test_tasks_that_wait_are_in_one_record() -> None:
    waiting = {"job_state": "PENDING", "array_job_id": 5, "array_task_id": None}
    running = {"job_state": ["RUNNING"], "array_job_id": number(5), "array_task_id": number(2)}
    found = task_statuses([{**waiting, "array_task_string": "1,3-5,9%2"}, running])
    assert {index: status.native for index, status in found.items()} == {
        **dict.fromkeys((1, 3, 4, 5, 9), "PENDING"),
        2: "RUNNING",
    }
    cut = task_statuses([{**waiting, "array_task_string": "4,6,..."}, running])
    assert (cut[4].native, cut[900].native, cut[2].native, 5 in cut) == (
        "PENDING",
        "PENDING",
        "RUNNING",
        False,
    )


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ({"errors": []}, (0, "")),
        ({"errors": [{"error_code": 2000, "error": "Invalid  partition"}]}, (2000, "Invalid partition")),
        ({"errors": [{"error_number": 1007, "error": "a", "description": "b"}, {"error": "a"}]}, (0, "a; b")),
        ({"errors": "no"}, (0, "")),
        ([], (0, "")),
    ],
)
def test_errors_of_all_versions(content: Any, found: tuple[int, str]) -> None:
    assert error_in(json.dumps(content).encode()) == found


class Gateway(RestDouble):
    """Offers versions of the API, and has no jobs: for the choice of a version, and for `code`, with which 25.11.7 refuses to cancel."""

    def __init__(self, *versions: str, old: bool = False, code: int = 0) -> None:
        self.versions, self.old, self.code = versions, old, code
        self.accounting: tuple[int, Any] = (200, {"jobs": [], "errors": []})
        self.asked: list[str] = []
        super().__init__()

    def open_paths(self) -> str:
        return ".*"

    def routes(self) -> list[tuple[str, str, Route]]:
        return [("GET", ".*", self._answer), ("DELETE", ".*", self._cancel)]

    def _cancel(self, request: Request, found: Any) -> Reply:
        del request, found
        error = {"string": "as Slurm says it", "code": self.code, "message": "as Slurm says it"}
        return Reply(200, {"status": [{"error": error, "step_id": "5"}], "errors": [], "warnings": []})

    def _answer(self, request: Request, found: Any) -> Reply:
        del found
        self.asked.append(request.path)
        self.headers = dict(request.headers)
        if request.path == ("/openapi" if self.old else "/openapi/v3"):
            return Reply(200, {"paths": {f"/slurm/{each}/job/submit": {} for each in self.versions}})
        if "/slurmdb/" in request.path:
            return Reply(*self.accounting)
        if request.path.endswith("/jobs"):
            return Reply(200, {"jobs": [], "errors": []})
        return Reply(404, b"not found")


def client_of(url: str, *command: str, **more: Any) -> SlurmrestdClient:
    bearer = BearerSettings(token_command=command or ("echo", "SLURM_JWT=planted"))
    return SlurmrestdClient(
        SlurmrestdSettings(url=url, bearer=bearer, **more), "far", RequestLimit("far", 0, 0)
    )


@pytest.mark.parametrize(
    ("versions", "old", "chosen"),
    [
        (("v0.0.36", "v0.0.37", "v0.0.38"), False, 38),
        (("v0.0.38", "v0.0.39"), True, 38),
        (("v0.0.39", "v0.0.40", "v0.0.41"), False, 41),
        (("v0.0.44", "v0.0.99"), False, 44),
    ],
)
def test_the_highest_version_that_both_know_is_used(
    versions: tuple[str, ...], *, old: bool, chosen: int
) -> None:
    gateway = Gateway(*versions, old=old)
    client = client_of(gateway.url)
    assert client.jobs() == []
    assert gateway.asked[-1] == f"/slurm/v0.0.{chosen}/jobs"
    client.close()
    gateway.close()


@pytest.mark.parametrize(("seconds", "used"), [(30, "second"), (90, "first"), (-30, "second")])
def test_a_token_is_renewed_before_it_ends(tmp_path: Path, seconds: int, used: str) -> None:
    """A 22.05 does not tell that a token has expired."""
    claims = base64.urlsafe_b64encode(json.dumps({"exp": time.time() + seconds, "sun": "me"}).encode())
    (tmp_path / "first").write_bytes(b"SLURM_JWT=first." + claims.rstrip(b"=") + b".x\n")
    script = f"cd {tmp_path}; cat first 2>/dev/null && mv first used || echo second"
    gateway = Gateway("v0.0.38")
    assert client_of(gateway.url, "sh", "-c", script).jobs() == []
    assert gateway.headers["X-SLURM-USER-TOKEN"].partition(".")[0] == used
    gateway.close()


def test_a_token_that_ends_soon_is_used_while_there_is_no_other() -> None:
    token = f"a.{base64.urlsafe_b64encode(json.dumps({'exp': time.time() + 30}).encode()).decode()}.x"
    gateway = Gateway("v0.0.38")
    assert client_of(gateway.url, "echo", token).jobs() == []
    gateway.close()


@pytest.mark.parametrize("url", ["/slurm/v0.0.39", "/slurm/v0.0.37"])
def test_a_version_in_the_url_that_hibali_does_not_know_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match=r"no version of its API that hibali knows"):
        client_of(f"http://127.0.0.1:9{url}").jobs()


@pytest.mark.parametrize(
    ("path", "status", "error", "kind"),
    [
        ("/job/submit", 500, {"error_code": 2000, "error": "Invalid partition name specified"}, UsageError),
        ("/job/submit", 500, {"error_code": 5005, "error": "Zero Bytes were transmitted or received"}, None),
        ("/job/submit", 500, {"error_number": -1, "error": "Unspecified error"}, None),
        ("/job/submit", 500, {"error_code": 5004, "error": "Socket timed out on send/recv operation"}, None),
        ("/job/submit", 502, {"error_number": 1900, "error": "Unable to contact slurm controller (connect failure)"}, TryLaterError),
        ("/job/submit", 500, {"error_code": 2009, "error": "Job submit limit"}, TryLaterError),
        ("/job/submit", 400, {"error_code": 9001, "error": "Failure during parsing"}, UsageError),
        ("/job/submit", 511, {"error_number": 1007, "error": "Protocol authentication error"}, AccessError),
        ("/job/5", 404, {"error_number": 2017, "error": "Invalid job id specified"}, NotFoundError),
        ("/job/5", 500, {"error_number": 2002, "error": "Access/permission denied"}, AccessError),
        ("/job/5", 500, {"error_number": -1, "error": "Unspecified error"}, TryLaterError),
        ("/job/5", 500, {"error_number": 2021, "error": "Job is no longer pending"}, IncompleteError),
        ("/job/5", 404, {"error": "no such path"}, TryLaterError),
    ],
)  # fmt: skip
def test_what_an_error_means(
    path: str, status: int, error: dict[str, Any], kind: type[HibaliError] | None
) -> None:
    """None leaves open whether a job was created, which is then searched for."""
    response = Response(status, {}, json.dumps({"errors": [error]}).encode())
    found = client_of("http://127.0.0.1:9/slurm/v0.0.38")._judge(
        Call("POST", f"/slurm/v0.0.38{path}"), response
    )
    assert found is None if kind is None else type(found) is kind


def test_a_version_that_hibali_does_not_know_is_named() -> None:
    gateway = Gateway("v0.0.99")
    with pytest.raises(UsageError, match=r"v0\.0\.99"):
        client_of(gateway.url).jobs()
    gateway.close()


def test_a_url_with_a_version_and_another_header_is_used_as_it_is() -> None:
    gateway = Gateway()
    client = client_of(f"{gateway.url}/slurm/open/v0.0.43/defiant", header="Authorization")
    assert (client.jobs(), client.version) == ([], 43)
    assert client.accounted("/jobs", {}) == []
    assert gateway.asked == ["/slurm/open/v0.0.43/defiant/jobs", "/slurmdb/open/v0.0.43/defiant/jobs"]
    assert gateway.headers["Authorization"] == "planted"
    gateway.close()


_DOWN = {
    "errors": [
        {"error_number": 7000, "error": "Unable to connect to database", "description": "as Slurm says"}
    ]
}
_NOTHING = {"errors": [{"error_number": 9003, "error": "Nothing found"}]}


@pytest.mark.parametrize(
    ("status", "answer", "kind"),
    [
        (200, {"jobs": [], "errors": []}, None),
        (200, _NOTHING, None),
        (404, b"not found", None),
        (404, _NOTHING, None),
        (500, _NOTHING, None),
        (200, _DOWN, TryLaterError),
        (500, _DOWN, TryLaterError),
        (500, b"", TryLaterError),
        (200, {"jobs": 5}, TryLaterError),
        (403, b"denied", AccessError),
        (500, {"errors": [{"error_number": 2002, "error": "Access/permission denied"}]}, AccessError),
    ],
    ids=range(11),
)
def test_an_accounting_that_does_not_answer_is_no_missing_job(
    status: int, answer: Any, kind: type[HibaliError] | None
) -> None:
    """None: the job certainly does not exist, also where there is no accounting, which is not offered (404)."""
    gateway = Gateway()
    gateway.accounting = status, answer
    client = client_of(f"{gateway.url}/slurm/v0.0.44")
    jobs = SlurmrestdJobs(client, cast("RemoteHost", None), None)
    if kind is None:
        assert jobs.find("mark", "2026-01-01") is None
    else:
        with pytest.raises(kind):
            jobs.find("mark", "2026-01-01")
        assert jobs.account(["5"], 10.0) is None
    gateway.close()


@pytest.mark.parametrize(("code", "refused"), [(0, False), (2017, False), (2021, False), (2002, True)])
def test_a_refusal_to_cancel_of_a_later_version(code: int, *, refused: bool) -> None:
    gateway = Gateway(code=code)
    client = client_of(f"{gateway.url}/slurm/v0.0.44")
    if refused:
        with pytest.raises(AccessError, match="Slurm denied access: as Slurm says it"):
            client.cancel("5")
    else:
        client.cancel("5")
    gateway.close()


def test_a_url_that_is_not_that_of_slurmrestd_makes_no_job_unknown() -> None:
    gateway = Gateway()
    with pytest.raises(TryLaterError, match="status 404"):
        client_of(f"{gateway.url}/slurm/v0.0.40").job("5")
    gateway.close()


def site_of(hibali_home: Any, table: str) -> Any:
    hibali_home.config.write_text(f"version = 1\n[sites.far]\n{table}")
    hibali_home.config.chmod(0o600)
    return load_sites(str(hibali_home.config)).site("far")


def test_a_site_needs_a_url_and_a_source_of_tokens(hibali_home: Any) -> None:
    with pytest.raises(HibaliError, match="needs a source of tokens"):
        site_of(
            hibali_home, 'kind = "local"\n[sites.far.scheduler]\nname = "slurmrestd"\nurl = "https://x.org"\n'
        )
    with pytest.raises(HibaliError, match="https"):
        site_of(
            hibali_home,
            'kind = "local"\n[sites.far.scheduler]\nname = "slurmrestd"\nurl = "http://x.org"\ntoken_command = ["x"]\n',
        )


def test_jobs_of_slurm_and_of_slurmrestd_have_the_same_lines(hibali_home: Any) -> None:
    table = 'kind = "local"\n[sites.far.scheduler]\nname = "slurmrestd"\nurl = "https://x.org"\ntoken_command = ["x"]\n'
    system = compute_site(site_of(hibali_home, table)).scheduler
    assert system.directives(Resources(cores=2, seconds=60)) == (
        "#SBATCH --time=0-00:01:00",
        "#SBATCH --cpus-per-task=2",
    )
    [text] = system.submit_argv(Job("mark", "/r/job.sh", tasks=3, after=("1", "2_3"), hold=True))
    assert json.loads(text) == {
        "script": "/r/job.sh",
        "array": "1-3",
        "dependency": "afterok:1:2_3",
        "hold": True,
    }


# The real slurmrestd


LOCAL = 'kind = "local"\n'


class Place:
    """A bench whose jobs run through slurmrestd."""

    def __init__(self, hibali: Any, relay: SlurmrestdRelay, table: str = LOCAL) -> None:
        self.relay = relay
        self.bench = Bench(hibali)
        self.add(relay.settings(), table)

    def add(self, settings: str, table: str = LOCAL) -> None:
        limits = '[sites.far.limits]\npoll = "1s"\nsettling = "3s"\n'
        self.bench.hibali.home.config.unlink(missing_ok=True)
        self.bench.add_site("far", f"{table}[sites.far.scheduler]\n{settings}{limits}")

    def job_of(self, run: dict[str, Any]) -> dict[str, str]:
        return next(each for each in self.relay.jobs.table().values() if each["JobName"] == run["id"])


@pytest.fixture
def place(slurmrestd: SlurmrestdRelay, hibali: Any) -> Place:
    return Place(hibali, slurmrestd)


@pytest.mark.heavy
def test_resources_a_hold_and_a_dependency_reach_slurm(place: Place) -> None:
    bench = place.bench
    place.add(place.relay.settings(), f"{LOCAL}[sites.far.gpus]\nper_node = 2\n")
    wanted = ("--cores", "2", "--memory", "100M", "--time", "10m", "--gpus", "1")
    first = bench.run(bench.answers(), *wanted, "--hold", exit=0).last
    job = place.job_of(first)
    assert (job["JobState"], job["Reason"], job["TimeLimit"]) == ("PENDING", "JobHeldUser", "00:10:00")
    assert (job["CPUs/Task"], job["MinMemoryNode"], job["Requeue"]) == ("2", "100M", "0")
    assert "gpu:1" in job["TresPerNode"]
    after = bench.run(bench.answers(say="second"), "--after", first["id"], exit=0).last
    assert f"afterok:{job['JobId']}" in place.job_of(after)["Dependency"]
    bench.hibali("runs", "release", first["id"], exit=0)
    for each in (first, after):
        bench.hibali("runs", "wait", each["id"], exit=0)


@pytest.mark.heavy
def test_a_cancelled_array_and_its_tasks(place: Place) -> None:
    bench = place.bench
    (bench.folder / "tasks.csv").write_text("say\n" + "".join(f"task {number}\n" for number in range(12)))
    begun = bench.run(bench.answers(sleep=600), "--each", "tasks.csv", "--cores", "4", exit=0).last
    assert [body["job"]["array"] for body in place.relay.bodies] == ["1-12"]
    deadline = time.monotonic() + 60
    while (shown := bench.hibali("runs", "show", begun["id"], "--json", exit=0).last)["state"] != "RUNNING":
        assert time.monotonic() < deadline
    states = [each["state"] for each in shown["tasks"]]
    assert set(states) == {"RUNNING", "WAITING"}, states
    bench.hibali("runs", "cancel", begun["id"], exit=0)
    bench.hibali("runs", "wait", begun["id"], exit=7)
    assert not place.relay.running()


@pytest.mark.heavy
def test_refusals_of_slurm_have_their_reason_and_exit_code(place: Place) -> None:
    bench, relay = place.bench, place.relay
    refused = bench.run(bench.answers(), "--partition", "nowhere", exit=2)
    assert b"nvalid partition name specified" in refused.err + refused.out
    token = relay.server.token(-60)
    expired = relay.settings().partition("token_command")[0] + 'token_variable = "TOKEN"\n'
    place.add(expired)
    for line in (bench.line(bench.answers(say="2")), ("sites", "check", "far")):
        ended = bench.hibali(*line, exit=4, env={"TOKEN": token})
        assert b"there is no newer one" in ended.err + ended.out
        assert token.rpartition(".")[2].encode() not in ended.err + ended.out
    place.add(expired)
    others = relay.server.token(user="nobody")
    wrong = bench.hibali(*bench.line(bench.answers(say="3")), exit=4, env={"TOKEN": others})
    said = (
        f"the token is for nobody, not for {user_name()}".encode(),
        b"there is no newer one",
    )  # later Slurms
    assert any(each in wrong.err + wrong.out for each in said)
    assert not relay.running()


@pytest.mark.heavy
def test_checks_name_the_scheduler(place: Place) -> None:
    assert b"slurmrestd answers" in place.bench.hibali("sites", "check", "far", exit=0).out
    assert b"slurmrestd answers" in place.bench.hibali("doctor", "far").out
    assert place.bench.hibali("sites", "usage", "far", exit=0)


@pytest.mark.heavy
def test_a_run_at_a_site_with_sftp_alone(slurmrestd: SlurmrestdRelay, hibali: Any, sftp_server: Any) -> None:
    words = ", ".join(f'"{word}"' for word in sftp_server.command)
    work = slurmrestd.home / "work"
    table = (
        f'kind = "ssh"\nwork = "{work}"\n[sites.far.ssh]\nhost = "{sftp_server.host}"\ncommand = [{words}]\n'
    )
    place = Place(hibali, slurmrestd, table)
    ended = place.bench.run(place.bench.answers(), "--wait", exit=0).last
    assert (ended["state"], ended["scheduler"]) == ("SUCCEEDED", "slurmrestd")
    place.bench.hibali("runs", "collect", ended["id"], "out", exit=0)
    assert (place.bench.folder / "out" / "out.txt").read_bytes() == b"hello\n"


@pytest.mark.heavy
def test_a_job_that_slurm_forgot_is_not_created_again(place: Place) -> None:
    """The answer is lost, and the list never shows the job: its record in the folder of the run tells its id."""
    bench, relay = place.bench, place.relay
    relay.fail(rest.LOST, "POST", "/job/submit")
    relay.hide(times=1000)
    bench.run(bench.answers(), exit=5)
    [job] = relay.jobs.of_users()
    relay.jobs.wait(job)
    ended = bench.run(bench.answers(), "--wait", exit=0).last
    assert (ended["state"], list(relay.jobs.of_users())) == ("SUCCEEDED", [job])


@pytest.mark.heavy
def test_the_accounting_tells_of_jobs_that_slurmctld_forgot(
    slurmrestd_with_accounting: SlurmrestdRelay, slurm_with_accounting: Any, hibali: Any
) -> None:
    relay, bench = slurmrestd_with_accounting, Place(hibali, slurmrestd_with_accounting).bench
    begun = bench.run(bench.answers(sleep=600), exit=0).last
    [job] = relay.jobs.of_users()
    while relay.jobs.table()[job]["JobState"] != "RUNNING":
        time.sleep(0.2)
    time.sleep(2)  # the script has begun
    environment = {**os.environ, **slurm_with_accounting.env}
    subprocess.run(["scancel", "--signal=KILL", "--batch", job], env=environment, check=True)
    relay.jobs.wait(job)
    relay.jobs.forgotten.add(job)
    time.sleep(3)  # slurmctld tells slurmdbd
    shown = bench.hibali("runs", "show", begun["id"], "--json").last
    assert (shown["state"], shown["tasks"][0]["reason"]) == (
        "FAILED",
        "ended by the scheduler: FAILED, signal 9",
    )
