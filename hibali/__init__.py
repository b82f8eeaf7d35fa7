"""Move data and Boutiques pipelines between sites, verify what arrived, and run pipelines there.

This package is the Python API (docs/python.md) and what all other packages share. The names of the API are imported when
they are used, because the command line needs none of them; `__init__.pyi` declares them for type checkers.
"""

from importlib import import_module

__version__ = "0.1.0"

_API = {
    "hibali.cancellation": ("Cancellation",),
    "hibali.errors": (
        "AccessError",
        "CancelledError",
        "HibaliError",
        "IncompleteError",
        "NotFoundError",
        "NotVerifiedError",
        "OutputsMissingError",
        "RefusedError",
        "RunFailedError",
        "TryLaterError",
        "UsageError",
    ),
    "hibali_api.files": ("du", "ls", "mkdir", "mv", "rm", "stat"),
    "hibali_api.opening": ("open",),
    "hibali_api.progress": ("Progress",),
    "hibali_api.runs": ("Run", "run"),
    "hibali_api.transfers": (
        "IncompleteTransferError",
        "Plan",
        "apply",
        "cp",
        "plan",
        "pull",
        "push",
        "sync",
        "verify",
    ),
}
_MODULES = ("pipelines", "runs", "shares", "sites")
_HOME = {name: module for module, names in _API.items() for name in names}

__all__ = ["__version__", *_HOME, *_MODULES]  # noqa: PLE0604  # all of them are strings


def __getattr__(name: str) -> object:
    """Import a name of the API."""
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    elif name in _MODULES:
        value = import_module(f"hibali_api.{name}")
    else:
        raise AttributeError(f"module 'hibali' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the names of the API."""
    return sorted(__all__)
