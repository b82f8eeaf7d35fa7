"""Test sites that are reached with GSI: the proxy is checked before a login, made for cron, and given to jobs.

Certificates, proxies, their tools and the MyProxy server are real. Debian has no sshd that takes GSI: the ssh of these sites
logs in to an ordinary one with a key, and prints which proxy it was given.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.image_tools import Tool, catalogued, ready
from tests.end_to_end.run_tools import Bench, doing
from tests.services.grid import ORGANISATION, Grid, start_gsi_server
from tests.services.processes import SYSTEM_PATH, end_all
from tests.support.clock import seconds_of

# Prints the path, the mode and the remaining lifetime of the proxy: to a job's output, and to the log of a login.
PRINT_PROXY = 'echo "$X509_USER_PROXY" "$(stat -c %a "$X509_USER_PROXY")" "$(grid-proxy-info -timeleft)"'


class GridSite:
    """A site `host` whose ssh program logs each call."""

    def __init__(self, hibali: Any, server: Any, grid: Grid, tmp_path: Path) -> None:
        self.hibali = hibali
        self.log = tmp_path / "called"
        self.ssh = tmp_path / "gsissh"
        self.words = [str(self.ssh), "-p", str(server.port), *server.command[1:]]
        self.ssh.write_text(
            f'#!/bin/sh\n({PRINT_PROXY}; echo "$*") >>{self.log}\nexec {server.command[0]} "$@"\n'
        )
        self.ssh.chmod(0o755)
        self.host = server.host
        self.place = tmp_path / "there"
        self.place.mkdir()
        hibali.env |= grid.env

    def configure(self, proxy: str = "", more: str = "") -> None:
        words = ", ".join(f'"{word}"' for word in self.words)
        self.hibali.home.config.write_text(
            f'version = 1\n[sites.far]\nkind = "ssh"\nroots = {{ data = "{self.place}" }}\n'
            f'[sites.far.ssh]\nhost = "{self.host}"\ncommand = [{words}]\n{more}\n'
            f'[sites.far.limits]\nlogin_interval = "0s"\n[sites.far.proxy]\n{proxy}\n'
        )
        self.hibali.home.config.chmod(0o600)

    def fails(self, env: dict[str, str] | None = None) -> tuple[str, str]:
        """Return the code and the hint of an error with exit 4 before any login."""
        error = self.hibali("ls", "far:@data", "--json", env=env, exit=4).last
        assert not self.log.exists(), self.log.read_text()
        assert error["about"] == self.host
        return error["code"], error["hint"]

    def calls(self) -> list[list[str]]:
        """Return the path, the mode and the lifetime of the proxy at each login."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        pairs = zip(lines[::2], lines[1::2], strict=True)
        return [proxy.split() for proxy, words in pairs if " -G " not in words]


@pytest.fixture
def host(hibali: Any, ssh_server: Any, grid: Grid, tmp_path: Path) -> GridSite:
    return GridSite(hibali, ssh_server, grid, tmp_path)


def test_an_unusable_proxy_is_reported_before_any_login(host: GridSite, grid: Grid, tmp_path: Path) -> None:
    host.configure('least = "2h"')
    mine = tmp_path / "my proxy"
    env = {"X509_USER_PROXY": str(mine)}
    line = "Run: grid-proxy-init -valid 12:00"
    assert host.fails(env) == ("proxy-missing", line)
    mine.write_bytes(b"\xff\xfe no proxy\n")
    mine.chmod(0o600)
    assert host.fails(env) == ("proxy-unreadable", line)
    mine.unlink()
    grid.make_proxy(mine, 3600)
    assert host.fails(env) == ("proxy-too-short", line)
    mine.unlink()
    grid.make_proxy(mine, -60)
    assert host.fails(env) == ("proxy-expired", line)
    mine.unlink()
    grid.make_proxy(mine, 3 * 3600)
    mine.chmod(0o640)
    code, hint = host.fails(env)
    assert code == "proxy-mode"
    assert f"chmod 600 '{mine}'" in hint
    mine.chmod(0o600)
    (tmp_path / "a.txt").write_text("a\n")
    receipt = host.hibali("push", tmp_path / "a.txt", "far:@data/", "--json", env=env, exit=0).last
    assert receipt["proof_moved"] == "digest"
    assert (host.place / "a.txt").read_text() == "a\n"
    assert str(mine) in host.log.read_text()
    assert "GSSAPIAuthentication=yes" in host.log.read_text()
    checked = host.hibali("sites", "check", "far", "--json", env=env, exit=0).last
    assert 3 * 3600 - 600 <= seconds_of(checked["facts"]["proxy"].removeprefix("valid for ")) <= 3 * 3600
    # the existing login is shared: the proxy is not checked until it ends
    mine.unlink()
    host.hibali("ls", "far:@data", env=env, exit=0)


