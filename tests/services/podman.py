"""Run Podman with private storage and a tiny image, without a registry."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tests.services.image import write_image
from tests.services.mounts import unmount_below
from tests.services.processes import (
    MARK,
    SYSTEM_PATH,
    MissingPackageError,
    ServiceError,
    program,
    server_environment,
)

IMAGE = "localhost/hibali-test:1"


@dataclass(frozen=True)
class Podman:
    """Podman, as configured by `env`, with `image` loaded from `archive`; `digest` is its manifest's digest."""

    folder: str
    session: str
    digest: str
    image: str = IMAGE

    @property
    def archive(self) -> Path:
        return Path(self.folder) / "image.tar"

    @property
    def env(self) -> dict[str, str]:
        """Return the variables for local commands; every sshd of these tests sets the same."""
        return {**podman_environment(Path(self.folder)), MARK: f"{self.session}/"}

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `podman` with these arguments and this storage."""
        return subprocess.run(
            ["podman", *words],
            env={"PATH": SYSTEM_PATH, "HOME": self.folder, **self.env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )


def podman_environment(folder: Path) -> dict[str, str]:
    """Return the variables that select podman's configuration in the folder."""
    return {
        "CONTAINERS_CONF": f"{folder}/containers.conf",
        "CONTAINERS_STORAGE_CONF": f"{folder}/storage.conf",
    }


def start_podman(session: Path, folder: Path) -> Podman:
    """Write the configuration and load the image; raise `ServiceError` if podman does not work."""
    program("podman", "podman")
    runc = program("runc", "runc")
    folder.mkdir()
    folder.chmod(0o711)
    (folder / "tmp").mkdir(mode=0o700)
    # runc: crun refuses hybrid control groups. vfs: works on every filesystem. Locks in files: the shared
    # memory segment of Podman is shared by the whole machine. ulimits: those that root may set without CAP_SYS_RESOURCE.
    (folder / "containers.conf").write_text(f"""[containers]
netns = "none"
default_ulimits = ["nofile=1024:4096", "nproc=1024:1024"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "none"
lock_type = "file"
tmp_dir = "{folder}/tmp"
[engine.runtimes]
runc = ["{runc}"]
""")
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "vfs"\nrunroot = "{folder}/run"\ngraphroot = "{folder}/graph"\n'
        f'rootless_storage_path = "{folder}/graph"\n'
    )
    (folder / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    digest = write_tools(folder / "image.tar", IMAGE)
    podman = Podman(folder=str(folder), session=str(session), digest=digest)
    loaded = podman.run("load", "--input", str(podman.archive))
    tried = podman.run("run", "--rm", "--network=none", IMAGE, "true") if loaded.returncode == 0 else loaded
    if tried.returncode != 0:
        raise ServiceError(f"podman does not work here: {tried.stderr[-2000:]}")
    return podman


def write_tools(archive: Path, name: str, more: Mapping[str, bytes] = MappingProxyType({})) -> str:
    """Write an image with a shell, a few tools and `more` files; return its manifest digest."""
    shell = _static_shell().read_bytes()
    applets = (
        "sh cat cp echo env false head id ls mkdir mount mv printf pwd rm sha256sum sleep test touch true wc"
    )
    files = {"bin/busybox": shell, "etc/passwd": b"root:x:0:0:root:/:/bin/sh\n", **more}
    links = {f"bin/{applet}": "busybox" for applet in applets.split()}
    return write_image(archive, name, files, links)


def end_podman(session: Path) -> None:
    """Remove the remaining containers, and unmount podman's filesystems."""
    folder = session / "podman"
    if not (folder / "storage.conf").exists():
        return
    environment = {**server_environment(session), **podman_environment(folder), "HOME": str(folder)}
    _ask(environment, "rm", "--all", "--force", "--time=0")
    if os.geteuid() != 0:  # files of container users can only be deleted inside the user namespace
        _ask(environment, "unshare", "rm", "-rf", f"{folder}/graph", f"{folder}/run")
    unmount_below(folder)


def _ask(environment: dict[str, str], *words: str) -> None:
    """Run podman and ignore failures; the caller removes the rest."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            ["podman", *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=60,
        )


def _static_shell() -> Path:
    """Return the path of a statically linked busybox (Debian's busybox-static)."""
    found = Path(program("busybox", "busybox-static"))
    if b"/ld-" in found.read_bytes()[:4096]:  # the part of an ELF file that has the loader's path
        raise MissingPackageError("busybox is not static: install the package busybox-static")
    return found
