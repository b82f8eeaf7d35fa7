"""Parse SITE:PATH as users write it; globs and variables are not expanded."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from hibali.config.kinds import kind_of, unconfigured_site
from hibali.config.model import Site, local_site
from hibali.config.settings import Settings, require_built
from hibali.errors import RefusedError, UsageError
from hibali.text import nearest

_VARIABLE = re.compile(r"\$(?:[A-Za-z_]|\{)")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HERE = local_site()


@dataclass(frozen=True, slots=True)
class Location:
    """A location: `path` is absolute, or begins with `~/`, `~` or `$NAME`, which the remote host expands.

    Names that are not UTF-8 are surrogate escapes in `path` and `text`; `raw` has the bytes. At an object
    store `bucket` is set and `path` is the whole key without slashes around it, "" for the bucket itself.
    `slash` is true if PATH ended in one, was omitted, or is only `~` or a root; `typed_local` if no site was
    named; `confined` if hibali may delete there, so that symlinks must not lead out of the site's configured
    root. `roots` are those of all local sites, if no site was named. `through` is where the files are, if
    that is at another site. `logins` are the web servers with a login, for the contents of a dataset on this
    machine. With `exact_key`, `path` is the key of one object as it is, also if it cannot be a path.
    """

    site: Site
    path: str
    text: str
    slash: bool = False
    read_only: bool = False
    bucket: str | None = None
    typed_local: bool = False
    confined: bool = False
    roots: tuple[str, ...] = ()
    through: Location | None = None
    logins: tuple[Site, ...] = ()
    exact_key: bool = False

    @property
    def raw(self) -> bytes:
        """The bytes of `path`."""
        return self.path.encode("utf-8", "surrogateescape")

    @property
    def name(self) -> bytes:
        """The last component in bytes; empty for a root. An exact key has one component."""
        return self.raw if self.exact_key else self.raw.rpartition(b"/")[2]

    @property
    def parent(self) -> Location:
        """The parent folder; a root, also `~` or a variable alone, is its own parent."""
        above = "" if self.exact_key else self.path.rstrip("/").rpartition("/")[0]
        if self.bucket is None:
            above = above or ("/" if self.path.startswith("/") else self.path)
        through = self.through.parent if self.through is not None and above else None
        return replace(self, path=above, slash=True, through=through)

    def child(self, name: bytes) -> Location:
        """Return the location of that name in this folder."""
        shown = name.decode("utf-8", "surrogateescape")
        path = f"{self.path.rstrip('/')}/{shown}" if self.path or self.bucket is None else shown
        through = None if self.through is None else self.through.child(name)
        slash = "" if self.text.endswith("/") or (self.text.endswith(":") and not self.typed_local) else "/"
        return replace(self, path=path, text=self.text + slash + shown, slash=False, through=through)


def read_key(text: str, settings: Settings) -> Location:
    """Parse SITE:KEY, or without a bucket of the site SITE:BUCKET/KEY; the key may be no path, as `a//b`.

    Raises `UsageError` for another site than an object store, and for `.` and `..`, which URLs cannot have.
    """
    typed = settings.with_site(os.fsencode(text).decode("utf-8", "surrogateescape"))
    name, colon, path = typed.partition(":")
    site = settings.sites.get(name) if colon else None
    if site is None or not kind_of(site).has_keys:
        _refuse(typed, "an exact key is SITE:KEY at an object store", "Leave out --exact-key.")
    require_built(site)
    found = _at_bucket(typed, site, path)
    if not found.path or not {".", ".."}.isdisjoint(path.split("/")) or "\0" in path:
        _refuse(typed, "such a key cannot be requested", "Use the server's own tools.")
    return replace(found, exact_key=True)


def read_location(text: str, settings: Settings, *, literal: bool = False) -> Location:
    """Parse a location from the command line, relative to the current folder; `:PATH` is at the default site, whose name the
    returned location has; `literal` as in
    `parse_location`.

    Raises `UsageError` for an unknown site or root, a variable, a path that leaves its start with `..`,
    `~user`, a site name without a colon where no such file exists, or a site of an unsupported kind.
    """
    typed = settings.with_site(os.fsencode(text).decode("utf-8", "surrogateescape"))
    found = parse_location(typed, settings.sites, os.fsencode(Path.cwd()), literal=literal)
    if found is None:
        if "://" in typed:
            _refuse(
                typed,
                "a URL is no location",
                "Add its server as a site (hibali sites add --help), and write SITE:PATH.",
            )
        settings.site(typed.partition(":")[0])  # names similar sites
        raise UsageError("unknown-site", "no site with this name is configured", subject=typed)
    require_built(found.site)
    through = kind_of(found.site).through(found.site, found.path)
    if through is not None:
        found = replace(found, through=_through(found, through, settings))
    if found.site.kind == "local":
        found = replace(found, logins=settings.web_logins())
    if found.typed_local:
        if not os.path.lexists(found.raw):
            check_no_site_name(typed, settings)
        local = (site for site in settings.sites.values() if site.kind == "local")
        found = replace(found, roots=tuple(root for site in local for root in site.roots.values()))
    if found.typed_local and b".." in found.raw.split(b"/"):
        # the last component is kept as typed, even if it is a symlink
        above, _, name = found.raw.rpartition(b"/")
        climbs = name == b".."
        real = os.path.realpath(found.raw if climbs else above or b"/")
        path = real if climbs else real.rstrip(b"/") + b"/" + name
        return replace(found, path=path.decode("utf-8", "surrogateescape"))
    return found


def _through(location: Location, text: str, settings: Settings) -> Location:
    """Return where the files of a location are, at another site. Raises `UsageError`."""
    name = text.partition(":")[0]
    if name == location.site.name:
        _refuse(location.text, f"the files of {name} cannot be at {name} itself", "Correct config.toml.")
    found = read_location(text, settings, literal=True)
    return replace(found, slash=location.slash, confined=location.confined)


def read_target(text: str, settings: Settings) -> Location:
    """Parse a location that will be changed; a site name without a colon is refused even if such a file
    exists.
    """
    check_no_site_name(text, settings)
    return read_location(text, settings)


def check_no_site_name(text: str, settings: Settings) -> None:
    """Raise `UsageError` for a local path that is the name of a site: probably its colon is missing."""
    name = text.rstrip("/")
    if name in settings.sites:
        raise UsageError(
            "site-without-colon",
            f"{name} is a site: {name}:",
            subject=text,
            hint=f"For the site, write {name}:PATH. For a local file or folder with that name: ./{text}",
        )


def check_local_file(text: str, settings: Settings) -> None:
    """Raise `UsageError` for a local output file named like a site or a location there, or with a
    variable.
    """
    check_no_site_name(text, settings)
    name, colon, path = text.partition(":")
    if colon and (not name or name in settings.sites):
        raise UsageError(
            "not-a-local-file",
            f"this is a location at {f'the site {name}' if name else 'the default site'}, but the output must be a local file",
            subject=text,
            hint=f"For a local file with that name: ./{text}. To send a file there afterwards: hibali push FILE {shlex.quote(f'{name}:{path}')}",
        )
    _refuse_local_home(text)
    _refuse_variables(text, "", text)


def parse_location(
    text: str, sites: Mapping[str, Site], folder: bytes, *, literal: bool = False
) -> Location | None:
    """Apply the rules of `read_location` as a pure function; None for a site that is not in `sites`.

    A colon before the first slash ends a site's name. Local paths are relative to `folder`, and keep `..`. In
    a `literal` text, which hibali itself recorded before, `$` and a local `~` are ordinary characters.
    """
    if not text or "\0" in text:
        _refuse(text, "a location is a path or SITE:PATH")
    if ":" not in text.partition("/")[0]:
        if not literal:
            _refuse_local_home(text)
            _refuse_variables(text, "", text)
        return _local(text, folder)
    name, _, path = text.partition(":")
    site = sites.get(name) or unconfigured_site(name)
    if site is None:
        return None
    if not literal and path.startswith(":"):
        _refuse(
            text,
            "a location has one colon",
            f"Did you mean {name}{path}? For a name with one: {name}:./{path}",
        )
    if not literal:
        _refuse_variables(text, name, path)
    if kind_of(site).has_keys:
        return _at_object_store(text, site, path)
    resolved = _resolve(text, site, path)
    only_start = path.startswith(("~", "@")) and "/" not in path
    slash = not path or only_start or _ends_as_folder(path)
    return _with_data_site(
        Location(site, resolved, text, slash=slash, read_only=_is_read_only(site, resolved))
    )


def root_location(site: Site) -> Location:
    """Return the location of a site without a path; raises `UsageError` where the site needs one."""
    found = parse_location(f"{site.name}:", {site.name: site}, b"/")
    assert found is not None
    return found


def path_at(site: Site, path: bytes) -> Location:
    """Return the location of an absolute path at a site."""
    text = path.decode("utf-8", "surrogateescape")
    return _with_data_site(Location(site, text, f"{site.name}:{text}"))


def _with_data_site(location: Location) -> Location:
    """Return the location with where its files are moved, if that is by another site."""
    other = location.site.files_at
    if other is None:
        return location
    return replace(location, through=replace(location, site=other, text=f"{other.name}:{location.path}"))


def _refuse_variables(text: str, site: str, path: str) -> None:
    """Raise `UsageError` for `$NAME` or `${NAME}` in a path; after a component `.` they are ordinary
    names.
    """
    for part in path.split("/"):
        if part == ".":
            return
        if _VARIABLE.search(part):
            way = (
                f"make it a root (sites.{site}.roots) and write {site}:@ROOT/..."
                if site
                else "leave out the quotes"
            )
            raise UsageError(
                "variable-in-path",
                f"variables in a path are not expanded: {part}",
                subject=text,
                hint=f"To have it expanded, {way}. For a name with a dollar sign: {_literally(site, path)}",
            )


def _refuse_local_home(text: str) -> None:
    if text == "~" or text.startswith("~/"):
        raise UsageError(
            "variable-in-path",
            "the shell did not expand ~, for example in quotes or after an equals sign",
            subject=text,
            hint=f"Write the path in full. For a folder whose name is ~: ./{text}",
        )


def _literally(site: str, path: str) -> str:
    """Return the same path, with a dollar sign in it protected from expansion."""
    start = f"{site}:" if site else ""
    if path.startswith("/"):
        return f"{start}/.{path}"
    root, _, rest = path.partition("/")
    if root == "~" or (root.startswith("@") and not _VARIABLE.search(root)):
        return f"{start}{root}/./{rest}"
    return f"{start}./{path}"


def work_path(site: Site) -> str:
    """Return the folder of the site's run folders and cache, in the form of `Location.path`."""
    return _resolve(f"{site.name}:{site.work}", site, site.work)


