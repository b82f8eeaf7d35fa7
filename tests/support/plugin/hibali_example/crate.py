"""Count the files of a box: `hibali crate SITE`, `hibali sites show SITE --files`, and a step of `hibali doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hibali.config.model import Site
from hibali.events import Listener
from hibali.text import counted
from hibali_cli.command import AddedOptions, Section, command
from hibali_cli.options import Common
from runs.doctor_steps import StepList
from transfers.remote.host import RemoteHost


@command(
    "crate", section=Section.FILES, examples=[("hibali crate crate", "Count the files of the site crate.")]
)
@click.argument("site")
def crate_command(common: Common, site: str) -> None:
    """Count the files of a site of kind box."""
    common.output.line(counted(_count(common.settings().site(site)), "file"))


files_option = AddedOptions(
    (click.Option(["--files"], is_flag=True, help="Count the files of a site of kind box."),),
    after="name",
    calls="hibali_example.crate:show_files",
)


def show_files(common: Common, name: str, **_: Any) -> None:
    """Count the files of a site, in place of showing its settings."""
    common.output.line(counted(_count(common.settings().site(name)), "file"))


def count_files(checks: StepList, site: Site, host: RemoteHost | None, on_event: Listener) -> None:
    """Add the number of files to the steps of `hibali doctor`, for a site of kind box."""
    del host, on_event
    if site.kind == "box":
        checks.ok("files", counted(_count(site), "file"))


def _count(site: Site) -> int:
    return sum(each.is_file() for each in Path(site.own.folder).rglob("*"))
