"""Move and verify files: `push`, `pull`, `sync`, `plan`, `apply` and `verify`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, Unpack

from hibali.amounts import check_size, read_size
from hibali.errors import Exit, IncompleteError, UsageError
from hibali.events import Planned
from hibali_api.calls import Call, CallOptions, Place, bounded, calling, place_text
from hibali_api.notebook import html_of, show_receipts
from transfers.engine.operation import plan_only, synchronise
from transfers.engine.request import (
    Request,
    SaveOptions,
    check_direction,
    feature_options,
    typed_target,
)
from transfers.engine.routes.globus_route import with_local_collection
from transfers.history.journal import Receipt, verification_errors, weak_verification
from transfers.manifest import Manifest, is_bag_name, open_manifest
from transfers.model.entry import Verification
from transfers.model.rules import DeleteLimit, Rules, read_delete_limit, read_names
from transfers.move import check_one_site, copy_within
from transfers.planning.actions import Action
from transfers.planning.plan_file import check_trust, read_plan
from transfers.planning.planner import TransferPlan, incomplete
from transfers.verify import VerificationRequest, Verifier, read_share


class SelectOptions(CallOptions, total=False):
    """The files that a function handles, as the options of the command line with these names.

    Attributes:
        include, exclude: patterns as in .gitignore.
        files_from: the only names, relative to the source; a folder includes its content.
        newer: only files modified since then, or within this time.
        min_size, max_size: in bytes, or text such as "5M".
    """

    include: Sequence[str]
    exclude: Sequence[str]
    files_from: Iterable[str | bytes]
    newer: datetime | timedelta
    min_size: int | str
    max_size: int | str


class PlanOptions(SelectOptions, total=False):
    """What is compared, deleted and kept, as the options of the command line with these names.

    Attributes:
        checksum: compare by sha256 at both ends instead of by size and time.
        recorded: with `checksum`, use digests of earlier transfers.
        delete: delete files at the target that the source does not have; at most `max_delete`, a number or "5%".
        require_proof: raise `IncompleteError` if a file could only be verified by a weaker method.
    """

    checksum: bool
    recorded: bool
    delete: bool
    max_delete: int | str
    allow_empty_source: bool
    links: Literal["keep", "skip"]
    modes: Literal["execute", "keep"]
    specials: Literal["fail", "skip"]
    xattrs: bool
    hard_links: bool
    keep_empty_folders: bool
    recall: bool
    require_proof: Literal["digest", "recorded", "claimed", "size"] | Verification


class TransferOptions(PlanOptions, total=False):
    """How files are moved, as the options of the command line with these names.

    Attributes:
        backup_dir: where replaced and deleted files are moved, a folder at the target's site.
        bwlimit: the most bytes per second, or text such as "20M".
        pack: put the files into tar files of at most `pack_size` bytes.
        direct: let the source's site send to the target's site (only `sync`).
        via: the way of the bytes.
        nodes: the number of tasks at compute nodes that move the files.
        on: the site of these compute nodes; by default the one that has the folder.
        detach: with `nodes`, raise `TryLaterError` as soon as the tasks are submitted; the same call finishes the transfer.
        push_to: siblings to which a dataset is pushed afterwards.
        save: whether changes in a dataset are committed.
        as_type: the type of new files at a CBRAIN portal (only `push` and `sync`).
    """

    backup_dir: Place
    bwlimit: int | str
    pack: bool
    pack_size: int | str
    direct: bool
    via: Literal["auto", "globus", "stream"]
    nodes: int
    on: str
    detach: bool
    push_to: Sequence[str]
    save: bool
    as_type: str


class IncompleteTransferError(IncompleteError):
    """Some files could not be moved or verified; `receipt` says which, and the rest is done."""

    receipt: Receipt


show_receipts()  # every function that returns a receipt imports this module

_PLAN = frozenset(PlanOptions.__annotations__) - frozenset(CallOptions.__annotations__)
_TRANSFER = frozenset(TransferOptions.__annotations__) - frozenset(CallOptions.__annotations__)
_APPLY = frozenset({"backup_dir", "bwlimit", "push_to", "save"})


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
        request = copy_within(_request(call, "cp", source, target))
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
    with calling("plan", options, _PLAN) as call:
        recorded = _pop_recorded(call.given)
        ends = call.location(source), call.target(target)
        request = Request("plan", *ends, _rules_of(call.given), recorded=recorded)

        def keep(made: TransferPlan) -> None:
            found.append(_plan_of(request, made))

        plan_only(request, keep, call.on_event, save=None if save_to is None else Path(save_to))
    return found[0]


def apply(
    plan_file: Place,
    source: Place | None = None,
    target: Place | None = None,
    **options: Unpack[TransferOptions],
) -> Receipt:
    """Execute exactly the plan that `plan` saved, or refuse it because something changed since.

    Args:
        plan_file: a file of this machine.
        source: the source of the plan; needed, with the target, for a plan that another account made.
        target: the target of the plan.
        **options: `backup_dir`, `bwlimit`, `push_to` and `save`, and those of every call.
    """
    if (source is None) is not (target is None):
        raise UsageError("usage", "give both the source and the target, or neither")
    with calling("apply", options, _APPLY) as call:
        named = [] if source is None or target is None else [call.location(source), call.target(target)]
        saved = read_plan(Path(plan_file))
        with closing(saved.planned):
            header = saved.header
            ends = (call.recorded(header.source.text), call.recorded(header.target.text))
            check_trust(saved, ends, named, Path(plan_file))
            request = Request(
                "apply",
                *ends,
                header.rules,
                saved,
                _backup(call, call.given),
                _size(call.given.get("bwlimit")) or 0,
                saving=_saving(call.given),
            )
            return check_receipt(synchronise(request, call.on_event))


class VerifyOptions(SelectOptions, total=False):
    """How files are verified, as the options of the command line with these names.

    Attributes:
        manifest: a file of this machine in the format of sha256sum or BagIt to compare with.
        bagit: whether the manifest is one of BagIt; otherwise its name says so.
        exact: files that the manifest does not name are an error.
        sample: verify only this share, such as "5%" or "1000" files, chosen by `seed`.
        resume: skip what an earlier, interrupted verification hashed.
    """

    manifest: Place
    bagit: bool
    exact: bool
    sample: str
    seed: int
    resume: bool


_VERIFY = frozenset(VerifyOptions.__annotations__) - frozenset(CallOptions.__annotations__)


def verify(place: Place, other: Place | None = None, **options: Unpack[VerifyOptions]) -> Receipt:
    """Hash the files at a place where they lie, and compare with another place, a manifest, or what was recorded.

    Raises:
        IncompleteTransferError: files are different, missing or unreadable; its receipt names them.
        NotVerifiedError: no difference, but for some files no digest is known.
    """
    with calling("verify", options, _VERIFY) as call:
        given = call.given
        manifest = given.pop("manifest", None)
        if manifest is not None and other is not None:
            raise UsageError(
                "usage", "a manifest cannot be used with two places", subject=place_text(manifest)
            )
        sample, bag = given.pop("sample", None), given.pop("bagit", False)
        seed, exact, resume = given.pop("seed", None), given.pop("exact", False), given.pop("resume", False)
        request = VerificationRequest(
            call.location(place),
            None if other is None else call.location(other),
            manifest=None if manifest is None else _manifest(os.fspath(manifest), bag=bag),
            rules=Rules(**_selection(given)),
            exact=exact,
            sample=None if sample is None else read_share(sample),
            seed=seed,
            resume=resume,
        )
        receipt = Verifier(request, call.on_event).run()
    return _check_verified(receipt)


def _manifest(path: str, *, bag: bool) -> Manifest:
    return open_manifest(path, bag=bag or is_bag_name(path))


def _check_verified(receipt: Receipt) -> Receipt:
    """Return the receipt of a verification that proved everything. Raises the gravest of its errors."""
    for problem in reversed(verification_errors(receipt)):
        raise _with_receipt(problem, receipt) if isinstance(problem, IncompleteError) else problem
    return receipt


def _transfer(operation: str, source: Place, target: Place, options: TransferOptions) -> Receipt:
    with calling(operation, options, _TRANSFER) as call:
        return check_receipt(synchronise(_request(call, operation, source, target), call.on_event))


def _request(call: Call, operation: str, source: Place, target: Place) -> Request:
    settings, given = call.settings, call.given
    ends = call.location(source), call.target(target)
    if operation in {"push", "pull"}:
        check_direction(operation, *ends, settings)
        if given.get("direct"):
            raise UsageError("usage", f"{operation} cannot be direct, only sync can", subject="direct")
    if given.get("pack_size") is not None and not given.get("pack"):
        raise UsageError("usage", "pack_size needs pack", subject="pack_size")
    moved = {name: given.pop(name) for name in _TRANSFER - _PLAN if name in given}
    moved["pack_size"] = _size(moved.get("pack_size"))
    ends = ends[0], typed_target(ends[1], moved.get("as_type"))
    recorded = _pop_recorded(given)
    _check_nodes(moved)
    features = feature_options({**moved, "on_site": moved.get("on")}, settings, ends)
    made = {option.flag for option in features}
    for name in ("pack", "nodes"):
        if moved.get(name) and f"--{name}" not in made:
            raise UsageError(
                "usage", f"this hibali has no {name}", subject=name, hint="Install all of hibali."
            )
    return Request(
        operation,
        with_local_collection(ends[0], settings),
        with_local_collection(ends[1], settings),
        _rules_of(given),
        backup=_backup(call, moved),
        rate=_size(moved.get("bwlimit")) or 0,
        recorded=recorded,
        direct=bool(moved.get("direct")),
        saving=_saving(moved),
        via=_choice("via", moved.get("via", "auto"), ("auto", "globus", "stream")),
        options=features,
    )


def _check_nodes(given: Mapping[str, Any]) -> None:
    """Raise `UsageError` for wrong options of compute nodes."""
    count = given.get("nodes")
    for name in ("on", "detach"):
        if count is None and given.get(name):
            raise UsageError("usage", f"{name} needs nodes", subject=name)
    if count is not None and (not isinstance(count, int) or count < 1):
        raise UsageError("usage", "nodes must be a positive number", subject="nodes")


def _backup(call: Call, given: Mapping[str, Any]) -> Any:
    place = given.get("backup_dir")
    return None if place is None else call.target(place)


def _saving(given: Mapping[str, Any]) -> SaveOptions:
    save, push_to = given.get("save", True), tuple(given.get("push_to", ()))
    if push_to and not save:
        raise UsageError("usage", "push_to needs save: only saved files can be pushed", subject="push_to")
    return SaveOptions(save, push_to)


def _pop_recorded(given: dict[str, Any]) -> bool:
    recorded = bool(given.pop("recorded", False))
    if recorded and not given.get("checksum"):
        raise UsageError("usage", "recorded needs checksum", subject="recorded")
    return recorded


_CHOICES = {"links": ("keep", "skip"), "modes": ("execute", "keep"), "specials": ("fail", "skip")}


def _rules_of(given: dict[str, Any]) -> Rules:
    """Return the rules; `given` has only options of `PlanOptions`. Raises `UsageError`."""
    limit, proof = given.pop("max_delete", None), given.pop("require_proof", None)
    selection = _selection(given)
    for name, choices in _CHOICES.items():
        if name in given:
            given[name] = _choice(name, given[name], choices)
    proofs = tuple(Verification)[:-1]
    return Rules(
        **selection,
        **given,
        delete_limit=DeleteLimit() if limit is None else read_delete_limit(str(limit)),
        require_proof=None if proof is None else Verification(_choice("require_proof", proof, proofs)),
    )


def _selection(given: dict[str, Any]) -> dict[str, Any]:
    """Remove the selection from the options, and return it as fields of `Rules`."""
    fields: dict[str, Any] = {}
    for name in ("include", "exclude"):
        patterns = given.pop(name, ())
        fields[name] = (patterns,) if isinstance(patterns, str) else tuple(patterns)
    for name in ("min_size", "max_size"):
        fields[name] = _size(given.pop(name, None))
    newer, names = given.pop("newer", None), given.pop("files_from", None)
    if isinstance(newer, timedelta):
        newer = datetime.now(UTC) - bounded(newer, "newer")
    if newer is not None:
        fields["newer_ns"] = int(newer.timestamp() * 1_000_000_000)
    if names is not None:
        fields["files_from"] = read_names(b"\0".join(map(os.fsencode, names)), "files_from", separator=b"\0")
    return fields


def _size(value: int | str | None) -> int | None:
    """Return a size in bytes. Raises `UsageError`."""
    try:
        return read_size(value) if isinstance(value, str) else value and check_size(value)
    except ValueError as problem:
        raise UsageError("usage", str(problem), subject=str(value)) from None


def _choice(name: str, value: str, choices: Sequence[str]) -> Any:
    if value not in choices:
        raise UsageError("usage", f"{value!r} is not one of {', '.join(choices)}", subject=name)
    return value


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
        problem.code, problem.message, subject=problem.subject, hint=f"hibali history show {receipt.id}"
    )
    failed.receipt = receipt
    return failed
