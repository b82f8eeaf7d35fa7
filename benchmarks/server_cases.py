"""Measure stores of single requests on loopback: WebDAV (Apache), and the double of the EBRAINS data proxy.

No peer of the others verifies what it wrote there: these cases compare hibali with itself before a change.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from benchmarks.case import Brief, BucketTarget, Case, Contender, FolderTarget, PreparedCase, ReusedTarget
from benchmarks.measuring import FailedError
from benchmarks.samples import Bar
from benchmarks.testbed import HIBALI, Testbed
from benchmarks.trees import count_tree, make_tree, remove_tree
from tests.services.ebrains import Ebrains
from tests.services.object_store import remove_bucket
from tests.services.webdav import DavServer

_SMALL = (2000, 4096)
_LISTED_DAV = (50_000, 1)
_LISTED_EBRAINS = (20_000, 1)
_BARS = (Bar("peak memory under 400 MB", "hibali", 400, measure="peak"),)
_LIST = [*HIBALI, "ls", "--recursive", "--quiet"]
_PRINT_LOGIN = "import json, os, sys; print(json.dumps({'username': sys.argv[1], 'password': os.environ['BENCH_DAV_SECRET']}))"


@dataclass(frozen=True)
class _DavTarget(FolderTarget):
    """A folder at the server for each run; Apache keeps properties beside the files, which do not count."""

    def check(self, name: str) -> None:
        for properties in (self.root / name).rglob(".DAV"):
            remove_tree(properties)
        super().check(name)


@dataclass(frozen=True)
class _Dav:
    """Apache as the site `dav`, whose folders are below `root`."""

    root: Path
    environment: dict[str, str]


@contextlib.contextmanager
def _dav(testbed: Testbed) -> Iterator[_Dav]:
    server: DavServer = testbed.webdav()
    folder = Path(server.root) / f"bench-{secrets.token_hex(4)}"
    folder.mkdir()
    login = server.login or ("", "")
    command = json.dumps([sys.executable, "-c", _PRINT_LOGIN, login[0]])
    url = server.url.replace("http:", "dav:")
    testbed.add_site("dav", f'kind = "url"\nurl = "{url}/{folder.name}"\ncredentials_command = {command}\n')
    try:
        yield _Dav(folder, {**testbed.environment(), "BENCH_DAV_SECRET": login[1]})
    finally:
        remove_tree(folder)


def _run(argv: list[str], environment: dict[str, str]) -> None:
    completed = subprocess.run(argv, env=environment, check=False, capture_output=True)
    if completed.returncode:
        raise FailedError(
            f"the source could not be uploaded: {completed.stderr[-300:].decode(errors='replace')}"
        )


@contextlib.contextmanager
def _dav_up(testbed: Testbed) -> Iterator[PreparedCase]:
    with testbed.temporary_folder("dav", memory=True) as folder, _dav(testbed) as dav:
        source = folder / "source"
        amount = make_tree(source, testbed.amount(*_SMALL))
        target = _DavTarget(dav.root, amount)
        push = Contender(
            "hibali",
            lambda name: [*HIBALI, "push", "--quiet", str(source), f"dav:{name}"],
            target,
            dav.environment,
        )
        yield PreparedCase(amount, [push])


@contextlib.contextmanager
def _dav_down(testbed: Testbed) -> Iterator[PreparedCase]:
    with testbed.temporary_folder("dav", memory=True) as folder, _dav(testbed) as dav:
        source, targets = folder / "source", folder / "targets"
        amount = make_tree(source, testbed.amount(*_SMALL))
        targets.mkdir()
        _run([*HIBALI, "push", "--quiet", str(source), "dav:data"], dav.environment)
        pull = Contender(
            "hibali",
            lambda name: [*HIBALI, "pull", "--quiet", "dav:data", str(targets / name)],
            FolderTarget(targets, amount),
            dav.environment,
        )
        yield PreparedCase(amount, [pull])


@contextlib.contextmanager
def _dav_list(testbed: Testbed) -> Iterator[PreparedCase]:
    with _dav(testbed) as dav:
        data = dav.root / "data"
        make_tree(data, testbed.amount(*_LISTED_DAV))
        amount = count_tree(data)
        target = ReusedTarget(data, amount)
        listing = Contender("hibali", lambda _: [*_LIST, "dav:data"], target, dav.environment)
        yield PreparedCase(amount, [listing])


@contextlib.contextmanager
def _ebrains_list(testbed: Testbed) -> Iterator[PreparedCase]:
    store = testbed.object_store()
    bucket = f"bench-{secrets.token_hex(4)}"
    amount = testbed.amount(*_LISTED_EBRAINS)
    with testbed.temporary_folder("ebrains") as folder, contextlib.closing(store.client()) as client:
        client.create_bucket(Bucket=bucket)
        double = Ebrains(SimpleNamespace(**{**vars(store), "client": client}), folder)
        try:
            double.add_bucket(bucket)
            with ThreadPoolExecutor(16) as pool:
                keys = (f"data/folder-{number % 200:04}/file-{number:07}" for number in range(amount.files))
                list(pool.map(lambda key: client.put_object(Bucket=bucket, Key=key, Body=b"x"), keys))
            testbed.add_site(
                "ebrains",
                f'kind = "ebrains"\n[sites.ebrains.ebrains]\nurl = "{double.url}"\nbucket = "{bucket}"\n'
                'token_variable = "BENCH_EBRAINS_SECRET"\n',
            )
            environment = {**testbed.environment(), "BENCH_EBRAINS_SECRET": double.new_token()}
            target = BucketTarget(store, bucket, "data", amount, lambda _: None, reused=True)
            listing = Contender("hibali", lambda _: [*_LIST, "ebrains:data"], target, environment)
            yield PreparedCase(amount, [listing])
        finally:
            double.close()
            remove_bucket(store, bucket)


def _case(
    name: str, subject: str, prepare: Callable[[Testbed], contextlib.AbstractContextManager[PreparedCase]]
) -> Case:
    return Case(name, subject, prepare, _BARS, brief=Brief(repeats=3))


CASES = (
    _case("dav-small-up", "up: {files}, WebDAV (Apache), both ends in memory", _dav_up),
    _case("dav-small-down", "down: {files}, WebDAV (Apache), both ends in memory", _dav_down),
    _case("dav-list", "list {files}, WebDAV (Apache)", _dav_list),
    _case("ebrains-list", "list {objects}, EBRAINS (a double before SeaweedFS)", _ebrains_list),
)
