"""Connect to one address and pass the socket to ssh (ProxyUseFdpass, ssh_config(5)).

This is a `ProxyCommand` under `ProxyUseFdpass` (ssh_config(5)): ssh waits on standard output for one byte that carries the
descriptor, and uses that socket as its own connection. It runs alone and imports nothing of hibali.
"""

import socket
import sys

_CONNECT_SECONDS = 30.0


def pass_connection(address: str, port: int) -> None:
    """Connect, and pass the socket through standard output."""
    with socket.create_connection((address, port), timeout=_CONNECT_SECONDS) as line:
        line.setblocking(True)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        with socket.fromfd(1, socket.AF_UNIX, socket.SOCK_STREAM) as ssh:
            socket.send_fds(ssh, [b"\0"], [line.fileno()])


if __name__ == "__main__":
    try:
        pass_connection(sys.argv[1], int(sys.argv[2]))
    except OSError as problem:
        sys.exit(f"connect to {sys.argv[1]} port {sys.argv[2]}: {problem.strerror or problem}")