def guarded_roots(site: Site) -> tuple[str, ...]:
    """Return the folders of a site in which symlinks of other accounts are not followed, like
    `Location.path`.
    """
    return (*site.roots.values(), work_path(site), "~")


def listing_hint(text: str) -> str:
    """Return the command that lists what exists beside a location that does not exist."""
    site, colon, path = text.rpartition(":") if ":" in text.partition("/")[0] else ("", "", text)
    above, slash, _ = path.rstrip("/").rpartition("/")
    folder = f"{site}{colon}{above or slash}" or "."
    return f"To see what exists: hibali ls {shlex.quote(folder)}"


def check_writable(target: Location) -> None:
    """Raise `RefusedError` for a target below a read-only root."""
    if target.read_only:
        raise RefusedError(
            "read-only-root",
            "this is below a root that is read-only by the configuration",
            subject=target.text,
            hint=f"Choose another target, or remove the root from sites.{target.site.name}.read_only.",
        )


def _local(text: str, folder: bytes) -> Location:
    parts = [part for part in text.split("/") if part not in {"", "."}]
    here = "" if text.startswith("/") else folder.decode("utf-8", "surrogateescape").rstrip("/")
    path = "/".join([here, *parts]) or "/"
    return Location(_HERE, path, text, slash=_ends_as_folder(text), typed_local=True)


