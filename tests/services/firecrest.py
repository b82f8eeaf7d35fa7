"""Run a test double of FirecREST v2: its operations on files as commands, its transfers and jobs over a real Slurm and a real object store.

The server is Python, but not in a package index, and needs an ssh certificate authority. This double has the part of its API that clients of
files and jobs use, written from its source (eth-cscs/firecrest-v2: filesystem/ops, filesystem/transfer, compute and status, read in
November 2026), and driven by the unmodified client pyfirecrest as well (test_firecrest_client.py). As the server does, it pastes
paths into shell commands between apostrophes; a path with an apostrophe is counted in `refused`, because it could run commands.
The server itself can run from its source: test_real_firecrest.py. Differences that were found are cured, unless the last column names one.

| request | the server, 35e1d08 (2026-08-20), read, and run on 2026-11-27 | the double |
|---|---|---|
| ops/* with a path outside of the filesystems | 400 "does not match any of the defined filesystem paths"; only `path` is compared | the same |
| any command | 5 s; 413 "Command output exceeded buffer limit." from 5 MiB of output on; 404, 403, 400 and 500 by its stderr | the same |
| ops/checksum | splits the output of sha256sum; 500 "Invalid output" unless there are two words | the same |
| ops/download | base64, so at most 3,932,157 bytes | the same |
| ops/view | dd, decoded as UTF-8 with replacements | the same |
| ops/upload | writes in place; at most 5 MiB | 33 bytes less, as versions before 2.4 |
| ops/extract, mkdir, chmod, rm, symlink, stat, ls | tar -xzf, mkdir, chmod -v, rm -r, ln -s, stat, ls -l --quoting-style=c | the same; mkdir, chmod and symlink do not describe the file |
| transfer/upload | the path HTML-escaped between quotation marks; polls each 60 s; parts by presigned URLs | the same; polls each 0.5 s |
| transfer/download | the path HTML-escaped and bare; the size by stat(1) without -L, parts of whole MiB | the same |
| transfer/upload, download by the streamer | a job that installs firecrest-streamer 0.0.21 and runs it, on one of 5665 to 5675 | the same streamer, installed before, on four free ports |
| transfer/mv, cp | the paths HTML-escaped between apostrophes | the same |
| logs of these jobs | `.f7t_file_handling_job_*` in the user's folder of the filesystem for work | the same |
| POST jobs | sbatch with --export=ALL; 500 with its stderr, 403 for limits of accounts | always 500 |
| GET jobs, jobs/ID | sacct and squeue; null or 404 for unknown ones | scontrol, which remembers |
| jobs of PBS (read, not run: no PBS Professional here) | `qsub -v ... -N -e -o`, the script on stdin or `-- PATH`; `qstat -x -f -F json`, 500 with its stderr for an unknown job; letters as states, Exit_status or 0 | over Slurm, with the letters and variables of PBS |
| DELETE jobs/ID | 500 with what `scancel --verbose` writes for ended and unknown jobs | the same |
| status/systems, userinfo | the whole configuration; id(1), 500 if accounts cannot be read | only what clients use; never 500 |
"""

from __future__ import annotations

import base64
import email.parser
import email.policy
import html
import itertools
import json
import math
import os
import re
import secrets
import shlex
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

from tests.services.passed_on import PassedOn
from tests.services.processes import SYSTEM_PATH, free_port
from tests.services.rest import RefusalError, Reply, Request, Route
from tests.services.s3_client import signing_client
from tests.services.slurm import Slurm
from tests.services.slurm_jobs import ENDED, SlurmDouble, SlurmJobs, SlurmRefusalError

