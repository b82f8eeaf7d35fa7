"""Test the parts that all commands share: help, failures, signals and closed outputs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from docs.tools.generate import contexts_of
from hibali.plugins import if_offered
from hibali_cli.root import root

HISTORY = [["history"]] if if_offered("history", "history") else []
HIBALI = str(Path(sys.executable).parent / "hibali")
HEAVY = (
    "fsspec",
    "s3fs",
    "datalad",
    "globus_sdk",
    "boutiques",
    "rich",
    "asyncio",
    "botocore",
    "obstore",
    "tomlkit",
    "websockets",
)
PROBE = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # the parent process may ignore it
import click
from hibali_cli.command import command
from hibali_cli.output import prepare_streams
from hibali_cli.root import root, run_command
from hibali.errors import AccessError

@command("probe")
@click.argument("what")
def probe(common, what):
    "Try what a command can do."
    print("ready", file=sys.stderr, flush=True)
    if what == "sleep":
        time.sleep(60)
    if what == "bug":
        raise ZeroDivisionError("hunter2")
    if what == "access":
        raise AccessError("denied", "no\\x1b[31m entry", subject="site\\nx", hint="ask")
    if what == "many":
        for number in range(100000):
            common.output.record("entry", {"path": "x" * 20})
        return 0
    if what == "three":
        return 3
    common.output.line("caf\\u00e9\\x1b[0m")

root.add_command(probe)
prepare_streams()
sys.exit(run_command(sys.argv[1:]))
"""

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    state = tmp_path / "state"
    config = tmp_path / "config.toml"
    return {**os.environ, "HIBALI_STATE": str(state), "HIBALI_CONFIG": str(config), "NO_COLOR": "1"}


@pytest.fixture
def run(environment: dict[str, str]) -> Run:
    def run_words(*words: str, **named: object) -> subprocess.CompletedProcess[str]:
        settings = {"capture_output": True, "text": True, "env": environment, "timeout": 60, **named}
        return subprocess.run(words, check=False, **settings)  # type: ignore[call-overload, no-any-return]

    return run_words


COMMANDS = list(contexts_of(click.Context(root, info_name="hibali")))


@pytest.mark.parametrize("word", ["--version", "-V", "--help"])
def test_version_and_help_import_nothing_heavy(run: Run, word: str) -> None:
    program = (
        "import sys, atexit\n"
        f"atexit.register(lambda: print(sorted(set(sys.modules) & set({HEAVY!r})), file=sys.stderr))\n"
        f"sys.argv = ['hibali', {word!r}]\n"
        "from hibali_cli.main import main\n"
        "main()\n"
    )
    done = run(sys.executable, "-c", program)
    assert (done.returncode, done.stderr.strip()) == (0, "[]")
    assert "hibali" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "unused"),
    [
        (("sync", "{here}", "{there}"), ("globus_sdk", "requests", "botocore", "aiohttp", "datalad")),
        (
            ("sync", "{here}", "{there}"),
            (
                "transfers.stores.sftp.store",
                "hibali_plugins.gridftp.route",
                "transfers.history.index",
            ),
        ),
        (("runs", "list"), ("transfers.engine.operation", "runs.inputs", "globus_sdk")),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_commands_import_only_what_they_use(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], unused: tuple[str, ...]
) -> None:
    """Check the imports, which take most of the start-up time."""
    (tmp_path / "here").mkdir()
    words = [each.format(here=tmp_path / "here", there=tmp_path / "there") for each in arguments]
    done = run(sys.executable, "-X", "importtime", HIBALI, *words)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert done.returncode == 0
    assert imported & set(unused) == set()


def test_the_version_needs_neither_click_nor_plugins(run: Run) -> None:
    done = run(sys.executable, "-X", "importtime", HIBALI, "--version")
    assert "click" not in done.stderr
    assert "hibali.plugins" not in done.stderr


