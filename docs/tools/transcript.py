"""Write the page "What hibali says": every command, typed on a terminal of 80 columns: `python -m docs.tools.transcript PAGE`.

The lines are in transcript.txt; each section is a command, and every section begins in the same home. Before its first line the
command is typed without its arguments and with `--dry-run`, after it with `--json`, where it has these. Ids, times and paths are
replaced, so that two pages can be compared with diff.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shlex
import shutil
import struct
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import click

from docs.tools.generate import contexts_of
from hibali_cli.command import Section
from hibali_cli.root import root
from tests.services.fixtures import Buckets, Hibali, separate_home
from tests.services.fork_server import EARLY, REPOSITORY, ForkServer
from tests.services.processes import MissingPackageError, ServiceError
from tests.services.session import end_session, ensure, new_session
from tests.support.annex import make_repository
from tests.support.documentation_home import DocumentationHome
from tests.support.every_command import remove_busy
from tests.support.terminal import screen_text

_LINES = Path(__file__).with_name("transcript.txt")
_NEW_USER, _ALONE = "new$ ", "only$ "  # other lines begin with "$ "
_COLUMNS, _ROWS, _SECONDS, _MOST_LINES = 80, 24, 30.0, 50
_MORE_SITES = """[sites.archive]
kind = "local"
default_root = "data"
roots = {{ data = "{folder}/archive" }}
[sites.here]
kind = "local"
work = "{folder}/here/work"
default_root = "data"
roots = {{ data = "{folder}/here" }}
[sites.here.scheduler]
name = "direct"
[sites.here.container]
name = "bare"
[sites.here.limits]
poll = "1s"
"""
_HEAD = """# What hibali says

