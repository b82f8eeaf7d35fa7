"""Build a tiny container image without a registry: docker-archive and OCI layout in one reproducible tar."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping
from pathlib import Path

_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def write_image(archive: Path, name: str, files: Mapping[str, bytes], links: Mapping[str, str]) -> str:
    """Write an image with these programs (mode 0755) and symlinks; return its manifest digest, `sha256:...`.

    The format is the OCI image layout 1.0, plus the `manifest.json` of `docker save`.
    """
    layer = _layer(files, links)
    blobs: dict[str, bytes] = {}

    def keep(blob: bytes) -> str:
        digest = hashlib.sha256(blob).hexdigest()
        blobs[digest] = blob
        return digest

    layer_digest = keep(layer)
    config = {
        "architecture": _MACHINES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": {"Env": ["PATH=/bin"], "Cmd": ["/bin/sh"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_digest}"]},
        "history": [{"created": "1970-01-01T00:00:00Z", "created_by": "tests/services/image.py"}],
    }
    config_blob = json.dumps(config, sort_keys=True).encode()
    config_digest = keep(config_blob)
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": _described("config.v1+json", config_digest, config_blob),
        "layers": [_described("layer.v1.tar", layer_digest, layer)],
    }
    manifest_blob = json.dumps(manifest, sort_keys=True).encode()
    digest = keep(manifest_blob)
    index = {
        "mediaType": _MANIFEST,
        "digest": f"sha256:{digest}",
        "size": len(manifest_blob),
        "annotations": {
            "io.containerd.image.name": name,
            "org.opencontainers.image.ref.name": name.rpartition(":")[2],
        },
    }
    saved = {
        "Config": f"blobs/sha256/{config_digest}",
        "RepoTags": [name],
        "Layers": [f"blobs/sha256/{layer_digest}"],
    }
    members = {
        "oci-layout": b'{"imageLayoutVersion":"1.0.0"}',
        "index.json": json.dumps({"schemaVersion": 2, "manifests": [index]}).encode(),
        "manifest.json": json.dumps([saved]).encode(),
        **{f"blobs/sha256/{name}": blob for name, blob in blobs.items()},
    }
    archive.write_bytes(_tar(["blobs", "blobs/sha256"], members, {}, mode=0o644))
    return f"sha256:{digest}"


def _layer(files: Mapping[str, bytes], links: Mapping[str, str]) -> bytes:
    folders = {str(parent) for name in (*files, *links) for parent in Path(name).parents} - {"."}
    return _tar(sorted(folders | {"tmp", "proc", "sys", "dev", "etc"}), files, links, mode=0o755)


def _tar(folders: list[str], files: Mapping[str, bytes], links: Mapping[str, str], *, mode: int) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in folders:
            member = tarfile.TarInfo(name)
            member.type, member.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(member)
        for name in sorted(files):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(files[name]), mode
            tar.addfile(member, io.BytesIO(files[name]))
        for name in sorted(links):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, links[name]
            tar.addfile(member)
    return held.getvalue()


def _described(kind: str, digest: str, blob: bytes) -> dict[str, str | int]:
    return {
        "mediaType": f"application/vnd.oci.image.{kind}",
        "digest": f"sha256:{digest}",
        "size": len(blob),
    }
