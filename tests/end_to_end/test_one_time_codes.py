"""Test logins with one-time codes at a real PAM: few prompts, and never a code twice or an empty one, which can lock an account."""

from __future__ import annotations

import json
import re
import secrets
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.run_tools import Bench
from tests.services.processes import MissingPackageError, end_all
from tests.services.sshd import SshServer, start_one_time_code_sshd
from tests.support.requirements import skip_or_fail
from tests.support.terminal import Terminal
from tests.support.trees import make_tree, random_bytes

_PROMPT = re.compile(rb"Password:")


class CodeSite:
    """The site `far`, and a person at a terminal who types a new code at each prompt."""

    def __init__(self, hibali: Any, server: SshServer) -> None:
        self.hibali = hibali
        self.folder = Path(server.folder)
        self._server = server
        self._codes = 0
        (server.home / "data/frozen").mkdir(parents=True)

    def configure(self, more: str = "", *, site: str = "") -> None:
        """Write the configuration; `more` are further settings of the ssh table, `site` of the site's own."""
        roots = f'{{ data = "{self._server.home}/data", frozen = "{self._server.home}/data/frozen" }}'
        self.hibali.home.config.write_text(
            f'[sites.far]\nkind = "ssh"\nroots = {roots}\ndefault_root = "data"\nread_only = ["frozen"]\n{site}\n'
            '[sites.far.limits]\nlogin_interval = "0s"\nreconnect = "0s"\npoll = "1s"\n'
            f'[sites.far.ssh]\nhost = "{self._server.host}"\ncommand = {json.dumps(self._server.command)}\n{more}\n'
        )

    def start(self, line: str) -> Terminal:
        """Start a command on a terminal."""
        return Terminal(self.hibali.command(*line.split()), self.hibali.env, cwd=self.hibali.home.folder)

    def answer(self, terminal: Terminal) -> int:
        """Type a code at each prompt until the command ends; return the number of prompts."""
        prompts = 0
        while terminal.process.poll() is None:
            prompts += self.answer_next(terminal, prompts)
        return prompts

    def answer_next(self, terminal: Terminal, answered: int) -> bool:
        """Wait a moment for a further prompt, and type a code there; return whether there was one."""
        terminal.read(0.1)
        if len(_PROMPT.findall(terminal.written)) <= answered:
            return False
        self._codes += 1
        code = f"code{self._codes:04d}"
        with (self.folder / "codes").open("a") as stream:
            stream.write(f"{code}\n")
        terminal.press(f"{code}\n".encode())
        return True

    def prompts_of(self, line: str, code: int = 0) -> int:
        """Run a command; return the number of its prompts."""
        terminal = self.start(line)
        prompts = self.answer(terminal)
        assert terminal.end() == code, terminal.written.decode()
        return prompts

    @property
    def tried(self) -> list[str]:
        """All codes that reached the server."""
        return (self.folder / "tried").read_text().splitlines()


@pytest.fixture
def site(hibali: Any, tmp_path: Path) -> Iterator[CodeSite]:
    session = tmp_path / "own"
    session.mkdir()
    try:
        server = start_one_time_code_sshd(session, tmp_path / "sshd", "MaxSessions 1\n")
        make_tree(hibali.home.folder / "d", {b"a": b"1", b"b": random_bytes(3, 5_000_000)})
        yield CodeSite(hibali, server)
    except MissingPackageError as problem:
        skip_or_fail(str(problem))
    finally:
        end_all(session)


COMMANDS = (
    "push d far:d",
    "ls far:d",
    "sync d far:d --delete",
    "verify far:d",
    "pull far:d back",
    "pull far:d/a one",
    "cat far:d/a",
    "du far:d",
    "mkdir far:new",
    "mv far:d/a far:new/c",
    "mv far:new far:old",
    "rm --yes far:old/c",
    "rm --yes -r far:d",
    "sites check far",
    "doctor far --no-job",
)

WITHIN = (  # two stores at a time, and a third agent that passes the files on there
    "push d far:d",
    "cp far:d far:e",
    "cp far:d far:other/e",
    "mv far:e far:other/f",
    "sync far:d far:other/f",
    "verify far:d far:other/f",
)


@pytest.mark.heavy
@pytest.mark.parametrize("transport", ["agent", "sftp"])
def test_a_login_that_is_kept_asks_once_for_all_commands(site: CodeSite, transport: str) -> None:
    site.configure(f'transport = "{transport}"')
    assert [site.prompts_of(line) for line in COMMANDS] == [1] + [0] * (len(COMMANDS) - 1)
    assert site.tried == ["code0001"]


