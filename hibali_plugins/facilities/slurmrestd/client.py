"""Send the requests of slurmrestd that hibali needs, and check the answers.

Source: SchedMD/slurm (openapi/v0.0.38 and dbv0.0.38 of 22.05.8, data_parser/v0.0.40 to v0.0.46, rest_auth/jwt), read in November 2026.
Most failures have status 500, also those of a request that was refused, so the number in the answer decides. slurmctld checks a token
before it executes a request, and a client cannot verify answers (auth_jwt.c): an authentication error means that nothing was executed.
slurmctld 22.05 ends the connection in place of an answer to a token that it does not accept, as when it fails (seen in November 2026).
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import re
import time
from collections.abc import Mapping
from functools import cached_property
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from hibali.errors import (
    AccessError,
    HibaliError,
    IncompleteError,
    NotFoundError,
    TryLaterError,
    UsageError,
)
from hibali.events import Listener, ignore
from hibali.http.client import Response
from hibali.http.login import Authorization
from hibali.http.rest import SAFE, Call, RestClient
from hibali.request_limits import RequestLimit
from hibali.text import printable
from hibali_plugins.facilities.slurmrestd.records import Record, error_in, number_of, within
from hibali_plugins.facilities.slurmrestd.settings import SlurmrestdSettings
from runs.schedulers.base import NotSubmitted
from runs.schedulers.slurm import SUBMITTING
from transfers.remote.host import CommandResult
from transfers.stores.bearer.tokens import Tokens

VERSIONS = frozenset({38, *range(40, 47)})  # v0.0.39 is only where one of its neighbours is
_MOST_LISTING = 256 * 1024 * 1024  # all jobs of a large cluster, or the description of the API
_URL_VERSION = re.compile(r"/slurm/(?:.*/)?v0\.0\.([0-9]{1,4})(?:/|\Z)")
_OFFERED = re.compile(r"/slurm/v0\.0\.([0-9]{1,4})/job/submit/?")
# SLURM_PROTOCOL_AUTHENTICATION_ERROR and ESLURM_AUTH_* (slurm_errno.h)
_AUTHENTICATION = frozenset({1007, *range(6000, 6020)})
_SILENT = frozenset({-1, 5005})  # SLURM_ERROR, SLURM_PROTOCOL_SOCKET_ZERO_BYTES_SENT
_ACCESS_DENIED, _INVALID_JOB, _ALREADY_DONE, _NOTHING_FOUND = 2002, 2017, 2021, 9003
_REFUSALS = range(2000, 3000)  # of slurmctld
_SUBMIT = "/job/submit"
_EARLY_SECONDS = 60.0  # before a token expires, by this machine's clock, another one is obtained


class _Rest(RestClient):
    """slurmrestd's login: two headers with a token that is renewed before it expires, because refusals of tokens are hard to tell."""

    def __init__(self, settings: SlurmrestdSettings, subject: str, **named: Any) -> None:
        self._settings = settings
        tokens = Tokens(settings.bearer, subject)
        login = Authorization(lambda refused: tokens.renew(refused) if refused else tokens.current())
        super().__init__(settings.url, subject, login=login, **named)
        self._authorization = login
        self._may_guess = True
        self.login_header = settings.header
        self.base = ""  # paths are whole

    def claims(self) -> Record:
        """Return the claims of the token, {} if it is no JSON Web Token."""
        payload = self._authorization.header().split(".")[1:2]
        try:
            found = json.loads(base64.urlsafe_b64decode(payload[0] + "==")) if payload else {}
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def _login_of(self, call: Call) -> dict[str, str]:
        end = self.claims().get("exp")
        left = end - time.time() if isinstance(end, int | float) else math.inf
        if left < _EARLY_SECONDS:
            try:
                self._authorization.renew(self._authorization.header())
            except AccessError:  # there is no other token yet
                if left < 0:
                    raise
        user = self._settings.user
        return {**super()._login_of(call), **({"X-SLURM-USER-NAME": user} if user else {})}

    def _refused(self, response: Response) -> bool:
        number = error_in(response.body)[0] if response.status >= 300 else 0
        return number in _AUTHENTICATION or super()._refused(response)

    def _renewed(self, response: Response, login: Mapping[str, str]) -> bool:
        """See RestClient; a failure without a reason renews the token once, and no request is sent twice that must not be."""
        silent = response.status >= 500 and error_in(response.body)[0] in _SILENT
        if not silent or not self._may_guess or response.target.endswith(_SUBMIT):
            return super()._renewed(response, login)
        self._may_guess = False
        with contextlib.suppress(HibaliError):  # what makes tokens may need Slurm, too
            return self._authorization.renew(login[self.login_header])
        return False


