"""Run a transfer: open both endpoints, plan, execute the plan, and write the receipt.

`synchronise` is the whole of push, pull, sync and apply; the functions below it are in the order in which
they run. `plan_only` is the dry run. The plugin `follow` uses the same functions in cycles.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from hibali.cancellation import as_cancelled
from hibali.errors import AccessError, HibaliError, IncompleteError, RefusedError, TryLaterError, is_lost
from hibali.events import Adjusted, Deleted, Ended, Failed, Linked, Listener, Listing, Moved, Noted, ignore
from hibali.locations import Location, check_writable
from hibali.plugins import if_offered
from hibali.system_errors import hint_of, message_of
from hibali.text import counted
from transfers.engine.endpoints import Endpoints, open_endpoints, remember_root
from transfers.engine.reconnect import Reconnection
from transfers.engine.request import Request
from transfers.engine.routes.base import Route, choose_route
from transfers.engine.routes.stream import StreamRoute
from transfers.engine.source_removal import (
    ProvenEntries,
    check_provable,
    check_target_apart,
    remove_sources,
)
from transfers.history.journal import Receipt, Recorder, selection_line, source_line, target_line
from transfers.history.recorded_digests import recorded_digests
from transfers.model.entry import Entry, Kind, Verification, weakest
from transfers.model.leases import this_client
from transfers.model.store import Lock, Side, Store
from transfers.model.units import Adjustment, Committed, Item, Problem
from transfers.pipeline.batches import NumberSet
from transfers.planning.actions import Action, Verb, same_time
from transfers.planning.missing_records import MissingRecords, find_cut_off
from transfers.planning.planner import (
    RememberingSide,
    TransferPlan,
    UnverifiedSide,
    adjustments,
    attributes_of,
    check_plan,
    check_replaces_nothing,
    check_space,
    failure_of,
    other_contents,
    permissions_of,
    plan_transfer,
    replaced_entries,
)
from transfers.planning.protected_roots import check_mounts
from transfers.planning.striping import stripe_new_folder


@dataclass(slots=True)
class Operation:
    """One operation, over all of its attempts.

    Attributes:
        request: the requested transfer.
        recorder: its receipt and journal.
        reconnection: reconnects the stores of the attempt.
        stores: all stores that the current attempt opened.
        answered: the numbers of the plan that need not be sent again after a reconnection.
        proven: what the current attempt proved at the target, with --move.
        answered_before: how many there were in earlier attempts: a restart alone is no progress.
        endpoints: those of the current attempt, once they are open.
        route: the way that its files take; until the endpoints are open, one without a transfer.
        reached: whether any attempt opened its endpoints.
        restarted: whether this is not the first attempt.
        kept_verification: the method by which kept files were compared.
    """

    request: Request
    recorder: Recorder
    reconnection: Reconnection
    stores: list[Store]
    answered: NumberSet
    endpoints: Endpoints | None = None
    route: Route = field(default_factory=StreamRoute)
    reached: bool = False
    restarted: bool = False
    proven: ProvenEntries | None = None
    answered_before: int = 0
    kept_verification: Verification = Verification.SIZE


def synchronise(request: Request, on_event: Listener = ignore) -> Receipt:
    """Execute a transfer and return its receipt, whose `exit` is the exit code.

    The receipt is in the ledger even if this raises, unless the operation was not recorded yet.

    Raises:
        RefusedError: a rule forbids it; nothing was changed.
        TryLaterError, AccessError, NotFoundError: an endpoint failed.
        IncompleteError: everything was transferred into a dataset, but not committed there.
    """
    check_writable(request.target)
    with ExitStack() as stack:
        operation = start_operation(request, on_event, stack)
        try:
            _run(operation, stack)
        except BaseException as problem:  # noqa: BLE001  # raised again, or as what it means now
            raise end_with(operation, problem) from problem.__cause__
        return finish(operation, None, save=True)


def plan_only(
    request: Request,
    show: Callable[[TransferPlan], None],
    on_event: Listener = ignore,
    *,
    save: Path | None = None,
) -> TransferPlan:
    """List and plan exactly as `synchronise` would, call `show` while the plan is open, and change nothing.

    With `save` the plan is also written there, to be executed later.
    """
    check_writable(request.target)
    with ExitStack() as stack:
        operation = start_operation(request, on_event, stack, dry=True)
        try:
            endpoints = connect(operation, stack)
            _note_unknown_facts(operation, endpoints)
            plan = make_plan(operation, endpoints)
        except AccessError as problem:
            if problem.code != "denied":
                raise
            message = f"the plan cannot be made: {problem.message}"
            raise IncompleteError(
                "plan-incomplete", message, subject=problem.subject, hint=problem.hint
            ) from problem
        _check_plan(operation, endpoints, plan)
        if save is not None:
            from transfers.planning.plan_file import write_plan  # start-up: only for saved plans

            write_plan(save, endpoints.header(), plan)
        show(plan)
        return plan


def start_operation(
    request: Request, on_event: Listener, stack: ExitStack, *, dry: bool = False, follows: bool = False
) -> Operation:
    """Begin the journal, unless it is a dry run. Raises `RefusedError` if the ledger cannot be written."""
    recorder = Recorder(request.operation, request.source_text, request.target.text, on_event)
    if not dry:
        recorder.start(stack, follows=follows)
    stores, answered, receipt = list[Store](), NumberSet(), recorder.receipt

    def progress() -> object:
        return (
            receipt.files_moved,
            receipt.files_linked,
            receipt.files_deleted,
            receipt.files_adjusted,
            operation.answered_before + len(answered),
        )

    reconnection = Reconnection(stores, progress, recorder.record)
    operation = Operation(request, recorder, reconnection, stores, answered)
    return operation


# ---- attempts: a restart after a lost connection that the stores cannot resume


def _run(operation: Operation, stack: ExitStack) -> None:
    while True:
        attempt = stack.enter_context(ExitStack())  # closes what one attempt opens
        try:
            _attempt(operation, attempt)
        except TryLaterError as problem:
            if not _may_restart(operation, problem):
                raise
            _prepare_restart(operation, attempt)
            if not operation.reconnection.wait_to_restart(problem, operation.request.reconnect_seconds):
                raise
        else:
            return


def _may_restart(operation: Operation, problem: TryLaterError) -> bool:
    """Return whether the connection to a server was lost after the operation had reached it.

    After a restart, hibali's own stale agent may still lock the target for a moment.
    """
    sites = (operation.request.source.site, operation.request.target.site)
    # an agent of this machine has no connection to lose
    here = {site.name for site in sites if site.kind == "local"}
    reconnects = operation.request.reconnect_seconds and operation.route.restarts
    if not reconnects or problem.subject in here:
        return False
    if operation.restarted and problem.code == "locked":
        return this_client() in problem.message
    return is_lost(problem) and (operation.reached or problem.code == "connection-lost")


def _prepare_restart(operation: Operation, attempt: ExitStack) -> None:
    """Close everything; the next attempt finds committed files at the target and keeps them."""
    receipt = operation.recorder.receipt
    _count_connections(operation)
    receipt.reconnects += 1
    with suppress(HibaliError):
        attempt.close()
    operation.restarted = True
    operation.stores.clear()
    operation.answered_before += len(operation.answered)
    operation.answered.clear()
    operation.endpoints, operation.route = None, StreamRoute()
    receipt.files_failed = 0
    receipt.failures.clear()


def _attempt(operation: Operation, stack: ExitStack) -> None:
    """Run one attempt, from opening the endpoints to releasing the lock."""
    request, recorder = operation.request, operation.recorder
    endpoints = connect(operation, stack)
    target, route = endpoints.target, operation.route
    existed = endpoints.existed
    if request.move:
        operation.proven = ProvenEntries()
        stack.callback(operation.proven.close)
    lock = lock_existing(endpoints, exists=existed)
    _resume(operation, endpoints)
    plan = operation.reconnection.until_done(lambda: make_plan(operation, endpoints), anew=True)
    if operation.restarted or route.moved_before:
        _count_own_files_as_moved(recorder.receipt)
    _check_plan(operation, endpoints, plan)
    if request.protect is not None:
        other = other_contents(plan, endpoints.source, endpoints.target_side)
        if other:
            request.protect(other)
    if not plan.target_files:
        record_empty_target(endpoints, recorder)
    check_space(plan, target, request.target.text)
    if request.rules.rename and any(replaced_entries(plan)):
        check_target_apart(endpoints)
    if plan.moves.count:
        route.open(plan)
    if plan.changes or not existed:
        _fetch_content(endpoints, plan)
        lock = make_root_and_lock(endpoints, lock)
        if not existed:
            stripe_new_folder(request.target, target, recorder.on_event)
        execute(operation, endpoints, plan)
    route.finish(target)
    if operation.proven is not None:
        remove_sources(endpoints, plan, operation.proven, recorder)
    if lock is not None:
        lock.finish()
    remember_root(endpoints)


def _resume(operation: Operation, endpoints: Endpoints) -> None:
    """Finish what the route began for an earlier call of the same command."""
    with closing(operation.route.resume(endpoints.source, endpoints.target)) as events:
        for event in events:
            if isinstance(event, Committed):
                operation.recorder.receipt.mover = operation.route.name
                record_result(operation.recorder, event)
            else:
                operation.recorder.record(event)


def _count_own_files_as_moved(receipt: Receipt) -> None:
    """Count files that an earlier attempt moved as moved, not as kept."""
    moved = receipt.files_moved + receipt.files_linked
    receipt.files_kept = max(0, receipt.files_kept - moved)


def connect(operation: Operation, stack: ExitStack) -> Endpoints:
    """Open the endpoints and the route, and record the roots once. Raises the errors of `open_endpoints` and `choose_route`."""
    request, recorder = operation.request, operation.recorder
    with operation.reconnection.limited_attempt():
        endpoints = open_endpoints(request, recorder, operation.stores, stack)
        if request.move:
            check_provable(endpoints)
        operation.route = choose_route(endpoints, recorder)
    operation.endpoints = endpoints
    if not operation.reached:
        operation.reached = True
        single = endpoints.single is not None
        if endpoints.origin.renames is None:  # the paths at the target are those below one folder
            recorder.append(source_line(request.source, endpoints.source_path, single=single))
        recorder.append(target_line(request.target, endpoints.target.root_path))
        selection = selection_line(request.rules)
        if selection is not None:
            recorder.append(selection)
    return endpoints


def _note_unknown_facts(operation: Operation, endpoints: Endpoints) -> None:
    """Note that a dry run does not test the server, because tests would write to it."""
    if not endpoints.target.facts.known:
        target = operation.request.target
        operation.recorder.record(
            Noted(
                f"{target.text}: a dry run does not test which names and locks this server supports."
                f" To test it: hibali sites check {target.site.name}"
            )
        )


def record_empty_target(endpoints: Endpoints, recorder: Recorder) -> None:
    """Record that the target is empty, which invalidates earlier records of its files."""
    if endpoints.lists_all:
        recorder.append({"kind": "empty"})


# ---- the lock, from before the plan until after the last change


def lock_existing(endpoints: Endpoints, *, exists: bool) -> Lock | None:
    """Lock the target before planning; a folder must exist for that, a prefix need not."""
    facts = endpoints.target.facts
    return _lock(endpoints) if facts.locks and (exists or not facts.folders) else None


def make_root_and_lock(endpoints: Endpoints, lock: Lock | None) -> Lock | None:
    """Create the target's root, and lock it if that was not possible before."""
    if lock is None and endpoints.target.facts.locks:
        return _lock(endpoints, make=True)
    endpoints.target.make_root()
    return lock


