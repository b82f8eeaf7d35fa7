"""Test hostile answers, names and tools: only the tool runs, and it writes only to its work folder.

docs/untrusted-pipelines.md lists the cases.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.image_tools import RUNTIMES, Tool, catalogued, ready
from tests.end_to_end.run_tools import Bench, doing
from tests.support.waiting import wait_for

DIRECTIVES = (
    "\n#SBATCH --job-name=evil --output=pwned\n#OAR -n evil\n#$ -N evil\n#PBS -N evil\n#BSUB -J evil\n"
)
VALUES = [
    "$(touch pwned)",
    "`touch pwned`",
    "'; touch pwned; '",
    '"; touch pwned; "',
    "\ntouch pwned\n",
    DIRECTIVES,
    "|| touch pwned",
    "& touch pwned &",
    "> pwned",
    "${IFS}touch${IFS}pwned",
    "$'\\ntouch pwned'",
    "<<E\ntouch pwned\nE",
    "\\",
    "\\'",
    "-n",
    "--help",
    "~root",
    "*",
    "[VALUES]",
    "[SAY]",
    "{tasks}",
    "%s%n",
    "!!",
    "",
    " ",
    "\t",
    "#",
    "a=b",
    "if",
    "2",
    "\x1b]0;evil\x07",
    "\u202e\u00e9",
]
NAMES = [
    "$(touch pwned)",
    "`touch pwned`",
    "'; touch pwned; '",
    "a b\n#SBATCH --job-name=evil\n#OAR -n evil",
    ',src=,dst=x"',
    "-rf",
    "*",
    "\\",
    "{a}[VALUES]",
    "...",
    "\u202e\x1b[31m",
]
# Writes its values unchanged, so that they can be compared with the given ones.
ECHO: dict[str, Any] = {
    "name": "Echo",
    "tool-version": "1.0",
    "schema-version": "0.5",
    "description": "Writes down its answers.",
    "command-line": "for each in [VALUES]; do printf '%s\\0' \"$each\"; done >values; cat [FILES] >files; "
    'printf %s "$SAID" >said; cat files >[NAME]',
    "inputs": [
        {"id": "values", "name": "values", "type": "String", "list": True, "value-key": "[VALUES]"},
        {"id": "files", "name": "files", "type": "File", "list": True, "value-key": "[FILES]"},
        {"id": "say", "name": "say", "type": "String", "value-key": "[SAY]"},
        {"id": "setting", "name": "setting", "type": "String", "value-key": "[SETTING]"},
        {"id": "name", "name": "name", "type": "String", "value-key": "[NAME]"},
    ],
    "environment-variables": [{"name": "SAID", "value": "[SAY]"}],
    "output-files": [
        {"id": "values_out", "name": "v", "path-template": "values"},
        {"id": "files_out", "name": "f", "path-template": "files"},
        {"id": "said_out", "name": "s", "path-template": "said"},
        {"id": "named_out", "name": "n", "path-template": "[NAME]"},
        {
            "id": "settings",
            "name": "settings",
            "path-template": "settings.txt",
            "file-template": ["setting = [SETTING]"],
        },
    ],
}


def bench_for(
    word: str, document: dict[str, Any], request: pytest.FixtureRequest, hibali: Any
) -> tuple[Bench, Path]:
    """Return a pipeline at a site with that runtime, and the site's work folder."""
    if word == "bare":
        bench = Bench(hibali, document)
        return bench, bench.add_local_site()
    ready(word, request, hibali)
    tool: Tool = request.getfixturevalue("tool")
    bench = Bench(hibali, {**document, "container-image": {"type": "docker", "image": tool.name}})
    work = bench.add_local_site("box", word)
    catalogued(bench, tool)
    return bench, work


def answer_hostile(bench: Bench, names: Iterable[str] = NAMES) -> dict[str, Any]:
    """Write a file of hostile answers, and return its content."""
    folder = bench.folder / "given"
    folder.mkdir()
    files = []
    for number, name in enumerate(names):
        (folder / name).write_text(f"{number}\n")
        files.append(f"given/{name}")
    answers = {
        "values": VALUES,
        "files": files,
        "say": f"$(touch pwned) `touch pwned`{DIRECTIVES}",
        "setting": "$(touch pwned) '\"; touch pwned #SBATCH -J evil",
        "name": "-o $(touch pwned) '`#SBATCH -J evil",
    }
    (bench.folder / "hostile.json").write_text(json.dumps(answers))
    return answers


