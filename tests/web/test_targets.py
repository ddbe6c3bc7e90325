"""Upstreams over a reload: kept where nothing changed, and gone with the last call where something did."""

import gc
import weakref

import pytest

from soloflight.config.models import Settings
from soloflight.web.targets import Targets


def towards(port: int) -> Settings:
    return Settings.model_validate(
        {"upstream": {"url": f"http://127.0.0.1:{port}"}, "upstreams": {"other": {"url": "http://127.0.0.1:1"}}}
    )


async def test_what_did_not_change_stays() -> None:
    targets = Targets()
    first, second = targets.take(towards(2)), targets.take(towards(3))
    assert first["other"] is second["other"]
    assert first["default"] is not second["default"]
    await targets.close()


async def test_a_replaced_upstream_lives_for_as_long_as_a_call_knows_it() -> None:
    targets = Targets()
    of_a_call = targets.take(towards(2))["default"].upstream
    replaced = weakref.ref(of_a_call)
    targets.take(towards(3))
    gc.collect()
    assert replaced() is of_a_call
    del of_a_call
    gc.collect()
    assert replaced() is None
    await targets.close()


async def test_a_bundle_that_can_not_be_read_changes_nothing() -> None:
    targets = Targets()
    first = targets.take(towards(2))
    bad = Settings.model_validate({"upstream": {"url": "https://127.0.0.1:2", "verify_tls": "/nowhere/ca.pem"}})
    with pytest.raises(ValueError, match="CA bundle"):
        targets.take(bad)
    assert targets.take(towards(2)) == first
    await targets.close()