class SlurmrestdClient:
    """One account at one slurmrestd; thread-safe."""

    def __init__(
        self, settings: SlurmrestdSettings, subject: str, limit: RequestLimit, on_event: Listener = ignore
    ) -> None:
        """Set the fields; `subject` names the site in errors."""
        self.subject = subject
        self._settings = settings
        self._path = quote(unquote(urlsplit(settings.url).path).rstrip("/"), safe=SAFE)
        self._given = _URL_VERSION.search(self._path)
        self._rest = _Rest(settings, subject, limit=limit, judge=self._judge, on_event=on_event)

    @property
    def owner(self) -> str:
        """The account that the token is for; "" if it does not say (rest_auth/jwt)."""
        return str(self._rest.claims().get("sun", ""))

    def close(self) -> None:
        """Close the connections."""
        self._rest.close()

    @cached_property
    def version(self) -> int:
        """The last number of the version of the API: that in the URL, or the highest offered one. Raise `UsageError`."""
        offered = {int(self._given[1])} if self._given else self._offered()
        if not offered & VERSIONS:
            names = ", ".join(f"v0.0.{each}" for each in sorted(offered)) or "none"
            raise UsageError(
                "not-supported-by-service",
                f"slurmrestd offers no version of its API that hibali knows, but {names}",
                subject=self.subject,
                hint="Known are v0.0.38 and v0.0.40 to v0.0.46. Check the url in the site's [scheduler] table.",
            )
        return max(offered & VERSIONS)

    def _offered(self) -> set[int]:
        response = self._description("/openapi/v3")
        if response.status == 404:
            response = self._description("/openapi")
        paths = self._rest.record_of(response).get("paths")
        found = (_OFFERED.fullmatch(each) for each in (paths if isinstance(paths, dict) else ()))
        return {int(each[1]) for each in found if each}

    def _description(self, path: str) -> Response:
        call = Call("GET", self._path + path, accept=(404,), most=_MOST_LISTING)
        return self._rest.repeat(call)

    def _at(self, path: str, service: str = "slurm") -> str:
        version = self.version
        if self._given:
            return self._path.replace("/slurm/", f"/{service}/", 1) + path
        return f"{self._path}/{service}/v0.0.{version}{path}"

    def submit(self, job: Record, script: str) -> str:
        """Create the job of a script, once, and return its id. Raises what `RestClient.create` does."""
        call = Call.with_json("POST", self._at(_SUBMIT), {"script": script, "job": job})
        found = self._rest.record_of(self._rest.create(call)).get("job_id")
        if type(found) is not int or found <= 0:
            raise self._rest.bad_answer("it has no job id")
        return str(found)

    def jobs(self) -> list[Record]:
        """Return all jobs that slurmctld knows, of all accounts."""
        return self._listed(self._rest.ask_record(Call("GET", self._at("/jobs"), most=_MOST_LISTING)))

    def job(self, job: str) -> list[Record]:
        """Return the record of a job, or those of an array; [] if slurmctld does not know it."""
        try:
            return self._listed(self._rest.ask_record(self._call("GET", job, most=_MOST_LISTING)))
        except NotFoundError:
            return []

    def accounted(
        self, path: str, query: Mapping[str, str], *, seconds: float | None = None, attempts: int = 0
    ) -> list[Record] | None:
        """Return jobs of the accounting; None if slurmrestd does not offer it, as without slurmdbd. Raise the error if it does not answer."""
        call = Call(
            "GET",
            self._at(path, "slurmdb"),
            query=query,
            accept=(404, 500),
            most=_MOST_LISTING,
            seconds=seconds,
        )
        response = self._rest.repeat(call, attempts=attempts)
        number, reason = error_in(response.body)  # also with status 200
        if number in {_INVALID_JOB, _NOTHING_FOUND}:
            return []
        if response.status == 404:
            return None
        if number or response.status == 500:
            raise self._judge(call, response) or self._silence("the accounting", reason or "status 500")
        return self._listed(self._rest.record_of(response))

    def cancel(self, job: str) -> None:
        """End a job, or the tasks of an array; an ended or unknown one is no failure."""
        try:
            response = self._rest.repeat(self._call("DELETE", job))
        except NotFoundError:
            return
        found = self._rest.record_of(response).get("status")  # of each job, in later versions with status 200
        for each in found if isinstance(found, list) else ():
            number, reason = number_of(within(each, "error", "code")) or 0, within(each, "error", "string")
            if number in _REFUSALS and number not in {_INVALID_JOB, _ALREADY_DONE}:
                raise self._refusal(number, printable(str(reason)))

    def release(self, job: str) -> None:
        """Release a job that is on hold."""
        self._rest.repeat(Call.with_json("POST", self._at(f"/job/{quote(job, safe='')}"), {"hold": False}))

    def _call(self, method: str, job: str, **more: Any) -> Call:
        return Call(method, self._at(f"/job/{quote(job, safe='')}"), **more)

    def _listed(self, record: Record) -> list[Record]:
        found = record.get("jobs")
        if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
            raise self._rest.bad_answer("it has no list of jobs")
        return found

    def _judge(self, call: Call, response: Response) -> HibaliError | None:
        number, reason = error_in(response.body)
        if response.status == 401 or number in _AUTHENTICATION:
            return AccessError(
                "login-refused",
                "slurmrestd does not accept the token" + (f": {reason}" if reason else ""),
                subject=self.subject,
                hint="Check the user and the source of tokens in the site's [scheduler] table: hibali config edit",
            )
        if response.status == 404 and number != _INVALID_JOB:  # not the answer for an unknown job
            return self._rest.bad_answer("it does not know the request (status 404)")
        if not reason:
            return None
        if number in _SILENT:
            return self._silent(call, reason)
        if call.path.endswith(_SUBMIT):
            found = SUBMITTING.read(CommandResult(1, b"", reason.encode()), None)
            return found.error if isinstance(found, NotSubmitted) else None
        if number == _INVALID_JOB:
            return NotFoundError("vanished", "there is no such job", subject=self.subject)
        return self._refusal(number, reason) if number in _REFUSALS else None

    def _refusal(self, number: int, reason: str) -> HibaliError:
        if number == _ACCESS_DENIED:
            return AccessError("denied", f"Slurm denied access: {reason}", subject=self.subject)
        return IncompleteError("refused-by-server", f"Slurm refused it: {reason}", subject=self.subject)

    def _silent(self, call: Call, reason: str) -> HibaliError | None:
        """Return the error for a failure for which Slurm gave no reason; None if it leaves open whether a job was created."""
        user, owner = self._settings.user, self.owner
        if user and owner and user != owner:
            return AccessError(
                "login-refused",
                f"the token is for {printable(owner)}, not for {user}",
                subject=self.subject,
                hint=f"To set it: hibali config set sites.{self.subject}.scheduler.user NAME",
            )
        if call.path.endswith(_SUBMIT):
            return None
        return self._silence("slurmctld", reason)

    def _silence(self, who: str, reason: str) -> TryLaterError:
        return TryLaterError(
            "scheduler-silent",
            f"{who} did not answer slurmrestd: {reason}",
            subject=self.subject,
            hint="If it stays so, check the user and the token in the site's [scheduler] table; Slurm 22.05 does not tell that it refused one.",
        )
