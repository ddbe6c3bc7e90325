"""What holds for every test: the folder says what kind a test is, and hypothesis knows no deadline.

Fixtures live in the conftest of the folder that uses them, so that a test's world is in sight of it.
"""

import time
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import settings

from harness import stalls

TESTS = Path(__file__).parent

MARKER_OF_FOLDER = {
    "bench": "bench",
    "cases": "system",
    "fleet": "system",
    "governance": "system",
    "sdk": "system",
    "system": "system",
}

STOOD_STILL_S = 0.3
"""So long a machine stands still only when it is not its own: leases lapse, bounds run out, and no test can mean that."""

AGAIN = "run once more"

# A slow example is not a fault on a shared machine: pytest's own timeout is the bound.
settings.register_profile("house", deadline=None, print_blob=True)
settings.load_profile("house")


def pytest_sessionstart() -> None:
    stalls.watch()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        marker = MARKER_OF_FOLDER.get(item.path.relative_to(TESTS).parts[0])
        if marker is not None:
            item.add_marker(marker)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """A system test that failed while the machine stood still is run once more, and both are told of.

    That is no second chance for the product: without a stall there is none, and what fails again has failed.
    """
    if item.get_closest_marker("system") is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    begun = time.monotonic()
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    stood_s = stalls.between(begun, time.monotonic())
    if stood_s > STOOD_STILL_S and any(report.when == "call" and report.failed for report in reports):
        first = "\n".join(report.longreprtext for report in reports if report.failed)
        item._initrequest()  # type: ignore[attr-defined]  # new fixtures, as pytest itself begins
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        told = f"The machine stood still for {stood_s:.2f} s, and it had failed:\n{first}"
        for report in reports:
            report.sections.append((AGAIN, told))
        reports[-1].user_properties.append((AGAIN, f"{item.nodeid}: the machine stood still for {stood_s:.2f} s"))
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, told in getattr(report, "user_properties", ()):
                if name == AGAIN:
                    terminalreporter.write_line(f"{AGAIN}: {told}")
