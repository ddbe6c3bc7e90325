"""The world of these tests: spans kept in memory, or sent by real processes to a collector in this one."""

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from harness.fixtures import redis_process, redis_server, start_proxy, upstream, upstream_port
from soloflight_otel.observer import OtelObserver
from soloflight_otel.tracer import Tracer

__all__ = ["exporter", "observer", "redis_process", "redis_server", "start_proxy", "upstream", "upstream_port"]


@pytest.fixture(autouse=True)
def no_foreign_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenTelemetry's variables of whoever runs the tests are not the tests'."""
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    for name in ("OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG", "OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    kept = InMemorySpanExporter()
    yield kept
    kept.shutdown()


@pytest.fixture
def observer(exporter: InMemorySpanExporter) -> OtelObserver:
    return OtelObserver(Tracer(SimpleSpanProcessor(exporter)))
