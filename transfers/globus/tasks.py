"""The tasks of one call: submitted once whatever dies, followed to their end, and those of earlier calls gone on with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from hibali.errors import HibaliError, NotFoundError, RefusedError, TryLaterError
from hibali.events import Listener, Noted
from transfers.globus.asking import Globus
from transfers.globus.begun import BegunTask, Sent, begin_task, begun_tasks, key_of
from transfers.globus.bodies import CHECKSUM, Ends, Piece, deadline_after, label_of, transfer_body
from transfers.globus.faults import fault_of, with_details
from transfers.globus.following import End, Following
from transfers.globus.paths import below
from transfers.globus.patience import Patience

_CONFLICT = "globus-conflict"  # see answers; this module is loaded without the SDK


class Tasks:
    """Transfers from one folder of a collection to another."""

    def __init__(
        self, globus: Globus, ends: Ends, operation: str, patience: Patience, tell: Listener
    ) -> None:
        self._globus = globus
        self._ends = ends
        self._label = label_of(operation, key_of(ends))
        self._patience = patience
        self._tell = tell
        self.bytes = 0

    def begin(self, files: Sequence[Sent]) -> BegunTask:
        """Submit them as one task. Raises `TryLaterError("globus-conflict")` where others are at the same."""
        task = begin_task(self._ends, self._globus.submission(), self._label, files)
        try:
            self._submit(task)
        except HibaliError as problem:
            # Where it was refused for what it is there is no such task; anything else may hide that an answer was lost.
            if isinstance(problem, RefusedError) or problem.code == _CONFLICT:
                task.forget()
            raise
        return task

    def earlier(self, known: Collection[str]) -> Iterator[BegunTask]:
        """But for submissions that are `known`, what earlier calls of the same ends began and did not see the end of, each once it is over."""
        for task in begun_tasks(self._ends):
            if task.submission in known:
                continue
            self._tell(Noted(f"going on with what an earlier call began: {len(task.files)} files"))
            try:
                if task.task is None:
                    self._submit(task)
                self.follow(task)
            except (NotFoundError, RefusedError):
                task.forget()  # Globus knows nothing of it any more
            else:
                yield task

    def follow(self, task: BegunTask) -> End:
        """How it ended."""
        assert task.task is not None
        return self._follow(task.task)

    def check(self, files: Sequence[Sent]) -> tuple[End, set[bytes]]:
        """A second pass over the same files by their checksums, and the paths of those that it had to move."""
        pieces = [self._piece(file) for file in files]
        body = transfer_body(
            self._ends,
            pieces,
            submission=self._globus.submission(),
            label=self._label,
            deadline=deadline_after(self._ends.deadline_seconds),
            sync_level=CHECKSUM,
        )
        task = self._globus.submit(body)
        end = self._follow(task)
        if not (end.moved or end.code):
            return end, set()
        moved = {str(one["destination_path"]) for one in self._globus.moved(task)}
        return end, {file.path for file, piece in zip(files, pieces, strict=True) if piece.target in moved}

    def written(self, task: BegunTask) -> set[bytes]:
        """The paths of the files that Globus says it has written."""
        assert task.task is not None
        moved = {str(one["destination_path"]) for one in self._globus.moved(task.task)}
        return {file.path for file in task.files if self._piece(file).target in moved}

    def skipped(self, task: BegunTask) -> dict[bytes, tuple[str, str]]:
        """The paths of the files that the source would not give, with Globus's word for why and what was said."""
        assert task.task is not None
        by_source = {self._piece(file).source: file.path for file in task.files}
        found = {}
        for one in self._globus.skipped(task.task):
            path = by_source.get(str(one.get("source_path")))
            if path is not None:
                found[path] = (str(one.get("error_code") or ""), str(one.get("error_details") or ""))
        return found

    def _piece(self, file: Sent) -> Piece:
        return Piece(file.source, below(self._ends.target_root, file.written), file.digest)

    def _submit(self, task: BegunTask) -> None:
        """The same files under the same id, however often it takes: of a body that it knows Globus takes no new deadline."""
        body = transfer_body(
            self._ends,
            [self._piece(file) for file in task.files],
            submission=task.submission,
            label=task.label,
            deadline=deadline_after(self._ends.deadline_seconds),
        )
        try:
            submitted = self._globus.submit(body)
        except HibaliError as problem:
            if problem.code != _CONFLICT:
                raise
            self._wait_for_other(problem)
            submitted = self._globus.submit(body)
        task.answered(submitted)
        count = f"{len(task.files)} file{'s' if len(task.files) != 1 else ''}"
        self._tell(
            Noted(
                f"Globus task {submitted} carries {count}: https://app.globus.org/activity/{submitted}",
                kept=True,
            )
        )

    def _wait_for_other(self, problem: HibaliError) -> None:
        """Whoever of ours is at the very same, from another machine or without its ledger, is let finish."""
        other = self._globus.active(self._label)
        if other is None:
            raise TryLaterError(
                _CONFLICT,
                "Globus carries the very same files for somebody else just now",
                about=problem.about,
                hint="See https://app.globus.org/activity; the same line again later goes on.",
                transient=False,
            )
        self._tell(Noted(f"Globus is at the very same already; waiting for the end of task {other}"))
        self._follow(other)

    def _follow(self, task: str) -> End:
        following = Following(self._globus, task, self._tell, give_up_after=self._patience.give_up_after)
        end = following.until_over(on_interruption=self.leaving(task))
        self.bytes += end.bytes
        if end.code:
            words = with_details(fault_of(end.code).words, end.details)
            ended = "was cancelled, because it got nowhere" if end.given_up else "failed"
            self._tell(Noted(f"Globus task {task} {ended}: {words}", kept=True))
        return end

    def leaving(self, task: str) -> Callable[[], None]:
        """What is done with a task when the call is interrupted, in words."""

        def leave() -> None:
            if self._patience.cancel_on_interrupt:
                self._globus.cancel(task)
                self._tell(Noted(f"Globus task {task} is cancelled", kept=True))
                return
            self._tell(
                Noted(
                    f"Globus task {task} goes on by itself. The same line again follows it to its end and checks"
                    " what it wrote; `hibali history` names it. --cancel-on-interrupt would have cancelled it.",
                    kept=True,
                )
            )

        return leave