def _lock(endpoints: Endpoints, *, make: bool = False) -> Lock:
    """Acquire the lease; it is released at the latest when the attempt is closed."""
    lock = endpoints.target.lock(endpoints.request.operation, make=make)
    endpoints.stack.callback(lock.release)
    return lock


# ---- the plan


def make_plan(operation: Operation, endpoints: Endpoints) -> TransferPlan:
    """Plan, or check a saved plan against both listings; record counts and known failures."""
    request, recorder = operation.request, operation.recorder
    recorder.record(Listing())
    exists = endpoints.target.stat() is not None
    if not exists:
        _check_above(endpoints.target, request.target)
    if request.saved is None:
        plan = _plan_anew(operation, endpoints, target_exists=exists)
    else:
        from transfers.planning.recheck import check_same_ends, recheck  # start-up: only for saved plans

        source, target, subject = endpoints.source, endpoints.target_side, request.target.text
        check_same_ends(request.saved.header, endpoints.header(), subject)
        plan = recheck(
            request.saved.planned, source, target, request.rules, target_exists=exists, subject=subject
        )
    endpoints.stack.callback(plan.close)
    recorder.record(plan.planned())
    for failure in plan.failures():
        recorder.record(failure)
    if plan.empty_folders and not request.rules.keep_empty_folders:
        recorder.receipt.empty_folders = plan.empty_folders
        recorder.record(Noted(_empty_folders_left(request, endpoints, plan.empty_folders), kept=True))
    lost = _permissions_lost(request, endpoints, plan)
    if lost:
        recorder.record(Noted(lost, kept=True))
    if plan.odd_keys and request.rules.delete:
        recorder.record(
            Noted(
                f"{request.target.text}: keys that cannot be paths were left unchanged: {plan.odd_keys};"
                f" to see them: hibali ls -R {shlex.quote(request.target.text)}"
            )
        )
    if plan.annex_links and request.rules.links != "skip":
        recorder.record(
            Noted(
                f"{request.source.text}: {counted(plan.annex_links, 'symlink')} to the content of git-annex kept as"
                " symlinks; only datasets on this machine are transferred with their content"
            )
        )
    return plan


