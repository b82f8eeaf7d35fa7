"""Test job specifications with psij-python: it runs what hibali exports, and hibali runs what it wrote."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.run_tools import Bench
from tests.services.session import REPOSITORY
from tests.support.requirements import require_prepared

pytestmark = pytest.mark.heavy

_PYTHON = REPOSITORY / ".cache" / "psij" / "bin" / "python"
TOOL = {
    "name": "count words",
    "tool-version": "1",
    "description": "Count words",
    "schema-version": "0.5",
    "command-line": "wc -w < [TEXT] > [OUT]; printf '%s' \"$NOTE\" >> [OUT]",
    "inputs": [
        {"id": "text", "name": "text", "type": "File", "value-key": "[TEXT]"},
        {"id": "note", "name": "note", "type": "String", "value-key": "[NOTE]", "optional": True},
    ],
    "environment-variables": [{"name": "NOTE", "value": "[NOTE]"}],
    "output-files": [{"id": "out", "name": "out", "path-template": "out.txt", "value-key": "[OUT]"}],
    "suggested-resources": {"walltime-estimate": 60},
}


def psij(folder: Path, text: str) -> str:
    """Run a program with psij-python; return what it printed."""
    require_prepared(_PYTHON, "psij")
    done = subprocess.run(
        [
            _PYTHON,
            "-c",
            f"from psij import Job, JobAttributes, JobExecutor, JobSpec, JobState, ResourceSpecV1\nfrom psij.serialize import JSONSerializer\n{text}",
        ],
        cwd=folder,
        env={"HOME": str(folder), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def test_psij_runs_an_exported_invocation(hibali: Any, tmp_path: Path) -> None:
    folder = hibali.home.folder
    (folder / "tool.json").write_text(json.dumps(TOOL))
    (tmp_path / "in.txt").write_text("one two three")
    (folder / "values.json").write_text(json.dumps({"text": str(tmp_path / "in.txt"), "note": "it's $HOME"}))
    hibali("pipelines", "add", "tool.json", exit=0)
    words = ("pipelines", "export", "count-words", "--to", "psij", "--values", "values.json")
    hibali(*words, "-o", tmp_path / "job.json", exit=0)
    psij(
        tmp_path,
        "spec = JSONSerializer().load(open('job.json'))\n"
        "spec.directory = '.'\n"
        "job = Job(spec)\n"
        "JobExecutor.get_instance('local').submit(job)\n"
        "status = job.wait()\n"
        "assert status.state == JobState.COMPLETED, status\n",
    )
    assert (tmp_path / "out.txt").read_text() == "3\nit's $HOME"


def test_hibali_runs_what_psij_wrote(hibali: Any) -> None:
    folder = hibali.home.folder
    psij(
        folder,
        "from datetime import timedelta\n"
        "spec = JobSpec('/usr/bin/printf', ['%s|', 'a b', \"it's\", '$HOME'], name='print',\n"
        "               stdout_path='out.txt', environment={'LC_ALL': 'C'},\n"
        "               resources=ResourceSpecV1(node_count=1, process_count=1),\n"
        "               attributes=JobAttributes(duration=timedelta(minutes=3), queue_name='batch'))\n"
        "open('job.json', 'w').write(JSONSerializer().dumps(spec))\n",
    )
    answer = hibali("pipelines", "import", "job.json", "-o", "tool.json", exit=0)
    assert b"queue_name" in answer.err
    document = json.loads((folder / "tool.json").read_text())
    assert document["suggested-resources"]["walltime-estimate"] == 180
    hibali("pipelines", "validate", "tool.json", exit=0)
    bench = Bench(hibali, document)
    bench.add_local_site()
    (folder / "values.json").write_text("{}")
    ended = bench.run("values.json", "--wait", exit=0).last
    assert ended["state"] == "SUCCEEDED"
    hibali("runs", "collect", ended["id"], "back", exit=0)
    assert (folder / "back" / "out.txt").read_text() == "a b|it's|$HOME|"