SYSTEM = "daint"
STREAMER = Path(__file__).resolve().parents[2] / ".cache" / "rest" / "bin" / "python"
LIMIT = 5 * 1024 * 1024  # bytes of ops/upload, and of what a command writes (max_ops_file_size)
_JOB_KEYS = {
    "name", "account", "workingDirectory", "working_directory", "standardInput", "standardOutput", "standardError", "env", "constraints",
    "script", "scriptPath", "partition", "reservation",
}  # fmt: skip
_PASTED_QUOTED = re.compile(r"[`$\\\\\"\n]")  # what bash executes or changes between quotation marks
_PASTED_BARE = re.compile(r"[^A-Za-z0-9/._+=:@%,-]")  # what bash may execute or split without any
_FETCH = """
import os, sys, time, urllib.request
url, fraction = sys.argv[1:]
target = os.environ["target_path"]
for _ in range(1800):
    try:
        with urllib.request.urlopen(url) as answer:
            content = answer.read()
        break
    except urllib.error.HTTPError:
        time.sleep(0.5)
with open(target, "wb") as file:
    file.write(content[: int(len(content) * float(fraction))])
print("File was successfully downloaded")
"""
_SEND = """
import os, sys, urllib.request
complete, fraction, *urls = sys.argv[1:]
source = os.environ.get("input_file", "")
if not os.path.isfile(source):
    sys.exit("file_not_found")
mib = 1048576
part = -(-os.lstat(source).st_size // len(urls))  # stat(1) without -L: of a symlink it is the size of that
size = -(-part // mib) * mib
tags = []
with open(source, "rb") as file:
    for url in urls:
        piece = file.read(size)
        piece = piece[: int(len(piece) * float(fraction))]
        answer = urllib.request.urlopen(urllib.request.Request(url, data=piece, method="PUT"))
        tags.append(answer.headers["ETag"])
parts = "".join(f"<Part><PartNumber>{n}</PartNumber><ETag>{t}</ETag></Part>" for n, t in enumerate(tags, 1))
body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
urllib.request.urlopen(urllib.request.Request(complete, data=body, method="POST")).read()
print("Multipart file upload successfully completed")
"""


