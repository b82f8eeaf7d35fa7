"""Configure sites with collections at the Globus double: a laptop, sites with ssh, and sites with Globus only."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.services.globus import Globus, MadeCollection
from tests.support.backends import PARTIAL, FolderBackend, add_site, make_backend
from tests.support.trees import Tree, make_tree, read_tree

SECRET = "GLOBUS_TEST_SECRET"


@dataclass
class GlobusSites:
    """Sites with collections; `here` is the folder that this machine's collection exports, `laptop` that collection."""

    hibali: Any
    globus: Globus
    here: Path
    laptop: MadeCollection
    place: Callable[[str], FolderBackend]
    collections: dict[str, MadeCollection] = field(default_factory=dict)
    roots: dict[str, Path] = field(default_factory=dict)

    def add_ssh(self, name: str) -> Path:
        """Add a site with ssh and Globus; return its root."""
        place = self.place(name)
        made = self.globus.make_collection(place.root, name)
        paths = json.dumps(str(place.root))
        more = f'[sites.{name}.globus]\ncollection = "{made.id}"\npaths = {{ {paths} = "/" }}\n'
        add_site(self.hibali.home.config, name, place, more)
        self.hibali.env.update(place.env)
        self.collections[name], self.roots[name] = made, place.root
        return place.root

    def add_local(self, name: str, root: Path) -> Path:
        """Add a local site with its own collection, as a site with ssh but without a login; return its root."""
        made = self.globus.make_collection(root, name)
        place = FolderBackend("local", root)
        more = (
            f'[sites.{name}.globus]\ncollection = "{made.id}"\npaths = {{ {json.dumps(str(root))} = "/" }}\n'
        )
        add_site(self.hibali.home.config, name, place, more)
        self.collections[name], self.roots[name] = made, root
        return root

    def add_vault(self, folder: Path, *, https: bool = False) -> Path:
        """Add a site with Globus only; return its root folder."""
        name = "readable" if https else "vault"
        made = self.globus.make_collection(folder, name, https=https)
        table = (
            f'[sites.{name}]\nkind = "globus"\nroots = {{ all = "/" }}\ndefault_root = "all"\n'
            f'[sites.{name}.globus]\ncollection = "{made.id}"\nhttps = {str(https).lower()}\n'
        )
        self._write(table)
        self.collections[name], self.roots[name] = made, folder
        return folder

    def _write(self, text: str) -> None:
        with self.hibali.home.config.open("a") as config:
            config.write(text)

    def make(self, tree: Tree, name: str = "data") -> Path:
        return make_tree(self.here / name, tree)

    def move(self, *words: Any, code: int = 0) -> Any:
        """Run `hibali WORDS --json`; check the exit code, also that of the last line."""
        answer = self.hibali(*words, "--json")
        assert answer.exit == code, str(answer)
        assert answer.last["exit"] == code, str(answer)
        assert b"Traceback" not in answer.err, str(answer)
        return answer

    def push(self, *words: Any, code: int = 0, to: str = "far:data") -> Any:
        return self.move("push", self.here / "data", to, *words, code=code)

    def same(self, name: str = "far", folder: str = "data") -> bool:
        """Return whether the site has the same files as the laptop, and none of hibali's own."""
        return read_tree(self.here / "data") == read_tree(self.roots[name] / folder)

    def ours(self, name: str = "far") -> list[bytes]:
        """Return the names of hibali's own files there."""
        found = []
        for folder, folders, files in os.walk(os.fsencode(self.roots[name])):
            names = [each for each in (*folders, *files) if each == b".hibali" or PARTIAL.fullmatch(each)]
            found += [folder + b"/" + each for each in names]
        return found

    def transfers(self) -> list[dict[str, Any]]:
        """Return the transfer tasks submitted to the double, oldest first."""
        return [task for task in self.globus.tasks() if task["type"] == "TRANSFER"]


def globus_sites(hibali: Any, globus: Globus, folder: Path, fixture: Callable[[str], Any]) -> GlobusSites:
    """Return a configuration with a confidential client, and a collection of this machine."""
    here = folder / "laptop"
    laptop = globus.make_collection(here, "laptop", entity_type="GCP_mapped_collection")
    hibali.env |= {**globus.env, SECRET: globus.client_secret}
    hibali.home.config.write_text(
        f'version = 1\n[globus]\nclient_id = "{globus.client_id}"\nsecret_variable = "{SECRET}"\n'
        f'[sites.laptop]\nkind = "local"\nroots = {{ all = {json.dumps(str(here))} }}\n'
        f'[sites.laptop.globus]\ncollection = "{laptop.id}"\npaths = {{ {json.dumps(str(here))} = "/" }}\n'
    )

    def place(name: str) -> FolderBackend:
        made = make_backend("ssh", folder / name, fixture)
        assert isinstance(made, FolderBackend)
        return made

    return GlobusSites(hibali, globus, here, laptop, place)
