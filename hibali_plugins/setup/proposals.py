"""Propose settings for what a new site has: container runtimes, environment modules and data nodes."""

from __future__ import annotations

import contextlib
import re
import shlex

from hibali.config.model import Site
from hibali.errors import UsageError
from hibali.events import Listener
from hibali.plugins import if_offered, plugin_names
from hibali_plugins.setup.sources import find_names, ssh_config_file
from runs.containers.base import Container, load_container
from runs.doctor_steps import StepList
from transfers.remote.host import KnowsPrograms, RemoteHost

# Words that centres use in the names of hosts for bulk data: data transfer node, data mover and the like.
_DATA_NODE = re.compile(r"(?:^|[-._0-9])(?:dtn|data|datamover|dm|transfer|xfer)(?=$|[-._0-9])", re.IGNORECASE)
# Below these, one domain of a country is of many institutions, as in ac.uk.
_SHARED_DOMAINS = frozenset({"ac", "co", "com", "edu", "gov", "net", "org"})
# The function `module` is defined by the login shell; both implementations name themselves by a variable.
_MODULES = 'if type module >/dev/null 2>&1; then echo "modules: ${LMOD_VERSION:+Lmod $LMOD_VERSION}${MODULES_CMD:+Environment Modules}"; fi'
_SECONDS = 20.0
UNSEEN = "From outside, hibali cannot see the project to charge, the GPUs of compute nodes, which folders they see, and when files are purged."


def propose_settings(checks: StepList, site: Site, host: RemoteHost | None, on_event: Listener) -> None:
    """Add a step for each setting that the site lacks and its host suggests, with the reason and the command."""
    del on_event
    if host is None or not isinstance(host, KnowsPrograms):
        return
    if site.container.name == "bare":
        _propose_container(checks, site, host)
    if site.scheduler is not None and not site.scheduler.prologue:
        _propose_modules(checks, site, host)
    if site.ssh is not None and not site.ssh.data_hosts and site.ssh.data_host is None:
        _propose_data_node(checks, site, site.ssh.host)


def _propose_container(checks: StepList, site: Site, host: KnowsPrograms) -> None:
    runtimes = _runtimes()
    found = host.which(sorted({each.programs[0] for each in runtimes}))
    names = [each.name for each in runtimes if found.get(each.programs[0]) is not None]
    if names:
        checks.ok(
            "containers",
            f"{', '.join(names)}: installed, but tools run without a container",
            f"To run them in one: hibali config set sites.{site.name}.container.name {names[0]}",
        )


def _runtimes() -> list[Container]:
    """Return the containers whose program needs no scheduler, those that hibali tests with first."""
    found = []
    for name in plugin_names("runs.containers"):
        with contextlib.suppress(UsageError):  # a plugin that cannot be imported
            found.append(load_container(name))
    return sorted(
        (each for each in found if each.programs and each.programs[0] != "srun"),
        key=lambda each: (each.name not in {"apptainer", "podman"}, each.name),
    )


def _propose_modules(checks: StepList, site: Site, host: RemoteHost) -> None:
    finished = host.run(("bash", "-l", "-c", _MODULES), timeout=_SECONDS)
    lines = [line for line in finished.stdout.splitlines() if line.startswith(b"modules:")]
    if lines:
        system = lines[-1].removeprefix(b"modules:").decode("utf-8", "replace").strip()[:60] or "module"
        line = """'["module load NAME"]'"""
        checks.ok(
            "modules",
            f"{system} is there; a job loads modules in its prologue",
            f"If tools need one: hibali config set sites.{site.name}.scheduler.prologue {line}",
        )


def _propose_data_node(checks: StepList, site: Site, alias: str) -> None:
    """Propose a host of ~/.ssh/config that is named like a data node of the same machine or domain."""
    names = [name for name, _ in find_names(ssh_config_file())]
    name = find_data_node(alias, names)
    if name is not None:
        checks.ok(
            "data nodes",
            f"{name} in ~/.ssh/config is named like a host for bulk data",
            f"If it sees the same files: hibali config set sites.{site.name}.ssh.data_host {shlex.quote(name)}",
        )
    elif site.scheduler is not None and site.scheduler.name != "direct":
        checks.ok(
            "data nodes",
            "~/.ssh/config names none for this host",
            if_offered("sites.import", "Profiles of centres name theirs: hibali sites import centre:jsc"),
        )


def find_data_node(alias: str, names: list[str]) -> str | None:
    """Return the first name that is one of a data node, and has the host's first word, or its domain of an institution; pure."""
    word = re.split(r"[-._0-9]", alias.lower())[0]
    domain = alias.lower().partition(".")[2]
    if "." not in domain or domain.partition(".")[0] in _SHARED_DOMAINS:
        domain = ""
    for name in names:
        lower = name.lower()
        same_word = word not in {"", "login", "ssh"} and word in re.split(r"[-._0-9]", lower)
        related = same_word or (domain and lower.endswith(f".{domain}"))
        if name != alias and related and _DATA_NODE.search(name):
            return name
    return None
