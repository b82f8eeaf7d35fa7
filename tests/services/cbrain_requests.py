"""List the requests that the double of a CBRAIN portal accepts, with the names of their parameters.

They follow the swagger document 7.0.0 of aces/cbrain, and what the recorded requests of its own tests
(`BrainPortal/test_api/req_files`, as of 2025) send: sessions, userfiles 00 to 13, data_providers, groups, tools,
tool_configs, tasks 0 to 4. `tool_configs/ID/boutiques_descriptor` and `background_activities/ID` are in the portal's controllers only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_PAGES = frozenset({"page", "per_page"})
_TASK = frozenset(
    {
        "tool_config_id",
        "bourreau_id",
        "user_id",
        "group_id",
        "results_data_provider_id",
        "description",
        "params",
    }
)
_USERFILE = frozenset(
    {"name", "size", "type", "group_id", "group_writable", "num_files", "hidden", "immutable", "description"}
)


@dataclass(frozen=True)
class Allowed:
    """One kind of request: the names of its query and its body; `inner` are names inside a member."""

    method: str
    path: str
    query: frozenset[str] = frozenset()
    body: frozenset[str] = frozenset()
    form: bool = False
    inner: tuple[str, frozenset[str]] = ("", frozenset())

    def matches(self, method: str, path: str) -> bool:
        return method == self.method and re.fullmatch(self.path, path) is not None

    def unexpected(self, query: Iterable[str], body: Mapping[str, Any]) -> list[str]:
        """Return the names that the API does not know for this request."""
        found = [name for name in query if name not in self.query]
        found += [name for name in body if name not in self.body]
        member, names = self.inner
        if member and isinstance(body.get(member), dict):
            found += [f"{member}[{name}]" for name in body[member] if name not in names]
        return found


_REGISTERED = frozenset({"basenames", "filetypes", "as_user_id", "other_group_id", "delete", "browse_path"})
ALLOWED = (
    Allowed("POST", "/session", body=frozenset({"login", "password"}), form=True),
    Allowed("GET", "/session"),
    Allowed("DELETE", "/session"),
    Allowed("GET", "/groups", _PAGES),
    Allowed("GET", "/userfiles", _PAGES),
    Allowed(
        "POST",
        "/userfiles",
        body=frozenset(
            {
                "upload_file",
                "data_provider_id",
                "userfile[group_id]",
                "file_type",
                "_do_extract",
                "_up_ex_mode",
            }
        ),
        form=True,
    ),
    Allowed("GET", "/userfiles/[0-9]+"),
    Allowed("PUT", "/userfiles/[0-9]+", body=frozenset({"userfile"}), inner=("userfile", _USERFILE)),
    Allowed("GET", "/userfiles/[0-9]+/content"),
    Allowed("POST", "/userfiles/download", body=frozenset({"file_ids", "specified_filename"})),
    Allowed("POST", "/userfiles/sync_multiple", body=frozenset({"file_ids", "operation"})),
    Allowed("DELETE", "/userfiles/delete_files", body=frozenset({"file_ids"})),
    Allowed("GET", "/data_providers", _PAGES),
    Allowed("GET", "/data_providers/[0-9]+"),
    Allowed("GET", "/data_providers/[0-9]+/is_alive"),
    Allowed("POST", "/data_providers/[0-9]+/register", body=_REGISTERED),
    Allowed("GET", "/background_activities/[0-9]+"),
    Allowed("GET", "/tools", _PAGES),
    Allowed("GET", "/tool_configs", _PAGES),
    Allowed("GET", "/tool_configs/[0-9]+/boutiques_descriptor"),
    Allowed("GET", "/tasks", _PAGES),
    Allowed("GET", "/tasks/[0-9]+"),
    Allowed("POST", "/tasks", body=frozenset({"cbrain_task"}), inner=("cbrain_task", _TASK)),
    Allowed("POST", "/tasks/operation", body=frozenset({"operation", "tasklist", "batch_ids"})),
)


def allowed(method: str, path: str) -> Allowed | None:
    """Return the entry of a request, or None if the API does not have it."""
    return next((each for each in ALLOWED if each.matches(method, path)), None)
