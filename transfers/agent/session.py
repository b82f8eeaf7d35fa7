"""Serve one client at one root: list, read, receive, hash and remove, under one lock."""

import binascii
import errno
import hashlib
import mmap
import os
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Set, Tuple, Union

from transfers.agent import journal, protocol
from transfers.agent.identity import boot_identifier
from transfers.agent.lease import ENDED, BorrowedLease, Lease, LockedError, LostLeaseError, end_stale_agents
from transfers.agent.listing import Pages, Walk
from transfers.agent.protocol import (
    ChangedError,
    Channel,
    ProtocolError,
    RefusedError,
    UnsafeNameError,
    pack_record,
    problem_of,
    with_zeros,
)
from transfers.agent.reading import Reader, digest_file, map_in_threads
from transfers.agent.receiving import (
    ChannelReceiver,
    MainReceiver,
    absolute_path,
)
from transfers.agent.removing import (
    adjust_items,
    back_up_item,
    check_root_path,
    check_unlocked,
    clear_own_folder,
    open_backup,
    remove_item,
    remove_own_files,
    remove_root,
    remove_unchanged,
)
from transfers.agent.safe_path import OpenedFolder, Root, Roots, leaves_root_error
from transfers.agent.writing import (
    packed_in,
    purge,
    remove_tree,
    sync_folders,
    unpack_item,
    with_attributes,
)

if TYPE_CHECKING:  # imported when used, because most agents need few of them
    from transfers.agent.appending import AppendTarget, TailReader
    from transfers.agent.third_party import Relay, ThirdPartyFiles

_BLOCK = 256 * 1024  # bytes of packed records in one message
_MOST_FETCHED = 32 * 1024 * 1024


