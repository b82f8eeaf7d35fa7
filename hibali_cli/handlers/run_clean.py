"""Remove the folders of ended runs, site by site."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import click

from hibali.errors import Exit, RefusedError
from hibali.events import Listener
from hibali.text import path_fields
from hibali_cli.handlers.run_sites import opener, run_site
from hibali_cli.options import Common
from hibali_cli.output import is_terminal
from hibali_cli.progress import listening
from runs.clean import Cleaned, CleanRequest, CleanResult, clean_run, needed_ids, plan_cleaning
from runs.model import Run
from runs.store import RunStore


@dataclass(frozen=True, slots=True)
class CleanOptions:
    """What the command line said."""

    run_ids: tuple[str, ...]
    site: str | None
    wanted: CleanRequest
    yes: bool
    dry: bool


def clean_and_tell(common: Common, asked: CleanOptions) -> int:
    """Do it and show each; INCOMPLETE where a folder could not be removed, REFUSED where one that was named may not go."""
    run_store = RunStore()
    everything = run_store.all()
    wanted = replace(asked.wanted, needed=needed_ids(everything))
    runs = [run_store.load(each) for each in dict.fromkeys(asked.run_ids)] or everything
    planned = [
        each
        for each in plan_cleaning([run for run in runs if asked.site in {None, run.site}], wanted)
        if asked.run_ids or (each.run.folder and not each.run.results.cleaned)
    ]
    for each in planned:
        if asked.run_ids and each.fate is CleanResult.KEPT and not each.run.results.cleaned:
            raise RefusedError("not-removed", each.because, subject=each.run.id)
    if not asked.dry:
        _ask(common, asked, planned)
        with listening(common, "clean") as on_event:
            planned = _clean(common, run_store, planned, wanted, on_event)
    return _show(common, planned, dry=asked.dry)


def _ask(common: Common, asked: CleanOptions, planned: Sequence[Cleaned]) -> None:
    """Outputs that nobody collected are gone for good: raises `RefusedError` where nobody agrees to that."""
    lost = [
        each.run for each in planned if each.fate is CleanResult.PLANNED and not each.run.results.collected
    ]
    if not lost or asked.yes:
        return
    what = f"the outputs of {len(lost)} runs were not collected and would be removed"
    hint = "Look with --dry-run; if it is meant: --yes"
    if common.json or not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        raise RefusedError("unconfirmed", f"{what}, and nobody can be asked", hint=hint)
    common.output.say(what)
    if not click.confirm("Remove them?", err=True):
        raise RefusedError("unconfirmed", "nothing was removed")


def _clean(
    common: Common, run_store: RunStore, planned: Sequence[Cleaned], wanted: CleanRequest, on_event: Listener
) -> list[Cleaned]:
    """Each site is opened once."""
    found: dict[str, Cleaned] = {each.run.id: each for each in planned}
    going = [each.run for each in planned if each.fate is CleanResult.PLANNED]
    for name in sorted({run.site for run in going}):
        site = run_site(common, name)
        with contextlib.closing(opener(site, on_event)()) as host:
            for run in [run for run in going if run.site == name]:
                found[run.id] = clean_run(host, site, run_store, run, wanted)
    return list(found.values())


def _show(common: Common, cleaned: Sequence[Cleaned], *, dry: bool) -> int:
    failed = any(each.fate is CleanResult.FAILED for each in cleaned)
    code = Exit.INCOMPLETE if failed else Exit.DONE
    if common.json:
        for each in cleaned:
            common.output.record("cleaned-run", _fields(each.run, each))
        common.output.record("end", {"count": len(cleaned), "exit": int(code)})
        return int(code)
    if cleaned:
        rows = [
            (each.run.id, each.run.site, each.run.state, each.because or str(each.fate)) for each in cleaned
        ]
        common.output.table(["run", "site", "state", "folder"], rows)
    gone = sum(each.fate in {CleanResult.REMOVED, CleanResult.PLANNED} for each in cleaned)
    common.output.say(f"{gone} folders {'would be' if dry else 'were'} removed.")
    return int(code)


def _fields(run: Run, cleaned: Cleaned) -> dict[str, object]:
    return {
        "id": run.id,
        "site": run.site,
        "state": str(run.state),
        "collected": bool(run.results.collected),
        **path_fields(run.folder, "folder"),
        "fate": str(cleaned.fate),
        "because": cleaned.because,
    }
