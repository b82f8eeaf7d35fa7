"""A site that is a LORIS: a web server that exchanges a password for a token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.services.loris import LOGIN, LorisServer

IMAGE = "/api/v0.0.3/candidates/400162/V6/images/scan.mnc"
SCAN = b"voxel" * 4000


class Loris:
    """A LORIS as the site `loris`, with hibali's command line."""

    def __init__(self, hibali: Any, server: LorisServer) -> None:
        self.hibali = hibali
        self.server = server
        self.password_file = hibali.home.home / "password.json"
        self.configure(f'credentials_command = ["cat", "{self.password_file}"]')
        self.set_password(server.login[1])

    def configure(self, *lines: str, login_url: str = "") -> None:
        login = login_url or f"{self.server.url}{LOGIN}"
        settings = [f'url = "{self.server.url}/api/v0.0.3"', f'login_url = "{login}"', *lines]
        self.hibali.home.config.write_text("\n".join(["[sites.loris]", 'kind = "url"', *settings, ""]))
        self.hibali.home.config.chmod(0o600)

    def set_password(self, password: str) -> None:
        self.password_file.write_text(f'{{"username": "me", "password": "{password}"}}')
        self.password_file.chmod(0o600)

    def pull(self, target: Path, *, exit: int = 0) -> Any:  # noqa: A002 - the term that users know
        place = f"loris:{IMAGE.removeprefix('/api/v0.0.3/')}"
        return self.hibali("pull", place, target, "--json", exit=exit)

    @property
    def logins(self) -> int:
        return self.server.seen.count(f"POST {LOGIN}")