def _empty_folders_left(request: Request, endpoints: Endpoints, count: int) -> str:
    way = "; to store them, add --keep-empty-folders" if endpoints.target.facts.folder_markers else ""
    return f"{request.target.text}: not stored, because there are only objects: {counted(count, 'empty folder')}{way}"


def _permissions_lost(request: Request, endpoints: Endpoints, plan: TransferPlan) -> str:
    """Return what files lose in a collection that only Globus reaches, or "": Globus preserves no permissions.

    With another way to the target, hibali sets the execute bit itself.
    """
    source, target = endpoints.source.facts, endpoints.target.facts
    if not (source.only_globus or target.only_globus) or not plan.files_to_move:
        return ""
    if not source.modes:
        return (
            f"{request.source.text}: no file becomes executable, because Globus does not preserve permissions"
        )
    files = (action.entry for action in plan.moves if action.entry.kind is Kind.FILE)
    count = sum(entry.mode >= 0 and bool(entry.mode & 0o100) for entry in files)
    if not count:
        return ""
    return f"{request.target.text}: {counted(count, 'file loses its', 'files lose their')} execute bit, because Globus does not preserve permissions"


def _check_above(target: Store, location: Location) -> None:
    """Raise `RefusedError` if a component of the target's path is a file."""
    if target.file_above():
        raise RefusedError(
            "not-a-folder",
            f"the target cannot be created: {message_of('not-a-folder')}",
            subject=location.text,
            hint=hint_of("not-a-folder"),
        )


