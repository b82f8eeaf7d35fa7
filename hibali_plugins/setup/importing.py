"""Show proposed sites and add them to config.toml after confirmation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import click

from hibali.config.edit import Change, add_sites, plan_site, render_site
from hibali.config.model import Site
from hibali.config.settings import Settings
from hibali.errors import NotFoundError, RefusedError, UsageError
from hibali.http.fetch import fetch
from hibali.plugins import find
from hibali.subprocesses import has_terminal
from hibali.system_errors import unreadable
from hibali.text import did_you_mean, printable
from hibali_cli.dialogue import read_line, terminal_as_stdout
from hibali_cli.options import Common
from hibali_plugins.setup import sources
from hibali_plugins.setup.sources import Found, Passed, Proposal, proposals_in

OWN = ("ssh", "rclone")


class ImportRequest(NamedTuple):
    """The source of sites: ssh, rclone, a centre, a file or a URL; "" for ssh and rclone.

    `values` are NAME=VALUE, for a profile that asks for more than the user and the account.
    """

    source: str = ""
    only: tuple[str, ...] = ()
    user: str | None = None
    account: str | None = None
    values: tuple[str, ...] = ()
    ssh_config: str | None = None
    accept_prologue: bool = False


Ask = Callable[[str], str]

NONE_FOUND = "No sites were found among the hosts of ~/.ssh/config and the remotes of rclone. To add one yourself: hibali sites add NAME --ssh HOST"


def find_sites(settings: Settings, request: ImportRequest, ask: Ask | None = None) -> list[Found]:
    """Find sites in the source; `ask` asks for what the profile of a centre needs.

    Raises `NotFoundError`, `UsageError`, `RefusedError`, and as `hibali.http.fetch.fetch` does.
    """
    if request.source not in {"", *OWN}:
        return _find_in_profile(settings, request, ask)
    gathered: list[Found] = []
    if request.source in {"", "ssh"}:
        gathered += sources.propose_ssh_hosts(Path(request.ssh_config) if request.ssh_config else None, ())
    path = sources.rclone_config_file()
    if request.source == "rclone" or (request.source == "" and path.exists()):
        used_names = [each.name for each in proposals_in(gathered)]
        gathered += sources.propose_rclone_remotes(path, used_names)
    return gathered


def _find_in_profile(settings: Settings, request: ImportRequest, ask: Ask | None) -> list[Found]:
    subject = printable(request.source)
    user, account = request.user, request.account
    kind, colon, name = request.source.partition(":")
    profiles = find("hibali.profiles", kind) if colon else None
    if profiles is None:
        if request.values:
            raise UsageError(
                "usage", "--value is for profiles of centres, as in centre:jsc", subject="--value"
            )
        found = sources.read_profile(_read(settings, request.source), subject)
    else:
        pairs = (each.partition("=") for each in request.values)
        given = {"user": user, "account": account, **{key: value for key, _, value in pairs}}
        given = {key: value for key, value in given.items() if value is not None}
        document, values = profiles.read(name, given, ask)
        found = sources.read_sites(document, subject, published=False)
        user, account = values.get("user"), values.get("account")
    return [sources.with_account(each, user, account, request.ssh_config) for each in found]


def ask_on_terminal(common: Common) -> Ask | None:
    """Return the function that asks a question, None without a terminal and with `--json`."""
    if common.json or not has_terminal():
        return None

    def ask(question: str) -> str:
        with terminal_as_stdout():
            return read_line(question, lambda _: []).strip()

    return ask


def _read(settings: Settings, source: str) -> bytes:
    if "://" in source:
        parts = urlsplit(source)
        origins = set(settings.catalogue.origins)
        if parts.scheme == "http" and parts.hostname in {"localhost", "127.0.0.1", "::1"}:
            origins.add(f"http://{parts.netloc}")
        return fetch(source, frozenset(origins), sources.MOST_BYTES)
    try:
        with Path(source).open("rb") as stream:
            return stream.read(sources.MOST_BYTES + 1)
    except FileNotFoundError:
        hint = "Use ssh, rclone, a file, or a URL: hibali sites import ssh"
        raise NotFoundError("no-such-file", "the file does not exist", subject=source, hint=hint) from None
    except OSError as problem:
        raise unreadable(problem, source) from None


def choose_proposals(found: Sequence[Found], only: Sequence[str]) -> list[Proposal]:
    """Return the proposals with these names, or all; raises `NotFoundError` for an unknown name."""
    proposals = proposals_in(found)
    if not only:
        return proposals
    missing = [name for name in only if name not in {each.name for each in proposals}]
    if missing:
        passed = next((each for each in found if isinstance(each, Passed) and each.name in missing), None)
        suggestion = did_you_mean(missing[0], [each.name for each in proposals])
        raise NotFoundError(
            "not-proposed",
            passed.because if passed else "the source has no site with this name",
            subject=missing[0],
            hint=f"{suggestion}To list all sites found: hibali sites import",
        )
    return [each for each in proposals if each.name in only]


def change_of(common: Common, proposal: Proposal) -> Change | None:
    """Return the change that adds it; None if config.toml has a different site with that name."""
    try:
        return plan_site(common.config, proposal.name, proposal.table, replace=False)
    except RefusedError:
        return None


def show_proposals(common: Common, found: Sequence[Found], proposals: Sequence[Proposal]) -> None:
    """Show the proposals exactly as they would be written, with notes on missing settings; skipped hosts come last."""
    for each in proposals:
        change = change_of(common, each)
        text = render_site(each.name, each.table)
        notes = [*each.notes, *(["Another site with this name exists."] if change is None else [])]
        if common.json:
            result = {None: "differs", "added": "planned"}.get(change, change)
            fields = {
                "name": each.name,
                "origin": each.origin,
                "change": result,
                "toml": text,
                "notes": notes,
            }
            common.output.record("site-proposal", fields)
            continue
        mark = {None: "another site with this name exists", "same": "exists already"}.get(change, "")
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
                common.output.detail(f"{passed.name} ({passed.origin}) is skipped: {passed.because}.")


def add_proposals(
    common: Common, proposals: Sequence[Proposal], *, replace: bool, accept_prologue: bool
) -> list[tuple[Change, Site]]:
    """Write them to config.toml, all or none: each is checked before the first is written. Raises `RefusedError`."""
    for each in proposals:
        change = plan_site(common.config, each.name, each.table, replace=replace)
        if each.prologue and change != "same" and not accept_prologue:
            _require_consent(common, each)
    return add_sites(common.config, {each.name: each.table for each in proposals}, replace=replace)


def import_sites(
    common: Common, source: str | None, *, origin: str | None, replace: bool, yes: bool, **selection: Any
) -> int:
    """Find sites, show them, and add the confirmed ones; returns the exit code."""
    if source and origin:
        raise click.UsageError("Give the source as an argument or with --from, not both.")
    settings = common.settings()
    request = ImportRequest(source or origin or "", **selection)
    found = find_sites(settings, request, ask_on_terminal(common))
    chosen = choose_proposals(found, request.only)
    show_proposals(common, found, chosen)
    if request.source in {"", *OWN} and not request.only and not replace:
        # sites that the user added already are kept
        chosen = [each for each in chosen if change_of(common, each) is not None]
    new = [each for each in chosen if change_of(common, each) != "same"]
    names = ", ".join(each.name for each in new)
    added = []
    if chosen and (yes or (new and _confirms(common, f"Add {names}? [y/N] "))):
        added = add_proposals(common, chosen, replace=replace, accept_prologue=request.accept_prologue)
    if common.json:
        for change, site in added:
            common.output.record("site-change", {"name": site.name, "change": change})
        common.output.record("end", {"count": len(found) + len(added), "exit": 0})
        return 0
    for change, site in added:
        result = "exists already" if change == "same" else f"is {change}"
        common.output.info(f"{site.name} {result}. To check it: hibali doctor {site.name}")
    if not found:
        common.output.info(NONE_FOUND)
    elif new and not added:
        common.output.info("No site was added. --yes adds all sites shown, --only NAME some of them.")
    return 0


def _require_consent(common: Common, proposal: Proposal) -> None:
    """Ask whether jobs may run the lines of a profile, which `--yes` does not answer; raises `RefusedError` without consent."""
    lines = "; ".join(map(printable, proposal.prologue))
    if not _confirms(common, f"Each of your jobs at {proposal.name} would run: {lines}\nAllow this? [y/N] "):
        raise RefusedError(
            "prologue-unconfirmed",
            f"no site was added: the profile makes each of your jobs run these lines, and you did not allow it: {lines}",
            subject=proposal.name,
            hint="If you trust these lines and their publisher, add --accept-prologue",
        )


def _confirms(common: Common, question: str) -> bool:
    """Prompt for confirmation; False without a terminal."""
    if common.json or not has_terminal():
        return False
    with terminal_as_stdout():
        answer = read_line(question, lambda _: ["yes", "no"])
    return answer.strip().lower() in {"y", "yes"}
