"""Reach the OpenPBS of this machine, where one runs: no package of Debian, PyPI or npm has it, so it is not started here.

Built from its source and started as its INSTALL says, with `set server job_history_enable = True`, and for root
`set server acl_roots = root`; the file /etc/pbs.conf, or the one that PBS_CONF_FILE names, says where its programs are.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.services.processes import (
    SYSTEM_PATH,
    MissingPackageError,
    ServiceError,
    server_environment,
    succeeds,
)
from tests.services.sshd import SshServer, start_sshd

_CONFIGURATION = Path(os.environ.get("PBS_CONF_FILE", "/etc/pbs.conf"))


def start_openpbs(session: Path, folder: Path) -> SshServer:
    """Start an sshd at which the commands of PBS are found."""
    lines = _CONFIGURATION.read_text().splitlines() if _CONFIGURATION.exists() else []
    programs = [line.partition("=")[2] for line in lines if line.startswith("PBS_EXEC=")]
    if not programs:
        raise MissingPackageError("no OpenPBS runs here, and no package has it")
    environment = {"PATH": f"{programs[0]}/bin:{SYSTEM_PATH}", "PBS_CONF_FILE": str(_CONFIGURATION)}
    if not succeeds([f"{programs[0]}/bin/qstat", "-B"], server_environment(session, environment)):
        raise ServiceError("the server of OpenPBS does not answer")
    return start_sshd(session, folder, environment)
