"""Run the agent's main loop: reply to requests until the client disconnects."""

import errno
import os
import pwd
import resource
import signal
import sys
import threading
import time
from typing import Any, Dict, Sequence

from transfers.agent import protocol
from transfers.agent.commands import COMMANDS, expanded
from transfers.agent.lease import LockedError, LostLeaseError, this_process
from transfers.agent.progress import report_progress, working
from transfers.agent.protocol import (
    FAILED,
    ChangedError,
    Channel,
    ProtocolError,
    RefusedError,
    UnsafeNameError,
    code_of,
    failure_of,
    message_of,
)
from transfers.agent.safe_path import Roots, raise_file_limit
from transfers.agent.session import Session


def main(nonce: str, roots: Sequence[str] = (), reports: float = 0.0) -> None:
    """Serve one client on standard input and output until it ends, disconnects or stays silent too long.

    `roots` are the site's configured roots, below which no symlink of another account is followed; `reports`
    is the time between two reports of progress in seconds, 0 for none.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # like any other signal: later calls handle such an end
    raise_file_limit()
    _watch_cpu_limit()
    channel = Channel()
    session = Session(channel, Roots(expanded(roots)))
    try:
        channel.greet(nonce, _greeting())
        if reports:
            arguments = (channel, reports)
            threading.Thread(target=report_progress, args=arguments, name="progress", daemon=True).start()
        _serve(channel, session)
    except OSError as problem:
        # The client is disconnected: no error can be sent.
        sys.stderr.write("hibali agent: {}\n".format(problem.strerror))
    finally:
        session.close()
    # Threads that wait for a client must not keep this process running.
    os._exit(0)


def _watch_cpu_limit() -> None:
    """Stop with a status of its own shortly before the host ends this process for its CPU time (setrlimit(2)).

    Login nodes do that after some minutes; to the client it would look like a lost connection.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if soft == hard == resource.RLIM_INFINITY:
        return
    if soft == hard:
        soft -= min(5, soft // 2)
        resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))
    # Python runs a handler only once its first thread runs, but writes the signal's number at once; programs that this
    # one starts do not inherit a handler, as they would a mask (signal(7))
    arrived, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGXCPU, lambda *_: None)

    def stop() -> None:
        while os.read(arrived, 1) != bytes([signal.SIGXCPU]):
            pass
        limit = hard if hard != resource.RLIM_INFINITY else soft
        os.write(2, "a process may use {} s of CPU time at this host\n".format(limit).encode("ascii"))
        os._exit(protocol.CPU_LIMIT)

    threading.Thread(target=stop, name="CPU limit", daemon=True).start()


def _greeting() -> Dict[str, Any]:
    greeting = {
        "protocol": protocol.PROTOCOL,
        "python": "{}.{}.{}".format(*sys.version_info),
        "user": os.geteuid(),
        "account": _account(),
        "home": protocol.text_of(os.fsencode(os.path.expanduser("~"))),
        "clock": time.time(),
    }  # type: Dict[str, Any]
    greeting.update(this_process())
    return greeting


def _account() -> str:
    """Return the account's name, or its number if it has no name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _serve(channel: Channel, session: Session) -> None:
    while True:
        frame = channel.next()
        if frame is None:
            return
        if frame.kind == protocol.REQUEST and frame.header.get("do") == "goodbye":
            channel.send(protocol.END, {})
            return
        with working():
            _handle(channel, session, frame)


def _request(channel: Channel, session: Session, header: Dict[str, Any]) -> None:
    name = header.get("do")
    inside = session.requests.get(name)
    if inside is not None:
        inside(header)
        return
    command = COMMANDS.get(str(name))
    if command is None:
        raise ProtocolError("the agent does not know {!r}".format(name))
    session.roots.check_request(str(name), header)
    channel.send(protocol.END, *command(header))


def _dispatch(channel: Channel, session: Session, frame: protocol.Frame) -> None:
    if frame.kind == protocol.UNIT:
        session.receive_unit(frame.header)
    elif frame.kind == protocol.DATA:
        session.receive_data(frame.header, frame.body)
    elif frame.kind == protocol.FILE:
        session.receive_file(frame.header)
    elif frame.kind == protocol.PLACED:
        session.receive_placed(frame.header)
    elif frame.kind == protocol.REQUEST and frame.header.get("do") == "append":
        session.append(frame.header, frame.body)
    elif frame.kind == protocol.REQUEST and frame.header.get("do") == "store_files":
        session.store_files(frame.header, frame.body)
    elif frame.kind == protocol.REQUEST:
        _request(channel, session, frame.header)


def _handle(channel: Channel, session: Session, frame: protocol.Frame) -> None:
    """Handle a frame; every failure becomes an ERROR frame, except a lost channel."""
    try:
        _dispatch(channel, session, frame)
    except BrokenPipeError:
        raise
    except LockedError as problem:
        holder = {key: problem.holder.get(key) for key in ("operation", "client", "host", "pid", "lease")}
        channel.send(protocol.ERROR, {"code": "locked", "message": "", "holder": holder, "age": problem.age})
    except LostLeaseError as problem:
        channel.send(protocol.ERROR, {"code": "lease-lost", "message": str(problem)})
    except RefusedError as problem:
        channel.send(protocol.ERROR, {"code": problem.code, "message": str(problem)})
    except OSError as problem:
        number = problem.errno or 0
        name = problem.filename
        about = session.whole_path(os.fsencode(name)) if isinstance(name, (str, bytes)) else b""
        channel.send(
            protocol.ERROR,
            {
                "code": code_of(number),
                "message": message_of(number) if number else str(problem),
                "about": protocol.text_of(about),
            },
        )
    except UnsafeNameError as problem:
        channel.send(protocol.ERROR, {"code": "unsafe-name", "message": str(problem)})
    except ChangedError as problem:
        channel.send(protocol.ERROR, {"code": "source-changed", "message": str(problem)})
    except (ProtocolError, KeyError, TypeError, ValueError) as problem:
        channel.send(
            protocol.ERROR, {"code": "protocol", "message": "{}: {}".format(type(problem).__name__, problem)}
        )
    except MemoryError:
        channel.send(protocol.ERROR, {"code": code_of(errno.ENOMEM), "message": message_of(errno.ENOMEM)})
    except Exception as problem:  # noqa: BLE001  # reported, so that the client does not see a lost channel
        channel.send(protocol.ERROR, {"code": FAILED, "message": failure_of(problem)})
