"""The reach: which ratios within one run are aimed at. A target that is missed is shown, it is not a fault."""

from __future__ import annotations

from bench import contenders as who
from bench.figures import SATURATED, Key, Reach
from bench.throughput import (
    FROM_REDIS,
    GATEWAY_HIT,
    GATEWAY_PASS,
    NEW,
    PASS,
    WEB_SERVER,
)
from bench.together import ELSEWHERE, FOLLOWERS, IDENTICAL, LIVE, START


def rate(work: str, contender: who.Contender) -> Key:
    """Requests a second."""
    return Key(work, contender.name, "rps")


def replay(size: str, contender: who.Contender) -> Key:
    """Replays a second."""
    return rate(f"replay, {size} request", contender)


OWN_PASS = rate(PASS, who.SOLOFLIGHT)
LOCK = Key(IDENTICAL, who.NGINX.name, "added_p99_ms")
OWN, NODE = who.SOLOFLIGHT, who.NODE.name

REACHES = (
    Reach("replay 0.5 KB / nginx proxy_cache", replay("0.5 KB", OWN), replay("0.5 KB", who.NGINX), least=1.0),
    Reach("replay 0.5 KB / textbook aiohttp from a dict", replay("0.5 KB", OWN), replay("0.5 KB", who.DICT), least=3.0),
    Reach("replay 8 KB / nginx proxy_cache", replay("8 KB", OWN), replay("8 KB", who.NGINX), least=2.0),
    Reach("replay 100 KB / nginx proxy_cache", replay("100 KB", OWN), replay("100 KB", who.NGINX), least=4.0),
    Reach("pass-through / textbook aiohttp proxy", OWN_PASS, rate(PASS, who.TEXTBOOK), least=2.7),
    Reach("pass-through / nginx proxy_pass", OWN_PASS, rate(PASS, who.NGINX), least=0.25),
    Reach("new flight in memory / own pass-through", rate(NEW, OWN), OWN_PASS, least=0.8),
    Reach(
        "replay from Redis / own replay without recognition",
        rate(FROM_REDIS, who.FROM_REDIS),
        rate(WEB_SERVER, who.PARSED),
        least=0.6,
    ),
    Reach("1,000 identical: added p99", Key(IDENTICAL, OWN.name, "added_p99_ms"), most=15, unit="ms"),
    Reach("1,000 identical: added p99 / nginx's lock", Key(IDENTICAL, OWN.name, "added_p99_ms"), LOCK, most=1 / 20),
    Reach("memory per waiting follower", Key(IDENTICAL, OWN.name, "waiting_kb"), most=3, unit="KB"),
    Reach("1,000 listeners: chunk p50", Key(LIVE.format(FOLLOWERS), OWN.name, "lag_p50_ms"), most=8, unit="ms"),
    Reach(
        "1,000 listeners: server core in use",
        Key(LIVE.format(FOLLOWERS), OWN.name, "core"),
        most=SATURATED,
        unit="of one core",
    ),
    Reach("100 followers elsewhere: added p50", Key(ELSEWHERE.format(100), NODE, "late_p50_ms"), most=2, unit="ms"),
    Reach("start to listening", Key(START, OWN.name, "ready_s"), most=1, unit="s"),
    Reach("memory at rest", Key(START, OWN.name, "rest_mb"), most=70, unit="MB"),
    Reach("pass-through / Envoy, concurrency 1", OWN_PASS, rate(PASS, who.ENVOY), least=0.8),
    Reach("pass-through / LiteLLM", rate(GATEWAY_PASS, OWN), rate(GATEWAY_PASS, who.LITELLM), least=100),
    Reach("replay / LiteLLM, local cache", rate(GATEWAY_HIT, OWN), rate(GATEWAY_HIT, who.LITELLM_LOCAL), least=200),
)
