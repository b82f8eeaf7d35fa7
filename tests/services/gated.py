"""sshd behind forced commands: a wrapper as automation nodes have it, and hibali's own gate."""

from __future__ import annotations

from pathlib import Path

from tests.services.sshd import SshServer, sftp_server_program, start_sshd_with_command

# What is known of the Digital Research Alliance of Canada's automation nodes: these words and no others, split
# at blanks without reading quotes, a refusal told on standard output with exit 0.
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
    """Start sshd with such a wrapper; what was asked of it stands in the file `asked`."""
    return _start(session, folder, _WRAPPER, slurm_conf)


def start_gated(session: Path, folder: Path, slurm_conf: str, gate: str) -> SshServer:
    """Start sshd with the text of a gate."""
    return _start(session, folder, gate, slurm_conf)


def asked_of(server: SshServer) -> list[str]:
    """Every command line that arrived there."""
    path = Path(server.folder) / "asked"
    return path.read_text().splitlines() if path.exists() else []


def _start(session: Path, folder: Path, text: str, slurm_conf: str) -> SshServer:
    def write_wrapper(server: SshServer) -> str:
        wrapper = folder / "wrapper"
        named = text.replace("@SFTP@", sftp_server_program()).replace("@LOG@", f"{folder}/asked")
        wrapper.write_text(named.replace("@HOME@", str(server.home)))
        wrapper.chmod(0o755)
        return str(wrapper)

    return start_sshd_with_command(session, folder, write_wrapper, {"SLURM_CONF": slurm_conf})
