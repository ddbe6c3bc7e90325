"""Every kind of URL, on real servers: TLS, unix socket, users, Sentinel; and what is said of those that are wrong."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from harness.certificates import server_tls
from harness.ports import free_port
from harness.process import eventually
from harness.redis import RedisServer
from harness.stalls import lasted
from redis_world.fleets import Sentinel
from redis_world.parties import at_key, parties
from soloflight.core.flight import Answered, Done, Owned
from soloflight.ports import BackendError
from soloflight.testing.fault_proxy import FaultProxy
from soloflight.testing.party import ANSWER, Party
from soloflight_redis.notices import GAP
from soloflight_redis.topology import Kind, read_url

DOCS = Path(__file__).parents[3] / "docs/redis.md"


async def works(party: Party) -> None:
    """From claim to replay, and heard of."""
    there, subscription = await party.listen()
    fence = await party.run()
    assert await party.append(fence, 1) == Done()
    assert await party.seal(fence) == Done()
    reply = await party.claim()
    assert isinstance(reply, Answered)
    assert await party.result(reply.number) == ANSWER
    await there.until(lambda notices: len(notices) == 2)
    await subscription.close()
    assert len(await party.coordinator.scope_key()) == 32
    assert await party.coordinator.purge(party.key)


# ── URLs ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("url", "kind", "shown", "options"),
    [
        ("redis://h", Kind.SINGLE, "redis://h", {"host": "h"}),
        ("redis://h:1/3", Kind.SINGLE, "redis://h:1", {"host": "h", "port": 1, "db": 3}),
        ("redis://:p%40ss@h", Kind.SINGLE, "redis://h", {"host": "h", "password": "p@ss"}),
        ("redis://u:p@h?db=2", Kind.SINGLE, "redis://h", {"host": "h", "username": "u", "password": "p", "db": 2}),
        ("rediss://h?ssl_ca_certs=/ca", Kind.SINGLE, "rediss://h", {"host": "h", "ssl_ca_certs": "/ca"}),
        ("unix:///run/r.sock?db=1", Kind.SINGLE, "unix:///run/r.sock", {"path": "/run/r.sock", "db": 1}),
        (
            "redis+sentinel://u:p@a,b:2/main/4?sentinel_password=s",
            Kind.SENTINEL,
            "redis+sentinel://a,b:2/main",
            {"username": "u", "password": "p", "db": 4},
        ),
        ("redis+cluster://:p@a,b:2", Kind.CLUSTER, "redis+cluster://a,b:2", {"password": "p"}),
        ("rediss+cluster://a/0", Kind.CLUSTER, "rediss+cluster://a", {}),
        ("redis+cluster://[::1]:7000", Kind.CLUSTER, "redis+cluster://[::1]:7000", {}),
        ("redis://h?max_connections=9&timeout=1&socket_timeout=99", Kind.SINGLE, "redis://h", {"host": "h"}),
    ],
)
def test_a_url_is_read(url: str, kind: Kind, shown: str, options: dict[str, object]) -> None:
    target = read_url(url)
    assert (target.kind, target.shown, target.options) == (kind, shown, options)
    assert "p@ss" not in repr(target)
    assert "'p'" not in repr(target)


def test_hosts_have_the_port_of_their_kind() -> None:
    assert read_url("redis+sentinel://a,b:2/main").hosts == (("a", 26379), ("b", 2))
    assert read_url("redis+cluster://a,[::1]:2").hosts == (("a", 6379), ("::1", 2))
    assert read_url("redis+sentinel://a/main?sentinel_username=x&sentinel_password=y").sentinel_options == {
        "username": "x",
        "password": "y",
    }


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://h?no_such_option=1", "unknown option no_such_option"),
        ("redis://h/abc", "a database is a number, not 'abc'"),
        ("redis://h?db=x", "Invalid value for 'db' in connection URL."),
        ("redis+sentinel://h", "redis+sentinel:// needs the name of the service: redis+sentinel://HOST,HOST/SERVICE"),
        ("redis+cluster://h/3", "a cluster has one database, 0"),
        ("redis+other://h", "unknown scheme redis+other://"),
        ("unix+cluster://h", "unknown scheme unix+cluster://"),
        ("rediss://h?ssl_cert_reqs=maybe", "Invalid SSL Certificate Requirements Flag: maybe"),
    ],
)
def test_a_url_that_can_not_be_meant_is_refused(url: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        read_url(url)


def test_a_target_shows_no_secret() -> None:
    assert "secret" not in repr(read_url("redis://user:secret@h"))
    assert "secret" not in repr(read_url("rediss+sentinel://user:secret@h/main?sentinel_password=secret"))


# ── one server ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_unix_socket(start_redis: Callable[..., RedisServer], tmp_path: Path) -> None:
    start_redis("--unixsocket", str(tmp_path / "redis.sock"))
    async with parties(f"unix://{tmp_path}/redis.sock?db=1") as (a,):
        await works(a)


async def test_another_database_is_another_world(redis_server: RedisServer) -> None:
    async with parties(redis_server.url, redis_server.url.replace("/0", "/5")) as (a, b):
        await a.run()
        assert isinstance(await b.claim(), Owned)


async def test_a_password(start_redis: Callable[..., RedisServer], caplog: pytest.LogCaptureFixture) -> None:
    server = start_redis()
    server.command("CONFIG", "SET", "requirepass", "s3cr3t/!")
    async with parties(f"redis://:s3cr3t%2F%21@127.0.0.1:{server.port}") as (a,):
        await works(a)
    for url in (f"redis://:wrong@127.0.0.1:{server.port}", server.url):
        caplog.clear()
        async with parties(url) as (a,):
            assert not a.coordinator.up
            with pytest.raises(BackendError):
                await a.claim()
        assert len(caplog.records) == 1
        assert f"redis redis://127.0.0.1:{server.port} is away: wrong user or password; going on" in caplog.text
        assert "wrong@" not in caplog.text


def rules() -> list[str]:
    """The minimal user of docs/redis.md."""
    found = re.search(r"ACL SETUSER soloflight (.*?)\n```", DOCS.read_text(), re.DOTALL)
    assert found is not None
    return found[1].split()


@pytest.fixture
def user_server(start_redis: Callable[..., RedisServer]) -> RedisServer:
    server = start_redis()
    server.command("ACL", "SETUSER", "soloflight", *rules())
    server.command("ACL", "SETUSER", "default", "resetkeys", "resetchannels")
    return server


async def test_the_documented_user_can_do_all_that_is_needed_without_script(user_server: RedisServer) -> None:
    assert not [rule for rule in rules() if "script" in rule or rule in ("+@all", "~*", "&*")]
    url = f"redis://soloflight:PASSWORD@127.0.0.1:{user_server.port}/0"
    async with parties(url, url) as (a, b):
        await works(a)
        fence = await a.run()
        assert await a.renew(fence) == Done()
        await b.claim()
        await a.rings.holds(a.key)
        assert await b.leave(fence.number) == Done()
        assert await a.fail(fence) == Done()
        await a.coordinator.tell("word")
        await b.words.holds("word")
        await a.coordinator.mark("name")
        assert (await b.coordinator.marks()).keys() == {"name"}
        await a.abandon(await a.own())
        user_server.command("SCRIPT", "FLUSH")
        await works(at_key(a, "again"))


async def test_a_user_who_may_not_write_is_told_of_in_one_line(
    user_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    user_server.command("ACL", "SETUSER", "soloflight", "-set")
    async with parties(f"redis://soloflight:PASSWORD@127.0.0.1:{user_server.port}") as (a,):
        assert not a.coordinator.up
        assert len(caplog.records) == 1
        assert "the user may not do what is needed" in caplog.text
        assert "'set'" in caplog.text
        user_server.command("ACL", "SETUSER", "soloflight", "+set")
        await eventually(lambda: a.coordinator.up)
        await works(a)


Reads = Callable[[bytes], bytes]


@asynccontextmanager
async def stranger(answer: Reads) -> AsyncIterator[int]:
    """Something that answers whatever it reads by ``answer``, and leaves when that is empty; yields its port."""
    serving: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        with suppress(OSError):
            while (said := await reader.read(1 << 16)) and (reply := answer(said)):
                writer.write(reply)
            writer.close()
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.gather(*filter(None, serving))  # its clients have left


def hello(version: str) -> Reads:
    """Says to be a redis-server of this version; "" knows no HELLO."""
    words = [b"server", b"redis", b"version", version.encode(), b"mode", b"standalone", b"role", b"master"]
    known = b"*8\r\n" + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
    unknown = b"-ERR unknown command `HELLO`, with args beginning with: \r\n"
    return lambda said: known if version else unknown


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("6.0.16", "it is version 6.0.16; 6.2 or newer is needed"),
        ("5", "it is version 5; 6.2 or newer is needed"),
        ("", "it is older than version 6.2, which is needed"),
    ],
)
async def test_a_server_that_is_too_old(version: str, said: str, caplog: pytest.LogCaptureFixture) -> None:
    async with stranger(hello(version)) as port, parties(f"redis://127.0.0.1:{port}") as (a,):
        assert not a.coordinator.up
        assert len(caplog.records) == 1
        assert said in caplog.text


async def test_nobody_there(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    async with parties(f"redis://127.0.0.1:{port}") as (a,):
        assert not a.coordinator.up
    (line,) = [record.getMessage() for record in caplog.records]
    assert "\n" not in line
    assert f"127.0.0.1:{port}" in line
    assert "refused" in line.lower() or "connect" in line.lower()


async def test_somebody_else_s_port(caplog: pytest.LogCaptureFixture) -> None:
    async with stranger(lambda said: b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        for scheme, said in (("redis", "Protocol error"), ("rediss", "TLS failed: WRONG_VERSION_NUMBER")):
            caplog.clear()
            async with parties(f"{scheme}://127.0.0.1:{port}") as (a,):
                assert not a.coordinator.up
            assert len(caplog.records) == 1
            assert said in caplog.text


# ── TLS ─────────────────────────────────────────────────────────────────────────────────────────────────────


class TlsServer:
    """A server with TLS beside its plain port."""

    def __init__(self, folder: Path, start: Callable[..., RedisServer], *options: str, names: tuple[str, ...]) -> None:
        _, self.bundle = server_tls(folder, *names)
        self.pair = folder / "server.pem"
        self.port = free_port()
        files = ("--tls-cert-file", self.pair, "--tls-key-file", self.pair, "--tls-ca-cert-file", self.bundle)
        self.server = start("--tls-port", str(self.port), *map(str, files), *options)

    def url(self, host: str = "127.0.0.1", **query: object) -> str:
        members = "&".join(f"{name}={value}" for name, value in query.items())
        return f"rediss://{host}:{self.port}?{members}"


async def test_tls_with_a_certificate_authority_of_one_s_own(
    start_redis: Callable[..., RedisServer], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tls = TlsServer(tmp_path, start_redis, "--tls-auth-clients", "no", names=())
    async with parties(tls.url(ssl_ca_certs=tls.bundle)) as (a,):
        await works(a)
    async with parties(tls.url("localhost", ssl_ca_certs=tls.bundle)) as (a,):
        await works(a)
    caplog.clear()
    async with parties(tls.url()) as (a,):
        assert not a.coordinator.up
    assert len(caplog.records) == 1
    assert "its certificate is not trusted" in caplog.text
    caplog.clear()
    async with parties(f"redis://127.0.0.1:{tls.port}") as (a,):
        assert not a.coordinator.up
    assert len(caplog.records) == 1
    caplog.clear()
    async with parties(f"rediss://127.0.0.1:{tls.server.port}?ssl_ca_certs={tls.bundle}") as (a,):
        assert not a.coordinator.up
    assert len(caplog.records) == 1
    caplog.clear()
    async with parties(tls.url(ssl_ca_certs=tmp_path / "none.pem")) as (a,):
        assert not a.coordinator.up
    assert "No such file" in caplog.text


async def test_another_name_s_certificate(
    start_redis: Callable[..., RedisServer], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tls = TlsServer(tmp_path, start_redis, "--tls-auth-clients", "no", names=("redis.example",))
    async with parties(tls.url(ssl_ca_certs=tls.bundle)) as (a,):
        assert not a.coordinator.up
    assert "its certificate is not trusted" in caplog.text
    async with parties(tls.url(ssl_ca_certs=tls.bundle, ssl_check_hostname="false")) as (a,):
        await works(a)


async def test_a_client_certificate(
    start_redis: Callable[..., RedisServer], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tls = TlsServer(tmp_path, start_redis, "--tls-auth-clients", "yes", names=())
    mine = {"ssl_certfile": tls.pair, "ssl_keyfile": tls.pair}
    async with parties(tls.url(ssl_ca_certs=tls.bundle, **mine)) as (a,):
        await works(a)
    caplog.clear()
    async with parties(tls.url(ssl_ca_certs=tls.bundle)) as (a,):
        assert not a.coordinator.up
    assert len(caplog.records) == 1


# ── Sentinel ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def start_sentinel(tmp_path: Path) -> Iterator[Callable[..., Sentinel]]:
    started: list[Sentinel] = []

    def start(*arguments: object, **options: object) -> Sentinel:
        sentinel = Sentinel(tmp_path, *arguments, **options)  # type: ignore[arg-type]
        started.append(sentinel)
        return sentinel

    yield start
    for sentinel in started:
        sentinel.kill()


@pytest.mark.timeout(120)
async def test_a_sentinel_s_failover(
    start_redis: Callable[..., RedisServer],
    start_sentinel: Callable[..., Sentinel],
    caplog: pytest.LogCaptureFixture,
) -> None:
    master = start_redis()
    replica = start_redis("--replicaof", "127.0.0.1", str(master.port))
    sentinel = start_sentinel(master)
    await asyncio.to_thread(sentinel.wait_ready, 1)
    nobody = free_port()
    url = f"redis+sentinel://127.0.0.1:{nobody},127.0.0.1:{sentinel.port}/main"
    async with parties(url, url) as (a, b):
        await works(a)
        there, _ = await b.listen()
        fence = await a.run(running_ms=60_000)
        assert await a.append(fence, 1) == Done()
        await eventually(lambda: replica.command("HGET", f"soloflight:1:{{{a.key}}}:record", "frames") == "1")
        master.stop()
        await eventually(lambda: sentinel.master_port() == replica.port, within_s=30)
        await eventually(lambda: a.coordinator.up and b.coordinator.up, within_s=10)
        await there.until(lambda notices: any(notice.number == 0 for notice in notices))
        assert await a.append(fence, 2) == Done()
        await there.until(lambda notices: notices[-1].index == 2)
        assert await a.seal(fence) == Done()
        assert isinstance(await b.claim(), Answered)
    told = [record.getMessage() for record in caplog.records if record.name == "soloflight.redis"]
    assert len([line for line in told if "is away" in line]) >= 1
    assert all(f"redis+sentinel://127.0.0.1:{nobody},127.0.0.1:{sentinel.port}/main" in line for line in told[:2])


@pytest.mark.timeout(120)
async def test_a_master_that_is_demoted_while_it_lives(
    start_redis: Callable[..., RedisServer], start_sentinel: Callable[..., Sentinel]
) -> None:
    master = start_redis()
    replica = start_redis("--replicaof", "127.0.0.1", str(master.port))
    sentinel = start_sentinel(master)
    await asyncio.to_thread(sentinel.wait_ready, 1)
    async with parties(f"redis+sentinel://127.0.0.1:{sentinel.port}/main") as (a,):
        await works(a)
        there, _ = await a.listen()
        await asyncio.to_thread(sentinel.fail_over)
        await eventually(lambda: master.command("ROLE")[0] == "slave", within_s=30)  # type: ignore[index]

        async def written() -> bool:
            try:
                return isinstance(await at_key(a, "after").claim(), Owned)
            except BackendError:
                return False

        async with asyncio.timeout(15):
            while not await written():
                await asyncio.sleep(0.1)
        assert replica.command("EXISTS", "soloflight:1:{after}:record") == 1
        begun = asyncio.get_running_loop().time()
        await there.until(lambda notices: GAP in notices)  # it listens to the new master now
        assert lasted(begun) < 1.0
        fence = await a.own()
        await a.start(fence)
        await there.until(lambda notices: notices[-1].number == fence.number)


async def test_a_sentinel_under_the_wrong_scheme(
    start_redis: Callable[..., RedisServer],
    start_sentinel: Callable[..., Sentinel],
    caplog: pytest.LogCaptureFixture,
) -> None:
    sentinel = start_sentinel(start_redis())
    await asyncio.to_thread(sentinel.wait_ready, 0)
    async with parties(f"redis://127.0.0.1:{sentinel.port}") as (a,):
        assert not a.coordinator.up
    assert "use redis+sentinel://" in caplog.text
    caplog.clear()
    async with parties(f"redis+sentinel://127.0.0.1:{sentinel.port}/other") as (a,):
        assert not a.coordinator.up
    assert "No master found for 'other'" in caplog.text


async def test_a_slow_network(redis_server: RedisServer) -> None:
    async with FaultProxy("127.0.0.1", redis_server.port) as slow:
        slow.up.delay_s = slow.down.delay_s = 0.05
        async with parties(f"redis://127.0.0.1:{slow.port}", bound_s=1.0) as (a,):
            assert a.coordinator.up
            await works(a)
