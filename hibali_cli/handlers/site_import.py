"""Show proposed sites and add them to config.toml after confirmation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from hibali.config import importers
from hibali.config.edit import Change, add_site, plan_site, render_site
from hibali.config.importers import Found, Passed, Proposal, proposals_in
from hibali.config.model import Site
from hibali.config.settings import Settings
from hibali.errors import NotFoundError, RefusedError
from hibali.subprocesses import has_terminal
from hibali.system_errors import unreadable
from hibali.text import printable
from hibali_cli.handlers.pipeline_example import read_line, terminal_as_stdout
from hibali_cli.options import Common

OWN = ("ssh", "rclone")


class ImportRequest(NamedTuple):
    """What is to be proposed: `source` is ssh, rclone, a file or a URL; "" for both of the first, where there are any."""

    source: str = ""
    only: tuple[str, ...] = ()
    user: str | None = None
    account: str | None = None
    ssh_config: str | None = None


def gather(settings: Settings, wanted: ImportRequest) -> list[Found]:
    """Everything found there. Raises `NotFoundError`, `UsageError`, `RefusedError`, and what fetching does."""
    if wanted.source not in {"", *OWN}:
        found = importers.read_profile(_read(settings, wanted.source), printable(wanted.source))
        return [importers.with_account(each, wanted.user, wanted.account) for each in found]
    gathered: list[Found] = []
    if wanted.source in {"", "ssh"}:
        gathered += importers.propose_ssh_hosts(Path(wanted.ssh_config) if wanted.ssh_config else None, ())
    path = importers.rclone_config_file()
    if wanted.source == "rclone" or (wanted.source == "" and path.exists()):
        taken = [each.name for each in proposals_in(gathered)]
        gathered += importers.propose_rclone_remotes(path, taken)
    return gathered


def _read(settings: Settings, source: str) -> bytes:
    if "://" in source:
        from hibali.http import fetch

        parts = urlsplit(source)
        origins = set(settings.catalogue.origins)
        if parts.scheme == "http" and parts.hostname in {"localhost", "127.0.0.1", "::1"}:
            origins.add(f"http://{parts.netloc}")
        return fetch(source, frozenset(origins), importers.MOST_BYTES)
    try:
        with Path(source).open("rb") as stream:
            return stream.read(importers.MOST_BYTES + 1)
    except FileNotFoundError:
        hint = "It is ssh, rclone, a file, or a URL: hibali sites import ssh"
        raise NotFoundError("no-such-file", "there is no such file", subject=source, hint=hint) from None
    except OSError as problem:
        raise unreadable(problem, source) from None


def choose(found: Sequence[Found], only: Sequence[str]) -> list[Proposal]:
    """Those of these names, all without any; raises `NotFoundError` for a name that was not found."""
    proposals = proposals_in(found)
    if not only:
        return proposals
    missing = [name for name in only if name not in {each.name for each in proposals}]
    if missing:
        from hibali.text import did_you_mean

        passed = next((each for each in found if isinstance(each, Passed) and each.name in missing), None)
        told = did_you_mean(missing[0], [each.name for each in proposals])
        raise NotFoundError(
            "not-proposed",
            passed.because if passed else "nothing of this name was found there",
            subject=missing[0],
            hint=f"{told}`hibali sites import` lists what there is.",
        )
    return [each for each in proposals if each.name in only]


def change_of(common: Common, proposal: Proposal) -> Change | None:
    """What taking it would do; None where another site of that name stands in config.toml."""
    try:
        return plan_site(common.config, proposal.name, proposal.table, replace=False)
    except RefusedError:
        return None


def show(common: Common, found: Sequence[Found], proposals: Sequence[Proposal]) -> None:
    """All of it, exactly as it would be written, and what it lacks; what cannot be a site is named last."""
    for each in proposals:
        change = change_of(common, each)
        text = render_site(each.name, each.table)
        notes = [*each.notes, *(["Another site of this name is there."] if change is None else [])]
        if common.json:
            told = {None: "differs", "added": "planned"}.get(change, change)
            fields = {"name": each.name, "origin": each.origin, "change": told, "toml": text, "notes": notes}
            common.output.record("site-proposal", fields)
            continue
        mark = {None: "another one is there", "same": "is there already"}.get(change, "")
        common.output.line(f"# {each.reached or each.name} ({each.origin}){': ' if mark else ''}{mark}")
        for line in text.splitlines():
            common.output.line(line)
        for note in each.notes:
            common.output.line(f"# {note}")
        common.output.text("\n")
    for passed in found:
        if isinstance(passed, Passed):
            if common.json:
                fields = {"name": passed.name, "origin": passed.origin, "change": "passed", "toml": None}
                common.output.record("site-proposal", {**fields, "notes": [passed.because]})
            else:
                common.output.detail(f"{passed.name} ({passed.origin}) is passed over: {passed.because}.")


def take(common: Common, proposals: Sequence[Proposal], *, replace: bool) -> list[tuple[Change, Site]]:
    """Write them into config.toml, all or none: each is planned before the first is written. Raises `RefusedError`."""
    for each in proposals:
        plan_site(common.config, each.name, each.table, replace=replace)
    return [add_site(common.config, each.name, each.table, replace=replace) for each in proposals]


class ImportOptions(NamedTuple):
    """What was typed of how to take them."""

    source: str
    replace: bool
    yes: bool


def import_sites(common: Common, asked: ImportOptions, options: Mapping[str, Any]) -> int:
    """Gather, show, and take what is agreed to; returns the exit code."""
    settings = common.settings()
    wanted = ImportRequest(asked.source, **options)
    found = gather(settings, wanted)
    chosen = choose(found, wanted.only)
    show(common, found, chosen)
    if wanted.source in {"", *OWN} and not wanted.only and not asked.replace:
        # of one's own many hosts some stand there by hand already, and stay as they are
        chosen = [each for each in chosen if change_of(common, each) is not None]
    new = [each for each in chosen if change_of(common, each) != "same"]
    taken = []
    if chosen and (asked.yes or (new and _agrees(common, [each.name for each in new]))):
        taken = take(common, chosen, replace=asked.replace)
    if common.json:
        for change, site in taken:
            common.output.record("site-change", {"name": site.name, "change": change})
        common.output.record("end", {"count": len(found) + len(taken), "exit": 0})
        return 0
    for change, site in taken:
        told = "stands there already" if change == "same" else f"is {change}"
        common.output.say(f"{site.name} {told}. Look at it: hibali doctor {site.name}")
    if not found:
        common.output.say("Nothing was found. Add a site by hand: hibali sites add NAME --ssh HOST")
    elif new and not taken:
        common.output.say("Nothing was taken; --yes takes all that is shown, --only NAME some of it.")
    return 0


def _agrees(common: Common, names: list[str]) -> bool:
    """What whoever sits at the terminal says; nobody there agrees to nothing."""
    if common.json or not has_terminal():
        return False
    with terminal_as_stdout():
        said = read_line(f"Take {', '.join(names)}? [y/N] ", lambda _: ["yes", "no"])
    return said.strip().lower() in {"y", "yes"}
