"""Who this process works for, as far as the system knows."""

from __future__ import annotations

import getpass
import os
import socket


def account_names() -> tuple[str, str]:
    """A name and an address for commits: the account, and the account at this host."""
    try:
        account = getpass.getuser()
    except (KeyError, OSError):
        account = f"uid-{os.geteuid()}"
    return account, f"{account}@{socket.gethostname()}"
