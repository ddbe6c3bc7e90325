"""A raw two-way tunnel after an upgrade: bytes are not parsed, so subprotocols, pings and close codes are the peers' own."""

from __future__ import annotations

import asyncio

from soloflight.flow.link import Link
from soloflight.web.connection import Connection

FLUSH_S = 5.0


async def tunnel(client: Connection, upstream: Link, idle_s: float) -> None:
    """Pump bytes both ways until one side closes, or both are silent for ``idle_s``. The other side is then closed, too."""
    loop = asyncio.get_running_loop()
    over = loop.create_future()
    last = loop.time()

    def finish() -> None:
        if not over.done():
            over.set_result(None)

    def from_client(data: bytes) -> None:
        nonlocal last
        last = loop.time()
        if upstream.transport is None or upstream.transport.is_closing():
            finish()
            return
        upstream.transport.write(data)
        if upstream.write_paused and client.transport is not None:
            client.transport.pause_reading()

    def from_upstream(data: bytes) -> None:
        nonlocal last
        last = loop.time()
        if client.transport is None or client.transport.is_closing():
            finish()
            return
        client.transport.write(data)
        if client.write_paused and upstream.transport is not None:
            upstream.transport.pause_reading()

    def client_writable() -> None:
        if client.transport is None:
            finish()
        elif upstream.transport is not None:
            upstream.transport.resume_reading()

    def upstream_writable() -> None:
        if client.transport is not None:
            client.transport.resume_reading()

    client.on_writable, upstream.on_writable, upstream.on_lost = client_writable, upstream_writable, finish
    client.relay, upstream.relay = from_client, from_upstream
    try:
        if tail := client.take_tail():
            from_client(tail)
        if tail := upstream.take_tail():
            from_upstream(tail)
        while not over.done():
            remaining = last + idle_s - loop.time()
            if remaining <= 0:
                break
            await asyncio.wait([over], timeout=remaining)
    finally:
        client.relay = upstream.relay = None
        client.on_writable = upstream.on_writable = upstream.on_lost = None
        for side in (upstream.transport, client.transport):
            if side is not None:
                side.close()  # what was written still leaves, but a peer that takes nothing is not waited for long
                loop.call_later(FLUSH_S, side.abort)
