"""Test the recipes for frameworks as written: their files, and their commands with the output, at a Slurm of two nodes."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.services.session import REPOSITORY
from tests.support.documented_commands import is_as_shown, sessions
from tests.support.external_programs import environment_with_hibali
from tests.support.folders import describes_all
from tests.support.requirements import require_prepared

FOLDER = REPOSITORY / "docs/frameworks"
_FILE = re.compile(r"^`(?P<name>[\w.-]+)`:\n\n```\w+\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_DEBIAN = Path("/usr/bin")
_OWN = REPOSITORY / ".cache/frameworks/bin"


@dataclass(frozen=True)
class Needs:
    """What the site of a page loads: the folder with this program first in PATH, and TOML of its table `scheduler`."""

    program: Path
    scheduler: str = ""
    prologue: tuple[str, ...] = ()
    part: str = "frameworks"  # of tests/prepare.sh


RECIPES: Mapping[str, Needs] = {
    # the torchrun of Debian 12 fails with its default, no redirection, because Python 3.11 does not list a flag of value 0
    "pytorch": Needs(_DEBIAN / "torchrun", prologue=("export PET_REDIRECTS=1 PET_TEE=1",)),
    "dynamics": Needs(_DEBIAN / "gmx", 'mpi = "srun --mpi=pmix"'),
    "spark": Needs(_OWN / "spark-submit"),
    "dask": Needs(REPOSITORY / ".cache/dask/bin/dask", part="dask"),
    "sklearn": Needs(_OWN / "python3"),
    "keras": Needs(_OWN / "python3"),
    "blocks": Needs(_OWN / "python3"),
    "ensembles": Needs(_OWN / "python3"),
    "insitu": Needs(_OWN / "python3"),
}


def files_of(page: Path) -> dict[str, str]:
    """Return the files that a page shows, by name."""
    return {found["name"]: found["text"] for found in _FILE.finditer(page.read_text())}


def configure(hibali: Any, slurm: Any, needs: Needs) -> None:
    """Configure the site of the recipes; its nodes find the program of the page."""
    scratch = hibali.home.folder / "juwels"
    scratch.mkdir()
    prologue = [f"export PATH={needs.program.parent}:$PATH", *needs.prologue]
    hibali.home.config.write_text(
        f'version = 1\n[sites.juwels]\nkind = "ssh"\nwork = "@scratch/hibali"\ndefault_root = "scratch"\n'
        f'roots = {{ scratch = "{scratch}" }}\n'
        f'[sites.juwels.ssh]\nhost = "{slurm.host}"\ncommand = {json.dumps(list(slurm.command))}\n'
        f'[sites.juwels.scheduler]\nname = "slurm"\nprologue = {json.dumps(prologue)}\n{needs.scheduler}\n'
        f'[sites.juwels.container]\nname = "bare"\n[sites.juwels.limits]\npoll = "1s"\nlogin_interval = "0s"\n'
    )
    hibali.home.config.chmod(0o600)


@pytest.mark.heavy
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", RECIPES)
def test_the_recipe_works_as_written(hibali: Any, slurm_with_two_nodes: Any, name: str) -> None:
    needs, folder = RECIPES[name], hibali.home.folder
    require_prepared(needs.program, needs.part)
    configure(hibali, slurm_with_two_nodes, needs)
    for file, text in files_of(FOLDER / f"{name}.md").items():
        (folder / file).write_text(text)
    environment = environment_with_hibali(hibali, needs.program.parent)
    for typed in sessions(FOLDER / f"{name}.md"):
        done = subprocess.run(
            ["sh", "-ec", typed.command],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=800,
        )
        log = hibali("runs", "logs", "latest").out.decode() if done.returncode else ""
        assert done.returncode == 0, f"{typed.command}\n{done.stdout}{log}"
        assert is_as_shown(typed.output, done.stdout), (
            f"{typed.command}\n{done.stdout}\nis not\n{typed.output}"
        )


@describes_all
def test_each_page_has_a_recipe_that_is_executed() -> None:
    assert {page.stem for page in FOLDER.glob("*.md")} == set(RECIPES)
    for page in FOLDER.glob("*.md"):
        assert files_of(page)
        assert [typed for typed in sessions(page) if "hibali run " in typed.command]
