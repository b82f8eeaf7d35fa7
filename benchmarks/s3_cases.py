"""Compare uploads, downloads and unchanged transfers with an object store on loopback."""

from __future__ import annotations

import contextlib
import secrets
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.case import Brief, BucketTarget, Case, Contender, FolderTarget, PreparedCase, Target
from benchmarks.link_cases import LARGE, SMALL
from benchmarks.measuring import FailedError
from benchmarks.samples import Amount, Bar
from benchmarks.testbed import HIBALI, Testbed, peer_or_reason
from benchmarks.trees import make_tree
from tests.services.object_store import ObjectStore, remove_bucket

MEDIUM = (64, 32 << 20)
_MANY = (100_000, 100)
_PREFIX = "data"
_CONCURRENCY = "32"  # rclone's default of 4 would put it at a disadvantage

_PEAK = Bar("peak memory under 400 MB", "hibali", 400, measure="peak")
_BARS = (
    Bar("wall time at most 1.05 of s5cmd", "hibali", 1.05, than=("s5cmd",)),
    Bar("client CPU at most 1.2 of s5cmd", "hibali", 1.2, measure="cpu", than=("s5cmd",)),
    _PEAK,
)
_SMALL_UP_BARS = (
    Bar("wall time at most 1.05 of s5cmd", "hibali", 1.05, than=("s5cmd",)),
    Bar("client CPU at most 1.1 of s5cmd", "hibali", 1.1, measure="cpu", than=("s5cmd",)),
    _PEAK,
)
# s5cmd does not verify what it downloads, so that its CPU alone is a measure only of the rest
_DOWN_BARS = (
    Bar("wall time at most 1.15 of s5cmd", "hibali", 1.15, than=("s5cmd",)),
    Bar(
        "client CPU at most 1.15 of s5cmd with one sha256",
        "hibali",
        1.15,
        measure="cpu",
        than=("s5cmd",),
        hashed=True,
    ),
    Bar("client CPU at most 1.2 of s5cmd", "hibali", 1.2, measure="cpu", than=("s5cmd",)),
    _PEAK,
)


def _bars(size: str, direction: str) -> tuple[Bar, ...]:
    if size == "small":
        return _SMALL_UP_BARS if direction == "up" else _BARS
    return _DOWN_BARS if direction == "down" else _BARS


@dataclass(frozen=True)
class Clients:
    """The contenders' commands for transfers between a folder and a prefix of one bucket."""

    testbed: Testbed
    store: ObjectStore
    bucket: str
    server: str  # rclone's name of the provider

    @property
    def environment(self) -> dict[str, str]:
        """The contenders' environment: the access keys and rclone's configuration."""
        return {
            **self.testbed.environment(),
            **self.store.env,
            "RCLONE_CONFIG": "/dev/null",
            "RCLONE_CONFIG_STORE_TYPE": "s3",
            "RCLONE_CONFIG_STORE_PROVIDER": self.server,
            "RCLONE_CONFIG_STORE_ENDPOINT": self.store.endpoint,
            "RCLONE_CONFIG_STORE_REGION": self.store.region,
            "RCLONE_CONFIG_STORE_ENV_AUTH": "true",
        }

    def up(self, source: Path, target: BucketTarget) -> list[Contender]:
        """Return the contenders for uploads from a folder to a new bucket per run, or to a reused one."""
        s5cmd, no_s5cmd = peer_or_reason("s5cmd")
        rclone, no_rclone = peer_or_reason("rclone")
        known = self.environment
        compare = ["--size-only", "--fast-list"] if target.reused else []
        found = [
            Contender(
                "hibali",
                lambda _: [*HIBALI, "push", "--quiet", str(source), f"store:{_PREFIX}"],
                target,
                known,
            ),
            Contender(
                "s5cmd",
                lambda name: [*self._s5cmd(s5cmd), f"{source}/", f"s3://{target.name(name)}/{_PREFIX}/"],
                target,
                known,
                missing=no_s5cmd,
            ),
            Contender(
                " ".join(["rclone", *compare]),
                lambda name: [*rclone_copy(rclone), *compare, str(source), _remote(target.name(name))],
                target,
                known,
                missing=no_rclone,
            ),
        ]
        return [found[0], found[2]] if target.reused else found

    def down(self, root: Path, target: Target) -> list[Contender]:
        """Return the contenders for downloads from one bucket to a new folder per run."""
        s5cmd, no_s5cmd = peer_or_reason("s5cmd")
        rclone, no_rclone = peer_or_reason("rclone")
        known = self.environment
        return [
            Contender(
                "hibali",
                lambda name: [*HIBALI, "pull", "--quiet", f"store:{_PREFIX}", str(root / name)],
                target,
                known,
            ),
            Contender(
                "s5cmd",
                lambda name: [*self._s5cmd(s5cmd), f"s3://{self.bucket}/{_PREFIX}/*", f"{root / name}/"],
                target,
                known,
                missing=no_s5cmd,
            ),
            Contender(
                "rclone",
                lambda name: [*rclone_copy(rclone), _remote(self.bucket), str(root / name)],
                target,
                known,
                missing=no_rclone,
            ),
        ]

    def crt(self, direction: str, target: Target, folder: Callable[[str], Path]) -> Contender:
        """Return the client of s3transfer in C, between a bucket and a folder of each run."""
        python, missing = peer_or_reason("python3")

        def argv(name: str) -> list[str]:
            bucket = target.name(name) if isinstance(target, BucketTarget) else self.bucket
            script = str(Path(__file__).with_name("crt_copy.py"))
            place = [self.store.endpoint, self.store.region, bucket, _PREFIX]
            return [python, script, direction, str(folder(name)), *place]

        return Contender("awscrt", argv, target, self.environment, missing=missing)

    def fill(self, source: Path) -> None:
        """Upload the source with hibali, which stores the checksums that later downloads verify."""
        push(source, f"store:{_PREFIX}", self.environment)

    def _s5cmd(self, program: str) -> list[str]:
        return [program, "--endpoint-url", self.store.endpoint, "--log", "error", "cp"]

    def configure(self, bucket: str) -> None:
        """Configure the bucket as the site `store`."""
        self.testbed.add_site(
            "store",
            f'kind = "s3"\n[sites.store.s3]\nendpoint = "{self.store.endpoint}"\n'
            f'bucket = "{bucket}"\nregion = "{self.store.region}"\n',
        )

    def target(self, amount: Amount, *, reused: bool = False) -> BucketTarget:
        """Return the target of uploads."""
        return BucketTarget(self.store, self.bucket, _PREFIX, amount, self.configure, reused)


