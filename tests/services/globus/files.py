"""Implement Transfer's synchronous file operations: ls, stat, mkdir, rename."""

from __future__ import annotations

import errno
import functools
import grp
import os
import pwd
import stat as mode_bits
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.services.globus.collections import (
    check_consent,
    is_offline,
    normal_path,
    real_path,
    transfer_token,
)
from tests.services.globus.http import Request, route
from tests.services.globus.world import ApiError, Collection, filters, passes


def _opened(request: Request, collection_id: str, *paths: str) -> Collection:
    """Return the collection if the client may access these paths now."""
    token = transfer_token(request)
    world = request.world
    collection = world.collection(collection_id)
    check_consent(request, token, [collection])
    if is_offline(world, collection):
        raise _failed(
            request, collection, 502, "ExternalError.DirListingFailed.GCDisconnected", "is not connected"
        )
    about = {"collections": [collection.id], "paths": [normal_path(collection, path) for path in paths]}
    if world.take("permission_denied", **about):
        raise _failed(request, collection, 403, "EndpointPermissionDenied", "Permission denied")
    if world.take("file_not_found", **about):
        raise _failed(request, collection, 404, "ClientError.NotFound", "No such file or directory")
    return collection


def _failed(request: Request, collection: Collection, status: int, code: str, message: str) -> ApiError:
    operation = request.path.rpartition("/")[2]
    text = f"Error ({operation})\nEndpoint: {collection.display_name} ({collection.id})\nMessage: {message}\n"
    return ApiError(status, code, text)


def _from_errno(request: Request, collection: Collection, problem: OSError, operation: str) -> ApiError:
    """Translate a filesystem error into the collection's error."""
    message = os.strerror(problem.errno or errno.EIO)
    if problem.errno == errno.ENOENT:
        code = "NotFound" if operation == "Stat" else "ClientError.NotFound"
        return _failed(request, collection, 404, code, message)
    if problem.errno in {errno.EACCES, errno.EPERM}:
        return _failed(request, collection, 403, "EndpointPermissionDenied", message)
    kind = {errno.EEXIST: "Exists", errno.ENOTDIR: "NotDirectory", errno.ENOTEMPTY: "Exists"}.get(
        problem.errno or 0, "EndpointError"
    )
    return _failed(request, collection, 502, f"ExternalError.{operation}Failed.{kind}", message)


def file_document(path: Path, name: str) -> dict[str, Any]:
    """Return a file's entry as in ls and stat; for a symlink that of its target, with the link's properties in addition."""
    own = path.lstat()
    is_link = mode_bits.S_ISLNK(own.st_mode)
    found = path.stat() if is_link and path.exists() else own
    link = dict.fromkeys(("link_group", "link_last_modified", "link_size", "link_target", "link_user"))
    if is_link:
        link = {
            "link_group": _group(own.st_gid),
            "link_last_modified": _when(own.st_mtime),
            "link_size": own.st_size,
            "link_target": os.fsencode(path.readlink()).decode("utf-8", "replace"),
            "link_user": _user(own.st_uid),
        }
    kinds = ((mode_bits.S_ISDIR, "dir"), (mode_bits.S_ISREG, "file"), (mode_bits.S_ISLNK, "invalid_symlink"))
    return {
        "DATA_TYPE": "file",
        "name": name,
        "type": next((word for test, word in kinds if test(found.st_mode)), "other"),
        "size": found.st_size,
        "last_modified": _when(found.st_mtime),
        "permissions": f"{mode_bits.S_IMODE(found.st_mode):04o}",
        "user": _user(found.st_uid),
        "group": _group(found.st_gid),
        **link,
    }


