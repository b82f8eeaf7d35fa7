"""Test signals at any moment: the command ends within two seconds, reports it, and the same command resumes."""

from __future__ import annotations

import json
import random
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.subjects import stores_there
from tests.end_to_end.run_tools import Bench
from tests.support.agent_signals import signal_working_agent, wait_for_agent_exit
from tests.support.chains import waiting_for
from tests.support.command_signals import NUMBERS, TOLERATED_SECONDS, check_end, signal_after
from tests.support.transfers import Transfers, counts
from tests.support.trees import many_files, read_tree
from tests.support.waiting import wait_for
from transfers.agent.lease import process_start

TREE = {**many_files(400, 4000, folders=9), b"large": random.Random(8).randbytes(1_000_001) * 12}  # noqa: S311
FEW = {**many_files(60, 4000, folders=3), b"large": TREE[b"large"]}
SLOWLY = ("--bwlimit", "3M")


@pytest.mark.heavy
@pytest.mark.parametrize("number", [*NUMBERS[::2], pytest.param(signal.SIGINT, marks=pytest.mark.heavy)])
def test_a_signal_ends_a_push_with_a_bandwidth_limit(local_there: Transfers, number: int) -> None:
    """Send a signal while the sending thread waits for the rate limit."""
    there = local_there
    there.make(FEW)
    process = there.hibali.start("push", there.source, "there:data", "--json", "--bwlimit", "1M")
    wait_for(lambda: bool(there.committed_files()) or process.poll() is not None)
    end = signal_after(process, 0, number)
    check_end(there.hibali, process, end, number)
    last = json.loads((there.hibali.home.folder / "0.out").read_bytes().splitlines()[-1])
    assert (last["code"], last["exit"]) == ("interrupted", end.code)
    wait_for_agent_exit(there)
    there.push()
    assert there.there() == FEW
    there.check_no_own_files()


@pytest.mark.parametrize("gap", [0.02, pytest.param(0.0, marks=pytest.mark.heavy)])
def test_two_signals_in_a_row_have_the_same_effect_as_one(local_there: Transfers, gap: float) -> None:
    there = local_there
    there.make(TREE)
    for number in range(3):
        process = there.hibali.start(
            "push", there.source, f"there:data{number}", "--json", *SLOWLY, from_nothing=True
        )
        end = signal_after(process, 0.35 + number * 0.1, signal.SIGTERM, signal.SIGTERM, gap=gap)
        check_end(there.hibali, process, end, signal.SIGTERM)


def test_an_ignored_sighup_stays_ignored(local_there: Transfers) -> None:
    """Check SIGHUP as ignored by nohup(1)."""
    there = local_there
    there.make(many_files(20, 50_000))
    with there.under("nohup"):
        process = there.hibali.start("push", there.source, "there:data", "--json", "--bwlimit", "500K")
    wait_for(lambda: bool(there.committed_files()))
    process.send_signal(signal.SIGHUP)
    assert process.wait(30) == 0


class Dripping:
    """A web server that answers one byte at a time, with `seconds` between bytes."""

    def __init__(self, seconds: float = 0.2) -> None:
        self._seconds = seconds
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.requests = 0
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            client.recv(65536)
            self.requests += 1
            client.sendall(b"HTTP/1.1 200 OK\r\nX-Endless: ")
            while True:
                client.sendall(b"x")
                time.sleep(self._seconds)
        except OSError:
            client.close()

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def dripping() -> Iterator[Dripping]:
    server = Dripping()
    yield server
    server.close()


DRIPPING = {
    "s3": 'kind = "s3"\n[sites.drip.s3]\nendpoint = "http://127.0.0.1:{port}"\nbucket = "data"\nregion = "r"\n',
    "url": 'kind = "url"\nurl = "http://127.0.0.1:{port}/"\n',
    "webdav": 'kind = "url"\nurl = "dav://127.0.0.1:{port}/"\n',
}


@pytest.mark.parametrize("kind", stores_there(*DRIPPING))
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.heavy)])
def test_a_signal_ends_a_command_that_reads_from_a_slow_server(
    hibali: Any, dripping: Dripping, tmp_path: Path, kind: str, number: int
) -> None:
    table = DRIPPING[kind].format(port=dripping.port)
    hibali.home.config.write_text(f"version = 1\n[sites.drip]\n{table}")
    hibali.home.config.chmod(0o600)
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    process = hibali.start("pull", "drip:data/", tmp_path / "back", "--json", env=keys)
    wait_for(lambda: dripping.requests > 0 or process.poll() is not None)
    end = signal_after(process, 0.5, number)
    check_end(hibali, process, end, number)
    last = json.loads((hibali.home.folder / "0.out").read_bytes().splitlines()[-1])
    assert (last["code"], last["exit"]) == ("interrupted", end.code)


