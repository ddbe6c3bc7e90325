"""What system and case tests stand on: real processes, raw clients, and an exact view of the wire.

A folder of tests takes its fixtures by ``from harness.fixtures import ...`` in its conftest. A test reads::

    from harness.client import ask, chat, connect, fresh
    from soloflight.testing.chat import CH, DONE, FIN
    from soloflight.testing.script import CLOSE, sse

    PROXY = {"stage": [{"name": "quick", "heartbeat": "200ms"}]}   # the module's proxy has it

    async def test_two_share(proxy, upstream):               # one proxy per module, one upstream per test
        gate = asyncio.Event()
        upstream.play(sse(CH, gate, FIN, DONE))                    # bytes, pauses, events: see testing.script
        body = fresh()                                             # a prompt of its own, so a new fingerprint
        async with connect(proxy.port) as a, connect(proxy.port) as b:
            await a.send(chat(body))
            await a.read_events(1)
            await b.send(chat(body))
            await b.read_events(1)
            gate.set()
            first, second = await a.finish(), await b.finish()
        assert first.body == second.body == CH + FIN + DONE
        assert first.complete and first.last_chunk_seen
        assert (first.role, second.role, upstream.calls) == ("owner", "follower", 1)

- ``ScriptedUpstream`` (``upstream``): ``.play(answer, answer, …)`` by call, ``.play(function of Received)``;
  ``.requests[0].head/.body/.fields/.left``, ``.calls``, ``await upstream.wait_calls(2)`` (``wait_until``).
- ``start_proxy(config, *args, upstream=upstream.port, backend="redis", redis_url=redis.url)``: a proxy for
  one test. All proxies must end with exit code 0 and a log without a traceback (``check=False`` lifts that).
  ``.port .url .admin .pid .log .rss() .peak_rss() .metric(name, label=value) .freeze() .kill() .terminate()``
- ``redis_server``: the session's, emptied; ``start_redis(*options)``: one's own, to be stopped or broken.
- ``soloflight.testing.fault_proxy.FaultProxy``: between proxy and Redis (or anything): delay, swallow, cut.
- ``Response`` (``harness.wire``): ``raw_head fields get() status framing chunks body raw_body events
  last_chunk_seen ended complete arrivals informational``.
- No sleeping to synchronise: gates (``asyncio.Event`` as a step), ``wait_until``, ``read_events(n)``; for what
  no event tells (a metric, a log line) ``await harness.process.eventually(lambda: ...)``.
"""
