"""Run podman-hpc of .cache/podman-hpc, with stores of its own."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.services.podman import write_tools
from tests.services.processes import MissingPackageError, program
from tests.services.session import REPOSITORY
from tests.support.requirements import require_prepared, skip_or_fail

PROGRAMS = REPOSITORY / ".cache" / "podman-hpc" / "bin"
# Debian's mksquashfs is not static, and before 4.6 has no -xattrs-exclude: a script in its place calls that in the image
_MKSQUASHFS = '#!/bin/sh\nexec /bin/mksquashfs "$1" "$2" -no-progress -comp lz4 -e proc sys dev sqout mksq\n'


def podman_hpc_environment(folder: Path, path: str) -> dict[str, str]:
    """Return the variables with which podman-hpc has its stores in the folder; skip the test where it is not prepared."""
    require_prepared(PROGRAMS / "podman-hpc", "podman-hpc")
    try:
        runc = program("runc", "runc")
        for name, package in (("fuse-overlayfs", "fuse-overlayfs"), ("squashfuse_ll", "squashfuse")):
            program(name, package)
        program("inotifywait", "inotify-tools")
    except MissingPackageError as problem:
        skip_or_fail(str(problem))
    for name in ("hooks", "modules", "tmp"):
        (folder / name).mkdir(parents=True)
    (folder / "mksquashfs").write_text(_MKSQUASHFS)
    (folder / "mksquashfs").chmod(0o755)
    # see tests/services/podman.py
    (folder / "containers.conf").write_text(
        '[containers]\nnetns = "none"\ndefault_ulimits = ["nofile=1024:4096", "nproc=1024:1024"]\n'
        '[engine]\nruntime = "runc"\nevents_logger = "none"\nlock_type = "file"\n'
        f'tmp_dir = "{folder}/tmp"\n[engine.runtimes]\nrunc = ["{runc}"]\n'
    )
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "overlay"\nrunroot = "{folder}/run"\ngraphroot = "{folder}/graph"\n'
    )
    return {
        "PATH": f"{PROGRAMS}:{path}",
        "USER": "someone",  # asked for where nobody is logged in
        "CONTAINERS_CONF": f"{folder}/containers.conf",
        "CONTAINERS_STORAGE_CONF": f"{folder}/storage.conf",
        "SQUASH_DIR": f"{folder}/squash",
        "PODMANHPC_GRAPH_ROOT": f"{folder}/graph",
        "PODMANHPC_RUN_ROOT": f"{folder}/run",
        "PODMANHPC_CONFIG_HOME": f"{folder}/config",
        "PODMANHPC_HOOKS_DIR": f"{folder}/hooks",
        "PODMANHPC_MODULES_DIR": f"{folder}/modules",
        "PODMANHPC_MKSQUASHFS_BIN": f"{folder}/mksquashfs",
    }


def write_tools_with_mksquashfs(archive: Path, name: str) -> None:
    """Write an image with mksquashfs, which `podman-hpc migrate` starts in it, and its libraries."""
    real = Path(program("mksquashfs", "squashfs-tools"))
    listed = subprocess.run(["ldd", str(real)], capture_output=True, text=True, check=True).stdout
    paths = {Path(found) for found in re.findall(r"(/\S+) \(0x", listed)}
    [libc] = (path for path in paths if path.name == "libc.so.6")
    paths.add(libc.with_name("libgcc_s.so.1"))  # which libpthread loads when a thread ends
    files = {str(path).lstrip("/"): path.read_bytes() for path in paths}
    write_tools(archive, name, {"bin/mksquashfs": real.read_bytes(), **files})