@route("GET", "/v0.10/operation/endpoint/{collection}/ls")
def ls(request: Request, collection: str) -> dict[str, Any]:
    path = request.query.get("path") or "/~/"
    found = _opened(request, collection, path)
    absolute = normal_path(found, path)
    world = request.world
    limit, offset = min(request.number("limit", 100_000), 100_000), request.number("offset", 0)
    try:
        folder = real_path(found, path)
        raw = os.listdir(os.fsencode(folder))  # noqa: PTH208 - bytes, because names may be invalid UTF-8
        if len(raw) > world.folder_limit:
            raise _failed(
                request,
                found,
                502,
                "ExternalError.DirListingFailed.SizeLimit",
                f"Directory limit of {world.folder_limit} reached",
            )
        if request.query.get("show_hidden") in {"0", "false", "False"}:
            raw = [name for name in raw if not name.startswith(b".")]
        by_name = request.query.get("orderby") in {None, "name", "name ASC"} and not request.query.get(
            "filter"
        )
        raw.sort()
        total = len(raw)
        # keep a page of a large folder fast
        files = [_entry(folder, name) for name in (raw[offset : offset + limit] if by_name else raw)]
    except OSError as problem:
        raise _from_errno(request, found, problem, "DirListing") from problem
    if not by_name:
        files = _chosen(request, files)
        total = len(files)
        files = files[offset : offset + limit]
    return {
        "DATA_TYPE": "file_list",
        "endpoint": found.id,
        "path": path if path.endswith("/") else f"{path}/",
        "absolute_path": absolute if absolute == "/" else f"{absolute}/",
        "rename_supported": True,
        "symlink_supported": False,
        "length": len(files),
        "total": total,
        "limit": limit,
        "offset": offset,
        "has_next_page": total > offset + limit,
        "DATA": files,
    }


def _chosen(request: Request, files: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the files that match `filter`, sorted by `orderby`."""
    rules = filters(request.query.get("filter", ""))
    files = [file for file in files if all(passes(rule, str(file.get(name))) for name, rule in rules.items())]
    for order in reversed((request.query.get("orderby") or "name").split(",")):
        field, _, direction = order.partition(" ")
        files.sort(key=lambda file: file.get(field) or "", reverse=direction.lower() == "desc")
    return files


def _entry(folder: Path, raw: bytes) -> dict[str, Any]:
    return file_document(folder / os.fsdecode(raw), raw.decode("utf-8", "replace"))


@route("GET", "/v0.10/operation/endpoint/{collection}/stat")
def stat(request: Request, collection: str) -> dict[str, Any]:
    path = request.query.get("path") or "/~/"
    found = _opened(request, collection, path)
    try:
        return file_document(real_path(found, path), normal_path(found, path).rpartition("/")[2] or "/")
    except OSError as problem:
        raise _from_errno(request, found, problem, "Stat") from problem


@route("POST", "/v0.10/operation/endpoint/{collection}/mkdir")
def mkdir(request: Request, collection: str) -> dict[str, Any]:
    path = str(request.json().get("path", ""))
    found = _opened(request, collection, path)
    try:
        real_path(found, path).mkdir()
    except OSError as problem:
        raise _from_errno(request, found, problem, "Mkdir") from problem
    return _result(request, "mkdir_result", "DirectoryCreated", "The directory was created successfully")


@route("POST", "/v0.10/operation/endpoint/{collection}/rename")
def rename(request: Request, collection: str) -> dict[str, Any]:
    body = request.json()
    old, new = str(body.get("old_path", "")), str(body.get("new_path", ""))
    found = _opened(request, collection, old, new)
    try:
        target = real_path(found, new)
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, "File exists", new)
        real_path(found, old).rename(target)
    except OSError as problem:
        raise _from_errno(request, found, problem, "Rename") from problem
    return _result(request, "result", "FileRenamed", "File or directory renamed successfully")


def _result(request: Request, kind: str, code: str, message: str) -> dict[str, Any]:
    document = {"DATA_TYPE": kind, "code": code, "message": message}
    return {**document, "request_id": request.id, "resource": request.path}


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%d %H:%M:%S+00:00")


@functools.cache
def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


@functools.cache
def _group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)
