"""The way out: TLS that is verified, an outbound HTTP proxy, the upstream's own path, redirects left alone."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from harness.certificates import server_tls
from harness.client import ask, chat, connect, fresh, request
from harness.fixtures import StartProxy
from harness.ports import free_port
from harness.refusals import refused
from soloflight.testing.chat import CH, DONE, FIN
from soloflight.testing.script import head, raw, sse
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

STREAM = sse(CH, 0.02, FIN, DONE)
ROUTES = ["/v1/chat/completions", "/v1/unknown"]
UNREACHABLE = (502, "upstream_unreachable")
PASSWORD = "pass%40word"  # as a URL has it


# ── TLS ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_trusted_authority(host: str, start_proxy: StartProxy, tmp_path: Path) -> None:
    context, bundle = server_tls(tmp_path)
    async with ScriptedUpstream(STREAM, tls=context) as upstream:
        proxy = start_proxy({"upstream": {"verify_tls": str(bundle)}}, upstream=f"https://{host}:{upstream.port}")
        for target in ROUTES:
            answer = await ask(proxy.port, chat(fresh(), target=target))
            assert (answer.status, answer.body, answer.complete) == (200, CH + FIN + DONE, True)
        assert upstream.requests[0].field(b"host") == f"{host}:{upstream.port}".encode()
        assert upstream.connections == 1, "a TLS connection is kept, too"


@pytest.mark.parametrize("fault", ["unknown authority", "another name", "no TLS"])
async def test_what_can_not_be_verified(fault: str, start_proxy: StartProxy, tmp_path: Path) -> None:
    context, bundle = server_tls(tmp_path, *(["other.test"] if fault == "another name" else []))
    config = {"upstream": {"connect_timeout": "300ms"}}
    if fault != "unknown authority":
        config["upstream"]["verify_tls"] = str(bundle)
    async with ScriptedUpstream(STREAM, tls=None if fault == "no TLS" else context) as upstream:
        proxy = start_proxy(config, upstream=f"https://127.0.0.1:{upstream.port}")
        for target in ROUTES:
            answer = await ask(proxy.port, chat(fresh(), target=target))
            assert refused(answer) == UNREACHABLE
            assert b"127.0.0.1" not in answer.body
        assert upstream.calls == 0


async def test_verification_that_was_turned_off(start_proxy: StartProxy, tmp_path: Path) -> None:
    context, _ = server_tls(tmp_path, "other.test")
    async with ScriptedUpstream(STREAM, tls=context) as upstream:
        proxy = start_proxy({"upstream": {"verify_tls": False}}, upstream=f"https://127.0.0.1:{upstream.port}")
        assert (await ask(proxy.port, chat(fresh()))).body == CH + FIN + DONE


async def test_a_tunnel_over_tls(start_proxy: StartProxy, tmp_path: Path) -> None:
    context, bundle = server_tls(tmp_path)
    switch = head(101, "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Accept: x")
    flood = bytes(range(256)) * 4096
    async with ScriptedUpstream([switch + flood, asyncio.Event()], tls=context) as upstream:
        proxy = start_proxy({"upstream": {"verify_tls": str(bundle)}}, upstream=upstream.url)
        async with connect(proxy.port) as client:
            fields = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: x")
            await client.send(request("GET", "/v1/realtime", *fields))
            assert (await client.head()).status == 101
            got = client.parser.rest
            async with asyncio.timeout(5):
                while len(got) < len(flood):
                    got += await asyncio.get_running_loop().sock_recv(client.sock, 1 << 20)
        assert got == flood


# ── an outbound proxy ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Outbound:
    """A small forward proxy: CONNECT makes a tunnel, a request in absolute form is passed on."""

    refuse: bytes = b""
    port: int = 0
    heads: list[bytes] = field(default_factory=list)
    serving: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def lines(self) -> list[bytes]:
        return [one.partition(b"\r\n")[0] for one in self.heads]

    def fields(self, number: int) -> dict[bytes, bytes]:
        pairs = (line.partition(b": ") for line in self.heads[number].split(b"\r\n")[1:-2])
        return {name.lower(): value for name, _, value in pairs}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.serving.add(task)
        writers = [writer]
        try:
            await self._connection(reader, writers)
        except (asyncio.CancelledError, asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self.serving.discard(task)
            for one in writers:
                one.transport.abort()
            for one in writers:
                with suppress(OSError):
                    await one.wait_closed()

    async def _connection(self, reader: asyncio.StreamReader, writers: list[asyncio.StreamWriter]) -> None:
        self.heads.append(await reader.readuntil(b"\r\n\r\n"))
        if self.refuse:
            writers[0].write(self.refuse)
            await writers[0].drain()
            await reader.read()
            return
        method, target, _ = self.heads[-1].split(b" ", 2)
        authority = target.removeprefix(b"http://").partition(b"/")[0]
        host, _, port = authority.decode().rpartition(":")
        there, onward = await asyncio.open_connection(host, int(port))
        writers.append(onward)
        back = asyncio.create_task(pump(there, writers[0]))
        try:
            if method == b"CONNECT":
                writers[0].write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await pump(reader, onward)
            else:
                await self._requests(reader, onward, b"http://" + authority)
        finally:
            back.cancel()

    async def _requests(self, reader: asyncio.StreamReader, onward: asyncio.StreamWriter, origin: bytes) -> None:
        """Every request of the connection, each without its origin."""
        while True:
            length = int(self.fields(-1).get(b"content-length", b"0"))
            onward.write(self.heads[-1].replace(origin, b"", 1) + await reader.readexactly(length))
            self.heads.append(await reader.readuntil(b"\r\n\r\n"))


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


@asynccontextmanager
async def outbound(refuse: bytes = b"") -> AsyncIterator[Outbound]:
    way = Outbound(refuse)
    server = await asyncio.start_server(way.serve, "127.0.0.1", 0)
    way.port = server.sockets[0].getsockname()[1]
    try:
        yield way
    finally:
        server.close()
        for task in way.serving:
            task.cancel()
        await asyncio.gather(*way.serving, return_exceptions=True)


BASIC = b"Basic " + base64.b64encode(b"user:pass@word")


@pytest.mark.parametrize("credentials", ["", f"user:{PASSWORD}@"], ids=["open", "with a password"])
async def test_a_plain_upstream_behind_it(credentials: str, start_proxy: StartProxy) -> None:
    async with ScriptedUpstream(STREAM) as upstream, outbound() as way:
        config = {"upstream": {"proxy": f"http://{credentials}127.0.0.1:{way.port}"}}
        proxy = start_proxy(config, upstream=f"{upstream.url}/api")
        for target in ROUTES:
            answer = await ask(proxy.port, chat(fresh(), target=f"{target}?a=%20"))
            assert (answer.status, answer.body) == (200, CH + FIN + DONE)
        assert way.lines[0] == f"POST {upstream.url}/api/v1/chat/completions?a=%20 HTTP/1.1".encode()
        assert way.fields(0)[b"host"] == f"127.0.0.1:{upstream.port}".encode()
        assert way.fields(0).get(b"proxy-authorization") == (BASIC if credentials else None)
        assert [received.target for received in upstream.requests] == [f"/api{target}?a=%20" for target in ROUTES]
        assert "pass" not in proxy.log.replace("bypass", "")


@pytest.mark.parametrize("credentials", ["", f"user:{PASSWORD}@"], ids=["open", "with a password"])
async def test_a_tls_upstream_behind_it(credentials: str, start_proxy: StartProxy, tmp_path: Path) -> None:
    context, bundle = server_tls(tmp_path)
    async with ScriptedUpstream(STREAM, tls=context) as upstream, outbound() as way:
        config = {
            "upstream": {"proxy": f"http://{credentials}127.0.0.1:{way.port}", "verify_tls": str(bundle)},
        }
        proxy = start_proxy(config, upstream=upstream.url)
        for target in ROUTES:
            answer = await ask(proxy.port, chat(fresh(), target=target))
            assert (answer.status, answer.body) == (200, CH + FIN + DONE)
        assert way.lines == [f"CONNECT 127.0.0.1:{upstream.port} HTTP/1.1".encode()]
        assert way.fields(0).get(b"proxy-authorization") == (BASIC if credentials else None)
        for received in upstream.requests:
            assert received.target in ROUTES
            assert received.field(b"proxy-authorization") == b""
            assert received.field(b"authorization") == b"Bearer k1"
        assert b"k1" not in way.heads[0], "the tunnel's opening holds nothing of the request"


async def test_tls_is_verified_through_it(start_proxy: StartProxy, tmp_path: Path) -> None:
    context, _ = server_tls(tmp_path)
    async with ScriptedUpstream(STREAM, tls=context) as upstream, outbound() as way:
        proxy = start_proxy({"upstream": {"proxy": f"http://127.0.0.1:{way.port}"}}, upstream=upstream.url)
        assert refused(await ask(proxy.port, chat(fresh()))) == UNREACHABLE
        assert upstream.calls == 0


async def test_it_refuses_or_is_away(start_proxy: StartProxy, tmp_path: Path) -> None:
    context, bundle = server_tls(tmp_path)
    no = head(407, "Proxy-Authenticate: Basic", "Content-Length: 0")
    async with ScriptedUpstream(STREAM, tls=context) as upstream, outbound(refuse=no) as way:
        for port in (way.port, free_port()):
            config = {"upstream": {"proxy": f"http://user:{PASSWORD}@127.0.0.1:{port}", "verify_tls": str(bundle)}}
            proxy = start_proxy(config, upstream=upstream.url)
            for target in ROUTES:
                answer = await ask(proxy.port, chat(fresh(), target=target))
                assert refused(answer) == UNREACHABLE
                assert b"pass" not in answer.raw_head.replace(b"bypass", b"") + answer.body
            assert "pass" not in proxy.log.replace("bypass", "")
        assert upstream.calls == 0


@pytest.mark.parametrize(
    ("setting", "no_proxy", "through_it"), [("env", "other.test", True), ("env", "127.0.0.1", False), ("", "", False)]
)
async def test_it_is_named_by_the_environment(
    setting: str, no_proxy: str, through_it: bool, start_proxy: StartProxy
) -> None:
    async with ScriptedUpstream(STREAM) as upstream, outbound() as way:
        env = {"HTTP_PROXY": f"http://127.0.0.1:{way.port}", "http_proxy": f"http://127.0.0.1:{way.port}"}
        env |= {"NO_PROXY": no_proxy, "no_proxy": no_proxy}
        proxy = start_proxy({"upstream": {"proxy": setting}}, upstream=upstream.port, env=env)
        assert (await ask(proxy.port, chat(fresh()))).body == CH + FIN + DONE
        assert bool(way.heads) == through_it


# ── the upstream's own path ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("path", "prefix"), [("/", ""), ("/a%2Fb//c/", "/a%2Fb//c")])
async def test_the_base_path(path: str, prefix: str, start_proxy: StartProxy) -> None:
    async with ScriptedUpstream(raw(b"{}", type="application/json")) as upstream:
        proxy = start_proxy(upstream=f"{upstream.url}{path}")
        targets = ["/v1/models", "/v1/files?a=/b", "//x", "/", "/v1/../y"]
        for target in targets:
            assert (await ask(proxy.port, request("GET", target))).status == 200
        assert [received.target for received in upstream.requests] == [prefix + target for target in targets]


async def test_a_redirect_is_passed_on_as_it_is(start_proxy: StartProxy) -> None:
    async with ScriptedUpstream() as elsewhere, ScriptedUpstream() as upstream:
        proxy = start_proxy(upstream=f"{upstream.url}/api")
        for location in (f"{elsewhere.url}/x", "/v1/y", f"{upstream.url}/api/v1/z"):
            upstream.play(raw(b"moved", f"Location: {location}", status=307))
            answer = await ask(proxy.port, chat(fresh()))
            assert (answer.status, answer.all("Location"), answer.body) == (307, [location], b"moved")
        assert (upstream.calls, elsewhere.connections) == (3, 0)
