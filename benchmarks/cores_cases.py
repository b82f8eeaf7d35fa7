"""Compare transfers by several processes with peers that use several cores, with both ends in memory."""

from __future__ import annotations

import contextlib
import getpass
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.case import Brief, Case, Contender, FolderTarget, PreparedCase
from benchmarks.s3_cases import open_clients, rclone_copy
from benchmarks.samples import Amount, Bar
from benchmarks.ssh_contenders import ssh_transfer
from benchmarks.testbed import HIBALI, Testbed, peer_or_reason
from benchmarks.trees import FOLDER_FILES, make_tree
from tests.services.sshd import sftp_server_program

_LARGE = (32, 64 << 20)
_SMALL = (25_000, 10 << 10)
_WIDTHS = (1, 2, 4, 8, 16)
_SIDE_BY_SIDE = 8  # rsyncs, and connections of lftp

Preparation = Callable[[Testbed], contextlib.AbstractContextManager[PreparedCase]]


def at_each_width(contender: Contender) -> list[Contender]:
    """Return hibali with its own number of workers, and with 1, 2, 4, ... as far as this machine has the cores for them."""
    cores = len(os.sched_getaffinity(0))

    def at(workers: int) -> Contender:
        name = "hibali, 1 worker" if workers == 1 else f"hibali, {workers} workers"
        missing = "" if workers <= cores else f"this machine has {cores} cores"
        own = contender.argv
        return replace(
            contender, name=name, argv=lambda run: [*own(run), "--workers", str(workers)], missing=missing
        )

    return [contender, *(at(workers) for workers in _WIDTHS)]


