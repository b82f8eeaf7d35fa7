"""Test sweeps at the site with the fewest bytes to transfer, on fast storage of nodes, and saved in datasets."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.run_tools import Bench, doing
from tests.support.annex import AnnexRepository, make_repository

pytestmark = pytest.mark.timeout(600)


@pytest.mark.heavy  # tests/unit/runs/sweeps/test_sweep.py tests the script alone
def test_inputs_of_tasks_are_read_and_their_outputs_written_on_fast_storage(hibali: Any) -> None:
    bench = Bench(hibali, doing("readlink -f [IN]; pwd -P; cat [IN] [MORE] >[OUT]; exit [CODE]"))
    work = bench.add_local_site()
    node = bench.folder / "node"
    node.mkdir()
    with hibali.home.config.open("a") as stream:
        stream.write(f'[sites.here.tiers]\nlocal = "{node}"\n')
    (bench.folder / "other").write_text("other\n")
    (bench.folder / "table.csv").write_text("more,code\n,0\nother,3\n")
    line = (bench.answers(), "--each", "table.csv", "--fast", "in", "--fast", "more", "--fast-work", "local")
    shown = bench.run(*line, "--dry-run", exit=0).last
    assert str(node) in shown["files"]["tasks/1/fast.sh"]
    bench.run(*line, "--wait", exit=7)
    [run_id] = bench.run_ids()
    for number in (1, 2):
        logs = ("runs", "logs", run_id, "--task", str(number), "--stdout")
        output = hibali(*logs, exit=0).out.decode().splitlines()
        assert all(each.startswith(f"{node}/hibali-{run_id}-") for each in output[:2]), output
    assert (work / "runs" / run_id / "tasks" / "1" / "work" / "out.txt").read_text() == "hello\n"
    assert (work / "runs" / run_id / "tasks" / "2" / "work" / "out.txt").read_text() == "hello\nother\n"
    assert not list(node.iterdir())
    wrong = bench.run(*line, "--fast", "say", exit=2).last
    assert wrong["code"] == "no-such-input"
    assert bench.run_ids() == [run_id]


@pytest.mark.heavy
def test_tasks_on_fast_storage_of_a_cluster(hibali: Any, slurm: Any) -> None:
    bench = Bench(hibali, doing("pwd -P; cat [IN] >[OUT]; echo [SAY] >>[OUT]"))
    bench.add_slurm_site(slurm)
    node = bench.folder / "node"
    node.mkdir()
    config = hibali.home.config
    text = config.read_text().replace("[sites.cluster]\n", '[sites.cluster]\nfast = "local"\n')
    config.write_text(f'{text}[sites.cluster.tiers]\nlocal = "{node}"\n')
    line = (bench.answers(), "--param", "say=a,b")
    shown = bench.run(*line, "--dry-run", exit=0).last
    assert "#SBATCH --signal=B:TERM@60" in shown["files"]["chunks/1/job.sh"]
    run = bench.run(*line, "--wait", "--collect", "back", exit=0).last
    assert (bench.folder / "back" / "say=b" / "out.txt").read_text() == "hello\nb\n"
    output = hibali("runs", "logs", run["id"], "--task", "2", exit=0).out.decode()
    assert output.startswith(f"{node}/hibali-{run['id']}-")
    assert not list(node.iterdir())
    bench.run(*line, "--wait", "--no-fast", exit=0)


def two_sites(bench: Bench) -> None:
    for name in ("alpha", "beta"):
        bench.add_site(
            name,
            f'kind = "local"\nwork = "{bench.folder}/work-{name}"\nroots = {{ data = "{bench.folder}/{name}" }}\n'
            f'[sites.{name}.scheduler]\nname = "direct"\n[sites.{name}.limits]\npoll = "1s"',
        )
        (bench.folder / name).mkdir()
    bench.site = "auto"


def test_a_sweep_selects_the_site_with_the_fewest_bytes_to_transfer(hibali: Any) -> None:
    bench = Bench(hibali)
    two_sites(bench)
    for place, number, size in (("alpha", 1, 2 << 20), ("beta", 2, 2 << 20), ("beta", 3, 2 << 20)):
        (bench.folder / place / f"part-{number}").write_bytes(bytes([number]) * size)
    (bench.folder / "table.csv").write_text(
        "more\nalpha:@data/part-1\nbeta:@data/part-2\nbeta:@data/part-3\nbeta:@data/part-3\n"
    )
    line = (bench.answers(), "--each", "table.csv", "--explain")
    started = bench.run(*line, "--wait", exit=0)
    choice = started.lines[0]
    assert (choice["kind"], choice["site"]) == ("choice", "beta")
    assert {each["site"]: each["bytes_to_move"] for each in choice["candidates"]} == {
        "alpha": (4 << 20) + 6,
        "beta": (2 << 20) + 6,
    }
    assert (started.last["site"], started.last["counts"]) == ("beta", {"SUCCEEDED": 4})
    assert not (bench.folder / "work-alpha").exists()


@pytest.mark.heavy
def test_the_same_sweep_continues_at_its_site(hibali: Any) -> None:
    go = hibali.home.folder / "go"
    bench = Bench(hibali, doing(f"until [ -e {go} ]; do sleep 0.1; done; cp [IN] [OUT]"))
    two_sites(bench)
    line = (bench.answers(), "--param", "say=a,b")
    shown = bench.run(*line, "--explain", "--dry-run", exit=0).last
    assert (shown["kind"], shown["site"]) == ("choice", "alpha")
    first = bench.run(*line, exit=0).last
    assert first["site"] == "alpha"
    again = bench.run(*line, "--explain", exit=0)
    assert again.lines[0]["candidates"] == []
    assert again.last["id"] == first["id"]
    bench.site = "alpha"
    other = bench.run(bench.answers(), "--param", "say=a", exit=0).last
    assert other["id"] != first["id"]
    go.touch()
    bench.hibali("runs", "wait", first["id"], other["id"], exit=0)


class Study:
    """A dataset with answers, a table and an input, and a pipeline."""

    def __init__(self, hibali: Any, tmp_path: Path) -> None:
        self.bench = Bench(hibali, doing("cat [IN] >[OUT]; echo [SAY] >>[OUT]; exit [CODE]"))
        self.bench.add_local_site()
        self.repository = make_repository(tmp_path / "study", hibali.env, tmp_path)
        hibali.env = self.repository.env
        self.root = self.repository.folder
        (self.root / "one.txt").write_text("one\n")
        (self.root / "answers.json").write_text('{"in": "one.txt"}')
        (self.root / "rows {x}.csv").write_text("say\na\nb\n")
        self.commit()

    def commit(self) -> None:
        for words in (("annex", "add", "-q", "."), ("commit", "-q", "-m", "made")):
            self.repository.run(*words)


@pytest.mark.heavy  # tests/unit/runs/test_dataset.py tests the record alone
def test_a_sweep_is_saved_with_one_record_of_its_command(hibali: Any, tmp_path: Path) -> None:
    from datalad.local.rerun import get_run_info

    study = Study(hibali, tmp_path)
    options = ("--each", "rows {x}.csv", "--param", "code=0", "--wait", "--dataset", "derived")
    ended = hibali(*study.bench.line("answers.json", *options), "--json", cwd=study.root, exit=0)
    assert [each["kind"] for each in ended.lines[-2:]] == ["receipt", "run"]
    assert (study.root / "derived" / "say=b,code=0" / "out.txt").read_text() == "one\nb\n"
    assert study.repository.run("status", "--porcelain") == b""
    log = study.repository.run("log", "--format=%s").decode().splitlines()
    reference = study.bench.reference
    assert log == [f"[DATALAD RUNCMD] {reference} at here", "made"]
    _, found = get_run_info(None, study.repository.run("log", "-1", "--format=%B").decode())
    assert found["inputs"] == ["answers.json", "rows {{x}}.csv", "one.txt"]
    assert found["outputs"] == ["derived/*/out.txt"]
    assert found["cmd"] == (
        f"hibali run {reference} answers.json --each 'rows {{{{x}}}}.csv' --param=code=0 --site here --wait --new"
        " --collect derived --no-save"
    )


@pytest.mark.heavy
def test_outputs_of_a_failed_sweep_are_saved_only_on_request(hibali: Any, tmp_path: Path) -> None:
    study = Study(hibali, tmp_path)
    line = study.bench.line("answers.json", "--param", "code=0,3", "--wait", "--dataset", "derived")
    hibali(*line, "--json", cwd=study.root, exit=7)
    assert not (study.root / "derived").exists()
    before = study.bench.run_ids()
    hibali(*study.bench.line("answers.json", "--param", "say=c,d", "--wait"), cwd=study.root, exit=0)
    [run_id] = set(study.bench.run_ids()) - set(before)
    hibali("runs", "collect", run_id, "--dataset", "later", cwd=study.root, exit=0)
    assert (study.root / "later" / "say=c" / "out.txt").read_text() == "one\nc\n"
    assert "RUNCMD" in study.repository.run("log", "-1", "--format=%s").decode()
    outside = study.bench.folder / "rows.csv"
    outside.write_text("say\na\n")
    refused = hibali(
        *study.bench.line("answers.json", "--each", str(outside), "--wait", "--dataset", "derived"),
        "--json",
        cwd=study.root,
        exit=2,
    )
    assert refused.last["code"] == "outside-dataset"


@pytest.mark.heavy  # datalad is slow
def test_a_recorded_sweep_is_repeated_by_datalad(hibali: Any, tmp_path: Path) -> None:
    import subprocess

    from tests.support.annex import annex_environment

    bench = Bench(hibali, doing("cat [IN] >[OUT]; echo [SAY] >>[OUT]"))
    bench.add_local_site()
    env = annex_environment(hibali.env, tmp_path)
    commands = tmp_path / "bin"
    commands.mkdir()
    words = " ".join(f"'{word}'" for word in hibali.command())
    (commands / "hibali").write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    (commands / "hibali").chmod(0o755)
    env["PATH"] = f"{commands}:{env['PATH']}"
    hibali.env = env
    datalad = shutil.which("datalad", path=env["PATH"]) or "datalad"

    def call(folder: Path, *more: str) -> None:
        done = subprocess.run(
            [datalad, *more],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, (more, done.stdout.decode(), done.stderr.decode())

    root = tmp_path / "study"
    call(tmp_path, "create", "-c", "text2git", str(root))
    (root / "in.txt").write_text("hello\n")
    (root / "answers.json").write_text(json.dumps({"in": "in.txt"}))
    (root / "rows.csv").write_text("say\na\nb\n")
    repository = AnnexRepository(root, env)
    repository.run("annex", "add", "-q", ".")
    repository.run("commit", "-q", "-m", "made")
    line = bench.line("answers.json", "--each", "rows.csv", "--wait", "--dataset", "derived")
    hibali(*line, "--json", cwd=root, exit=0)
    before = repository.run("rev-parse", "HEAD^{tree}")
    call(root, "rerun")
    assert len(bench.run_ids()) == 2
    assert repository.run("rev-parse", "HEAD^{tree}") == before
