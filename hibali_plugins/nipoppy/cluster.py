"""Write a site into a study of nipoppy as a cluster, in the form of pysqa, and read it again."""

from __future__ import annotations

import hashlib
import io
import json
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hibali.documents import read_json_file
from hibali.errors import NotFoundError, RefusedError, UsageError
from hibali.files import private_folder, state_folder, write_atomic
from registry.problems import read_file_bytes

FOLDER = "code/hpc"
OWN = "hibali"  # the folder of hibali's files in FOLDER
# What nipoppy renders for each call, as one line of JSON behind this mark (nipoppy 0.4.8, workflows/services/hpc.py).
MARK = "#HIBALI "
_RESOURCES = ("TIME", "MEMORY", "CORES", "ACCOUNT", "PARTITION")
_TEMPLATE = (
    "#!/bin/sh\n# Read by `hibali nipoppy submit`, and never run.\n"
    + MARK
    + '{{ {"cluster": NIPOPPY_HPC, "study": NIPOPPY_DPATH_ROOT|string, "pipeline": NIPOPPY_PIPELINE_NAME,'
    + ' "version": NIPOPPY_PIPELINE_VERSION, "commands": NIPOPPY_COMMANDS, "participants": NIPOPPY_PARTICIPANT_IDS,'
    + ' "preamble": NIPOPPY_HPC_PREAMBLE_STRINGS, "resources": {'
    + ", ".join(f'"{name}": {name}|default("")|string' for name in _RESOURCES)
    + "}} | tojson }}\nexit 1\n"
)
_PROGRAMS = {
    "sbatch": '#!/bin/sh\n# pysqa calls this: `sbatch --parsable SCRIPT`.\nexec hibali nipoppy submit "$2"\n',
    "squeue": "#!/bin/sh\n# pysqa counts queued jobs with this; hibali limits them itself ([limits] queued_jobs).\nexit 0\n",
}


@dataclass(frozen=True, slots=True)
class Cluster:
    """A site as the cluster of a study.

    `folder` is the absolute path of the copy of the study there, `program` starts nipoppy there, and `exclude` are patterns of files
    that are not sent.
    """

    site: str
    folder: str
    program: str = "nipoppy"
    exclude: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """The copy of the study as SITE:PATH."""
        return f"{self.site}:{self.folder}"


def study_folder(study: str) -> Path:
    """Return the private folder of this machine for what it knows of a study, named by its absolute path."""
    digest = hashlib.sha256(study.encode("utf-8", "surrogateescape")).hexdigest()
    return private_folder(private_folder(state_folder() / "nipoppy") / digest[:32])


def write_cluster(study: Path, cluster: Cluster) -> Path:
    """Write the files of a cluster, whose name is that of the site; return the folder with the program `sbatch`.

    Raises:
        NotFoundError: This is no study of nipoppy.
        RefusedError: The study has another cluster of this name.
    """
    known = study / FOLDER / "clusters.yaml"
    if not known.is_file():
        raise NotFoundError(
            "no-nipoppy-study",
            f"it has no {FOLDER}/clusters.yaml, as studies of nipoppy have",
            subject=str(study),
            hint="To begin a study: nipoppy init --dataset DIR",
        )
    folder = study / FOLDER / OWN
    listed = _with_cluster(known, cluster.site)
    if folder.is_symlink():
        raise UsageError(
            "bad-cluster",
            "it is a symlink, and hibali's files would be written elsewhere",
            subject=str(folder),
        )
    folder.mkdir(exist_ok=True)
    for name, text in _PROGRAMS.items():
        write_atomic(folder / name, text.encode())
        (folder / name).chmod(0o755)
    write_atomic(folder / "job.jinja", _TEMPLATE.encode())
    queue = {"queues": {cluster.site: {"script": f"{OWN}/job.jinja"}}}
    pysqa = {"queue_type": "SLURM", "queue_primary": cluster.site, **queue}  # JSON is YAML
    write_atomic(folder / f"{cluster.site}.yaml", json.dumps(pysqa, indent=2).encode() + b"\n")
    # not in the study: nobody who gives a study away decides where the jobs of others run
    write_atomic(_settings_file(study, cluster.site), json.dumps(asdict(cluster), indent=2).encode() + b"\n")
    write_atomic(known, listed)
    return folder


def _with_cluster(path: Path, name: str) -> bytes:
    """Return clusters.yaml with this cluster; its comments stay."""
    from ruamel.yaml import YAML  # start-up: only for this file
    from ruamel.yaml.error import YAMLError  # start-up: only for this file

    yaml, ours = YAML(), f"{OWN}/{name}.yaml"
    try:
        document: Any = yaml.load(read_file_bytes(path))
    except (YAMLError, UnicodeDecodeError):
        document = None
    if not isinstance(document, dict) or not isinstance(document.get("cluster"), dict):
        raise UsageError("bad-cluster", "it has no table `cluster`, as pysqa needs it", subject=str(path))
    if document["cluster"].get(name, ours) != ours:
        raise RefusedError(
            "cluster-exists",
            f"the study has a cluster {name} already, which is not hibali's",
            subject=str(path),
            hint="Rename the site in config.toml, or remove that cluster.",
        )
    document["cluster"][name] = ours
    stream = io.BytesIO()
    yaml.dump(document, stream)
    return stream.getvalue()


def _settings_file(study: Path, name: str) -> Path:
    return study_folder(str(study)) / f"{name}.json"


def read_cluster(study: Path, name: str) -> Cluster:
    """Read a cluster. Raises `NotFoundError` if this account has not set it up for this study, `UsageError` for a damaged file."""
    path, again = _settings_file(study, name), f"hibali nipoppy setup {shlex.quote(str(study))} {name}:FOLDER"
    try:
        found = read_json_file(path)
        return Cluster(**{**found, "exclude": tuple(found["exclude"])})
    except NotFoundError:
        raise NotFoundError(
            "no-nipoppy-study",
            f"on this machine, {name} was not set up for this study",
            subject=str(study),
            hint=f"To do that: {again}",
        ) from None
    except (KeyError, TypeError):
        raise UsageError(
            "bad-cluster", "this file is damaged", subject=str(path), hint=f"To write it again: {again}"
        ) from None