@pytest.mark.parametrize("context", COMMANDS, ids=lambda context: context.command_path)
def test_every_help_describes_the_command_and_says_where_exit_codes_are(context: click.Context) -> None:
    text = context.get_help()
    first = (context.command.help or "").strip().split("\n\n")[0].strip()
    assert first.endswith(".")
    assert "hibali help exit-codes" in text
    for option in context.command.params:
        if isinstance(option, click.Option):
            assert (option.help or "").endswith((".", "...")), option.name


def test_python_m_starts_the_same_program(run: Run) -> None:
    assert run(sys.executable, "-m", "hibali_cli", "--version").stdout == run(HIBALI, "--version").stdout


@pytest.mark.parametrize(
    "words",
    [
        ["sits"],
        ["sites", "list", "--nope"],
        ["sites", "show"],
        ["sites", "list", "--max-time", "soon"],
    ],
)
def test_wrong_usage_is_2_and_names_help(run: Run, words: list[str]) -> None:
    done = run(HIBALI, *words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "--help" in done.stderr
    assert "Traceback" not in done.stderr


GROUPS = [
    context.command_path.split()[1:]
    for context in COMMANDS
    if isinstance(context.command, click.Group) and not context.command.invoke_without_command
]


@pytest.mark.parametrize("words", GROUPS, ids=" ".join)
def test_a_group_without_a_command_shows_its_help_on_stdout_and_is_2(hibali: Any, words: list[str]) -> None:
    done = hibali(*words, exit=2)
    out = done.out.decode()
    assert done.err == b""
    if words:
        assert done.out == hibali(*words, "--help", exit=0).out
        assert out.startswith(f"Usage: hibali {' '.join(words)} ")
    else:
        assert "hibali sites add" in out
        assert "hibali --help" in out


def test_a_failure_with_json_ends_stdout_with_its_record(run: Run) -> None:
    done = run(HIBALI, "sites", "show", "nowhere", "--json")
    assert done.returncode == 2
    record = json.loads(done.stdout.splitlines()[-1])
    assert (record["kind"], record["code"], record["exit"]) == ("error", "unknown-site", 2)


@pytest.mark.parametrize(
    ("words", "last", "count"),
    [
        (["sites", "list"], "end", 1),
        (["sites", "show", "nowhere"], "error", 1),
        (["sites", "show"], "error", 1),
        pytest.param(["probe", "many"], "entry", 100_000, marks=pytest.mark.heavy),
        (["probe", "three"], "", 0),
        (["probe", "bug"], "error", 1),
        (["probe", "sleep", "--max-time", "0.2s"], "error", 1),
    ],
)
def test_a_json_array_is_one_document_with_the_same_objects(
    run: Run, words: list[str], last: str, count: int
) -> None:
    program = [sys.executable, "-c", PROBE] if words[0] == "probe" else [HIBALI]
    lines = run(*program, *words, "--json")
    array = run(*program, *words, "--json-array")
    assert array.returncode == lines.returncode
    found = json.loads(array.stdout)
    assert len(found) == count
    assert all(each["kind"] == last for each in found)
    if "bug" not in words:  # its report has another name
        assert found == [json.loads(line) for line in lines.stdout.splitlines()]


def test_similar_commands_are_suggested(run: Run) -> None:
    assert "sites" in run(HIBALI, "site").stderr


def test_errors_are_escaped_on_a_terminal(run: Run) -> None:
    done = run(sys.executable, "-c", PROBE, "probe", "access")
    assert done.returncode == 4
    assert "\x1b" not in done.stderr
    assert r"site\nx" in done.stderr
    assert "ask" in done.stderr


def test_a_bug_is_1_and_its_traceback_in_a_private_file(run: Run, tmp_path: Path) -> None:
    done = run(sys.executable, "-c", PROBE, "probe", "bug", "--json")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr + done.stdout
    assert "hunter2" not in done.stderr + done.stdout
    record = json.loads(done.stdout)
    report = Path(record["about"])
    assert report.is_relative_to(tmp_path / "state")
    assert "ZeroDivisionError" in report.read_text()
    assert report.stat().st_mode & 0o077 == 0


def test_an_unwritable_state_folder_hides_no_failure(run: Run, environment: dict[str, str]) -> None:
    environment["HIBALI_STATE"] = "/proc/none"
    done = run(sys.executable, "-c", PROBE, "probe", "bug")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_with_their_exit_codes(environment: dict[str, str], number: int, code: int) -> None:
    words = [sys.executable, "-c", PROBE, "probe", "sleep", "--json-array"]
    with subprocess.Popen(words, env=environment, stdout=-1, stderr=-1, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "ready\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert json.loads(out)[0]["exit"] == code
    assert "Traceback" not in err


def test_max_time_stops_with_5(run: Run) -> None:
    done = run(sys.executable, "-c", PROBE, "probe", "sleep", "--max-time", "0.2s")
    assert done.returncode == 5
    assert "--max-time" in done.stderr


def test_a_command_sets_its_exit_code(run: Run) -> None:
    assert run(sys.executable, "-c", PROBE, "probe", "three").returncode == 3


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["sites", "list"], ["sites", "list", "--json"]])
@pytest.mark.parametrize("output", [">&-", ">/dev/full"])
def test_an_unwritable_stdout_never_exits_0(run: Run, words: list[str], output: str) -> None:
    done = run("sh", "-c", f'"$@" {output}', "sh", HIBALI, *words)
    assert done.returncode == 6
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_a_closed_pipe_exits_6_without_a_message(run: Run) -> None:
    done = run(
        "bash",
        "-c",
        '"$@" | head -n 1; exit ${PIPESTATUS[0]}',
        "bash",
        sys.executable,
        "-c",
        PROBE,
        "probe",
        "many",
    )
    assert done.returncode == 6
    assert done.stderr == "ready\n"


