"""An object store on loopback: up, down, and nothing changed."""

from __future__ import annotations

import contextlib
import secrets
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.case import BucketTarget, Case, Contender, Field, FolderTarget, Target
from benchmarks.link_cases import LARGE, SMALL
from benchmarks.measuring import FailedError
from benchmarks.samples import Amount, Bar
from benchmarks.stage import HIBALI, Stage, peer_or_reason
from benchmarks.trees import make_tree
from tests.services.object_store import ObjectStore, remove_bucket

MEDIUM = (64, 32 << 20)
_MANY = (100_000, 100)
_PREFIX = "data"
_MOST_AT_ONCE = "32"  # rclone's own 4 would be unfair

_BARS = (
    Bar("wall time at most 1.05 of s5cmd", "hibali", 1.05, than=("s5cmd",)),
    Bar("client CPU at most 1.2 of s5cmd", "hibali", 1.2, measure="cpu", than=("s5cmd",)),
    Bar("peak memory under 400 MB", "hibali", 400, measure="peak"),
)


@dataclass(frozen=True)
class Clients:
    """The contenders' words, between a folder and a prefix of one bucket."""

    stage: Stage
    store: ObjectStore
    bucket: str
    server: str  # as rclone calls it

    @property
    def environment(self) -> dict[str, str]:
        """Where the keys are, for all, and rclone's configuration."""
        return {
            **self.stage.environment(),
            **self.store.env,
            "RCLONE_CONFIG": "/dev/null",
            "RCLONE_CONFIG_STORE_TYPE": "s3",
            "RCLONE_CONFIG_STORE_PROVIDER": self.server,
            "RCLONE_CONFIG_STORE_ENDPOINT": self.store.endpoint,
            "RCLONE_CONFIG_STORE_REGION": self.store.region,
            "RCLONE_CONFIG_STORE_ENV_AUTH": "true",
        }

    def up(self, source: Path, target: BucketTarget) -> list[Contender]:
        """From a folder to fresh buckets, or to the one that stays."""
        s5cmd, no_s5cmd = peer_or_reason("s5cmd")
        rclone, no_rclone = peer_or_reason("rclone")
        known = self.environment
        compare = ["--size-only", "--fast-list"] if target.stays else []
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
                lambda name: [*self._rclone(rclone), *compare, str(source), _remote(target.name(name))],
                target,
                known,
                missing=no_rclone,
            ),
        ]
        return [found[0], found[2]] if target.stays else found

    def down(self, root: Path, target: Target) -> list[Contender]:
        """From one bucket to fresh folders."""
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
                lambda name: [*self._rclone(rclone), _remote(self.bucket), str(root / name)],
                target,
                known,
                missing=no_rclone,
            ),
        ]

    def fill(self, source: Path) -> None:
        """Put the source there, by hibali: what it wrote it can verify when it fetches it."""
        words = [*HIBALI, "push", "--quiet", str(source), f"store:{_PREFIX}"]
        ended = subprocess.run(words, env=self.environment, check=False, capture_output=True)
        if ended.returncode:
            raise FailedError(
                f"the source could not be prepared: {ended.stderr[-300:].decode(errors='replace')}"
            )

    def _s5cmd(self, program: str) -> list[str]:
        return [program, "--endpoint-url", self.store.endpoint, "--log", "error", "cp"]

    @staticmethod
    def _rclone(program: str) -> list[str]:
        return [program, "copy", "--transfers", _MOST_AT_ONCE, "--checkers", _MOST_AT_ONCE]

    def configure(self, bucket: str) -> None:
        """Make it the site `store`."""
        self.stage.add_site(
            "store",
            f'kind = "s3"\n[sites.store.s3]\nendpoint = "{self.store.endpoint}"\n'
            f'bucket = "{bucket}"\nregion = "{self.store.region}"\n',
        )

    def target(self, amount: Amount, *, stays: bool = False) -> BucketTarget:
        """Where uploads land."""
        return BucketTarget(self.store, self.bucket, _PREFIX, amount, self.configure, stays)


def _remote(bucket: str) -> str:
    return f"store:{bucket}/{_PREFIX}"


@contextlib.contextmanager
def _clients(stage: Stage, *, swift: bool = False) -> Iterator[Clients]:
    """A bucket of one case, configured as the site `store`."""
    store = stage.swift() if swift else stage.object_store()
    bucket = f"bench-{secrets.token_hex(4)}"
    with contextlib.closing(store.client()) as client:
        client.create_bucket(Bucket=bucket)
        clients = Clients(stage, store, bucket, "Other" if swift else "SeaweedFS")
        clients.configure(bucket)
        try:
            yield clients
        finally:
            remove_bucket(store, bucket)


def _moves(
    files: int, size: int, *, down: bool, swift: bool = False
) -> Callable[[Stage], contextlib.AbstractContextManager[Field]]:
    @contextlib.contextmanager
    def prepare(stage: Stage) -> Iterator[Field]:
        with stage.place("s3", memory=True) as place, _clients(stage, swift=swift) as clients:
            source, targets = place / "source", place / "targets"
            amount = make_tree(source, stage.amount(files, size))
            if not down:
                yield Field(amount, clients.up(source, clients.target(amount)))
                return
            targets.mkdir()
            clients.fill(source)
            yield Field(amount, clients.down(targets, FolderTarget(targets, amount)))

    return prepare


@contextlib.contextmanager
def _unchanged(stage: Stage) -> Iterator[Field]:
    with stage.place("s3", memory=True) as place, _clients(stage) as clients:
        amount = make_tree(place / "source", stage.amount(*_MANY))
        clients.fill(place / "source")
        yield Field(amount, clients.up(place / "source", clients.target(amount, stays=True)))


CASES = (
    *(
        Case(
            f"s3-{size}-{word}",
            f"{word}: {subject}, SeaweedFS, both ends on tmpfs",
            _moves(*amount, down=word == "down"),
            _BARS,
        )
        for size, subject, amount in (
            ("small", "10,000 objects of 10 KiB", SMALL),
            ("medium", "64 objects of 32 MiB", MEDIUM),
            ("large", "one object of 2 GiB", LARGE),
        )
        for word in ("up", "down")
    ),
    *(
        Case(
            f"s3-swift-{size}-{word}",
            f"{word}: {subject}, OpenStack Swift, both ends on tmpfs",
            _moves(*amount, down=word == "down", swift=True),
            _BARS,
        )
        for size, subject, amount in (
            ("medium", "64 objects of 32 MiB", MEDIUM),
            ("large", "one object of 2 GiB", LARGE),
        )
        for word in ("up", "down")
    ),
    Case(
        "s3-unchanged",
        "push 100,000 objects of 100 bytes of which none changed, SeaweedFS, both ends on tmpfs",
        _unchanged,
        (
            Bar(
                "at most 1.1 of rclone --size-only --fast-list",
                "hibali",
                1.1,
                than=("rclone --size-only --fast-list",),
            ),
        ),
    ),
)