def _plan_anew(operation: Operation, endpoints: Endpoints, *, target_exists: bool) -> TransferPlan:
    """Plan from the listings; digests are compared now, or with --recorded taken from the record."""
    request, recorder = operation.request, operation.recorder
    source: Side = endpoints.source
    target = endpoints.target_side
    unproven = operation.route.unproven()
    if unproven and not endpoints.target.can(Store.commit_external):
        target = UnverifiedSide(target, unproven)
    remembering: list[RememberingSide] = []
    if request.recorded:
        for side, location, store in (
            (source, request.source, endpoints.root),
            (target, request.target, endpoints.target),
        ):
            remembering.append(RememberingSide(side, location, store.root_path))
            endpoints.stack.callback(remembering[-1].close)
        source, target = remembering
    missing = _missing_records(recorder, endpoints) if target_exists else None
    connects_early = operation.route.early and recorder.journaled  # not for a dry run
    plan = plan_transfer(
        source,
        target,
        request.rules,
        target_exists=target_exists,
        missing_records=missing,
        announce=(lambda size: _expect(operation, size)) if connects_early else None,
        moves_away=request.move,
    )
    if missing is not None and missing.message():
        recorder.record(Noted(missing.message(), kept=True))
    # further names of a hard-linked file are kept with the first one, regardless of the comparison
    if request.rules.checksum and not request.rules.hard_links:
        from_record = any(side.used for side in remembering)
        operation.kept_verification = Verification.RECORDED if from_record else Verification.DIGEST
    return plan


