"""The installed program as a real process: quick to start, and it serves and refuses as it says."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.fixtures import StartProxy, start_proxy, upstream_port
from harness.process import http_status
from harness.proxy import PROGRAM, clean_env
from soloflight import __version__

__all__ = ["start_proxy", "upstream_port"]

pytestmark = pytest.mark.system


def run(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAM, *args], capture_output=True, text=True, env=clean_env(**env), timeout=20)


def test_the_version_needs_neither_web_server_nor_settings() -> None:
    statement = (
        "import sys\n"
        "from soloflight.cli import main\n"
        "try: main(['--version'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'aiohttp', 'pydantic', 'rich', 'redis', 'orjson'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", statement], capture_output=True, text=True, timeout=20)
    assert done.stdout.splitlines() == [f"soloflight, version {__version__}", "[]"]


def test_python_m_soloflight_is_the_program() -> None:
    done = subprocess.run([sys.executable, "-m", "soloflight", "--version"], capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stdout) == (0, f"soloflight, version {__version__}\n")


def test_serve_refuses_with_exit_code_2(tmp_path: Path) -> None:
    config = tmp_path / "x.toml"
    config.write_text("[server]\nwokers = 1")
    done = run("serve", "--config", str(config), SOLOFLIGHT_WORKERS="none")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        'soloflight: environment SOLOFLIGHT_WORKERS: server.workers: expected a whole number, found "none"',
        f'soloflight: {config}: server.wokers: expected a known key (nearest: workers), found the unknown key "wokers"',
    ]


def test_serve_starts_listens_and_ends_cleanly(start_proxy: StartProxy) -> None:
    proxy = start_proxy({"log": {"format": "json"}}, upstream=1)
    assert http_status(f"{proxy.url}/_soloflight/health") == 200
    assert proxy.terminate() == 0


def test_serve_listens_within_a_second_of_processor_time(start_proxy: StartProxy) -> None:
    started = time.monotonic()
    proxy = start_proxy(upstream=1)
    listening_s = time.monotonic() - started
    fields = Path(f"/proc/{proxy.pid}/stat").read_text().rpartition(")")[2].split()
    used_s = (int(fields[11]) + int(fields[12])) / 100
    # On a machine that others use too, what the process itself took is the fair measure.
    assert min(listening_s, used_s) < 1.0
