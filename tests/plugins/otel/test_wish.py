"""When traces are asked for, and that nothing else than a line in the log comes of it where they can not be had."""

import builtins
import logging
import sys
from typing import Any

import pytest

from soloflight.config.models import Settings
from soloflight_otel import soloflight_observer
from soloflight_otel.observer import OtelObserver
from soloflight_otel.settings import Wish, wish_of

HERE = "http://127.0.0.1:4318"


@pytest.mark.parametrize(
    ("section", "environment", "wish"),
    [
        ({}, {}, Wish()),
        ({"enabled": True}, {}, Wish(True)),
        ({"endpoint": HERE}, {}, Wish(True, HERE)),
        ({"enabled": False, "endpoint": HERE}, {}, Wish(False, HERE)),
        ({}, {"OTEL_EXPORTER_OTLP_ENDPOINT": HERE}, Wish(True)),
        ({}, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": HERE}, Wish(True)),
        ({}, {"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, Wish()),
        ({"enabled": False}, {"OTEL_EXPORTER_OTLP_ENDPOINT": HERE}, Wish()),
        ({"enabled": True}, {"OTEL_SDK_DISABLED": "TRUE"}, Wish()),
    ],
)
def test_what_is_wished_for(section: dict[str, object], environment: dict[str, str], wish: Wish) -> None:
    assert wish_of(section, environment) == wish


@pytest.mark.parametrize(
    ("section", "line"),
    [
        ({"enable": True}, "plugins.otel.enable: unknown key (nearest: enabled)"),
        ({"enabled": "yes"}, "plugins.otel.enabled: expected true or false"),
        ({"endpoint": "localhost:4317"}, "plugins.otel.endpoint: expected the URL of an OTLP/HTTP collector"),
        ({"endpoint": 4318}, "plugins.otel.endpoint: expected the URL of an OTLP/HTTP collector"),
    ],
)
def test_a_fault_is_one_line_and_stops_nothing(
    section: dict[str, object], line: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert soloflight_observer(settings(section)) is None
    [record] = caplog.records
    assert (record.levelno, record.exc_info) == (logging.ERROR, None)
    assert record.getMessage().startswith(f"no traces: {line}")
    assert "\n" not in record.getMessage()


def settings(section: dict[str, object]) -> Settings:
    return Settings.model_validate({"plugins": {"otel": section}})


@pytest.fixture
def not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the extra was not asked for."""
    real = builtins.__import__

    def without(name: str, *more: Any) -> Any:
        if name.partition(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *more)

    for module in list(sys.modules):
        if module.startswith(("soloflight_otel.observer", "soloflight_otel.tracer", "soloflight_otel.attributes")):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(builtins, "__import__", without)


@pytest.mark.usefixtures("not_installed")
def test_not_installed_and_asked_for_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    assert soloflight_observer(settings({"enabled": True})) is None
    [record] = caplog.records
    assert "No module named 'opentelemetry" in record.getMessage()
    assert "pip install 'soloflight[otel]'" in record.getMessage()
    assert record.exc_info is None


@pytest.mark.usefixtures("not_installed")
def test_not_installed_and_not_asked_for_is_no_line(caplog: pytest.LogCaptureFixture) -> None:
    assert soloflight_observer(settings({})) is None
    assert caplog.records == []


async def test_asked_for_it_is_an_observer_that_wants_the_clients_trace() -> None:
    observer = soloflight_observer(settings({"endpoint": HERE}))
    assert isinstance(observer, OtelObserver)
    assert observer.wants_trace
    await observer.close()


def test_a_variable_that_can_not_be_read_is_one_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "-1")
    assert soloflight_observer(settings({"endpoint": HERE})) is None
    assert caplog.records[-1].getMessage().startswith("no traces: OpenTelemetry can not be set up: ValueError")
