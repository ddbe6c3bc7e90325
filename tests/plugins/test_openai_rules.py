"""Vary against the key, the error event of a cut, and the plugin as the proxy finds it."""

from importlib.metadata import entry_points

import orjson
import pluggy
import pytest

import soloflight
import soloflight_openai
from soloflight import hookspecs
from soloflight.core.answer import Facts, Reason
from soloflight.core.frames import Head
from soloflight.core.sse import Event, Splitter
from soloflight.core.stage import Stage
from soloflight_openai import Bodies, Rules

CHAT = "/v1/chat/completions"


def kept(stage: Stage, *vary: bytes, kind: bytes = b"application/json", body: bytes = b"{}") -> Reason | None:
    fields = ((b"Content-Type", kind), *((b"vArY", value) for value in vary))
    judge = Rules(stage).judge(CHAT, Facts(), Head(200, b"OK", fields), keep_incomplete=False)
    judge.feed(body)
    return judge.end(transport_whole=True).kept


@pytest.mark.parametrize(
    "vary",
    [
        b"",
        b", ,",
        b"Origin",
        b"origin, Accept-Encoding",
        b"Accept,Content-Type",
        b"Authorization",
        b"api-key, X-Api-Key, x-goog-api-key, Ocp-Apim-Subscription-Key, Cookie, X-Session-Token",
        b"OpenAI-Organization, OpenAI-Project, OpenAI-Beta, anthropic-version, anthropic-beta",
        b"Content-Encoding",
    ],
)
def test_vary_on_fields_of_the_key_is_kept(vary: bytes) -> None:
    assert kept(Stage(), vary) is None


@pytest.mark.parametrize(
    "vary",
    [
        b"*",
        b"Origin, *",
        b"User-Agent",
        b"Accept-Language",
        b"Origin, Access-Control-Request-Method, Access-Control-Request-Headers",
        b"X-Soloflight-Session",
        b"x-stainless-api-key",
        b"OpenAI-Intent",
        b"\xff",
    ],
)
def test_vary_on_any_other_field_is_not(vary: bytes) -> None:
    assert kept(Stage(), vary) is Reason.VARY


def test_every_vary_field_counts() -> None:
    assert kept(Stage(), b"Origin", b"User-Agent") is Reason.VARY


def test_vary_is_the_last_of_the_reasons() -> None:
    assert kept(Stage(), b"*", body=b'{"error":1}') is Reason.ERROR
    assert kept(Stage(), b"*", kind=b"audio/mpeg", body=b"x") is Reason.VARY
    assert kept(Stage(), b"*", kind=b"text/event-stream", body=b"data: [DONE]\n\n") is Reason.INCOMPLETE


def test_key_headers_are_in_the_key() -> None:
    assert kept(Stage(key_headers=("User-Agent",)), b"user-agent") is None


@pytest.mark.parametrize(
    ("scope", "vary", "reason"),
    [
        ("everyone", b"Authorization", Reason.VARY),
        ("everyone", b"Origin", None),
        ("header:X-Tenant", b"X-Tenant", None),
        ("header:X-Tenant", b"Authorization", Reason.VARY),
        ("credential", b"X-Tenant", Reason.VARY),
    ],
)
def test_a_credential_is_in_the_key_only_where_it_is_the_scope(scope: str, vary: bytes, reason: Reason | None) -> None:
    assert kept(Stage(scope=scope), vary) is reason


CHAT_FORM = {"error": {"message": "cut", "type": "soloflight_error", "code": "owner_lost", "param": None}}
ERROR_EVENTS = {
    CHAT: (b"", CHAT_FORM),
    "/v1/completions": (b"", CHAT_FORM),
    "/v1/audio/transcriptions": (b"", CHAT_FORM),
    "/v1/images/generations": (b"", CHAT_FORM),
    "/api/watch": (b"", CHAT_FORM),
    "/v1/responses": (b"error", {"type": "error", "code": "owner_lost", "message": "cut", "param": None}),
    "/v1/messages": (b"error", {"type": "error", "error": {"type": "api_error", "message": "cut"}}),
}


@pytest.mark.parametrize("path", ERROR_EVENTS)
def test_the_error_event_of_a_cut(path: str) -> None:
    name, document = ERROR_EVENTS[path]
    raw = Rules(Stage()).error_event(path, "owner_lost", "cut")
    (event,) = Splitter().feed(raw)
    assert event == Event(name, event.data, len(raw))
    assert orjson.loads(event.data) == document


@pytest.mark.parametrize(
    ("path", "raw"),
    [
        (CHAT, b'data: {"error":{"message":"m","type":"soloflight_error","code":"c","param":null}}\n\n'),
        ("/v1/responses", b'event: error\ndata: {"type":"error","code":"c","message":"m","param":null}\n\n'),
        ("/v1/messages", b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"m"}}\n\n'),
    ],
)
def test_the_bytes_of_the_error_event(path: str, raw: bytes) -> None:
    assert Rules(Stage()).error_event(path, "c", "m") == raw


@pytest.mark.parametrize("path", [CHAT, "/v1/responses", "/v1/messages"])
def test_an_error_event_is_judged_as_an_error(path: str) -> None:
    rules = Rules(Stage())
    head = Head(200, b"OK", ((b"Content-Type", b"text/event-stream"),))
    judge = rules.judge(path, Facts(stream=True), head, keep_incomplete=False)
    judge.feed(rules.error_event(path, "owner_lost", "the owner was lost"))
    assert judge.end(transport_whole=False).kept is Reason.ERROR


def test_no_message_breaks_out_of_its_event() -> None:
    raw = Rules(Stage()).error_event(CHAT, "c", "a\n\ndata: [DONE]\r\r\ud800")
    (event,) = Splitter().feed(raw)
    assert orjson.loads(event.data)["error"]["message"] == "a\n\ndata: [DONE]\r\r?"


def manager() -> pluggy.PluginManager:
    plugins = pluggy.PluginManager("soloflight")
    plugins.add_hookspecs(hookspecs)
    return plugins


def test_the_plugin_is_found_by_its_entry_point_as_a_strangers_would_be() -> None:
    plugins = manager()
    (point,) = entry_points(group="soloflight", name="openai")
    plugins.register(point.load(), point.name)
    plugins.check_pending()
    assert point.load() is soloflight_openai
    assert isinstance(plugins.hook.soloflight_fingerprinter(stage=Stage()), Bodies)
    assert isinstance(plugins.hook.soloflight_answer_rules(stage=Stage()), Rules)


@pytest.mark.parametrize("first", [True, False])
def test_a_stranger_with_an_opinion_goes_first_whatever_the_order(first: bool) -> None:
    class Stranger:
        @soloflight.hookimpl
        def soloflight_fingerprinter(self, stage: Stage) -> object:
            return "mine" if stage.name == "mine" else None

    plugins = manager()
    for plugin in (Stranger(), soloflight_openai) if first else (soloflight_openai, Stranger()):
        plugins.register(plugin)
    assert plugins.hook.soloflight_fingerprinter(stage=Stage(name="mine")) == "mine"
    assert isinstance(plugins.hook.soloflight_fingerprinter(stage=Stage()), Bodies)


def test_repr() -> None:
    assert repr(Rules(Stage(max_recording=7))) == "Rules(KeyFields(10, credentials=True), limit=7)"