def test_the_port_of_gsissh_may_be_in_its_configuration_file(host: GridSite, tmp_path: Path) -> None:
    proxied = {"X509_USER_PROXY": host.hibali.env["X509_USER_PROXY"]}
    own, port = tmp_path / "own-config", host.words[2]
    given = Path(host.words[host.words.index("-F") + 1]).read_text()
    assert f"  Port {port}\n" in given
    own.write_text(given)
    host.words = [host.words[0], "-F", str(own)]
    host.configure(more='persist = "no"')
    host.hibali("ls", "far:@data", env=proxied, exit=0)
    own.write_text(given.replace(f"  Port {port}\n", "  Port 9\n"))
    away = host.hibali("ls", "far:@data", "--json", env=proxied, exit=5).last
    assert away["hint"].startswith("The port was 9 (gsissh -G). ")
    host.ssh.write_text('#!/bin/sh\ncase " $* " in *" -G "*) exit 255 ;; esac\nexit 1\n')
    silent = host.hibali("ls", "far:@data", "--json", env=proxied, exit=2).last
    assert (silent["code"], "-p to the site's ssh.command" in silent["hint"]) == ("ssh-configuration", True)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Path]:
    """Return a folder of servers that stop with the test."""
    folder = tmp_path / "own"
    folder.mkdir()
    yield folder
    end_all(folder)


@pytest.mark.parametrize(
    ("fault", "code", "chain"),
    [
        ("no authority", "authority-unknown", "trusted CA certificate"),
        ("signing policy", "authority-unknown", "globus_gsi_callback_module: Error with signing policy"),
        ("another host", "host-name-differs", "(host@localhost) does not match the authenticated name"),
        ("unknown user", "gss-failed", "GSSAPI Error:"),
    ],
)
@pytest.mark.parametrize("persist", ["10m", pytest.param("no", marks=pytest.mark.heavy)])
def test_a_gsi_fault_in_the_key_exchange_is_one_login_with_a_complete_message(
    hibali: Any, grid: Grid, session: Path, fault: str, code: str, chain: str, persist: str
) -> None:
    """Check with Debian's client, OpenSSH 9.2 with GSSAPI key exchange, and with the Globus libraries on both hosts."""
    empty = session / "empty"
    empty.mkdir()
    server = start_gsi_server(
        session,
        grid,
        name="other.test" if fault == "another host" else "localhost",
        environment={"X509_CERT_DIR": str(empty)} if fault == "unknown user" else {},
    )
    hibali.env |= grid.env
    authorities = session / "authorities"
    shutil.copytree(grid.certificates, authorities)
    for path in authorities.iterdir():
        if fault == "no authority":
            path.unlink()
        elif fault == "signing policy" and path.suffix == ".signing_policy":
            path.write_text(path.read_text().replace(ORGANISATION, "/O=Other"))
    hibali.env["X509_CERT_DIR"] = str(authorities)
    hibali.home.config.write_text(
        'version = 1\n[sites.far]\nkind = "ssh"\nroots = { data = "/nowhere" }\n[sites.far.ssh]\nhost = "localhost"\n'
        f'command = {json.dumps(server.command)}\nauth = "gsi"\npersist = "{persist}"\n'
        '[sites.far.limits]\nlogin_interval = "0s"\n'
    )
    hibali.home.config.chmod(0o600)
    error = hibali("ls", "far:@data", "--json", exit=4).last
    assert server.connections() == 1
    if persist == "no":  # standard error of a channel comes from the remote program; ssh adds little
        assert error["code"] == "gss-failed"
        assert " -v localhost" in error["hint"]
    else:
        assert error["code"] == code
        assert chain in error["message"]
        assert "GSS M" in error["message"]
        assert error["hint"]


def cron(host: GridSite, grid: Grid, *words: str, around: list[str] | None = None) -> Any:
    """Return hibali as cron starts it: without a terminal, and with almost no environment."""
    home = host.hibali.home
    names = ("HIBALI_CONFIG", "HIBALI_STATE", "XDG_RUNTIME_DIR", "TEST_SERVICES", "PYTHONPATH")
    env = {name: host.hibali.env[name] for name in names}
    env |= {"HOME": str(home.home), "PATH": SYSTEM_PATH, "X509_CERT_DIR": str(grid.certificates)}
    return subprocess.run(
        [*(around or []), *host.hibali.command(*words)],
        env={name: value for name, value in env.items() if value},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        cwd=home.folder,
        check=False,
        timeout=120,
        start_new_session=True,
    )


