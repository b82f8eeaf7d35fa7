"""Print what roc-validator reports about a crate, as JSON: `python validate_crate.py CRATE.zip CONTEXT.json`.

Runs in .cache/crates. The crate's context is on the web, which tests do not use: CONTEXT.json has its terms
and comes with the library that writes the crate.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import requests
from rocrate_validator import services
from rocrate_validator.models import Severity, ValidationSettings
from rocrate_validator.utils.http import HttpRequester

PROFILE = "process-run-crate"


def main(crate: str, context: str) -> None:
    """Print the severity, check, message and entity of every issue."""
    answer = requests.Response()
    answer.status_code = 200
    answer.headers["Content-Type"] = "application/ld+json"
    answer._content = Path(context).read_bytes()

    def get(self: HttpRequester, url: str, **more: Any) -> requests.Response:
        del self, more
        if "w3id.org/ro/crate/" not in url:
            raise requests.ConnectionError(f"tests do not go to {url}")
        return answer

    HttpRequester.get = get
    found = services.validate(
        ValidationSettings(
            rocrate_uri=crate, profile_identifier=PROFILE, requirement_severity=Severity.RECOMMENDED
        )
    )
    issues = [
        {
            "severity": each.severity.name,
            "check": each.check.identifier,
            "message": each.message,
            "entity": str(each.violatingEntity),
        }
        for each in found.get_issues(Severity.OPTIONAL)
    ]
    print(json.dumps({"issues": issues}))


if __name__ == "__main__":
    main(*sys.argv[1:])