def _resolve(text: str, site: Site, path: str) -> str:
    """Return the path at a site with a filesystem."""
    if path.startswith("/"):
        return "/" + _normal(text, path)
    first, _, rest = path.partition("/")
    if first == "~":
        return _join("~", _normal(text, rest))
    if first.startswith("~"):
        _refuse(
            text, "the home folder of another account cannot be written as ~NAME", "Write the path in full."
        )
    if first.startswith("@"):
        return _join(_root(text, site, first[1:]), _normal(text, rest))
    start = site.roots[site.default_root] if site.default_root else "~"
    return _join(start, _normal(text, path))


def _root(text: str, site: Site, name: str) -> str:
    if name in site.roots:
        return site.roots[name]
    similar = nearest(name, site.roots)
    known = ", ".join(f"@{root}" for root in sorted(site.roots)) or "none"
    hint = f"Did you mean @{similar}?" if similar else f"Roots of {site.name}: {known}."
    return _refuse(text, f"{site.name} has no root @{name}", f"{hint} For a folder with that name: ./@{name}")


def _normal(text: str, path: str) -> str:
    """Return the path without `.`, `..` and doubled slashes; `..` must not leave the start."""
    normalized: list[str] = []
    for part in path.split("/"):
        if part == "..":
            if not normalized:
                _refuse(text, "'..' would leave the root")
            normalized.pop()
        elif part not in {"", "."}:
            normalized.append(part)
    return "/".join(normalized)


