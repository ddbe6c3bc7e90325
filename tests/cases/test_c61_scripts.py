"""C61: scripts: NOSCRIPT, no permission for SCRIPT, CROSSSLOT.

Source: BerriAI/litellm#32230 and #15052, py-sherlock/sherlock#31, vutran1710/PyrateLimiter#151.
Right: EVALSHA falls back to EVAL; all keys of one flight are in one slot; no client sees an error, and there is one upstream
call for each key. (A cluster of three nodes: tests/plugins/redis/test_cluster.py.)
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.client import ask, chat, connect, fresh
from harness.fixtures import StartProxy, all_ready
from harness.process import eventually
from harness.redis import RedisServer
from soloflight.testing.chat import CH, DONE, FIN
from soloflight.testing.script import sse
from soloflight.testing.upstream import ScriptedUpstream

StartRedis = Callable[..., RedisServer]
ANSWER = CH + FIN + DONE
FLIGHTS = 60
# docs/redis.md: what a user of its own needs. SCRIPT is not among it.
RULES = ("on", ">secret", "~soloflight:*", "&soloflight:*")
pytestmark = [pytest.mark.redis, pytest.mark.beside]


async def test_script_flush_under_load(
    start_proxy: StartProxy, start_redis: StartRedis, upstream: ScriptedUpstream
) -> None:
    server = start_redis()
    nodes = all_ready(
        start_proxy(upstream=upstream.port, backend="redis", redis_url=server.url, ready=False) for _ in range(2)
    )
    upstream.play(lambda received: sse(CH, 0.02, FIN, DONE))
    ended = asyncio.Event()

    async def flush() -> None:
        while not ended.is_set():
            await asyncio.to_thread(server.command, "SCRIPT", "FLUSH")
            await asyncio.sleep(0.005)

    async def one() -> None:
        body = chat(fresh())
        answers = await asyncio.gather(*(ask(node.port, body) for node in nodes for _ in range(2)))
        assert {(answer.status, answer.body, answer.complete) for answer in answers} == {(200, ANSWER, True)}

    flushing = asyncio.create_task(flush())
    for _ in range(FLIGHTS // 20):
        await asyncio.gather(*(one() for _ in range(20)))
    ended.set()
    await flushing
    assert upstream.calls == FLIGHTS


@pytest.mark.parametrize("rules", [("+@all", "-script"), ()], ids=["without SCRIPT", "the documented rules"])
async def test_a_user_that_may_not_load_scripts(
    rules: tuple[str, ...], start_proxy: StartProxy, start_redis: StartRedis, upstream: ScriptedUpstream
) -> None:
    """Two nodes as such a user share live, replay, and take nothing amiss in their logs."""
    server = start_redis()
    server.command("ACL", "SETUSER", "flights", *RULES, *(rules or documented()))
    url = f"redis://flights:secret@127.0.0.1:{server.port}/0"
    nodes = all_ready(
        start_proxy(upstream=upstream.port, backend="redis", redis_url=url, ready=False) for _ in range(2)
    )
    gate = asyncio.Event()
    upstream.play(sse(CH, gate, FIN, DONE))
    body = chat(fresh())
    async with connect(nodes[0].port) as owner, connect(nodes[1].port) as follower:
        await owner.send(body)
        await owner.read_events(1)
        await follower.send(body)
        await follower.read_events(1)
        gate.set()
        answers = [await owner.finish(), await follower.finish()]
    assert [(answer.role, answer.body, answer.complete) for answer in answers] == [
        ("owner", ANSWER, True),
        ("follower", ANSWER, True),
    ]
    assert (await ask(nodes[1].port, body)).role == "replay"
    server.command("SCRIPT", "FLUSH")
    assert (await ask(nodes[1].port, body)).role == "replay"
    assert upstream.calls == 1
    for node in nodes:
        await eventually(lambda node=node: node.api("/readyz")["degraded"] is None)
        assert "WARNING" not in node.log, node.log
        assert "secret" not in node.log


def documented() -> tuple[str, ...]:
    """The commands that docs/redis.md allows: the words with a plus in its line of ACL SETUSER."""
    page = (Path(__file__).parents[2] / "docs" / "redis.md").read_text()
    at = page.index("ACL SETUSER")
    line = page[at : page.index("```", at)].replace("\\\n", " ")
    words = tuple(word for word in line.split() if word.startswith(("+", "-")))
    assert words
    assert not any("script" in word for word in words)
    return words


async def test_all_keys_of_a_flight_are_in_one_slot(
    start_proxy: StartProxy, start_redis: StartRedis, upstream: ScriptedUpstream
) -> None:
    """By the hash tag: what Redis holds of forty flights, slot by slot."""
    server = start_redis("--cluster-enabled", "no")
    proxy = start_proxy(upstream=upstream.port, backend="redis", redis_url=server.url)
    upstream.play(lambda received: sse(CH, FIN, DONE))
    for _ in range(40):
        assert (await ask(proxy.port, chat(fresh()))).status == 200
    with server.client() as client:
        names = [name for name in client.scan_iter("soloflight:*") if "{" in name]
    tags = {name.partition("{")[2].partition("}")[0] for name in names}
    assert (len(tags), len(names)) == (40, 80)  # a record and an answer each