@pytest.mark.heavy
@pytest.mark.parametrize("options", [[], pytest.param(["--json"], marks=pytest.mark.heavy)])
def test_a_reader_of_a_listing_that_stops_early_is_no_failure(
    run: Run, tmp_path: Path, options: list[str]
) -> None:
    """Whether it stops while hibali lists or at the very end."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for number in range(900):
        (tree / f"{number:0200}").write_bytes(b"1")
    (tree / "large").write_bytes(bytes(2_000_000))
    run(HIBALI, "sites", "add", "here", "--local", str(tree))
    early = 'exec 2>&1; "$@" | head -c 1 >/dev/null; echo ${PIPESTATUS[0]}'
    for words in (
        ["ls", "-R", "here:"],
        ["cat", "here:large"],
        ["sites", "list"],
        ["runs", "list"],
        *HISTORY,
    ):
        if words[0] != "cat" or not options:
            said = run("bash", "-c", early, "bash", HIBALI, *words, *options).stdout
            assert said.splitlines()[-1] == "0", words
            assert "hibali: " not in said, words


def test_a_closed_stderr_is_ignored(run: Run) -> None:
    done = run("sh", "-c", '"$@" 2>&-', "sh", HIBALI, "sites", "list", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["kind"] == "end"


def test_characters_that_a_locale_lacks_cause_no_failure(run: Run, environment: dict[str, str]) -> None:
    environment |= {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    done = run(sys.executable, "-c", PROBE, "probe", "line")
    assert done.returncode == 0
    assert done.stdout == "caf\\xe9\\x1b[0m\n"


def test_misspelled_commands_get_suggestions(hibali: Any) -> None:
    hibali("sites", "add", "juwels", "--local", "/tmp", "--no-check", exit=0)
    for words, meant in (
        (("pusj", "a", "b"), "'push'"),
        (("upload", "a", "b"), "'push'"),
        (("sites", "lst"), "'list'"),
        (("push", "a", "juwels:b", "--dry-rum"), "'--dry-run'"),
        (("ls", "juwles:x"), "juwels"),
        (("sites", "check", "jwels"), "juwels"),
        (("sites", "show", "juwel"), "juwels"),
    ):
        assert f"Did you mean {meant}?" in hibali(*words, exit=2).err.decode(), words
