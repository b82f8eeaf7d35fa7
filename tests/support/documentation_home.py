"""Set up a home in which the documentation's commands work: hosts, bucket, pipelines and files."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import Any

from hibali.ledger import short_identifier
from tests.services.archives import Published, ZenodoArchive
from tests.services.zenodo import Deposition, Zenodo
from tests.support.bids import make_derivatives
from tests.support.documented_commands import REPOSITORY
from tests.support.private_cron import PrivateCron

HOSTS = ("juwels", "jureca")
PIPELINES = {
    "conform": "1.0",
    "nib-conform": "5.3.2",
    "fsl_bet": "1.0.0",
    "bet": "1.0.0",
    "segment": "1.0",
    "report": "1.0",
    "count": "1.0",
    "mriqc": "24.0.2",
    "xcp-d": "0.10",
}
_BIDS_APPS = ("mriqc", "xcp-d")  # they take folders
_HELP = "Usage: bet2 [-f THRESHOLD] FILE\n\nFind the brain.\n\n  -f THRESHOLD  where to cut\n"
_PROGRAM = """import argparse
parser = argparse.ArgumentParser(prog="segment", description="Segment images.")
parser.add_argument("image_file", help="The image")
parser.parse_args()
"""
_CWL_TOOL = """cwlVersion: v1.2
class: CommandLineTool
id: sort
baseCommand: sort
inputs:
  words: {type: File, inputBinding: {}}
stdout: sorted.txt
outputs:
  sorted: stdout
