"""Answers that the proxy makes itself: the one form they all have (contract section 5)."""

import json

from harness.wire import Response

MEMBERS = {"message", "type", "code", "param"}


def error_code(answer: Response) -> str:
    """The ``code`` of an error of the proxy, which must have the API's form throughout."""
    assert answer.complete, answer
    assert answer.get("Content-Type") == "application/json"
    assert (answer.get("Proxy-Status") or "").startswith("soloflight; error=")
    whole = json.loads(answer.body)
    assert whole.keys() == {"error"}
    error = whole["error"]
    assert error.keys() == MEMBERS
    assert error["type"] == "soloflight_error"
    assert error["message"]
    return str(error["code"])


def refused(answer: Response) -> tuple[int, str]:
    """(status, code) of an error of the proxy."""
    return answer.status, error_code(answer)