class Session(object):
    """The state of one connection to a client."""

    def __init__(self, channel: Channel, roots: Roots) -> None:
        self._channel = channel
        self.roots = roots
        self._root: Optional[Root] = None
        self._opened_folder: Optional[OpenedFolder] = None  # how the root's path was opened
        self._root_path = b""
        self._lease: Optional[Lease] = None
        self._reader: Optional[Reader] = None
        self._receiver: Union[MainReceiver, ChannelReceiver, None] = None
        self._unit: Optional[Dict[str, Any]] = None
        self._backup: Optional[Root] = None
        self._tail_reader: "Optional[TailReader]" = None
        self._append_target: "Optional[AppendTarget]" = None
        self._relay: "Optional[Relay]" = None
        self._third_party: "Optional[ThirdPartyFiles]" = None
        self._left = False
        self._walked = False
        self._call = ""
        self._targets_below: List[bytes] = []
        self._partials: List[bytes] = []
        self._unlinked: Dict[Tuple[int, int], Tuple[int, ...]] = {}  # see `remove_unchanged`
        self._unpurged: Set[bytes] = set()  # of the partial files that were listed last
        self._memory: Optional[mmap.mmap] = None
        self.requests: Dict[Any, Callable[[Dict[str, Any]], None]] = {
            "share": self._share,
            "open": self._open,
            "lstat": self._lstat,
            "check_path": self._check_path,
            "identity": self._identity,
            "list": self._list,
            "partial_bytes": self._partial_bytes,
            "lock": self._lock,
            "hand_over": self._hand_over,
            "issue_tickets": self._issue_tickets,
            "unlock": self._unlock,
            "start_receiving": self._start_receiving,
            "join": self._join,
            "finish_receiving": self._finish_receiving,
            "create_partials": self._create_partials,
            "commit_external": self._commit_external,
            "purge": self._purge,
            "digest": self._digest,
            "remove": self._remove,
            "fetch_files": self._fetch_files,
            "remove_whole": self._remove_whole,
            "remove_tree": self._remove_tree,
            "adjust": self._adjust,
            "back_up": self._back_up,
            "tail": self._tail,
            "end_stale_agents": self._end_stale_agents,
            "check_vacant": self._check_vacant,
            "remove_own_files": self._remove_own_files,
            "remove_root": self._remove_root,
            "rename": self._rename,
            "access": self._access,
            "start_relay": self._start_relay,
            "forward": self._forward,
        }

    def _share(self, header: Dict[str, Any]) -> None:
        """Map the memory of a local client by an inherited descriptor: bulk bytes are passed as offsets."""
        self._memory = mmap.mmap(header["descriptor"], header["size"])
        os.close(header["descriptor"])
        self._channel.send(protocol.END, {})

    def _opened(self) -> Root:
        if self._root is None:
            raise ProtocolError("no root is open")
        return self._root

    def _open(self, header: Dict[str, Any]) -> None:
        """Open the root at an absolute path; `make` creates it and missing folders above it.

        `confined` refuses a path that leads out of the configured root: the client is going to delete.
        """
        path = absolute_path(header["path"])
        self._forget_root()  # a request that follows a failure must not concern the root before
        opened = self.roots.open(path, bool(header.get("make")))
        if header.get("confined") and not opened.inside:
            os.close(opened.descriptor)
            raise leaves_root_error(path)
        self._root, self._opened_folder, self._root_path = opened.root(path), opened, path
        self._channel.send(protocol.END, {"path": protocol.text_of(os.path.realpath(path))})

    def _forget_root(self) -> None:
        """Close the root with all that is known of it."""
        for each in (self._reader, self._backup, self._root):
            if each is not None:
                each.close()
        self._reader = self._backup = self._root = self._opened_folder = None
        self._root_path = b""
        self._walked = False
        self._targets_below, self._partials, self._unpurged = [], [], set()

    def whole_path(self, name: bytes) -> bytes:
        """Return the path of a name in a system error: below the root, names are relative to an open folder.

        A name that is not directly in the root is one of a folder below, so that the root is all that is known.
        """
        if name.startswith(b"/") or not self._root_path:
            return name
        whole = os.path.join(self._root_path, name)
        return whole if name == protocol.OWN_FOLDER or os.path.lexists(whole) else self._root_path

    def _writable_root(self) -> Root:
        """Return the root; refuse a path through a symlink that another account can redirect."""
        root = self._opened()
        if self._opened_folder is not None and self._opened_folder.foreign is not None:
            raise self._opened_folder.foreign
        return root

    def _check_inside(self) -> None:
        """Check before a deletion: lease held, path in the root. Raises LostLeaseError, RefusedError."""
        self._check_lease()
        self._check_root()

    def _check_root(self) -> None:
        if self._opened_folder is not None and not self._opened_folder.inside:
            raise leaves_root_error(self._root_path)

    def _identity(self, header: Dict[str, Any]) -> None:
        del header
        found = os.fstat(self._opened().descriptor)
        self._channel.send(protocol.END, {"device": found.st_dev, "inode": found.st_ino})

    def _check_path(self, header: Dict[str, Any]) -> None:
        self.roots.check(absolute_path(header["path"]))
        self._channel.send(protocol.END, {})

    def _lstat(self, header: Dict[str, Any]) -> None:
        path = protocol.bytes_of(header["path"])
        record = self._opened().lstat(path)
        if record is not None and header.get("attributes"):
            record = with_attributes(self._opened().parent(path), path.rpartition(b"/")[2], record)
        self._channel.send(
            protocol.END, {"found": record is not None}, pack_record(record) if record else b""
        )

    def _list(self, header: Dict[str, Any]) -> None:
        only = header.get("only")
        walk = Walk(
            self._opened(),
            shallow=bool(header.get("shallow")),
            attributes=bool(header.get("attributes")),
            only=None if only is None else [protocol.bytes_of(path) for path in only],
        )
        packed = Pages()
        for folder, records in walk:
            packed.add(folder, records)
            if len(packed.block) >= _BLOCK:
                self._channel.send(protocol.REPLY, {"pages": packed.pages}, packed.block)
                packed.clear()
        packed.end()
        problems = [[protocol.text_of(path), problem] for path, problem in [*walk.problems, *packed.problems]]
        orphans = [protocol.text_of(path) for path in walk.orphans]
        self._walked = not header.get("shallow") and only is None and not problems
        self._targets_below, self._partials = walk.targets_below, walk.orphans + walk.in_use
        self._unpurged = set(walk.orphans)
        closing = {"count": walk.count - len(packed.problems), "problems": problems, "orphans": orphans}
        self._channel.send(protocol.END, {**closing, "pages": packed.pages}, packed.block)

    def _partial_bytes(self, header: Dict[str, Any]) -> None:
        """Report the bytes of incomplete large files, which need no more space when they are resumed."""
        del header
        self._channel.send(protocol.END, {"bytes": journal.partial_bytes(self._opened())})

    def _lock(self, header: Dict[str, Any]) -> None:
        """Lock the target; with `back` (lost channel, same call), refuse if others may have written since."""
        root = self._writable_root()
        # Any earlier holder removed the folder together with its lock.
        root.forget(protocol.OWN_FOLDER)
        call = str(header.get("call", ""))
        try:
            adopt = str(header.get("adopt", ""))
            self._lease = Lease(root, header["operation"], header["client"], header["lease"], call, adopt)
        except LockedError as problem:
            if call and problem.holder.get("call") == call:
                raise RefusedError(
                    "stale-agent-locks", "the agent of the lost connection still holds the lock of the target"
                ) from None
            raise
        self._call = call
        if header.get("back"):
            if journal.last_call(root) != call:
                self._lease.release()
                self._lease = None
                raise RefusedError(
                    "written-by-another",
                    "another client may have written to the target after the connection was lost",
                )
            self._walked = bool(header.get("walked"))
        self._channel.send(protocol.END, {"token": self._lease.token})

    def _hand_over(self, header: Dict[str, Any]) -> None:
        """Hand the lock over to jobs, and reply with what they need to write under it: `seed` and `token`."""
        del header
        lease, root = self._lease, self._writable_root()
        if lease is None:
            raise LostLeaseError("the target is not locked")
        seed, after_others = journal.open_seed(root, self._call)
        self._walked = self._walked or not after_others
        lease.hand_over()
        self._channel.send(protocol.END, {"seed": seed.hex(), "token": lease.token})

    def _issue_tickets(self, header: Dict[str, Any]) -> None:
        """Reply with what as many further processes of the client need to receive here under this lock."""
        self._end_third_party()
        lease, root = self._lease, self._writable_root()
        if lease is None:
            raise LostLeaseError("the target is not locked")
        seeds, after_others = journal.open_seeds(root, self._call, header["count"])
        self._walked = self._walked or not after_others
        journal.PartialFilesJournal(root).close()
        tickets = [{"seed": seed.hex(), "token": lease.token} for seed in seeds]
        self._channel.send(protocol.END, {"tickets": tickets})

    def _unlock(self, header: Dict[str, Any]) -> None:
        """Release the lock; `clean`: nothing else was left, `fresh`: there was no journal before.

        With `check`, raise `LostLeaseError` if it was lost. The journal is removed if nothing else can be left. It stays for partial
        files that were listed and not purged: the client may have been interrupted while it read the list.
        """
        self._end_third_party()
        if self._lease is not None:
            walked = self._walked or header.get("fresh")
            left = self._left or self._unpurged or self._receiver is not None
            tidy = header.get("clean") and walked and not left
            if header.get("check"):
                self._lease.check()
            if tidy and self._lease.is_held() and not journal.read_partial_files(self._opened()):
                journal.remove_partials_journal(self._opened())
                journal.end_journal(self._opened())
            self._left = self._walked = False
            self._lease.release()
            self._lease = None
        self._channel.send(protocol.END, {})

    def receive_unit(self, header: Dict[str, Any]) -> None:
        """Receive a planned unit: the source reads it and replies; the target expects its data next."""
        if self._relay is not None:
            self._relay.read_unit(header)
            return
        header["items"] = [unpack_item(item) for item in header["items"]]
        if self._receiver is not None:
            self._unit = header
            return
        if self._reader is None:
            self._reader = Reader(self._opened(), self._channel, self._memory)
        self._reader.read_unit(header)

    def receive_data(self, header: Dict[str, Any], body: protocol.Body) -> None:
        """Receive the bytes of the unit announced last."""
        if self._receiver is None or self._unit is None:
            raise ProtocolError("data that was not planned")
        unit, self._unit = self._unit, None
        if "at" in header and self._memory is not None:
            at = header["at"]
            body = memoryview(self._memory)[at : at + sum(header["sizes"])]
        length = unit["length"] if unit["segment"] else 0
        whole = with_zeros(header, body, length, self._channel.buffers.allocate)
        self._receiver.receive(unit, header, whole)
        self._channel.buffers.release(body)
        if whole is not body:
            self._channel.buffers.release(whole)

    def receive_file(self, header: Dict[str, Any]) -> None:
        """Prepare for a large file that will arrive in pieces."""
        if self._relay is not None:
            self._relay.forward(protocol.FILE, header)
            return
        if not isinstance(self._receiver, MainReceiver):
            raise ProtocolError("a file that was not planned")
        header["item"] = unpack_item(header["item"])
        self._receiver.begin(header)

    def receive_placed(self, header: Dict[str, Any]) -> None:
        """Note that another agent wrote a piece of a large file, or its digest, or that it is abandoned."""
        if self._relay is not None:
            self._relay.forward(protocol.PLACED, header)
            return
        if not isinstance(self._receiver, MainReceiver):
            raise ProtocolError("a piece that was not planned")
        self._receiver.place(header)

    def _start_receiving(self, header: Dict[str, Any]) -> None:
        """Start receiving under our own lease, or under another agent's of the same client: by its `token`, or by a
        `ticket` beside other processes.
        """
        self._end_third_party()  # its open journal is rewritten by the receiver
        # Folders opened for earlier listings or transfers may have been renamed since.
        root = self._opened()
        root.forget_all()
        ticket = header.get("ticket")
        token = header.get("token") if ticket is None else ticket["token"]
        self._writable_root()
        lease = self._lease if token is None else BorrowedLease(root, str(token))
        if lease is None:
            raise LostLeaseError("the target is not locked")
        lease.check()
        if ticket is None:
            seed, after_others = journal.open_seed(root, self._call)
            self._walked = self._walked or not after_others
        else:
            seed = binascii.unhexlify(ticket["seed"])
        intake = MainReceiver(self._channel, root, lease, seed, ticket is not None)
        intake.reports_digests = bool(header.get("digests"))
        self._receiver = intake
        ticket = {"seed": seed.hex(), "token": lease.token}
        reply = {"begun": intake.partial_files(), "ticket": ticket, "walked": self._walked}
        self._channel.send(protocol.REPLY, reply)

    def _join(self, header: Dict[str, Any]) -> None:
        """Start receiving beside the agent that holds the lock, with the ticket that it issued."""
        ticket = header["ticket"]
        seed = binascii.unhexlify(ticket["seed"])
        lease = BorrowedLease(self._opened(), str(ticket["token"]))
        lease.check()
        self._receiver = ChannelReceiver(self._channel, self._opened(), lease, seed)
        self._channel.send(protocol.END, {"boot": boot_identifier()})

    def _end_stale_agents(self, header: Dict[str, Any]) -> None:
        """End the agents of lost channels; while receiving, reply as to a `unit`, only if all have ended."""
        found = end_stale_agents(header["agents"])
        if "unit" not in header:
            self._channel.send(protocol.END, {"found": found})
            return
        if any(one != ENDED for one in found):
            raise OSError(errno.ETIMEDOUT, "the agent of a lost connection cannot be ended")
        self._channel.send(
            protocol.COMMITTED, {"unit": header["unit"], "done": [], "inodes": [], "failed": []}
        )

    def _finish_receiving(self, header: Dict[str, Any]) -> None:
        del header
        receiver, self._receiver = self._receiver, None
        left = False
        if receiver is not None:
            try:
                receiver.finish()
            finally:
                left = receiver.left
                self._left = self._left or left
        self._channel.send(protocol.END, {"left": left})

    def _create_partials(self, header: Dict[str, Any]) -> None:
        """Create the partial files that another program will write, and reply with their names."""
        items = [unpack_item(item) for item in header["items"]]
        self._channel.send(protocol.END, self._third_party_files().create_partials(items))

    def _commit_external(self, header: Dict[str, Any]) -> None:
        """Check the files that another program wrote, and rename those that are correct."""
        items = [unpack_item(item) for item in header["items"]]
        for item in items:
            item["partial"] = protocol.bytes_of(item["partial"])
        self._channel.send(protocol.END, self._third_party_files().commit_external(items))

    def _third_party_files(self) -> "ThirdPartyFiles":
        from transfers.agent.third_party import ThirdPartyFiles  # start-up: only for this request

        self._check_lease()
        if self._third_party is None:
            seed, after_others = journal.open_seed(self._opened(), self._call)
            self._walked = self._walked or not after_others
            self._third_party = ThirdPartyFiles(self._opened(), seed, self._channel.disconnected)
        return self._third_party

    def _end_third_party(self) -> None:
        third_party, self._third_party = self._third_party, None
        if third_party is not None:
            self._left = self._left or third_party.left
            third_party.close()

    def _start_relay(self, header: Dict[str, Any]) -> None:
        """Log in to another site from here and start an agent there, which receives what is read here."""
        from transfers.agent.third_party import Relay, UnreachedError  # start-up: only for this request

        try:
            relay = Relay(self._channel, self._opened(), header["words"])
            greeting = relay.start(binascii.a2b_base64(header["opening"]), header["nonce"])
        except UnreachedError as problem:
            details = {"reached": False, "status": problem.status, "errors": problem.errors}
            self._channel.send(protocol.END, details)
            return
        self._relay = relay
        self._channel.send(protocol.END, {"reached": True, "greeting": greeting})

    def _forward(self, header: Dict[str, Any]) -> None:
        """Forward a request to the agent at the other site, which replies."""
        if self._relay is None:
            raise ProtocolError("no agent was reached from here")
        self._relay.forward(protocol.REQUEST, header["request"])

    def _purge(self, header: Dict[str, Any]) -> None:
        """Remove partial files of earlier operations at this target."""
        root = self._opened()
        self._check_lease()
        resumable = {part.partial for part in journal.read_partial_files(root)}
        for path in map(protocol.bytes_of, header["paths"]):
            if path not in resumable:
                purge(root, path)
            self._unpurged.discard(path)
        self._channel.send(protocol.END, {})

    def _digest(self, header: Dict[str, Any]) -> None:
        """Send one REPLY per item, in order; several threads hash the files or their `ranges`."""
        paths = [protocol.bytes_of(text) for text in header["paths"]]
        ranges = header.get("ranges") or [[0, None]] * len(paths)

        def hash_one(root: Root, item: Tuple[bytes, List[Any]]) -> Dict[str, Any]:
            path, part = item
            try:
                return {"digest": digest_file(root, path, self._channel.disconnected, *part)}
            except BrokenPipeError:
                raise
            except (OSError, UnsafeNameError, ChangedError) as problem:
                return {"digest": None, "problem": problem_of(problem)}

        for reply in map_in_threads(self._opened(), hash_one, zip(paths, ranges)):
            self._channel.send(protocol.REPLY, reply)
        self._channel.send(protocol.END, {})

    def _remove(self, header: Dict[str, Any]) -> None:
        root = self._opened()
        self._check_inside()
        problems = {}
        for position, item in enumerate(header["items"]):
            item["path"] = protocol.bytes_of(item["path"])
            problem = (
                remove_unchanged(root, item, self._unlinked) if "exact" in item else remove_item(root, item)
            )
            if problem is not None:
                problems[str(position)] = problem
        self._channel.send(protocol.END, {"problems": problems})

    def _remove_tree(self, header: Dict[str, Any]) -> None:
        """Remove the tree at an absolute path; an absent one is a success. Opens its folder like any root."""
        folder, name = os.path.split(absolute_path(header["path"]).rstrip(b"/"))
        if not name:
            raise OSError(errno.EINVAL, "refusing to remove /")
        try:
            opened = self.roots.open(folder)
        except FileNotFoundError:
            self._channel.send(protocol.END, {})
            return
        try:
            if not opened.inside:
                raise leaves_root_error(folder)
            if opened.foreign is not None:
                raise opened.foreign
            remove_tree(opened.descriptor, name)
        finally:
            os.close(opened.descriptor)
        self._channel.send(protocol.END, {})

    def _check_vacant(self, header: Dict[str, Any]) -> None:
        """Check that no other client works above the root or, as far as the last listing showed, below it."""
        path = protocol.bytes_of(header["where"])
        self._check_lease()
        if header["itself"]:
            check_root_path(self._opened(), path)
        check_unlocked(self._opened(), path, self._targets_below)
        self._channel.send(protocol.END, {})

    def _remove_own_files(self, header: Dict[str, Any]) -> None:
        """Remove hibali's own files below the root, as far as the last listing showed them."""
        del header
        self._check_inside()
        found = remove_own_files(self._opened(), self._check_lease, self._partials, self._targets_below)
        self._unpurged.clear()
        problems = [[protocol.text_of(path), problem] for path, problem in found]
        self._channel.send(protocol.END, {"problems": problems})

    def _remove_root(self, header: Dict[str, Any]) -> None:
        """Remove the root itself, and release the lock with it."""
        self._check_inside()
        lease, self._lease = self._lease, None
        if lease is not None:
            clear_own_folder(self._opened())
            lease.release()
        self._opened().forget_all()
        problem = remove_root(self._opened(), protocol.bytes_of(header["where"]))
        self._channel.send(protocol.END, {"problem": problem})

    def _rename(self, header: Dict[str, Any]) -> None:
        """Rename the root itself, or with `path` an entry in it; without a lock only check whether it is possible."""
        from transfers.agent.renaming import Renaming  # start-up: only for this request

        self._check_root()
        target = absolute_path(header["to"])
        renaming = Renaming(self._writable_root(), protocol.bytes_of(header["where"]), header)
        try:
            renaming.check_target(target)
            if self._lease is not None:
                renaming.execute(target, self.roots, self._lease.token, self._check_lease)
        finally:
            renaming.close()
        self._channel.send(protocol.END, {})

    def _access(self, header: Dict[str, Any]) -> None:
        """Show or change who may read and write a file, or a folder and all below it."""
        from transfers.agent import acl  # start-up: only for this request

        self._channel.send(protocol.END, acl.answer(self.roots, header))

    def _adjust(self, header: Dict[str, Any]) -> None:
        root = self._opened()
        self._check_lease()
        for item in header["items"]:
            item["path"] = protocol.bytes_of(item["path"])
            item["attributes"] = packed_in(item)
        problems = adjust_items(root, header["items"])
        reply = {str(position): problem for position, problem in problems.items()}
        self._channel.send(protocol.END, {"problems": reply})

    def _back_up(self, header: Dict[str, Any]) -> None:
        """Link files that will be replaced or deleted below `into`; a reported backup is on disk."""
        root = self._opened()
        self._check_lease()
        if self._backup is None:
            path, into = protocol.bytes_of(header["root"]), absolute_path(header["into"])
            self._backup = open_backup(root, path, into, self.roots)
        problems = {}
        folders = set()
        for position, item in enumerate(header["items"]):
            item["path"] = protocol.bytes_of(item["path"])
            problem = back_up_item(root, self._backup, item)
            if problem is not None:
                problems[str(position)] = problem
            else:
                folders.add(item["path"].rpartition(b"/")[0])
        unsynced = sync_folders(self._backup, sorted(folders))
        for position, item in enumerate(header["items"]):
            problem = unsynced.get(item["path"].rpartition(b"/")[0])
            if problem is not None:
                problems.setdefault(str(position), problem)
        self._channel.send(protocol.END, {"problems": problems})

    def _tail(self, header: Dict[str, Any]) -> None:
        """Send the bytes after an offset of a growing file."""
        header["path"] = protocol.bytes_of(header["path"])
        if self._tail_reader is None:
            from transfers.agent.appending import TailReader  # start-up: only for this request

            self._tail_reader = TailReader(self._opened(), self._check_client)
        self._channel.send(protocol.END, *self._tail_reader.read(header))

    def append(self, header: Dict[str, Any], body: protocol.Body) -> None:
        """Append bytes to a file."""
        header["path"] = protocol.bytes_of(header["path"])
        if self._append_target is None:
            from transfers.agent.appending import AppendTarget  # start-up: only for this request

            self._append_target = AppendTarget(self._opened(), self._check_client, self._check_lease)
        content = bytearray(body) if not isinstance(body, bytearray) else body
        self._channel.send(protocol.END, self._append_target.append(header, content))

    def store_files(self, header: Dict[str, Any], body: protocol.Body) -> None:
        """Store small files; see small_files.py."""
        from transfers.agent.small_files import (  # start-up: only for this request
            SmallFile,
            failure_of,
            store_files,
        )

        root, view, position, files = self._writable_root(), memoryview(body), 0, []
        for item in header["files"]:
            content = view[position : position + item["size"]]
            position += item["size"]
            if hashlib.sha256(content).hexdigest() != item["digest"]:
                raise RefusedError("corrupt", "the received data differs from the data read at the source")
            path = protocol.bytes_of(item["path"])
            files.append(SmallFile(path, content, item["mtime_ns"], item["executable"]))
        lock = header.get("lock")
        take = None if lock is None else lambda: Lease(root, lock["operation"], lock["client"], lock["lease"])
        failures = store_files(root, files, take)
        problems = [None if failure is None else failure_of(failure) for failure in failures]
        self._channel.send(protocol.END, {"problems": problems})

    def _fetch_files(self, header: Dict[str, Any]) -> None:
        from transfers.agent.small_files import fetch_files  # start-up: only for this request

        paths = [protocol.bytes_of(text) for text in header["paths"]]
        found, body = fetch_files(self._opened(), paths, min(int(header["maximum"]), _MOST_FETCHED))
        self._channel.send(protocol.END, {"found": found, "digest": hashlib.sha256(body).hexdigest()}, body)

    def _remove_whole(self, header: Dict[str, Any]) -> None:
        """Remove one file if it is unchanged since the listing; unlink(2) is atomic and needs no lock."""
        if header["kind"] != "f":
            raise ProtocolError("only files are removed without a lock")
        self._check_root()
        self._opened().forget_all()  # another process may have replaced a folder since
        header["path"] = protocol.bytes_of(header["path"])
        self._channel.send(protocol.END, {"problem": remove_item(self._opened(), header)})

    def _check_client(self) -> None:
        """Stop long work, such as hashing a large file, once the client is disconnected."""
        if self._channel.disconnected.is_set():
            raise BrokenPipeError(errno.EPIPE, "the client disconnected")

    def _check_lease(self) -> None:
        if self._lease is None:
            raise LostLeaseError("the target is not locked")
        self._lease.check()

    def close(self) -> None:
        """Close everything; only files in the journal remain."""
        self._end_third_party()
        if self._relay is not None:
            self._relay.close()
        if self._receiver is not None:
            self._receiver.abandon()
        if self._reader is not None:
            self._reader.close()
        if self._lease is not None:
            self._lease.leave()
        if self._backup is not None:
            self._backup.close()
        if self._root is not None:
            self._root.close()