def _check_plan(operation: Operation, endpoints: Endpoints, plan: TransferPlan) -> None:
    """Refuse a plan that is unsafe, deletes too much or on another filesystem than the target's root, or replaces what was moved."""
    request = operation.request
    subject = request.target.text
    check_plan(plan, request.rules, subject)
    if plan.deletions.count:
        check_mounts(plan.deletions, endpoints.target, subject)
    if request.rules.rename and request.move and request.backup is None:
        check_replaces_nothing(other_contents(plan, endpoints.source, endpoints.target_side), subject)


def _expect(operation: Operation, size: int) -> None:
    """Let the stores open the connections that `size` bytes need; they return at once."""
    for store in operation.stores:
        store.expect(size)


def _missing_records(recorder: Recorder, endpoints: Endpoints) -> MissingRecords | None:
    """Return a finder of files without a recorded digest, if digests are compared or a journal is cut off."""
    request, root_path = endpoints.request, endpoints.target.root_path
    if not recorder.journaled:
        return None
    cut_off = find_cut_off(request.target, root_path, recorder.receipt.id)
    if cut_off is None and not request.rules.checksum:
        return None
    verification = Verification.RECORDED if request.recorded else Verification.DIGEST
    return MissingRecords(
        recorded_digests(request.target, root_path), cut_off, recorder.record, verification=verification
    )


# ---- execution


def execute(operation: Operation, endpoints: Endpoints, plan: TransferPlan) -> None:
    """Back up, transfer, delete and adjust what is planned; the target is locked."""
    recorder = operation.recorder
    backed_up = _back_up(recorder, endpoints, plan)
    _transfer(operation, endpoints, plan, backed_up=backed_up, names=False)
    if plan.files_to_link:  # further names of a file, once it is committed
        _transfer(operation, endpoints, plan, backed_up=backed_up, names=True)
    if not backed_up:
        recorder.record(Failed(b"", "not-kept", "nothing was replaced, because the backup is not complete"))
    _delete(operation, endpoints, plan)
    _adjust(operation, endpoints, plan)


def _fetch_content(endpoints: Endpoints, plan: TransferPlan) -> None:
    """Fetch source content that is stored elsewhere, e.g. by git-annex."""
    origin = endpoints.origin
    origin.store.fetch(action.entry._replace(path=origin.path_of(action.entry)) for action in plan.moves)


def _back_up(recorder: Recorder, endpoints: Endpoints, plan: TransferPlan) -> bool:
    """Back up everything that will be replaced or deleted, if requested; return whether all succeeded."""
    backup, complete = endpoints.request.backup, True
    if backup is not None:
        for entry, problem in endpoints.target.back_up(backup, replaced_entries(plan)):
            if problem is not None:
                complete = False
                recorder.record(Failed(entry.path, problem.code, f"the backup failed: {problem.message}"))
    return complete


def _transfer(
    operation: Operation, endpoints: Endpoints, plan: TransferPlan, *, backed_up: bool, names: bool
) -> None:
    """Move files, or with `names` link further names; nothing is replaced unless `backed_up`."""
    answered = operation.answered
    expected = 0
    recorded = _digests_of_source(endpoints, plan)

    def items() -> Iterator[Item]:
        nonlocal expected
        expected = len(answered)
        for number, action in enumerate(plan.moves):
            wanted = bool(action.entry.same_as) is names and (backed_up or action.target is None)
            if wanted and number not in answered:
                expected += 1
                yield item_of(endpoints.request, number, action, recorded(action.entry))

    def on_result(result: Committed) -> None:
        record_result(operation.recorder, result)
        if operation.proven is not None:
            operation.proven.note(result)

    def transfer_remaining() -> None:
        remaining = items()
        carry(
            operation,
            endpoints,
            remaining,
            0 if names else plan.bytes_to_move,
            on_result,
        )
        for _ in remaining:  # counted, but a full target is not tried for each of them
            pass

    operation.reconnection.until_done(transfer_remaining)
    if len(answered) < expected:
        message = f"not tried: {counted(expected - len(answered), 'entry', 'entries')}"
        operation.recorder.record(Failed(b"", "not-tried", message))


