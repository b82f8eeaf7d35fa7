"""Run Debian's `crontab` and `cron` with a private spool; the machine's crontabs and jobs do not change."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.services.processes import end_all, start
from tests.support.requirements import skip_or_fail

# hide the machine's other jobs and the pid file of its daemon
_ENTER = (
    'mount --bind "$0/spool" /var/spool/cron/crontabs && mount --bind "$0/none" /etc/cron.d'
    ' && mount --bind "$0/empty" /etc/crontab && mount -t tmpfs none /run && exec "$@"'
)


class PrivateCron:
    """The arguments `words` before a command give it this spool; `start` starts the daemon."""

    def __init__(self, folder: Path) -> None:
        for program in ("crontab", "cron"):
            if shutil.which(program, path="/usr/bin:/usr/sbin") is None:
                skip_or_fail(f"{program} is missing; it comes with cron")
        self.folder = folder
        for name in ("spool", "none", "daemon"):
            (folder / name).mkdir(parents=True)
        (folder / "empty").touch()
        (folder / "spool").chmod(0o1730)
        self.words = ("unshare", "--mount", "--propagation", "slave", "sh", "-c", _ENTER, str(folder))
        if (
            os.geteuid() != 0
            or subprocess.run([*self.words, "true"], check=False, capture_output=True).returncode
        ):
            pytest.skip("only root can use a private spool")

    def put(self, content: bytes) -> None:
        """Set the user's crontab, as a user does."""
        subprocess.run([*self.words, "crontab", "-"], input=content, check=True)

    def content(self) -> bytes | None:
        """Return the user's crontab; None if there is none."""
        found = subprocess.run([*self.words, "crontab", "-l"], check=False, capture_output=True)
        return found.stdout if found.returncode == 0 else None

    def start(self) -> None:
        """Start the daemon."""
        start(self.folder / "daemon", [*self.words, "/usr/sbin/cron", "-f"], self.folder / "daemon.log")

    def end(self) -> None:
        """End it and the jobs that it started."""
        end_all(self.folder / "daemon")