def check_echoed(bench: Bench, run_id: str, answers: dict[str, Any]) -> None:
    """Check that every answer reached the tool unchanged and executed nothing."""
    bench.hibali("runs", "collect", run_id, "back", exit=0)
    back = bench.folder / "back"
    assert (back / "values").read_bytes().decode().split("\0")[:-1] == answers["values"]
    lines = "".join(f"{number}\n" for number in range(len(answers["files"])))
    assert (back / "files").read_text() == lines
    assert (back / "said").read_text() == answers["say"]
    assert (back / answers["name"]).read_text() == lines
    assert not [path for path in bench.folder.rglob("pwned*") if "given" not in path.parts]


@pytest.mark.heavy
@pytest.mark.parametrize("word", ["bare", *RUNTIMES])
def test_answers_and_names_execute_no_code(word: str, request: pytest.FixtureRequest, hibali: Any) -> None:
    bench, work = bench_for(word, ECHO, request, hibali)
    answers = answer_hostile(bench)
    run_id = bench.run("hostile.json", "--wait", exit=0).last["id"]
    check_echoed(bench, run_id, answers)
    folder = work / "runs" / run_id
    assert (folder / "work" / "settings.txt").read_text() == f"setting = {answers['setting']}"
    assert "evil" not in (folder / "job.sh").read_text()


@pytest.mark.heavy
def test_lines_that_look_like_directives_are_ignored_by_slurm(hibali: Any, slurm: Any) -> None:
    bench = Bench(hibali, ECHO)
    work = bench.add_slurm_site(slurm)
    answers = answer_hostile(bench)
    run_id = bench.run("hostile.json", "--wait", exit=0).last["id"]
    wait_for(lambda: slurm.jobs_ended(run_id) == 1)
    assert slurm.jobs_ended("evil") == 0
    assert "evil" not in (work / "runs" / run_id / "job.sh").read_text()
    assert (work / "runs" / run_id / "scheduler.log").exists()
    check_echoed(bench, run_id, answers)


# The same value again, so that a successful write changes nothing
SETTINGS = (
    "cat /proc/sys/kernel/core_pattern >pattern; cat pattern >/proc/sys/kernel/core_pattern && echo WROTE\n"
)
# Leaves a mark of this test wherever it can, damages its inputs, and prints success before it exits with 3.
ESCAPE = r"""
forged='{"schema":1,"kind":"exit","run":"RUN","job":"1","host":"x","code":0,"signal":"","started":"x","ended":"x"}'
run=$(pwd); run=${run%/work}
for each in / /etc /usr /bin /mnt /mnt/1 /root /home /sys /dev/shm /tmp/.. FOLDER FOLDER/work-box .. ../.. "$run"; do
  touch "$each/MARK"; mkdir "$each/MARK.d"; echo x >"$each/MARK.e"
  echo "$forged" >"$each/exit.json"; mkdir "$each/started"; echo 1 >"$each/started/job"
done 2>/dev/null
for each in /proc/[0-9]*; do
  touch "$each/rootFOLDER/MARK" "$each/root/etc/MARK"; echo "$forged" >"$each/cwd/../exit.json"
done 2>/dev/null
mount -o remount,rw /; mount -o remount,rw /mnt/1; mount -t tmpfs none /mnt; mount -o bind / /mnt
SETTINGS
busybox ln -s FOLDER out; touch out/MARK; busybox ln -s / root; touch root/etc/MARK; rm -f out root
echo x >>[IN]; busybox chmod 777 [IN]; rm -f [IN]; mv [IN] gone; busybox ln [IN] linked
printf '%s\n' "$forged" >exit.json; printf 'forged\n%s\n' "$forged"; printf '%s\n' "$forged" >&2
echo '#SBATCH --job-name=evil' >job.sh; echo 'exec touch MARK' >start
exit 3
""".replace("SETTINGS\n", SETTINGS)


