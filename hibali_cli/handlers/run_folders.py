"""Remove the folders of ended runs at sites, and adopt runs found there."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

import click

from hibali.config.kinds import kind_of
from hibali.config.model import Site
from hibali.errors import Exit, HibaliError, NotFoundError, RefusedError
from hibali.events import Listener
from hibali.ledger import choose_identifier
from hibali.text import counted, path_fields
from hibali.unreadable import collect_unreadable, raise_unreadable
from hibali_cli.cells import id_cell
from hibali_cli.failure import Failures
from hibali_cli.fields import write_list
from hibali_cli.handlers.run_sites import opener, run_site, update_runs
from hibali_cli.options import Common
from hibali_cli.output import is_terminal
from hibali_cli.progress import listening
from runs.adopt import Adoption, FoundRun, adopt, find_unknown_runs
from runs.clean import NOT_COLLECTED, Cleaned, CleanRequest, CleanResult, clean_run, needed_ids, plan_cleaning
from runs.model import Run
from runs.store import RunStore


def clean_and_print(
    common: Common,
    run_ids: tuple[str, ...],
    *,
    site_name: str | None,
    older_than: float | None,
    all_ended: bool,
    yes: bool,
    dry_run: bool,
) -> int:
    """Remove the folders and show each.

    Returns INCOMPLETE if one could not be removed; at the end raises the worst failure of the named ones.
    """
    run_store, failures = RunStore(), Failures(json=common.json)
    with collect_unreadable() as unreadable:
        everything = run_store.all()
    raise_unreadable(unreadable)  # such a run may need the outputs of another one
    wanted = CleanRequest(all_ended=all_ended, older_than=older_than or 0.0, needed=needed_ids(everything))
    runs = [] if run_ids else everything
    for run_id in dict.fromkeys(run_ids):
        with failures.collect():
            runs.append(run_store.load(run_id))
    planned = [
        each
        for each in plan_cleaning([run for run in runs if site_name in {None, run.site}], wanted)
        if run_ids or (each.run.folder and not each.run.results.cleaned)
    ]
    refused = [
        each
        for each in planned
        if run_ids and each.result is CleanResult.KEPT and not each.run.results.cleaned
    ]
    for each in refused:
        failures.add(RefusedError("not-removed", each.because, subject=each.run.id))
    if not dry_run:
        if not yes:
            _confirm(common, planned)
        with listening(common, "clean") as on_event:
            planned = _clean(common, run_store, planned, wanted, failures, on_event)
    return failures.end(_show(common, planned, failures, dry=dry_run))


def _confirm(common: Common, planned: Sequence[Cleaned]) -> None:
    """Prompt before removing outputs that were not collected; raises `RefusedError` without confirmation."""
    lost = [
        each.run for each in planned if each.result is CleanResult.PLANNED and not each.run.results.collected
    ]
    if not lost:
        return
    warning = f"the outputs of {counted(len(lost), 'run')} were not collected and would be lost"
    hint = "To check first, add --dry-run. To confirm, add --yes"
    if common.json or not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        raise RefusedError(
            "unconfirmed", f"{warning}, which needs confirmation, but this is not a terminal", hint=hint
        )
    common.output.info(warning)
    if not click.confirm("Remove them?", err=True):
        raise RefusedError("unconfirmed", "nothing was removed")


_NOT_TRIED = "not tried"


def _clean(
    common: Common,
    run_store: RunStore,
    planned: Sequence[Cleaned],
    wanted: CleanRequest,
    failures: Failures,
    on_event: Listener,
) -> list[Cleaned]:
    """Clean run folders site by site, with one connection each; a site that cannot be reached is a failure."""
    found: dict[str, Cleaned] = {each.run.id: each for each in planned}
    going = [each.run for each in planned if each.result is CleanResult.PLANNED]
    for name in sorted({run.site for run in going}):
        at_site = [run for run in going if run.site == name]
        found.update({run.id: Cleaned(run, CleanResult.FAILED, _NOT_TRIED) for run in at_site})
        with failures.collect():
            site = run_site(common, name)
            with contextlib.closing(opener(site, on_event)()) as host:
                for run in at_site:
                    found[run.id] = clean_run(host, site, run_store, run, wanted)
    return list(found.values())


def _show(common: Common, cleaned: Sequence[Cleaned], failures: Failures, *, dry: bool) -> int:
    # the failure of the site says why its runs were not tried
    failed = any(each.result is CleanResult.FAILED and each.because != _NOT_TRIED for each in cleaned)
    code = Exit.INCOMPLETE if failed else Exit.DONE
    if common.json:
        for each in cleaned:
            common.output.record("cleaned-run", _fields(each.run, each))
        if not failures:  # else the last line is an error
            common.output.record("end", {"count": len(cleaned), "exit": int(code)})
        return int(code)
    if cleaned:
        rows = [
            (id_cell(each.run.id), each.run.site, each.run.state, each.because or str(each.result))
            for each in cleaned
        ]
        common.output.table(["run", "site", "state", "folder"], rows)
    gone = sum(each.result in {CleanResult.REMOVED, CleanResult.PLANNED} for each in cleaned)
    common.output.info(f"{counted(gone, 'folder')} {'would be ' if dry else ''}removed.")
    if any(each.because == NOT_COLLECTED for each in cleaned):
        common.output.info(
            "To collect outputs: hibali runs collect ID DIR. To remove them, too, add --all-ended."
        )
    return int(code)


def _fields(run: Run, cleaned: Cleaned) -> dict[str, object]:
    return {
        "id": run.id,
        "site": run.site,
        "state": str(run.state),
        "collected": bool(run.results.collected),
        **path_fields(run.folder, "folder"),
        "fate": str(cleaned.result),
        "because": cleaned.because,
    }


_ID_PART = re.compile(r"[0-9a-f-]{4,}")


def adopt_and_print(common: Common, named: Sequence[str], *, yes: bool) -> int:
    """Show the unknown runs and adopt those requested; returns the exit code.

    Raises `NotFoundError` for an unknown id, `UsageError` for an ambiguous part of one, `RefusedError` for a run that cannot be adopted.
    """
    configured = common.settings().sites
    typed = [each for each in named if each not in configured and _ID_PART.fullmatch(each)]
    sites = _sites(common, [each for each in named if each not in typed])
    run_store = RunStore()
    with listening(common, "adopt") as on_event:
        strays: list[FoundRun] = []
        for site in sites:
            with contextlib.closing(opener(site, on_event)()) as host:
                strays += find_unknown_runs(host, site, run_store)
        unknown = [each.id for each in strays]
        ids = [choose_identifier(unknown, each) or run_store.find_id(each) for each in typed]
        known = [run_id for run_id in ids if run_store.knows(run_id)]
        found_runs = [
            _adopt(run_store, each, wanted=yes or each.id in ids)
            for each in strays
            if not ids or each.id in ids
        ]
        adopted_runs = [run_store.load(each.id) for each in found_runs if each.result is Adoption.ADOPTED]
        update_runs(common, run_store, adopted_runs, on_event)
    _show_found(common, found_runs)
    _check_found(run_store, found_runs, ids, known)
    return 0


def _sites(common: Common, names: Sequence[str]) -> list[Site]:
    if names:
        return [run_site(common, name) for name in dict.fromkeys(names)]
    return list(_all_sites(common))


def _all_sites(common: Common) -> Iterator[Site]:
    """Return the sites that can have runs."""
    settings = common.settings()
    for name in sorted(settings.sites):
        if kind_of(settings.sites[name]).has_work_folder:
            try:
                yield run_site(common, name)
            except HibaliError as problem:
                common.output.warn(f"{name} was not searched: {problem.message}")


def _adopt(run_store: RunStore, found_run: FoundRun, *, wanted: bool) -> FoundRun:
    if not wanted or found_run.result is not Adoption.FOUND:
        return found_run
    adopt(run_store, found_run)
    return replace(found_run, result=Adoption.ADOPTED)


def _show_found(common: Common, found_runs: Sequence[FoundRun]) -> None:
    if write_list(common, "stray", (each.to_record() for each in found_runs)):
        return
    rows = [
        (
            id_cell(each.id),
            each.site,
            str(each.manifest.get("pipeline", "")) or None,
            each.job or None,
            str(each.manifest.get("ledger", "")) or None,
            each.because or str(each.result),
        )
        for each in found_runs
    ]
    if rows:
        common.output.table(["run", "site", "pipeline", "job", "begun at", "now"], rows)
    adopted = sum(each.result is Adoption.ADOPTED for each in found_runs)
    found = sum(each.result is Adoption.FOUND for each in found_runs)
    if not found_runs:
        common.output.info("No run was found that is not in this ledger.")
        return
    common.output.info(f"{counted(len(found_runs), 'run')} not in this ledger; {adopted} adopted.")
    if found:
        common.output.info(f"To adopt the other {found}, add --yes or their ids.")


def _check_found(
    run_store: RunStore, found_runs: Sequence[FoundRun], ids: Sequence[str], known: Sequence[str]
) -> None:
    found = {each.id: each for each in found_runs}
    for run_id in ids:
        if run_id not in found and run_id not in known:
            path = run_store.unreadable_path(run_id)
            raise NotFoundError(
                "no-such-run",
                "no run with this id was found",
                subject=run_id,
                hint=f"If it is at no other site: mv {path} {path}.damaged" if path else "",
            )
        if run_id in found and found[run_id].result is Adoption.LEFT:
            raise RefusedError("not-adopted", found[run_id].because, subject=run_id)
