"""Many at once: 1,000 identical requests, 1,000 listeners of one stream, followers on other nodes; memory and start-up."""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial

from bench import contenders as who
from bench.contenders import SHARED, Contender
from bench.load import Upstream, chat, crowd
from bench.machine import Broken, cpu_s, memory_kb
from bench.origin import COMPLETION
from bench.stand import Bench, Server, warm

Measures = dict[str, float]

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
                    measures = bench.undisturbed(partial(wait_together, bench, contender, origin))
                    bench.figures.add(IDENTICAL, contender.name, **measures)
                except Broken as fault:
                    bench.figures.fault(IDENTICAL, contender.name, str(fault))


def wait_together(bench: Bench, contender: Contender, origin: Upstream) -> Measures:
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
    return {"calls": asked, **added, **memory}


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
                    measures = bench.undisturbed(partial(listen_together, bench, contender, count))
                    bench.figures.add(LIVE.format(count), contender.name, **measures)
                except Broken as fault:
                    bench.figures.fault(LIVE.format(count), contender.name, str(fault))


def listen_together(bench: Bench, contender: Contender, count: int) -> Measures:
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
    return {"lag_p50_ms": lag["p50"], "lag_p99_ms": lag["p99"], "core": busy[0]}


def followers_elsewhere(bench: Bench) -> None:
    """The owner's client on one node, those who join half a second later on another: what the way over Redis adds."""
    seconds = 4 if bench.full else 3
    with bench.redis() as redis, bench.timed_origin(0.05, seconds * 200, 0.005) as origin, ExitStack() as stack:
        nodes = [stack.enter_context(bench.server(who.NODE, origin, redis)) for _ in range(2)]
        for number in bench.rounds(3, 1):
            for count in (1, 100):
                work = ELSEWHERE.format(count)
                bench.say(f"{work}, round {number + 1}")
                measures = bench.undisturbed(partial(follow_elsewhere, bench, nodes, origin, count))
                bench.figures.add(work, who.NODE.name, **measures)


def follow_elsewhere(bench: Bench, nodes: list[Server], origin: Upstream, count: int) -> Measures:
    """One stream at its owner's client and at those who follow elsewhere."""
    before, groups = origin.calls(), [(nodes[0].port, 1, 0), (nodes[1].port, count, 500)]
    _, far = crowd(bench.crowd, chat(500, stream=True, seed=bench.number()), SHARED, groups)
    if origin.calls() != before + 1:
        raise Broken(f"{origin.calls() - before} calls")
    return {f"late_{q}_ms": far["behind_ms"][q] for q in ("p50", "p99")}


def spread(bench: Bench) -> None:
    """300 identical requests over one, two and three nodes: one call, and what the other nodes add."""
    for count in (1, 2, 3) if bench.full else (2,):
        with bench.redis() as redis, bench.timed_origin(UPSTREAM_S) as origin, ExitStack() as stack:
            nodes = [stack.enter_context(bench.server(who.NODE, origin, redis)) for _ in range(count)]
            for _ in bench.rounds(3, 2):
                measures = bench.undisturbed(partial(ask_everywhere, bench, nodes, origin))
                bench.figures.add(NODES, f"soloflight, {count} node{'s' * (count > 1)}", **measures)


def ask_everywhere(bench: Bench, nodes: list[Server], origin: Upstream) -> Measures:
    """One crowd that is spread evenly over the nodes."""
    before, groups = origin.calls(), [(node.port, 300 // len(nodes), 0) for node in nodes]
    results = crowd(bench.crowd, chat(500, seed=bench.number()), SHARED, groups)
    asked = origin.calls() - before
    if asked != 1:
        raise Broken(f"{asked} calls for {len(nodes)} nodes")
    added = {f"added_{q}_ms": max(one["took_ms"][q] for one in results) - UPSTREAM_S * 1000 for q in ("p50", "p99")}
    return {"calls": asked, **added}


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
