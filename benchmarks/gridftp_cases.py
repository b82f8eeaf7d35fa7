"""Over the long link to a GridFTP server: one large file, many small ones; beside globus-url-copy, verifying and not."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.case import Case, Contender, Field, FolderTarget
from benchmarks.link import HERE, NAMESPACE, THERE, Link
from benchmarks.link_cases import LARGE, SMALL
from benchmarks.samples import Bar
from benchmarks.ssh_words import way_to
from benchmarks.stage import Stage
from benchmarks.trees import make_tree
from tests.services.grid import Grid, start_gridftp
from tests.services.processes import program, wait_until
from tests.services.session import ensure

PLAIN = "globus-url-copy"
VERIFYING = "globus-url-copy -verify-checksum"
_NAMES = (
    f"127.0.0.1 localhost\n{HERE} here.test\n{THERE} far.test\n"  # GridFTP wants its addresses to have names
)
_SITE = '[sites.there.gridftp]\nurl = "{url}"\n'


def _with_names(stage: Stage) -> list[str]:
    """The words around a command that knows the names of both ends, which the machine need not."""
    hosts = stage.folder / "hosts"
    hosts.write_text(_NAMES)
    enter = [program("unshare", "util-linux"), "--mount", "--propagation", "slave", "/bin/sh", "-c"]
    return [*enter, 'mount --bind "$1" /etc/hosts && shift && exec "$@"', "sh", str(hosts)]


@contextlib.contextmanager
def _far_server(stage: Stage) -> Iterator[tuple[Grid, str]]:
    """A server at the other end, and its URL."""
    grid: Grid = ensure(stage.folder, "grid")
    inside = [program("ip", "iproute2"), "netns", "exec", NAMESPACE, *_with_names(stage)]
    port = grid.port
    pid = start_gridftp(stage.folder, grid, port, name="far.test", around=inside)
    url = f"gsiftp://far.test:{port}"
    environment = {**os.environ, **grid.env, "GLOBUS_HOSTNAME": "here.test"}
    ask = [
        *_with_names(stage),
        program(PLAIN, "globus-gass-copy-progs"),
        *("-list", f"{url}{grid.data}/"),
    ]

    def ready() -> bool:
        return subprocess.run(ask, env=environment, capture_output=True, check=False).returncode == 0

    try:
        wait_until(ready, pid, stage.folder / f"gridftp-{port}.out")
        yield grid, url
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _case(name: str, subject: str, files: int, size: int, plain: Sequence[str], repeats: int) -> Case:
    """`plain` are the options of the best line that was found for globus-url-copy by itself."""

    @contextlib.contextmanager
    def prepare(stage: Stage) -> Iterator[Field]:
        with stage.place("gridftp", memory=True) as place, stage.host(Link()) as config:
            amount = make_tree(place / "source", stage.amount(files, size))
            (place / "targets").mkdir()
            target = FolderTarget(place / "targets", amount)
            with _far_server(stage) as (grid, url):
                known = {**grid.env, "GLOBUS_HOSTNAME": "here.test"}
                environment = {**stage.environment(), **known}
                peers = [
                    Contender(who, _line([*plain, *more], place / "source", target, url), target, environment)
                    for who, more in ((PLAIN, []), (VERIFYING, ["-verify-checksum"]))
                ]
                way = way_to(stage, config, place / "source", target)
                stage.add_to_site("there", _SITE.format(url=url))
                yield Field(amount, [_named(stage, one) for one in (way.hibali(more=known), *peers)])

    bars = tuple(
        Bar(f"no slower than {who}, logins included", "hibali", 1.0, than=(who,))
        for who in (VERIFYING, PLAIN)
    )
    return Case(name, subject, prepare, bars, repeats=repeats)


def _named(stage: Stage, contender: Contender) -> Contender:
    around = _with_names(stage)
    return replace(contender, words=lambda place: [*around, *contender.words(place)])


def _line(options: Sequence[str], source: Path, target: FolderTarget, url: str) -> Callable[[str], list[str]]:
    def words(place: str) -> list[str]:
        ends = [f"file://{source}/", f"{url}{target.root}/{place}/"]
        return [program(PLAIN, "globus-gass-copy-progs"), "-fast", "-r", "-cd", *options, *ends]

    return words


CASES = (
    _case(
        "gridftp-large",
        "push one file of 2 GiB, 110 ms, 1 Gbit/s, to a GridFTP server",
        *LARGE,
        ["-p", "4", "-tcp-bs", "16777216"],
        3,
    ),
    _case(
        "gridftp-small",
        "push 10,000 files of 10 KiB, 110 ms, 1 Gbit/s, to a site with a GridFTP server",
        *SMALL,
        ["-pp", "-cc", "16"],
        1,
    ),
)
