"""Requests and answers that these tests are made of: four ways to run a job, of which two may be shared."""

from dataclasses import dataclass
from typing import Any

from harness.client import chat, fresh
from soloflight.testing.chat import CH, DONE, FIN, completion_object
from soloflight.testing.script import Step, head, sse
from soloflight.testing.script import json as json_answer

SHARED, LONE = "/v1/chat/completions", "/v1/extract"


def job(
    stage: str,
    session: str | bytes | None = None,
    *fields: str | bytes,
    body: dict[str, Any] | None = None,
    target: str = SHARED,
    key: str = "k1",
) -> bytes:
    """A request for ``stage``; another one each time, unless ``body`` is given."""
    named = [f"X-Soloflight-Stage: {stage}"] if stage else []
    if session is not None:
        id_ = session.encode() if isinstance(session, str) else session
        named = [*named, b"X-Soloflight-Session: " + id_]  # type: ignore[list-item]
    return chat(fresh(stream=False) if body is None else body, *named, *fields, target=target, key=key)


@dataclass(frozen=True)
class Way:
    """A route, and the form of its answers."""

    name: str
    target: str
    stream: bool

    def job(self, stage: str, session: str | bytes | None, *fields: str) -> bytes:
        """A job that goes this way."""
        return job(stage, session, *fields, body=fresh(stream=self.stream), target=self.target)

    def answer(self, *before: Step, end: tuple[Step, ...] = ()) -> list[Step]:
        """Its answer, with ``before`` after its first bytes and ``end`` in the place of the rest."""
        if self.stream:
            return sse(CH, *before, *(end or (FIN, DONE)), last=not end)
        whole = json_answer(completion_object())
        at, _, _ = whole.partition(b"\r\n\r\n")
        cut = len(at) + 14
        return [whole[:cut], *before, *(end or (whole[cut:],))]


WAYS = [
    Way("shared JSON", SHARED, stream=False),
    Way("shared SSE", SHARED, stream=True),
    Way("lone JSON", LONE, stream=False),
    Way("lone SSE", LONE, stream=True),
]
JOB = json_answer(completion_object())
FAILED = json_answer({"error": {"message": "no"}}, status=500)
CUT = head(200, "Content-Type: application/json", "Content-Length: 1000") + b"{"
