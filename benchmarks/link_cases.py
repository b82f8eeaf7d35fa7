"""Over the long link, onto tmpfs: one large file, many small ones; push and pull; with loss, and nearer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from benchmarks.case import Case, Contender, Field, FolderTarget
from benchmarks.link import Link
from benchmarks.samples import Bar
from benchmarks.ssh_words import Way, way_to
from benchmarks.stage import Stage
from benchmarks.trees import make_tree

LARGE = (1, 2 << 30)
SMALL = (10_000, 10 << 10)
_KEPT = "hibali, login kept"

Choose = Callable[[Way], list[Contender]]


def _over(
    choose: Choose, files: int, size: int, *, link: Link, pull: bool = False, logins: int = 8
) -> Callable[[Stage], contextlib.AbstractContextManager[Field]]:
    @contextlib.contextmanager
    def prepare(stage: Stage) -> Iterator[Field]:
        with stage.place("link", memory=True) as place, stage.host(link) as config:
            amount = make_tree(place / "source", stage.amount(files, size))
            (place / "targets").mkdir()
            target = FolderTarget(place / "targets", amount)
            way = way_to(stage, config, place / "source", target, pull=pull, logins=logins)
            yield Field(amount, choose(way))

    return prepare


def _large(way: Way) -> list[Contender]:
    """A login more or less is nothing to peers that take two minutes: they run once a round, scp in one direction."""
    peers = [way.rsync()] if way.pull else [way.rsync(), way.scp()]
    return [way.hibali(), *peers, way.hibali(kept=True)]


def _with_rsync(way: Way) -> list[Contender]:
    return [way.hibali(), way.rsync(), way.hibali(kept=True)]


def _small(way: Way) -> list[Contender]:
    return [
        *(way.hibali(), way.rsync(), way.tar()),
        *(way.hibali(kept=True), way.rsync(kept=True), way.tar(kept=True)),
    ]


def _times_rsync(factor: float, text: str = "") -> Bar:
    text = text or f"at least {factor:g} times rsync, logins included"
    return Bar(text, "hibali", factor, at_least=True, than=("rsync",))


_FILLS = Bar(
    "at least 106 MB/s (0.85 of the link) after the logins", _KEPT, 106, at_least=True, measure="rate"
)
_PACKS = tuple(
    Bar(f"at most 0.6 of {peer}, logins included", "hibali", 0.6, than=(peer,))
    for peer in ("tar over ssh", "rsync")
)


def _large_case(word: str, *, pull: bool) -> Case:
    subject = f"{word} one file of 2 GiB, 110 ms, 1 Gbit/s, logins = 8"
    prepare = _over(_large, *LARGE, link=Link(), pull=pull)
    return Case(f"link-large-{word}", subject, prepare, (_FILLS, _times_rsync(5)), repeats=3)


def _small_case(word: str, *, pull: bool) -> Case:
    subject = f"{word} 10,000 files of 10 KiB, 110 ms, 1 Gbit/s, logins = 8"
    return Case(
        f"link-small-{word}", subject, _over(_small, *SMALL, link=Link(), pull=pull), _PACKS, repeats=3
    )


CASES = (
    _large_case("push", pull=False),
    _large_case("pull", pull=True),
    Case(
        "link-large-push-one-login",
        "push one file of 2 GiB, 110 ms, 1 Gbit/s, logins = 1, channels = 8",
        _over(_with_rsync, *LARGE, link=Link(), logins=1),
        (_times_rsync(1.3, "at least 1.3 times rsync with the kernel's buffers as they are"),),
        repeats=3,
    ),
    _small_case("push", pull=False),
    _small_case("pull", pull=True),
    Case(
        "link-lossy",
        "push one file of 2 GiB, 110 ms, 1 Gbit/s, 0.1 % of the packets lost, logins = 8",
        _over(_with_rsync, *LARGE, link=Link(loss=0.1)),
        (_times_rsync(3),),
        repeats=3,
    ),
    Case(
        "link-near",
        "push one file of 2 GiB, 30 ms, 1 Gbit/s, logins = 8",
        _over(_with_rsync, *LARGE, link=Link(round_trip=30)),
        (_times_rsync(3),),
        repeats=3,
    ),
)