def _join(start: str, rest: str) -> str:
    trimmed = start.rstrip("/")
    if not rest:
        return trimmed or "/"
    return f"{trimmed}/{rest}"


def _at_object_store(text: str, site: Site, path: str) -> Location:
    """Return the location of an object key, unchanged, because `a//b` and `a/b` are two keys there."""
    if path.startswith("/"):
        _refuse(text, "a key must not start with a slash", f"Write {site.name}:{path.lstrip('/')}")
    path = path.removeprefix("./")
    slash = not path or path.endswith("/")
    key = path.removesuffix("/")
    if key and any(part in {"", ".", ".."} for part in key.split("/")):
        hint = "For such a key, cat, cp and rm have the option --exact-key."
        _refuse(text, "a path cannot have an empty component, '.' or '..'", hint)
    return replace(_at_bucket(text, site, key), slash=slash)


def _at_bucket(text: str, site: Site, key: str) -> Location:
    """Return the location of a key of a site, which may have a bucket and a prefix."""
    bucket = ""
    if site.s3 is not None:
        bucket = site.s3.bucket or ""
        if not bucket:
            bucket, _, key = key.partition("/")
            if not _BUCKET.fullmatch(bucket):
                _refuse(text, "the bucket is missing", f"Write {site.name}:BUCKET/KEY")
        key = "/".join(part for part in (site.s3.prefix.strip("/"), key) if part)
    return Location(site, key, text, bucket=bucket)


def _is_read_only(site: Site, path: str) -> bool:
    """Return whether the path is a read-only root or below one, compared as text; stores compare identities."""
    roots = [site.roots[name].rstrip("/") for name in site.read_only]
    return any(path == (root or "/") or path.startswith(root + "/") for root in roots)


def _ends_as_folder(path: str) -> bool:
    return path.rpartition("/")[2] in {"", ".", ".."}


def _refuse(text: str, message: str, hint: str = "") -> NoReturn:
    raise UsageError("bad-location", message, subject=text, hint=hint)
