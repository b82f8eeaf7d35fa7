"""Compare uploads to a GridFTP server over the long link with globus-url-copy, with and without checksums."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.case import Brief, Case, Contender, FolderTarget, PreparedCase
from benchmarks.link import HERE, NAMESPACE, THERE, Link
from benchmarks.link_cases import LARGE, SMALL
from benchmarks.samples import Bar
from benchmarks.ssh_contenders import ssh_transfer
from benchmarks.testbed import Testbed
from benchmarks.trees import make_tree
from tests.services.grid import Grid, start_gridftp
from tests.services.processes import program, wait_until
from tests.services.session import ensure

PLAIN = "globus-url-copy"
VERIFYING = "globus-url-copy -verify-checksum"
# GridFTP needs host names for its addresses
_NAMES = f"127.0.0.1 localhost\n{HERE} here.test\n{THERE} far.test\n"
_SITE = '[sites.there.gridftp]\nurl = "{url}"\n'


def _with_names(testbed: Testbed) -> list[str]:
    """Return an argv prefix that runs a command with the names of both endpoints in its own /etc/hosts."""
    hosts = testbed.folder / "hosts"
    hosts.write_text(_NAMES)
    enter = [program("unshare", "util-linux"), "--mount", "--propagation", "slave", "/bin/sh", "-c"]
    return [*enter, 'mount --bind "$1" /etc/hosts && shift && exec "$@"', "sh", str(hosts)]


@contextlib.contextmanager
def _remote_server(testbed: Testbed) -> Iterator[tuple[Grid, str]]:
    """Start a GridFTP server at the remote end of the link; yield it and its URL."""
    grid: Grid = ensure(testbed.folder, "grid")
    inside = [program("ip", "iproute2"), "netns", "exec", NAMESPACE, *_with_names(testbed)]
    port = grid.port
    pid = start_gridftp(testbed.folder, grid, port, name="far.test", around=inside)
    url = f"gsiftp://far.test:{port}"
    environment = {**os.environ, **grid.env, "GLOBUS_HOSTNAME": "here.test"}
    query = [
        *_with_names(testbed),
        program(PLAIN, "globus-gass-copy-progs"),
        *("-list", f"{url}{grid.data}/"),
    ]

    def ready() -> bool:
        return subprocess.run(query, env=environment, capture_output=True, check=False).returncode == 0

    try:
        wait_until(ready, pid, testbed.folder / f"gridftp-{port}.out")
        yield grid, url
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _case(
    name: str, subject: str, files: int, size: int, plain: Sequence[str], *, repeats: int, brief: Brief
) -> Case:
    """Define a case; `plain` are the fastest options that were found for globus-url-copy."""

    @contextlib.contextmanager
    def prepare(testbed: Testbed) -> Iterator[PreparedCase]:
        with testbed.temporary_folder("gridftp", memory=True) as folder, testbed.host(Link()) as config:
            amount = make_tree(folder / "source", testbed.amount(files, size))
            (folder / "targets").mkdir()
            target = FolderTarget(folder / "targets", amount)
            with _remote_server(testbed) as (grid, url):
                known = {**grid.env, "GLOBUS_HOSTNAME": "here.test"}
                environment = {**testbed.environment(), **known}
                peers = [
                    Contender(
                        who, _line([*plain, *more], folder / "source", target, url), target, environment
                    )
                    for who, more in ((PLAIN, []), (VERIFYING, ["-verify-checksum"]))
                ]
                transfer = ssh_transfer(testbed, config, folder / "source", target)
                testbed.add_to_site("there", _SITE.format(url=url))
                yield PreparedCase(
                    amount, [_named(testbed, one) for one in (transfer.hibali(more=known), *peers)]
                )

    bars = tuple(
        Bar(f"no slower than {who}, logins included", "hibali", 1.0, than=(who,))
        for who in (VERIFYING, PLAIN)
    )
    return Case(name, subject, prepare, bars, repeats=repeats, brief=brief)


def _named(testbed: Testbed, contender: Contender) -> Contender:
    around = _with_names(testbed)
    return replace(contender, argv=lambda run: [*around, *contender.argv(run)])


def _line(options: Sequence[str], source: Path, target: FolderTarget, url: str) -> Callable[[str], list[str]]:
    def argv(run: str) -> list[str]:
        endpoints = [f"file://{source}/", f"{url}{target.root}/{run}/"]
        return [program(PLAIN, "globus-gass-copy-progs"), "-fast", "-r", "-cd", *options, *endpoints]

    return argv


CASES = (
    _case(
        "gridftp-large",
        "push {files}, 110 ms, 1 Gbit/s, to a GridFTP server",
        *LARGE,
        ["-p", "4", "-tcp-bs", "16777216"],
        repeats=3,
        brief=Brief(repeats=1),
    ),
    _case(
        "gridftp-small",
        "push {files}, 110 ms, 1 Gbit/s, to a site with a GridFTP server",
        *SMALL,
        ["-pp", "-cc", "16"],
        repeats=1,
        brief=Brief(0.1, 1),
    ),
)