def trace_arguments(log: Path) -> list[str]:
    """Return a command prefix that writes the arguments of all started programs to `log`."""
    return ["strace", "-f", "-qq", "-s", "100000", "-e", "trace=execve", "-o", str(log)]


def check_absent(secret: str, *folders: Path) -> None:
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                assert secret.encode() not in path.read_bytes(), path


@pytest.mark.heavy
def test_cron_makes_its_proxy_from_a_locked_key(host: GridSite, grid: Grid, tmp_path: Path) -> None:
    vault = tmp_path / "vault"
    vault.mkdir(mode=0o700)
    kept = vault / "passphrase"
    kept.write_text(grid.passphrase + "\n")
    kept.chmod(0o600)
    keys = f'certificate = "{grid.user_certificate}"\nkey = "{grid.locked_key}"\n'
    made = f'make = "grid-proxy-init"\nlife = "2h"\n{keys}'
    host.configure(f'{made}passphrase_file = "{kept}"', 'persist = "no"')
    trace = tmp_path / "arguments"
    first = cron(host, grid, "ls", "far:@data", "-v", around=trace_arguments(trace))
    assert first.returncode == 0, first.stderr
    path, mode, left = host.calls()[0]
    assert Path(path).is_relative_to(host.hibali.home.runtime)
    assert (mode, stat.S_IMODE(Path(path).parent.stat().st_mode)) == ("600", 0o700)
    assert 7000 < int(left) <= 7200
    before = Path(path).read_bytes()
    second = cron(host, grid, "ls", "far:@data")
    assert second.returncode == 0, second.stderr
    assert Path(path).read_bytes() == before  # it is valid for long enough
    assert b"grid-proxy-init" in trace.read_bytes()
    check_absent(grid.passphrase, host.hibali.home.folder, host.hibali.home.runtime)
    assert grid.passphrase.encode() not in trace.read_bytes()

    Path(path).unlink()
    host.log.unlink()
    remains = host.hibali.home.runtime / "hibali" / "proxy-left-by-a-killed-call"
    remains.mkdir()
    (remains / "proxy").touch()
    os.utime(remains, (0, 0))
    problems = {}
    kept.chmod(0o644)
    problems["no-passphrase"] = cron(host, grid, "ls", "far:@data", "--json")
    kept.chmod(0o600)
    kept.write_text("wrong-" + grid.passphrase)
    problems["proxy-not-made"] = cron(host, grid, "ls", "far:@data", "--json")
    host.configure(made, 'persist = "no"')
    problems["empty-passphrase"] = cron(host, grid, "ls", "far:@data", "--json")
    for code, ended in problems.items():
        assert ended.returncode == 4, (code, ended)
        assert grid.passphrase.encode() not in ended.stdout + ended.stderr
        assert code.replace("empty-passphrase", "no-passphrase").encode() in ended.stdout
    assert b"passphrase_command" in problems["empty-passphrase"].stdout
    assert not host.log.exists()
    assert not remains.exists()


@pytest.mark.heavy
def test_cron_takes_its_proxy_from_myproxy(host: GridSite, grid: Grid, tmp_path: Path) -> None:
    init = ["myproxy-init", "-S", "-s", "localhost", "-p", str(grid.myproxy_port), "-l", "ada", "-c", "0"]
    init += ["-C", str(grid.user_certificate), "-y", str(grid.user_key)]
    stored = subprocess.run(
        init,
        env={"PATH": SYSTEM_PATH, **grid.env},
        input=f"{grid.passphrase}\n".encode(),
        capture_output=True,
        check=False,
    )
    assert stored.returncode == 0, stored
    kept = tmp_path / "passphrase"
    kept.write_text(grid.passphrase + "\n")
    host.configure(
        f'make = "myproxy"\nserver = "localhost"\nport = {grid.myproxy_port}\naccount = "ada"\n'
        f'passphrase_command = ["cat", "{kept}"]',
        "logins = 4",
    )
    kept.write_text("wrong-phrase")
    tries = tmp_path / "tries"
    refused = cron(host, grid, "ls", "far:@data", "--json", around=trace_arguments(tries))
    assert (refused.returncode, b"proxy-not-made" in refused.stdout) == (4, True), refused
    assert tries.read_bytes().count(b'execve("/usr/bin/myproxy-logon"') == 1
    assert b"wrong-phrase" not in refused.stdout + refused.stderr
    assert host.calls() == []
    kept.write_text(grid.passphrase + "\n")
    ended = cron(host, grid, "ls", "far:@data")
    assert ended.returncode == 0, ended.stderr
    path, mode, left = host.calls()[0]
    assert Path(path).is_relative_to(host.hibali.home.runtime)
    assert mode == "600"
    assert 3500 < int(left) <= 3600
    check_absent(grid.passphrase, host.hibali.home.folder, host.hibali.home.runtime)