_MOST_COMPARED = 50_000  # files with their record in memory: 28 MB


def _digests_of_source(endpoints: Endpoints, plan: TransferPlan) -> Callable[[Entry], str | None]:
    """Return what looks up the sha256 on record of a site's file whose size, time and inode (or ETag) did not change since."""
    request, origin = endpoints.request, endpoints.origin
    if request.accept_rot or request.source.typed_local or not plan.files_to_move:
        return lambda _: None
    files = (action.entry for action in plan.moves if action.entry.kind is Kind.FILE)
    wanted = {origin.path_of(entry) for entry in islice(files, _MOST_COMPARED)}
    known = recorded_digests(request.source, origin.store.root_path, wanted)

    def find(entry: Entry) -> str | None:
        earlier = known.get(origin.path_of(entry))
        if earlier is None or earlier.size != entry.size or not same_time(earlier.mtime_ns, entry.mtime_ns):
            return None
        same = (earlier.inode or earlier.etag) and (earlier.inode, earlier.etag) == (entry.inode, entry.etag)
        return earlier.digest if same else None

    return find


def item_of(request: Request, number: int, action: Action, recorded: str | None = None) -> Item:
    """Return the item; with a saved or exact plan, it replaces only the entry that the plan saw. See Item for `recorded`."""
    # A backup gives the file a second name, which changes its ctime.
    kept = request.backup is not None and action.target is not None
    exact = (request.saved is not None or request.exact) and not kept
    clear = action.verb is Verb.RETYPE
    rules, entry = request.rules, action.entry
    fidelity = permissions_of(entry, rules), attributes_of(entry, rules)
    return Item(number, entry, action.target, clear, exact, *fidelity, recorded)


def carry(
    operation: Operation,
    endpoints: Endpoints,
    items: Iterable[Item],
    size: int,
    on_result: Callable[[Committed], None],
) -> int:
    """Transfer items to the target.

    Args:
        operation: receives the events and the answered numbers.
        endpoints: the source and the target.
        items: the items to transfer.
        size: their total size in bytes, which determines the number of connections.
        on_result: called for every item that was committed or failed.

    Returns:
        The number of items with a result.
    """
    recorder, route = operation.recorder, operation.route
    if route.expects:
        _expect(operation, size)
    count = 0
    # closed first, so that the lock is not released while files are still committed
    with closing(route.carry(endpoints.source, endpoints.target, items)) as events:
        for event in events:
            if isinstance(event, Committed):
                count += 1
                operation.answered.add(event.item.number)
                on_result(event)
            else:
                recorder.record(event)
    if count:
        recorder.receipt.mover, recorder.receipt.checked_by = route.name, route.checked_by
    return count


def record_result(recorder: Recorder, result: Committed) -> None:
    """Record the result of one item."""
    entry, problem = result.item.entry, result.problem
    if problem is not None:
        recorder.record(failure_of(entry, problem.code, problem.message))
    elif entry.same_as:
        recorder.record(Linked(entry.path, entry.same_as, entry.renamed_from))
    else:
        facts = entry.mtime_ns, entry.mode, result.etag, result.inode, entry.renamed_from
        recorder.record(
            Moved(entry.path, entry.kind, entry.size, result.digest, result.verification, *facts),
            more=result.more,
        )


