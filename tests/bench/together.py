"""Many at once: 1,000 identical requests, 1,000 listeners of one stream, followers on other nodes; memory and start-up."""

from __future__ import annotations

import time
from contextlib import ExitStack

from bench import contenders as who
from bench.contenders import SHARED, Contender
from bench.load import Upstream, chat, crowd
from bench.machine import Broken, cpu_s, memory_kb
from bench.origin import COMPLETION
from bench.stand import Bench, warm

FOLLOWERS = 1000
UPSTREAM_S = 1.2
IDENTICAL = "1,000 identical requests at once, upstream 1.2 s"
LIVE = "listeners of one stream, 100 chunks/s: {}"
ELSEWHERE = "late followers on another node, 200 frames/s: {}"
NODES = "identical requests spread over nodes on one Redis, upstream 1.2 s"
START = "start and rest"


def identical(bench: Bench) -> None:
    """What each of the crowd waits beyond the upstream's own time, and what it costs in memory to let it wait."""
    among = [who.SOLOFLIGHT, who.NGINX, *((who.VARNISH,) if bench.full else ())]
    with bench.timed_origin(UPSTREAM_S) as origin:
        for number in bench.rounds(5, 3):
            for contender in bench.there(*among):
                bench.say(f"{IDENTICAL}, round {number + 1}: {contender.name}")
                try:
                    wait_together(bench, contender, origin)
                except Broken as fault:
                    bench.figures.fault(IDENTICAL, contender.name, str(fault))


def wait_together(bench: Bench, contender: Contender, origin: Upstream) -> None:
    """One crowd at a server that has just begun: memory that an earlier crowd left behind would hide this one's."""
    idle, waiting = [0.0], [0.0]
    with bench.server(contender, origin) as server:
        warm(server, SHARED, chat(500, seed=1))
        rest, before = memory_kb(server.pid), origin.calls()

        def look_while_waiting() -> None:
            time.sleep(UPSTREAM_S * 0.6)
            waiting[0] = memory_kb(server.pid)

        def look_idle() -> None:
            time.sleep(0.3)
            idle[0] = memory_kb(server.pid)

        groups = [(server.port, FOLLOWERS, 0)]
        result, *_ = crowd(bench.crowd, chat(500), SHARED, groups, idle=look_idle, waiting=look_while_waiting)
        asked = origin.calls() - before
    if asked != 1 and contender is who.SOLOFLIGHT:
        raise Broken(f"{asked} upstream calls")
    if result["bytes"] != [len(COMPLETION)] * 2:
        raise Broken(f"answers of {result['bytes']} bytes instead of {len(COMPLETION)}")
    added = {f"added_{q}_ms": result["took_ms"][q] - UPSTREAM_S * 1000 for q in ("p50", "p99")}
    memory = {"idle_kb": (idle[0] - rest) / FOLLOWERS, "waiting_kb": (waiting[0] - idle[0]) / FOLLOWERS}
    bench.figures.add(IDENTICAL, contender.name, calls=asked, **added, **memory)


def listeners(bench: Bench) -> None:
    """How old a chunk is when its listener has it, and how busy that keeps the server's core."""
    cases = [(FOLLOWERS, who.SOLOFLIGHT)]
    if bench.full:
        cases += [(FOLLOWERS, who.VARNISH), (100, who.SOLOFLIGHT), (100, who.VARNISH), (1, who.SOLOFLIGHT)]
    among = bench.there(*dict.fromkeys(contender for _, contender in cases))
    for number in bench.rounds(3, 2):
        for count, contender in cases:
            if contender in among:
                bench.say(f"{LIVE.format(count)}, round {number + 1}: {contender.name}")
                try:
                    listen_together(bench, contender, count)
                except Broken as fault:
                    bench.figures.fault(LIVE.format(count), contender.name, str(fault))


