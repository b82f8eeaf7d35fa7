"""Run Slurm with munge on one node, reached through its own sshd; accounting is optional."""

from __future__ import annotations

import os
import pwd
import secrets
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.services.processes import (
    MARK,
    SYSTEM_PATH,
    answers,
    free_port,
    program,
    server_environment,
    start,
    succeeds,
    wait_until,
)
from tests.services.sshd import SshServer, start_sshd

PROCESSORS = 8  # configured CPUs, independent of the machine's
GPUS = "/dev/null", "/dev/zero"  # files that stand for the GPUs of each node


@dataclass(frozen=True)
class Slurm(SshServer):
    """A running Slurm: `sbatch` works over `ssh -F config host` and, with `env`, locally."""

    conf: str = ""
    accounting: bool = False

    @property
    def env(self) -> dict[str, str]:
        """Return the variables that local commands need to reach it."""
        return {"SLURM_CONF": self.conf, MARK: f"{Path(self.conf).parent}/"}

    @property
    def jobcomp(self) -> Path:
        """Return the path of Slurm's log of ended jobs, one line each."""
        return Path(self.conf).parent / "jobcomp.txt"

    def jobs_ended(self, name: str) -> int:
        """Return the number of jobs with that name in Slurm's log."""
        return sum(f"Name={name} " in line for line in self.jobcomp.read_text().splitlines())


@dataclass(frozen=True)
class Node:
    """A compute node: its name and address, and the command under which its slurmd runs."""

    name: str
    address: str
    inside: tuple[str, ...] = ()


def this_node() -> Node:
    """Return this machine as a node."""
    return Node(socket.gethostname().partition(".")[0], "127.0.0.1")


def start_slurm(
    session: Path,
    folder: Path,
    *,
    accounting: bool = False,
    nodes: Sequence[Node] = (),
    address: str = "127.0.0.1",
) -> Slurm:
    """Start munge, slurmctld at `address`, a slurmd for each node, and an sshd; with `accounting` also MariaDB and slurmdbd."""
    nodes = nodes or (this_node(),)
    programs = _programs()
    folder.mkdir()
    folder.chmod(0o711)  # independent of the umask
    for name in ("state", "spool"):
        (folder / name).mkdir()
    conf = folder / "slurm.conf"
    known = {**server_environment(session), "SLURM_CONF": str(conf)}
    munge = _start_munge(session, folder)
    key = folder / "jwt.key"  # of the tokens of slurmrestd
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(32))
    controller, ports = free_port(), [free_port() for _ in nodes]
    storage = "AccountingStorageType=accounting_storage/none\n"
    if accounting:
        from tests.services.slurmdbd import start_slurmdbd

        port = start_slurmdbd(session, folder, munge)
        storage = (
            "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=127.0.0.1\n"
            f"AccountingStoragePort={port}\nAccountingStoragePass={munge}\n"
        )
    conf.write_text(_configuration(folder, munge, (address, controller), nodes, ports) + storage)
    (folder / "gres.conf").write_text("".join(f"Name=gpu File={path}\n" for path in GPUS))
    (folder / "jobcomp.txt").touch()
    if accounting:
        _add_account(known)
    slurmctld = start(
        session, [programs["slurmctld"], "-D"], folder / "slurmctld.log", {"SLURM_CONF": str(conf)}
    )
    wait_until(lambda: answers(controller, address), slurmctld, folder / "slurmctld.log")
    for each in nodes:
        (folder / "spool" / each.name).mkdir()
        words = [*each.inside, programs["slurmd"], "-D", "-N", each.name]
        log = folder / f"slurmd-{each.name}.log"
        slurmd = start(session, words, log, {"SLURM_CONF": str(conf)})
    wait_until(lambda: _nodes_are_idle(known), slurmd, log)
    ssh = start_sshd(session, folder / "ssh", {"SLURM_CONF": str(conf)})
    return Slurm(folder=ssh.folder, port=ssh.port, user=ssh.user, conf=str(conf), accounting=accounting)


def _programs() -> dict[str, str]:
    packages = {
        "munge": "munge",
        "slurmctld": "slurmctld",
        "slurmd": "slurmd",
        "sbatch": "slurm-client",
        "sinfo": "slurm-client",
        "sshd": "openssh-server",
    }
    return {name: program(name, package) for name, package in packages.items()}


def _start_munge(session: Path, folder: Path) -> Path:
    """Start munged with a new key; return its socket."""
    own = folder / "munge"
    own.mkdir()
    own.chmod(0o711)
    key, sock, log = own / "key", own / "socket", own / "munged.log"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(1024))
    words = [program("munged", "munge"), "--foreground", f"--key-file={key}", f"--socket={sock}"]
    files = [
        f"--pid-file={own}/pid",
        f"--log-file={own}/own.log",
        f"--seed-file={own}/seed",
        "--num-threads=4",
    ]
    pid = start(session, [*words, *files], log)
    argv = [program("munge", "munge"), "-n", "-S", str(sock)]
    wait_until(lambda: succeeds(argv, server_environment(session)), pid, log)
    return sock


def _configuration(
    folder: Path, munge: Path, controller: tuple[str, int], nodes: Sequence[Node], ports: Sequence[int]
) -> str:
    me = pwd.getpwuid(os.geteuid()).pw_name
    host = socket.gethostname().partition(".")[0]
    names = ",".join(each.name for each in nodes)
    lines = "\n".join(
        f"NodeName={each.name} NodeAddr={each.address} Port={port} CPUs={PROCESSORS} RealMemory=2000 Gres=gpu:{len(GPUS)} State=UNKNOWN"
        for each, port in zip(nodes, ports, strict=True)
    )
    # slurmctld would bind the address that this machine's name resolves to, which other nodes may not reach
    listening = "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny" if controller[0] == "127.0.0.1" else ""
    return f"""ClusterName=hibali
SlurmctldHost={host}({controller[0]})
SlurmctldPort={controller[1]}
SlurmdPort={ports[0]}
SlurmUser={me}
SlurmdUser={me}
AuthType=auth/munge
AuthInfo=socket={munge}
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key={folder}/jwt.key
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
{listening}
# control groups are not delegated to us
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=5
MpiDefault=none
SwitchType=switch/none
SlurmdParameters=config_overrides
ReturnToService=2
MailProg=/bin/true
MinJobAge=300
KillWait=2
BatchStartTimeout=30
MessageTimeout=20
InactiveLimit=0
MaxArraySize=10001
MaxJobCount=20000
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2,sched_min_interval=0,bf_interval=2
PriorityType=priority/basic
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/jobcomp.txt
{lines}
PartitionName=main Nodes={names} Default=YES MaxTime=INFINITE DefaultTime=60 OverSubscribe=NO State=UP
PartitionName=share Nodes={names} Default=NO MaxTime=INFINITE DefaultTime=60 OverSubscribe=FORCE:4 State=UP
"""


def _nodes_are_idle(environment: dict[str, str]) -> bool:
    answer = subprocess.run(
        ["sinfo", "-h", "-o", "%T"], env=environment, capture_output=True, text=True, check=False, timeout=20
    )
    return set(answer.stdout.split()) == {"idle"}


def _add_account(environment: dict[str, str]) -> None:
    me = pwd.getpwuid(os.geteuid()).pw_name
    for words in (["cluster", "hibali"], ["account", "hibali"], ["user", me, "account=hibali"]):
        subprocess.run(
            ["sacctmgr", "-i", "-Q", "add", *words],
            env={**environment, "PATH": SYSTEM_PATH},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            timeout=30,
        )
