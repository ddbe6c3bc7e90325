"""The admin listener's rules: who may look, who may change something, and what is said to everybody else."""

import base64
import json
import time

import pytest
from aiohttp import ClientSession

from harness.client import ask, request
from harness.stalls import lasted
from soloflight.web.status import StatusPage, policy
from status.desks import ShownDesk, flight, served

TOKEN = "s3cret-ü"
BASIC = "Basic " + base64.b64encode(f"anybody:{TOKEN}".encode()).decode()
BEARER = b"Authorization: Bearer " + TOKEN.encode()
PURGE = b'{"stage": "evaluation"}'


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


@pytest.mark.parametrize("host", ["localhost", "localhost:8081", "127.0.0.1", "127.9.9.9:1", "[::1]:8081", "LOCALHOST"])
async def test_a_loopback_host_may_look_and_change(host: str) -> None:
    async with served(desk := ShownDesk()) as url:
        port = port_of(url)
        assert (await ask(port, request("GET", "/api/flights", host=host))).status == 200
        assert (await ask(port, request("POST", "/api/purge", body=PURGE, host=host))).status == 200
    assert desk.done == [("purge", None, "evaluation")]


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "10.0.0.1", "[::2]", "127.0.0.1.evil.example", ""]
)
@pytest.mark.parametrize("target", ["/", "/metrics", "/api/overview", "/api/events", "/api/flights", "/nothing"])
async def test_another_host_is_refused(host: str, target: str) -> None:
    async with served(ShownDesk()) as url:
        answer = await ask(port_of(url), request("GET", target, host=host))
    assert answer.status == 403
    assert json.loads(answer.body) == {"error": "the Host must be a loopback name"}


async def test_probes_are_let_in_whatever_they_name() -> None:
    async with served(ShownDesk(), token=TOKEN) as url:
        for target, told in (
            ("/livez", {"status": "alive"}),
            ("/readyz", {"status": "ok", "ready": True, "degraded": None}),
        ):
            answer = await ask(port_of(url), request("GET", target, host="10.1.2.3:8081"))
            assert (answer.status, json.loads(answer.body)) == (200, told)
        assert (await ask(port_of(url), request("POST", "/livez", body=b"x"))).status == 401


@pytest.mark.parametrize(
    ("field", "status"),
    [
        (None, 401),
        ("Authorization: Bearer wrong", 401),
        ("Authorization: Bearer", 401),
        ("Authorization: Basic !!!", 401),
        ("Authorization: Basic " + base64.b64encode(b"s3cret").decode(), 401),
        (BEARER, 200),
        (BEARER.replace(b"Bearer", b"bearer"), 200),
        (f"Authorization: {BASIC}", 200),
    ],
)
async def test_with_a_token_only_it_opens(field: str | bytes | None, status: int) -> None:
    async with served(ShownDesk(), token=TOKEN) as url:
        for host in ("localhost", "admin.example"):
            answer = await ask(port_of(url), request("GET", "/api/stages", *([field] if field else []), host=host))
            assert answer.status == status
            assert (answer.get("WWW-Authenticate") is not None) == (status == 401)


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        (("Sec-Fetch-Site: cross-site",), 403),
        (("Sec-Fetch-Site: same-site",), 403),
        (("Sec-Fetch-Site: same-origin",), 200),
        (("Sec-Fetch-Site: none",), 200),
        (("Origin: http://evil.example",), 403),
        (("Origin: null",), 403),
        (("Origin: http://proxy.test",), 200),
        ((), 200),
    ],
)
@pytest.mark.parametrize("what", ["purge", "abort"])
async def test_no_other_site_s_browser_changes_anything(fields: tuple[str, ...], status: int, what: str) -> None:
    desk = ShownDesk([flight(1)])
    target = f"/api/flights/{flight(1)['id']}"
    async with served(desk, token=TOKEN) as url:
        sent = (
            request("POST", "/api/purge", BEARER, *fields, body=PURGE)
            if what == "purge"
            else request("DELETE", target, BEARER, *fields)
        )
        assert (await ask(port_of(url), sent)).status == status
        assert (await ask(port_of(url), request("GET", target, BEARER, *fields))).status in (200, 404)
    assert bool(desk.done) == (status == 200)


async def test_flights_one_by_one() -> None:
    desk = ShownDesk([flight(1), flight(2)])
    async with served(desk) as url, ClientSession(url) as session:
        async with session.get("/api/flights") as answer:
            assert await answer.json() == {"flights": desk.rows}
            assert answer.headers["Cache-Control"] == "no-store"
        async with session.get(f"/api/flights/{flight(2)['id']}") as answer:
            assert await answer.json() == desk.rows[1]
        for method, target, status in (
            ("GET", f"/api/flights/{'a' * 20}", 404),
            ("DELETE", f"/api/flights/{'a' * 20}", 404),
            ("DELETE", "/api/flights/no-id", 400),
            ("DELETE", "/api/flights/%2e%2e%2fpurge", 400),
            ("POST", "/api/flights", 405),
            ("GET", "/api/purge", 405),
        ):
            async with session.request(method, target) as answer:
                assert answer.status == status, target
        async with session.delete(f"/api/flights/{flight(2)['id']}") as answer:
            assert await answer.json() == {"flight": flight(2)["id"], "result": "aborted"}
    assert desk.rows == [flight(1)]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"stage": "evaluation"}', 200),
        (b'{"key": "%s"}' % (b"a" * 48), 200),
        (b'{"key": "%s"}' % (b"a" * 20), 200),
        (b'{"stage": "unknown"}', 404),
        (b"", 400),
        (b"[]", 400),
        (b"{}", 400),
        (b'{"stage": 1}', 400),
        (b'{"key": "../x"}', 400),
        (b'{"key": "aaaaaaaaaaaaaaaaaaaa", "stage": "evaluation"}', 400),
        (b'{"key": "%s"}' % (b"a" * 40_000), 413),
    ],
)
async def test_purges(body: bytes, status: int) -> None:
    async with (
        served(ShownDesk()) as url,
        ClientSession(url) as session,
        session.post("/api/purge", data=body) as answer,
    ):
        assert answer.status == status


async def test_events_are_overviews_and_end_with_the_listener() -> None:
    desk = ShownDesk([flight(1)])
    async with ClientSession() as session:
        async with served(desk) as url:
            answer = await session.get(f"{url}/api/events")
            assert answer.content_type == "text/event-stream"
            assert await answer.content.readuntil(b"\n\n") == b"retry: 1000\n\n"
            for rows in ([flight(1)], []):
                event = await answer.content.readuntil(b"\n\n")
                assert json.loads(event.removeprefix(b"data: "))["flights"] == rows
                desk.rows = []
            begun = time.monotonic()
        assert lasted(begun) < 0.9  # it does not wait for the next event, nor for the reader
        assert await answer.content.read() == b""
        assert answer.content.at_eof()


async def test_the_page_may_run_only_itself_and_talk_to_us_alone() -> None:
    async with served(ShownDesk()) as url, ClientSession(url) as session, session.get("/") as answer:
        rules = dict(rule.split(" ", 1) for rule in answer.headers["Content-Security-Policy"].split("; "))
        text = await answer.text()
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert rules["default-src"] == "'none'"
    assert rules["connect-src"] == "'self'"
    assert rules["frame-ancestors"] == "'none'"
    assert "unsafe" not in json.dumps(rules)
    assert policy(text) != policy(text.replace("use strict", "use other"))
    assert len(StatusPage().body) < 64 * 1024
    for foreign in ("http://", "https://", "//cdn", "@import", "url("):
        assert foreign not in text.replace("http://www.w3.org/2000/svg", "")
