"""Verify a location against another one, a manifest, or recorded digests."""

from __future__ import annotations

import hashlib
import heapq
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import exp, lgamma
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

from hibali.errors import Exit, NotFoundError, UsageError
from hibali.events import Carried, Failed, Hashing, Listener, Noted, Unverified, ignore
from hibali.locations import Location
from transfers.history.journal import Coverage, Receipt, Recorder, source_line, target_line
from transfers.history.recorded_digests import DigestCache, recorded_digests
from transfers.inventory import HashingOption, Tree, open_tree
from transfers.manifest import Manifest
from transfers.model.entry import Entry, Kind, Verification
from transfers.model.rules import Rules, Selector, selector, with_parents
from transfers.model.spool import EntrySpool, Spooled, entry_from_list, entry_to_list
from transfers.model.units import Problem
from transfers.remote.one_session import one_session_at

_IN_MEMORY = 1024 * 1024

_Value = TypeVar("_Value")

Fail = Callable[[Failed], None]
Unknown = Callable[[bytes], None]


class Pair(NamedTuple):
    """A file and the digest it should have, or two files that should be the same."""

    first: Entry
    second: Entry | None = None
    wanted: str | None = None

    @property
    def entries(self) -> tuple[Entry, ...]:
        """One or both entries."""
        return (self.first,) if self.second is None else (self.first, self.second)


class Pairs(Spooled[Pair]):
    """Pairs in canonical order; `bytes` is the size to hash at each location."""

    def __init__(self, in_memory: int = _IN_MEMORY) -> None:
        super().__init__(in_memory)
        self.bytes = 0

    def add(self, value: Pair) -> None:
        """See Spooled."""
        super().add(value)
        self.bytes += value.first.size

    def _pack(self, value: Pair) -> list[Any]:
        second = entry_to_list(value.second) if value.second is not None else None
        return [entry_to_list(value.first), second, value.wanted]

    def _unpack(self, fields: list[Any]) -> Pair:
        first, second, wanted = fields
        return Pair(entry_from_list(first), entry_from_list(second) if second else None, wanted)


@dataclass(slots=True)
class Matched:
    """The pairs to compare; `without_digest` counts files without an expected digest."""

    pairs: Pairs = field(default_factory=Pairs)
    without_digest: int = 0