def _delete(operation: Operation, endpoints: Endpoints, plan: TransferPlan) -> None:
    """Delete last, and only if everything else succeeded and all listings were complete."""
    recorder = operation.recorder
    if not plan.deletions.count:
        return
    if recorder.receipt.files_failed:
        message = "nothing was deleted, because there were other failures"
        recorder.record(Failed(b"", "deletions-left", message))
        return

    def remove(done: int) -> Iterator[tuple[Entry, Problem | None]]:
        own = (action.entry for action in plan.deletions if not action.implied)
        return endpoints.target.remove(islice(own, done, None))

    for action in plan.deletions:
        if action.implied:
            recorder.record(Deleted(action.entry.path, action.entry.kind))
    for entry, problem in operation.reconnection.each(remove):
        if problem is None:
            recorder.record(Deleted(entry.path, entry.kind))
        else:
            recorder.fail(entry.path, problem)


def _adjust(operation: Operation, endpoints: Endpoints, plan: TransferPlan) -> None:
    """Set permissions and attributes of kept entries and new folders, after their contents."""
    recorder = operation.recorder
    if not endpoints.target.facts.adjusts:
        return

    def adjust(done: int) -> Iterator[tuple[Adjustment, Problem | None]]:
        return endpoints.target.adjust(islice(adjustments(plan, operation.request.rules), done, None))

    for adjustment, problem in operation.reconnection.each(adjust):
        entry = adjustment.entry
        # a folder that could not be made is among the failures already
        known = entry.kind is Kind.FOLDER and recorder.receipt.files_failed
        if problem is None:
            recorder.record(Adjusted(entry.path, entry.kind))
        elif problem.code != "vanished" or not known:
            recorder.fail(entry.path, problem)
            if operation.proven is not None:
                operation.proven.failed.add(entry.path)


# ---- the end: every operation that began has a receipt


def finish(operation: Operation, problem: BaseException | None, *, save: bool = False) -> Receipt:
    """Complete and write the receipt, also after `problem`; with `save`, commit a dataset before.

    A failed commit is in the receipt, so that the ledger has the exit code of the command. Raises
    `IncompleteError`.
    """
    recorder, endpoints = operation.recorder, operation.endpoints
    receipt = recorder.receipt
    recorder.on_event(Ended())
    _count_connections(operation)
    settings = [store.limited_by for store in operation.stores]
    if endpoints is not None:
        if operation.route.slowed:
            settings.insert(0, operation.request.lowest_setting)
        recorder.required = endpoints.required_verification
    receipt.limited_by = next((setting for setting in settings if setting), None)
    receipt.proof_tree = receipt.proof_moved
    if receipt.files_kept:
        kept = operation.kept_verification
        receipt.proof_tree = weakest(receipt.proof_moved or kept, kept)
    recorder.complete(problem)
    if save:
        try:
            _save_dataset(operation)
        except BaseException as failure:
            recorder.end(failure)
            raise
    if problem is None:
        for missing in operation.request.missing:
            recorder.record(missing)
    return recorder.end(problem)


def end_with(operation: Operation, problem: BaseException) -> BaseException:
    """Write the receipt after `problem`, and return the error to raise.

    A refusal says that nothing was changed. After changes, in an earlier attempt or cycle, the operation is
    incomplete instead. After a cancellation, every error is its consequence.
    """
    problem, receipt = as_cancelled(problem), operation.recorder.receipt
    if isinstance(problem, RefusedError) and receipt.has_changes:
        problem = IncompleteError(
            problem.code,
            problem.message,
            subject=problem.subject,
            hint=f"{counted(receipt.files_moved, 'file')} moved before this. Remove the cause, then run the same command"
            f" again to resume.{if_offered('history', f' What was moved: hibali history show {receipt.id}')}",
        )
    finish(operation, problem)
    return problem


def _count_connections(operation: Operation) -> None:
    """Add the bytes sent and the logins of an attempt's stores and route; once for each attempt."""
    receipt, stores, route = operation.recorder.receipt, operation.stores, operation.route
    receipt.bytes_sent += route.bytes_sent + sum(store.wire_bytes for store in stores)
    receipt.logins += route.logins + sum(store.logins for store in stores)
    receipt.reconnects += sum(store.reconnects for store in stores)


def _save_dataset(operation: Operation) -> None:
    """Commit the changes in a dataset. Raises `IncompleteError`."""
    endpoints = operation.endpoints
    saves = endpoints.saves if endpoints is not None else None
    if saves is not None:
        saves.save(operation.recorder.receipt, operation.request.saving)
