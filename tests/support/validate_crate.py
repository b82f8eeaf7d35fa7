"""Print what roc-validator reports about a crate, as JSON: `python validate_crate.py CRATE.zip CONTEXT.json PROFILE`.

Runs in .cache/crates. The crate's context is on the web, which tests do not use: CONTEXT.json has its terms
and comes with the library that writes the crate, which has those of a later version.
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

_TERMS_OF_1_1 = {
    "ComputationalWorkflow": "https://bioschemas.org/ComputationalWorkflow",
    "FormalParameter": "https://bioschemas.org/FormalParameter",
    "input": "https://bioschemas.org/ComputationalWorkflow#input",
    "output": "https://bioschemas.org/ComputationalWorkflow#output",
}


def main(crate: str, context: str, profile: str) -> None:
    """Print the severity, check, message and entity of every issue."""
    answer = requests.Response()
    answer.status_code = 200
    answer.headers["Content-Type"] = "application/ld+json"
    terms = json.loads(Path(context).read_bytes())
    terms["@context"] |= _TERMS_OF_1_1
    answer._content = json.dumps(terms).encode()

    def get(self: HttpRequester, url: str, **more: Any) -> requests.Response:
        del self, more
        if "w3id.org/ro/crate/" not in url:
            raise requests.ConnectionError(f"tests do not go to {url}")
        return answer

    HttpRequester.get = get
    found = services.validate(
        ValidationSettings(
            rocrate_uri=crate, profile_identifier=profile, requirement_severity=Severity.RECOMMENDED
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
