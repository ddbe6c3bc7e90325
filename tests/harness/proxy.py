"""soloflight as its users run it: `soloflight serve` with a config file, on free ports, seen from outside."""

import json
import os
import sys
import urllib.request
from pathlib import Path
from typing import Any

from harness import toml
from harness.ports import free_port
from harness.process import Process, http_status, wait_until

START_WITHIN_S = 15.0
FAULT_WORDS = (
    "Traceback",
    "Unclosed client session",
    "Unclosed connector",
    "never retrieved",
    "never awaited",
)
PROGRAM = Path(sys.executable).parent / "soloflight"
HOUSE_ENV = (
    "SOLOFLIGHT_",
    "REDIS_URL",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "OPENAI_",
    "PYTEST_",
)


def clean_env(**more: str) -> dict[str, str]:
    """The environment without anything that would configure the proxy, and ``more``."""
    env = {name: value for name, value in os.environ.items() if not name.upper().startswith(HOUSE_ENV)}
    return {**env, "PYTHONUNBUFFERED": "1", **more}


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """``base`` with ``over`` on top, table by table."""
    both = dict(base)
    for key, value in over.items():
        mine = both.get(key)
        both[key] = merged(mine, value) if isinstance(mine, dict) and isinstance(value, dict) else value
    return both


class Proxy(Process):
    """A running proxy. ``port`` (a free one, unless given) and ``url``: its public listener; ``admin``: its admin URL."""

    def __init__(
        self,
        config: str | dict[str, Any],
        *args: str,
        upstream: str | int | None = None,
        backend: str | None = None,
        redis_url: str | None = None,
        folder: Path,
        env: dict[str, str] | None = None,
        port: int | None = None,
    ) -> None:
        self.port, self.admin_port = port or free_port(), free_port()
        self.config_file = folder / f"soloflight-{self.port}.toml"
        self.config_file.write_text(config if isinstance(config, str) else toml.dump(config))
        origin = f"http://127.0.0.1:{upstream}" if isinstance(upstream, int) else upstream
        options = {"--upstream": origin, "--backend": backend, "--redis-url": redis_url}
        given = [word for name, value in options.items() if value is not None for word in (name, value)]
        super().__init__(
            [
                str(PROGRAM),
                "serve",
                f"--config={self.config_file}",
                f"--listen=127.0.0.1:{self.port}",
                f"--admin-listen=127.0.0.1:{self.admin_port}",
                *given,
                *args,
            ],
            folder / f"soloflight-{self.port}.log",
            clean_env(**(env or {})),
            folder,
        )

    @property
    def url(self) -> str:
        """Origin of the public listener, without a path: SDKs need ``f"{url}/v1"``."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def admin(self) -> str:
        """Origin of the admin listener."""
        return f"http://127.0.0.1:{self.admin_port}"

    def wait_ready(self, *, within_s: float = START_WITHIN_S) -> None:
        """Wait until the public listener's health path says 200; an early end is an error with the log."""

        def ready() -> bool:
            if self.exit_code is not None:
                raise RuntimeError(f"{self!r} ended while it started:\n{self.log}")
            return http_status(f"{self.url}/_soloflight/health") == 200

        try:
            wait_until(ready, within_s=within_s, what=f"{self!r} ready")
        except TimeoutError as late:
            late.add_note(self.log[-4000:])
            self.kill()
            raise

    def metrics(self) -> dict[str, float]:
        """Every sample of /metrics, keyed ``name{label="value",…}`` as the exposition has it."""
        with urllib.request.urlopen(f"{self.admin}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the samples of ``name`` that carry all of ``labels``; 0.0 if there is none."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(
            value
            for sample, value in self.metrics().items()
            if sample.partition("{")[0] == name and all(label in sample for label in wanted)
        )

    def api(self, path: str) -> Any:
        """JSON of a GET to the admin listener, such as ``/api/flights``."""
        with urllib.request.urlopen(f"{self.admin}{path}", timeout=5) as answer:
            return json.load(answer)

    def check_log(self) -> None:
        """The log must not show a fault of ours."""
        log = self.log
        found = {word: log.index(word) for word in FAULT_WORDS if word in log}
        at = min(found.values(), default=0)
        assert not found, f"{list(found)} in the log of {self!r}:\n{log[max(0, at - 2000) : at + 4000]}"

    def stop(self, *, check: bool = True, within_s: float = 40.0) -> None:
        """SIGTERM, if it still runs; with ``check`` it must exit with 0 and a clean log."""
        if self.exit_code is not None and not check:
            return
        code = self.terminate(within_s=within_s)
        if check:
            assert code == 0, f"exit code {code}:\n{self.log[-6000:]}"
            self.check_log()
