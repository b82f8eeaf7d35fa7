"""Test Snakemake's executor plugin with the real Snakemake: jobs at a site without a shared filesystem, each exactly once.

`HIBALI_SNAKEMAKE_JOBS=500 sh tests/run.sh tests/end_to_end/test_snakemake_executor.py` runs 500 jobs instead of 24.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.snakemakes import CountedSite, Snakemake, counted_site, site_python, snakemake_in
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(7200)]  # each job starts Snakemake, which needs seconds

JOBS = int(os.environ.get("HIBALI_SNAKEMAKE_JOBS", "24"))
_SNAKEFILE = """
rule all:
    input:
        expand("out/{{n}}.txt", n=range({jobs})),

rule one:
    output:
        "out/{{n}}.txt",
    shell:
        "echo {{wildcards.n}} >>{executed}; echo {{wildcards.n}} >{{output}}"
"""


@pytest.fixture
def there(hibali: Any) -> Iterator[CountedSite]:
    with counted_site(hibali.home.folder) as site:
        hibali.home.config.write_text(f"version = 1\n[sites.there]\n{site.table()}")
        hibali.home.config.chmod(0o600)
        yield site


class Driver:
    """Snakemake that runs the jobs of a workflow at the site."""

    def __init__(self, hibali: Any, snakefile: str) -> None:
        self.snakemake: Snakemake = snakemake_in(hibali, snakefile)
        self.words = (
            *("--executor", "hibali", "--hibali-site", "there", "--jobs", "1000"),
            *("--hibali-python", str(site_python(hibali.home.folder))),
            *("--default-storage-provider", "hibali", "--default-storage-prefix", "hibali://there/project"),
            *("--seconds-between-status-checks", "1"),
        )

    def run(self, *more: str, exit: int = 0) -> str:  # noqa: A002 - as the fixture `hibali` has it
        return self.snakemake.run(*self.words, *more, exit=exit, timeout=600 + 10 * JOBS)

    def kill_after(self, executed: Path, jobs: int, *more: str) -> None:
        """Start it, and kill it when so many jobs have been executed."""
        process = self.snakemake.start(*self.words, *more)
        while len(lines(executed)) < jobs:
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_a_killed_snakemake_finds_its_jobs_again_and_none_is_doubled(hibali: Any, there: CountedSite) -> None:
    executed = hibali.home.folder / "executed"
    driver = Driver(hibali, _SNAKEFILE.format(jobs=JOBS, executed=executed))
    began = time.monotonic()
    driver.kill_after(executed, JOBS // 6)
    driver.snakemake.run("--unlock")
    driver.kill_after(executed, JOBS // 2, "--rerun-incomplete")
    driver.snakemake.run("--unlock")
    driver.run("--rerun-incomplete")
    print(f"{JOBS} jobs, killed twice: {time.monotonic() - began:.0f} s")
    assert sorted(map(int, lines(executed))) == list(range(JOBS)), "each job once"
    assert {path.name for path in (there.root / "project/out").iterdir()} == {f"{n}.txt" for n in range(JOBS)}
    assert len(list((hibali.home.state / "runs").glob("*.jsonl"))) == JOBS
    assert there.logins == 1
    assert "Nothing to be done" in driver.run()


@pytest.mark.usefixtures("there")
def test_a_failed_job_shows_its_log_and_runs_again(hibali: Any) -> None:
    snakefile = _SNAKEFILE.format(jobs=1, executed=hibali.home.folder / "executed")
    broken = f"test -e {hibali.home.folder}/mended; "
    driver = Driver(hibali, snakefile.replace('"echo', f'"{broken}echo', 1))
    printed = driver.run(exit=1)
    assert "the tool ended with exit code 1" in printed
    assert "returned non-zero exit status 1" in printed, "the end of the job's log"
    (hibali.home.folder / "mended").touch()
    driver.run()
    assert lines(hibali.home.folder / "executed") == ["0"]
    assert "cannot be trusted" in hibali("runs", "rerun", "latest", exit=8).err.decode()


def states(hibali: Any) -> list[str]:
    return [each["state"] for each in hibali("runs", "list", "--json", exit=0).lines if "state" in each]


_GROUPED = """
rule all:
    input:
        "out/last.txt",

rule first:
    input:
        "in.txt",
    output:
        "out/first.txt",
    group: "both"
    shell:
        "test -e {folder}/mended || (touch {folder}/began; sleep 600); cat {{input}} >{{output}}"

rule last:
    input:
        "out/first.txt",
    output:
        "out/last.txt",
    group: "both"
    shell:
        "cat {{input}} {{input}} >{{output}}"
"""


def test_an_interrupt_cancels_a_group_of_jobs_which_then_runs_again(hibali: Any, there: CountedSite) -> None:
    folder = hibali.home.folder
    (there.root / "project").mkdir()
    (there.root / "project" / "in.txt").write_text("x\n")
    driver = Driver(hibali, _GROUPED.format(folder=folder))
    process = driver.snakemake.start(*driver.words)
    wait_for((folder / "began").exists, 300)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 1, printed
    assert states(hibali) == ["CANCELLED"]

    (folder / "mended").touch()
    driver.run("--rerun-incomplete")
    assert (there.root / "project/out/last.txt").read_text() == "x\nx\n"
    assert sorted(states(hibali)) == ["CANCELLED", "SUCCEEDED"]
    assert there.logins == 1
