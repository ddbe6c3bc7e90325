"""C07: [DONE] without any finish_reason; an open socket, or bytes, after [DONE].

Source: gonka-ai/gonka#1722 and #1723, earendil-works/pi#8460, ltmoerdani/opencode-copilot-chat#170.
Right: forwarded as it is, but kept only if every choice that was seen has finished. `length` is a real end, kept
only under `keep_incomplete`. With an open socket the flight ends soon after the terminal event; late bytes do
not get into a shared result. The metric names why an answer was not kept, in a word of a closed set.
"""

import time

import pytest

from harness.client import ask, chat, fresh
from harness.process import eventually
from harness.proxy import Proxy
from harness.stalls import lasted
from soloflight.testing.chat import CH, DONE, FIN, content, finish
from soloflight.testing.script import CLOSE, HANG, sse
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

PROXY = {"stage": [{"name": "keeps-length", "keep_incomplete": True, "match": {"paths": ["/kept/*"]}}]}
UNFINISHED = {
    "no finish_reason": (1, [CH, CH, DONE], "incomplete"),
    "one of two choices": (2, [content("a"), content("b", index=1), finish(), DONE], "incomplete"),
    "finish_reason length": (1, [CH, finish("length"), DONE], "length"),
}


@pytest.mark.parametrize("what", UNFINISHED)
async def test_forwarded_but_not_kept(what: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    choices, events, reason = UNFINISHED[what]
    upstream.play(sse(*events))
    before = proxy.metric("soloflight_not_kept_total", stage="default", reason=reason)
    body = chat(fresh(n=choices))
    answers = [await ask(proxy.port, body) for _ in range(2)]
    assert [answer.body for answer in answers] == [b"".join(events)] * 2
    assert all(answer.complete for answer in answers)
    assert [answer.role for answer in answers] == ["owner", "owner"]
    assert upstream.calls == 2
    await eventually(lambda: proxy.metric("soloflight_not_kept_total", stage="default", reason=reason) == before + 2)


async def test_length_is_kept_by_a_stage_that_says_so(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(sse(CH, finish("length"), DONE))
    body = chat(fresh(), target="/kept/v1/chat/completions")
    roles = [(await ask(proxy.port, body)).role for _ in range(2)]
    assert (roles, upstream.calls) == (["owner", "replay"], 1)


async def test_an_open_socket_after_done_holds_nobody_up(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(sse(CH, FIN, DONE, HANG, last=False))
    body = chat(fresh())
    begun = time.monotonic()
    for role in ("owner", "replay"):
        answer = await ask(proxy.port, body)
        assert (answer.body, answer.role, answer.complete) == (CH + FIN + DONE, role, True)
    assert lasted(begun) < 2
    assert upstream.calls == 1


@pytest.mark.parametrize("pause_s", [0.0, 0.05])
async def test_bytes_after_done_are_not_shared(pause_s: float, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(sse(CH, FIN, DONE, pause_s, CH, CLOSE))
    body = chat(fresh())
    first, second = await ask(proxy.port, body), await ask(proxy.port, body)
    assert first.body == second.body == CH + FIN + DONE
    assert (second.role, upstream.calls) == ("replay", 1)