"""
_END = "== the command ended with"
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_SECONDS = 100.0
_SHORT_ID = "a5a41df7"
_ID = r"\bID\b|20260102-030405-0a1b2c3d"


def lines_to_type(page: Path) -> list[str]:
    """Return the indented lines of a page that are typed at a prompt, with continuation lines joined."""
    text = _FENCE.sub("", page.read_text())
    joined = re.sub(r" *\\\n\s+", " ", text)
    found = (
        line[4:] for line in joined.splitlines() if line.startswith("    ") and not line[4:].startswith(" ")
    )
    return [
        line for line in found if re.match(r"(\w+=\$\()?(hibali|echo)\b", line) and "hibali: " not in line
    ]


def descriptor(name: str, version: str) -> dict[str, Any]:
    """Return a tool that copies its inputs and prints its arguments."""
    texts = [
        {"id": each, "name": each, "type": "String", "value-key": f"[{each.upper()}]", "optional": True}
        for each in ("mode", "orientation", "threshold", "subject")
    ]
    files = [
        {"id": each, "name": each, "type": "File", "value-key": f"[{each.upper()}]", "optional": True}
        for each in ("labels" if name == "report" else "in", "t1")
    ]
    result = "page" if name == "report" else "labels"
    return {
        "name": name,
        "tool-version": version,
        "schema-version": "0.5",
        "description": "Finds the brain, and its mask.",
        "command-line": f"{'find' if name in _BIDS_APPS else 'cat'} /dev/null {files[0]['value-key']} [T1] >out.txt; cp out.txt {result}.txt;"
        " echo [MODE] [ORIENTATION] [THRESHOLD] [SUBJECT]",
        "inputs": [*files, *texts],
        "output-files": [
            {"id": "out", "name": "out", "path-template": "out.txt"},
            {"id": result, "name": result, "path-template": f"{result}.txt"},
        ],
    }


class DocumentationHome:
    """A shell in its own folder; `juwels` and `jureca` are one sshd with Slurm, `bucket` is a real
    bucket."""

    def __init__(self, hibali: Any, slurm: Any, buckets: Any) -> None:
        self.hibali = hibali
        self.folder: Path = hibali.home.folder
        self.home: Path = hibali.home.home
        self.slurm = slurm
        self.bucket = buckets.bucket()
        self.replacements = {
            "https://s3.example.org": buckets.endpoint,
            "--bucket study": f"--bucket {self.bucket.name}",
            "--bucket bigbrain": f"--bucket {self.bucket.name}",
            "$SCRATCH": str(self.folder / "juwels"),
            "git@git.example.org:lab/pipelines.git": str(self.folder / "lab.git"),
            "--account brain --partition batch --container podman": "--partition main --container bare",
            "rm -r juwels:@scratch/run7": "rm -r juwels:@scratch/run7 --yes --max-delete 2",
            "--cores 32": "--cores 2",
            "/var/www": str(self.folder / "www"),
            "/var/lib/node_exporter": str(self.folder / "exporter"),
            " /data ": f" {self.folder}/data ",
        }
        self._make_programs()
        self._make_accounts(buckets)
        self._make_files()

    def _make_programs(self) -> None:
        programs = self.folder / "programs"
        programs.mkdir()
        for name, words in (
            ("hibali", [sys.executable, "-P", "-m", "hibali_cli"]),
            ("ssh", [shutil.which("ssh") or "ssh", "-F", str(self.home / ".ssh/config")]),
            ("mail-me", ["cat"]),
            ("bet2", ["printf", _HELP]),
            ("compare-images", ["true"]),
        ):
            path = programs / name
            more = "" if words[0] in {"cat", "printf"} else '"$@"'  # cat must read its standard input only
            path.write_text(f"#!/bin/sh\nexec {shlex.join(words)} {more}\n")
            path.chmod(0o755)
        self.hibali.env["PATH"] = f"{programs}:{self.hibali.env['PATH']}"

    def _make_accounts(self, buckets: Any) -> None:
        (self.home / ".ssh").mkdir(mode=0o700)
        text = self.slurm.config.read_text().replace(f"Host {self.slurm.host}\n", f"Host {' '.join(HOSTS)}\n")
        (self.home / ".ssh/config").write_text(text)
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.home / ".ssh/id_ed25519"], check=True
        )
        (self.home / ".aws").mkdir()
        keys = f"aws_access_key_id = {buckets.access_key}\naws_secret_access_key = {buckets.secret_key}\n"
        (self.home / ".aws/credentials").write_text(f"[lab]\n{keys}[brain]\n{keys}")
        (self.home / ".hook").write_text("a planted secret\n")
        subprocess.run(["git", "init", "-q", "--bare", self.folder / "lab.git"], check=True)

    def _make_files(self) -> None:
        for name in (
            "data/a",
            "data/sub-01.nii",
            "study/data/a",
            "study/sub-07/b",
            "juwels/me/x",
            "juwels/brain/x",
            "run7/x.log",
            "run7/FINISHED",
            "results/r",
            *(f"bids/sub-{number}/anat/sub-{number}_T1w.nii.gz" for number in ("01", "02")),
        ):
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{name}\n")
        for name in ("www/x", "www/hibali", "exporter/textfile", "jureca"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "input.txt").write_text("hello\n")
        for name in ("answers.json", "next.json"):
            (self.folder / name).write_text('{"in": "input.txt"}\n')
        (self.folder / "subjects.csv").write_text("subject\nsub-01\nsub-02\n")
        (self.folder / "values.json").write_text(
            '{"in": "bids/sub-{participant}/anat/sub-{participant}_T1w.nii.gz", "threshold": "0.3"}\n'
        )
        (self.folder / "bids/derivatives").mkdir()
        make_derivatives(self.folder / "bids/derivatives/fmriprep", ["01", "02"])
        (self.folder / "app.json").write_text('{"in": "bids"}\n')
        (self.folder / "both.json").write_text('{"in": "bids", "t1": "bids/derivatives/fmriprep"}\n')
        self._make_descriptors()

    def _make_descriptors(self) -> None:
        (self.folder / "tools").mkdir()
        tested = descriptor("fsl_bet", "1.1.0")
        tested["tests"] = [{"name": "quick", "invocation": {"mode": "fast"}, "assertions": {"exit-code": 0}}]
        (self.folder / "tools/bet.json").write_text(json.dumps(tested))
        old = {**descriptor("old", "1"), "schema-version": "0.4"}
        (self.folder / "old.json").write_text(json.dumps(old))
        for name, version in PIPELINES.items():
            (self.folder / f"{name}.json").write_text(json.dumps(descriptor(name, version)))
        (self.folder / "bet.invocation.json").write_text('{"in": "input.txt"}\n')
        (self.folder / "segment.py").write_text(_PROGRAM)
        (self.folder / "sort.cwl").write_text(_CWL_TOOL)
        (self.folder / "fmriprep").mkdir()
        (self.folder / "fmriprep/version").write_text("25.0\n")
        (self.folder / "fmriprep/Dockerfile").write_text('FROM python:3\nENTRYPOINT ["fmriprep"]\n')

    def configure(self) -> None:
        """Configure the sites as other pages describe."""
        config = "version = 1\n"
        for name in HOSTS:
            root = self.folder / name
            for folder in ("archive", "data"):
                (root / folder).mkdir()
            config += (
                f'[sites.{name}]\nkind = "ssh"\nwork = "@scratch/hibali"\ndefault_root = "scratch"\n'
                f'roots = {{ scratch = "{root}", archive = "{root}/archive", data = "{root}/data" }}\n'
                f'[sites.{name}.ssh]\nhost = "{name}"\n[sites.{name}.container]\nname = "bare"\n'
                f'[sites.{name}.scheduler]\nname = "slurm"\ndirectives = ["--mem=50"]\n'
                f'[sites.{name}.limits]\npoll = "1s"\nlogin_interval = "0s"\n'
            )
        config += (
            f'[sites.bucket]\nkind = "s3"\n[sites.bucket.s3]\nendpoint = "{self.bucket.store.endpoint}"\n'
            f'bucket = "{self.bucket.name}"\nprofile = "lab"\n'
        )
        self.hibali.home.config.write_text(config)
        self.hibali.home.config.chmod(0o600)

    @contextmanager
    def open_archives(self) -> Iterator[None]:
        """Start the archive of a dataset and that of a draft, to which `sites add` leads until the block ends."""
        dataset, drafts = ZenodoArchive([Published("README.md", b"A dataset.\n")]), Zenodo()
        drafts.depositions[1234567] = Deposition(1234567, {})
        self.hibali.env["ZENODO_TOKEN"] = drafts.token
        self.replacements |= {
            "--doi 10.5281/zenodo.1234567": f"--doi {dataset.doi} --set doi.url={dataset.url}",
            "--zenodo 1234567": f"--zenodo 1234567 --set zenodo.url={drafts.url}",
        }
        try:
            yield
        finally:
            dataset.close()
            drafts.close()

    def fill_bucket(self) -> None:
        """Fill the bucket with a study, without hibali."""
        for name in ("raw/a.nii.gz", "raw/b", "scans/brain.nii"):
            self.bucket.client.put_object(Bucket=self.bucket.name, Key=name, Body=name.encode())

    def add_pipelines(self) -> None:
        """Add all pipelines, with consent to run without a container."""
        for name, version in PIPELINES.items():
            self.hibali("pipelines", "add", f"{name}.json", exit=0)
            self.hibali("pipelines", "trust", f"{name}@{version}", exit=0)

    def newest(self, kind: str = "runs") -> list[str]:
        """Return the ids of successful runs or operations, the latest last."""
        words = ("runs", "list") if kind == "runs" else ("history",)
        lines = self.hibali(*words, "--json", exit=0).lines
        return [
            each["id"] for each in lines if each.get("state", each.get("result")) in {"SUCCEEDED", "done"}
        ]

    def type_all(self, lines: list[str]) -> Iterator[tuple[str, int, str]]:
        """Run the lines in one shell; yield each with its exit code and output."""
        cron = PrivateCron(self.folder / "cron")
        with subprocess.Popen(
            [*cron.words, "sh"],
            cwd=self.folder,
            env=self.hibali.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as shell:
            for line in lines:
                limit = Timer(_SECONDS, os.killpg, (shell.pid, signal.SIGKILL))
                limit.start()
                yield line, *self._type(shell, self._with_replacements(line))
                limit.cancel()

    def _with_replacements(self, line: str) -> str:
        for shown, actual in self.replacements.items():
            line = line.replace(shown, actual)
        if re.search(r"\b(A_ID|B_ID)\b", line):
            line = line.replace("A_ID", self.newest()[-2]).replace("B_ID", self.newest()[-1])
        if _SHORT_ID in line:
            line = line.replace(_SHORT_ID, short_identifier(self.newest()[-1]))
        if re.search(_ID, line):
            line = re.sub(_ID, self.newest("operations" if "history show" in line else "runs")[-1], line)
        return line

    @staticmethod
    def _type(shell: subprocess.Popen[str], command: str) -> tuple[int, str]:
        assert shell.stdin is not None
        assert shell.stdout is not None
        shell.stdin.write(f'{{ {command}\n}} </dev/null; echo "{_END} $?"\n')
        shell.stdin.flush()
        printed: list[str] = []
        while not (line := shell.stdout.readline()).startswith(_END):
            assert line, f"the shell ended at: {command}\n{''.join(printed)}"
            printed.append(line)
        return int(line.removeprefix(_END)), "".join(printed)


def page(name: str) -> Path:
    """Return the path of a page, or of the README."""
    return REPOSITORY / (f"docs/{name}.md" if name != "README" else "README.md")
