"""One process on one core, against the textbook server and against itself."""

from __future__ import annotations

import json
import re
import statistics
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.contest import (
    LOAD_CORE,
    Figures,
    crowd,
    free_port,
    full,
    nginx_origin,
    post_script,
    running,
    soloflight,
    table,
    textbook,
    wrk,
)
from soloflight.testing.script import json as answer_json
from soloflight.testing.script import sse
from soloflight.testing.upstream import ScriptedUpstream

ANSWER = json.dumps(
    {
        "id": "c",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "y" * 800}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4},
    }
)
UPSTREAM_S = 1.2
FOLLOWERS = 1000


@pytest.fixture
def origin(tmp_path: Path) -> Iterator[str]:
    port = free_port()
    with running(*nginx_origin(tmp_path, port, ANSWER), port=port, core=LOAD_CORE):
        yield f"http://127.0.0.1:{port}"


def test_throughput(origin: str, tmp_path: Path) -> None:
    same, fresh = post_script(tmp_path, "same", 500), post_script(tmp_path, "fresh", 500, fresh=True)
    ports = {name: free_port() for name in ("textbook proxy", "textbook dict", "soloflight")}
    rows = [
        ("pass-through, textbook", "textbook proxy", "/v1/other", same),
        ("pass-through, soloflight", "soloflight", "/v1/other", same),
        ("replay, textbook dict", "textbook dict", "/v1/chat/completions", same),
        ("replay, soloflight L1", "soloflight", "/v1/chat/completions", same),
        ("new flight, soloflight", "soloflight", "/v1/chat/completions", fresh),
    ]
    figures = {label: Figures() for label, *_ in rows}
    with ExitStack() as stack:
        pids = {
            "textbook proxy": stack.enter_context(
                running(*textbook("proxy", ports["textbook proxy"], origin), port=ports["textbook proxy"])
            ),
            "textbook dict": stack.enter_context(
                running(*textbook("memory", ports["textbook dict"], origin), port=ports["textbook dict"])
            ),
            "soloflight": stack.enter_context(
                running(*soloflight(ports["soloflight"], origin), port=ports["soloflight"])
            ),
        }
        for _ in range(9 if full() else 4):
            for label, who, path, script in rows:
                seconds = 3 if full() else 2
                wrk(f"http://127.0.0.1:{ports[who]}{path}", script, seconds, pids[who], figures[label])
    base = {
        "pass-through": "pass-through, textbook",
        "replay": "replay, textbook dict",
        "new flight": "pass-through, soloflight",
    }
    lines = [("work, 0.5 KB POST, 64 connections", "requests/s", "CPU µs/request", "ratio by rate", "ratio by CPU")]
    for label, *_ in rows:
        one, other = figures[label], figures[base[label.partition(",")[0]]]
        lines.append(
            (
                label,
                f"{one.median:,.0f}",
                f"{one.cpu:.1f}",
                f"{one.median / other.median:.2f}",
                f"{other.cpu / one.cpu:.2f}",
            )
        )
    table("One process, one core", lines)


def memory_kb(pid: int) -> int:
    """Resident memory."""
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1])  # type: ignore[index]


def test_identical_requests() -> None:
    """1,000 identical requests at once: one upstream call, and what each waits beyond the upstream's own time."""
    rounds, latencies, per_follower = 3, [], []
    with ScriptedUpstream([UPSTREAM_S, answer_json(json.loads(ANSWER))]).in_thread() as upstream:
        port = free_port()
        with running(*soloflight(port, upstream.url), port=port) as pid:
            crowd(port, 10, "json")
            for _ in range(rounds):
                calls, idle = upstream.calls, memory_kb(pid)
                peak = Peak(pid)
                result = crowd(port, FOLLOWERS, "json")
                per_follower.append((peak.stop() - idle) / FOLLOWERS)
                assert result["statuses"] == [200]
                assert upstream.calls == calls + 1
                latencies.append([(took - UPSTREAM_S) * 1000 for took in result["took"]])  # type: ignore[attr-defined]
    p50, p99 = (statistics.median(sorted(run)[int(FOLLOWERS * q)] for run in latencies) for q in (0.5, 0.99))
    rows = [
        ("1,000 identical requests, upstream 1.2 s", "figure", "reach"),
        ("upstream calls", "1", "1"),
        ("added latency p50", f"{p50:.1f} ms", ""),
        ("added latency p99", f"{p99:.1f} ms", "< 60 ms"),
        ("memory per waiting follower, connection included", f"{max(per_follower):.1f} KB", "< 12 KB"),
    ]
    table("Sharing in flight", rows)


def test_live_followers() -> None:
    """Late followers of one stream: how far behind the owner's client they get each frame."""
    events = [b'data: {"n":%d,"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n' % n for n in range(200)]
    steps = [step for event in events for step in (0.01, event)]
    last = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    rows = [("late followers of a 100 frames/s stream", "lag p50", "lag p99", "reach p50")]
    with ScriptedUpstream(sse(*steps, last, b"data: [DONE]\n\n")).in_thread() as upstream:
        port = free_port()
        with running(*soloflight(port, upstream.url), port=port):
            for count, reach in ((1, "< 1 ms"), (10, "< 1 ms"), (100, "")):
                result = crowd(port, count, "sse")
                rows.append((str(count), f"{result['p50_ms']:.2f} ms", f"{result['p99_ms']:.2f} ms", reach))
        assert upstream.calls == len(rows) - 1
    table("Following live", rows)


class Peak:
    """The largest resident memory of a process while this runs, looked at from a thread."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._peak = memory_kb(pid)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        while not self._stop.wait(0.05):
            self._peak = max(self._peak, memory_kb(self._pid))

    def stop(self) -> int:
        """End the looking; kilobytes."""
        self._stop.set()
        self._thread.join()
        return self._peak
