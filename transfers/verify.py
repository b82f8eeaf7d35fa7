"""Proving what stands at a place: two locations against each other, or one against a manifest or what is on record."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import Any

from hibali.errors import Exit, NotFoundError
from hibali.events import Carried, Event, Failed, Hashing, Listener, Noted, Unverified, ignore
from hibali.ledger import Journal, new_identifier
from hibali.locations import Location
from transfers.digest_book import DigestBook
from transfers.entry import Entry, Kind, Proof
from transfers.journal_lines import end_journal, journal_line, open_journal, origin_line, place_line
from transfers.manifest import Manifest
from transfers.matching import Matched, Pair, Pairs, leave_out, match_digests, match_trees, unmet_names
from transfers.receipt import Coverage, Receipt, exit_after
from transfers.record import recorded_digests
from transfers.rules import Rules, Selector, selector
from transfers.sample import Share, choose, new_seed
from transfers.store import Problem
from transfers.tree import Tree, open_tree


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be proven of `first`, or of `second` against it.

    `exact` names files at one place that nothing is known of. A `sample` is drawn by `seed`, which is made up
    where it is None. `resume` goes on where the last call that asked this was stopped.
    """

    first: Location
    second: Location | None = None
    manifest: Manifest | None = None
    rules: Rules = field(default_factory=Rules)
    exact: bool = False
    sample: Share | None = None
    seed: int | None = None
    resume: bool = False


_NO_FACTS = [None, None, None]


