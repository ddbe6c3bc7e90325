"""How log lines look, and the one line that tells of a request. No line holds a credential, a query, a body or a prompt.

Rule: what clients and upstreams named can not begin a line, forge a field or steer a terminal: it is escaped here, once.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from typing import Any

import orjson

from soloflight.ports import Event, FlightEnded, RequestEnded, WriteRefused

access = logging.getLogger("soloflight.access")

MAX_PATH = 256

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_PLAIN = re.compile('[^ "=]+')
# What orjson leaves as it is, and a terminal or a line reader may not.
_UNSAFE_IN_JSON = re.compile("[\x7f-\x9f\u2028\u2029]")


def configure(level: str, form: str) -> None:
    """Set the root logger up: ``level`` as in the config, ``form`` "text" or "json", to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # asyncio's own debug lines name sockets and tasks, never content; aiohttp's would repeat what we log ourselves.
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    logging.getLogger("aiohttp").setLevel(logging.ERROR)


class TextLines(logging.Formatter):
    """``2026-01-31T12:00:00.123Z INFO soloflight.access key=value …``; a traceback follows, each of its lines indented."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        text = f"{stamp}.{int(record.msecs):03d}Z {record.levelname} {record.name} {escaped(record.getMessage())}"
        for key, value in _extra(record).items():
            text += f" {key}={_word(str(value))}"
        if record.exc_info:
            for line in self.formatException(record.exc_info).split("\n"):
                text += "\n    " + escaped(line)
        return text


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        for key, value in _extra(record).items():
            line.setdefault(key, value)
        try:
            text = orjson.dumps(line, default=str).decode()
        except TypeError:  # lone surrogates, or a number of more than 64 bits
            text = json.dumps(line, default=str)
        return _UNSAFE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def escaped(text: str) -> str:
    """``text`` with everything that is not printable as an escape: line ends, control characters, lone surrogates."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _word(text: str) -> str:
    """A value as one word of a line: in quotes, as in JSON, where it would not look like one."""
    return text if text.isprintable() and _PLAIN.fullmatch(text) else escaped(json.dumps(text, ensure_ascii=False))


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in _OWN}


class AccessLog:
    """An observer that writes one line for each request, and one for each flight at debug."""

    def on_event(self, event: Event) -> None:
        """Write the event's line, if that level is on."""
        if isinstance(event, RequestEnded):
            if access.isEnabledFor(logging.INFO):
                access.info("request", extra=_request_fields(event))
        elif isinstance(event, FlightEnded):
            if access.isEnabledFor(logging.DEBUG):
                access.debug("flight", extra=_flight_fields(event))
        elif isinstance(event, WriteRefused):
            access.warning("owner's write refused", extra={"flight": event.flight, "refusal": event.refusal})


def _request_fields(event: RequestEnded) -> dict[str, Any]:
    fields = {
        "request_id": event.request_id,
        "upstream_id": event.upstream_id,
        "method": event.method,
        "path": event.path[:MAX_PATH],
        "stage": event.stage,
        "role": event.role.value,
        "flight": event.flight,
        "status": event.status,
        "bytes": event.sent,
        "first_byte_ms": round(event.first_byte_s * 1000, 1),
        "duration_ms": round(event.duration_s * 1000, 1),
        "reason": event.reason,
        "code": event.code.code if event.code else "",
        "cut": event.cut,
    }
    return {key: value for key, value in fields.items() if value != "" and value is not False}


def _flight_fields(event: FlightEnded) -> dict[str, Any]:
    return {
        "flight": event.flight,
        "stage": event.stage,
        "outcome": event.outcome,
        "kept": event.kept,
        "status": event.status,
        "attempts": event.attempts,
        "bytes": event.size,
        "duration_ms": round(event.duration_s * 1000, 1),
    }
