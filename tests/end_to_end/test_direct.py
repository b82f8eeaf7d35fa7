"""Test direct transfers between ssh sites: no data passes through this machine, all files are verified, no file of hibali remains."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.services.processes import end_all
from tests.services.sshd import on_another_machine, start_sshd
from tests.support.backends import FolderBackend, add_site
from tests.support.faulty_proxy import CountingProxy
from tests.support.restartable_server import RestartableServer, restartable_server
from tests.support.trees import HOSTILE_NAMES, File, Folder, Link, Tree, make_tree, many_files, read_tree
from tests.support.waiting import wait_for

MIB = 1 << 20


@dataclass
class Sites:
    """Two sites `north` and `south`, each with its own sshd, host key and home; only north has a key for south."""

    hibali: Any
    north: FolderBackend
    south: FolderBackend
    way: Path  # the ssh configuration at north for south

    def make(self, tree: Tree) -> Path:
        return make_tree(self.north.at("data"), tree)

    def sync(self, *words: str, code: int = 0, source: str = "data", target: str = "data") -> Any:
        answer = self.hibali("sync", "--direct", f"north:{source}", f"south:{target}", "--json", *words)
        assert answer.exit == code, str(answer)
        assert answer.last["exit"] == code, str(answer)
        return answer

    def same(self, source: str = "data", target: str = "data") -> bool:
        return read_tree(self.north.at(source)) == read_tree(self.south.at(target))

    def wait_until_no_process_runs(self) -> None:
        """Wait until no agent and no ssh from one site to the other runs; they end by themselves with a delay."""
        wait_for(lambda: not _processes(self.north, self.south))

    def check_no_own_files(self) -> None:
        names = {name for name in self.south.names("") if b".hibali" in name}
        assert names <= {b"data/" + name for name in HOSTILE_NAMES}, names


def _processes(*places: FolderBackend) -> list[tuple[int, bytes]]:
    """Return the processes in the homes of these sites, and their arguments."""
    found = []
    homes = [b"\0HOME=%b\0" % bytes(place.server.home) for place in places]
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment, words = (entry / "environ").read_bytes(), (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if any(home in b"\0" + environment for home in homes):
                found.append((int(entry.name), words))
    return found


def _folder_place(server: RestartableServer) -> FolderBackend:
    assert isinstance(server.place, FolderBackend)
    return server.place


def _give_key(north: FolderBackend, south: FolderBackend) -> Path:
    """Give north's account a key that south accepts, and a configuration that knows south."""
    home, there = north.server.home, south.server
    key = home / "key_for_south"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    with Path(there.folder, "authorized_keys").open("a") as accepted:
        accepted.write(key.with_suffix(".pub").read_text())
    (home / "known_hosts").write_text(Path(there.folder, "known_hosts").read_text())
    config = home / "ssh_config"
    config.write_text(
        f"Host {there.host}\n  HostName 127.0.0.1\n  Port {there.port}\n  User {there.user}\n"
        f"  IdentityFile {key}\n  IdentitiesOnly yes\n  UserKnownHostsFile {home}/known_hosts\n"
        # settings of a login that a transfer must not use
        "  ForwardAgent yes\n  RemoteCommand false\n  RequestTTY force\n"
    )
    return Path(config)


@pytest.fixture
def sites(hibali: Any, tmp_path: Path) -> Iterator[Sites]:
    with ExitStack() as stack:
        places = []
        for name in ("north", "south"):
            (tmp_path / name).mkdir()
            places.append(_folder_place(stack.enter_context(restartable_server("ssh", tmp_path / name))))
        north, south = places
        way = _give_key(north, south)
        reached = f'[sites.south.reached_from.north]\ncommand = ["ssh", "-F", "{way}"]\n'
        add_site(hibali.home.config, "north", north)
        add_site(hibali.home.config, "south", south, reached)
        yield Sites(hibali, north, south, way)


