"""The dashboard and the alerts that ``conf/`` ships name only series and labels that a real proxy has."""

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.client import ask, chat, fresh
from harness.fixtures import StartProxy
from harness.proxy import Proxy
from soloflight.testing.chat import CH, DONE, FIN
from soloflight.testing.script import sse
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = [pytest.mark.system, pytest.mark.beside]

CONF = Path(__file__).parents[2] / "conf"
SERIES = re.compile(r"\bsoloflight_[a-z_]+")
SELECTOR = re.compile(r"(soloflight_[a-z_]+)(?:\{([^}]*)\})?")
GROUPED = re.compile(r"\bby \(([^)]*)\)")
KNOWN_LABELS = {"stage", "role", "outcome", "status", "reason", "by", "kind", "op", "le", "instance"}
SUFFIXES = {"counter": [""], "gauge": [""], "histogram": ["_bucket", "_count", "_sum"]}


def dashboard() -> list[str]:
    """Every expression of the dashboard."""
    whole = json.loads((CONF / "grafana-dashboard.json").read_text())
    return [*_found(whole, "expr"), *_found(whole, "definition")]


def _found(value: Any, name: str) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key == name and isinstance(item, str):
                yield item
            else:
                yield from _found(item, name)
    elif isinstance(value, list):
        for item in value:
            yield from _found(item, name)


def rules() -> list[dict[str, Any]]:
    whole = yaml.safe_load((CONF / "prometheus-alerts.yml").read_text())
    return [rule for group in whole["groups"] for rule in group["rules"]]


def expressions() -> list[str]:
    return [*dashboard(), *(rule["expr"] for rule in rules())]


def scrape(proxy: Proxy) -> tuple[str, str]:
    """Content type and text of /metrics."""
    with urllib.request.urlopen(f"{proxy.admin}/metrics", timeout=5) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def exposed(page: str) -> set[str]:
    """Names of all series that the families on ``page`` can have."""
    families = re.findall(r"^# TYPE (\S+) (\S+)", page, re.MULTILINE)
    return {name + suffix for name, kind in families for suffix in SUFFIXES[kind]}


async def test_every_series_named_is_on_a_live_scrape(start_proxy: StartProxy) -> None:
    async with ScriptedUpstream(sse(CH, FIN, DONE)) as upstream:
        proxy = start_proxy(upstream=upstream.port)
        body = chat(fresh())
        assert [(await ask(proxy.port, body)).role for _ in range(2)] == ["owner", "replay"]
        kind, page = scrape(proxy)
    assert kind.startswith("text/plain; version=0.0.4")
    there = exposed(page)
    named = {name for expression in expressions() for name in SERIES.findall(expression)}
    assert named - there == set()
    unused = {name.removesuffix("_bucket") for name in there if not name.endswith(("_count", "_sum"))} - {
        name.removesuffix("_bucket").removesuffix("_count") for name in named
    }
    assert unused == set(), "a series that neither dashboard nor alerts show"


def test_every_label_named_exists() -> None:
    for expression in expressions():
        grouped = {label.strip() for group in GROUPED.findall(expression) for label in group.split(",")}
        matched = {
            label
            for _, inside in SELECTOR.findall(expression)
            for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", inside)
        }
        assert grouped | matched <= KNOWN_LABELS, expression


def test_the_alerts_say_what_happened_and_what_to_do() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names)) > 8
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
        assert len(rule["annotations"]["description"]) > 30


def test_panels_do_not_overlap() -> None:
    whole = json.loads((CONF / "grafana-dashboard.json").read_text())
    places = [panel["gridPos"] for panel in whole["panels"]]
    taken: set[tuple[int, int]] = set()
    for place in places:
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in whole["panels"]}) == len(places)