class Firecrest(SlurmDouble):
    """The double. Its system has a filesystem of home folders, in which the account has one.

    Attributes:
        part_size: The size of parts of large files.
        scheduler: What the system says it has.
        transfer_method: How large files are moved, "s3" or "streamer".
        inbound_limit: How much a streamer receives.
        announced: What the system says besides about its transfers.
        first_port: Of the streamers; 0 for a free one.
        coordinates: What replaces the coordinates of streamers.
        outside: The paths outside of all filesystems that were requested.
        objects: The bucket through which large files go.
    """

    def __init__(self, folder: Path, slurm: Slurm, store: Any) -> None:
        self._users = folder / "users"
        self.home = self._users / _user()
        self.home.mkdir(parents=True)
        self.objects = store.bucket()
        self._passed_on = PassedOn(store, self)
        self._inside = signing_client(store, store.endpoint)  # for the jobs of the service itself
        self.part_size = 16 * 1024 * 1024
        self.scheduler, self.transfer_method = "slurm", "s3"
        self.inbound_limit = 5 * 1024 * 1024 * 1024
        self.first_port = 0
        self.announced: dict[str, Any] = {}
        self.coordinates: dict[str, Any] = {}
        self.outside: list[str] = []
        self._reachable = folder.resolve()
        self.jobs = SlurmJobs(slurm, self._reachable, self.home)
        super().__init__()

    def routes(self) -> list[tuple[str, str, Route]]:
        ops, transfer = f"/filesystem/{SYSTEM}/ops", f"/filesystem/{SYSTEM}/transfer"
        return [
            ("GET", "/status/systems", self._systems),
            ("GET", f"/status/{SYSTEM}/userinfo", self._userinfo),
            ("GET", f"{ops}/stat", self._stat),
            ("GET", f"{ops}/ls", self._ls),
            ("GET", f"{ops}/checksum", self._checksum),
            ("GET", f"{ops}/download", self._download),
            ("GET", f"{ops}/view", self._view),
            ("POST", f"{ops}/upload", self._upload),
            ("POST", f"{ops}/mkdir", self._mkdir),
            ("POST", f"{ops}/extract", self._extract),
            ("PUT", f"{ops}/chmod", self._chmod),
            ("POST", f"{ops}/symlink", self._symlink),
            ("DELETE", f"{ops}/rm", self._rm),
            ("POST", f"{transfer}/upload", self._begin_upload),
            ("POST", f"{transfer}/download", self._begin_download),
            ("POST", f"{transfer}/(mv|cp)", self._begin_change),
            ("POST", f"/compute/{SYSTEM}/jobs", self._submit),
            ("GET", f"/compute/{SYSTEM}/jobs", self._list_jobs),
            ("GET", f"/compute/{SYSTEM}/jobs/([a-zA-Z0-9]+)", self._job),
            ("DELETE", f"/compute/{SYSTEM}/jobs/([a-zA-Z0-9]+)", self._cancel),
        ]

    def error(self, status: int, message: str) -> Any:
        del status
        return {"errorType": "error", "message": message, "data": None, "user": _user()}

    # The system

    def _systems(self, request: Request, found: re.Match[str]) -> Reply:
        del found
        request.allow()
        systems = [{"path": str(self._users), "dataType": "users", "defaultWorkDir": True}]
        scheduler = {"type": self.scheduler, "version": "23.11.0"}
        transfer = {"serviceType": self.transfer_method, **self.announced}
        operation = {"max_ops_file_size": LIMIT, "data_transfer": transfer}
        system = {"name": SYSTEM, "fileSystems": systems, "scheduler": scheduler, "dataOperation": operation}
        return Reply(200, {"systems": [system]})

    def _userinfo(self, request: Request, found: re.Match[str]) -> Reply:
        del found
        request.allow()
        user = {"name": _user(), "id": str(os.getuid())}
        return Reply(200, {"user": user, "group": user, "groups": [user], "accounts": None})

    # Operations on files

    def _path(self, path: Any, *, checked: bool = True) -> str:
        """Return a path as the server takes it; only the first of a request is compared with the filesystems."""
        if not isinstance(path, str) or not path.startswith("/"):
            raise RefusalError(400, f"The provided path ({path}) is not an absolute path.")
        if checked and not Path(os.path.normpath(path)).is_relative_to(self._users):
            self.outside.append(path)
            message = f"The provided path ({path}) does not match any of the defined filesystem paths for the requested system ({SYSTEM})."
            raise RefusalError(400, message, expected=True)
        if "'" in path or "\n" in path:
            raise RefusalError(400, f"this path would run commands: {path!r}")
        if not Path(os.path.realpath(path)).is_relative_to(self._reachable):
            raise RefusalError(
                403,
                "Remote process failed with exit status:1 and error message:Permission denied",
                expected=True,
            )
        return path

    def _shell(self, line: str, stdin: bytes = b"") -> bytes:
        """Run a line as the server does, and raise its errors."""
        ended = subprocess.run(
            ["/bin/bash", "-c", f"umask 022; {line}"],
            input=stdin,
            capture_output=True,
            check=False,
            env={"PATH": SYSTEM_PATH, "LC_ALL": "C.UTF-8"},
        )
        if max(len(ended.stdout), len(ended.stderr)) >= LIMIT:
            raise RefusalError(413, "Command output exceeded buffer limit.", expected=True)
        if ended.returncode == 0:
            return ended.stdout
        stderr = ended.stderr.decode(errors="replace")
        message = (
            f"Remote process failed with exit status:{ended.returncode} and error message:{stderr.strip()}"
        )
        statuses = {124: 408}
        status = statuses.get(ended.returncode, 500)
        for text, code in {
            "No such file": 404,
            "Permission denied": 403,
            "not permitted": 403,
            "File exists": 400,
        }.items():
            if text in stderr:
                status = code
                break
        raise RefusalError(status, message, expected=True)

    def _stat(self, request: Request, found: re.Match[str]) -> Reply:
        del found
        request.allow("path", "dereference")
        option = "--dereference" if request.query.get("dereference", "false").lower() == "true" else ""
        line = f"timeout 5 stat {option} -c '%f %i %d %h %u %g %s %X %Y %Z' -- '{self._path(request.query.get('path'))}'"
        names = ["mode", "ino", "dev", "nlink", "uid", "gid", "size", "atime", "mtime", "ctime"]
        values = self._shell(line).decode().split()
        record = dict(zip(names, [int(values[0], 16), *map(int, values[1:])], strict=True))
        return Reply(200, {"output": record})

    def _ls(self, request: Request, found: re.Match[str]) -> Reply:
        del found
        request.allow("path", "showHidden", "numericUid", "recursive", "dereference")
        options = "-A " if request.query.get("showHidden", "false").lower() == "true" else ""
        options += "--numeric-uid-gid " if request.query.get("numericUid", "false").lower() == "true" else ""
        path = self._path(request.query.get("path"))
        out = self._shell(
            f"timeout 5 ls -l --quoting-style=c --time-style='+%Y-%m-%dT%H:%M:%S' {options} -- '{path}'"
        )
        return Reply(200, {"output": [each for line in out.decode().splitlines() if (each := _listed(line))]})

    def _checksum(self, request: Request, found: re.Match[str]) -> Reply:
        del found
        request.allow("path")
        out = self._shell(f"timeout 5 sha256sum -- '{self._path(request.query.get('path'))}'").decode()
        words = out.split()
        if len(words) != 2:
            raise RefusalError(500, f"Invalid output: {out} ", expected=True)
        return Reply(200, {"output": {"algorithm": "SHA256", "checksum": words[0]}})

    def _download(self, request: Request, found: re.Match[str]) -> Reply:
        del found
        request.allow("path")
        path = self._path(request.query.get("path"))
        content = base64.b64decode(self._shell(f"timeout 5 base64 --wrap=0 -- '{path}'"))
        if request.truncated:
            content = content[: len(content) // 2]
        with self.guard:
            self.sent[path] += len(content)
        return Reply(200, content, {"Content-Type": "application/octet-stream"})

    def _view(self, request: Request, found: re.Match[str]) -> Reply:
        del found
        request.allow("path", "size", "offset")
        path = self._path(request.query.get("path"))
        size, offset = int(request.query.get("size", LIMIT)), int(request.query.get("offset", 0))
        if not 0 < size <= LIMIT or offset < 0:
            raise RefusalError(400, "`size` value must be less than the limit")
        out = self._shell(f"timeout 5 dd if='{path}' bs={size} skip={offset // size} count=2")
        text = out.decode(errors="replace")  # so that only text can be read
        return Reply(200, {"output": text[offset % size :][:size]})

    def _upload(self, request: Request, found: re.Match[str]) -> Reply:
        del found
        request.allow("path")
        folder = self._path(request.query.get("path"))
        head = f"Content-Type: {request.headers.get('Content-Type')}\r\n\r\n".encode()
        message = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + request.body())
        [part] = message.iter_parts()
        name, content = part.get_filename(), part.get_payload(decode=True)
        if (
            part.get_param("name", header="content-disposition") != "file"
            or not name
            or not isinstance(content, bytes)
        ):
            raise RefusalError(400, "the form has no file")
        if len(content) + 33 > LIMIT:  # sys.getsizeof, in versions before 2.4
            raise RefusalError(413, "File to upload is too large.")
        path = self._path(f"{folder}/{name}")
        if request.truncated and len(content) > 65536:  # not the locks of hibali
            content = content[: len(content) // 2]
        self._shell(f"timeout 5 base64 -d > '{path}'", base64.b64encode(content))
        self.received.add(path, len(content))
        return Reply(204)

    def _mkdir(self, request: Request, found: re.Match[str]) -> Reply:
        del found
        wanted = _only(request.json(), {"path", "sourcePath", "parent"})
        path = self._path(wanted.get("path", wanted.get("sourcePath")))
        self._shell(f"timeout 5 mkdir {'-p' if wanted.get('parent') else ''} -- '{path}'")
        return Reply(201, {"output": {"name": path}})

    def _extract(self, request: Request, found: re.Match[str]) -> Reply:
        del found
        wanted = _only(request.json(), {"path", "sourcePath", "targetPath", "compression"})
        source, target = (
            self._path(wanted.get("path", wanted.get("sourcePath"))),
            self._path(wanted.get("targetPath"), checked=False),
        )
        self._shell(f"timeout 5 tar -xzf '{source}' -C '{target}'")
        return Reply(204)

    def _chmod(self, request: Request, found: re.Match[str]) -> Reply:
        del found
        wanted = _only(request.json(), {"path", "sourcePath", "mode"})
        if not re.fullmatch(r"[0-7]{3,4}", str(wanted.get("mode"))):
            raise RefusalError(422, "mode is octal")
        self._shell(
            f"timeout 5 chmod -v '{wanted['mode']}' -- '{self._path(wanted.get('path', wanted.get('sourcePath')))}'"
        )
        return Reply(200, {"output": None})

    def _symlink(self, request: Request, found: re.Match[str]) -> Reply:
        del found
        wanted = _only(request.json(), {"path", "sourcePath", "linkPath"})
        source = self._path(wanted.get("path", wanted.get("sourcePath")))
        link = self._path(wanted.get("linkPath"), checked=False)
        self._shell(f"timeout 5 ln -s -- '{source}' '{link}' && timeout 5 ls -ld -- '{link}'")
        return Reply(201, {"output": None})

    def _rm(self, request: Request, found: re.Match[str]) -> Reply:
        del found
        request.allow("path")
        self._shell(f"timeout 5 rm -r --interactive=never -- '{self._path(request.query.get('path'))}'")
        return Reply(204)

    # Transfers

    def _sign(self, client: Any, method: str, verb: str, **more: Any) -> str:
        parameters = {"Bucket": self.objects.name, **more}
        found: str = client.generate_presigned_url(method, Params=parameters, ExpiresIn=3600, HttpMethod=verb)
        return found

    def _multipart(self, client: Any, key: str, size: int) -> tuple[list[str], str]:
        made = self._inside.create_multipart_upload(Bucket=self.objects.name, Key=key)["UploadId"]
        more = {"Key": key, "UploadId": made}
        parts = range(1, math.ceil(size / self.part_size) + 1)
        urls = [self._sign(client, "upload_part", "PUT", PartNumber=number, **more) for number in parts]
        return urls, self._sign(client, "complete_multipart_upload", "POST", **more)

    def _begin_upload(self, request: Request, found: re.Match[str]) -> Reply:
        del found
        wanted = _only(request.json(), {"path", "account", "transferDirectives", "transfer_directives"})
        directives = wanted.get("transferDirectives") or wanted.get("transfer_directives") or {}
        if directives == {"transferMethod": "streamer"} and self.transfer_method == "streamer":
            return self._begin_stream("receive", self._path(wanted.get("path"), checked=False))
        size = directives.get("fileSize", directives.get("file_size"))
        method = directives.get("transferMethod", directives.get("transfer_method"))
        if method != "s3" or self.transfer_method != "s3" or not isinstance(size, int):
            raise RefusalError(400, "Requested transfer method is not available.")
        path = self._path(wanted.get("path", wanted.get("sourcePath")), checked=False)
        key = f"{uuid.uuid4()}/object"
        urls, complete = self._multipart(self._passed_on.client, key, size)
        self._check_pasted(path, _PASTED_QUOTED)
        url = self._sign(self._inside, "get_object", "GET", Key=key)
        head = f'target_path="{html.escape(path)}"'
        job = self._start("IngressFileTransfer", head, _FETCH, url, self._fraction(request))
        given = {
            "transferMethod": "s3",
            "partsUploadUrls": urls,
            "completeUploadUrl": complete,
            "maxPartSize": self.part_size,
        }
        return Reply(201, {"transferJob": job, "transferDirectives": given})

    def _begin_download(self, request: Request, found: re.Match[str]) -> Reply:
        del found
        wanted = _only(
            request.json(),
            {"path", "source_path", "sourcePath", "account", "transferDirectives", "transfer_directives"},
        )
        path = wanted.get("path") or wanted.get("sourcePath") or wanted.get("source_path")
        path = self._path(path, checked=False)
        if self.transfer_method == "streamer":
            if wanted.get("transferDirectives") != {"transferMethod": "streamer"}:
                raise RefusalError(400, "Requested transfer method is not available.")
            return self._begin_stream("send", path)
        size = int(self._shell(f"timeout 5 stat --dereference -c '%s' -- '{path}'"))
        self._check_pasted(path, _PASTED_BARE)
        key = f"{uuid.uuid4()}/object"
        urls, complete = self._multipart(self._inside, key, size)
        head = f"input_file={html.escape(path)}"
        words = (complete, self._fraction(request), *urls)
        job = self._start("OutgressFileTransfer", head, _SEND, *words)
        address = self._sign(self._passed_on.client, "get_object", "GET", Key=key)
        given = {"transferMethod": "s3", "downloadUrl": address}
        return Reply(201, {"transferJob": job, "transferDirectives": given})

    def _begin_stream(self, action: str, path: str) -> Reply:
        """Start the unmodified streamer in a job, as job_streamer.sh does; there it is installed first."""
        if action == "receive" and Path(path).exists():
            raise RefusalError(403, f"Target file '{path}' already exists.")
        self._check_pasted(path, _PASTED_BARE)
        secret, first = secrets.token_urlsafe(16), self.first_port or free_port()
        ports = [first, min(first + 3, 65535)]
        words = f"server --secret {secret} --host 127.0.0.1 --public-ips 127.0.0.1 --port-range {ports[0]} {ports[1]} --wait-timeout 60"
        line = f"{STREAMER} -m streamer {words} --inbound-transfer-limit {self.inbound_limit} {action} --path {html.escape(path)}"
        name = "IngressFileTransfer" if action == "receive" else "OutgressFileTransfer"
        record = {"ports": ports, "ips": ["127.0.0.1"], "secret": secret, **self.coordinates}
        encoded = base64.urlsafe_b64encode(json.dumps(record).encode()).decode()
        given = {"transferMethod": "streamer", "coordinates": encoded}
        return Reply(201, {"transferJob": self._run_script(name, line), "transferDirectives": given})

    @staticmethod
    def _fraction(request: Request) -> str:
        return "0.5" if request.truncated else "1"

    def _begin_change(self, request: Request, found: re.Match[str]) -> Reply:
        wanted = _only(request.json(), {"path", "sourcePath", "targetPath", "account", "dereference"})
        source, target = (
            self._path(wanted.get("path", wanted.get("sourcePath"))),
            self._path(wanted.get("targetPath"), checked=False),
        )
        words = "mv" if found[1] == "mv" else "cp --force -Rd --preserve=all"
        if html.escape(source + target) != source + target:
            self.refused.append(f"{request.path}: the job would handle another name: {source!r} {target!r}")
        name, done = ("MoveFiles", "moved") if found[1] == "mv" else ("CopyFiles", "copied")
        line = f"{words} -- '{html.escape(source)}' '{html.escape(target)}' && echo Files were successfully {done}."
        return Reply(201, {"transferJob": self._run_script(name, line)})

    def _check_pasted(self, path: str, odd: re.Pattern[str]) -> None:
        """Count a path that the server would paste into a script where bash reads it as something else."""
        if odd.search(path):
            self.refused.append(f"transfer: this path would run commands or be split: {path!r}")

    def _start(self, name: str, head: str, script: str, *words: str) -> dict[str, Any]:
        """Start a job of the service itself, with the path as its template writes it (HTML-escaped, and then read by bash)."""
        argv = shlex.join([sys.executable, "-c", script, *words])
        return self._run_script(name, f"{head}\nexport target_path input_file\n{argv}")

    def _run_script(self, name: str, script: str) -> dict[str, Any]:
        folder = self._reachable / "jobs" / str(uuid.uuid4())
        folder.mkdir(parents=True)
        # the server keeps them in the user's folder of the filesystem for work
        log, errors = (
            self.home / f".f7t_file_handling_job_{kind}{folder.name}.log" for kind in ("", "error_")
        )
        job = self._sbatch(
            ["--chdir", str(folder), "--job-name", name, "--output", str(log), "--error", str(errors)],
            f"#!/bin/bash\n{script}\n".encode(),
        )
        logs = {"outputLog": str(log), "errorLog": str(errors)}
        return {"jobId": job, "system": SYSTEM, "workingDirectory": str(self.home), "logs": logs}

    # Jobs

    def _sbatch(self, options: list[str], script: bytes) -> str:
        try:
            return self.jobs.submit(options, script)
        except SlurmRefusalError as problem:
            message = f"Unexpected Slurm command response. exit_status:1 std_err:{problem}"
            raise RefusalError(500, message, expected=True) from None

    def _submit(self, request: Request, found: re.Match[str]) -> Reply:
        del found
        job = _only(_only(request.json(), {"job"}).get("job"), _JOB_KEYS)
        folder = job.get("workingDirectory", job.get("working_directory"))
        if not isinstance(folder, str) or not (job.get("script") or job.get("scriptPath")):
            raise RefusalError(400, "a job has a working directory and a script")
        options = ["--chdir", self._path(folder, checked=False)]
        for key, option in {
            "name": "job-name",
            "standardOutput": "output",
            "standardError": "error",
            "account": "account",
        }.items():
            if job.get(key):
                options.append(f"--{option}={job[key]}")
        environment = {"F7T_version": "v2.0.0", **(job.get("env") or {})}
        if self.scheduler == "pbs":
            return Reply(201, {"jobId": self._qsub(job, folder)})
        options.append("--export=ALL," + ",".join(f"{name}={value}" for name, value in environment.items()))
        script = (
            Path(self._path(job["scriptPath"], checked=False)).read_bytes()
            if job.get("scriptPath")
            else job["script"].encode()
        )
        return Reply(201, {"jobId": self._sbatch(options, script)})

    def _qsub(self, job: dict[str, Any], folder: str) -> str:
        """Start a job as PBS does: in the home folder, with its variables, and with the comment lines of a script from stdin.

        qsub reads no comment lines of an executable (`-- PATH`); Slurm reads those of PBS in the script.
        """
        if job.get("scriptPath"):
            raise RefusalError(400, "PBS would ignore the resources in the comment lines of this script")
        lines = job["script"].splitlines(keepends=True)
        head = list(itertools.takewhile(lambda line: line.startswith("#"), lines))
        if any(line.startswith("#SBATCH") for line in head):
            raise RefusalError(400, "the comment lines are not those of PBS")
        times = [found[1] for line in head if (found := re.fullmatch(r"#PBS -l walltime=([0-9:]+)\n", line))]
        variables = (
            f'export PBS_JOBID="$SLURM_JOB_ID.pbs" PBS_O_WORKDIR={shlex.quote(folder)}\nunset ${{!SLURM_@}}\n'
        )
        script = "#!/bin/bash\n" + variables + "".join(lines[len(head) :])
        options = [
            "--chdir",
            str(self.home),
            f"--job-name={job['name']}",
            f"--output={job['standardOutput']}",
        ]
        return self._sbatch([*options, *(f"--time={each}" for each in times)], script.encode())

    def _pbs_status(self, job: str, record: dict[str, str]) -> dict[str, Any]:
        state = self.jobs.state_of(job, record)
        code, signal = map(int, record.get("ExitCode", "0:0").split(":"))
        letter = "F" if state in ENDED else {"PENDING": "Q", "COMPLETING": "E"}.get(state, "R")
        code = {"TIMEOUT": -29, "CANCELLED": 271}.get(state, code or (signal and 256 + signal))
        return {
            "state": letter,
            "stateReason": None,
            "exitCode": code if letter == "F" else 0,
            "interruptSignal": None,
        }

    def _record(self, job: str, record: dict[str, str]) -> dict[str, Any]:
        code = int(record.get("ExitCode", "0:0").partition(":")[0])
        return {
            "jobId": job,
            "name": record["JobName"],
            "status": self._pbs_status(job, record)
            if self.scheduler == "pbs"
            else {
                "state": self.jobs.state_of(job, record),
                "stateReason": record.get("Reason"),
                "exitCode": code,
                "interruptSignal": 0,
            },
            "tasks": None,
            "time": {"elapsed": 0, "start": 0, "end": 0, "suspended": 0, "limit": 60},
            "account": None,
            "allocationNodes": 1,
            "cluster": SYSTEM,
            "group": None,
            "nodes": "n1",
            "partition": record.get("Partition", ""),
            "user": _user(),
            "workingDirectory": record["WorkDir"],
            "priority": 1,
        }

    def _list_jobs(self, request: Request, found: re.Match[str]) -> Reply:
        del found
        request.allow("allusers", "account", "name", "time_window")
        table = self.jobs.table()
        if not request.query.get("time_window") and self.scheduler == "slurm":
            table = {job: record for job, record in table.items() if record["JobState"] not in ENDED}
        table = self.listed(table)
        return Reply(200, {"jobs": [self._record(*each) for each in table.items()]})

    def _job(self, request: Request, found: re.Match[str]) -> Reply:
        request.allow("allusers", "account", "name", "time_window")
        record = self.jobs.table().get(found[1])
        if record is None:
            if self.scheduler == "pbs":
                message = (
                    f"Unexpected PBS qstat response. exit_status:153 std_err:qstat: Unknown Job Id {found[1]}"
                )
                raise RefusalError(500, message, expected=True)
            raise RefusalError(404, "Job not found.", expected=True)
        return Reply(200, {"jobs": [self._record(found[1], record)]})

    def _cancel(self, request: Request, found: re.Match[str]) -> Reply:
        request.allow()
        problem = self.jobs.cancel(found[1])
        if problem:
            message = f"Unexpected Slurm command response. exit_status:0 std_err:{problem}"
            if self.scheduler == "pbs":
                message = (
                    f"Unexpected PBS qdel response. exit_status:35 std_err:qdel: Job has finished {found[1]}"
                )
            raise RefusalError(500, message, expected=True)
        return Reply(204)

    def close(self) -> None:
        super().close()
        self._passed_on.close()


def _only(record: Any, names: set[str]) -> dict[str, Any]:
    if not isinstance(record, dict) or set(record) - names:
        raise RefusalError(400, f"unknown members: {sorted(record) if isinstance(record, dict) else record}")
    return record


_LINE = re.compile(r"^(\S)(\S+)\s+\d+\s+(\S+)\s+(\S+)\s+(\d+)\s+([0-9T:-]+)\s+(.+)$")


def _listed(line: str) -> dict[str, Any] | None:
    """Return a line of ls as the server reads it: with shlex, which leaves C-style escapes as they are."""
    found = _LINE.match(line)
    if found is None:
        return None
    tokens = shlex.split(found[7])
    if len(tokens) not in {1, 3}:
        return None
    return {
        "name": tokens[0],
        "type": found[1],
        "linkTarget": tokens[2] if len(tokens) == 3 else None,
        "user": found[3],
        "group": found[4],
        "permissions": found[2],
        "lastModified": found[6],
        "size": found[5],
    }


def _user() -> str:
    import getpass

    return getpass.getuser()
