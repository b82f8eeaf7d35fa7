"""Create accounts that share a remote, each with its own catalogue."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hibali_plugins.exchange.exchange import Exchanged, fetch, publish
from hibali_plugins.exchange.remotes.base import KnownDigests, Remote, RemoteSpec
from registry.catalogue import Catalogue
from registry.signature import Policy


class Site:
    """An account with its own catalogue."""

    def __init__(
        self, folder: Path, kind: Callable[[RemoteSpec], Remote], url: str, *, history: bool = False
    ) -> None:
        folder.mkdir()
        self.catalogue = Catalogue(folder / "state", history=history)
        self.folder = folder
        self.remote = kind(RemoteSpec("lab", url, folder))
        self.seen = KnownDigests(folder / "seen")
        self.policy = Policy(scratch=folder)

    def publish(self, *references: str) -> dict[str, str]:
        wanted = [self.catalogue.find(each) for each in references] or self.catalogue.all()
        return outcomes(publish(self.catalogue, self.remote, "lab", self.seen, wanted, "somebody"))

    def fetch(self, *names: str, accept_rewritten: bool = False) -> dict[str, str]:
        done = fetch(
            self.catalogue,
            self.remote,
            "lab",
            self.seen,
            names,
            self.policy,
            accept_rewritten=accept_rewritten,
        )
        return outcomes(done)

    def references(self) -> list[str]:
        return [f"{name}@{version}" for name, version in sorted(self.catalogue.pins())]


def outcomes(done: list[Exchanged]) -> dict[str, str]:
    return {each.pipeline.reference: each.result for each in done}