def listen_together(bench: Bench, contender: Contender, count: int) -> None:
    """One stream, which begins a second after all have asked for it. Its first and last half second are not watched."""
    chunks, busy = (800 if bench.full else 400), [0.0]
    with bench.timed_origin(1.0, chunks, 0.01) as origin, bench.server(contender, origin) as server:

        def watch() -> None:
            time.sleep(1.5)
            began, used = time.monotonic(), cpu_s(server.pid)
            time.sleep(chunks / 100 - 1)
            busy[0] = (cpu_s(server.pid) - used) / (time.monotonic() - began)

        groups = [(server.port, count, 0)]
        result, *_ = crowd(bench.crowd, chat(500, stream=True), SHARED, groups, waiting=watch)
        asked = origin.calls()
    if asked != 1 or result["events"] != [chunks] * 2:
        raise Broken(f"{asked} calls, {result['events']} of {chunks} events")
    lag = result["lag_ms"]
    bench.figures.add(LIVE.format(count), contender.name, lag_p50_ms=lag["p50"], lag_p99_ms=lag["p99"], core=busy[0])


def followers_elsewhere(bench: Bench) -> None:
    """The owner's client on one node, those who join half a second later on another: what the way over Redis adds."""
    seconds = 4 if bench.full else 3
    with bench.redis() as redis, bench.timed_origin(0.05, seconds * 200, 0.005) as origin, ExitStack() as stack:
        one, two = (stack.enter_context(bench.server(who.NODE, origin, redis)) for _ in range(2))
        for number in bench.rounds(3, 1):
            for count in (1, 100):
                work, before = ELSEWHERE.format(count), origin.calls()
                bench.say(f"{work}, round {number + 1}")
                body = chat(500, stream=True, seed=number * 1000 + count)
                _, far = crowd(bench.crowd, body, SHARED, [(one.port, 1, 0), (two.port, count, 500)])
                if origin.calls() != before + 1:
                    raise Broken(f"{work}: {origin.calls() - before} calls")
                added = {f"late_{q}_ms": far["behind_ms"][q] for q in ("p50", "p99")}
                bench.figures.add(work, who.NODE.name, **added)


def spread(bench: Bench) -> None:
    """300 identical requests over one, two and three nodes: one call, and what the other nodes add."""
    for nodes in (1, 2, 3) if bench.full else (2,):
        with bench.redis() as redis, bench.timed_origin(UPSTREAM_S) as origin, ExitStack() as stack:
            servers = [stack.enter_context(bench.server(who.NODE, origin, redis)) for _ in range(nodes)]
            for number in bench.rounds(3, 2):
                before = origin.calls()
                groups = [(server.port, 300 // nodes, 0) for server in servers]
                results = crowd(bench.crowd, chat(500, seed=number), SHARED, groups)
                asked = origin.calls() - before
                if asked != 1:
                    raise Broken(f"{NODES}: {asked} calls for {nodes} nodes")
                added = {q: max(one["took_ms"][q] for one in results) - UPSTREAM_S * 1000 for q in ("p50", "p99")}
                name = f"soloflight, {nodes} node{'s' * (nodes > 1)}"
                bench.figures.add(NODES, name, calls=asked, added_p50_ms=added["p50"], added_p99_ms=added["p99"])


def start(bench: Bench) -> None:
    """From the process's start to its listening, imports included; and its memory before any request."""
    among = bench.there(who.SOLOFLIGHT, *((who.NGINX, who.VARNISH, who.ENVOY, who.LITELLM) if bench.full else ()))
    with bench.fixed_origin() as origin:
        for contender in among:
            for _ in bench.rounds(5, 3) if contender is not who.LITELLM else range(1):
                began = time.monotonic()
                with bench.server(contender, origin) as server:
                    ready_s = time.monotonic() - began
                    time.sleep(1)
                    bench.figures.add(START, contender.name, ready_s=ready_s, rest_mb=memory_kb(server.pid) / 1024)
