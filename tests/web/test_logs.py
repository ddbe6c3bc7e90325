"""Log lines: one line each, whatever clients and upstreams wrote, and nothing in them that is nobody's business."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.client import ask, chat, connect, fresh, request
from nodes.house import House, OpenHouse
from soloflight.ports import FlightEnded, RequestEnded, Role, WriteRefused
from soloflight.testing.chat import CH, DONE, FIN
from soloflight.testing.script import sse
from soloflight.testing.upstream import ScriptedUpstream
from soloflight.web.logs import AccessLog, JsonLines, TextLines, configure

ESC, CSI, NEL, RLO = "\x1b", "\x9b", "\x85", "\u202e"
NASTY = f"a\r\nERROR forged\t{ESC}[31m{CSI}31m{NEL}\u2028{RLO}\x7f\0\ud800"


def record(message: str = "request", *args: object, level: int = logging.INFO, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("soloflight.test", level, __file__, 1, message, args, None)
    vars(made).update(extra)
    return made


def failed(message: str) -> logging.LogRecord:
    try:
        raise ValueError(message)
    except ValueError:
        made = record("it failed", level=logging.ERROR)
        made.exc_info = sys.exc_info()
    return made


def text(made: logging.LogRecord) -> str:
    return TextLines().format(made)


def parsed(made: logging.LogRecord) -> dict[str, Any]:
    line = JsonLines().format(made)
    line.encode()
    assert "\n" not in line
    value = json.loads(line)
    assert isinstance(value, dict)
    return value


# ── text ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_text_line_is_time_level_logger_message_and_fields() -> None:
    made = record("took %d", 3, status=200, path="/v1/x", ratio=0.5, cut=True, nothing=None)
    made.created, made.msecs = 1_800_000_000.25, 250.0
    assert text(made) == (
        "2027-01-15T08:00:00.250Z INFO soloflight.test took 3 status=200 path=/v1/x ratio=0.5 cut=True nothing=None"
    )


def test_no_character_of_a_message_or_a_value_can_break_the_line_or_steer_a_terminal() -> None:
    line = text(record("said %s", NASTY, path=NASTY))
    assert line.isprintable()
    line.encode()
    assert "\\nERROR forged" in line


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("plain-/:?&%41", "plain-/:?&%41"),
        ("zwölf", "zwölf"),
        ("a\\b", "a\\b"),
        ("", '""'),
        ("two words", '"two words"'),
        ("status=500", '"status=500"'),
        ('a" status="500', r'"a\" status=\"500"'),
        ('a\\" x', r'"a\\\" x"'),
        ("a\nb", r'"a\nb"'),
    ],
)
def test_a_value_is_one_word_and_can_not_forge_another_field(value: str, word: str) -> None:
    assert text(record(key=value)).endswith(f" key={word}")


def test_a_traceback_is_readable_and_none_of_its_lines_looks_like_a_log_line() -> None:
    first, *rest = text(failed(NASTY)).split("\n")
    assert first.endswith(" ERROR soloflight.test it failed")
    assert any("Traceback (most recent call last):" in line for line in rest)
    assert all(line.startswith("    ") and line.isprintable() for line in rest)


# ── JSON ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_json_line_has_the_same_with_types_kept() -> None:
    made = record("took %d", 3, status=200, path="/v1/x", cut=True, nothing=None)
    assert parsed(made) == {
        "time": made.created,
        "level": "info",
        "logger": "soloflight.test",
        "message": "took 3",
        "status": 200,
        "path": "/v1/x",
        "cut": True,
        "nothing": None,
    }


@pytest.mark.parametrize("value", ["\ud800", "a\udcffb", 1 << 80, -(1 << 70), object, float("nan"), {"a": [1]}, b"x"])
def test_a_json_line_survives_any_value(value: object) -> None:
    line = parsed(record(value=value, other="kept"))
    assert (line["message"], line["other"], line["level"]) == ("request", "kept", "info")
    assert "value" in line


def test_lone_surrogates_are_told_as_they_are() -> None:
    assert parsed(record("said %s", "\udcff"))["message"] == "said \udcff"


def test_a_json_line_has_no_character_that_a_terminal_would_act_on() -> None:
    for value in (NASTY, NASTY.replace("\ud800", "")):
        line = JsonLines().format(record("said %s", value, path=value))
        assert not {char for char in line if not char.isprintable()} - {RLO}
        assert parsed(record(path=value))["path"] == value


def test_fields_of_others_do_not_take_the_place_of_the_lines_own() -> None:
    made = record("true")
    vars(made).update(time="x", level="x", logger="x")
    line = parsed(made)
    assert (line["message"], line["level"], line["logger"]) == ("true", "info", "soloflight.test")
    assert isinstance(line["time"], float)


def test_a_traceback_is_one_member() -> None:
    line = parsed(failed(NASTY))
    assert line["exception"].startswith("Traceback (most recent call last):\n")
    assert "ValueError" in line["exception"]


@given(st.text(st.characters(exclude_categories=()), max_size=30))
def test_any_text_is_one_line_in_both_forms(value: str) -> None:
    made = record("said %s", value, key=value)
    assert text(made).isprintable()
    assert parsed(made)["key"] == value


@pytest.mark.parametrize(("form", "formatter"), [("text", TextLines), ("json", JsonLines)])
def test_configure_sets_up_one_handler(form: str, formatter: type, capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before = root.handlers[:], root.level, *(logging.getLogger(name).level for name in ("asyncio", "aiohttp"))
    try:
        configure("warning", form)
        [handler] = root.handlers
        assert isinstance(handler.formatter, formatter)
        logging.getLogger("soloflight.x").warning("seen")
        logging.getLogger("soloflight.x").info("not seen")
    finally:
        root.handlers[:] = before[0]
        root.setLevel(before[1])
        logging.getLogger("asyncio").setLevel(before[2])
        logging.getLogger("aiohttp").setLevel(before[3])
    written = capsys.readouterr().err
    assert "seen" in written
    assert "not seen" not in written


# ── events ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[dict[str, Any]]]:
    caplog.set_level(logging.DEBUG, logger="soloflight.access")
    return lambda: [parsed(made) for made in caplog.records if made.name == "soloflight.access"]


def test_a_request_is_one_line_of_what_is_known(lines: Callable[[], list[dict[str, Any]]]) -> None:
    event = RequestEnded("id-1", "default", Role.OWNER, 200, flight="f", sent=0, path="/" + "x" * 300, method="POST")
    AccessLog().on_event(event)
    [line] = lines()
    assert (line["request_id"], line["role"], line["status"], line["bytes"]) == ("id-1", "owner", 200, 0)
    assert len(line["path"]) == 256
    assert not {"upstream_id", "reason", "code", "cut"} & line.keys()


def test_a_flight_is_a_line_at_debug_and_a_refused_write_a_warning(lines: Callable[[], list[dict[str, Any]]]) -> None:
    log = AccessLog()
    log.on_event(FlightEnded("default", "f", "complete", "kept", 200, 1, 10, 0.5))
    log.on_event(WriteRefused("default", "f", "fenced"))
    flight, refused = lines()
    assert (flight["level"], flight["outcome"], flight["duration_ms"]) == ("debug", "complete", 500.0)
    assert (refused["level"], refused["refusal"]) == ("warning", "fenced")


def test_nothing_is_made_ready_for_a_level_that_is_off(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="soloflight.access")
    AccessLog().on_event(RequestEnded("id-1", "default", Role.OWNER, 200))
    AccessLog().on_event(FlightEnded("default", "f", "complete", "kept", 200, 1, 10, 0.5))
    assert caplog.records == []


SECRETS = ("sk-secret", "q-secret", "own-secret", "prompt-secret", "sub-secret", "cookie-secret")


async def test_no_line_of_a_whole_life_holds_a_secret_or_a_prompt(
    open_house: OpenHouse, upstream: ScriptedUpstream, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    house: House = await open_house(
        {"server": {"client_keys": ["own-secret"]}, "upstream": {"headers": {"Authorization": "Bearer sk-secret"}}}
    )
    upstream.play(sse(CH, FIN, DONE, fields=["Set-Cookie: cookie-secret", "X-Request-Id: up\x9b1"]))
    body = fresh(prompt="prompt-secret")
    carried = ("X-API-Key: own-secret", "Cookie: cookie-secret")
    for target in ("/v1/chat/completions?key=q-secret", "/v1/files?key=q-secret"):
        for _ in range(2):
            assert (await ask(house.port, chat(body, *carried, target=target))).status == 200
    for bad in (
        request("GET", "/v1/models?key=q-secret"),
        request("GET", "/v1/models?key=q-secret", "Bad Field: q-secret", *carried),
        request("GET", "/v1/models#q-secret", *carried),
        request(
            "GET", "/v1/realtime?key=q-secret", "Sec-WebSocket-Protocol: openai-insecure-api-key.sub-secret", *carried
        ),
        chat(body, *carried, "X-Soloflight-Stage: q-secret"),
    ):
        async with connect(house.port) as client:
            await client.ask(bad)
    await house.app.close()
    assert len([made for made in caplog.records if made.name == "soloflight.access"]) >= 8
    for made in caplog.records:
        for line in (text(made), JsonLines().format(made)):
            assert not [secret for secret in SECRETS if secret in line], line
            assert all(part.isprintable() for part in line.split("\n"))