@pytest.mark.heavy
@pytest.mark.parametrize("transport", ["agent", "sftp"])
def test_where_no_login_is_kept_each_command_asks_once(site: CodeSite, transport: str) -> None:
    site.configure(f'persist = "no"\ntransport = "{transport}"')
    assert [site.prompts_of(line) for line in COMMANDS] == [1] * len(COMMANDS)
    assert site.tried == [f"code{number:04d}" for number in range(1, 1 + len(COMMANDS))]


@pytest.mark.heavy
@pytest.mark.parametrize("persist", [pytest.param("", marks=pytest.mark.heavy), 'persist = "no"'])
def test_a_copy_within_a_site_asks_at_most_once(site: CodeSite, persist: str) -> None:
    """The agents share the one session that the server allows; also to another filesystem."""
    here = Path(site.folder).stat().st_dev  # the tests' own folders may be in memory
    elsewhere = next(path for path in map(Path, ("/dev/shm", "/var/tmp")) if path.stat().st_dev != here)
    other = elsewhere / f"hibali-{secrets.token_hex(8)}"
    other.mkdir()
    try:
        site.configure(persist)
        (Path(site.folder) / "home/data/other").symlink_to(other)
        asked = [site.prompts_of(line) for line in WITHIN]
        assert (other / "f/b").read_bytes() == random_bytes(3, 5_000_000)
    finally:
        shutil.rmtree(other)
    assert asked == [1] * len(WITHIN) if persist else [1] + [0] * (len(WITHIN) - 1)
    assert len(set(site.tried)) == len(site.tried) == sum(asked)


@pytest.mark.heavy
@pytest.mark.parametrize("persist", ["", 'persist = "no"'])
def test_each_command_of_a_run_asks_at_most_once(site: CodeSite, persist: str) -> None:
    """The server allows one session at a time, also for the inputs and outputs of a run."""
    bench = Bench(site.hibali)
    site.configure(persist, site=f'work = "{site.folder}/home/work"\nscheduler = {{ name = "direct" }}')
    bench.site = "far"
    line = " ".join(bench.line(bench.answers()))
    asked = [site.prompts_of(f"{line} --new --wait --collect out"), site.prompts_of(f"{line} --new")]
    [run] = bench.run_ids()[1:]
    commands = ("wait", "show", "logs", "collect", "show")
    asked += [site.prompts_of(f"runs {command} {run}") for command in commands]
    line = " ".join(bench.line(bench.answers(sleep=600)))
    asked.append(site.prompts_of(line))
    asked.append(site.prompts_of(f"runs cancel {bench.run_ids()[-1]}"))
    assert asked == ([1, 1, 1, 0, 1, 1, 0, 1, 1] if persist else [1] + [0] * 8)
    assert len(set(site.tried)) == len(site.tried) == sum(asked)


@pytest.mark.parametrize("more", ["", 'persist = "no"'])
def test_without_a_terminal_no_code_is_tried(site: CodeSite, more: str) -> None:
    site.configure(more)
    answer = site.hibali("ls", "far:", "--json", exit=4)
    assert answer.last["code"] == "login-refused"
    assert site.tried == []


def test_a_command_interrupted_at_its_prompt_sends_nothing(site: CodeSite) -> None:
    site.configure('persist = "no"')
    terminal = site.start("push d far:d")
    terminal.until(lambda screen: "Password:" in screen)
    terminal.press(b"\x03")
    assert terminal.end() == 128 + signal.SIGINT
    time.sleep(0.5)
    assert site.tried == []


@pytest.mark.heavy
def test_a_transfer_that_is_interrupted_without_a_kept_login_is_resumed(site: CodeSite) -> None:
    site.configure('persist = "no"')
    config = site.hibali.home.config
    config.write_text(
        config.read_text().replace("[sites.far.limits]", '[sites.far.limits]\nbandwidth = "1MB"')
    )
    terminal = site.start("push d far:d")
    while not site.answer_next(terminal, 0):
        pass
    time.sleep(2.5)
    terminal.press(b"\x03")
    assert terminal.end() == 128 + signal.SIGINT, terminal.written.decode()
    assert site.prompts_of("push d far:d") == 1
    assert site.prompts_of("verify d far:d") == 1
