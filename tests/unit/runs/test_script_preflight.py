"""Test a job's checks before its tool starts, in a real shell."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from runs.script import Dependency, guard_lines

RUN = "20260102-030405-0a1b2c3d"
HOSTILE = "-n $(touch pwned) 'a\"b\n*"


class Chain:
    """The folders of a run that succeeded and of a second one that uses its outputs."""

    def __init__(self, folder: Path) -> None:
        self.left = folder / "first" / "work"
        self.own = folder / "it's\nmine"
        self.left.mkdir(parents=True)
        self.own.mkdir()
        self.end(0)

    def end(self, code: int, signal: str = "") -> None:
        record = f'{{"schema":1,"kind":"exit","code":{code},"signal":"{signal}","started":"x"}}\n'
        (self.left.parent / "exit.json").write_text(record)

    def end_without(self, output: str) -> None:
        """End with exit code 0, but without this required output."""
        record = f'{{"schema":1,"kind":"exit","code":0,"missing":["{output}"],"signal":"","started":"x"}}\n'
        (self.left.parent / "exit.json").write_text(record)

    def start(self, *paths: str) -> str:
        """Return the reason why the tool does not start, "" if it starts."""
        return self.start_after(Dependency(RUN, str(self.left.parent), paths))

    def start_after(self, need: Dependency) -> str:
        """Like `start`, after this dependency."""
        script = guard_lines(str(self.own), [need]) + "exec touch started\n"
        done = subprocess.run(["/bin/sh", "-c", script], cwd=self.own, capture_output=True, check=False)
        started = (self.own / "started").exists()
        assert (done.returncode, started) in {(0, True), (75, False)}, done
        if started:
            assert not (self.own / "unmet").exists()
            return ""
        reason = (self.own / "unmet").read_text()
        assert done.stderr.decode() == f"hibali: {reason}"
        return reason


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    return Chain(tmp_path)


def test_without_dependencies_there_are_no_checks() -> None:
    assert guard_lines("/w", []) == ""


@pytest.mark.parametrize("name", ["a", "deep/er/a", HOSTILE, "-rf", "a b/c"])
def test_the_tool_starts_if_the_files_exist(chain: Chain, name: str) -> None:
    path = chain.left / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    assert chain.start(name) == ""
    assert not list(chain.own.parent.rglob("pwned"))


def test_the_tool_starts_if_the_folders_have_only_files(chain: Chain) -> None:
    (chain.left / "o" / "deep").mkdir(parents=True)
    (chain.left / "o" / "deep" / HOSTILE).write_text("x")
    assert chain.start("o", ".") == ""


def test_a_run_without_a_required_output_did_not_succeed(chain: Chain) -> None:
    chain.end_without("out")
    assert "did not succeed" in chain.start()


def test_a_run_that_only_comes_first_needs_no_outputs(chain: Chain) -> None:
    assert chain.start() == ""


@pytest.mark.parametrize(("code", "signal"), [(3, ""), (0, "TERM"), (10, "")])
def test_the_tool_does_not_start_after_a_failed_run(chain: Chain, code: int, signal: str) -> None:
    chain.end(code, signal)
    assert chain.start() == f"run {RUN} did not succeed\n"


def test_a_missing_file_is_named(chain: Chain) -> None:
    assert chain.start("gone/x") == f"run {RUN} did not create this output: gone/x\n"


@pytest.mark.parametrize("path", ["key", "way/key"])
def test_symlinks_are_not_followed(chain: Chain, path: str) -> None:
    secret = chain.own / "secret"
    secret.mkdir()
    (secret / "key").write_text("PRIVATE")
    (chain.left / "key").symlink_to(secret / "key")
    (chain.left / "way").symlink_to(secret)
    assert "symlink" in chain.start(path)


def test_a_folder_with_a_symlink_is_rejected(chain: Chain) -> None:
    (chain.left / "o" / "deep").mkdir(parents=True)
    (chain.left / "o" / "deep" / "\n").symlink_to("/etc/passwd")
    assert "symlinks or special files" in chain.start("o")


def test_a_fifo_is_rejected_without_opening_it(chain: Chain) -> None:
    os.mkfifo(chain.left / "pipe")
    assert "special file" in chain.start("pipe")


def test_a_task_is_named_by_its_number(chain: Chain) -> None:
    chain.end(3)
    assert (
        chain.start_after(Dependency(RUN, str(chain.left.parent), (), 7)) == f"run {RUN}.7 did not succeed\n"
    )


def test_every_task_of_a_sweep_must_have_succeeded(chain: Chain) -> None:
    run = chain.left.parent.parent / "sweep 'x"
    record = '{"code":%d,"signal":""}\n'
    for number, code in ((1, 0), (2, 0), (10, 0)):
        (run / "tasks" / str(number)).mkdir(parents=True)
        (run / "tasks" / str(number) / "exit.json").write_text(record % code)
    need = Dependency(RUN, str(run), all_tasks=True)
    assert chain.start_after(need) == ""
    (chain.own / "started").unlink()
    (run / "tasks" / "10" / "exit.json").write_text(record % 3)
    assert chain.start_after(need) == f"run {RUN}.10 did not succeed\n"