def counted(sites: Sites, stack: ExitStack) -> list[CountingProxy]:
    """Count the bytes on hibali's own connections to both sites from now on."""
    proxies = []
    for place in (sites.north, sites.south):
        proxy = CountingProxy(place.server.port)
        stack.callback(proxy.close)
        config = place.server.config
        config.write_text(config.read_text().replace(f"Port {place.server.port}", f"Port {proxy.port}"))
        known = Path(place.server.folder, "known_hosts")
        known.write_text(known.read_text().replace(f":{place.server.port}", f":{proxy.port}"))
        proxies.append(proxy)
    return proxies


def test_the_bytes_do_not_pass_through_this_machine_and_are_verified(sites: Sites) -> None:
    tree = {**many_files(600, 20_000), b"large": os.urandom(13 * MIB + 5), b"empty": b"", b"d/e": Folder()}
    size = sum(len(leaf) for leaf in tree.values() if isinstance(leaf, bytes))
    assert size > 25_000_000
    sites.make(tree)
    with ExitStack() as stack:
        proxies = counted(sites, stack)
        receipt = sites.sync().last
        assert sum(proxy.bytes for proxy in proxies) < size * 0.05
    assert sites.same()
    assert (receipt["mover"], receipt["proof_moved"], receipt["bytes_sent"]) == ("direct", "digest", 0)
    assert (receipt["bytes_moved"], receipt["files_moved"], receipt["logins"]) == (size, 602, 3)
    sites.check_no_own_files()
    sites.wait_until_no_process_runs()
    again = sites.sync().last
    assert (again["files_moved"], again["mover"]) == (0, None)
    assert sites.hibali("verify", "north:data", "south:data", exit=0)


def test_the_plan_made_on_this_machine_is_executed_between_the_sites(sites: Sites) -> None:
    """Check hostile names, links, modes, hard links, deletions, a file where a folder was, and a dry run."""
    tree: dict[bytes, Any] = dict.fromkeys(HOSTILE_NAMES, b"content")
    tree |= {b"x": File(b"run", executable=True), b"l": Link(b"../out"), b"kind": b"a file now"}
    root = sites.make(tree)
    os.link(root / "x", root / "second name")
    make_tree(sites.south.at("data"), {b"gone": b"1", b"kind/of/folder": b"2"})
    words = ("--delete", "--hard-links", "--modes", "keep")
    before = sites.south.tree("data")
    sites.sync("--dry-run", *words)
    assert sites.south.tree("data") == before
    receipt = sites.sync(*words, "--bwlimit", "100M").last
    assert sites.same()
    assert (receipt["files_deleted"], receipt["files_linked"], receipt["mover"]) == (2, 1, "direct")
    assert (sites.south.at("data") / "x").stat().st_nlink == 2
    sites.check_no_own_files()


@pytest.mark.heavy
def test_one_file_is_sent_under_another_name(sites: Sites) -> None:
    sites.make({b"a": os.urandom(5 * MIB), b"b": b"small"})
    for source, target in (("data/a", "put/as c"), ("data/b", "put/")):
        assert sites.sync(source=source, target=target).last["mover"] == "direct"
    assert (sites.south.at("put") / "as c").read_bytes() == (sites.north.at("data") / "a").read_bytes()
    assert (sites.south.at("put") / "b").read_bytes() == b"small"
    sites.check_no_own_files()


