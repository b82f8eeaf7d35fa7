"""Test `hibali dashboard`: its link opens once."""

from __future__ import annotations

import json
import signal
import socket
import time
from http.client import HTTPConnection

from tests.schemas import check_lines
from tests.support.transfers import Transfers
from tests.support.waiting import wait_for


def test_the_dashboard_opens_once_and_its_end_waits_for_no_connection(local_there: Transfers) -> None:
    hibali = local_there.hibali
    process = hibali.start("dashboard", "--no-open", "--json")
    output = local_there.hibali.home.folder / "0.out"
    wait_for(lambda: output.read_bytes().endswith(b"\n"))
    [record] = check_lines(output.read_bytes())
    cookies = []
    for status in (200, 403):
        connection = HTTPConnection("127.0.0.1", record["port"], timeout=30)
        connection.request("GET", record["url"].partition(str(record["port"]))[2])
        answer = connection.getresponse()
        cookies.append(answer.headers.get("set-cookie"))
        assert answer.status == status
        connection.close()
    assert cookies[0].endswith("HttpOnly; SameSite=Strict")
    assert cookies[1] is None
    taken = hibali("dashboard", "--no-open", "--port", str(record["port"]), "--json", exit=2).last
    assert taken["code"] == "port-unavailable"
    with socket.create_connection(("127.0.0.1", record["port"])):  # one that never sends a request
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert time.monotonic() - began < 4.5  # the connection ends after 5 seconds
    assert json.loads(output.read_bytes().splitlines()[-1])["kind"] == "error"
