"""Drive the double of FirecREST with the unmodified client pyfirecrest, and let it and hibali handle each other's files and jobs."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hibali.config.settings import load_sites
from runs.schedulers.base import Phase
from runs.services.base import open_host
from tests.end_to_end.run_tools import Bench
from tests.services.firecrest import Firecrest
from tests.services.session import REPOSITORY
from tests.support.requirements import require_prepared
from tests.support.rest_sites import NAME, open_site

pytestmark = pytest.mark.heavy
_PYTHON = REPOSITORY / ".cache" / "rest" / "bin" / "python"
_HEAD = """
import json, sys, time
import firecrest
class Token:
    def get_access_token(self):
        return sys.argv[2]
url, _, home, *words = sys.argv[1:]
client = firecrest.v2.Firecrest(url, Token())
"""


class PyFirecrest:
    """Runs scripts with pyfirecrest."""

    def __init__(self, double: Firecrest) -> None:
        self._double = double

    def __call__(self, script: str, *words: str) -> Any:
        """Return what a script writes as JSON."""
        argv = [
            _PYTHON,
            "-c",
            _HEAD + script,
            self._double.url,
            self._double.token,
            self._double.home,
            *words,
        ]
        ended = subprocess.run(argv, capture_output=True, timeout=180, check=False)
        assert ended.returncode == 0, ended.stderr.decode()
        return json.loads(ended.stdout or b"null")


@pytest.fixture
def client(firecrest: Firecrest) -> PyFirecrest:
    require_prepared(_PYTHON, "rest")
    return PyFirecrest(firecrest)


def test_pyfirecrest_handles_files(client: PyFirecrest, firecrest: Firecrest, tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"from a file")
    large = os.urandom(11 * 1024 * 1024)
    (tmp_path / "large").write_bytes(large)
    firecrest.part_size = 6 * 1024 * 1024  # downloads are sent in equal parts, of which S3 requires 5 MiB
    found = client(
        """
system = client.systems()[0]["name"]
user = client.userinfo(system)["user"]["name"]
client.mkdir(system, home + "/new/folder", create_parents=True)
client.upload(system, words[0] + "/small", home + "/new", "a b")
client.upload(system, words[0] + "/large", home + "/new", "large")
client.mv(system, home + "/new/a b", home + "/renamed")
client.cp(system, home + "/renamed", home + "/copied")
client.download(system, home + "/new/large", words[0] + "/back")
client.download(system, home + "/renamed", words[0] + "/small back")
names = sorted(each["name"] for each in client.list_files(system, home))
summed = client.checksum(system, home + "/new/large")["checksum"]
size = client.stat(system, home + "/renamed")["size"]
client.rm(system, home + "/copied")
client.rm(system, home + "/new")
print(json.dumps([user, names, summed, size]))
""",
        str(tmp_path),
    )
    assert found[1:] == [["copied", "new", "renamed"], hashlib.sha256(large).hexdigest(), 11]
    assert (tmp_path / "back").read_bytes() == large
    assert (tmp_path / "small back").read_bytes() == b"from a file"
    assert {path.name: path.read_bytes() for path in firecrest.home.glob("[!.]*")} == {
        "renamed": b"from a file"
    }


def test_pyfirecrest_runs_a_job(client: PyFirecrest, firecrest: Firecrest) -> None:
    state, listed = client(
        """
job = client.submit("daint", home, script_str="#!/bin/sh\\n#SBATCH --time=5\\necho $GREETING >out.txt\\n", env_vars={"GREETING": "hello"})["jobId"]
[ended] = client.wait_for_job("daint", str(job), timeout=60)
everything = client.job_info("daint", time_window="1h")
print(json.dumps([ended["status"]["state"], job in [each["jobId"] for each in everything]]))
"""
    )
    assert (state, listed) == ("COMPLETED", True)
    assert (firecrest.home / "out.txt").read_text() == "hello\n"


def test_pyfirecrest_and_hibali_handle_the_same_jobs(
    client: PyFirecrest, request: pytest.FixtureRequest, hibali: Any, firecrest: Firecrest
) -> None:
    site = open_site(request, "firecrest")
    hibali.env["TEST_OIDC_SECRET"] = "planted-client-secret"
    bench = Bench(hibali)
    bench.add_site(NAME, site.table())
    # hibali's jobs, as pyfirecrest sees them
    ended = bench.run(bench.answers(), "--wait", exit=0).last["id"]
    running = bench.run(bench.answers(sleep=600), exit=0).last["id"]
    seen = client(
        """
jobs = {each["name"]: each for each in client.job_info("daint", time_window="1h")}
out = client.view("daint", jobs[words[0]]["workingDirectory"] + "/work/out.txt")
number = jobs[words[1]]["jobId"]
client.cancel_job("daint", number)
[cancelled] = client.wait_for_job("daint", number, timeout=60)
print(json.dumps([jobs[words[0]]["status"]["state"], out, cancelled["status"]["state"]]))
""",
        ended,
        running,
    )
    assert seen == ["COMPLETED", "hello\n", "CANCELLED"]
    bench.hibali("runs", "wait", running, exit=7)
    assert bench.hibali("runs", "show", running, "--json", exit=0).last["state"] == "CANCELLED"
    # pyfirecrest's jobs, as hibali sees them
    first, second = client(
        """
script = "#!/bin/sh\\n#SBATCH --job-name=theirs-{}\\nsleep {}\\n"
ended = client.submit("daint", home, script_str=script.format(1, 0))["jobId"]
client.wait_for_job("daint", str(ended), timeout=60)
running = client.submit("daint", home, script_str=script.format(2, 600))["jobId"]
print(json.dumps([str(ended), str(running)]))
"""
    )
    host = open_host(load_sites(str(hibali.home.config)).site(NAME))
    assert host.service.find("theirs-1", "2026-01-01") == first
    states = host.service.states([first, second])
    assert (states[first].phase, states[second].phase.queued) == (Phase.ENDED, True)
    host.service.cancel(second)
    firecrest.jobs.wait(second)
    assert host.service.states([second])[second].phase is Phase.CANCELLED
    host.close()
    [state] = client(
        'print(json.dumps([each["status"]["state"] for each in client.job_info("daint", words[0])]))', second
    )
    assert state == "CANCELLED"
