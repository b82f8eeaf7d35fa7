"""The contenders of a transfer over ssh: hibali, rsync, scp and tar, with and without their logins."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.case import Contender, FolderTarget
from benchmarks.stage import HIBALI, Stage, peer_or_reason

FAST_CIPHER = ("-c", "aes128-gcm@openssh.com")


@dataclass(frozen=True)
class Way:
    """From `source` to folders below `target`, through `site`, of which `host` is ssh's name."""

    stage: Stage
    config: Path
    host: str
    site: str
    source: Path
    target: FolderTarget
    pull: bool = False

    def _logins(self, *, kept: bool, who: str) -> Path:
        return self.stage.runtime(f"{who}-kept" if kept else who)

    def hibali(self, *, kept: bool = False, more: Mapping[str, str] | None = None) -> Contender:
        """The command as a user configures it, with `more` in its environment."""
        runtime = self._logins(kept=kept, who="h")

        def words(place: str) -> list[str]:
            here, there = self._ends(place)
            host = f"{self.site}:{there.name}"
            ends = [host, str(here)] if self.pull else [str(here), host]
            return [*HIBALI, "pull" if self.pull else "push", "--quiet", *ends]

        environment = {**self.stage.environment(runtime), **(more or {})}
        return self._contender("hibali", words, environment, runtime, kept=kept, warm_up=kept)

    def rsync(self, *more: str, cipher: bool = False, kept: bool = False) -> Contender:
        """`rsync -a`."""
        program, missing = peer_or_reason("rsync")
        runtime = self._logins(kept=kept, who="p")

        def words(place: str) -> list[str]:
            shell = shlex.join(self._ssh(runtime, cipher=cipher, kept=kept))
            here, there = self._ends(place)
            host = f"{self.host}:{there}/"
            ends = [host, f"{here}/"] if self.pull else [f"{here}/", host]
            return [program, "-a", *more, "-e", shell, *ends]

        name = " ".join(["rsync", *more]) + (", aes128-gcm" if cipher else "")
        return self._contender(name, words, None, runtime, kept=kept, missing=missing)

    def scp(self, *, cipher: bool = False, kept: bool = False) -> Contender:
        """`scp`, of the one file that the source holds."""
        program, missing = peer_or_reason("scp")
        runtime = self._logins(kept=kept, who="p")
        file = next(path.name for path in self.source.iterdir())

        def words(place: str) -> list[str]:
            _, *options = self._ssh(runtime, cipher=cipher, kept=kept)
            here, there = self._ends(place)
            ends = [f"{self.host}:{there}/{file}", f"{here}/"]
            if not self.pull:
                ends = [f"{here}/{file}", f"{self.host}:{there}/"]
            return [program, "-q", *options, *ends]

        name = "scp, aes128-gcm" if cipher else "scp"
        return self._contender(name, words, None, runtime, kept=kept, missing=missing)

    def tar(self, *, kept: bool = False) -> Contender:
        """`tar | ssh tar`, which verifies nothing."""
        program, missing = peer_or_reason("tar")
        runtime = self._logins(kept=kept, who="p")

        def words(place: str) -> list[str]:
            here, there = self._ends(place)
            shell = shlex.join([*self._ssh(runtime, cipher=False, kept=kept), self.host])
            read, write = f"{program} -C %s -cf - .", f"{program} -C %s -xf -"
            line = f"{read % here} | {shell} '{write % there}'"
            if self.pull:
                line = f"{shell} '{read % there}' | {write % here}"
            return ["bash", "-o", "pipefail", "-c", line]

        return self._contender("tar over ssh", words, None, runtime, kept=kept, missing=missing)

    def _ends(self, place: str) -> tuple[Path, Path]:
        """The folder here and the folder there."""
        target = self.target.root / place
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
                env=self.stage.environment(),
            )
        return base

    def _contender(
        self,
        name: str,
        words: Callable[[str], Sequence[str]],
        environment: dict[str, str] | None,
        runtime: Path,
        *,
        kept: bool,
        warm_up: bool = False,
        missing: str = "",
    ) -> Contender:
        return Contender(
            f"{name}, login kept" if kept else name,
            words,
            self.target,
            environment or self.stage.environment(runtime),
            logins=runtime,
            log_in=not kept,
            warm_up=warm_up,
            missing=missing,
        )


def way_to(
    stage: Stage, config: Path, source: Path, target: FolderTarget, *, pull: bool = False, logins: int = 1
) -> Way:
    """A way from or to a site whose root is the folder above what lies there."""
    host, site = stage.ssh().host, "there"
    stage.add_ssh_site(site, config, host, source.parent if pull else target.root, logins=logins)
    return Way(stage, config, host, site, source, target, pull)
