"""Build the contenders of transfers over ssh: hibali, rsync, scp and tar, with new or persistent connections."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.case import Contender, FolderTarget
from benchmarks.testbed import HIBALI, Testbed, peer_or_reason

FAST_CIPHER = ("-c", "aes128-gcm@openssh.com")


@dataclass(frozen=True)
class SshTransfer:
    """A transfer between `source` and folders below `target`; `site` is hibali's name of the remote, `host` that of ssh."""

    testbed: Testbed
    config: Path
    host: str
    site: str
    source: Path
    target: FolderTarget
    pull: bool = False

    def _logins(self, *, kept: bool, who: str) -> Path:
        return self.testbed.runtime(f"{who}-kept" if kept else who)

    def hibali(
        self, variant: str = "", *, kept: bool = False, more: Mapping[str, str] | None = None
    ) -> Contender:
        """Return hibali with the settings of the site, which `variant` describes, and `more` in its environment."""
        runtime = self._logins(kept=kept, who="h")

        def argv(run: str) -> list[str]:
            here, there = self._endpoints(run)
            host = f"{self.site}:{there.name}"
            endpoints = [host, str(here)] if self.pull else [str(here), host]
            return [*HIBALI, "pull" if self.pull else "push", "--quiet", *endpoints]

        environment = {**self.testbed.environment(runtime), **(more or {})}
        name = f"hibali, {variant}" if variant else "hibali"
        return self._contender(name, argv, environment, runtime, kept=kept, warm_up=kept)

    def rsync(self, *more: str, cipher: bool = False, kept: bool = False) -> Contender:
        """Return `rsync -a` with further options."""
        program, missing = peer_or_reason("rsync")
        runtime = self._logins(kept=kept, who="p")

        def argv(run: str) -> list[str]:
            shell = shlex.join(self._ssh(runtime, cipher=cipher, kept=kept))
            here, there = self._endpoints(run)
            host = f"{self.host}:{there}/"
            endpoints = [host, f"{here}/"] if self.pull else [f"{here}/", host]
            return [program, "-a", *more, "-e", shell, *endpoints]

        name = " ".join(["rsync", *more]) + (", aes128-gcm" if cipher else "")
        return self._contender(name, argv, None, runtime, kept=kept, missing=missing)

    def rsync_and_sha256(self, *more: str, cipher: bool = False) -> Contender:
        """Return rsync followed by the sha256 of the single file, which is what verifying it costs at least.

        OpenSSL uses the CPU's instructions for sha256, as hibali does; Debian's sha256sum takes seven times as long.
        """
        rsync = self.rsync(*more, cipher=cipher)
        program, missing = peer_or_reason("openssl")
        file = next(self.source.iterdir())

        def argv(run: str) -> list[str]:
            digest = shlex.join([program, "dgst", "-sha256", str(file)])
            return ["sh", "-c", f"{shlex.join(rsync.argv(run))} && {digest}"]

        return replace(rsync, name=f"{rsync.name}, and sha256", argv=argv, missing=rsync.missing or missing)

    def scp(self, *, cipher: bool = False, kept: bool = False) -> Contender:
        """Return `scp` for the single file of the source."""
        program, missing = peer_or_reason("scp")
        runtime = self._logins(kept=kept, who="p")
        file = next(path.name for path in self.source.iterdir())

        def argv(run: str) -> list[str]:
            _, *options = self._ssh(runtime, cipher=cipher, kept=kept)
            here, there = self._endpoints(run)
            endpoints = [f"{self.host}:{there}/{file}", f"{here}/"]
            if not self.pull:
                endpoints = [f"{here}/{file}", f"{self.host}:{there}/"]
            return [program, "-q", *options, *endpoints]

        name = "scp, aes128-gcm" if cipher else "scp"
        return self._contender(name, argv, None, runtime, kept=kept, missing=missing)

    def tar(self, *, kept: bool = False) -> Contender:
        """Return `tar | ssh tar`, which does not verify the files."""
        program, missing = peer_or_reason("tar")
        runtime = self._logins(kept=kept, who="p")

        def argv(run: str) -> list[str]:
            here, there = self._endpoints(run)
            shell = shlex.join([*self._ssh(runtime, cipher=False, kept=kept), self.host])
            read, write = f"{program} -C %s -cf - .", f"{program} -C %s -xf -"
            line = f"{read % here} | {shell} '{write % there}'"
            if self.pull:
                line = f"{shell} '{read % there}' | {write % here}"
            return ["bash", "-o", "pipefail", "-c", line]

        return self._contender("tar over ssh", argv, None, runtime, kept=kept, missing=missing)

    def _endpoints(self, run: str) -> tuple[Path, Path]:
        """Return the local and the remote folder of a run."""
        target = self.target.root / run
        return (target, self.source) if self.pull else (self.source, target)

    def _ssh(self, runtime: Path, *, cipher: bool, kept: bool) -> list[str]:
        more = FAST_CIPHER if cipher else ()
        if not kept:
            return ["ssh", "-F", str(self.config), *more, "-o", "ControlPath=none"]
        socket = runtime / ("fast" if cipher else "ssh")
        base = ["ssh", "-F", str(self.config), *more, "-o", f"ControlPath={socket}"]
        if not socket.exists():
            subprocess.run(
                [*base, "-o", "ControlMaster=yes", "-o", "ControlPersist=4h", "-N", self.host],
                check=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=self.testbed.environment(),
            )
        return base

    def _contender(
        self,
        name: str,
        argv: Callable[[str], Sequence[str]],
        environment: dict[str, str] | None,
        runtime: Path,
        *,
        kept: bool,
        warm_up: bool = False,
        missing: str = "",
    ) -> Contender:
        return Contender(
            f"{name}, login kept" if kept else name,
            argv,
            self.target,
            environment or self.testbed.environment(runtime),
            logins=runtime,
            log_in=not kept,
            warm_up=warm_up,
            missing=missing,
        )


def ssh_transfer(
    testbed: Testbed,
    config: Path,
    source: Path,
    target: FolderTarget,
    *,
    pull: bool = False,
    site: str = "there",
    **settings: Any,
) -> SshTransfer:
    """Configure the site, whose root is the parent of the remote folder, and return the transfer.

    `settings` are those of `Testbed.add_ssh_site`.
    """
    host = testbed.ssh().host
    testbed.add_ssh_site(site, config, host, source.parent if pull else target.root, **settings)
    return SshTransfer(testbed, config, host, site, source, target, pull)
