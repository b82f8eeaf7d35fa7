"""Compare transfers over the long link to tmpfs: one large file, many small files, packet loss, shorter links."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.case import Brief, Case, Contender, FolderTarget, PreparedCase
from benchmarks.link import Link
from benchmarks.samples import Bar
from benchmarks.ssh_contenders import SshTransfer, ssh_transfer
from benchmarks.testbed import Testbed
from benchmarks.trees import make_tree

LARGE = (1, 2 << 30)
SMALL = (10_000, 10 << 10)
# A smaller file would give the seconds of the logins more weight; on the link, which limits the rate, rounds are alike.
_ONE_ROUND = Brief(repeats=1)
_KEPT_LOGIN = "hibali, login kept"
_AT_ONCE = "all logins at once"

Choose = Callable[[SshTransfer], list[Contender]]


def _over_link(
    choose: Choose, files: int, size: int, *, link: Link, pull: bool = False, logins: int = 8
) -> Callable[[Testbed], contextlib.AbstractContextManager[PreparedCase]]:
    @contextlib.contextmanager
    def prepare(testbed: Testbed) -> Iterator[PreparedCase]:
        with testbed.temporary_folder("link", memory=True) as folder, testbed.host(link) as config:
            amount = make_tree(folder / "source", testbed.amount(files, size))
            (folder / "targets").mkdir()
            target = FolderTarget(folder / "targets", amount)
            transfer = ssh_transfer(testbed, config, folder / "source", target, pull=pull, logins=logins)
            yield PreparedCase(amount, choose(transfer))

    return prepare


def _large(transfer: SshTransfer) -> list[Contender]:
    """Select contenders. Peers take two minutes, so a persistent login makes no difference; scp runs for push only."""
    peers = [transfer.rsync()] if transfer.pull else [transfer.rsync(), transfer.scp()]
    return [transfer.hibali(), *peers, transfer.hibali(kept=True)]


def _with_rsync(transfer: SshTransfer) -> list[Contender]:
    return [transfer.hibali(), transfer.rsync(), transfer.hibali(kept=True)]


def _small(transfer: SshTransfer) -> list[Contender]:
    at_once = ssh_transfer(
        *(transfer.testbed, transfer.config, transfer.source, transfer.target),
        pull=transfer.pull,
        site="at-once",
        logins=8,
        limits='login_interval = "0s"',
    )
    return [
        *(transfer.hibali(), at_once.hibali(_AT_ONCE), transfer.rsync(), transfer.tar()),
        *(transfer.hibali(kept=True), transfer.rsync(kept=True), transfer.tar(kept=True)),
    ]


def _times_rsync(factor: float, text: str = "") -> Bar:
    text = text or f"at least {factor:g} times rsync, logins included"
    return Bar(text, "hibali", factor, at_least=True, than=("rsync",))


_LINK_RATE = Bar(
    "at least 106 MB/s (0.85 of the link) after the logins", _KEPT_LOGIN, 106, at_least=True, measure="rate"
)
_SMALL_FILES = tuple(
    Bar(f"at most 0.6 of {peer}, logins included{pace}", contender, 0.6, than=(peer,))
    for pace, contender in (("", "hibali"), (", at once", f"hibali, {_AT_ONCE}"))
    for peer in ("tar over ssh", "rsync")
)


def _large_case(command: str, *, pull: bool) -> Case:
    prepare = _over_link(_large, *LARGE, link=Link(), pull=pull)
    return Case(
        f"link-large-{command}",
        f"{command} {{files}}, 110 ms, 1 Gbit/s, eight logins",
        prepare,
        (_LINK_RATE, _times_rsync(5)),
        repeats=3,
        brief=_ONE_ROUND,
    )


def _small_case(command: str, *, pull: bool) -> Case:
    return Case(
        f"link-small-{command}",
        f"{command} {{files}}, 110 ms, 1 Gbit/s, eight logins",
        _over_link(_small, *SMALL, link=Link(), pull=pull),
        _SMALL_FILES,
        repeats=3,
        brief=Brief(repeats=2),
    )


def _shorter_case(round_trip: int, bar: Bar) -> Case:
    return Case(
        f"link-{round_trip}ms",
        f"push {{files}}, {round_trip} ms, 1 Gbit/s, eight logins",
        _over_link(_with_rsync, *LARGE, link=Link(round_trip=round_trip)),
        (bar,),
        repeats=3,
        brief=_ONE_ROUND,
    )


@contextlib.contextmanager
def _defaults(testbed: Testbed) -> Iterator[PreparedCase]:
    """Compare the default pace of logins, and one login, with rsync."""
    with testbed.temporary_folder("link", memory=True) as folder, testbed.host(Link()) as config:
        amount = make_tree(folder / "source", testbed.amount(1, 512 << 20))
        (folder / "targets").mkdir()
        target = FolderTarget(folder / "targets", amount)

        def transfer(site: str, **settings: Any) -> SshTransfer:
            return ssh_transfer(testbed, config, folder / "source", target, site=site, **settings)

        eight = transfer("eight", logins=8)
        contenders = [
            eight.hibali(),
            transfer("at-once", logins=8, limits='login_interval = "0s"').hibali(_AT_ONCE),
            transfer("one").hibali("one login"),
            eight.rsync(),
        ]
        yield PreparedCase(amount, contenders)


CASES = (
    _large_case("push", pull=False),
    _large_case("pull", pull=True),
    Case(
        "link-large-push-one-login",
        "push {files}, 110 ms, 1 Gbit/s, one login",
        _over_link(_with_rsync, *LARGE, link=Link(), logins=1),
        (_times_rsync(1.3, "at least 1.3 times rsync with the kernel's buffers as they are"),),
        repeats=3,
        brief=_ONE_ROUND,
    ),
    Case(
        "link-defaults",
        "push {files}, 110 ms, 1 Gbit/s, with eight logins at hibali's own pace and at once, and with one login",
        _defaults,
        (
            Bar("no slower than rsync with eight logins", "hibali", 1.0, than=("rsync",)),
            Bar("no slower than rsync with one login", "hibali, one login", 1.0, than=("rsync",)),
        ),
        repeats=3,
        brief=Brief(repeats=2),
    ),
    _small_case("push", pull=False),
    _small_case("pull", pull=True),
    Case(
        "link-lossy",
        "push {files}, 110 ms, 1 Gbit/s, 0.1 % of the packets lost, eight logins",
        _over_link(_with_rsync, *LARGE, link=Link(loss=0.1)),
        (_times_rsync(3),),
        repeats=3,
        brief=_ONE_ROUND,
    ),
    _shorter_case(30, _times_rsync(3)),
    _shorter_case(10, Bar("no slower than rsync, logins included", "hibali", 1.0, than=("rsync",))),
)
