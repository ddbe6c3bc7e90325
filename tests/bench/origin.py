"""The upstream where time or a stream matters: ``python -m bench.origin PORT ANSWER_S CHUNKS EVERY_S``.

CHUNKS 0: a completion of 1 KB after ANSWER_S. Else an event stream that begins after ANSWER_S; each event carries the
moment it was written, in ns of CLOCK_MONOTONIC, which all processes of a machine share. ``GET /calls`` tells the calls so far.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import uvloop

COMPLETION = json.dumps(
    {
        "id": "chatcmpl-bench",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "y" * 780}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
    }
)
EVENT = b'data: {"t":%d,"choices":[{"index":0,"delta":{"content":"token"}}]}\n\n'
LAST = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def whole(body: str) -> bytes:
    """An answer with its length."""
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return (head + body).encode()


def chunk(data: bytes) -> bytes:
    """One chunk of the chunked coding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Origin:
    """Answers in turn on each connection; no pipelining, as no proxy does it."""

    def __init__(self, answer_s: float, chunks: int, every_s: float) -> None:
        self._answer_s, self._chunks, self._every_s = answer_s, chunks, every_s
        self.calls = 0

    def __repr__(self) -> str:
        return f"<Origin calls={self.calls}>"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until it is closed."""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                if b"\r\ncontent-length:" in head:
                    await reader.readexactly(int(head.split(b"\r\ncontent-length:")[1].split(b"\r\n")[0]))
                elif b"\r\ntransfer-encoding:" in head:
                    await reader.readuntil(b"0\r\n\r\n")
                await self._answer(head, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _answer(self, head: bytes, writer: asyncio.StreamWriter) -> None:
        if head.startswith(b"get /calls"):
            writer.write(whole(str(self.calls)))
            return
        self.calls += 1
        began = asyncio.get_running_loop().time() + self._answer_s
        await asyncio.sleep(self._answer_s)
        if not self._chunks:
            writer.write(whole(COMPLETION))
            return
        writer.write(STREAM_HEAD)
        for number in range(self._chunks):
            # By the clock, not by sleeps one after the other: the rate is the rate even when one is late.
            await asyncio.sleep(began + number * self._every_s - asyncio.get_running_loop().time())
            writer.write(chunk(EVENT % time.monotonic_ns()))
        writer.write(chunk(LAST) + b"0\r\n\r\n")


async def main(port: int, answer_s: float, chunks: int, every_s: float) -> None:
    """Serve until the process is ended."""
    origin = Origin(answer_s, chunks, every_s)
    server = await asyncio.start_server(origin.serve, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
