"""Many identical clients at once, in their own process: ``python -m bench.crowd PORT COUNT MODE [PORT2]``; prints one JSON line.

MODE ``json``: all ask together, added latency is each one's time beyond the upstream's. MODE ``sse``: all listen to one stream;
lag is each frame's arrival behind its arrival at the first client.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time

import uvloop


async def ask(port: int, body: bytes, started: asyncio.Event) -> tuple[float, int]:
    """One client: (seconds from its request to its whole answer, status)."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await started.wait()
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    begun = time.perf_counter()
    writer.write(head % len(body) + body)
    answer = await reader.readuntil(b"\r\n\r\n")
    length = int(answer.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    await reader.readexactly(length)
    took = time.perf_counter() - begun
    writer.close()
    return took, int(answer[9:12])


async def together(port: int, count: int) -> dict[str, object]:
    """All ask the same at the same time."""
    started = asyncio.Event()
    body = json.dumps({"model": "m", "messages": [], "temperature": 0, "n": time.time()}).encode()
    tasks = [asyncio.create_task(ask(port, body, started)) for _ in range(count)]
    await asyncio.sleep(0.5 + count / 2000)
    started.set()
    results = await asyncio.gather(*tasks)
    return {"took": sorted(took for took, _ in results), "statuses": sorted({status for _, status in results})}


async def frames(port: int, body: bytes, arrivals: dict[bytes, list[float]], delay_s: float) -> None:
    """One client of a stream: notes when each frame arrives."""
    await asyncio.sleep(delay_s)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    writer.write(head % len(body) + body)
    await reader.readuntil(b"\r\n\r\n")
    while line := await reader.readline():
        if line.startswith(b"data: {"):
            arrivals.setdefault(line, []).append(time.perf_counter())
        elif line.startswith(b"data: [DONE]"):
            break
    writer.close()


async def streaming(port: int, count: int, elsewhere: int) -> dict[str, object]:
    """One owner, then ``count`` late followers at port ``elsewhere``; the lag of the frames that come after they have joined."""
    arrivals: dict[bytes, list[float]] = {}
    body = json.dumps({"model": "m", "stream": True, "messages": [], "n": time.time()}).encode()
    late = (frames(elsewhere, body, arrivals, 0.6) for _ in range(count))
    await asyncio.gather(frames(port, body, arrivals, 0.0), *late)
    live = [times for times in list(arrivals.values())[len(arrivals) // 2 :] if len(times) == count + 1]
    lags = sorted(stamp - times[0] for times in live for stamp in times[1:])
    return {"frames": len(live), "p50_ms": statistics.median(lags) * 1e3, "p99_ms": lags[int(len(lags) * 0.99)] * 1e3}


if __name__ == "__main__":
    uvloop.install()
    port, count, mode = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    elsewhere = int(sys.argv[4]) if len(sys.argv) > 4 else port
    print(json.dumps(asyncio.run(together(port, count) if mode == "json" else streaming(port, count, elsewhere))))