@pytest.mark.heavy
def test_a_gridftp_server_is_not_contacted_with_an_unusable_proxy(
    hibali: Any, ssh_server: Any, grid: Grid, tmp_path: Path
) -> None:
    place = tmp_path / "there"
    place.mkdir()
    mine = tmp_path / "mine"
    source = tmp_path / "large"
    source.write_bytes(os.urandom(1 << 21))
    words = ", ".join(f'"{word}"' for word in ssh_server.command)
    config = hibali.home.config
    config.write_text(
        f'version = 1\n[sites.far]\nkind = "ssh"\nroots = {{ data = "{place}" }}\n[sites.far.ssh]\n'
        f'host = "{ssh_server.host}"\ncommand = [{words}]\n'
        f'[sites.far.gridftp]\nurl = "{grid.url}"\nleast = "1M"\n[sites.far.proxy]\n'
    )
    config.chmod(0o600)
    hibali.env |= {**grid.env, "X509_USER_PROXY": str(mine)}
    push = ("push", source, "far:@data/", "--json")
    seen = []
    for seconds in (None, 300, -60):
        mine.unlink(missing_ok=True)
        if seconds is not None:
            grid.make_proxy(mine, seconds)
        error = hibali(*push, exit=4).last
        assert (error["about"], "grid-proxy-init -valid 12:00" in error["hint"]) == (grid.url, True)
        seen.append(error["code"])
    assert seen == ["proxy-missing", "proxy-too-short", "proxy-expired"]
    assert not (place / "large").exists()
    with config.open("a") as more:
        more.write(
            f'make = "grid-proxy-init"\ncertificate = "{grid.user_certificate}"\nkey = "{grid.locked_key}"\n'
            'passphrase_variable = "MY_PASSPHRASE"\n'
        )
    receipt = hibali(*push, env={"MY_PASSPHRASE": grid.passphrase}, exit=0).last
    assert (receipt["mover"], receipt["proof_moved"]) == ("gridftp", "digest")
    assert (place / "large").read_bytes() == source.read_bytes()
    check_absent(grid.passphrase, hibali.home.folder, hibali.home.runtime)


@pytest.fixture
def bench(hibali: Any, grid: Grid) -> Bench:
    made = Bench(hibali, doing(f"{PRINT_PROXY} >[OUT]; sleep [SLEEP]"))
    hibali.env |= grid.env
    made.add_local_site()
    return made


def proxies(bench: Bench) -> list[Path]:
    return sorted(bench.folder.glob("work-*/runs/**/proxy"))


@pytest.mark.heavy
def test_a_job_has_a_proxy_of_its_own_that_is_deleted_at_its_end(
    bench: Bench, grid: Grid, tmp_path: Path
) -> None:
    mine = grid.make_proxy(tmp_path / "mine", 3 * 3600)
    bench.hibali.env["X509_USER_PROXY"] = str(mine)
    answers = bench.answers()
    short = bench.run(answers, "--with-proxy", "--time", "4h", exit=4).last
    assert (short["code"], short["hint"]) == ("proxy-too-short", "Run: grid-proxy-init -valid 12:00")
    assert bench.run_ids() == []
    ended = bench.run(answers, "--with-proxy", "--time", "1h", "--wait", exit=0).last
    bench.hibali("runs", "collect", ended["id"], "back", exit=0)
    path, mode, left = (bench.folder / "back" / "out.txt").read_text().split()
    assert path == f"{ended['folder']}/proxy"
    assert (mode, int(left) <= 3 * 3600) == ("600", True)
    assert proxies(bench) == []
    key = mine.read_text().partition("PRIVATE KEY-----\n")[2][:60]
    assert key
    check_absent(key, bench.folder)

    ended = bench.run(answers, "--new", "--wait", exit=0).last  # without a proxy the variable is unchanged
    bench.hibali("runs", "collect", ended["id"], "without", exit=0)
    assert (bench.folder / "without" / "out.txt").read_text().split()[0] == str(mine)

    swept = bench.run(answers, "--with-proxy", "--param", "say=a,b", "--wait", exit=0).last
    paths = sorted(path.read_text().split()[0] for path in Path(swept["folder"]).glob("tasks/*/work/out.txt"))
    assert paths == [f"{swept['folder']}/tasks/{number}/proxy" for number in (1, 2)]
    assert proxies(bench) == []
    pilot = bench.run(answers, "--with-proxy", "--param", "say=a,b", "--pilot", exit=2).last
    assert pilot["code"] == "not-in-a-pilot"


