"""What the upstream says, told apart by call, and what a client may have got of it (I4)."""

import json
from collections.abc import Sequence

from harness.wire import Response, parse_events
from soloflight.testing.chat import DONE, FIN, completion_object, content
from soloflight.testing.script import Step, head, sse
from soloflight.testing.script import json as json_answer


def said(call: int, *texts: str) -> list[bytes]:
    """The content events of one call: no other call's are the same."""
    return [content(f"<call {call}: {text}>") for text in texts]


def numbered(call: int, count: int) -> list[bytes]:
    """``count`` content events."""
    return said(call, *map(str, range(count)))


def stream(events: Sequence[bytes], *between: Step) -> list[Step]:
    """An event stream with ``between`` before each event but the first, and its proper end."""
    steps: list[Step] = []
    for number, event in enumerate(events):
        steps += [*(between if number else ()), event]
    return sse(*steps, FIN, DONE)


def whole(events: Sequence[bytes]) -> bytes:
    """The body of ``stream``."""
    return b"".join(events) + FIN + DONE


def json_body(call: int, size: int = 200) -> bytes:
    """A JSON answer's body of about ``size`` bytes."""
    return json_answer(completion_object(f"<call {call}>" + "x" * size)).partition(b"\r\n\r\n")[2]


def json_script(body: bytes, at: int, *between: Step) -> list[Step]:
    """A JSON answer with a length, with ``between`` after ``at`` bytes."""
    return [head(200, "Content-Type: application/json", f"Content-Length: {len(body)}"), body[:at], *between, body[at:]]


def got_all(answer: Response, *attempts: bytes) -> bool:
    """I4: whether a client got one attempt's whole answer, else it must have been cut visibly. ``attempts``: whole bodies."""
    if answer.complete:
        assert answer.status == 200, (answer.status, answer.body)
        assert answer.body in attempts, "a body that no attempt made"
        return True
    assert answer.ended == "rst", f"a cut must show: {answer.ended}"
    assert not answer.last_chunk_seen
    left = without_error(answer)
    assert any(attempt.startswith(left) and attempt != left for attempt in attempts), "not the beginning of any attempt"
    assert DONE not in answer.body
    return False


def without_error(answer: Response) -> bytes:
    """A cut body without the one error event that stands at its end, if it does."""
    at = answer.body.rfind(b'data: {"error":')
    if at < 0:
        return answer.body
    left, event = answer.body[:at], answer.body[at:]
    assert left == b"" or left.endswith(b"\n\n"), "an error event not at an event boundary"
    assert event.endswith(b"\n\n")
    assert event.count(b"\n\n") == 1
    assert b'"error":' not in left
    return left


def error_of(answer: Response) -> str:
    """The code of the error event with which a stream was cut."""
    assert not answer.complete
    error = json.loads(parse_events(answer.body)[-1].data)["error"]
    assert error.keys() == {"message", "type", "code", "param"}
    assert error["type"] == "soloflight_error"
    return str(error["code"])