@pytest.mark.heavy
@pytest.mark.parametrize(
    "killed",
    ["here", pytest.param("north", marks=pytest.mark.heavy), pytest.param("south", marks=pytest.mark.heavy)],
)
def test_after_a_kill_the_same_command_resumes(sites: Sites, killed: str) -> None:
    size = 40 * MIB
    sites.make({**many_files(20, 50_000), b"large": os.urandom(size)})
    process = sites.hibali.start("sync", "--direct", "north:data", "south:data", "--bwlimit", "20M")
    begun = sites.south.at("data/.hibali/begun")
    wait_for(lambda: begun.exists() and begun.read_bytes().count(b"sha256") >= 2)
    os.kill(process.pid if killed == "here" else agent_at(sites, killed), signal.SIGKILL)
    assert process.wait(60) == {"here": -signal.SIGKILL}.get(killed, 5)
    sites.wait_until_no_process_runs()
    assert not sites.south.at("data/large").exists()
    with CountingProxy(sites.south.server.port) as between:
        sites.way.write_text(sites.way.read_text().replace("Port ", f"Port {between.port} #"))
        receipt = sites.sync("--bwlimit", "1G").last
        assert between.sent < size - 8 * MIB
    assert (receipt["files_failed"], receipt["proof_moved"], receipt["mover"]) == (0, "digest", "direct")
    assert sites.same()
    sites.check_no_own_files()
    sites.wait_until_no_process_runs()


@pytest.mark.heavy
@pytest.mark.parametrize("stopped", ["north", "south"])
def test_an_agent_that_was_stopped_ends_the_command(sites: Sites, stopped: str) -> None:
    """The other agent has nothing to do then, and must not hide that."""
    config = sites.hibali.home.config
    config.write_text(config.read_text().replace(".limits]\n", '.limits]\nstall = "2s"\n'))
    sites.make({b"large": os.urandom(40 * MIB)})
    process = sites.hibali.start("sync", "--direct", "north:data", "south:data", "--bwlimit", "10M", "--json")
    begun = sites.south.at("data/.hibali/begun")
    wait_for(lambda: begun.exists() and begun.read_bytes().count(b"sha256") >= 1)
    agent = agent_at(sites, stopped)
    os.kill(agent, signal.SIGSTOP)
    try:
        assert process.wait(60) == 5
    finally:
        os.kill(agent, signal.SIGKILL)
    error = json.loads((sites.hibali.home.folder / "0.out").read_bytes().splitlines()[-1])
    assert (error["code"], error["about"]) == ("stalled", "north -> south")
    sites.wait_until_no_process_runs()


def agent_at(sites: Sites, name: str) -> int:
    """Return the agent at north that connects to south, or the agent at south that it started."""
    if name == "north":
        (reaching,) = [pid for pid, words in _processes(sites.north) if words.startswith(b"ssh\0-F\0")]
        status = Path(f"/proc/{reaching}/status").read_text()
        return int(re.search(r"^PPid:\t(\d+)", status, re.MULTILINE)[1])  # type: ignore[index]
    holder = json.loads(sites.south.at("data/.hibali/lock").read_bytes())["pid"]
    (receiver,) = [
        pid for pid, words in _processes(sites.south) if b"zlib.decompress" in words and pid != holder
    ]
    return receiver


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("lacking", "code"),
    [("key", "login-refused"), ("host key", "host-key"), ("ssh", "no-ssh")],
)
def test_without_a_connection_between_the_sites_nothing_is_changed(
    sites: Sites, lacking: str, code: str
) -> None:
    sites.make({b"a": b"1"})
    make_tree(sites.south.at(""), {b"other": b"2"})
    before = sites.south.tree("")
    _remove(sites, lacking)
    error = sites.sync(code=4).last
    assert (error["kind"], error["code"]) == ("error", code)
    assert error["about"] == "north -> south"
    assert "--direct" in error["hint"]
    assert "reached_from" in error["hint"]
    assert sites.south.tree("") == before
    sites.wait_until_no_process_runs()


def _remove(sites: Sites, lacking: str) -> None:
    if lacking == "key":
        accepted = Path(sites.south.server.folder, "authorized_keys")
        accepted.write_text(accepted.read_text().splitlines()[0] + "\n")
    elif lacking == "host key":
        (sites.north.server.home / "known_hosts").write_text("")
    else:
        config = sites.hibali.home.config
        sites_there, reached, way = config.read_text().partition("reached_from")
        config.write_text(sites_there + reached + way.replace('"ssh"', '"no-such-ssh"'))


