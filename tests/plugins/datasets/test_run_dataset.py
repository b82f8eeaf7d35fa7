"""Test runs saved in a DataLad dataset, and repeated by `datalad rerun`."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.run_tools import Bench
from tests.support.annex import AnnexRepository, annex_environment, make_repository


class Study:
    """A DataLad dataset with an annexed input whose content is elsewhere, and a command that runs it."""

    def __init__(self, bench: Bench, tmp_path: Path) -> None:
        self.bench = bench
        self.env = annex_environment(bench.hibali.env, tmp_path)
        commands = tmp_path / "bin"
        commands.mkdir()
        words = " ".join(f"'{word}'" for word in bench.hibali.command())
        (commands / "hibali").write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        (commands / "hibali").chmod(0o755)
        self.env["PATH"] = f"{commands}:{self.env['PATH']}"
        bench.hibali.env = self.env
        self.origin = self._dataset(tmp_path / "origin")
        (self.origin.folder / "in {x}.txt").write_text("hello\n")
        (self.origin.folder / "answers.json").write_text(json.dumps({"in": "in {x}.txt"}))
        self.origin.run("annex", "add", "-q", ".")
        self.origin.run("commit", "-q", "-m", "made")
        self.root = tmp_path / "study"
        self.origin.run("clone", "-q", str(self.origin.folder), str(self.root))
        self.repository = AnnexRepository(self.root, self.env)
        self.repository.run("annex", "get", "-q", "answers.json")

    def _dataset(self, root: Path) -> AnnexRepository:
        self.datalad(root.parent, "create", "-c", "text2git", str(root))
        return AnnexRepository(root, self.env)

    def datalad(self, folder: Path, *words: str) -> str:
        """Run datalad in the folder."""
        done = subprocess.run(
            [shutil.which("datalad", path=self.env["PATH"]) or "datalad", *words],
            cwd=folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, (words, done.stdout.decode(), done.stderr.decode())
        return done.stdout.decode()

    def line(self, *more: str) -> tuple[str, ...]:
        """Return the arguments of the run."""
        return self.bench.line("answers.json", *more)

    def subjects(self) -> list[str]:
        """Return the subjects of the commits, newest first."""
        return self.repository.run("log", "--format=%s").decode().splitlines()

    def record(self) -> dict[str, Any]:
        """Return the run record of the last commit."""
        message = self.repository.run("log", "-1", "--format=%B").decode()
        block = message.partition("=== Do not change lines below ===\n")[2]
        return dict(json.loads(block.partition("\n^^^ Do not change lines above ^^^")[0]))


@pytest.fixture
def study(hibali: Any, tmp_path: Path) -> Study:
    bench = Bench(hibali)
    bench.add_local_site()
    return Study(bench, tmp_path)


def test_a_run_is_saved_with_a_record_and_its_inputs_are_retrieved(hibali: Any, tmp_path: Path) -> None:
    from datalad.local.rerun import get_run_info

    bench = Bench(hibali)
    bench.add_local_site()
    origin = make_repository(tmp_path / "origin", hibali.env, tmp_path)
    hibali.env = origin.env
    (origin.folder / "many").mkdir()
    (origin.folder / "many" / "one.txt").write_text("one\n")
    (origin.folder / "answers.json").write_text('{"in": "../many/one.txt"}')
    (origin.folder / ".gitattributes").write_text("*.json annex.largefiles=nothing\n")
    for words in (("annex", "add", "-q", "."), ("commit", "-q", "-m", "made")):
        origin.run(*words)
    origin.run("clone", "-q", str(origin.folder), str(tmp_path / "clone"))
    clone = AnnexRepository(tmp_path / "clone", origin.env)
    typed = clone.folder / "typed {here}"
    typed.mkdir()
    shutil.copy(clone.folder / "answers.json", typed / "-answers.json")
    line = bench.line("./-answers.json", "--wait", "--dataset", "../derived", "--name", "a name")
    ended = hibali(*line, "--json", cwd=typed, exit=0)
    assert [each["kind"] for each in ended.lines[-2:]] == ["receipt", "run"]
    assert (clone.folder / "derived" / "out.txt").read_text() == "one\n"
    assert clone.run("status", "--porcelain") == b""
    message, found = get_run_info(None, clone.run("log", "-1", "--format=%B").decode())
    assert message == f"{bench.reference} at here"
    assert found["pwd"] == "typed {here}"
    assert found["inputs"] == ["-answers.json", "../many/one.txt"]
    assert found["outputs"] == ["../derived/out.txt"]
    assert found["cmd"] == (
        f"hibali run {bench.reference} ./-answers.json --site here --wait --new --collect ../derived --no-save"
        " '--name=a name'"
    )


@pytest.mark.heavy  # slow as below, and needs a cluster
def test_a_recorded_run_is_repeated_at_its_cluster(hibali: Any, slurm: Any, tmp_path: Path) -> None:
    bench = Bench(hibali)
    bench.add_slurm_site(slurm)
    study = Study(bench, tmp_path)
    hibali(*study.line("--wait", "--dataset", "derived", "--json"), cwd=study.root, exit=0)
    before = study.repository.run("rev-parse", "HEAD^{tree}")
    study.datalad(study.root, "rerun")
    assert len(bench.run_ids()) == 2
    assert study.repository.run("rev-parse", "HEAD^{tree}") == before


@pytest.mark.heavy  # datalad is slow
def test_a_recorded_run_is_repeated_by_datalad_with_the_same_outputs(study: Study) -> None:
    hibali = study.bench.hibali
    hibali(*study.line("--wait", "--dataset", "derived", "--json"), cwd=study.root, exit=0)
    assert (study.root / "derived" / "out.txt").read_text() == "hello\n"
    assert study.subjects()[0] == f"[DATALAD RUNCMD] {study.bench.reference} at here"
    assert study.repository.run("status", "--porcelain") == b""
    record = study.record()
    assert record["inputs"] == ["answers.json", "in {{x}}.txt"]
    assert record["outputs"] == ["derived/out.txt"]
    assert (record["exit"], record["pwd"], record["chain"]) == (0, ".", [])
    before = study.repository.run("rev-parse", "HEAD^{tree}"), len(study.bench.run_ids())
    study.repository.run("annex", "drop", "-q", "in {x}.txt")
    study.datalad(study.root, "rerun")
    assert len(study.bench.run_ids()) == before[1] + 1
    assert study.repository.run("rev-parse", "HEAD^{tree}") == before[0]
    # outputs that were changed afterwards are restored
    (study.root / "derived" / "out.txt").unlink()
    (study.root / "derived" / "out.txt").write_text("spoiled\n")
    study.datalad(study.root, "save", "-m", "spoil")
    study.datalad(study.root, "rerun", "HEAD^")
    assert (study.root / "derived" / "out.txt").read_text() == "hello\n"
    assert study.subjects()[0].startswith("[DATALAD RUNCMD]")
    assert study.repository.run("status", "--porcelain") == b""


@pytest.mark.heavy  # datalad is slow
def test_a_run_is_collected_into_a_dataset_later_and_its_record_may_be_a_file(study: Study) -> None:
    hibali = study.bench.hibali
    study.repository.run("config", "datalad.run.record-sidecar", "true")
    run_id = hibali(*study.line("--wait"), cwd=study.root, exit=0).out.decode().split()[0]
    hibali("runs", "collect", run_id, "--dataset", study.root / "derived", "--json", exit=0)
    assert study.subjects()[0].startswith("[DATALAD RUNCMD]")
    assert len(list((study.root / ".datalad" / "runinfo").iterdir())) == 1
    assert study.repository.run("status", "--porcelain") == b""
    tree = study.repository.run("rev-parse", "HEAD:derived")
    study.datalad(study.root, "rerun")
    assert study.repository.run("rev-parse", "HEAD:derived") == tree


@pytest.mark.heavy  # datalad is slow
@pytest.mark.timeout(600)
def test_a_chain_through_files_of_the_dataset_is_repeated_with_new_intermediate_results(study: Study) -> None:
    hibali, root = study.bench.hibali, study.root
    start = study.repository.run("rev-parse", "HEAD").decode().strip()
    hibali(*study.line("--wait", "--dataset", "first"), cwd=root, exit=0)
    (root / "second.json").write_text(json.dumps({"in": "first/out.txt", "say": "again"}))
    line = study.bench.line("second.json", "--wait", "--dataset", "second")
    hibali(*line, cwd=root, exit=0)
    assert study.record()["inputs"] == ["second.json", "first/out.txt"]
    study.repository.run("annex", "unlock", "-q", "in {x}.txt")
    (root / "in {x}.txt").write_text("changed\n")
    study.datalad(root, "save", "-m", "another input")
    study.datalad(root, "rerun", "--since", start)
    assert (root / "second" / "out.txt").read_text() == "changed\n"
    assert len(study.bench.run_ids()) == 4
    assert study.repository.run("status", "--porcelain") == b""


@pytest.mark.heavy  # datalad is slow
def test_a_run_that_cannot_be_repeated_is_not_recorded(hibali: Any, tmp_path: Path) -> None:
    bench = Bench(hibali)
    bench.add_local_site()
    answers = bench.answers()
    repository = AnnexRepository(tmp_path / "plain", annex_environment(hibali.env, tmp_path))
    repository.folder.mkdir()
    for words in (("init", "-q"), ("annex", "init", "-q")):
        repository.run(*words)
    hibali.env = repository.env
    for more, code in (
        (("--dataset", "nowhere", "--wait"), "no-dataset"),
        (("--dataset", str(repository.folder), "--wait"), "outside-dataset"),
        (("--dataset", str(repository.folder)), "usage"),
        (("--collect", "x"), "usage"),
        (("--no-save", "--wait"), "usage"),
    ):
        assert bench.run(answers, *more, exit=2).last["code"] == code
    assert bench.run_ids() == []
    assert (
        bench.run(answers, "--wait", "--collect", str(repository.folder / "out"), exit=0).last["state"]
        == "SUCCEEDED"
    )
    assert repository.run("log", "--format=%s").decode().startswith("[HIBALI] collect")
