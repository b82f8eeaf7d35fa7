"""Sign and verify pipelines with ssh keys (ssh-keygen(1), -Y)."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hibali.config.model import CatalogueSettings
from hibali.errors import AccessError, NotFoundError, RefusedError
from hibali.files import private_folder, state_folder
from hibali.plugins import if_offered
from hibali.subprocesses import run
from hibali.text import printable
from registry.pipeline import Pipeline

SIGNATURES = "signatures/"
_NAMESPACE = "hibali-pipeline"
_FILE = re.compile(r"signatures/[A-Za-z0-9_-]{1,64}\.sig")
_LARGEST = 16 * 1024


def is_signature_name(name: str) -> bool:
    """Return whether a file name is that of a signature."""
    return _FILE.fullmatch(name) is not None


def signed_text(pipeline: Pipeline, image: str = "") -> bytes:
    """Return the signed text: five lines, the last one the image's digest or empty."""
    return (
        f"{_NAMESPACE} 1\n{pipeline.name}\n{pipeline.version}\nsha256:{pipeline.digest}\n{image}\n".encode()
    )


def sign(text: bytes, key: Path, scratch: Path, image: str = "") -> tuple[str, bytes]:
    """Sign with a private key, or with a public one whose private key an agent holds; return file name and content.

    A signature that covers an image has another name than one made before the image was added. Raises `NotFoundError`, `AccessError`.
    """
    if not key.exists():
        raise NotFoundError("no-such-key", "the ssh key does not exist", subject=str(key))
    message = scratch / secrets.token_hex(16)
    signature = message.with_suffix(".sig")
    try:
        message.write_bytes(text)
        argv = ["ssh-keygen", "-Y", "sign", "-q", "-n", _NAMESPACE, "-f", str(key), str(message)]
        finished = run(argv, foreground=True)
        if finished.exit_code != 0 or not signature.exists():
            stderr = printable(finished.stderr.strip()[-300:])
            raise AccessError("not-signed", f"ssh-keygen could not sign: {stderr}", subject=str(key))
        covered = f"-{image.removeprefix('sha256:')[:16]}" if image else ""
        return f"{SIGNATURES}{_fingerprint(key)}{covered}.sig", signature.read_bytes()
    finally:
        message.unlink(missing_ok=True)
        signature.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Policy:
    """The accepted signers, from an allowed_signers file, and whether a signature is required."""

    allowed_signers: Path | None = None
    required: bool = False
    scratch: Path = Path()

    def check(
        self, pipeline: Pipeline, signatures: Mapping[str, bytes], subject: str, image: str = ""
    ) -> str:
        """Return the signer, "" for none; raises `RefusedError` where an accepted signature is required and missing."""
        signer = self._first_signer(pipeline, signatures, image)
        if self.required and not signer:
            reason = "none of its signers is in allowed_signers" if signatures else "it is not signed"
            if image and self._first_signer(pipeline, signatures, ""):
                reason = "its signature does not cover the image that was added later"
            sign = if_offered("pipelines.sign", " To sign: hibali pipelines sign NAME --key KEY")
            raise RefusedError(
                "unsigned",
                f"{reason}, but config.toml requires a signature",
                subject=subject,
                hint=f"{self.allowed_signers} lists the accepted signers.{sign}",
            )
        return signer

    def _first_signer(self, pipeline: Pipeline, signatures: Mapping[str, bytes], image: str) -> str:
        found = (self._signer(pipeline, file, raw, image) for file, raw in signatures.items())
        return next(filter(None, found), "")

    def _signer(self, pipeline: Pipeline, file: str, raw: bytes, image: str) -> str:
        """Return the principal of a valid signature by an allowed signer, "" for any other."""
        if self.allowed_signers is None or not is_signature_name(file) or len(raw) > _LARGEST:
            return ""
        path = self.scratch / f"{secrets.token_hex(16)}.sig"
        try:
            path.write_bytes(raw)
            allowed, text = str(self.allowed_signers), signed_text(pipeline, image)
            found = run(["ssh-keygen", "-Y", "find-principals", "-s", str(path), "-f", allowed])
            for signer in (
                found.stdout.decode("utf-8", "replace").splitlines() if found.exit_code == 0 else ()
            ):
                argv = [
                    "ssh-keygen",
                    "-Y",
                    "verify",
                    "-f",
                    allowed,
                    "-I",
                    signer,
                    "-n",
                    _NAMESPACE,
                    "-s",
                    str(path),
                ]
                if run(argv, stdin=text).exit_code == 0:
                    return signer
            return ""
        finally:
            path.unlink(missing_ok=True)


def _fingerprint(key: Path) -> str:
    """Return the fingerprint of the public key, as a file name."""
    finished = run(["ssh-keygen", "-l", "-f", str(key)])
    found = re.search(rb"SHA256:([A-Za-z0-9+/]+)", finished.stdout)
    if finished.exit_code != 0 or found is None:
        raise AccessError("bad-key", "ssh-keygen cannot read this key", subject=str(key))
    return found[1].decode().replace("+", "-").replace("/", "_")


def policy_of(settings: CatalogueSettings) -> Policy:
    """Return the configured policy of signatures."""
    allowed = Path(settings.allowed_signers).expanduser() if settings.allowed_signers else None
    return Policy(allowed, settings.require_signatures, private_folder(state_folder() / "catalogue-partial"))
