"""Drive the double of the IRI Facility API with clients that were generated from its OpenAPI documents, and compare hibali's requests with these.

The clients are those that NERSC (version 1) and ESnet (version 2) publish; they check types, enumerations and required members of
each answer.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hibali.config.settings import load_sites
from runs.schedulers.base import Phase
from runs.services.base import open_host
from tests.end_to_end.run_tools import Bench
from tests.services import rest
from tests.services.iri import COMPUTE, FILESYSTEM, Iri
from tests.services.oidc import Oidc
from tests.services.session import REPOSITORY
from tests.services.slurm import Slurm
from tests.support.requirements import require_prepared
from tests.support.rest_sites import NAME, iri_site

pytestmark = pytest.mark.heavy
_PYTHON = REPOSITORY / ".cache" / "rest" / "bin" / "python"
_HEAD = """
import importlib, inspect, json, re, sys, time
version, origin, token, system, files, *words = sys.argv[1:]
iri = importlib.import_module("nersc_iri" if version == "1" else "amsc_iri_v2")
client = iri.ApiClient(iri.Configuration(host=origin, access_token=token))
fs, compute, tasks = iri.FilesystemApi(client), iri.ComputeApi(client), iri.TaskApi(client)
def ended(begun):
    while (task := tasks.get_task(begun.task_id)).status not in ("completed", "failed", "canceled"):
        time.sleep(0.1)
    assert task.status == "completed", task
    return task.result["output"]
def call(name, **parameters):
    # version 1 has parameters, version 2 has records
    method = getattr(fs, name)
    record = {"ls": "PostLsRequest", "stat": "PostStatRequest", "checksum": "PostChecksumRequest",
        "download": "PostDownloadRequest"}.get(name)
    if record and version == "2":
        key = re.sub("(?<!^)(?=[A-Z])", "_", record).lower()
        return ended(method(files, **{key: getattr(iri, record)(**parameters)}))
    return ended(method(files, **parameters))
def wait(job):
    while (found := compute.get_job(system, job, historical=True)).status.state not in ("completed", "failed", "canceled"):
        time.sleep(0.2)
    return found
def specification(**parts):
    return getattr(iri, "JobSpecInput" if version == "1" else "JobSpec")(**parts)
def launch(spec):
    return compute.launch_job(system, **{"job_spec_input" if version == "1" else "job_spec": spec})
"""
_CHECK = """
api = {}
for group in (iri.FilesystemApi, iri.ComputeApi):
    for name, function in inspect.getmembers(group, inspect.isfunction):
        source = inspect.getsource(function)
        method, path = re.search(r"method='(.*?)'", source), re.search(r"resource_path='(.*?)'", source)
        if name.endswith("_serialize"):
            queries = set(re.findall(r"_query_params.append\\(\\('(.*?)'", source))
            api[method[1], re.sub(r"{.*?}", "[^/]+", path[1])] = queries
records = {"ls": "PostLsRequest", "stat": "PostStatRequest", "checksum": "PostChecksumRequest", "download": "PostDownloadRequest",
    "rm": "PostRmRequest", "mkdir": "PostMakeDirRequest", "chmod": "PutFileChmodRequest", "extract": "PostExtractRequest",
    "mv": "PostMoveRequest", "job": "JobSpecInput" if version == "1" else "JobSpec"}
problems, kinds = [], set()
for method, path, parameters in json.load(sys.stdin):
    [queries] = [found for (verb, pattern), found in api.items() if verb == method and re.fullmatch(pattern, path)]
    kind = path.split("/")[4]
    kinds.add(kind)
    if method in ("GET", "DELETE"):
        unknown = set(parameters) - queries
    else:
        model = getattr(iri, records[kind])
        model.model_validate(parameters, strict=True)
        unknown = set(parameters) - {field.alias or name for name, field in model.model_fields.items()}
    if unknown:
        problems.append([path, sorted(unknown)])
print(json.dumps([problems, sorted(kinds)]))
"""


class Client:
    """Runs scripts with the client of a version of the API."""

    def __init__(self, double: Iri) -> None:
        self._double = double

    def __call__(self, script: str, *words: str, stdin: Any = None) -> Any:
        """Return what a script writes as JSON."""
        double = self._double
        argv = [
            _PYTHON,
            "-c",
            _HEAD + script,
            str(double.version),
            double.origin,
            double.token,
            COMPUTE,
            FILESYSTEM,
        ]
        text = json.dumps(stdin).encode()
        ended = subprocess.run([*argv, *words], input=text, capture_output=True, timeout=180, check=False)
        assert ended.returncode == 0, ended.stderr.decode()
        return json.loads(ended.stdout or b"null")


@pytest.fixture(params=[1, 2])
def facility(request: pytest.FixtureRequest, slurm: Slurm, oidc: Oidc, tmp_path: Path) -> Iterator[Iri]:
    require_prepared(_PYTHON, "rest")
    double = Iri(tmp_path / "iri", slurm, request.param)
    double.accepts = lambda token: token == double.token or oidc.accepts(token)
    double.polls = 1
    yield double
    double.close()
    assert double.refused == []


@pytest.fixture
def bench(hibali: Any, facility: Iri, oidc: Oidc) -> Bench:
    hibali.env["TEST_OIDC_SECRET"] = "planted-client-secret"
    bench = Bench(hibali)
    bench.add_site(NAME, iri_site(facility, oidc).table())
    return bench


def test_the_generated_client_handles_files(facility: Iri) -> None:
    (facility.home / "there").write_bytes(b"0123456789")
    names, size, content, summed = Client(facility)(
        """
