"""Write hibali's bill of materials and licence list from requirements.lock: `python packaging/sbom.py [--check]`."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tomllib
import uuid
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageMetadata, distribution
from pathlib import Path
from typing import Any, NamedTuple

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CLONE = Path(__file__).resolve().parents[1]
FILES = ("packaging/sbom.cdx.json", "packaging/LICENCES.md")


class Package(NamedTuple):
    """One package at its locked version; `needs` are the names of its direct dependencies, `registry` is where it is from."""

    name: str
    version: str
    licence: str
    home: str
    needs: tuple[str, ...]
    registry: str = "pypi"


def read_lock() -> dict[str, str]:
    """Return the locked versions by canonical package name."""
    text = (CLONE / "requirements.lock").read_text("ascii")
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", text, re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


def find_packages(project: Mapping[str, Any], lock: Mapping[str, str]) -> list[Package]:
    """Find all runtime dependencies of hibali, sorted by name.

    Raises:
        SystemExit: An installed version differs from the lock, or a licence is unknown or not accepted.
    """
    rules = tomllib.loads((CLONE / "packaging/licences.toml").read_text("utf-8"))
    found: dict[str, Package] = {}
    queue = sorted(_needed(project["dependencies"], frozenset()))
    while queue:
        name, extras = queue.pop()
        if name in found and not extras:
            continue
        installed = distribution(name)
        if installed.version != lock.get(name):
            sys.exit(
                f"{name}: version {installed.version} is installed, but requirements.lock has {lock.get(name)}"
            )
        below = sorted(_needed(installed.requires or (), extras))
        needs = sorted({each for each, _ in below} | set(found[name].needs if name in found else ()))
        licence = _licence_of(name, installed.metadata, rules)
        found[name] = Package(name, installed.version, licence, _home_of(installed.metadata), tuple(needs))
        queue += [each for each in below if each[0] not in found or each[1]]
    return sorted([*found.values(), *_vendored(rules)])


def _vendored(rules: Mapping[str, Any]) -> Iterator[Package]:
    """Yield the packages whose files are in hibali's wheel. Raises `SystemExit` for a file that is not the named one."""
    for each in rules["vendored"]:
        digest = hashlib.sha256((CLONE / each["file"]).read_bytes()).hexdigest()
        if digest != each["sha256"] or each["licence"] not in rules["accepted"]:
            sys.exit(f"{each['file']} is not the file of {each['name']} in packaging/licences.toml")
        yield Package(each["name"], each["version"], each["licence"], each["home"], (), "npm")


def _needed(lines: Any, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    for line in lines:
        wanted = Requirement(line)
        marker = wanted.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras or {""}):
            yield canonicalize_name(wanted.name), frozenset(wanted.extras)


def _licence_of(name: str, metadata: PackageMetadata, rules: Mapping[str, Any]) -> str:
    """Return the SPDX expression from packaging/licences.toml, or else from the package's metadata."""
    looked_up = rules["looked-up"].get(name)
    declared = str(looked_up or _field(metadata, "License-Expression") or _field(metadata, "License"))
    try:
        licence = str(canonicalize_license_expression(declared.strip()))
    except InvalidLicenseExpression:
        sys.exit(
            f"{name}: {declared[:60]!r} is not an SPDX expression. Add its licence to packaging/licences.toml."
        )
    unknown = set(re.findall(r"[^\s()]+", licence)) - {"AND", "OR", "WITH"} - set(rules["accepted"])
    if unknown:
        sys.exit(f"{name}: licence {', '.join(sorted(unknown))} is not accepted in packaging/licences.toml")
    return licence


def _home_of(metadata: PackageMetadata) -> str:
    urls = dict(line.split(", ", 1) for line in metadata.get_all("Project-URL") or () if ", " in line)
    lowered = {name.lower(): url for name, url in urls.items()}
    named = next(
        (lowered[word] for word in ("homepage", "home", "repository", "source") if word in lowered), ""
    )
    return _field(metadata, "Home-page") or named


def _field(metadata: PackageMetadata, name: str) -> str:
    return str(metadata[name]) if name in metadata else ""


def make_bom(project: Mapping[str, Any], packages: list[Package]) -> str:
    """Render CycloneDX 1.6 as JSON; equal input gives identical output."""
    known = {package.name for package in packages}
    root = "pkg:pypi/hibali"
    bom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": root,
                "name": "hibali",
                "description": project["description"],
                "licenses": [{"expression": project["license"]}],
                "purl": root,
            }
        },
        "components": [
            {
                "type": "library",
                "bom-ref": _reference(package),
                "name": package.name,
                "version": package.version,
                "licenses": [{"expression": package.licence}],
                "purl": _reference(package),
                **(
                    {"externalReferences": [{"type": "website", "url": package.home}]} if package.home else {}
                ),
            }
            for package in packages
        ],
        "dependencies": [
            {
                "ref": root,
                "dependsOn": _references(
                    packages, {name for name, _ in _needed(project["dependencies"], frozenset())}
                ),
            },
            *(
                {"ref": _reference(package), "dependsOn": _references(packages, known & set(package.needs))}
                for package in packages
            ),
        ],
    }
    text = json.dumps(bom, sort_keys=True)
    bom["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, text)}"
    return json.dumps(bom, indent=1, ensure_ascii=True) + "\n"


def _reference(package: Package) -> str:
    return f"pkg:{package.registry}/{package.name}@{package.version}"


def _references(packages: list[Package], names: set[str]) -> list[str]:
    return [_reference(package) for package in packages if package.name in names]


def make_list(packages: list[Package]) -> str:
    """Render the licence list as Markdown."""
    lines = [
        "# Dependencies of hibali and their licences",
        "",
        "Written by `make sbom` from requirements.lock: all packages that are installed with hibali or are in its wheel, without those of its tests. hibali itself is licensed under Apache-2.0.",
        "",
        "| package | version | licence |",
        "|---|---|---|",
    ]
    for package in packages:
        name = f"[{package.name}]({package.home})" if package.home.startswith("http") else package.name
        lines.append(f"| {name} | {package.version} | {package.licence} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Write both files; with `--check` only report which are out of date, with exit code 1 if any is."""
    project = tomllib.loads((CLONE / "pyproject.toml").read_text("utf-8"))["project"]
    packages = find_packages(project, read_lock())
    rendered = dict(zip(FILES, (make_bom(project, packages), make_list(packages)), strict=True))
    stale = [name for name, text in rendered.items() if not _is_current(CLONE / name, text)]
    if arguments != ["--check"]:
        for name in stale:
            (CLONE / name).write_text(rendered[name], "utf-8")
        return 0
    for name in stale:
        sys.stderr.write(f"{name} is out of date. To update it: make sbom\n")
    return 1 if stale else 0


def _is_current(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text("utf-8") == text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