Every command on a terminal of 80 columns, with the exit code in brackets: without its arguments, with `--dry-run`, as usual, and
with `--json`, where it has these; then with other options, and with mistakes. `new$` is typed by somebody who has set up nothing.
hibali does not wrap its messages, the terminal does. Ids, times and paths are replaced.
"""
_REPLACED = (  # what differs from one page to the next
    (r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:?00)", "2026-01-02T03:04:05Z"),
    (r"\b\d{4}-\d\d-\d\d([ T])\d\d:\d\d(:\d\d)?", r"2026-01-02\g<1>03:04\g<2>"),
    (r"(?<=[ (])\d\d:\d\d:\d\d\b", "03:04:05"),
    (r"(?m)(^|  )\d\d:\d\d(?=  )", r"\g<1>03:04"),
    (r"\b\d+ ([a-z]+) \d+ ([a-z]+) ago\b", r"1 \g<1> 1 \g<2> ago"),
    (r"\b\d+\.\d (s|ms)\b", r"0.1 \g<1>"),
    (r"\b\d (s|min)\b", r"1 \g<1>"),
    (r"\b\d+(\.\d+)? ([kMG]i?)?B/s", "9.9 kB/s"),
    (r"\b\d+(\.\d+)? GB and [\d,]+ inodes\b", "99.9 GB and 9,999,999 inodes"),
    (r'("(?:seconds|cpu_seconds|took|age|pid|port|lead)":)[\d.]+', r"\g<1>0"),
    (r'("(?:clock|boot)":)"[^"]*"', r'\g<1>"..."'),
    (r"\b1[78]\d{8}(\.\d+)?\b", "1767323045"),
    (r"\b\d+:\d+:[0-9a-f]{8}:", "1234:5678:0a1b2c3d:"),
    (r"(127\.0\.0\.1|localhost)(:| port )\d+", r"\g<1>\g<2>8000"),
    (r"/\S*/slurm/ssh/home", "/home/me"),
    (r"test-[0-9a-f]{12}", "study"),
    (r"\btoken=[\w-]+", "token=SECRET"),
    (r"\b(X-Amz-(?:Credential|Date|Signature))=[\w%-]+", r"\g<1>=..."),
)


def sections() -> dict[str, list[str]]:
    """Return the lines of each command, as in transcript.txt; those of `before` prepare the home."""
    found: dict[str, list[str]] = {}
    for line in _LINES.read_text("utf-8").splitlines():
        if line.startswith("# "):
            lines = found.setdefault(line.removeprefix("# "), [])
        elif line:
            lines.append(line)
    return found


def shown_commands() -> Iterator[click.Context]:
    """Yield every command that does something itself, in the order of `hibali --help`."""
    found = list(contexts_of(click.Context(root, info_name="hibali")))[1:]
    for section in Section:
        for context in found:
            top = context
            while top.parent is not None and top.parent.parent is not None:
                top = top.parent
            command = context.command
            does = not isinstance(command, click.Group) or command.invoke_without_command
            if does and getattr(top.command, "section", "") == section:
                yield context


class World:
    """A home with sites, data and runs, and a second one of a new user; each section begins with them as they were."""

    def __init__(self, folder: Path, session: Path) -> None:
        self._hibali = Hibali(separate_home(folder / "me", session))
        # a fork has what its interpreter read when it started
        same = {name: value for name, value in os.environ.items() if name.startswith(EARLY)}
        always = {**same, "PYTHONPATH": str(REPOSITORY)}
        always |= {"NO_COLOR": "1", "TERM": "xterm", "EDITOR": "true"}
        self._hibali.env |= always
        self._forks = ForkServer()
        self._home = DocumentationHome(
            self._hibali, ensure(session, "slurm"), Buckets(ensure(session, "object-store"))
        )
        self._home.configure()
        with self._hibali.home.config.open("a") as config:
            config.write(_MORE_SITES.format(folder=self._home.folder))
        for name in ("archive", "here", "shelf"):
            (self._home.folder / name).mkdir()
        self._add_dataset()
        self._home.add_pipelines()
        self._home.fill_bucket()
        self._new = separate_home(folder / "new", session).env | always
        self._ids: dict[str, str] = {}
        self._kept = folder / "kept"
        self._folders = {"me": self._home.folder, "new": folder / "new"}

    def _add_dataset(self) -> None:
        dataset = make_repository(self._home.folder / "dataset", self._hibali.env, self._hibali.home.home)
        (dataset.folder / "scan.nii").write_text("a scan\n")
        dataset.run("annex", "add", "scan.nii")
        dataset.run("commit", "--quiet", "--message", "Add a scan")
        for each in dataset.folder.rglob(
            "*"
        ):  # git-annex protects its contents, and only root could restore them
            if not each.is_symlink():
                each.chmod(each.stat().st_mode | 0o200)

    def prepare(self, lines: list[str]) -> None:
        """Type what was done before, and keep the result for every section."""
        for line in lines:
            shown, code = self.type(line)
            if code:
                raise RuntimeError(f"{line}\n{shown}")
        for name, folder in self._folders.items():
            shutil.copytree(folder, self._kept / name, symlinks=True)

    def restore(self) -> None:
        """Restore all files of both homes."""
        for name, folder in self._folders.items():
            for each in folder.iterdir():
                if each.is_dir() and not each.is_symlink():
                    remove_busy(each)
                else:
                    each.unlink()
            shutil.copytree(self._kept / name, folder, symlinks=True, dirs_exist_ok=True)

    def type(self, line: str) -> tuple[str, int]:
        """Type a line; return what the terminal shows, and the exit code."""
        new = line.startswith(_NEW_USER)
        words = shlex.split(self._with_ids(line.split("$ ", 1)[1]))[1:]
        env = self._new if new else self._hibali.env
        shown, code = self._run(words, env, self._folders["new" if new else "me"])
        return self._replace(shown), code

    def _with_ids(self, line: str) -> str:
        for word, kind in (("RUN_ID", "runs"), ("OPERATION_ID", "operations")):
            if word in line:
                line = line.replace(word, self._home.newest(kind)[-1])
        return line

    def _run(self, words: list[str], env: dict[str, str], folder: Path) -> tuple[str, int]:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
        running = self._forks.start(words, env, folder, theirs, theirs)
        os.close(theirs)
        if running is None:
            raise RuntimeError("the fork server has another environment")
        written, until = b"", time.monotonic() + _SECONDS
        ended = False
        while not ended or select.select([ours], [], [], 0)[0]:
            if time.monotonic() > until:
                running.kill()
            ended = running.poll() is not None
            if select.select([ours], [], [], 0.02)[0]:
                try:
                    written += os.read(ours, 65536)
                except OSError:  # no process has it open any more
                    break
        os.close(ours)
        code = running.wait(1)
        widest = max(map(len, written.split(b"\n")))
        return screen_text(written, widest + 1, written.count(b"\n") + _ROWS), code

    def _replace(self, text: str) -> str:
        for name, folder in self._folders.items():
            text = text.replace(str(folder), f"/home/{name}")
            text = text.replace(str(folder.parent), "/home")  # also in a cell that is shortened
        for each in re.findall(r"\b\d{8}-\d{6}-([0-9a-f]{8})\b", text):
            self._ids.setdefault(each, f"{0x0A1B2C3D + len(self._ids):08x}")
        for each, shown in self._ids.items():
            text = re.sub(rf"\b\d{{8}}-\d{{6}}-{each}\b", f"20260102-030405-{shown}", text)
            text = re.sub(rf"\b{each}\b", shown, text)
        for pattern, shown in _REPLACED:
            text = re.sub(pattern, shown, text)
        return text


def lines_of(context: click.Context, lines: list[str]) -> Iterator[str]:
    """Yield all lines to type for a command, of which transcript.txt has the first and the unusual ones."""
    options = {word for each in context.command.get_params(context) for word in each.opts}
    usual = lines[0]
    if usual.startswith(_ALONE):
        yield usual.removeprefix("only")
    else:
        if any(each.required for each in context.command.params):
            yield f"$ {context.command_path}"
        if "--dry-run" in options:
            yield _with(usual, "--dry-run")
        yield usual
        if "--json" in options:
            yield _with(usual, "--json")
    yield from lines[1:]


def _with(line: str, option: str) -> str:
    before, dashes, after = line.partition(" -- ")
    return f"{before} {option}{dashes}{after}"


def page(world: World, only: list[str]) -> Iterator[str]:
    """Yield the blocks of the page; with `only`, of these commands."""
    written = sections()
    world.prepare(written.pop("before"))
    yield _HEAD
    for context in shown_commands():
        name = context.command_path.removeprefix("hibali ")
        if only and name.split()[0] not in only and name not in only:
            continue
        world.restore()
        yield f"## {name}\n\n```text"
        for line in lines_of(context, written[name]):
            shown, code = world.type(line)
            yield "\n".join([*filter(None, (line, _shortened(shown))), f"[{code}]", ""])
        yield "```\n"


def _shortened(shown: str) -> str:
    """Return the first and last lines of a long output, such as a job script."""
    lines = shown.split("\n")
    left_out = len(lines) - _MOST_LINES
    if left_out <= 1:
        return shown
    return "\n".join([*lines[: _MOST_LINES - 5], f"... ({left_out} more lines)", *lines[-5:]])


def main(words: list[str]) -> int:
    """Write the page; further arguments are the only commands on it."""
    with ExitStack() as closing:
        session = new_session()
        closing.callback(end_session, session)
        folder = Path(tempfile.mkdtemp(prefix="h", dir=session.parent))  # in memory, with a short path
        closing.callback(shutil.rmtree, folder, ignore_errors=True)
        with Path(words[0]).open("w", encoding="utf-8") as stream:
            try:
                world = World(folder, session)
            except (MissingPackageError, ServiceError) as problem:
                stream.write(f"{_HEAD}\nOn this machine the page cannot be made: {problem}\n")
                return 0
            for block in page(world, words[1:]):
                stream.write(block + "\n")
                stream.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
