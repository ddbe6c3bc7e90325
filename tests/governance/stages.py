"""The stages of the site, by name. Short times, so that what is due comes soon."""

from itertools import product
from typing import Any

from harness.proxy import merged

HEARTBEAT_S, LEASE_S = 0.2, 20.0
BRIEF_LEASE_S = 1.0
"""What is waited for where a process is killed. Elsewhere no stall of the machine makes a lease lapse."""
BRIEF_WAIT_S = 0.6
QUEUE_WAIT_S = 0.4

SHARES, REPLAYS, SESSIONS = (
    ("always", "deterministic", "never"),
    ("always", "retries", "never"),
    ("off", "reject", "queue"),
)


def table_stage(share: str, replay: str, session: str) -> str:
    """The name of one stage of the table."""
    return f"{share}-{replay}-{session}"


TABLE: list[dict[str, Any]] = [
    {"name": table_stage(share, replay, session), "share": share, "replay": replay, "session": session}
    for share, replay, session in product(SHARES, REPLAYS, SESSIONS)
]

STAGES: list[dict[str, Any]] = [
    {"name": "reject", "session": "reject"},
    {"name": "queue", "session": "queue", "session_wait": "8s"},
    {"name": "brief", "session": "queue", "session_wait": f"{int(BRIEF_WAIT_S * 1000)}ms"},
    {"name": "twin", "session": "reject"},
    {"name": "gone", "session": "reject", "on_abandon": "cancel", "abandon_grace": "200ms"},
    {"name": "slow", "session": "reject", "first_byte_timeout": "600ms", "progress_timeout": "600ms"},
    {"name": "firm", "allow_client_control": False},
    {"name": "hidden", "selectable": False},
    {"name": "deterministic", "share": "deterministic"},
    {"name": "alone", "share": "never"},
    {"name": "retries", "replay": "retries"},
    {"name": "nothing", "share": "never", "replay": "never"},
    {"name": "times", "retention": "60s", "sampled_retention": "3s", "idempotency_retention": "90s"},
    {"name": "asks", "local_retention": 0},
    {"name": "narrow", "max_upstream": 1, "queue_wait": f"{int(QUEUE_WAIT_S * 1000)}ms"},
    {"name": "patient", "max_upstream": 2, "queue_wait": "8s"},
    {"name": "both", "session": "queue", "max_upstream": 1, "queue_wait": "8s", "session_wait": "8s"},
    *TABLE,
]

CONFIG: dict[str, Any] = {
    "server": {"drain_timeout": "2s"},
    "coordination": {"command_timeout": "5s"},
    "stage_defaults": {
        "heartbeat": f"{int(HEARTBEAT_S * 1000)}ms",
        "pending_lease": f"{int(LEASE_S * 1000)}ms",
        "running_lease": f"{int(LEASE_S * 1000)}ms",
        "max_abandoned": "10s",
        "max_abandoned_stream": "10s",
    },
    "stage": STAGES,
}

BRIEF: dict[str, Any] = merged(
    CONFIG, {"stage_defaults": {"pending_lease": BRIEF_LEASE_S, "running_lease": BRIEF_LEASE_S}}
)
"""For sites of which a process is killed."""