class Verification:
    """One verification; `receipt` is true at any moment, so that one that was stopped can say how far it came."""

    def __init__(self, question: Question, tell: Listener = ignore) -> None:
        self._question = question
        rules = question.rules
        # By name at once; by age and size once it is known which place has a name.
        self._selected: Selector = selector(replace(rules, newer_ns=None, min_size=None, max_size=None))
        self._takes: Selector = selector(
            Rules(newer_ns=rules.newer_ns, min_size=rules.min_size, max_size=rules.max_size)
        )
        self._facts = [rules.newer_ns, rules.min_size, rules.max_size]
        self._tell_others = tell
        self._trees: list[Tree] = []
        self._began = time.monotonic()
        self._coverage = Coverage()
        self.listed = False  # from then on the receipt knows what there is to look at
        target = question.second or question.first
        self.receipt = Receipt(new_identifier(), "verify", question.first.text, target.text)
        self.receipt.coverage = self._coverage
        self._journal: Journal | None = None

    def run(self) -> Receipt:
        """Hash and compare. Raises the errors of reaching and listing, and `NotFoundError("nothing-recorded")`."""
        with ExitStack() as stack:
            self._journal = open_journal(self.receipt, stack)
            try:
                matched = self._match(stack)
                stack.callback(matched.pairs.close)
                self._prove(matched)
            except BaseException as problem:
                self._settle()
                self.receipt.exit = exit_after(problem, self.receipt)
                end_journal(self._journal, self.receipt, problem)
                raise
            self._settle()
            end_journal(self._journal, self.receipt, None)
        return self.receipt

    def _open(self, location: Location, stack: ExitStack) -> Tree:
        names = self._question.rules.files_from
        tree = open_tree(location, self._selected, self._tell_others, stack, names)
        self._trees.append(tree)
        if self._journal is not None:
            second = location is self._question.second or self._question.second is None
            self._journal.append((place_line if second else origin_line)(location, tree.where))
        for path, problem in tree.unlisted:
            self._fail(path, problem)
        return tree

    def _tell(self, event: Event) -> None:
        self.receipt.take(event)
        line = journal_line(event)
        if self._journal is not None and line is not None:
            self._journal.append(line)
        self._tell_others(event)

    def _fail(self, path: bytes, problem: Problem | None) -> None:
        reason = problem or Problem("unreadable", "it could not be read")
        self._tell(Failed(path, reason.code, reason.message))

    def _match(self, stack: ExitStack) -> Matched:
        """Look at the one place or at both."""
        question = self._question
        tree = self._open(question.first, stack)
        if question.second is not None:
            other = self._open(question.second, stack)
            self._leave_out(lambda _: None)
            found = match_trees(tree, other, self._tell)
            missing = list(unmet_names(self._trees, ()))
        else:
            expected = self._expected(tree)
            missing = list(unmet_names(self._trees, expected))
            self._leave_out(lambda path: expected.pop(path, None))
            below = question.manifest.below if question.manifest is not None else b""
            found = match_digests(
                tree, expected, self._tell, self._unknown, exact=question.exact, below=below
            )
        for failure in missing:
            self._tell(failure)
        return found

    def _unknown(self, path: bytes) -> None:
        """A file with no digest to compare with; a manifest says by itself which files are meant."""
        if self._question.manifest is None:
            self._coverage.files_unrecorded += 1
            self._tell(Unverified(path, "unrecorded", "no digest is on record for it"))

    def _leave_out(self, left: Callable[[bytes], object]) -> None:
        if self._facts != _NO_FACTS:
            leave_out(self._trees, self._takes, left)

    def _expected(self, tree: Tree) -> dict[bytes, str]:
        """Path to digest, as far as the question goes."""
        known = self._known(tree)
        if tree.single:
            name = self._question.first.name
            one = known.get(b"") or known.get(name)
            known = {name: one} if one is not None else {}
        else:
            known = {path: known[path] for path in known if self._selected(Entry(path, Kind.FILE))}
        if not known:
            raise NotFoundError(
                "nothing-recorded",
                "no digests are on record for this place",
                about=self._question.first.text,
                hint="Give a manifest (--manifest FILE), or another place to compare with.",
            )
        return known

    def _known(self, tree: Tree) -> Mapping[bytes, str]:
        if self._question.manifest is not None:
            return self._question.manifest.digests
        known = {entry.path: entry.digest for entry in tree.files if entry.digest}
        recorded = recorded_digests(self._question.first, tree.where)
        return known | {path: expected.digest for path, expected in recorded.items()}

    def _prove(self, matched: Matched) -> None:
        """Hash what is to be looked at and was not before, and judge it."""
        question, coverage = self._question, self._coverage
        files = self._trees[-1].files
        self.receipt.files, self.receipt.bytes = files.count, files.bytes
        coverage.files_unchecked = matched.pairs.count + matched.nobodys
        self.listed = True
        with (
            closing(DigestBook("verify", self._key(), keep=question.resume)) as book,
            closing(Pairs()) as unseen,
        ):
            if question.resume and book.empty:
                self._tell(Noted("There is nothing to go on from: all of it is looked at."))
            self._sort_out(self._chosen(matched.pairs, book), book, unseen)
            self._tell_others(Hashing(unseen.count, unseen.bytes))
            for pair, digest, wanted, problem in self._hashed(unseen):
                coverage.files_unchecked -= 1
                self._tell_others(Carried(pair.ours.size))
                if digest is None or wanted is None:
                    self._fail(pair.entries[-1].path, problem)
                else:
                    self._judge(pair, digest, wanted, book)
            book.discard()

    def _sort_out(self, chosen: Iterable[Pair], book: DigestBook, unseen: Pairs) -> None:
        """`unseen` gets those that the call that is gone on with did not find good, or that are not what they were."""
        for pair in chosen:
            earlier = book.find(pair.entries)
            if earlier is not None and pair.wanted in {None, earlier}:
                self._coverage.files_recorded += 1
                self._coverage.files_unchecked -= 1
                self.receipt.files_kept += 1
            else:
                unseen.add(pair)

    def _judge(self, pair: Pair, digest: str, wanted: str, book: DigestBook) -> None:
        self._coverage.files_hashed += 1
        if digest == wanted:
            self.receipt.files_kept += 1
            book.add(pair.entries, digest)
        else:
            reason = f"its sha256 is {digest}, and {wanted} was expected"
            self._tell(Failed(pair.entries[-1].path, "differs", reason))

    def _key(self) -> list[Any]:
        """What makes another question: where, against what, and which files of it."""
        question = self._question
        against = question.manifest.fingerprint if question.manifest is not None else ""
        sample = str(question.sample) if question.sample is not None else ""
        rules = question.rules
        places = [tree.question() for tree in self._trees]
        question_of = [places, against, list(rules.include), list(rules.exclude), sample]
        if rules.files_from is not None:
            question_of.append(hashlib.sha256(b"\0".join(sorted(rules.files_from))).hexdigest())
        return [*question_of, self._facts] if self._facts != _NO_FACTS else question_of

    def _chosen(self, pairs: Pairs, book: DigestBook) -> Iterable[Pair]:
        """All, or those drawn by the seed: the one given, else that of the call that is gone on with, else a new one."""
        question = self._question
        if question.sample is None:
            book.begin({})
            return pairs
        earlier = book.header.get("seed")
        seed = question.seed if question.seed is not None else earlier
        if not isinstance(seed, int):
            seed = new_seed()
        self._coverage.sample_seed = seed
        book.begin({"seed": seed})
        return choose(pairs, lambda pair: pair.ours.path, question.sample, seed)

    def _hashed(self, pairs: Pairs) -> Iterator[tuple[Pair, str | None, str | None, Problem | None]]:
        """Each with its digest and the one it should have; both places hash at the same time, some files ahead."""
        ours = self._trees[0].digests(pair.ours for pair in pairs)
        if self._question.second is None:
            for pair, (_, digest, problem) in zip(pairs, ours, strict=True):
                yield pair, digest, pair.wanted, problem
            return
        theirs: Iterable[Entry] = (pair.theirs for pair in pairs if pair.theirs is not None)
        both = zip(pairs, ours, self._trees[1].digests(theirs), strict=True)
        for pair, (_, wanted, unread), (_, digest, problem) in both:
            yield pair, digest, wanted, unread or problem

    def _settle(self) -> None:
        """The receipt, judged. What nobody looked at is not proven, and what an earlier call saw is no digest of this one."""
        receipt, coverage = self.receipt, self._coverage
        receipt.seconds = time.monotonic() - self._began
        stores = [store for tree in self._trees for store in tree.stores]
        receipt.bytes_sent = sum(store.wire_bytes for store in stores)
        receipt.logins = sum(store.logins for store in stores)
        receipt.exit = Exit.NOT_VERIFIED if coverage.files_unrecorded else Exit.DONE
        if receipt.files_failed:
            receipt.exit = Exit.INCOMPLETE
        if not self.listed or receipt.files_failed or coverage.files_unchecked:
            receipt.proof_tree = Proof.NONE
        elif receipt.files:
            receipt.proof_tree = Proof.RECORDED if coverage.files_recorded else Proof.DIGEST
