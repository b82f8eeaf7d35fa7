"""Drive the double of UNICORE with the unmodified client pyunicore, and let it and hibali handle each other's files and jobs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hibali.config.settings import load_sites
from runs.schedulers.base import Phase
from runs.services.base import open_host
from tests.end_to_end.run_tools import Bench
from tests.services.session import REPOSITORY
from tests.services.unicore import Unicore
from tests.support.requirements import require_prepared
from tests.support.rest_sites import NAME, open_site

pytestmark = pytest.mark.heavy
_PYTHON = REPOSITORY / ".cache" / "rest" / "bin" / "python"
_HEAD = """
import json, sys
from pyunicore.client import Client, Job, JobStatus
from pyunicore.credentials import OIDCToken
url, token, *words = sys.argv[1:]
client = Client(OIDCToken(token), url, cache_time=0)
home = next(each for each in client.get_storages() if each.resource_url.endswith("/HOME"))
"""


class PyUnicore:
    """Runs scripts with pyunicore."""

    def __init__(self, double: Unicore) -> None:
        self._double = double

    def __call__(self, script: str, *words: str) -> Any:
        """Return what a script writes as JSON."""
        argv = [_PYTHON, "-c", _HEAD + script, self._double.url, self._double.token, *words]
        ended = subprocess.run(argv, capture_output=True, timeout=120, check=False)
        assert ended.returncode == 0, ended.stderr.decode()
        return json.loads(ended.stdout or b"null")


@pytest.fixture
def client(unicore: Unicore) -> PyUnicore:
    require_prepared(_PYTHON, "rest")
    return PyUnicore(unicore)


def test_pyunicore_handles_files(client: PyUnicore, unicore: Unicore, tmp_path: Path) -> None:
    (tmp_path / "local").write_bytes(b"from a file")
    found = client(
        """
home.mkdir("new/folder")
home.put(b"0123456789", "new/folder/a b")
home.upload(words[0], "uploaded")
home.rename("/new/folder/a b", "/renamed")
home.copy("/renamed", "/copied")
part = home.stat("/renamed").read(offset=3, size=4).decode()
names = sorted(home.listdir("/"))
home.rm("/copied")
home.rmdir("/new")
print(json.dumps([part, names, home.stat("/renamed").size(), home.properties["mountPoint"]]))
""",
        str(tmp_path / "local"),
    )
    assert found == ["3456", ["copied", "new/", "renamed", "uploaded"], 10, f"{unicore.home}/"]
    assert {path.name: path.read_bytes() for path in unicore.home.iterdir()} == {
        "renamed": b"0123456789",
        "uploaded": b"from a file",
    }


def test_pyunicore_runs_a_job(client: PyUnicore) -> None:
    found = client(
        """
job = client.new_job({"Executable": "cat", "Arguments": ["in.txt"], "Resources": {"Nodes": "1"}, "Tags": ["mine"]},
    inputs={"in.txt": words[0]})
job.poll(timeout=60)
listed = [each.job_id for each in client.get_jobs(tags=["mine"])]
print(json.dumps([str(job.status), job.exit_code, job.working_dir.stat("stdout").read().decode(), listed == [job.job_id]]))
""",
        str(Path(__file__)),
    )
    assert found[0:2] == ["SUCCESSFUL", 0]
    assert found[2].startswith('"""Drive the double')
    assert found[3]


def test_pyunicore_and_hibali_handle_the_same_jobs(
    client: PyUnicore, request: pytest.FixtureRequest, hibali: Any
) -> None:
    site = open_site(request, "unicore")
    hibali.env["TEST_OIDC_SECRET"] = "planted-client-secret"
    bench = Bench(hibali)
    bench.add_site(NAME, site.table())
    # hibali's jobs, as pyunicore sees them
    ended = bench.run(bench.answers(), "--wait", exit=0).last["id"]
    running = bench.run(bench.answers(sleep=600), exit=0).last["id"]
    seen = client(
        """
[ended], [running] = client.get_jobs(tags=[words[0]]), client.get_jobs(tags=[words[1]])
running.poll(JobStatus.RUNNING, timeout=60)
out = home.stat("/.hibali/runs/" + words[0] + "/work/out.txt").read().decode()
running.abort()
print(json.dumps([str(ended.status), ended.properties["name"], out, str(Job(client.transport, running.resource_url).status)]))
""",
        ended,
        running,
    )
    assert seen == ["SUCCESSFUL", ended, "hello\n", "FAILED"]
    bench.hibali("runs", "wait", running, exit=7)
    assert bench.hibali("runs", "show", running, "--json", exit=0).last["state"] in {"FAILED", "CANCELLED"}
    # pyunicore's jobs, as hibali sees them
    first, second = client(
        """
ended = client.new_job({"Executable": "true", "Tags": ["theirs"]})
ended.poll(timeout=60)
running = client.new_job({"Executable": "sleep", "Arguments": ["600"]})
print(json.dumps([ended.job_id, running.job_id]))
"""
    )
    host = open_host(load_sites(str(hibali.home.config)).site(NAME))
    assert host.service.find("theirs", "2026-01-01") == first
    states = host.service.states([first, second])
    assert (states[first].phase, states[second].phase.queued) == (Phase.ENDED, True)
    host.service.cancel(second)
    assert host.service.states([second])[second].phase is Phase.CANCELLED
    host.close()
    assert (
        client("print(json.dumps(str(Job(client.transport, url + '/jobs/' + words[0]).status)))", second)
        == "FAILED"
    )
