"""C75: redirects followed, with the credentials.

Source: Reyane-R/ReyCode#19, rmusser01/tldw_chatbook#1925, sindresorhus/got#1090; aiohttp follows a 302 by default.
Right: a reverse proxy passes the 3xx to its client unchanged, follows none, and keeps none.
"""

import pytest

from harness.client import ask, chat, fresh, request
from harness.proxy import Proxy
from soloflight.testing.script import raw
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

BODY = b"<a href=there>moved</a>"
CREDENTIALS = ("x-api-key: secret-1", "api-key: secret-2", "Cookie: session=secret-3")
LOCATIONS = {
    "another port": "http://127.0.0.1:{port}/v1/elsewhere",
    "metadata service": "http://169.254.169.254/latest/meta-data",
    "relative": "../elsewhere?a=b#c",
    "scheme-relative": "//127.0.0.1:{port}/x",
    "loop": "/v1/chat/completions",
}
SENT = {
    "shared": lambda: chat(fresh(stream=False), *CREDENTIALS),
    "alone": lambda: request("POST", "/v1/files", "Authorization: Bearer k1", *CREDENTIALS, body=b"content"),
    "alone GET": lambda: request("GET", "/v1/files", "Authorization: Bearer k1", *CREDENTIALS),
}


@pytest.mark.parametrize("kind", SENT)
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_it_is_passed_on_and_not_followed(
    status: int, kind: str, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    async with ScriptedUpstream() as elsewhere:
        for calls, location in enumerate(LOCATIONS.values(), start=1):
            location = location.format(port=elsewhere.port)
            upstream.play(raw(BODY, f"Location: {location}", status=status, type="text/html"))
            answer = await ask(proxy.port, SENT[kind]())
            assert (answer.status, answer.all("Location"), answer.body) == (status, [location], BODY)
            assert upstream.calls == calls
        assert elsewhere.connections == 0


@pytest.mark.parametrize("status", [301, 308])
async def test_it_is_not_kept(status: int, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(raw(BODY, "Location: /v1/elsewhere", "Cache-Control: max-age=999", status=status))
    body = chat(fresh(stream=False))
    assert [(await ask(proxy.port, body)).role for _ in range(2)] == ["owner", "owner"]
    assert upstream.calls == 2