@pytest.mark.parametrize("word", RUNTIMES)
def test_a_tool_writes_only_to_its_work_folder(
    word: str, request: pytest.FixtureRequest, hibali: Any
) -> None:
    mark = f"escaped-{secrets.token_hex(8)}"
    script = ESCAPE.replace("MARK", mark).replace("FOLDER", str(hibali.home.folder))
    if word in {
        "charliecloud",
        "apptainer",
    }:  # root can write the kernel's settings, without capabilities, too
        script = script.replace(SETTINGS, "")
    if word == "charliecloud":  # the node's devices are its own
        script = script.replace(" /sys /dev/shm", "")
        if str(hibali.home.folder).startswith("/dev/"):
            pytest.skip("Charliecloud shows the node's /dev, where this test has its files")
    bench, work = bench_for(word, doing(script.strip()), request, hibali)
    failed = bench.run(bench.answers(), "--wait", exit=7)
    run = failed.lines[-2]
    assert (run["state"], run["tasks"][0]["exit_code"]) == ("FAILED", 3)
    assert b"WROTE" not in hibali("runs", "logs", run["id"], exit=0).out
    folder = work / "runs" / run["id"]
    own = {folder / "work", *({folder / "inputs"} if word == "charliecloud" else ())}
    left = [path for path in bench.folder.rglob(f"{mark}*") if not own & set(path.parents)]
    assert not [path for path in left if "state" not in path.parts]
    for outside in ("/", "/etc", "/usr", "/bin", "/mnt", "/root", "/home", "/tmp", "/dev/shm"):
        assert not list(Path(outside).glob(f"{mark}*"))
    assert json.loads((folder / "exit.json").read_text())["code"] == 3
    assert (bench.folder / "input.txt").read_text() == "hello\n"
    cached = [path for path in (work / "cache" / "sha256").rglob("*") if path.is_file()]
    assert "hello\n" in [path.read_text() for path in cached if path.stat().st_size < 100]


def test_a_symlink_to_a_private_key_is_not_followed(hibali: Any) -> None:
    """Check S12: symlinks are not followed as an output, inside one or in its path; a FIFO is not waited for."""
    vault = hibali.home.folder / "vault"
    vault.mkdir(mode=0o700)
    (vault / "id_key").write_text("-----BEGIN PRIVATE KEY-----\nsecret\n")
    (vault / "id_key").chmod(0o600)
    links = (
        f"ln -s {vault}/id_key [OUT]; mkdir results; cat [IN] >results/good; ln -s {vault}/id_key results/link; "
        f"mkfifo results/pipe; ln -s {vault} sub; ln -s ../../../../vault/id_key results/climbing"
    )
    paths = {"out_file": "[OUT]", "tree": "results", "beyond": "sub/id_key"}
    outputs = [{"id": each, "name": each, "path-template": path} for each, path in paths.items()]
    bench = Bench(hibali, {**doing(links), "output-files": outputs})
    bench.add_local_site()
    run_id = bench.run(bench.answers(), "--wait", exit=0).last["id"]
    collected = hibali("runs", "collect", run_id, "back", "--json", exit=6)
    assert collected.last["exit"] == 6
    named = {line["path"] for line in collected.lines if line["kind"] == "failed"}
    assert {"out.txt", "results/link", "results/climbing", "results/pipe", "sub"} <= named
    back = bench.folder / "back"
    assert [path.relative_to(back) for path in back.rglob("*") if not path.is_dir()] == [Path("results/good")]
    assert not hibali("runs", "show", run_id, "--json").last["collected"]


def test_a_variable_that_changes_which_programs_run_needs_consent(hibali: Any) -> None:
    tool = {
        **doing("echo $PATH >[OUT]"),
        "environment-variables": [{"name": "PATH", "value": "/usr/bin:/bin"}],
    }
    bench = Bench(hibali, {**tool, "container-image": {"type": "docker", "image": "a/b"}})
    (hibali.home.state / "trust.jsonl").unlink()
    bench.add_local_site("confined", "bubblewrap")
    refused = bench.run(bench.answers(), exit=8).last
    assert (refused["code"], "sets PATH" in refused["message"]) == ("not-trusted", True)
    assert not (bench.folder / "work-confined").exists()
    bench.run(bench.answers(), "--dry-run", exit=0)
    hibali("pipelines", "trust", bench.reference, exit=0)
    bench.add_local_site("here")
    run_id = bench.run(bench.answers(), "--wait", exit=0).last["id"]
    hibali("runs", "collect", run_id, "back", exit=0)
    assert (bench.folder / "back" / "out.txt").read_text() == "/usr/bin:/bin\n"
