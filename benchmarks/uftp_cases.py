"""Compare UFTP at a UNICORE site over the long link with ssh, rsync, and pyuftp, which does not verify.

A real uftpd, the double of its auth server and the double of UNICORE/X run at the remote end. Their requests pass through a relay on loopback,
because hibali sends tokens over http to this machine alone: so they take one round trip as over a kept connection, but no handshake of TLS.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from benchmarks.case import Brief, Case, Contender, FolderTarget, PreparedCase
from benchmarks.link import HERE, NAMESPACE, THERE, Link
from benchmarks.peers import REPOSITORY
from benchmarks.samples import Bar
from benchmarks.ssh_contenders import ssh_transfer
from benchmarks.testbed import HIBALI, Testbed
from benchmarks.trees import make_tree
from tests.services.processes import MissingPackageError, program, start, wait_until
from tests.services.uftp import SOURCE, AuthServer, Relay, start_uftpd
from tests.services.unicore import Unicore

_UFTP, _REST, _PEER = "hibali, UFTP", "hibali, REST alone", "pyuftp"
_LARGE, _SMALL = (1, 256 << 20), (500, 10 << 10)
_TOKEN = "planted-token"  # noqa: S105  # that of the doubles
_PYUFTP = REPOSITORY / ".cache" / "rest" / "bin" / "pyuftp"


def serve(folder: str, commands: str, port: str) -> None:
    """Run the doubles at the remote end, write their addresses, and wait for those that clients use instead."""
    for kind in (Unicore, AuthServer):
        kind.host = THERE
    unicore = Unicore(Path(folder), cast("Any", None))  # without jobs
    auth = AuthServer(int(commands), (THERE, int(port)), host=THERE)
    auth.client = HERE
    (Path(folder) / "ports").write_text(
        json.dumps([each.origin.rpartition(":")[2] for each in (unicore, auth)])
    )
    for line in sys.stdin:
        unicore.url = line.strip() + unicore.prefix
    signal.pause()


@dataclass(frozen=True)
class _Site:
    """The addresses of the UNICORE/X and of the server at its auth server, and the home folder."""

    url: str
    uftp: str
    home: Path


@contextlib.contextmanager
def _site(testbed: Testbed, folder: Path) -> Iterator[_Site]:
    """Start the servers at the remote end of the link."""
    if not SOURCE:
        raise MissingPackageError("HIBALI_UFTPD names no source of uftpd")
    around = [program("ip", "iproute2"), "netns", "exec", NAMESPACE]
    there, log, told = folder / "there", folder / "doubles.log", folder / "near"
    os.mkfifo(told)
    server, commands, port = start_uftpd(testbed.folder, folder, folder, address=THERE, around=around)
    call = "import sys; from benchmarks.uftp_cases import serve; sys.stdin = open(sys.argv[4]); serve(*sys.argv[1:4])"
    argv = [sys.executable, "-c", call, str(there), str(commands), str(port), str(told)]
    doubles = start(testbed.folder, [*around, *argv], log, {"PYTHONPATH": str(REPOSITORY)})
    relays: list[Relay] = []
    try:
        with told.open("w") as line:
            wait_until((there / "ports").exists, doubles, log)
            relays += [
                Relay((THERE, int(each)), plain=True) for each in json.loads((there / "ports").read_text())
            ]
            unicore, auth = (f"http://127.0.0.1:{each.address[1]}" for each in relays)
            print(unicore, file=line)
        yield _Site(unicore + Unicore.prefix, f"{auth}{AuthServer.prefix}/JUDAC", there / "home")
    finally:
        for each in relays:
            each.cut()
        for pid in (doubles, server):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _contenders(
    testbed: Testbed, site: _Site, source: Path, target: FolderTarget, *, pull: bool
) -> list[Contender]:
    """Return hibali with and without UFTP, and pyuftp with the options that were fastest."""
    environment = {**testbed.environment(), "BENCH_UNICORE_SECRET": _TOKEN}
    for name, more in (("uftp", f'uftp = "{site.uftp}"\n'), ("rest", "")):
        table = f'kind = "unicore"\n[sites.{name}.limits]\nrequests = 2000\n[sites.{name}.unicore]\nurl = "{site.url}"\n'
        testbed.add_site(name, f'{table}token_variable = "BENCH_UNICORE_SECRET"\n{more}')

    def argv(name: str) -> Callable[[str], list[str]]:
        there = f"{name}:{site.home}/source" if pull else f"{name}:{target.root}"
        return lambda run: [
            *HIBALI,
            *(
                ["pull", "--quiet", there, str(target.root / run)]
                if pull
                else ["push", "--quiet", str(source), f"{there}/{run}"]
            ),
        ]

    def peer(run: str) -> list[str]:
        ends = [f"{source}/*", f"{site.uftp}:{target.root}/{run}/"]
        if pull:
            ends = [f"{site.uftp}:{source}/*", f"{target.root}/{run}/"]
        options = ["-n", "4"] if target.expected.files == 1 else ["-t", "8"]
        return [str(_PYUFTP), "cp", "-r", "-A", _TOKEN, *options, *ends]

    missing = "" if _PYUFTP.exists() else "sh tests/prepare.sh rest"
    return [
        Contender(_UFTP, argv("uftp"), target, environment),
        Contender(_REST, argv("rest"), target, environment),
        Contender(_PEER, peer, target, environment, missing=missing),
    ]


def _case(name: str, subject: str, amount: Sequence[int], *, pull: bool) -> Case:
    @contextlib.contextmanager
    def prepare(testbed: Testbed) -> Iterator[PreparedCase]:
        with (
            testbed.temporary_folder("uftp", memory=True) as folder,
            testbed.host(Link()) as config,
            _site(testbed, folder) as site,
        ):
            source = (site.home if pull else folder) / "source"
            expected = make_tree(source, testbed.amount(*amount))
            target = FolderTarget((folder if pull else site.home) / "targets", expected)
            target.root.mkdir()
            ssh = ssh_transfer(testbed, config, source, target, pull=pull, logins=8)
            uftp, *others = _contenders(testbed, site, source, target, pull=pull)
            yield PreparedCase(expected, [uftp, ssh.hibali(), ssh.rsync(), *others])

    bars = tuple(
        Bar(f"no slower than {who}, logins included", _UFTP, 1.0, than=(who,)) for who in ("rsync", _PEER)
    )
    return Case(
        f"uftp-{name}",
        subject,
        prepare,
        bars,
        repeats=3,
        brief=Brief(scale=1.0 if amount[0] == 1 else 0.2, repeats=1),
    )


CASES = tuple(
    _case(
        f"{size}-{command}",
        f"{command} {{files}}, 110 ms, 1 Gbit/s, a UNICORE site with a UFTP server",
        amount,
        pull=command == "pull",
    )
    for size, amount in (("large", _LARGE), ("small", _SMALL))
    for command in ("push", "pull")
)