def test_a_forwarded_agent_gives_no_key_to_a_site(sites: Sites) -> None:
    """Check that an agent that holds the key for south is not forwarded to north, even if the configuration forwards it (S7)."""
    sites.make({b"a": b"1"})
    config = sites.north.server.config
    config.write_text(config.read_text() + "  ForwardAgent yes\n")
    lines = sites.way.read_text().splitlines()
    sites.way.write_text("\n".join(line for line in lines if "Identit" not in line))
    with local_ssh_agent(
        Path(sites.hibali.home.runtime), Path(sites.south.server.folder, "login_key")
    ) as socket_path:
        sites.hibali.env["SSH_AUTH_SOCK"] = str(socket_path)
        assert sites.sync(code=4).last["code"] == "login-refused"


@contextmanager
def local_ssh_agent(folder: Path, key: Path) -> Iterator[Path]:
    """Start an ssh-agent on this machine with a key."""
    path = folder / "agent"
    with subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL) as agent:
        wait_for(path.exists)
        words = ["ssh-add", "-q", key]
        subprocess.run(words, check=True, env={**os.environ, "SSH_AUTH_SOCK": str(path)})
        yield path
        agent.kill()


@pytest.mark.parametrize(
    ("source", "target", "code"),
    [
        ("north:data", "here:data", "direct-kind"),
        ("data", "north:data", "direct-kind"),
    ],
)
def test_direct_transfers_need_two_ssh_sites(hibali: Any, source: str, target: str, code: str) -> None:
    """Check that this is refused without any login."""
    north = '[sites.north]\nkind = "ssh"\n[sites.north.ssh]\nhost = "nowhere.invalid"\n'
    hibali.home.config.write_text(f'version = 1\n{north}[sites.here]\nkind = "local"\n')
    hibali.home.config.chmod(0o600)
    error = hibali("sync", "--direct", source, target, "--json", exit=2).last
    assert error["code"] == code
    assert "--direct" in error["hint"]


def test_a_site_without_an_agent_is_refused(sites: Sites) -> None:
    sites.make({b"a": b"1"})
    config = sites.hibali.home.config
    config.write_text(config.read_text().replace('transport = "agent"', 'transport = "sftp"'))
    assert sites.sync(code=2).last["code"] == "direct-transport"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can switch to another account")
def test_a_login_as_another_account_receives_nothing(sites: Sites) -> None:
    sites.make({b"a": b"1"})
    wrapper = sites.north.server.home / "other account"
    become = "setpriv --reuid=65534 --regid=65534 --clear-groups"
    wrapper.write_text(f'#!/bin/sh\nfor last; do :; done\nexec {become} sh -c "$last"\n')
    wrapper.chmod(0o755)
    config = sites.hibali.home.config
    start, reached, _ = config.read_text().partition('command = ["ssh", "-F", "' + str(sites.way))
    config.write_text(f"{start}command = {json.dumps([str(wrapper)])}\n")
    assert reached
    assert sites.sync(code=4).last["code"] == "another-account"
    assert not sites.south.files("")
    sites.wait_until_no_process_runs()


def sync_at_site(sites: Sites, source: str, target: str, *words: str) -> Any:
    """Return the receipt of a transfer without --direct."""
    return sites.hibali("sync", source, target, "--json", *words, exit=0).last


@pytest.mark.parametrize("target", ["north", "south"])
def test_the_bytes_stay_at_the_site(sites: Sites, target: str) -> None:
    """South has another login, and sees the files of north at the same absolute path."""
    sites.make({**many_files(50, 20_000), b"large": os.urandom(13 * MIB + 5), b"empty": b""})
    source, there = sites.north.at("data"), sites.north.at("copy")
    with ExitStack() as stack:
        proxies = counted(sites, stack)
        receipt = sync_at_site(sites, f"north:{source}", f"{target}:{there}")
        assert sync_at_site(sites, f"north:{source}", f"{target}:{there}")["files_moved"] == 0
        assert sum(proxy.bytes for proxy in proxies) < 2 * MIB
    assert read_tree(there) == read_tree(source)
    assert (receipt["mover"], receipt["proof_moved"], receipt["bytes_sent"]) == ("direct", "digest", 0)