def side_by_side(source: Path, command: Sequence[str], target: str) -> list[str]:
    """Return a command that runs `command NAME... TARGET` for all names in the source, divided among several processes."""
    each = -(-len(os.listdir(source)) // _SIDE_BY_SIDE)  # noqa: PTH208  # their number
    one = shlex.quote(f'exec {shlex.join(command)} "$@" {shlex.quote(target)}')
    line = f"cd {shlex.quote(str(source))} && ls | xargs -P {_SIDE_BY_SIDE} -n {each} sh -c {one} sh"
    return ["sh", "-c", line]


@contextlib.contextmanager
def _folders(testbed: Testbed, files: int, size: int) -> Iterator[tuple[Path, Path, Amount]]:
    """Yield a source that several peers can share out, and a folder for the targets, in memory."""
    with testbed.temporary_folder("cores", memory=True) as folder:
        source, targets = folder / "source", folder / "targets"
        folders = max(_SIDE_BY_SIDE, files // FOLDER_FILES)
        amount = make_tree(source, testbed.amount(files, size), folders=folders)
        targets.mkdir()
        yield source, targets, amount


def _local(files: int, size: int) -> Preparation:
    @contextlib.contextmanager
    def prepare(testbed: Testbed) -> Iterator[PreparedCase]:
        with _folders(testbed, files, size) as (source, targets, amount):
            testbed.add_site(
                "here", f'kind = "local"\nroots = {{ data = "{targets}" }}\ndefault_root = "data"\n'
            )
            target, environment = FolderTarget(targets, amount), testbed.environment()

            def peer(name: str, program: str, argv: Callable[[str, str], Sequence[str]]) -> Contender:
                found, missing = peer_or_reason(program)
                return Contender(
                    name, lambda run: argv(found, str(targets / run)), target, environment, missing=missing
                )

            fpsync = ["-n", str(_SIDE_BY_SIDE), "-t", str(source.with_name("fpsync")), "-o", "-lptgoD -W"]
            hibali = Contender(
                "hibali",
                lambda run: [*HIBALI, "push", "--quiet", str(source), f"here:{run}"],
                target,
                environment,
            )
            yield PreparedCase(
                amount,
                [
                    *at_each_width(hibali),
                    peer("cp", "cp", lambda cp, to: [cp, "-r", f"{source}/.", to]),
                    peer("rsync -W", "rsync", lambda rsync, to: [rsync, "-a", "-W", f"{source}/", f"{to}/"]),
                    peer("8 rsyncs", "rsync", lambda rsync, to: side_by_side(source, [rsync, "-a", "-W"], f"{to}/")),
                    peer("fpsync", "fpsync", lambda fp, to: [fp, *fpsync, f"{source}/", f"{to}/"]),
                    peer("rclone", "rclone", lambda rclone, to: [*rclone_copy(rclone), "--config", os.devnull, str(source), to]),
                ],
            )  # fmt: skip

    return prepare


def _ssh(files: int, size: int) -> Preparation:
    @contextlib.contextmanager
    def prepare(testbed: Testbed) -> Iterator[PreparedCase]:
        with _folders(testbed, files, size) as (source, targets, amount):
            config = testbed.ssh().config
            transfer = ssh_transfer(
                testbed,
                config,
                source,
                FolderTarget(targets, amount),
                logins=8,
                limits='login_interval = "0s"',
            )
            rsync = transfer.rsync("-W")
            shell = ["-e", shlex.join(["ssh", "-F", str(config)])]
            program, _ = peer_or_reason("rsync")
            lftp, no_lftp = peer_or_reason("lftp")

            def mirror(run: str) -> list[str]:
                connect = shlex.quote(f"ssh -a -x -F {config}")
                steps = (
                    f"set sftp:connect-program {connect}; set sftp:server-program {sftp_server_program()}; "
                    "set net:max-retries 1; set cmd:fail-exit yes; "
                    f"open -u {getpass.getuser()},key sftp://{transfer.host}; "
                    f"mirror -R -P {_SIDE_BY_SIDE} {source}/ {targets / run}/"
                )
                return [lftp, "-c", steps]

            yield PreparedCase(
                amount,
                [
                    *at_each_width(transfer.hibali()),
                    rsync,
                    replace(
                        rsync,
                        name="8 rsyncs",
                        argv=lambda run: side_by_side(source, [program, "-a", "-W", *shell], f"{transfer.host}:{targets / run}/"),
                    ),
                    transfer.tar(),
                    replace(rsync, name="lftp mirror -P8", argv=mirror, missing=no_lftp),
                ],
            )  # fmt: skip

    return prepare


def _s3(files: int, size: int, *, down: bool) -> Preparation:
    @contextlib.contextmanager
    def prepare(testbed: Testbed) -> Iterator[PreparedCase]:
        with _folders(testbed, files, size) as (source, targets, amount), open_clients(testbed) as clients:
            if down:
                clients.fill(source)
                target = FolderTarget(targets, amount)
                hibali, *peers = clients.down(targets, target)
                peers.append(clients.crt("down", target, lambda run: targets / run))
            else:
                bucket = clients.target(amount)
                hibali, *peers = clients.up(source, bucket)
                peers.append(clients.crt("up", bucket, lambda _: source))
            yield PreparedCase(amount, [*at_each_width(hibali), *peers])

    return prepare


def _case(name: str, subject: str, prepare: Preparation, limit: float, *peers: str) -> Case:
    bar = Bar(f"at most {limit:g} of the fastest of {', '.join(peers)}", "hibali", limit, than=peers)
    memory = Bar("peak memory of all processes together under 400 MB", "hibali", 400, measure="peak_of_all")
    return Case(f"cores-{name}", subject, prepare, (bar, memory), repeats=3, brief=Brief(0.5, 1), watch=True)


CASES = (
    _case("local-large", "push {files} to another folder", _local(*_LARGE), 1.2, "cp", "rclone"),
    _case("local-small", "push {files} to another folder", _local(*_SMALL), 1.3, "rsync -W"),
    _case("ssh-large", "push {files} over ssh on loopback", _ssh(*_LARGE), 1.1, "8 rsyncs"),
    _case("ssh-small", "push {files} over ssh on loopback", _ssh(*_SMALL), 1.2, "tar over ssh"),
    _case("s3-large-up", "up: {objects}, SeaweedFS", _s3(*_LARGE, down=False), 1.1, "rclone"),
    _case("s3-large-down", "down: {objects}, SeaweedFS", _s3(*_LARGE, down=True), 1.5, "rclone"),
    _case("s3-small-up", "up: {objects}, SeaweedFS", _s3(*_SMALL, down=False), 1.1, "rclone", "s5cmd"),
    _case("s3-small-down", "down: {objects}, SeaweedFS", _s3(*_SMALL, down=True), 1.1, "rclone", "s5cmd"),
)
