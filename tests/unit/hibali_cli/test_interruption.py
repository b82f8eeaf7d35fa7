"""Test that a process ends on a signal, at any point of its work."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.services.session import REPOSITORY

# The main thread waits until it can send and ignores interruptions, as a faulty clean-up could; more signals arrive.
STUBBORN = """
import os, signal, threading, time
from hibali.retry import Pace
from hibali_cli import interruption

interruption.listen_for_interruption()

def send():
    time.sleep(0.2)
    began = time.monotonic()
    while time.monotonic() < began + 1:
        os.kill(os.getpid(), signal.SIGNAL)
        time.sleep(0.0005)

threading.Thread(target=send, daemon=True).start()
pace = Pace(10_000)
while True:
    try:
        print("ready", flush=True)
        while True:
            pace.acquire(1)
    except KeyboardInterrupt:
        continue
"""
# A thread that reads from a server that never answers, and a main thread that joins it at exit.
WAITING = """
import os, signal, threading, time
from hibali_cli.interruption import listen_for_interruption

listen_for_interruption()
threading.Thread(target=time.sleep, args=(60,)).start()
print("ready", flush=True)
try:
    time.sleep(60)
except KeyboardInterrupt as interrupted:
    raise SystemExit(interrupted.exit)
"""
# The C handler runs in another thread, so the signal does not interrupt the system call of the main thread.
UNSEEN = """
import os, signal, sys, threading, time
from hibali_cli.interruption import listen_for_interruption

listen_for_interruption()

def take():
    time.sleep(0.3)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

threading.Thread(target=take, daemon=True).start()
reading, _ = os.pipe()
try:
    os.read(reading, 1)
except KeyboardInterrupt:
    print("cleaned up", flush=True)
    raise SystemExit(143)
"""


def _ended(program: str, number: signal.Signals) -> int:
    program = program.replace("SIGNAL", number.name)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        try:
            return process.wait(10)
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.heavy),
        pytest.param(signal.SIGHUP, 143, marks=pytest.mark.heavy),
    ],
)
def test_repeated_signals_do_not_cause_a_deadlock(number: signal.Signals, code: int) -> None:
    assert _ended(STUBBORN, number) == code


def test_a_hanging_thread_does_not_delay_the_exit() -> None:
    assert _ended(WAITING, signal.SIGTERM) == 143


def test_a_signal_unwinds_a_main_thread_that_waits_in_a_system_call() -> None:
    ended = subprocess.run([sys.executable, "-c", UNSEEN], capture_output=True, timeout=20, check=False)
    assert (ended.returncode, ended.stdout) == (143, b"cleaned up\n"), ended.stderr


def test_few_modules_are_imported_before_signal_handling_starts() -> None:
    """Python itself prints a traceback if Ctrl-C comes earlier."""
    text = "import sys; before = set(sys.modules); import hibali_cli.main; print(*sorted(set(sys.modules) - before))"
    words = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.append({str(REPOSITORY)!r}); {text}"]
    imported = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    ours = {name for name in imported if name.split(".")[0] in {"hibali", "hibali_cli"}}
    assert ours == {"hibali_cli", "hibali_cli.main"}
    assert "typing" not in imported
