"""Health on both listeners, and who may use the admin one."""

from __future__ import annotations

import base64
import json

import pytest

from harness.client import ask, chat, fresh, request
from harness.wire import ResponseParser
from nodes.house import House, OpenHouse
from soloflight.web.handlers import State
from soloflight.web.health import HEALTH_PATHS, health_answer
from soloflight.web.wire import Client

TOKEN = "t0ken-é"
ADMIN = {"server": {"admin_listen": "127.0.0.1:0"}}
WITH_TOKEN = {"server": {"admin_listen": "127.0.0.1:0", "admin_token": TOKEN}}
BEARER = b"Authorization: Bearer " + TOKEN.encode()


# ── health ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", sorted(HEALTH_PATHS))
@pytest.mark.parametrize(
    ("draining", "degraded", "status"),
    [(False, "", "ok"), (False, "the backend is away", "degraded"), (True, "the backend is away", "draining")],
)
def test_health_tells_what_is_and_only_a_drain_is_not_ready(
    path: str, draining: bool, degraded: str, status: str
) -> None:
    state = State(draining, lambda: degraded)
    data = health_answer(path, state, Client("GET", http11=True, keep_alive=True))
    response = ResponseParser().feed(data).response
    assert response.status == (503 if draining and not path.endswith("livez") else 200)
    assert json.loads(response.kept) == {"status": status, "ready": not draining, "degraded": degraded or None}
    assert response.get("Cache-Control") == "no-store"
    assert response.get("Date")


@pytest.mark.parametrize(
    ("client", "connection"),
    [
        (Client("GET", http11=True, keep_alive=True), None),
        (Client("GET", http11=True, keep_alive=False), "close"),
        (Client("GET", http11=False, keep_alive=True), "keep-alive"),
        (Client("GET", http11=False, keep_alive=False), "close"),
        (Client("HEAD", http11=True, keep_alive=True), None),
    ],
)
def test_health_is_framed_for_its_client(client: Client, connection: str | None) -> None:
    parser = ResponseParser(client.method).feed(health_answer("/_soloflight/health", State(), client))
    assert (parser.response.ended, parser.rest, parser.response.get("Connection")) == ("complete", b"", connection)
    assert bool(parser.response.kept) is (client.method != "HEAD")


@pytest.mark.parametrize("target", ["/_soloflight/health?x=1", "http://any/_soloflight/livez"])
async def test_health_is_answered_by_the_proxy_itself(house: House, target: str) -> None:
    response = await ask(house.port, request("GET", target))
    assert (response.status, json.loads(response.body)["status"]) == (200, "ok")
    assert house.requests == []


# ── the admin listener ──────────────────────────────────────────────────────────────────────────────────────────────


async def status(house: House, host: str, *fields: str | bytes, path: str = "/api/stages", method: str = "GET") -> int:
    return (await ask(house.admin_port, request(method, path, *fields, host=host))).status


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8081", "127.0.0.1", "127.0.0.1:8081", "127.9.9.9", "[::1]", "[::1]:8081"]
)
async def test_without_a_token_a_loopback_host_is_let_in(open_house: OpenHouse, host: str) -> None:
    assert await status(await open_house(ADMIN), host) == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:8081", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1",
        "[fe80::1]:80", "0.0.0.0", "evil.example@127.0.0.1", "127.0.0.1@evil.example", "", "xlocalhost",
    ],
)  # fmt: skip
async def test_without_a_token_any_other_host_is_refused(open_house: OpenHouse, host: str) -> None:
    """DNS rebinding: a page of evil.example makes its own name resolve to 127.0.0.1."""
    house = await open_house(ADMIN)
    assert await status(house, host) in (400, 403)
    assert await status(house, host, path="/metrics") in (400, 403)
    assert await status(house, host, method="POST", path="/api/purge") in (400, 403)


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
async def test_probes_are_let_in_whatever_they_carry(open_house: OpenHouse, path: str) -> None:
    for config in (ADMIN, WITH_TOKEN):
        house = await open_house(config)
        assert await status(house, "10.1.2.3:8081", path=path) == 200
        house.app.state.draining = True
        assert await status(house, "10.1.2.3:8081", path=path) == (503 if path == "/readyz" else 200)
        assert await status(house, "10.1.2.3:8081", path=path, method="POST") in (401, 403, 405)


def basic(user: str, password: str) -> str:
    return "Authorization: Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.mark.parametrize(
    ("field", "allowed"),
    [
        (BEARER, True),
        (BEARER.replace(b"Bearer", b"bearer"), True),
        (basic("", TOKEN), True),
        (basic("anyone", TOKEN), True),
        ("", False),
        ("Authorization: Bearer", False),
        ("Authorization: Bearer wrong", False),
        (BEARER + b"x", False),
        (BEARER[:-3], False),
        (BEARER.replace(b"Bearer ", b""), False),
        (b"Authorization: Bearer \xff\xfe", False),
        (basic(TOKEN, ""), False),
        ("Authorization: Basic !!!", False),
        ("Authorization: Basic \u00e9", False),
        (f"X-Token: {TOKEN}", False),
    ],
)
async def test_with_a_token_it_is_needed_whatever_the_host(
    open_house: OpenHouse, field: str | bytes, allowed: bool
) -> None:
    house = await open_house(WITH_TOKEN)
    fields = [field] if field else []
    for host in ("localhost", "evil.example"):
        assert await status(house, host, *fields) == (200 if allowed else 401)


@pytest.mark.parametrize(
    ("fields", "allowed"),
    [
        ([], True),
        (["Sec-Fetch-Site: same-origin"], True),
        (["Sec-Fetch-Site: none"], True),
        (["Sec-Fetch-Site: cross-site"], False),
        (["Sec-Fetch-Site: same-site"], False),
        (["Origin: http://localhost:8081"], True),
        (["Origin: http://localhost"], False),
        (["Origin: http://evil.example"], False),
        (["Origin: null"], False),
        (["Origin: http://localhost:8081", "Sec-Fetch-Site: cross-site"], False),
    ],
)
@pytest.mark.parametrize(("method", "path"), [("POST", "/api/purge"), ("DELETE", "/api/flights/0123456789abcdef")])
async def test_another_sites_page_may_look_at_nothing_it_changes(
    open_house: OpenHouse, fields: list[str], allowed: bool, method: str, path: str
) -> None:
    house = await open_house(ADMIN)
    found = await status(house, "localhost:8081", *fields, path=path, method=method)
    assert (found != 403) is allowed


async def test_no_answer_is_kept_or_given_to_another_site(open_house: OpenHouse) -> None:
    house = await open_house(WITH_TOKEN)
    for fields, path in (([BEARER], "/api/stages"), ([], "/api/stages"), ([], "/livez"), ([BEARER], "/none")):
        response = await ask(house.admin_port, request("GET", path, *fields, host="localhost"))
        assert response.get("X-Content-Type-Options") == "nosniff"
        assert response.get("Cross-Origin-Resource-Policy") == "same-origin"
        assert response.get("Access-Control-Allow-Origin") is None
        if response.status != 404:
            assert response.get("Cache-Control") == "no-store"


async def test_the_admin_listener_is_no_door_to_the_upstream(open_house: OpenHouse) -> None:
    house = await open_house(ADMIN)
    assert (await ask(house.admin_port, chat(fresh()))).status in (403, 404)
