"""Start the servers manually: `python -m tests.services up DIR [NAME...]`, `down DIR`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from tests.services.object_store import ObjectStore
from tests.services.processes import MARK, MissingPackageError, ServiceError
from tests.services.session import SERVICES, end_session, ensure, guard, prepare_session

USUAL = ("ssh", "slurm", "object-store", "podman")
USAGE = f"""usage: python -m tests.services up DIR [NAME...]     start servers, print lines to source
       python -m tests.services down DIR             end them and remove DIR
NAMEs: {" ".join(SERVICES)} (without any: {" ".join(USUAL)})"""


def main(words: list[str]) -> int:
    """Run the command line; return 0, 1 when a server does not start, 2 for a usage error."""
    match words:
        case ["up", folder, *names] if all(name in SERVICES for name in names):
            return up(Path(folder).absolute(), names or list(USUAL))
        case ["down", folder] if (Path(folder) / "owner").exists() or not Path(folder).exists():
            end_session(Path(folder).absolute())
        case ["down", folder]:
            print(f"{folder} was not created by `up`", file=sys.stderr)
            return 2
        case ["guard", folder, pid]:
            guard(Path(folder), int(pid))
        case _:
            print(USAGE, file=sys.stderr)
            return 2
    return 0


def up(folder: Path, names: list[str]) -> int:
    """Start the servers that are not running and print their variables."""
    if len(str(folder)) > 60:
        print(
            f"The path {folder} is too long for sockets below it: use at most 60 characters", file=sys.stderr
        )
        return 2
    if not (folder / "owner").exists():
        if folder.exists() and any(folder.iterdir()):
            print(f"{folder} is not empty", file=sys.stderr)
            return 2
        prepare_session(folder)
        (folder / "guarded").touch()  # started manually: they run until `down`
    status = 0
    for name in names:
        try:
            server = ensure(folder, name)
        except (MissingPackageError, ServiceError) as problem:
            print(f"{name}: {problem}", file=sys.stderr)
            status = 1
            continue
        print(f"# {name}")
        for variable, value in variables(name, server).items():
            print(f"export {variable}={shlex.quote(value)}")
    return status


def variables(name: str, server: object) -> dict[str, str]:
    """Return the variables that a user's shell needs for this server."""
    known: dict[str, str] = dict(getattr(server, "env", {}))
    known.pop(MARK, None)  # otherwise `down` would end every process started from the user's shell
    if hasattr(server, "config"):
        known[f"{name.upper().replace('-', '_')}_CONFIG"] = str(server.config)
    for field in ("endpoint", "image", "digest", "archive", "jobcomp"):
        if hasattr(server, field):
            known[f"{name.upper().replace('-', '_')}_{field.upper()}"] = str(getattr(server, field))
    if isinstance(server, ObjectStore):
        known["OBJECT_STORE_BUCKET"] = _bucket(server)
    return known


def _bucket(store: ObjectStore) -> str:
    """Create a bucket unless an earlier `up` created it."""
    client = store.client()
    if "by-hand" not in {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}:
        client.create_bucket(Bucket="by-hand")
    return "by-hand"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
