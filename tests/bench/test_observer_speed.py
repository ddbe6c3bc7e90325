"""What an event costs: each replay tells three observers of itself, on the loop that serves it."""

import time
from collections.abc import Callable

from soloflight.core.frames import Usage
from soloflight.ports import Event, RequestEnded, Role
from soloflight.web.logs import AccessLog
from soloflight.web.tally import Prices, Tally
from soloflight_prometheus import PrometheusObserver

TIMES = 100_000
USAGE = Usage(1_000, 300)


def replayed() -> Event:
    return RequestEnded(
        request_id="0123456789abcdef-1f",
        stage="evaluation",
        role=Role.REPLAY,
        status=200,
        flight="0123456789abcdef0123",
        sent=4_000,
        first_byte_s=0.00004,
        duration_s=0.00005,
        overhead_s=0.00004,
        usage=USAGE,
        method="POST",
        path="/v1/chat/completions",
        peer="127.0.0.1",
        model="gpt-4o-mini",
    )


def micros(work: Callable[[], object]) -> float:
    """The best of five rounds, in µs a call, without the loop's own share."""

    def once(do: Callable[[], object]) -> float:
        begun = time.perf_counter()
        for _ in range(TIMES):
            do()
        return (time.perf_counter() - begun) / TIMES * 1e6

    return min(once(work) for _ in range(5)) - min(once(lambda: None) for _ in range(3))


def test_a_replay_s_event() -> None:
    event = replayed()
    prometheus, log = PrometheusObserver(["default", "evaluation"]), AccessLog()
    tally = Tally(Prices((("gpt-4o*", 2.5, 10.0),)))
    costs = {
        "made": micros(replayed),
        "prometheus": micros(lambda: prometheus.on_event(event)),
        "tally with prices": micros(lambda: tally.on_event(event)),
        "access log, level off": micros(lambda: log.on_event(event)),
    }
    for name, cost in costs.items():
        print(f"  {name:<24} {cost:5.2f} µs")
    assert costs["prometheus"] < 4
    assert sum(costs.values()) < 12
