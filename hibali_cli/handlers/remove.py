"""Show what `rm` would remove, ask, remove it, and report."""

from __future__ import annotations

import sys

import click

from hibali.errors import Exit, RefusedError
from hibali.locations import read_target
from hibali_cli.failure import tell_people
from hibali_cli.options import Common
from hibali_cli.output import is_terminal
from hibali_cli.progress import listening
from hibali_cli.records import action_fields, event_fields
from transfers.entry import Kind
from transfers.journal import Receipt
from transfers.plan import Action, Verb
from transfers.planner import incomplete
from transfers.remove import RemovalPlan, RemovalRequest, plan_removal, remove
from transfers.rules import DeleteLimit, read_delete_limit


def take_away(
    common: Common, text: str, *, recursive: bool, yes: bool, max_delete: str | None, dry_run: bool
) -> int:
    """Remove what is named, or only show it; returns the exit code."""
    settings = common.settings()
    location = read_target(text, settings)
    limit = read_delete_limit(max_delete) if max_delete else DeleteLimit() if yes else None
    request = RemovalRequest(location, recursive, limit, tuple(settings.sites.values()))

    def confirm(plan: RemovalPlan) -> None:
        if not yes:
            _ask(common, location.text, plan)

    with listening(
        common, f"rm {location.text}", records=not dry_run, ends_at_plan=dry_run or not yes
    ) as on_event:
        if dry_run:
            plan_removal(request, lambda plan: _show(common, location.name, plan), on_event)
            return 0
        receipt = remove(request, confirm, on_event)
    _tell_receipt(common, receipt)
    return int(receipt.exit)


def _counts(plan: RemovalPlan) -> str:
    folders = f" in {plan.folders + 1} folders" if plan.folder else ""
    return f"{plan.files} files{folders}, {plan.bytes} bytes"


def _ask(common: Common, subject: str, plan: RemovalPlan) -> None:
    """Let whoever sits there confirm; raises `RefusedError` where nobody does."""
    common.output.say(f"{subject}: {_counts(plan)}")
    hint = f"Look with --dry-run; if it is meant: --yes --max-delete {plan.files}"
    if common.json or not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        raise RefusedError(
            "unconfirmed",
            f"{_counts(plan)} would be removed, and nobody can be asked",
            subject=subject,
            hint=hint,
        )
    if not click.confirm("Remove all of it?", err=True):
        raise RefusedError("unconfirmed", "nothing was removed", subject=subject)


def _show(common: Common, name: bytes, plan: RemovalPlan) -> None:
    """Every name that would go, a line each."""
    because = f"below {name.decode('utf-8', 'replace')}" if plan.folder else "named"
    for entry in plan.entries:
        action = Action(Verb.DELETE, entry, because)
        if common.json:
            common.output.record("action", action_fields(action))
        else:
            slash = b"/" if entry.kind is Kind.FOLDER else b""
            common.output.line(f"{action.verb:<8}".encode() + entry.path + slash)
    if common.json:
        common.output.record("planned", event_fields(plan.planned()))
        common.output.record("end", {"count": plan.files + plan.folders + 1, "exit": 0})
    else:
        common.output.say(f"{_counts(plan)} would be removed. Nothing was changed.")


def _tell_receipt(common: Common, receipt: Receipt) -> None:
    if common.json:
        common.output.record("receipt", receipt.to_record())
        return
    common.output.say(f"{receipt.files_deleted} files removed; {receipt.seconds:.1f} s; {receipt.id}")
    if receipt.exit is Exit.INCOMPLETE:
        tell_people(incomplete(receipt.target, receipt.files_failed))