@pytest.mark.parametrize("words", [("--wait",), ("watch",), pytest.param(("wait",), marks=pytest.mark.heavy)])
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.heavy)])
def test_a_signal_ends_waiting_for_a_run_and_the_run_continues(
    hibali: Any, tmp_path: Path, words: tuple[str, ...], number: int
) -> None:
    go = tmp_path / "go"
    bench = Bench(hibali, waiting_for(go, "Wait"))
    bench.add_local_site()
    line = bench.line(bench.answers())
    run_id = bench.hibali(*line, exit=0).out.decode().strip()
    process = bench.hibali.start(*((*line, *words) if words == ("--wait",) else ("runs", *words, run_id)))
    end = signal_after(process, 1.5, number)
    assert end.code != 0
    check_end(bench.hibali, process, end, number)
    go.touch()
    assert bench.hibali("runs", "wait", run_id, "--json", exit=0).last["state"] == "SUCCEEDED"


@pytest.mark.heavy
@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_to_an_agent_causes_a_reconnect(transfers_to: Any, number: int) -> None:
    there = transfers_to("ssh")
    config = there.hibali.home.config
    config.write_text(config.read_text().replace('reconnect = "0s"', 'reconnect = "1m"'))
    there.make(TREE)
    process = there.hibali.start("push", there.source, "there:data", "--json", "--bwlimit", "2M")
    holder = signal_working_agent(there.root, number)
    began = time.monotonic()
    wait_for(lambda: not process_start(holder))
    assert time.monotonic() - began <= TOLERATED_SECONDS
    assert process.wait(60) == 0
    assert b"Traceback" not in (there.hibali.home.folder / "0.err").read_bytes()
    assert there.there() == TREE
    there.check_no_own_files()


# At random moments: the same seed sends the same signals at the same times.


def _words(there: Transfers, operation: str, target: int) -> tuple[Any, ...]:
    """Return the arguments of the command, each of which works on one of two targets."""
    if operation == "push":
        return "push", there.source, f"there:data{target}"
    if operation == "pull":
        return "pull", "there:full", there.folder / f"back{target}"
    return "sync", "there:full", f"there:copy{target}", "--delete", "--max-delete", "100%"


def _finish(there: Transfers, operation: str, target: int) -> None:
    """Check that the same command completes, and that another call has nothing left to do."""
    words = (*_words(there, operation, target), "--json")
    deadline = time.monotonic() + 150
    while (again := there.hibali(*words)).exit == 5:
        assert again.last["code"] == "locked", str(again)
        assert time.monotonic() < deadline
    assert again.exit == 0, str(again)
    assert counts(there.hibali(*words, exit=0))["files_moved"] == 0


def _signal_often(there: Transfers, seed: int, times: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - the same ones each time
    tree = FEW if there.place.word == "s3" else TREE
    there.make(tree)
    there.place.plant("full", tree)
    slowest = 0.0
    begun = set()
    for count in range(times):
        operation, target = ("push", "pull", "sync")[count % 3], count // 9 % 2
        number = NUMBERS[count // 3 % 3]
        more = chance.choice([(), SLOWLY])
        process = there.hibali.start(*_words(there, operation, target), "--json", *more, from_nothing=True)
        numbers = [number] * chance.choice([1, 1, 2])
        gap = chance.choice([0.0, 0.03])
        end = signal_after(process, chance.uniform(0.15, 1.6), *numbers, gap=gap)
        check_end(there.hibali, process, end, number)
        slowest = max(slowest, end.seconds or 0.0)
        begun.add((operation, target))
    print(f"\n{there.place.word}: {times} signals, the slowest end after {slowest:.2f} s")
    for operation, target in sorted(begun):
        _finish(there, operation, target)
        if operation == "pull":
            assert read_tree(there.folder / f"back{target}") == tree
        else:
            name = f"data{target}" if operation == "push" else f"copy{target}"
            assert there.place.files(name) == tree
    assert there.place.files("full") == tree


@pytest.mark.heavy
@pytest.mark.parametrize("word", ["ssh", "s3"])
def test_a_few_signals_at_random_moments_lose_nothing(transfers_to: Any, word: str) -> None:
    _signal_often(transfers_to(word), seed=3, times=3)


@pytest.mark.heavy
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(("word", "times"), [("local", 60), ("ssh", 60), ("s3", 40), ("sftp", 40)])
def test_two_hundred_signals_at_random_moments_lose_nothing(transfers_to: Any, word: str, times: int) -> None:
    _signal_often(transfers_to(word), seed=200 + times, times=times)
