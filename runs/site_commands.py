"""Commands at a site as its jobs would run them: after its own prologue, which is what makes runtimes be found."""

from __future__ import annotations

from collections.abc import Sequence

from hibali.errors import IncompleteError, TryLaterError
from hibali.sites import SchedulerSettings, Site
from hibali.text import printable
from runs.container_words import check_answered
from transfers.far import Far, Finished

_CONVERT_SECONDS = 3600.0
_NO_SPACE = (b"no space left on device", b"disk quota exceeded")


class SiteCommands:
    """Words to a site's login node, which say what went wrong when they end badly."""

    def __init__(self, far: Far, site: Site) -> None:
        self._far = far
        self._site = site

    def ask(self, words: Sequence[str]) -> Finished:
        """How a question ended, whichever way."""
        return self._far.run(self._after_prologue(words))

    def run(self, words: Sequence[str], stdin: bytes = b"") -> Finished:
        """One step of a conversion, done. In the C locale, so that its complaints are known.

        Raises `UsageError` where there is no such program, `IncompleteError` where it fails or there is no room,
        `TryLaterError` where it was ended.
        """
        finished = self._far.run(
            self._after_prologue(("env", "LC_ALL=C", *words)), stdin=stdin, timeout=_CONVERT_SECONDS
        )
        if finished.exit_code == 0:
            return finished
        program = next(word for word in words if word != "env" and "=" not in word)
        check_answered(program, finished)
        said = printable(finished.stderr.strip()[-500:])
        if any(text in finished.stderr.lower() for text in _NO_SPACE):
            raise IncompleteError(
                "no-space",
                f"there is no room to convert the image: {said}",
                about=f"{self._site.name}:{self._site.work}",
                hint="Make room there, or move `work` of the site, and type the same line again.",
            )
        if finished.exit_code < 0:
            raise TryLaterError(
                "image-not-staged",
                f"{program} was ended by signal {-finished.exit_code} (an hour is the limit here): {said}",
                about=self._site.name,
            )
        raise not_staged(f"{program}: {said}")

    def _after_prologue(self, words: Sequence[str]) -> tuple[str, ...]:
        prologue = (self._site.scheduler or SchedulerSettings()).prologue
        if not prologue:
            return tuple(words)
        lines = "\n".join(("{", *prologue, "} >&2", 'exec "$@"'))
        return ("bash", "-l", "-c", lines, "hibali", *words)


def not_staged(said: str) -> IncompleteError:
    """The error for an image of which nothing came."""
    return IncompleteError("image-not-staged", f"the image could not be converted: {said}")
