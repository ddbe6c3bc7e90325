"""Several workers' views as one: counts add up, the worst status speaks, metrics stay one exposition."""

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from soloflight.ports import Gauges, RequestEnded, Role
from soloflight.web.merging import added, merged_metrics, merged_overviews, merged_stages
from soloflight_prometheus import PrometheusObserver


def overview(node: str, **more: Any) -> dict[str, Any]:
    return {
        "version": "1",
        "nodes": [node],
        "uptime_s": 1.0,
        "status": "ok",
        "degraded": None,
        "backend": {"name": "redis", "up": True},
        "flights_total": 1,
        "flights": [{"id": node, "age_s": 1.0}],
        "stages": [
            {"name": "default", "rules": {"share": "always"}, "counts": {"errors": 1, "avoided": {"money": None}}}
        ],
        "errors": [],
        **more,
    }


def test_overviews() -> None:
    one = overview("a", uptime_s=9.0, errors=[{"time": 1.0}])
    other = overview(
        "b",
        status="degraded",
        degraded="away",
        backend={"name": "redis", "up": False},
        flights=[{"id": "b", "age_s": 5.0}],
        errors=[{"time": 2.0}],
    )
    both = merged_overviews([one, other], 10)
    assert (both["nodes"], both["uptime_s"], both["status"], both["degraded"]) == (["a", "b"], 9.0, "degraded", "away")
    assert both["backend"] == {"name": "redis", "up": False}
    assert [row["id"] for row in both["flights"]] == ["b", "a"]
    assert [error["time"] for error in both["errors"]] == [2.0, 1.0]
    assert both["stages"][0]["counts"] == {"errors": 2, "avoided": {"money": None}}
    assert merged_overviews([one, other], 1)["flights_total"] == 2
    assert merged_overviews([other, overview("c", status="draining")], 1)["status"] == "draining"


def test_a_stage_that_one_process_alone_has() -> None:
    one, other = overview("a")["stages"], [{"name": "new", "rules": {}, "counts": {"errors": 3}}]
    assert [(stage["name"], stage["counts"]["errors"]) for stage in merged_stages([one, other])] == [
        ("default", 1),
        ("new", 3),
    ]


def test_what_is_added() -> None:
    assert added({"a": 1, "b": {"c": 2}}, {"b": {"c": 3, "d": 4}}) == {"a": 1, "b": {"c": 5, "d": 4}}
    assert added(None, {"a": 1}) == {"a": 1}
    assert added(0.5, None) == 0.5


def exposition(*roles: Role, up: bool = True) -> bytes:
    observer = PrometheusObserver(["default"])
    for role in roles:
        observer.on_event(RequestEnded("r", "default", role, 200, first_byte_s=0.02, overhead_s=0.02))
    return observer.exposition(Gauges({"default": 2}, {"default": 1}, {"default": 10}, up))


def test_metrics_are_added_sample_by_sample() -> None:
    alone = exposition(Role.OWNER)
    assert merged_metrics([alone]) is alone
    text = merged_metrics([alone, exposition(Role.OWNER, Role.REPLAY, up=False)]).decode()
    families = list(text_string_to_metric_families(text))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    assert [family.type for family in families] == [
        family.type for family in text_string_to_metric_families(alone.decode())
    ]
    found = {
        (sample.name, *sorted(sample.labels.values())): sample.value for family in families for sample in family.samples
    }
    assert found["soloflight_requests_total", "2xx", "complete", "default", "owner"] == 2
    assert found["soloflight_requests_total", "2xx", "complete", "default", "replay"] == 1
    assert found["soloflight_flights_live", "default"] == 4
    assert found["soloflight_backend_up",] == 0
    assert found["soloflight_overhead_seconds_bucket", "+Inf", "default", "owner"] == 2
    assert found["soloflight_overhead_seconds_sum", "default", "owner"] == 0.04
