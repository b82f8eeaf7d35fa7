"""Find runs at a site that this ledger does not know, show them, and adopt them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

from hibali.config.kinds import kind_of
from hibali.config.model import Site
from hibali.errors import HibaliError, NotFoundError, RefusedError
from hibali.text import counted
from hibali_cli.handlers.run_sites import opener, run_site, update_runs
from hibali_cli.options import Common
from hibali_cli.progress import listening
from runs.adopt import Adoption, FoundRun, adopt, find_unknown_runs
from runs.model import RUN_ID
from runs.store import RunStore


def adopt_and_tell(common: Common, named: Sequence[str], *, everything: bool) -> int:
    """Show the unknown runs and adopt those requested; returns the exit code.

    Raises `NotFoundError` for an unknown id, `RefusedError` for a run that cannot be adopted.
    """
    ids = [word for word in named if RUN_ID.fullmatch(word)]
    sites = _sites(common, [word for word in named if not RUN_ID.fullmatch(word)])
    run_store = RunStore()
    known = [word for word in ids if run_store.knows(word)]
    with listening(common, "adopt") as on_event:
        found_runs = []
        for site in sites:
            with contextlib.closing(opener(site, on_event)()) as host:
                found_runs += [
                    _take(run_store, each, wanted=everything or each.id in ids)
                    for each in find_unknown_runs(host, site, run_store)
                    if not ids or each.id in ids
                ]
        taken = [run_store.load(each.id) for each in found_runs if each.fate is Adoption.ADOPTED]
        update_runs(common, run_store, taken, on_event)
    _show(common, found_runs)
    _check(found_runs, ids, known)
    return 0


def _sites(common: Common, names: Sequence[str]) -> list[Site]:
    if names:
        return [run_site(common, name) for name in dict.fromkeys(names)]
    return list(_all_sites(common))


def _all_sites(common: Common) -> Iterator[Site]:
    """Return the sites that can have runs."""
    settings = common.settings()
    for name in sorted(settings.sites):
        if kind_of(settings.sites[name]).has_machine:
            try:
                yield run_site(common, name)
            except HibaliError as problem:
                common.output.warn(f"{name} was not searched: {problem.message}")


def _take(run_store: RunStore, found_run: FoundRun, *, wanted: bool) -> FoundRun:
    if not wanted or found_run.fate is not Adoption.FOUND:
        return found_run
    adopt(run_store, found_run)
    return replace(found_run, fate=Adoption.ADOPTED)


def _show(common: Common, found_runs: Sequence[FoundRun]) -> None:
    if common.json:
        for each in found_runs:
            common.output.record("stray", each.to_record())
        common.output.record("end", {"count": len(found_runs), "exit": 0})
        return
    rows = [
        (
            each.id,
            each.site,
            str(each.manifest.get("pipeline", "")) or None,
            each.job or None,
            str(each.manifest.get("ledger", "")) or None,
            each.because or str(each.fate),
        )
        for each in found_runs
    ]
    if rows:
        common.output.table(["run", "site", "pipeline", "job", "begun at", "now"], rows)
    adopted = sum(each.fate is Adoption.ADOPTED for each in found_runs)
    found = sum(each.fate is Adoption.FOUND for each in found_runs)
    common.output.say(f"{counted(len(found_runs), 'run')} not in this ledger; {adopted} adopted.")
    if found:
        common.output.say(f"To adopt the other {found}, add --yes or their ids.")


def _check(found_runs: Sequence[FoundRun], ids: Sequence[str], known: Sequence[str]) -> None:
    found = {each.id: each for each in found_runs}
    for word in ids:
        if word not in found and word not in known:
            raise NotFoundError("no-such-run", "no run with this id was found", subject=word)
        if word in found and found[word].fate is Adoption.LEFT:
            raise RefusedError("not-adopted", found[word].because, subject=word)