def push(source: Path, target: str, environment: Mapping[str, str]) -> None:
    """Upload the source of a case with hibali. Raises `FailedError`."""
    argv = [*HIBALI, "push", "--quiet", str(source), target]
    completed = subprocess.run(argv, env=environment, check=False, capture_output=True)
    if completed.returncode:
        raise FailedError(
            f"the source could not be uploaded: {completed.stderr[-300:].decode(errors='replace')}"
        )


def rclone_copy(program: str) -> list[str]:
    """Return the words of `rclone copy`, with as many transfers as suit it."""
    return [program, "copy", "--transfers", _CONCURRENCY, "--checkers", _CONCURRENCY]


def _remote(bucket: str) -> str:
    return f"store:{bucket}/{_PREFIX}"


@contextlib.contextmanager
def open_clients(testbed: Testbed, *, swift: bool = False) -> Iterator[Clients]:
    """Create a bucket for one case, configured as the site `store`."""
    store = testbed.swift() if swift else testbed.object_store()
    bucket = f"bench-{secrets.token_hex(4)}"
    with contextlib.closing(store.client()) as client:
        client.create_bucket(Bucket=bucket)
        clients = Clients(testbed, store, bucket, "Other" if swift else "SeaweedFS")
        clients.configure(bucket)
        try:
            yield clients
        finally:
            remove_bucket(store, bucket)


def _moves(
    files: int, size: int, *, down: bool, swift: bool = False
) -> Callable[[Testbed], contextlib.AbstractContextManager[PreparedCase]]:
    @contextlib.contextmanager
    def prepare(testbed: Testbed) -> Iterator[PreparedCase]:
        with (
            testbed.temporary_folder("s3", memory=True) as folder,
            open_clients(testbed, swift=swift) as clients,
        ):
            source, targets = folder / "source", folder / "targets"
            amount = make_tree(source, testbed.amount(files, size))
            if not down:
                yield PreparedCase(amount, clients.up(source, clients.target(amount)))
                return
            targets.mkdir()
            clients.fill(source)
            yield PreparedCase(amount, clients.down(targets, FolderTarget(targets, amount)))

    return prepare


@contextlib.contextmanager
def _unchanged(testbed: Testbed) -> Iterator[PreparedCase]:
    with testbed.temporary_folder("s3", memory=True) as folder, open_clients(testbed) as clients:
        amount = make_tree(folder / "source", testbed.amount(*_MANY))
        clients.fill(folder / "source")
        yield PreparedCase(amount, clients.up(folder / "source", clients.target(amount, reused=True)))


CASES = (
    *(
        Case(
            f"s3-{size}-{direction}",
            f"{direction}: {{objects}}, SeaweedFS, both ends on tmpfs",
            _moves(*amount, down=direction == "down"),
            _bars(size, direction),
            brief=brief,
        )
        for size, amount, brief in (
            ("small", SMALL, Brief(0.5, 2)),
            ("medium", MEDIUM, Brief(0.5, 2)),
            ("large", LARGE, Brief(0.5, 2)),
        )
        for direction in ("up", "down")
    ),
    *(
        Case(
            f"s3-swift-{size}-{direction}",
            f"{direction}: {{objects}}, OpenStack Swift, both ends on tmpfs",
            _moves(*amount, down=direction == "down", swift=True),
            _bars(size, direction),
            brief=Brief(0.25, 2),
        )
        for size, amount in (("medium", MEDIUM), ("large", LARGE))
        for direction in ("up", "down")
    ),
    Case(
        "s3-unchanged",
        "push {objects} of which none changed, SeaweedFS, both ends on tmpfs",
        _unchanged,
        (
            Bar(
                "at most 1.1 of rclone --size-only --fast-list",
                "hibali",
                1.1,
                than=("rclone --size-only --fast-list",),
            ),
        ),
        brief=Brief(0.25, 3),
    ),
)
