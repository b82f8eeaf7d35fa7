"""Be a test double of uftpd 3.5.3 as a program: its command port, its control connections and one data connection for each.

uftpd is Python, but in no package index: where HIBALI_UFTPD names a folder with its source (github.com/UNICORE-EU/uftpd), `uftp.py` starts
that one instead, with the same variables in its environment. Written from lib/UFTPD.py, Protocol.py, FTPHandler.py, Session.py and
SessionUtils.py (f5b5b3f, 2026-04); driven by hibali and by the unmodified pyuftp 1.1.1.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

_HASHES = {"MD5": "md5", "SHA-1": "sha1", "SHA-256": "sha256", "SHA-512": "sha512"}
_BUFFER = 16 * 65536


class _ReplyError(Exception):
    """A reply that ends a command."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Session:
    """A control connection."""

    def __init__(self, control: socket.socket, requests: dict[str, dict[str, str]]) -> None:
        self.control = control
        self.input = control.makefile("r", encoding="utf-8", errors="strict")
        self.requests = requests
        self.folder = self.base = "/"
        self.renamed = ""
        self.offset, self.number, self.ranged = 0, -1, False
        self.kept, self.hash = False, "MD5"
        self.data: socket.socket | None = None
        self.stream: Any = None

    def say(self, line: str) -> None:
        self.control.sendall(f"{line}\n".encode())

    def run(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            if self.log_in():
                while (line := self.input.readline(8192)) and self.act(line.strip()):
                    pass
        self.close_data()
        self.control.close()

    def log_in(self) -> bool:
        self.say("220 UFTPD 3.5.3, https://www.unicore.eu")
        if self.input.readline(8192).strip() != "USER anonymous":
            self.say("500 Protocol error")
            return False
        self.say("331 Please specify the password")
        request = self.requests.get(self.input.readline(8192).strip().partition(" ")[2])
        if request is None:
            self.say("530 Not logged in: no matching transfer request found")
            return False
        peer = self.control.getpeername()[0]
        if peer not in request["client-ip"].split(","):
            self.say(
                f"500 Error establishing connection: Rejecting connection for '{request['user']}' from {peer}"
            )
            return False
        if request.get("persistent") != "true" and request.setdefault("used", "") == "yes":
            self.say("500 Session for these credentials is already running")
            return False
        request["used"] = "yes"
        base = request.get("file", "").rpartition("/")[0]
        self.base = os.path.normpath(base) if base else "/"
        self.folder = self.base if base else os.environ["HOME"]
        self.say("230 Login successful")
        return True

    def act(self, line: str) -> bool:
        word, _, value = line.partition(" ")
        word = word.upper().replace("-", "_")
        if word in {"BYE", "QUIT"}:
            return False
        act = getattr(self, f"do_{word.lower()}", None)
        if not line:
            return True
        if act is None:
            self.say("502 Command not implemented.")
            return True
        try:
            act(value)
        except _ReplyError as problem:
            self.say(f"{problem.code} Error processing command '{word}': {problem}")
        except Exception as problem:  # noqa: BLE001  # as the server does
            if word in {"STOR", "RETR"}:
                self.close_data()
            self.say(f"500 Error processing command '{word}': {problem}")
        return True

    def path(self, value: str) -> str:
        value = value.strip()
        found = os.path.normpath(value if value.startswith("/") else f"{self.folder}/{value}")
        if not found.startswith(self.base):
            raise _ReplyError(534, f"Forbidden: {found} not in {self.base}")
        return found

    def readable(self, value: str) -> str:
        found = self.path(value)
        if not os.access(found, os.R_OK):
            raise _ReplyError(550, "Directory/file does not exist or cannot be accessed!")
        return found

    def reset(self) -> None:
        self.offset, self.number, self.ranged = 0, -1, False

    def close_data(self) -> None:
        for each in (self.stream, self.data):
            if each is not None:
                with contextlib.suppress(OSError):
                    each.close()
        self.data = self.stream = None

    def do_syst(self, _: str) -> None:
        self.say("215 Unix Type: L8")

    def do_feat(self, _: str) -> None:
        hashes = ";".join(f"{each}{'*' if each == self.hash else ''}" for each in _HASHES)
        self.say(f"211-Features:\n PASV\n EPSV\n RANG STREAM\n KEEP-ALIVE\n HASH {hashes}\n211 END")

    def do_noop(self, value: str) -> None:
        streams = int(value) if value.isdecimal() else 0
        self.say(f"{222 if streams == 1 else 223} Opening 1 data connections" if streams else "200 OK")

    def do_opts(self, value: str) -> None:
        name, _, wanted = value.partition(" ")
        if name.upper() == "HASH":
            if wanted.upper() not in _HASHES:
                raise ValueError(f"Unsupported hash algorithm '{wanted}'")
            self.hash = wanted.upper()
        self.say(f"200 {name}={wanted}")

    def do_keep_alive(self, value: str) -> None:
        self.kept = value.lower() in {"true", "yes", "1"}
        self.say("200 OK")

    def do_cwd(self, value: str) -> None:
        found = self.path(value)
        if not Path(found).is_dir():
            raise _ReplyError(550, "Can't cwd to directory")
        self.folder = found
        self.say("200 OK")

    def do_cdup(self, _: str) -> None:
        if self.folder == self.base:
            raise _ReplyError(534, "Can't cd up, already at base directory")
        self.folder = os.path.dirname(self.folder)  # noqa: PTH120
        self.say("200 OK")

    def do_epsv(self, _: str) -> None:
        self.passive(lambda port: f"229 Entering Extended Passive Mode (|||{port}|)")

    def do_pasv(self, _: str) -> None:
        host = self.control.getsockname()[0].replace(".", ",")
        self.passive(lambda port: f"227 Entering Passive Mode ({host},{port // 256},{port % 256})")

    def passive(self, text: Any) -> None:
        self.close_data()
        with socket.create_server((self.control.getsockname()[0], 0)) as server:
            server.settimeout(30)
            self.say(text(server.getsockname()[1]))
            self.data, _ = server.accept()
        self.data.settimeout(None)
        self.stream = self.data.makefile("rb")

    def do_mlst(self, value: str) -> None:
        found = self.path(value)
        if not Path(found).exists():
            raise _ReplyError(550, "Directory/file does not exist or cannot be accessed!")
        properties = Path(found).stat()
        kind = "dir" if Path(found).is_dir() else "file"
        moment = time.strftime("%Y%m%d%H%M%S", time.localtime(properties.st_mtime))
        facts = (
            f"size={properties.st_size};modify={moment};type={kind};perm=rw;UNIX.mode={properties.st_mode:o}"
        )
        self.say(f"250- Listing {found}\n {facts}; {Path(found).name}\n250 End")

    def do_stat(self, value: str) -> None:
        listed, _, path = value.partition(" ")
        found = Path(self.path(path or "."))
        if not found.exists():
            raise OSError("Directory/file does not exist or cannot be accessed!")
        names = sorted(found.iterdir()) if listed == "N" and found.is_dir() else [found]
        self.say("211- Sending file list")
        for each in names:
            with contextlib.suppress(OSError):
                properties = each.stat()
                letter, seconds = "d" if each.is_dir() else "-", int(properties.st_mtime)
                self.say(f" {letter}rw- {properties.st_size} {1000 * seconds} {each.name}")
        self.say("211 End of file list")

    def do_rnfr(self, value: str) -> None:
        self.renamed = self.path(value)
        self.say("350 File action OK Please send rename-to")

    def do_rnto(self, value: str) -> None:
        os.rename(self.renamed, self.path(value))  # noqa: PTH104
        self.say("200 OK")

    def do_size(self, _: str) -> None:
        raise TypeError("Connector.write_message() got an unexpected keyword argument 'msg'")  # as in 3.5.3

    def do_rang(self, value: str) -> None:
        try:
            first, last = map(int, value.split(" ")[:2])
        except ValueError:
            raise _ReplyError(501, "Argument syntax error") from None
        if (first, last) == (1, 0):
            self.reset()
            self.say("350 Resetting range")
            return
        self.offset, self.number, self.ranged = first, last - first, True
        self.say(f"350 Restarting at {first}. End byte range at {last}")

    def do_allo(self, value: str) -> None:
        if self.ranged:
            self.number = int(value)
        else:
            self.offset, self.number = 0, int(value)
        self.say(f"200 OK Will read up to {self.number} bytes from data connection.")

    def do_retr(self, value: str) -> None:
        path = self.readable(value)
        size = self.number if self.ranged else Path(path).stat().st_size - self.offset
        self.say(f"150 OK {size} bytes available for reading.")
        with Path(path).open("rb") as file:
            file.seek(self.offset)
            while size > 0 and (piece := file.read(min(_BUFFER, size))):
                self.data.sendall(piece)  # type: ignore[union-attr]
                size -= len(piece)
        self.end_transfer()

    def do_stor(self, value: str) -> None:
        path = self.path(value)
        Path(path).touch()
        self.say("150 OK")
        left = sys.maxsize if self.number == -1 else self.number
        with Path(path).open("r+b") as file:
            if not self.ranged:
                file.truncate(0)
            file.seek(self.offset)
            while left > 0 and (piece := self.stream.read(min(_BUFFER, left))):
                file.write(piece)
                left -= len(piece)
        self.end_transfer()

    def end_transfer(self) -> None:
        self.reset()
        self.say("226 File transfer successful")
        if not self.kept:
            self.close_data()

    def do_hash(self, value: str) -> None:
        path = self.readable(value)
        size = self.number if self.ranged else Path(path).stat().st_size - self.offset
        with Path(path).open("rb") as file:
            file.seek(self.offset)
            summed = hashlib.new(_HASHES[self.hash], file.read(size))
        last = max(0, self.offset + size - 1)
        self.say(f"213 {self.hash} {self.offset}-{last} {summed.hexdigest()} {path}")
        self.reset()

    def do_mff(self, value: str) -> None:
        facts, target = value.split(" ", 2)  # a path with a space is an error, as in the server
        for fact in filter(None, facts.split(";")):
            key, wanted = fact.split("=")
            if key.lower() != "unix.mode":
                raise ValueError(f"Not supported: '{key}'")
            Path(self.path(target)).chmod(int(wanted, 8))
        self.say(f"213 {facts}; {target}")


def _commands(server: socket.socket, requests: dict[str, dict[str, str]]) -> None:
    """Answer the auth server."""
    while True:
        connection, _ = server.accept()
        with connection, connection.makefile("r") as lines:
            found: dict[str, str] = {}
            for line in lines:
                if line.startswith("END"):
                    break
                key, _, value = line.strip().partition("=")
                found[key] = value
            if found.get("request-type") == "uftp-transfer-request":
                requests[found["secret"]] = found
                connection.sendall(f"OK::{os.environ['SERVER_PORT']}\n".encode())
            else:
                connection.sendall(b"ERROR::Unsupported request type\n")


def main() -> None:
    """Serve until killed."""
    requests: dict[str, dict[str, str]] = {}
    commands = socket.create_server((os.environ["CMD_HOST"], int(os.environ["CMD_PORT"])))
    threading.Thread(target=_commands, args=(commands, requests), daemon=True).start()
    address = (os.environ["SERVER_HOST"], int(os.environ["SERVER_PORT"]))
    with socket.create_server(address, backlog=2) as server:  # as the server has it
        while True:
            control, _ = server.accept()
            threading.Thread(target=Session(control, requests).run, daemon=True).start()


if __name__ == "__main__":
    main()
