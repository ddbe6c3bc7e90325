"""The client's trace context as events carry it."""

import pytest

from soloflight.core.request import Request
from soloflight.core.trace import MAX_PARENT, MAX_STATE, Trace, trace_of

PARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def request(*fields: tuple[bytes, bytes]) -> Request:
    return Request("POST", "/v1/chat/completions", ((b"Host", b"a"), (b"accept-enc", b"x"), *fields))


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ([], None),
        ([(b"traceparent", PARENT)], Trace(PARENT.decode())),
        ([(b"TraceParent", PARENT), (b"TraceState", b"a=1")], Trace(PARENT.decode(), "a=1")),
        (
            [(b"tracestate", b"a=1"), (b"traceparent", PARENT), (b"tracestate", b"b=2")],
            Trace(PARENT.decode(), "a=1,b=2"),
        ),
        ([(b"traceparent", PARENT), (b"traceparent", PARENT)], None),
        ([(b"traceparent", b"")], None),
        ([(b"tracestate", b"a=1")], None),
        ([(b"traceparent", PARENT.ljust(MAX_PARENT + 1, b"-"))], None),
        ([(b"traceparent", PARENT), (b"tracestate", b"a" * (MAX_STATE + 1))], Trace(PARENT.decode())),
        ([(b"traceparent", PARENT), (b"tracestate", b"a" * MAX_STATE)], Trace(PARENT.decode(), "a" * MAX_STATE)),
        ([(b"traceparent", b"\xff")], Trace("ÿ")),
    ],
)
def test_what_is_carried(fields: list[tuple[bytes, bytes]], found: Trace | None) -> None:
    assert trace_of(request(*fields)) == found
