"""Run sshd with forced commands: a wrapper like those of automation nodes, and hibali's own."""

from __future__ import annotations

from pathlib import Path

from tests.services.sshd import SshServer, sftp_server_program, start_sshd_with_command

# As documented for the automation nodes of the Digital Research Alliance of Canada: only these commands are allowed, the line
# is split at blanks and quotes are ignored, and a refusal is printed on standard output with exit code 0.
_WRAPPER = """#!/bin/bash
set -f
words=(${SSH_ORIGINAL_COMMAND-})
printf '%s\\n' "${SSH_ORIGINAL_COMMAND-}" >>@LOG@
case ${words[0]-} in
  ls|cat|rsync|scp|sbatch|squeue|scancel|scontrol) exec "${words[@]}" ;;
  internal-sftp|*/sftp-server) exec @SFTP@ -d @HOME@ ;;
esac
echo "This account can only run transfers and jobs: '${words[*]}' is not allowed."
exit 0
"""


def start_automation_node(session: Path, folder: Path, slurm_conf: str) -> SshServer:
    """Start sshd with such a wrapper, which logs the requested commands in the file `requested`."""
    return _start(session, folder, _WRAPPER, slurm_conf)


def start_forced_command(session: Path, folder: Path, slurm_conf: str, script: str) -> SshServer:
    """Start sshd with the given script as its forced command."""
    return _start(session, folder, script, slurm_conf)


def requested_commands(server: SshServer) -> list[str]:
    """Return every command line that the server received."""
    path = Path(server.folder) / "requested"
    return path.read_text().splitlines() if path.exists() else []


def _start(session: Path, folder: Path, text: str, slurm_conf: str) -> SshServer:
    def write_wrapper(server: SshServer) -> str:
        wrapper = folder / "wrapper"
        named = text.replace("@SFTP@", sftp_server_program()).replace("@LOG@", f"{folder}/requested")
        wrapper.write_text(named.replace("@HOME@", str(server.home)))
        wrapper.chmod(0o755)
        return str(wrapper)

    return start_sshd_with_command(session, folder, write_wrapper, {"SLURM_CONF": slurm_conf})
