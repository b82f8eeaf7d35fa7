"""Call every command in a prepared home, and damage or restore the files that it uses."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from hibali_cli.root import root
from tests.end_to_end.run_tools import DESCRIPTOR, Bench

RUN, OPERATION = "{run}", "{operation}"
_TEST = {
    "name": "quick",
    "invocation": {"in": "input.txt"},
    "assertions": {"output-files": [{"id": "out_file"}]},
}
# The arguments of each command that is not a group; --max-time ends those that run forever.
CWL = "cwlVersion: v1.2\nclass: CommandLineTool\nbaseCommand: true\ninputs: {}\noutputs: {}\n"
CALLS: dict[str, tuple[str, ...]] = {
    "apply": ("plan",),
    "bundle create": (RUN, "-o", "new.zip"),
    "bundle run": ("old.zip", "--site", "here", "--no-wait"),
    "bundle show": ("old.zip",),
    "cat": ("here:data/input.txt",),
    "config edit": (),
    "datasets check": ("study",),
    "config get": ("sites.here.kind",),
    "config list": (),
    "config path": (),
    "config set": ("sites.here.limits.login_interval", "2s"),
    "config unset": ("sites.here.default_root",),
    "cp": ("here:data", "here:copies"),
    "doctor": ("here",),
    "dashboard": ("--no-open", "--max-time", "2s"),
    "drop": ("files/input.txt", "--at", "here:data/input.txt"),
    "du": ("here:data",),
    "help": ("exit-codes",),
    "history": (),
    "history compact": ("--older-than", "1d"),
    "history show": (OPERATION,),
    "init": ("--yes",),
    "ls": ("here:data",),
    "manifest": ("here:data",),
    "mkdir": ("here:new",),
    "mv": ("here:data", "here:moved"),
    "nipoppy fetch": ("study",),
    "nipoppy setup": ("study", "here:/study"),
    "nipoppy submit": ("run_queue.sh",),
    "notebook": ("--site", "here"),
    "pipelines add": ("other.json",),
    "pipelines create": ("sort",),
    "pipelines deprecate": ("{tool}",),
    "pipelines diff": ("{tool}", "{tool}"),
    "pipelines evaluate": ("{tool}", "answers.json"),
    "pipelines example": ("{tool}",),
    "pipelines export": ("{tool}", "--to", "cwl"),
    "pipelines fetch": ("--from", "shelf"),
    "pipelines image add": ("{tool}", "--archive", "old.zip"),
    "pipelines image drop": ("{tool}",),
    "pipelines image get": ("{tool}", "--from", "shelf"),
    "pipelines image show": ("{tool}",),
    "pipelines import": ("tool.cwl",),
    "pipelines list": (),
    "pipelines publish": ("{tool}", "--to", "shelf"),
    "pipelines remotes add": ("more", "{folder}/more"),
    "pipelines remotes list": (),
    "pipelines remotes remove": ("shelf",),
    "pipelines remove": ("{tool}",),
    "pipelines search": ("letters",),
    "pipelines show": ("{tool}",),
    "pipelines sign": ("{tool}", "--key", "key"),
    "pipelines stage": ("{tool}", "--site", "here"),
    "pipelines test": ("{tool}", "--site", "here"),
    "pipelines trust": ("{tool}",),
    "pipelines upgrade": ("other.json",),
    "pipelines validate": ("other.json",),
    "plan": ("files", "here:data", "-o", "new plan"),
    "pull": ("here:data", "back"),
    "push": ("files", "here:more"),
    "report": (),
    "rm": ("--yes", "here:data/input.txt"),
    "run": ("{tool}", "answers.json", "--site", "here", "--wait"),
    "runs adopt": ("here",),
    "runs cancel": (RUN,),
    "runs clean": ("--site", "here", "--all-ended", "--yes"),
    "runs collect": (RUN, "collected"),
    "runs compare": (RUN, RUN),
    "runs export": (RUN, "--ro-crate", "crate"),
    "runs list": (),
    "runs logs": (RUN,),
    "runs participants": ("{tool}", "named.json", "bids"),
    "runs release": (RUN,),
    "runs report": (RUN, "-o", "report.html"),
    "runs rerun": (RUN,),
    "runs show": (RUN,),
    "runs tunnel": (RUN, "8888"),
    "runs wait": (RUN,),
    "runs watch": (RUN, "--max-time", "2s"),
    "schedule add": ("new", "--cron", "0 4 * * *", "--by", "print", "--no-check", "--", "ls", "here:data"),
    "schedule check": ("nightly",),
    "schedule list": (),
    "schedule log": ("nightly",),
    "schedule metrics": ("--file", "metrics.prom"),
    "schedule notify": (),
    "schedule pause": ("nightly",),
    "schedule remove": ("nightly",),
    "schedule resume": ("nightly",),
    "schedule run": ("nightly",),
    "schedule show": ("nightly",),
    "share add": ("here:data/input.txt", "--with", "root", "--dry-run"),
    "share link": ("here:data/input.txt",),
    "share list": (),
    "share rm": ("--ended",),
    "sites add": ("more", "--local", "{folder}/files"),
    "sites cache evict": ("here", "--keep", "0"),
    "sites cache list": ("here",),
    "sites check": ("here",),
    "sites clean": ("here",),
    "sites gate": (),
    "sites import": ("ssh",),
    "sites list": (),
    "sites login": ("here",),
    "sites logout": ("here",),
    "sites remove": ("here",),
    "sites show": ("here",),
    "sites usage": ("here",),
    "status": (),
    "sync": ("files", "here:data"),
    "verify": ("here:data",),
}


def commands(context: click.Context | None = None, above: str = "") -> Iterator[str]:
    """Yield the name of every command that is not a group."""
    context = context or click.Context(root)
    assert isinstance(context.command, click.Group)
    for name in context.command.list_commands(context):
        found = context.command.get_command(context, name)
        assert found is not None
        words = f"{above} {name}".strip()
        if not isinstance(found, click.Group) or found.invoke_without_command:
            yield words
        if isinstance(found, click.Group):
            yield from commands(click.Context(found, info_name=name, parent=context), words)


def remove_busy(folder: Path) -> None:
    """Remove a folder in which a job of an earlier command may still write its last files."""
    for _ in range(100):
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
            return
        time.sleep(0.1)
    shutil.rmtree(folder)


class PreparedHome:
    """A home with a site, data, runs, a plan, a schedule and a remote; restored before every call."""

    def __init__(self, hibali: Any, *, small: bool = False) -> None:
        """Make the home; `small` omits data that few commands need."""
        self.hibali = hibali
        self.folder: Path = hibali.home.folder
        hibali.env["EDITOR"] = "true"
        bench = Bench(hibali, {**DESCRIPTOR, "tests": [_TEST]})
        work = bench.add_local_site()
        config = hibali.home.config
        config.write_text(
            config.read_text().replace('kind = "local"\n', 'kind = "local"\ndefault_root = "data"\n', 1)
            + f'\n[sites.here.roots]\ndata = "{self.folder}/there"\n'
        )
        work.mkdir(exist_ok=True)
        (self.folder / "there").mkdir()
        (self.folder / "files").mkdir()
        (self.folder / "shelf").mkdir()
        (self.folder / "files/input.txt").write_text("hello\n")
        (self.folder / "tool.cwl").write_text(CWL)
        (self.folder / "bids" / "sub-01").mkdir(parents=True)
        (self.folder / "named.json").write_text('{"in": "bids/sub-{participant}/x"}')
        (self.folder / "other.json").write_text(
            (self.folder / "tool.json").read_text().replace("Count", "Other")
        )
        answers = bench.answers()
        run = bench.run(answers, "--wait", exit=0).last
        pushed = hibali("push", "files", "here:data", "--json", exit=0).last
        self._call_if_there("schedule add", "nightly", *CALLS["schedule add"][1:])
        if not small:
            self._add_more(run["id"])
        self._names = {
            "run": run["id"],
            "operation": pushed["id"],
            "tool": bench.reference,
            "folder": str(self.folder),
        }
        self.backup = self.folder.with_name("backup")
        shutil.copytree(self.folder, self.backup, symlinks=True)

    def _add_more(self, run: str) -> None:
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / "key"], check=True)
        self.hibali("plan", "files", "here:more", "-o", "plan", exit=0)
        self._call_if_there("bundle create", run, "-o", "old.zip")
        self._call_if_there("pipelines remotes add", "shelf", self.folder / "shelf")
        self._call_if_there("schedule run", "nightly")

    def _call_if_there(self, command: str, *words: Any) -> None:
        """Call a command of a folder of hibali_plugins, unless that was removed."""
        if command in commands():
            self.hibali(*command.split(" "), *words, exit=0)

    def words(self, command: str) -> tuple[str, ...]:
        """Return the call of a command."""
        return tuple(word.format(**self._names) for word in (*command.split(" "), *CALLS[command]))

    def restore(self) -> None:
        """Restore all files; the top folder stays, because it may be a mount point."""
        for each in self.folder.iterdir():
            if each.is_dir() and not each.is_symlink():
                remove_busy(each)
            else:
                each.unlink()
        shutil.copytree(self.backup, self.folder, symlinks=True, dirs_exist_ok=True)

    def own_files(self) -> list[Path]:
        """Return every file of hibali's state and configuration."""
        found = [path for path in self.hibali.home.state.rglob("*") if path.is_file()]
        return sorted([*found, self.hibali.home.config])

    def call(self, command: str, *prefix: str, env: dict[str, str] | None = None) -> Any:
        """Run the command."""
        json = () if command in {"cat", "schedule add"} else ("--json",)
        if not prefix:
            return self.hibali(*self.words(command), *json, env=env, timeout=100)
        command_line = self.hibali.command
        self.hibali.command = lambda *words: (*prefix, *command_line(*words))
        try:
            return self.hibali(*self.words(command), *json, env=env, timeout=100)
        finally:
            self.hibali.command = command_line


def into_folder(path: Path) -> None:
    """Replace a file by a folder."""
    path.unlink()
    path.mkdir(mode=0o700)
    (path / "something").touch()


def is_root() -> bool:
    """Return whether permissions have no effect."""
    return os.geteuid() == 0
