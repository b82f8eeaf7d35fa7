"""Move data and Boutiques pipelines between sites, verify what arrived, and run pipelines there.

This package is the Python API (docs/python.md) and what all other packages share. The names of the API are imported when
they are used, because the command line needs none of them; `__init__.pyi` declares them for type checkers.
"""

import os
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
    "hibali_api.calls": ("CallOptions",),
    "hibali_api.files": ("du", "ls", "mkdir", "mv", "rm", "stat"),
    "hibali_api.progress": ("progress",),
    "hibali_api.runs": ("JobOptions", "Run", "run"),
    "hibali_api.transfer_request": ("ApplyOptions", "PlanOptions", "TransferOptions", "VerifyOptions"),
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
_MODULES = ("pipelines", "runs", "sites")
_HOME = {name: module for module, names in _API.items() for name in names}


def __getattr__(name: str) -> object:
    """Import a name of the API, which plugins extend (`hibali.api`)."""
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    elif name in _MODULES:
        value = import_module(f"hibali_api.{name}")
    elif name == "__all__":
        value = ["__version__", *_HOME, *_MODULES, *import_module("hibali.plugins").names_of("hibali.api")]
    else:
        value = None if _is_no_name(name) else import_module("hibali.plugins").find("hibali.api", name)
        if value is None:
            raise AttributeError(f"module 'hibali' has no attribute {name!r}")
    globals()[name] = value
    return value


def _is_no_name(name: str) -> bool:
    """Return whether a name is private or a module of this package: `from hibali import MODULE` asks here first."""
    modules = (each.removesuffix(".py") for each in os.listdir(__path__[0]))  # noqa: PTH208  # start-up
    return name.startswith("_") or name in modules


def __dir__() -> list[str]:
    """Return the names of the API."""
    names = __getattr__("__all__")
    assert isinstance(names, list)
    return sorted(names)
