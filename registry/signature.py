"""Sign and verify pipelines with ssh keys (ssh-keygen(1), -Y)."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hibali.errors import AccessError, NotFoundError, RefusedError
from hibali.subprocesses import run
from hibali.text import printable
from registry.pipeline import Pipeline

SIGNATURES = "signatures/"
_NAMESPACE = "hibali-pipeline"
_FILE = re.compile(r"signatures/[A-Za-z0-9_-]{1,64}\.sig")
_LARGEST = 16 * 1024


def is_signature_name(name: str) -> bool:
    """Whether a file's name is that of a signature beside a descriptor."""
    return _FILE.fullmatch(name) is not None


def signed_text(pipeline: Pipeline, image: str = "") -> bytes:
    """What is signed: five lines, the last of them the image's digest or nothing."""
    return (
        f"{_NAMESPACE} 1\n{pipeline.name}\n{pipeline.version}\nsha256:{pipeline.digest}\n{image}\n".encode()
    )


def sign(text: bytes, key: Path, scratch: Path, image: str = "") -> tuple[str, bytes]:
    """The file name and content of a signature with this key: a private one, or a public one whose private one an agent holds.

    One that covers an image has a name of its own: one that was made before the image came is not in its way. Raises `NotFoundError`, `AccessError`.
    """
    if not key.exists():
        raise NotFoundError("no-such-key", "there is no such ssh key", subject=str(key))
    message = scratch / secrets.token_hex(16)
    signature = message.with_suffix(".sig")
    try:
        message.write_bytes(text)
        words = ["ssh-keygen", "-Y", "sign", "-q", "-n", _NAMESPACE, "-f", str(key), str(message)]
        finished = run(words, foreground=True)
        if finished.exit_code != 0 or not signature.exists():
            said = printable(finished.stderr.strip()[-300:])
            raise AccessError("not-signed", f"ssh-keygen could not sign: {said}", subject=str(key))
        covered = f"-{image.removeprefix('sha256:')[:16]}" if image else ""
        return f"{SIGNATURES}{_fingerprint(key)}{covered}.sig", signature.read_bytes()
    finally:
        message.unlink(missing_ok=True)
        signature.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Policy:
    """Whose signatures count, by an allowed_signers file, and whether one is needed."""

    allowed_signers: Path | None = None
    required: bool = False
    scratch: Path = Path()

    def check(
        self, pipeline: Pipeline, signatures: Mapping[str, bytes], subject: str, image: str = ""
    ) -> str:
        """Who signed it, "" for nobody; raises `RefusedError` where nobody did whose word counts and one is required."""
        who = self._first_signer(pipeline, signatures, image)
        if self.required and not who:
            reason = "its signature is of none whose word counts here" if signatures else "it is not signed"
            if image and self._first_signer(pipeline, signatures, ""):
                reason = "its signature does not cover the image that was added later"
            raise RefusedError(
                "unsigned",
                f"{reason}, and config.toml asks for a signature",
                subject=subject,
                hint=f"Who may sign stands in {self.allowed_signers}; `hibali pipelines sign NAME --key KEY` signs.",
            )
        return who

    def _first_signer(self, pipeline: Pipeline, signatures: Mapping[str, bytes], image: str) -> str:
        found = (self._signer(pipeline, file, raw, image) for file, raw in signatures.items())
        return next(filter(None, found), "")

    def _signer(self, pipeline: Pipeline, file: str, raw: bytes, image: str) -> str:
        """The principal of a good signature by somebody who is allowed to, "" for any other."""
        if self.allowed_signers is None or not is_signature_name(file) or len(raw) > _LARGEST:
            return ""
        path = self.scratch / f"{secrets.token_hex(16)}.sig"
        try:
            path.write_bytes(raw)
            allowed, text = str(self.allowed_signers), signed_text(pipeline, image)
            found = run(["ssh-keygen", "-Y", "find-principals", "-s", str(path), "-f", allowed])
            for who in found.stdout.decode("utf-8", "replace").splitlines() if found.exit_code == 0 else ():
                words = [
                    "ssh-keygen",
                    "-Y",
                    "verify",
                    "-f",
                    allowed,
                    "-I",
                    who,
                    "-n",
                    _NAMESPACE,
                    "-s",
                    str(path),
                ]
                if run(words, stdin=text).exit_code == 0:
                    return who
            return ""
        finally:
            path.unlink(missing_ok=True)


def _fingerprint(key: Path) -> str:
    """Of the public key, as a file's name."""
    finished = run(["ssh-keygen", "-l", "-f", str(key)])
    found = re.search(rb"SHA256:([A-Za-z0-9+/]+)", finished.stdout)
    if finished.exit_code != 0 or found is None:
        raise AccessError("bad-key", "ssh-keygen cannot read this key", subject=str(key))
    return found[1].decode().replace("+", "-").replace("/", "_")
