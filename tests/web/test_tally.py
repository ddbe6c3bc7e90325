"""The status page's counts: rates of whole seconds, what sharing did not cost, and errors by what is nobody's secret."""

from typing import Any

from soloflight.core.errors import Code
from soloflight.core.frames import Usage
from soloflight.ports import CallEnded, FlightEnded, RequestEnded, Role, TakenOver, WriteRefused
from soloflight.web.tally import ERRORS_KEPT, MODELS_KNOWN, Prices, Rate, Tally


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def ended(role: Role, status: int = 200, **more: Any) -> RequestEnded:
    return RequestEnded("node-1", "evaluation", role, status, **more)


def test_a_rate_is_the_mean_of_whole_seconds_before_this_one() -> None:
    rate = Rate()
    for second in range(100, 110):
        for _ in range(3):
            rate.add(second)
    assert rate.per_s(110) == 3.0
    rate.add(110)
    assert rate.per_s(110) == 3.0  # the present second is not over
    assert rate.per_s(115) == (3 * 5 + 1) / 10
    assert rate.per_s(200) == 0.0


def test_prices_by_the_first_glob_that_fits() -> None:
    prices = Prices((("gpt-4o-mini", 1.0, 2.0), ("gpt-*", 10.0, 20.0)))
    million = Usage(1_000_000, 500_000)
    assert [prices.of(model, million) for model in ("gpt-4o-mini", "gpt-4o", "claude", None)] == [2.0, 20.0, 0.0, 0.0]
    for number in range(3 * MODELS_KNOWN):
        prices.of(f"made-up-{number}", million)
    assert len(prices._known) <= MODELS_KNOWN
    assert not Prices(())


def test_what_sharing_did_not_cost() -> None:
    tally = Tally(Prices((("m", 1.0, 1.0),)))
    for role in (Role.OWNER, Role.FOLLOWER, Role.REPLAY, Role.REPLAY):
        tally.on_event(ended(role, model="m", usage=Usage(1_000_000, 1_000_000)))
    tally.on_event(ended(Role.FOLLOWER, 502, code=Code.OWNER_LOST, cut=True, model="m", usage=Usage(5, 5)))
    told = tally.told("evaluation")
    assert told["avoided"] == {
        "calls": {"join": 1, "replay": 2},
        "tokens": {
            "join": {"prompt": 1_000_000, "completion": 1_000_000},
            "replay": {"prompt": 2_000_000, "completion": 2_000_000},
        },
        "money": {"join": 2.0, "replay": 4.0},
    }
    assert (told["requests"]["follower"], told["errors"]) == (2, 1)
    assert Tally(Prices(())).told("evaluation")["avoided"]["money"] is None


def test_everything_else_that_is_counted() -> None:
    clock = Clock()
    tally = Tally(Prices(()), clock)
    for event in (
        CallEnded("evaluation", "f", "error", 1.0, 500),
        FlightEnded("evaluation", "f", "complete", "kept", 200, 1, 1, 1.0),
        FlightEnded("evaluation", "f", "complete", "length", 200, 1, 1, 1.0),
        TakenOver("evaluation", "f", 2, "lapsed"),
        WriteRefused("evaluation", "f", "fenced"),
        ended(Role.BYPASS, reason="route"),
        ended(Role.BYPASS, 404, reason="route"),
    ):
        tally.on_event(event)
    clock.now += 1
    told = tally.told("evaluation")
    assert told["upstream_calls"] == {"error": 2, "complete": 1}
    assert (told["not_kept"], told["not_shared"]) == ({"length": 1}, {"route": 2})
    assert (told["takeovers"], told["fenced_writes"]) == (1, 1)
    assert told["rates"] == {"requests_per_s": 0.2, "upstream_calls_per_s": 0.3}


def test_the_last_errors_are_kept_without_a_client_s_words() -> None:
    tally = Tally(Prices(()), wall=lambda: 7.0)
    for number in range(ERRORS_KEPT + 10):
        tally.on_event(
            RequestEnded(f"n-{number}", "s", Role.OWNER, 503, flight="f", path="/SECRET", model="SECRET", peer="SECRET")
        )
    assert len(tally.errors) == ERRORS_KEPT
    assert tally.errors[-1] == {
        "time": 7.0,
        "stage": "s",
        "status": 503,
        "code": "upstream",
        "role": "owner",
        "flight": "f",
        "request_id": f"n-{ERRORS_KEPT + 9}",
    }
