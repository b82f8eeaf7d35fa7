"""Make requests of the options of transfers and verifications, for the command line and Python."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hibali.config.settings import Settings
from hibali.errors import UsageError
from hibali.events import Listener
from hibali.locations import Location, read_key, read_location, read_target
from hibali.options import defaults_of, document
from hibali.plugins import not_installed
from hibali_api import transfer_options as declared
from hibali_api.calls import CallOptions, Place, place_text
from transfers.engine.collections import with_local_collection
from transfers.engine.request import (
    FeatureOption,
    Request,
    SaveOptions,
    TaskTimeouts,
    check_direction,
    feature_options,
    typed_target,
)
from transfers.model.entry import Verification
from transfers.model.renaming import read_renaming
from transfers.model.rules import DeleteLimit, Rules, read_delete_limit

if TYPE_CHECKING:  # start-up: only where they are used
    from transfers.inventory import HashingOption
    from transfers.manifest import Manifest
    from transfers.verify import VerificationRequest


class PlanOptions(
    CallOptions,
    declared.Patterns,
    declared.Names,
    declared.Facts,
    declared.Deletion,
    declared.Digests,
    declared.Renaming,
    declared.Metadata,
    total=False,
):
    """What is compared, deleted and kept, as the options of the command line with these names."""


class ApplyOptions(CallOptions, declared.Backup, declared.Pace, declared.Saving, total=False):
    """How a saved plan is executed, as the options of `hibali apply`."""


class TransferOptions(
    PlanOptions,
    ApplyOptions,
    declared.Ways,
    declared.MovingNodes,
    declared.Packing,
    declared.Types,
    declared.Direct,
    declared.Removal,
    total=False,
):
    """How files are moved, as the options of the command line with these names; `direct` is only for `sync`."""


class VerifyOptions(
    CallOptions,
    declared.Patterns,
    declared.Names,
    declared.Facts,
    declared.Checking,
    declared.HashingNodes,
    total=False,
):
    """How files are verified, as the options of the command line with these names."""


for _options in (PlanOptions, ApplyOptions, TransferOptions, VerifyOptions):
    document(_options)

_DEFAULTS = defaults_of(TransferOptions)
_RULES = tuple(each.name for each in fields(Rules) if each.name in _DEFAULTS.keys() - {"require_proof"})


def transfer_request(
    operation: str, source: Place, target: Place, given: Mapping[str, Any], settings: Settings
) -> Request:
    """Return the request of the command `operation`; missing options have their defaults, `files_from` are names.

    Raises `UsageError` for options or a direction that are not possible.
    """
    values = {**_DEFAULTS, **given}
    read = read_key if values.get("exact_key") else read_location
    ends = (
        read(place_text(source), settings),
        typed_target(read_target(place_text(target), settings), values["as_type"]),
    )
    if operation in {"push", "pull"}:
        check_direction(operation, *ends, settings)
    if values["move"]:
        _check_move(operation, values)
    features = _features(values, settings, ends)
    return Request(
        operation,
        # nothing is removed through a symlink (S21)
        replace(with_local_collection(ends[0], settings), confined=values["move"]),
        with_local_collection(ends[1], settings),
        rules_from(values),
        recorded=values["recorded"],
        direct=bool(values["direct"]),
        via=values["via"],
        task_timeouts=TaskTimeouts(values["give_up_after"], values["cancel_on_interrupt"]),
        options=features,
        move=values["move"],
        sites=tuple(settings.sites.values()) if values["move"] else (),
        **_moving(values, settings),
    )


def _check_move(operation: str, values: dict[str, Any]) -> None:
    """Set what --move needs. Raise `UsageError` for what cannot be used with it."""
    refused = {
        "--delete": (values["delete"], "the next call would delete what this one moved"),
        "--pack": (values.get("pack"), "files in packs are not proven one by one"),
        "--recorded": (values["recorded"], "both ends must be hashed now"),
    }
    if operation not in {"push", "pull"}:
        refused = {operation: (True, f"use push, pull, or within one site mv, not {operation}")}
    for flag, (given, reason) in refused.items():
        if given:
            raise UsageError("usage", f"--move cannot be used with {flag}: {reason}", subject="--move")
    values["checksum"] = True


def several_sources(
    request: Request, sources: Sequence[Place], settings: Settings, on_event: Listener
) -> Request:
    """Return a request with several sources, of which it has the first, or with what matches the wildcards of one.

    Raises the errors of `with_sources`, and `UsageError` for a source that is not where those of the command are.
    """
    from transfers.sources import with_sources  # start-up: most transfers have one source

    places = [request.source, *(read_location(place_text(each), settings) for each in sources[1:])]
    for place in places if request.operation in {"push", "pull"} else ():
        check_direction(request.operation, place, request.target, settings)
    return with_sources(request, places, on_event)


def plan_request(source: Place, target: Place, values: Mapping[str, Any], settings: Settings) -> Request:
    """Return the request of a plan."""
    ends = read_location(place_text(source), settings), read_target(place_text(target), settings)
    return Request("plan", *ends, rules_from(values), recorded=values["recorded"])


@contextmanager
def saved_request(
    file: Path,
    named: Sequence[Location],
    values: Mapping[str, Any],
    settings: Settings,
    warn: Callable[[str], None],
) -> Iterator[Request]:
    """Open a saved plan, and yield the request to execute it; `named` are the source and target that the user gave, or ().

    Raises `RefusedError` for a plan that is not trusted or was modified.
    """
    from transfers.planning.plan_file import check_trust, read_plan  # start-up: only for saved plans

    saved = read_plan(file)
    with closing(saved.planned):
        header = saved.header
        source, target = (
            read_location(os.fsdecode(place.text), settings, literal=True)
            for place in (header.source, header.target)
        )
        doubts = check_trust(saved, (source, target), named, file)
        if doubts:
            warn(f"{file}: {doubts}. Executed because its source and target were given.")
        yield Request("apply", source, target, header.rules, saved, **_moving(values, settings))


def _moving(values: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """Return the fields of a request that can also be chosen for a saved plan."""
    backup = values["backup_dir"]
    return {
        "backup": None if backup is None else read_target(place_text(backup), settings),
        "accept_rot": values["accept_rot"],
        "rate": values["bwlimit"] or 0,
        "workers": values["workers"] or 0,
        "saving": SaveOptions(values["save"], values["push_to"]),
    }


def _features(
    values: dict[str, Any], settings: Settings, ends: Sequence[Location]
) -> tuple[FeatureOption, ...]:
    """Return the options of features, whose values are removed. Raises `UsageError` for one that is not installed."""
    features = feature_options(values, settings, ends)
    for name in ("pack", "nodes"):
        if values.get(name):
            raise not_installed(name, name)
    return features


def hashing_from(
    values: Mapping[str, Any], settings: Settings, places: Sequence[Location]
) -> HashingOption | None:
    """Return the option that lets files be hashed elsewhere, None if it is not given. Raises `UsageError`."""
    from transfers.inventory import HashingOption  # start-up: only to verify

    made = _features(dict(values), settings, places)
    return next((each for each in made if isinstance(each, HashingOption)), None)


def rules_from(given: Mapping[str, Any]) -> Rules:
    """Return the rules of a transfer; missing options have their defaults. Raises `UsageError`."""
    values = {**_DEFAULTS, **given}
    limit, proof = values["max_delete"], values["require_proof"]
    if values["rename"]:
        _check_renaming(values)
    return Rules(
        **{name: values[name] for name in _RULES},
        newer_ns=values["newer"],
        delete_limit=DeleteLimit() if limit is None else read_delete_limit(str(limit)),
        require_proof=None if proof is None else Verification(proof),
    )


def _check_renaming(values: Mapping[str, Any]) -> None:
    """Raise `UsageError` for an invalid rule, and for a deletion by selected paths: those of the target are other ones."""
    for rule in values["rename"]:
        read_renaming(rule)
    for name in ("include", "exclude", "files_from"):
        if values["delete"] and values[name] not in ((), None):
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(
                "usage",
                f"--rename and --delete cannot be used with {flag}: it selects paths of the source, and what is deleted has other ones",
                subject="--rename",
                hint=f"Leave out --delete or {flag}.",
            )


def verification_request(
    first: Place,
    second: Place | None,
    manifest: Manifest | None,
    values: Mapping[str, Any],
    settings: Settings,
) -> VerificationRequest:
    """Return the request to verify a place. Raises `UsageError`."""
    from transfers.verify import VerificationRequest, read_share  # start-up: only to verify

    place = read_location(place_text(first), settings)
    other = None if second is None else read_location(place_text(second), settings)
    sample = values["sample"]
    return VerificationRequest(
        place,
        other,
        manifest=manifest,
        rules=rules_from(values),
        exact=values["exact"],
        sample=None if sample is None else read_share(sample),
        seed=values["seed"],
        resume=values["resume"],
        hashing=hashing_from(values, settings, [place] if other is None else [place, other]),
    )