@pytest.mark.heavy
def test_the_command_goes_on_after_the_writing_agent_died(sites: Sites) -> None:
    config = Path(sites.hibali.home.config)
    config.write_text(config.read_text().replace('reconnect = "0s"', 'reconnect = "10m"'))
    tree = many_files(300, 20_000)
    sites.make(tree)
    process = sites.hibali.start("sync", "north:data", "north:copy", "--json", "--bwlimit", "1M")
    copied = sites.north.at("copy")
    wait_for(lambda: sum(path.is_file() for path in copied.rglob("[!.]*")) > 20)
    agents = [pid for pid, _ in _processes(sites.north)]
    # the session starts the agents, and the one that reads starts the one that writes
    (writer,) = [pid for pid in agents if {_parent_of(pid), _parent_of(_parent_of(pid))} <= set(agents)]
    os.kill(writer, signal.SIGKILL)
    assert process.wait(120) == 0, (sites.hibali.home.folder / "0.err").read_text()
    assert read_tree(copied) == tree
    assert not (copied / ".hibali").exists()


def _parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.skipif(os.geteuid() != 0, reason="another boot id needs root")
def test_another_machine_sees_the_files_at_another_path(hibali: Any, tmp_path: Path) -> None:
    """As two systems of one centre that mount one filesystem; what only one of them has passes through this machine."""
    shared, elsewhere, hidden, session = (
        tmp_path / name for name in ("shared", "elsewhere", "hidden", "own")
    )
    for folder in (shared, elsewhere, hidden, session):
        folder.mkdir()
    mounts = (("--bind", str(shared), str(elsewhere)), ("-t", "tmpfs", "none", str(hidden)))
    try:
        for name, around in (("north", ()), ("south", on_another_machine(session, *mounts))):
            server = start_sshd(session, session / name, around=around)
            add_site(hibali.home.config, name, FolderBackend("ssh", tmp_path / name, server))
        for folder, mover in ((shared, "direct"), (hidden, "stream")):
            make_tree(folder / "data", {b"a": os.urandom(MIB), b"b/c": b"c"})
            target = f"south:{elsewhere}/{mover}"
            receipt = hibali("sync", f"north:{folder}/data", target, "--json", exit=0).last
            assert (receipt["mover"], receipt["files_moved"]) == (mover, 2)
            assert read_tree(shared / mover) == read_tree(folder / "data")
    finally:
        end_all(session)


def test_one_file_gets_another_name(sites: Sites) -> None:
    sites.make({b"a": os.urandom(5 * MIB)})
    receipt = sync_at_site(sites, "north:data/a", "north:data/b")
    assert (receipt["mover"], receipt["bytes_sent"]) == ("direct", 0)
    assert (sites.north.at("data") / "b").read_bytes() == (sites.north.at("data") / "a").read_bytes()


def test_the_bytes_pass_through_this_machine_where_that_is_asked_for(sites: Sites) -> None:
    sites.make({b"a": os.urandom(MIB)})
    receipt = sync_at_site(sites, "north:data", "north:copy", "--via", "stream")
    assert (receipt["mover"], receipt["bytes_sent"]) == ("stream", 2 * MIB)


def test_where_no_login_is_kept_all_agents_share_one(sites: Sites) -> None:
    config = Path(sites.hibali.home.config)
    config.write_text(
        config.read_text().replace("[sites.north.ssh]\n", '[sites.north.ssh]\npersist = "no"\n')
    )
    sites.make({b"a": os.urandom(MIB)})
    receipt = sync_at_site(sites, "north:data", "north:copy")
    assert (receipt["mover"], receipt["logins"], receipt["bytes_sent"]) == ("direct", 1, 0)
