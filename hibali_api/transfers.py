"""Move and verify files: `push`, `pull`, `sync`, `plan`, `apply` and `verify`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

from hibali.errors import Exit, IncompleteError, UsageError
from hibali.events import Noted, Planned
from hibali.options import defaults_of, read_options
from hibali.plugins import if_offered
from hibali_api.calls import Call, Place, calling, place_text
from hibali_api.notebook import html_of, show_receipts
from hibali_api.transfer_request import (
    ApplyOptions,
    PlanOptions,
    TransferOptions,
    VerifyOptions,
    plan_request,
    saved_request,
    transfer_request,
    verification_request,
)
from transfers.engine.operation import plan_only, synchronise
from transfers.engine.request import Request
from transfers.history.journal import Receipt, verification_errors, weak_verification
from transfers.manifest import open_manifest
from transfers.model.rules import read_names
from transfers.move import check_one_site, copy_within
from transfers.planning.actions import Action
from transfers.planning.planner import TransferPlan, incomplete
from transfers.verify import Verifier


class IncompleteTransferError(IncompleteError):
    """Some files could not be moved or verified; `receipt` says which, and the rest is done."""

    receipt: Receipt


show_receipts()  # every function that returns a receipt imports this module

_TRANSFER = frozenset(defaults_of(TransferOptions))


@dataclass(frozen=True, slots=True)
class Plan:
    """What a transfer would do.

    Attributes:
        source, target: as they were given.
        counts: the totals.
        actions: one for each name that changes; kept names are only counted.
        unlisted: names that could not be read, with the reason: the plan is incomplete without them.
    """

    source: str
    target: str
    counts: Planned
    actions: tuple[Action, ...] = field(repr=False)
    unlisted: tuple[tuple[bytes, str], ...] = ()

    @property
    def changes(self) -> bool:
        """Whether anything would change."""
        return bool(self.actions)

    def _repr_html_(self) -> str | None:
        """Return the plan as a notebook shows it."""
        return html_of("plan", (self.source, self.target), self.counts, self.actions, len(self.unlisted))


def push(source: Place, target: Place, **options: Unpack[TransferOptions]) -> Receipt:
    """Send a file or the content of a folder of this machine to a site.

    Files that exist there unchanged are not sent again. Every file is hashed at both ends before it gets its name, and
    nothing is deleted without `delete`. Repeating an interrupted push resumes it.

    Args:
        source: a path of this machine.
        target: SITE:PATH.
        **options: see `TransferOptions`.

    Returns:
        The receipt, which `hibali history show ID` also shows.

    Raises:
        IncompleteTransferError: some files failed.
        CancelledError: `cancellation` was cancelled.
        HibaliError: nothing or only a part was done, for the reason that its class and `code` say.
    """
    return _transfer("push", source, target, options)


def pull(source: Place, target: Place, **options: Unpack[TransferOptions]) -> Receipt:
    """Fetch a file or the content of a folder from a site, SITE:PATH, to a path of this machine; see `push`."""
    return _transfer("pull", source, target, options)


def sync(source: Place, target: Place, **options: Unpack[TransferOptions]) -> Receipt:
    """Copy from any place to any other one; see `push`. Bytes between two sites pass through this machine.

    >>> import hibali
    >>> receipt = hibali.sync("scans", "scratch:scans")
    >>> receipt.files_moved, receipt.proof_moved.value
    (2, 'digest')
    """
    return _transfer("sync", source, target, options)


def cp(source: Place, target: Place, **options: Unpack[TransferOptions]) -> Receipt:
    """Copy within a site: the bytes stay there. Nothing is deleted; see `push`.

    Args:
        source: SITE:PATH.
        target: SITE:PATH, of the same site.
        **options: see `TransferOptions`.
    """
    allowed = _TRANSFER - {"delete", "max_delete", "direct", "via", "nodes", "on", "detach"}
    with calling("cp", options, allowed) as call:
        check_one_site("cp", call.location(source), call.target(target))
        request = copy_within(
            transfer_request("cp", source, target, _read(TransferOptions, call), call.settings)
        )
        return check_receipt(synchronise(request, call.on_event))


def plan(
    source: Place, target: Place, *, save_to: Place | None = None, **options: Unpack[PlanOptions]
) -> Plan:
    """Plan what `sync` would do, and change nothing.

    Args:
        source: any place.
        target: any other place.
        save_to: a file of this machine for the plan, which `apply` then executes exactly.
        **options: see `PlanOptions`.

    Raises:
        RefusedError: `sync` would be refused, too.
        HibaliError: an endpoint cannot be used, for the reason that its class and `code` say.

    >>> import hibali
    >>> for action in hibali.plan("scans", "scratch:scans").actions:
    ...     print(action.verb, action.entry.path.decode())
    copy a.nii
    copy b.nii
    """
    found: list[Plan] = []
    with calling("plan", options, frozenset(defaults_of(PlanOptions))) as call:
        request = plan_request(source, target, _read(PlanOptions, call), call.settings)

        def keep(made: TransferPlan) -> None:
            found.append(_plan_of(request, made))

        plan_only(request, keep, call.on_event, save=None if save_to is None else Path(save_to))
    return found[0]


def apply(
    plan_file: Place,
    source: Place | None = None,
    target: Place | None = None,
    **options: Unpack[ApplyOptions],
) -> Receipt:
    """Execute exactly the plan that `plan` saved, or refuse it because something changed since.

    Args:
        plan_file: a file of this machine.
        source: the source of the plan; needed, with the target, for a plan that another account made.
        target: the target of the plan.
        **options: see `ApplyOptions`.
    """
    if (source is None) is not (target is None):
        raise UsageError("usage", "give both the source and the target, or neither")
    with calling("apply", options, frozenset(defaults_of(ApplyOptions))) as call:
        named = [] if source is None or target is None else [call.location(source), call.target(target)]

        def warn(message: str) -> None:
            call.on_event(Noted(message))

        values = _read(ApplyOptions, call)
        with saved_request(Path(plan_file), named, values, call.settings, warn) as request:
            return check_receipt(synchronise(request, call.on_event))


def verify(place: Place, other: Place | None = None, **options: Unpack[VerifyOptions]) -> Receipt:
    """Hash the files at a place where they lie, and compare with another place, a manifest, or what was recorded.

    Raises:
        IncompleteTransferError: files are different, missing or unreadable; its receipt names them.
        NotVerifiedError: no difference, but for some files no digest is known.
    """
    with calling("verify", options, frozenset(defaults_of(VerifyOptions))) as call:
        values = _read(VerifyOptions, call)
        path = values["manifest"]
        if path is not None and other is not None:
            raise UsageError("usage", "a manifest cannot be used with two places", subject=place_text(path))
        manifest = None if path is None else open_manifest(os.fspath(path), bag=values["bagit"])
        request = verification_request(place, other, manifest, values, call.settings)
        receipt = Verifier(request, call.on_event).run()
    return _check_verified(receipt)


def _check_verified(receipt: Receipt) -> Receipt:
    """Return the receipt of a verification that proved everything. Raises the gravest of its errors."""
    for problem in reversed(verification_errors(receipt)):
        raise _with_receipt(problem, receipt) if isinstance(problem, IncompleteError) else problem
    return receipt


def _transfer(operation: str, source: Place, target: Place, options: TransferOptions) -> Receipt:
    with calling(operation, options, _TRANSFER) as call:
        values = _read(TransferOptions, call)
        if values["direct"] and operation != "sync":
            raise UsageError("usage", f"{operation} cannot be direct, only sync can", subject="direct")
        request = transfer_request(operation, source, target, values, call.settings)
        return check_receipt(synchronise(request, call.on_event))


def _read(options: type, call: Call) -> dict[str, Any]:
    """Return the values of the options of a call. Raises `UsageError`."""
    values = read_options(options, call.given)
    names = values.get("files_from")
    if names is not None:
        values["files_from"] = read_names(b"\0".join(map(os.fsencode, names)), "files_from", separator=b"\0")
    return values


def _plan_of(request: Request, made: TransferPlan) -> Plan:
    actions = (each for spool in (made.moves, made.adjustments, made.deletions) for each in spool)
    unlisted = tuple((path, problem.message) for path, problem in made.unlisted)
    return Plan(request.source.text, request.target.text, made.planned(), tuple(actions), unlisted)


def check_receipt(receipt: Receipt) -> Receipt:
    """Return the receipt of an operation that did everything. Raises `IncompleteTransferError`."""
    if receipt.exit is Exit.DONE:
        return receipt
    if receipt.files_failed:
        problem = incomplete(receipt.target, receipt.files_failed)
    else:
        problem = weak_verification(receipt, "")
    raise _with_receipt(problem, receipt)


def _with_receipt(problem: IncompleteError, receipt: Receipt) -> IncompleteTransferError:
    failed = IncompleteTransferError(
        problem.code,
        problem.message,
        subject=problem.subject,
        hint=if_offered("history", f"hibali history show {receipt.id}"),
    )
    failed.receipt = receipt
    return failed