def test_a_jobs_proxy_is_made_from_the_configuration_without_leaking_the_passphrase(
    hibali: Any, grid: Grid
) -> None:
    bench = Bench(hibali, doing(f"({PRINT_PROXY}; env) >[OUT]"))
    bench.add_local_site()
    hibali.env |= {"X509_CERT_DIR": str(grid.certificates), "MY_PASSPHRASE": grid.passphrase}
    hibali.env.pop("X509_USER_PROXY", None)
    with hibali.home.config.open("a") as config:
        config.write(
            f'[sites.here.proxy]\nmake = "grid-proxy-init"\ncertificate = "{grid.user_certificate}"\nqueue = "0s"\n'
            f'key = "{grid.locked_key}"\npassphrase_variable = "MY_PASSPHRASE"\njobs = true\n'
        )
    ended = bench.run(bench.answers(), "--time", "2h", "--wait", exit=0).last
    path, mode, left = (Path(ended["folder"]) / "work" / "out.txt").read_text().splitlines()[0].split()
    assert (path, mode) == (f"{ended['folder']}/proxy", "600")
    assert 7000 < int(left) <= 7200
    bench.run(bench.answers(), "--no-proxy", "--new", "--wait", exit=0)
    check_absent(grid.passphrase, hibali.home.folder, hibali.home.runtime)
    assert proxies(bench) == []


@pytest.mark.heavy
def test_the_proxy_of_a_cancelled_or_killed_job_is_deleted(bench: Bench) -> None:
    answers = bench.answers(sleep=600)
    run = bench.run(answers, "--with-proxy", exit=0).last
    assert [path.parent.name for path in proxies(bench)] == [run["id"]]
    assert [stat.S_IMODE(path.stat().st_mode) for path in proxies(bench)] == [0o600]
    bench.hibali("runs", "cancel", run["id"], exit=None)
    bench.hibali("runs", "wait", run["id"], exit=7)
    assert proxies(bench) == []

    # a killed job is not known to be over until a user cancels it
    run = bench.run(answers, "--with-proxy", "--new", exit=0).last
    job = int(run["tasks"][0]["job"].split(":")[0])
    os.killpg(job, signal.SIGKILL)
    assert len(proxies(bench)) == 1
    bench.hibali("runs", "cancel", run["id"])
    assert proxies(bench) == []


@pytest.mark.heavy
@pytest.mark.parametrize("word", ["bubblewrap", "podman"])
def test_a_tool_in_a_container_can_read_but_not_change_the_proxy(
    word: str, request: pytest.FixtureRequest, hibali: Any, grid: Grid, tool: Tool
) -> None:
    ready(word, request, hibali)
    hibali.env |= grid.env
    command = 'cat "$X509_USER_PROXY" >[OUT]; echo x >>"$X509_USER_PROXY"; true'
    bench = Bench(hibali, {**doing(command), "container-image": {"type": "docker", "image": tool.name}})
    bench.add_local_site("box", word)
    catalogued(bench, tool)
    ended = bench.run(bench.answers(), "--with-proxy", "--wait", exit=0).last
    assert (Path(ended["folder"]) / "work" / "out.txt").read_text().count("BEGIN CERTIFICATE") == 3
    assert b"Read-only file system" in hibali("runs", "logs", ended["id"], "--stderr", exit=0).out
    assert proxies(bench) == []


@pytest.mark.heavy
def test_a_slurm_job_has_a_proxy_and_a_job_that_never_started_leaves_none(
    hibali: Any, slurm: Any, grid: Grid
) -> None:
    bench = Bench(hibali, doing(f"{PRINT_PROXY} >[OUT]; sleep [SLEEP]"))
    hibali.env |= grid.env
    bench.add_slurm_site(slurm)
    config = hibali.home.config
    config.write_text(config.read_text() + "[sites.cluster.proxy]\njobs = true\n")
    ended = bench.run(bench.answers(), "--wait", exit=0).last
    path, mode, _ = (Path(ended["folder"]) / "work" / "out.txt").read_text().split()
    assert (path, mode) == (f"{ended['folder']}/proxy", "600")
    assert proxies(bench) == []
    held = bench.run(bench.answers(), "--hold", "--new", exit=0).last
    assert len(proxies(bench)) == 1
    bench.hibali("runs", "cancel", held["id"])
    bench.hibali("runs", "wait", held["id"], exit=7)
    assert proxies(bench) == []
