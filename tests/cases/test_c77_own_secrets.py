"""C77: the proxy's own secrets sent to the client, or the client's control and credentials upstream.

Source: BerriAI/litellm#32202.
Right: the operator's credential replaces every form the client sent; control fields stop at the proxy; what the
client says of its address follows a rule; the operator's key is in no answer and in no log.
"""

import pytest

from harness.client import ask, chat, fresh, request
from harness.fixtures import StartProxy
from harness.proxy import Proxy
from harness.refusals import error_code
from soloflight.testing.chat import CH, DONE, FIN
from soloflight.testing.script import head, json, sse
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

SECRET = "sk-operator-4711"
PROXY = {
    "upstream": {"headers": {"Authorization": f"Bearer {SECRET}", "X-Team": "red"}},
    "stage": [{"name": "quick"}],
}
CLIENTS_OWN = [
    "Authorization: Bearer client-1",
    "authorization: Bearer client-2",
    "AUTHORIZATION: Basic Y2xpZW50LTM=",
    "api-key: client-4",
    "X-Api-Key: client-5",
    "x-goog-api-key: client-6",
    "Ocp-Apim-Subscription-Key: client-7",
    "x-team: blue",
]
CONTROL = ["X-Soloflight-Stage: quick", "X-SOLOFLIGHT-Session: s1", "x-soloflight-anything: x"]
ADDRESS = ["X-Forwarded-For: 192.0.2.1", "Forwarded: for=192.0.2.2", "X-Real-IP: 192.0.2.3"]
ROUTES = ["/v1/chat/completions", "/v1/files"]


def sent(target: str) -> bytes:
    body = chat(fresh()).partition(b"\r\n\r\n")[2]
    return request(
        "POST", target, "Content-Type: application/json", *CLIENTS_OWN, *CONTROL, *ADDRESS, "X-Own: kept", body=body
    )


@pytest.mark.parametrize("target", ROUTES)
async def test_one_credential_goes_upstream(target: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(sse(CH, FIN, DONE))
    answer = await ask(proxy.port, sent(target))
    assert answer.status == 200

    received = upstream.requests[0]
    assert received.all(b"authorization") == [f"Bearer {SECRET}".encode()]
    names = [name for name, _ in received.fields]
    assert [name for name in names if name.lower() == b"authorization"] == [b"Authorization"]
    assert received.all(b"x-team") == [b"red"]
    assert received.all(b"x-own") == [b"kept"]
    lowered = received.head.lower()
    for gone in (b"client-", b"basic", b"soloflight-", b"192.0.2", b"x-forwarded", b"x-real-ip", b"\r\nforwarded:"):
        assert gone not in lowered, gone


@pytest.mark.parametrize("target", ROUTES)
async def test_it_is_in_no_answer_and_no_log(target: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    for script in (sse(CH, FIN, DONE), json({}, status=401), head(200, "Content-Length: x"), b"no HTTP\r\n\r\n"):
        upstream.play(script)
        answer = await ask(proxy.port, sent(target))
        assert SECRET.encode() not in answer.raw_head + answer.body
    bad = await ask(proxy.port, request("POST", target, *CLIENTS_OWN, "X-Soloflight-Stage: unknown", body=b"{}"))
    assert error_code(bad) == "bad_request"
    assert SECRET.encode() not in bad.raw_head + bad.body
    assert SECRET not in proxy.log
    assert "client-" not in proxy.log


async def test_without_an_operators_credential_the_clients_own_goes_on(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    plain = start_proxy({"upstream": {"headers": {"X-Team": "red"}}}, upstream=upstream.port)
    upstream.play(json({}))
    await ask(plain.port, request("GET", "/v1/files", *CLIENTS_OWN, *CONTROL[2:]))
    received = upstream.requests[0]
    assert received.all(b"authorization") == [b"Bearer client-1", b"Bearer client-2", b"Basic Y2xpZW50LTM="]
    assert received.field(b"api-key") == b"client-4"
    assert received.all(b"x-team") == [b"red"]
    assert b"soloflight-" not in received.head.lower()
