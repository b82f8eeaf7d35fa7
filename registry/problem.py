"""What is wrong with a descriptor or an invocation, all of it at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hibali.errors import UsageError
from hibali.text import printable


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One thing to correct: `path` is where (`inputs[3].value-key`, or an input's id), `message` is what."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{printable(self.path)}: {printable(self.message)}" if self.path else printable(self.message)


class ProblemsError(UsageError):
    """A document of the user's is wrong; the message shows every reason, one to a line.

    `problems` holds them for programs: a list of objects with `path` and `message`.
    """

    def __init__(self, code: str, problems: Iterable[Problem], *, about: str = "", hint: str = "") -> None:
        found = list(problems)
        self.problems = [{"path": each.path, "message": each.message} for each in found]
        super().__init__(code, "\n".join(str(each) for each in found), about=about, hint=hint)


class DescriptorError(ProblemsError):
    """The descriptor is not valid Boutiques."""

    def __init__(self, problems: Iterable[Problem], *, about: str) -> None:
        super().__init__(
            "invalid-descriptor",
            problems,
            about=about,
            hint="Correct the descriptor; `hibali pipelines validate FILE` checks it again.",
        )


class InvocationError(ProblemsError):
    """The invocation does not answer the pipeline's questions."""

    def __init__(self, problems: Iterable[Problem], *, about: str) -> None:
        super().__init__(
            "invalid-invocation",
            problems,
            about=about,
            hint=f"`hibali pipelines show {about}` lists the inputs; `hibali pipelines example {about}` starts a file.",
        )
