"""Requests one after the other on 64 connections: replays, pass-through, new flights; on one machine and over Redis."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from bench import contenders as who
from bench.contenders import ALONE, SHARED, Contender
from bench.load import CONNECTIONS, FRESH, Round, Script, Upstream, wrk
from bench.machine import Broken
from bench.stand import Bench, Server, warm

VARIETY = 200
SIZES = {"0.5 KB": 500, "8 KB": 8_000, "100 KB": 100_000, "1 MB": 1_000_000}


@dataclass(frozen=True)
class Line:
    """One contender's work: how many different requests there are, and how many of them go upstream."""

    work: str
    contender: Contender
    size: str = "0.5 KB"
    path: str = SHARED
    variety: int = 1
    calls: str = "at most one"
    warmed_by: Contender | None = None

    def holds(self, calls: int, requests: int) -> bool:
        """Whether so many calls are due for so many answered requests. The last of a round may be on their way."""
        if self.calls == "at most one":
            return calls <= 1
        return requests <= calls <= requests + CONNECTIONS


def replays(*contenders: Contender, sizes: tuple[str, ...]) -> list[Line]:
    """Each contender's replay at each size."""
    return [Line(f"replay, {size} request", contender, size) for size in sizes for contender in contenders]


def passed(work: str, *contenders: Contender) -> list[Line]:
    """Each contender's pass-through."""
    return [Line(work, one, path=ALONE, calls="each") for one in contenders]


PASS, NEW, NEW_REDIS = "pass-through, 0.5 KB", "new flight, 0.5 KB", "new flight over Redis, 0.5 KB"
WEB_SERVER, FROM_REDIS = "replay without recognition, 0.5 KB request", "replay from Redis, 0.5 KB request"
GATEWAY_PASS, GATEWAY_HIT = "LLM gateways: pass-through, 0.5 KB", "LLM gateways: replay, 0.5 KB request"


def one_machine(bench: Bench) -> None:
    """Replays of all sizes, pass-through, new flights."""
    small = ("0.5 KB",)
    if bench.full:
        caches, large = (who.SOLOFLIGHT, who.NGINX, who.NGINX_DIGEST, who.VARNISH, who.DICT), tuple(SIZES)[1:]
        lines = replays(*caches, sizes=small) + replays(*caches, sizes=large)
        lines += passed(PASS, who.SOLOFLIGHT, who.TEXTBOOK, who.NGINX, who.ENVOY, who.VARNISH)
    else:
        lines = replays(who.SOLOFLIGHT, who.NGINX, who.DICT, sizes=small)
        lines += replays(who.SOLOFLIGHT, who.NGINX, sizes=("8 KB", "100 KB"))
        lines += passed(PASS, who.SOLOFLIGHT, who.TEXTBOOK, who.NGINX)
    lines += [Line(NEW, who.SOLOFLIGHT, variety=FRESH, calls="each")]
    alternate(bench, lines)


def over_redis(bench: Bench) -> None:
    """Replays that come from Redis each time, and new flights over it, beside the same from memory."""
    node = who.FROM_REDIS
    # As many different requests as connections and more: those that ask the same at the same time share one look.
    lines = [
        Line(WEB_SERVER, who.PARSED, variety=VARIETY),
        Line(FROM_REDIS, node, variety=VARIETY, warmed_by=who.WRITER),
        Line(NEW_REDIS, node, variety=FRESH, calls="each"),
    ]
    alternate(bench, lines, redis=[node, who.WRITER])


def gateways(bench: Bench) -> None:
    """LiteLLM's proxy at what it is made for, beside the same of soloflight."""
    lines = passed(GATEWAY_PASS, who.SOLOFLIGHT)
    lines += [Line(GATEWAY_PASS, who.LITELLM, calls="each")]
    hits = (who.SOLOFLIGHT, who.LITELLM_LOCAL, who.FROM_REDIS, who.LITELLM_REDIS)
    lines += [Line(GATEWAY_HIT, contender) for contender in hits]
    alternate(bench, lines, redis=[who.FROM_REDIS, who.LITELLM_REDIS])


def alternate(bench: Bench, lines: list[Line], redis: list[Contender] | None = None) -> None:
    """All contenders of the lines stand; each round is every line once."""
    there = bench.there(*dict.fromkeys(one for line in lines for one in (line.contender, line.warmed_by) if one))
    lines = [line for line in lines if line.contender in there]
    folder = bench.room()
    scripts = {line: Script.write(folder, SIZES[line.size], line.variety) for line in lines}
    with ExitStack() as stack:
        # Each has its own: who is slow still calls for clients that have left while the next one's calls are counted.
        origins = {one: stack.enter_context(bench.fixed_origin()) for one in there}
        port = stack.enter_context(bench.redis()) if redis else 0
        servers = {
            one: stack.enter_context(bench.server(one, origins[one], port if redis and one in redis else 0))
            for one in there
        }
        broken: set[Line] = set()
        for number in bench.rounds(5, 3):
            bench.say(f"round {number + 1} of {len(lines)} lines")
            for place, line in enumerate(lines):
                if line in broken:
                    continue
                try:
                    play(bench, line, servers, origins[line.contender], scripts[line], f"{number}-{place}-")
                except Broken as fault:
                    broken.add(line)
                    bench.figures.fault(line.work, line.contender.name, str(fault))


def play(
    bench: Bench, line: Line, servers: dict[Contender, Server], origin: Upstream, script: Script, salt: str
) -> None:
    """One line's round: warmed by one request whose answer is looked at; its calls held against what is due."""
    server = servers[line.contender]
    for body in script.bodies(salt):
        warm(servers[line.warmed_by or line.contender], line.path, body)
    done, asked = bench.undisturbed(lambda: counted(bench, line, server, origin, script, salt))
    if not line.holds(asked, done.requests):
        if server.name.startswith("soloflight"):
            raise Broken(f"{asked} upstream calls for {done.requests} answers")
        if line.calls == "at most one":
            bench.figures.note(f"{line.work}: {server.name} asks upstream each time")
    bench.figures.add(line.work, server.name, rps=done.rps, cpu_us=done.cpu_us)


def counted(bench: Bench, line: Line, server: Server, origin: Upstream, script: Script, salt: str) -> tuple[Round, int]:
    """One round of wrk and the upstream calls that it made."""
    before = origin.settled()
    url, seconds = f"http://127.0.0.1:{server.port}{line.path}", 3 if bench.full else 1
    # Fresh requests are fresh in a round that is played anew, too.
    done = wrk(url, script, seconds, server.pid, f"{salt}{bench.number()}-" if line.variety == FRESH else salt)
    return done, origin.settled() - before