home = words[0]
ended(fs.upload(files, home + "/uploaded", ("file", b"from a client")))
names = [[each["name"], each["type"], each["size"]] for each in call("ls", path=home)]
print(json.dumps([sorted(names), call("stat", path=home + "/there")["size"], call("download", path=home + "/uploaded"),
    call("checksum", path=home + "/there")["checksum"]]))
""",
        str(facility.home),
    )
    assert names == [["there", "file", "10"], ["uploaded", "file", "13"]]
    assert (size, content) == (10, "ZnJvbSBhIGNsaWVudA==")
    assert summed == "84d89877f0d4041efb6bf91a16f0248f2fd573e6af05c19f96bedb9f882f7882"


def test_the_generated_client_and_hibali_handle_the_same_jobs(facility: Iri, bench: Bench) -> None:
    client = Client(facility)
    # hibali's jobs, as the client sees them
    ended = bench.run(bench.answers(), "--wait", exit=0).last["id"]
    running = bench.run(bench.answers(sleep=600), exit=0).last["id"]
    states = client(
        """
jobs = {each.job_spec.name: each for each in compute.get_jobs(system, historical=True, include_spec=True)}
compute.cancel_job(system, jobs[words[1]].id)
print(json.dumps([jobs[words[0]].status.state, wait(jobs[words[1]].id).status.state]))
""",
        ended,
        running,
    )
    assert states == ["completed", "canceled"]
    bench.hibali("runs", "wait", running, exit=7)
    assert bench.hibali("runs", "show", running, "--json", exit=0).last["state"] == "CANCELLED"
    # the client's jobs, as hibali sees them
    first, second = client(
        """
first = launch(specification(executable="/bin/true", name="theirs", directory=words[0]))
wait(first.id)
second = launch(specification(executable="/bin/sleep", arguments=["600"], name="longer", directory=words[0]))
print(json.dumps([first.id, second.id]))
""",
        str(facility.home),
    )
    host = open_host(load_sites(str(bench.hibali.home.config)).site(NAME))
    assert host.service.find("theirs", "2026-01-01") == first
    states = host.service.states([first, second])
    assert (states[first].phase, states[second].phase.queued) == (Phase.ENDED, True)
    host.service.cancel(second)
    facility.jobs.wait(second)
    assert host.service.states([second])[second].phase is Phase.CANCELLED
    host.close()


def test_requests_of_hibali_are_those_of_the_document(facility: Iri, bench: Bench, tmp_path: Path) -> None:
    """Files, a folder, a large file, their removal, and a run with resources."""
    tree = tmp_path / "tree"
    (tree / "folder").mkdir(parents=True)
    (tree / "folder" / "small").write_bytes(b"small")
    (tree / "large").write_bytes(b"large" * 1_500_000)
    bench.hibali("push", tree, f"{NAME}:data", exit=0)
    bench.hibali("pull", f"{NAME}:data", tmp_path / "back", exit=0)
    assert (tmp_path / "back" / "large").read_bytes() == (tree / "large").read_bytes()
    bench.hibali("rm", "--recursive", "--yes", f"{NAME}:data", exit=0)
    bench.run(bench.answers(), "--time", "10m", "--cores", "1", "--memory", "100M", "--wait", exit=0)
    problems, kinds = Client(facility)(_CHECK, stdin=facility.seen)
    assert problems == []
    expected = {"checksum", "chmod", "download", "extract", "job", "ls", "mkdir", "mv", "rm", "stat"}
    assert set(kinds) == expected


def test_a_job_that_is_never_listed_is_not_created_again(facility: Iri, bench: Bench) -> None:
    """A repeated request has the key of the first one, and returns its job."""
    facility.fail(rest.LOST, "POST", f"/compute/job/{COMPUTE}")
    facility.hide(times=1_000_000)
    bench.run(bench.answers(), exit=5)
    ended = bench.run(bench.answers(), "--wait", exit=0).last
    assert ended["state"] == "SUCCEEDED"
    assert facility.names() == [ended["id"]]


@pytest.mark.parametrize("keeps_keys", [True, False])
def test_a_facility_need_not_keep_keys(facility: Iri, bench: Bench, *, keeps_keys: bool) -> None:
    """It answers 501 to a request with a key, so that hibali sends it without one."""
    facility.keeps_keys = keeps_keys
    ended = bench.run(bench.answers(), "--wait", exit=0).last
    assert ended["state"] == "SUCCEEDED"
    assert facility.names() == [ended["id"]]