def leave_out(trees: Sequence[Tree], selects: Selector, left: Callable[[bytes], object]) -> None:
    """Remove names that `selects` rejects by age or size from one or two trees, and call `left` with each.

    The first tree with the name decides, so that a copy of another size is still checked.
    """
    selected = [EntrySpool() for _ in trees for _ in range(2)]
    sides = [_by_path(entries) for tree in trees for entries in (tree.files, tree.links)]
    for path, having in _merge(*sides):
        first = next(number for number, values in enumerate(having) if values)
        if trees[first // 2].single or selects(having[first][0]):
            for spool, values in zip(selected, having, strict=True):
                for entry in values:
                    spool.add(entry)
        else:
            left(path)
    for number, tree in enumerate(trees):
        tree.close()
        tree.files, tree.links = selected[2 * number : 2 * number + 2]


def missing_names(trees: Sequence[Tree], expected: Iterable[bytes]) -> Iterator[Failed]:
    """Yield a failure for each listed name that is in no tree and is not expected."""
    missing = set.intersection(*(tree.missing for tree in trees))
    for path in expected if missing else ():
        missing.difference_update(with_parents(path))
    for name in sorted(missing):
        yield Failed(name, "missing", "this name does not exist and has no recorded digest")


def match_digests(
    tree: Tree, expected: Mapping[bytes, str], fail: Fail, unknown: Unknown, *, exact: bool, below: bytes
) -> Matched:
    """Match a tree with expected digests. With `exact`, further files below the prefix `below` are failures.

    Without it, `unknown` is called with each file that has no expected digest.
    """
    found = Matched()
    wanted = ((path, None) for path in sorted(expected))
    for path, (named, file, link) in _merge(wanted, _by_path(tree.files), _by_path(tree.links)):
        if not named:
            if exact and path.startswith(below):
                fail(Failed(path, "unexpected", "no digest is recorded for it"))
            elif file:
                found.without_digest += 1
                unknown(path)
        elif file:
            found.pairs.add(Pair(file[0], None, expected[path]))
        elif link:
            fail(Failed(path, "differs", "expected a file, found a symlink"))
        else:
            fail(Failed(path, "missing", "it is not there"))
    return found


def match_trees(first: Tree, second: Tree, fail: Fail) -> Matched:
    """Match two trees: the second must have exactly what the first has.

    Two single files are compared regardless of their names. Files of different sizes are reported without hashing.
    """
    found = Matched()
    if first.single and second.single:
        for first_file, other in zip(first.files, second.files, strict=True):
            found.pairs.add(Pair(first_file, other))
        return found
    _match_links(first, second, fail)
    for path, (here, there) in _merge(_by_path(first.files), _by_path(second.files)):
        if not here:
            fail(Failed(path, "unexpected", "it exists only at the second location"))
        elif not there:
            fail(Failed(path, "missing", "it is not there"))
        elif here[0].size != there[0].size:
            reason = f"it has {there[0].size} bytes, expected {here[0].size}"
            fail(Failed(path, "differs", reason))
        else:
            found.pairs.add(Pair(here[0], there[0]))
    return found


def _match_links(first: Tree, second: Tree, fail: Fail) -> None:
    """Compare symlinks by their targets, as text."""
    for path, (here, there) in _merge(_by_path(first.links), _by_path(second.links)):
        if not here:
            fail(Failed(path, "unexpected", "it exists only at the second location"))
        elif not there:
            fail(Failed(path, "missing", "the symlink does not exist"))
        elif here[0].link != there[0].link:
            fail(Failed(path, "differs", "the symlink has another target"))


def _by_path(entries: EntrySpool) -> Iterator[tuple[bytes, Entry]]:
    return ((entry.path, entry) for entry in entries)


def _merge(*sides: Iterable[tuple[bytes, Any]]) -> Iterator[tuple[bytes, list[list[Any]]]]:
    """Merge sorted sides by path; each path has, for each side, a list of one value or none."""
    numbered = [_numbered(number, side) for number, side in enumerate(sides)]
    for path, group in groupby(heapq.merge(*numbered, key=itemgetter(0)), key=itemgetter(0)):
        having: list[list[Any]] = [[] for _ in sides]
        for _, number, value in group:
            having[number].append(value)
        yield path, having


def _numbered(number: int, side: Iterable[tuple[bytes, Any]]) -> Iterator[tuple[bytes, int, Any]]:
    return ((path, number, value) for path, value in side)


_SHARE = re.compile(r"([0-9]{1,18})(%?)")


@dataclass(frozen=True, slots=True)
class Share:
    """A number of files, or a percentage, at least one file."""

    number: int
    percent: bool = False

    def of(self, count: int) -> int:
        """Return the share of `count`; a percentage is rounded up."""
        return min(count, -(-count * self.number // 100) if self.percent else self.number)

    def __str__(self) -> str:
        return f"{self.number}%" if self.percent else str(self.number)


def read_share(text: str) -> Share:
    """Parse `N` or `N%`; raises `UsageError`."""
    found = _SHARE.fullmatch(text)
    if found is None or not int(found.group(1)) or (found.group(2) and int(found.group(1)) > 100):
        raise UsageError(
            "bad-sample",
            "a sample is a number of files from 1, or a percentage from 1% to 100%",
            subject=text,
        )
    return Share(int(found.group(1)), percent=bool(found.group(2)))


def new_seed() -> int:
    """Return a random seed that is short enough to type."""
    return secrets.randbelow(1_000_000_000)


def choose(
    values: Spooled[_Value] | Sequence[_Value], name: Callable[[_Value], bytes], share: Share, seed: int
) -> Iterator[_Value]:
    """Return the sample in the given order; each file has the same chance, whatever its size.

    Each name is drawn by its own hash with the seed, so other names have no influence on it. Memory grows with the
    sample only, by about 150 bytes for each file of it.
    """
    count, key = share.of(len(values)), str(seed).encode("ascii")
    if count == len(values):
        return iter(values)
    lots = (
        (hashlib.blake2b(name(value), key=key, digest_size=16).digest(), position)
        for position, value in enumerate(values)
    )
    chosen = {position for _, position in heapq.nsmallest(count, lots)}
    return (value for position, value in enumerate(values) if position in chosen)


def detection_probability(files: int, sample: int, damaged: int) -> float:
    """Return the probability that a random sample of `files` has at least one of the `damaged` ones (hypergeometric)."""
    sound = files - damaged
    if sample > sound:
        return 1.0
    ways = lgamma(sound + 1) - lgamma(sound - sample + 1) + lgamma(files - sample + 1) - lgamma(files + 1)
    return 1.0 - exp(ways)


@dataclass(frozen=True, slots=True)
class VerificationRequest:
    """The request: verify `first` alone, or `second` against `first`.

    With `exact`, files without a known digest are failures. A `sample` is drawn with `seed`, or a new seed if
    None. With `resume`, the last interrupted verification with the same request is resumed. `hashing` hashes the files.
    """

    first: Location
    second: Location | None = None
    manifest: Manifest | None = None
    rules: Rules = field(default_factory=Rules)
    exact: bool = False
    sample: Share | None = None
    seed: int | None = None
    resume: bool = False
    hashing: HashingOption | None = None


_NO_FACTS = [None, None, None]


class Verifier:
    """One verification; `receipt` is always up to date, so that it is correct after an interruption."""

    def __init__(self, request: VerificationRequest, on_event: Listener = ignore) -> None:
        self._request = request
        rules = request.rules
        # Names are selected while listing; age and size only after both listings, see leave_out.
        self._selected: Selector = selector(replace(rules, newer_ns=None, min_size=None, max_size=None))
        self._selects: Selector = selector(
            Rules(newer_ns=rules.newer_ns, min_size=rules.min_size, max_size=rules.max_size)
        )
        self._facts = [rules.newer_ns, rules.min_size, rules.max_size]
        self._trees: list[Tree] = []
        self._unlisted: set[bytes] = set()
        self._coverage = Coverage()
        self.listed = False  # whether the counts in the receipt are complete
        target = request.second or request.first
        self._recorder = Recorder("verify", request.first.text, target.text, on_event)
        self.receipt = self._recorder.receipt
        self.receipt.coverage = self._coverage

    def run(self) -> Receipt:
        """Hash and compare. Raises errors of connecting and listing, `NotFoundError("nothing-recorded")`."""
        with one_session_at(self._request.first, self._request.second), ExitStack() as stack:
            self._recorder.start(stack)
            try:
                matched = self._match(stack)
                stack.callback(matched.pairs.close)
                self._verify_files(matched)
            except BaseException as problem:
                self._settle()
                self._recorder.end(problem)
                raise
            return self._recorder.end(None, self._settle())

    def _open(self, location: Location, stack: ExitStack) -> Tree:
        names = self._request.rules.files_from
        tree = open_tree(
            location, self._selected, self._recorder.on_event, stack, names, self._request.hashing
        )
        self._trees.append(tree)
        second = location is self._request.second or self._request.second is None
        self._recorder.append((target_line if second else source_line)(location, tree.root_path))
        for path, problem in tree.unlisted:
            self._unlisted.add(path)
            self._fail(path, problem)
        return tree

    def _compared(self, failure: Failed) -> None:
        """Record a difference, unless the listing showed already that the file is missing."""
        if failure.path not in self._unlisted:
            self._recorder.record(failure)

    def _fail(self, path: bytes, problem: Problem | None) -> None:
        self._recorder.fail(path, problem or Problem("unreadable", "it could not be read"))

    def _match(self, stack: ExitStack) -> Matched:
        """List one or both trees and match them."""
        request = self._request
        tree = self._open(request.first, stack)
        if request.second is not None:
            other = self._open(request.second, stack)
            self._leave_out(lambda _: None)
            found = match_trees(tree, other, self._compared)
            missing = list(missing_names(self._trees, ()))
        else:
            expected = self._expected(tree)
            missing = list(missing_names(self._trees, expected))
            self._leave_out(lambda path: expected.pop(path, None))
            below = request.manifest.below if request.manifest is not None else b""
            found = match_digests(
                tree, expected, self._compared, self._unknown, exact=request.exact, below=below
            )
        for failure in missing:
            self._compared(failure)
        return found

    def _unknown(self, path: bytes) -> None:
        """Report a file without a recorded digest, unless a manifest defines the files."""
        if self._request.manifest is None:
            self._coverage.files_unrecorded += 1
            self._recorder.record(Unverified(path, "unrecorded", "no digest is recorded for it"))

    def _leave_out(self, left: Callable[[bytes], object]) -> None:
        if self._facts != _NO_FACTS:
            leave_out(self._trees, self._selects, left)

    def _expected(self, tree: Tree) -> dict[bytes, str]:
        """Return the expected digests of the selected paths."""
        known = self._known(tree)
        if tree.single:
            name = self._request.first.name
            one = known.get(b"") or known.get(name)
            known = {name: one} if one is not None else {}
        else:
            known = {path: known[path] for path in known if self._selected(Entry(path, Kind.FILE))}
        if not known:
            raise NotFoundError(
                "nothing-recorded",
                "no digests are recorded for this location",
                subject=self._request.first.text,
                hint="Give a manifest (--manifest FILE), or another location to compare with.",
            )
        return known

    def _known(self, tree: Tree) -> Mapping[bytes, str]:
        if self._request.manifest is not None:
            return self._request.manifest.digests
        known = {entry.path: entry.digest for entry in tree.files if entry.digest}
        recorded = recorded_digests(self._request.first, tree.root_path)
        return known | {path: expected.digest for path, expected in recorded.items()}

    def _verify_files(self, matched: Matched) -> None:
        """Hash and compare the files that were not verified before."""
        request, coverage = self._request, self._coverage
        files = self._trees[-1].files
        self.receipt.files, self.receipt.bytes = files.count, files.bytes
        coverage.files_unchecked = matched.pairs.count + matched.without_digest
        self.listed = True
        with (
            closing(DigestCache("verify", self._key(), keep=request.resume)) as cache,
            closing(Pairs()) as unseen,
        ):
            if request.resume and cache.empty:
                self._recorder.record(
                    Noted("There is no interrupted verification to resume; all files are checked.")
                )
            self._skip_verified(self._chosen(matched.pairs, cache), cache, unseen)
            self._recorder.on_event(Hashing(unseen.count, unseen.bytes))
            for pair, digest, wanted, problem in self._hashed(unseen):
                coverage.files_unchecked -= 1
                self._recorder.on_event(Carried(pair.first.size))
                if digest is None or wanted is None:
                    self._fail(pair.entries[-1].path, problem)
                else:
                    self._judge(pair, digest, wanted, cache)
            cache.discard()

    def _skip_verified(self, chosen: Iterable[Pair], cache: DigestCache, unseen: Pairs) -> None:
        """Put into `unseen` the pairs that the resumed verification did not verify, or that changed since."""
        for pair in chosen:
            earlier = cache.find(pair.entries)
            if earlier is not None and pair.wanted in {None, earlier}:
                self._coverage.files_recorded += 1
                self._coverage.files_unchecked -= 1
                self.receipt.files_kept += 1
            else:
                unseen.add(pair)

    def _judge(self, pair: Pair, digest: str, wanted: str, cache: DigestCache) -> None:
        self._coverage.files_hashed += 1
        if digest == wanted:
            self.receipt.files_kept += 1
            cache.add(pair.entries, digest)
        else:
            reason = f"its sha256 is {digest}, expected {wanted}"
            self._recorder.record(Failed(pair.entries[-1].path, "differs", reason))

    def _key(self) -> list[Any]:
        """Return the key of the request (roots, digests, selection), which must be equal to resume."""
        request = self._request
        against = request.manifest.fingerprint if request.manifest is not None else ""
        sample = str(request.sample) if request.sample is not None else ""
        rules = request.rules
        places = [tree.key() for tree in self._trees]
        key = [places, against, list(rules.include), list(rules.exclude), sample]
        if rules.files_from is not None:
            key.append(hashlib.sha256(b"\0".join(sorted(rules.files_from))).hexdigest())
        return [*key, self._facts] if self._facts != _NO_FACTS else key

    def _chosen(self, pairs: Pairs, cache: DigestCache) -> Iterable[Pair]:
        """Return all pairs, or a sample with the given seed, the resumed verification's, or a new one."""
        request = self._request
        if request.sample is None:
            cache.begin({})
            return pairs
        earlier = cache.header.get("seed")
        seed = request.seed if request.seed is not None else earlier
        if not isinstance(seed, int):
            seed = new_seed()
        self._coverage.sample_seed, self._coverage.sample_of = seed, pairs.count
        cache.begin({"seed": seed})
        return choose(pairs, lambda pair: pair.first.path, request.sample, seed)

    def _hashed(self, pairs: Pairs) -> Iterator[tuple[Pair, str | None, str | None, Problem | None]]:
        """Yield pairs with actual and expected digest; both sites hash at the same time, with read-ahead."""
        first = self._trees[0].digests(pair.first for pair in pairs)
        if self._request.second is None:
            for pair, (_, digest, problem) in zip(pairs, first, strict=True):
                yield pair, digest, pair.wanted, problem
            return
        second: Iterable[Entry] = (pair.second for pair in pairs if pair.second is not None)
        both = zip(pairs, first, self._trees[1].digests(second), strict=True)
        for pair, (_, wanted, unread), (_, digest, problem) in both:
            yield pair, digest, wanted, unread or problem

    def _settle(self) -> Exit:
        """Complete the receipt, and return the exit code of a complete verification.

        Unchecked files count as not verified, and digests of an earlier verification as RECORDED.
        """
        receipt, coverage = self.receipt, self._coverage
        stores = [store for tree in self._trees for store in tree.stores]
        receipt.bytes_sent = sum(store.wire_bytes for store in stores)
        receipt.logins = sum(store.logins for store in stores)
        if not self.listed or receipt.files_failed or coverage.files_unchecked:
            receipt.proof_tree = Verification.NONE
        elif receipt.files:
            receipt.proof_tree = Verification.RECORDED if coverage.files_recorded else Verification.DIGEST
        if receipt.files_failed:
            return Exit.INCOMPLETE
        return Exit.NOT_VERIFIED if coverage.files_unrecorded else Exit.DONE
