"""Test the unmodified nipoppy, whose jobs run on a Slurm behind ssh: each once, also if hibali is killed, with results where it looks."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.run_tools import DESCRIPTOR, Bench
from tests.services.session import REPOSITORY
from tests.support.external_programs import environment_with_hibali
from tests.support.requirements import require_prepared
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1800)]

_PROGRAMS = REPOSITORY / ".cache" / "nipoppy" / "bin"
_LABELS = ("01", "02", "03")
_IMAGE = "sub-{0}/ses-1/anat/sub-{0}_ses-1_T1w.nii.gz"


def bundle(executed: Path) -> dict[str, dict[str, Any]]:
    """Return a pipeline of nipoppy, whose tool notes each execution, and fails for 02 until it is mended."""
    tool = f"echo [ID] >>{executed}; sleep 3; [ [ID] != 02 ] || [ -e {executed}.mended ] && mkdir -p [OUT] && cp [IN] [OUT]/mask.txt"
    step = {
        "INVOCATION_FILE": "invocation.json",
        "DESCRIPTOR_FILE": "descriptor.json",
        "TRACKER_CONFIG_FILE": "tracker.json",
        "HPC_CONFIG_FILE": "hpc.json",
    }
    label = "[[NIPOPPY_PARTICIPANT_ID]]"
    return {
        "config.json": {
            "NAME": "masks",
            "VERSION": "1.0",
            "PIPELINE_TYPE": "processing",
            "STEPS": [step],
            "SCHEMA_VERSION": "1.0",
        },
        "descriptor.json": {
            "name": "masks",
            "tool-version": "1.0",
            "schema-version": "0.5",
            "description": "Copy an image.",
            "command-line": tool,
            "inputs": [
                {"id": "id", "name": "id", "type": "String", "value-key": "[ID]"},
                {"id": "image", "name": "image", "type": "File", "value-key": "[IN]"},
                {"id": "out", "name": "out", "type": "String", "value-key": "[OUT]"},
            ],
        },
        "invocation.json": {
            "id": label,
            "image": f"[[NIPOPPY_DPATH_BIDS]]/{_IMAGE.format(label)}",
            "out": f"[[NIPOPPY_DPATH_PIPELINE_OUTPUT]]/sub-{label}",
        },
        "tracker.json": {"PATHS": [f"sub-{label}/mask.txt"], "SCHEMA_VERSION": "1.0"},
        "hpc.json": {"TIME": "00:10:00", "CORES": "1"},
    }


class Study:
    """A study of nipoppy with three participants, and a site behind ssh with Slurm."""

    def __init__(self, hibali: Any, slurm: Any) -> None:
        require_prepared(_PROGRAMS / "nipoppy", "nipoppy")
        self.bench = Bench(hibali)
        self.bench.add_slurm_site(slurm)
        folder = self.bench.folder
        self.executed, self.root, self.copy = folder / "executed", folder / "study", folder / "copy"
        self._env = environment_with_hibali(hibali, _PROGRAMS)
        for each in _LABELS:
            image = folder / "bids" / _IMAGE.format(each)
            image.parent.mkdir(parents=True)
            image.write_text(f"image of {each}\n")
        self.nipoppy("init", "--bids-source", folder / "bids", "--mode", "copy")
        config = {"SUBSTITUTIONS": {}, "CONTAINER_CONFIG": {"COMMAND": None}, "SCHEMA_VERSION": "1.0"}
        config["HPC_PREAMBLE"] = [f". {_PROGRAMS}/activate"]  # the usual way to nipoppy at a cluster
        (self.root / "global_config.json").write_text(json.dumps(config))
        installed = self.root / "pipelines/processing/masks-1.0"
        installed.mkdir()
        for name, content in bundle(self.executed).items():
            (installed / name).write_text(json.dumps(content))
        line = hibali("nipoppy", "setup", self.root, f"cluster:{self.copy}", exit=0).out.decode()
        programs = line.partition("=")[2].partition(":")[0]
        self._env["PATH"] = f"{programs}:{self._env['PATH']}"

    def nipoppy(self, *words: Any, exit: int = 0) -> str:  # noqa: A002 - as the fixture `hibali` has it
        """Call nipoppy for this study, and return what it printed."""
        done = self._start(*words)
        printed, _ = done.communicate(timeout=600)
        assert (done.returncode == 0) == (exit == 0), printed
        return " ".join(printed.split())  # lines are as wide as COLUMNS

    def _start(self, command: str, *words: Any) -> subprocess.Popen[str]:
        argv = [_PROGRAMS / "nipoppy", command, "--study", self.root, *words]
        return subprocess.Popen(
            list(map(str, argv)),
            cwd=self.bench.folder,
            env={**self._env, "COLUMNS": "400"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def shell(self, line: str) -> str:
        """Run a line of the page, and return what it printed."""
        done = subprocess.run(
            ["sh", "-c", line],
            cwd=self.bench.folder,
            env={**self._env, "COLUMNS": "400"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}"
        return done.stdout

    def process(self, exit: int = 0) -> str:  # noqa: A002 - as the fixture `hibali` has it
        return self.nipoppy("process", "--pipeline", "masks", "--hpc", "cluster", exit=exit)

    def process_killed(self) -> int:
        """Kill hibali as soon as the run is in the ledger; return how many processes were killed."""
        started = self._start("process", "--pipeline", "masks", "--hpc", "cluster")
        wait_for(lambda: bool(self.bench.run_ids()) or started.poll() is not None, 300)
        killed = 0
        for each in list(_descendants(started.pid)):
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                if b"submit" in Path(f"/proc/{each}/cmdline").read_bytes():
                    os.kill(each, signal.SIGKILL)
                    killed += 1
        started.communicate(timeout=600)
        return killed

    def statuses(self) -> dict[str, str]:
        """Return what nipoppy says of each participant, after it has looked."""
        self.nipoppy("track-processing", "--pipeline", "masks")
        lines = (self.root / "derivatives/processing_status.tsv").read_text().splitlines()
        rows = [dict(zip(lines[0].split("\t"), line.split("\t"), strict=True)) for line in lines[1:]]
        return {row["participant_id"]: row["status"] for row in rows}

    def executions(self) -> list[str]:
        return sorted(self.executed.read_text().split())


def _descendants(pid: int) -> Iterator[int]:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield int(child)
            yield from _descendants(int(child))


@pytest.fixture
def study(hibali: Any, slurm: Any) -> Study:
    return Study(hibali, slurm)


def niwrap(folder: Path) -> None:
    """Make a git repository with the layout of niwrap."""
    tool = folder / "src/niwrap/fsl/6.0.4/bet"
    tool.mkdir(parents=True)
    document = {**DESCRIPTOR, "name": "bet", "schema-version": "0.5+styx"}
    del document["tool-version"]
    (tool / "boutiques.json").write_text(json.dumps(document))
    for words in (
        ("init", "-q"),
        ("add", "-A"),
        ("-c", "user.name=x", "-c", "user.email=x@x", "commit", "-qm", "x"),
    ):
        subprocess.run(["git", "-C", folder, *words], check=True)


def test_the_commands_of_the_page_work_and_nipoppy_says_that_it_is_done(study: Study) -> None:
    bench = study.bench
    niwrap(bench.folder / "niwrap")
    config = bench.hibali.home.config
    config.write_text(f'{config.read_text()}[catalogue]\nniwrap = "file://{bench.folder}/niwrap"\n')
    (study.executed.parent / "executed.mended").touch()
    for line in re.findall(
        r"(?m)^    ((?:hibali|nipoppy|PATH=).*)", (REPOSITORY / "docs/nipoppy.md").read_text()
    ):
        if line.startswith("hibali run"):
            bench.answers("bet.json")  # the values of the example only show the form
        known = line.replace("juwels:/p/project/study", f"cluster:{study.copy}").replace("juwels", "cluster")
        printed = study.shell(known)
        if "nipoppy process" in line:
            assert "HPC job ID" in printed
            assert "HPC job ID" in study.process(), "again, while the jobs wait or run"
            assert len(bench.run_ids()) == 1
    assert study.executions() == ["01", "02", "03"]
    for each in _LABELS:
        mask = study.root / f"derivatives/masks/1.0/output/sub-{each}/mask.txt"
        assert mask.read_text() == f"image of {each}\n"
    assert re.search(r"1 +│ +3 +│ +3 +│ +3", printed), "3 in the manifest, 3 in BIDS, 3 done"
    assert study.statuses() == dict.fromkeys(_LABELS, "SUCCESS")
    assert "No participants or sessions to run" in study.process(exit=1)
    logs = [each.read_text() for each in (study.root / "logs").rglob("*.log")]
    assert sum("Running for participant" in each for each in logs) == 3, "nipoppy's own logs of the jobs"


def test_a_killed_hibali_loses_and_repeats_nothing_and_only_a_failed_participant_runs_again(
    study: Study,
) -> None:
    hibali = study.bench.hibali
    assert study.process_killed()
    study.process()
    assert len(study.bench.run_ids()) == 1, "the run that was killed is continued"
    done = hibali("nipoppy", "fetch", study.root)
    assert done.exit == 5, "results are fetched when all jobs have ended"
    assert not (study.root / "derivatives/masks/1.0/output/sub-01").exists()
    fetching = subprocess.Popen(hibali.command("nipoppy", "fetch", study.root, "--wait"), env=hibali.env)
    wait_for(lambda: (study.root / "derivatives/masks").exists() or fetching.poll() is not None, 300)
    fetching.kill()
    fetching.wait()
    assert hibali("nipoppy", "fetch", study.root, "--wait").exit == 7
    assert study.executions() == ["01", "02", "03"]
    assert study.statuses() == {"01": "SUCCESS", "02": "FAIL", "03": "SUCCESS"}
    (study.executed.parent / "executed.mended").touch()
    study.process()
    hibali("nipoppy", "fetch", study.root, "--wait", exit=0)
    assert study.executions() == ["01", "02", "02", "03"]
    assert study.statuses() == dict.fromkeys(_LABELS, "SUCCESS")
