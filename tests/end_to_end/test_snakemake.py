"""Test Snakefile rules that call hibali, with real Snakemake: no work is repeated."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.run_tools import Bench
from tests.services.session import REPOSITORY
from tests.support.external_programs import calls_of, environment_with_hibali
from tests.support.requirements import require_prepared

_SNAKEMAKE = REPOSITORY / ".cache" / "snakemake" / "bin" / "snakemake"
_SNAKEFILE = """
rule all:
    input:
        "report/out.txt",

rule first:
    input:
        answers="first.json",
        image="input.txt",
    output:
        "first.run",
    shell:
        "hibali run {reference} {{input.answers}} --site here --wait --reuse -q >{{output}}"

rule answers:
    input:
        "first.run",
    output:
        "report.json",
    shell:
        '''printf '{{{{"in": "run:%s/out_file", "say": "report"}}}}' "$(cat {{input}})" >{{output}}'''

rule report:
    input:
        "report.json",
    output:
        "report/out.txt",
    log:
        "report.log",
    shell:
        "hibali run {reference} {{input}} --site here --wait --collect report --reuse -q >{{log}} 2>&1"
"""


@pytest.fixture
def bench(hibali: Any) -> Bench:
    made = Bench(hibali)
    made.add_local_site()
    (made.folder / "input.txt").write_text("hello\n")
    (made.folder / "first.json").write_text(json.dumps({"in": "input.txt"}))
    (made.folder / "Snakefile").write_text(_SNAKEFILE.format(reference=made.reference))
    return made


@pytest.fixture
def snakemake(bench: Bench) -> Callable[..., str]:
    """Return a function that runs Snakemake and returns its output; each call of hibali is logged in `calls`."""
    require_prepared(_SNAKEMAKE, "snakemake")
    environment = environment_with_hibali(bench.hibali, _SNAKEMAKE.parent)

    def run(*more: str) -> str:
        words = [_SNAKEMAKE, "--cores", "2", "--nocolor", *more]
        done = subprocess.run(
            words, cwd=bench.folder, env=environment, capture_output=True, text=True, check=False, timeout=600
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


@pytest.mark.heavy
@pytest.mark.timeout(1800)  # Snakemake alone needs seconds for each call
def test_a_rule_is_a_no_op_when_nothing_changed(bench: Bench, snakemake: Callable[..., str]) -> None:
    snakemake()
    report = bench.folder / "report" / "out.txt"
    assert report.read_text() == "hello\n"
    assert (bench.folder / "report.log").read_text().count("\n") == 1
    runs = bench.run_ids()
    assert (len(runs), calls_of(bench)) == (2, 2)

    assert "Nothing to be done" in snakemake()
    assert calls_of(bench) == 2

    snakemake("--forceall")  # every rule calls hibali again, which computes nothing
    assert (bench.run_ids(), calls_of(bench)) == (runs, 4)
    assert report.read_text() == "hello\n"

    (bench.folder / "input.txt").write_text("other\n")
    snakemake()
    assert (len(bench.run_ids()), report.read_text()) == (4, "other\n")


def test_the_rules_on_the_page_are_valid() -> None:
    """Check that hibali has the options of the commands on the page."""
    from hibali_cli.commands.run import run_command

    page = Path(REPOSITORY, "docs", "snakemake.md").read_text()
    known = {name for option in run_command.params for name in (*option.opts, *option.secondary_opts)}
    named = {word.strip('"`,.)') for word in page.split() if word.startswith("--")}
    theirs = {
        *("--rerun-incomplete", "--jobs", "--forceall", "--retries", "--unlock", "--executor"),
        *("--hibali-site", "--hibali-python", "--hibali-config", "--seconds-between-status-checks"),
        *(
            "--default-storage-provider",
            "--default-storage-prefix",
            "--storage-hibali-max-requests-per-second",
        ),
    }
    assert {word for word in named - theirs if not word.startswith(tuple(known))} == set()
