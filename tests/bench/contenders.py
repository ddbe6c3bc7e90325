"""Who is measured: each contender is one function that writes its configuration and gives its command line.

Access logs are off everywhere, soloflight's metrics are on. Each has one process or one worker, for one core.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.machine import SEARCH, TESTS, free_port, program

PEERS = TESTS.parent / ".venv-peers/bin"
SHARED, ALONE = "/v1/chat/completions", "/v1/other"
KEY = "sk-bench"
MODULES = "/usr/lib/nginx/modules"


@dataclass(frozen=True)
class Site:
    """Where a contender is to stand: its folder, its port, the origin's address, Redis's port (0: there is none)."""

    folder: Path
    port: int
    origin: str
    redis: int = 0

    def write(self, name: str, text: str) -> str:
        """A file in the folder; its path."""
        path = self.folder / name
        path.write_text(text)
        return str(path)


@dataclass(frozen=True)
class Contender:
    """One program in one configuration. ``needs`` is the program; where it is missing, the table says so."""

    name: str
    command: Callable[[Site], list[str]]
    needs: str
    ready_s: float = 20

    def missing(self) -> bool:
        """Whether the program is not on this machine."""
        return program(self.needs) is None and not Path(self.needs).exists()


def soloflight(stage: str = "", server: str = "") -> Callable[[Site], list[str]]:
    """The product, with lines for ``[stage_defaults]`` and ``[server]``; over Redis where the site has one."""

    def command(site: Site) -> list[str]:
        backend = f'backend = "redis"\n[redis]\nurl = "redis://127.0.0.1:{site.redis}/0"' if site.redis else ""
        config = (
            f'[server]\nlisten = "127.0.0.1:{site.port}"\nadmin_listen = "127.0.0.1:{free_port()}"\n{server}\n'
            f'[upstream]\nurl = "{site.origin}"\n[log]\nlevel = "warning"\n[stage_defaults]\n{stage}\n'
            f"[coordination]\n{backend}\n"
        )
        return [sys.executable, "-m", "soloflight", "serve", "--config", site.write("soloflight.toml", config)]

    return command


def textbook(kind: str) -> Callable[[Site], list[str]]:
    """aiohttp as its documentation shows it."""
    return lambda site: [sys.executable, "-m", "bench.textbook", kind, str(site.port), site.origin]


def nginx_config(folder: Path, inner: str, load: str = "") -> str:
    """One worker, no access log, connections kept; ``load``: lines for modules."""
    temporary = " ".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    # Started as root, the worker would become a user who may not see the folder.
    user = f"user {getpass.getuser()};" if os.geteuid() == 0 else ""
    return f"""{load} {user} worker_processes 1; daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log;
worker_rlimit_nofile 16384; events {{ worker_connections 8192; }}
http {{
  access_log off; keepalive_requests 100000000; {temporary}
  client_max_body_size 16m; client_body_buffer_size 2m;
  {inner}
}}
"""


def nginx(*, digest: bool = False) -> Callable[[Site], list[str]]:
    """proxy_pass with kept connections; on the shared path proxy_cache for POST with a lock.

    The body itself is in the cache's key, which nginx can not find again when it is longer than 64 KB; with ``digest``
    the key has the body's MD5, made by the Lua module.
    """
    lua = 'set $md5 ""; rewrite_by_lua_block { ngx.req.read_body(); ngx.var.md5 = ngx.md5(ngx.req.get_body_data() or "") }'
    modules = f"load_module {MODULES}/ndk_http_module.so; load_module {MODULES}/ngx_http_lua_module.so;"

    def command(site: Site) -> list[str]:
        inner = f"""
  proxy_cache_path {site.folder}/cache keys_zone=answers:64m max_size=1g use_temp_path=off;
  upstream origin {{ server {site.origin.removeprefix("http://")}; keepalive 256; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{site.port} backlog=4096;
    proxy_http_version 1.1; proxy_set_header Connection "";
    location / {{ proxy_pass http://origin; }}
    location {SHARED} {{
      {lua if digest else ""}
      proxy_pass http://origin; proxy_cache answers; proxy_cache_methods POST; proxy_cache_valid 200 1h;
      proxy_cache_key "$request_uri $http_authorization {"$md5" if digest else "$request_body"}";
      proxy_cache_lock on; proxy_cache_lock_timeout 60s; proxy_cache_lock_age 60s;
      proxy_buffer_size 32k; proxy_buffers 8 32k;
    }}
  }}"""
        config = nginx_config(site.folder, inner, modules if digest else "")
        return ["nginx", "-c", site.write("nginx.conf", config), "-p", str(site.folder)]

    return command


def nginx_origin(folder: Path, port: int, body: str) -> list[str]:
    """nginx as the fastest upstream there is: one fixed answer, and how many were asked for."""
    inner = (
        f"server {{ listen 127.0.0.1:{port}; location = /calls {{ stub_status; }}"
        f" location / {{ default_type application/json; return 200 '{body}'; }} }}"
    )
    return ["nginx", "-c", Site(folder, port, "").write("nginx.conf", nginx_config(folder, inner)), "-p", str(folder)]


def varnish(site: Site) -> list[str]:
    """POST answers cached by the body's hash; identical requests wait for the first."""
    port = site.origin.rpartition(":")[2]
    vcl = f"""vcl 4.1;
import std; import bodyaccess;
backend origin {{ .host = "127.0.0.1"; .port = "{port}"; .first_byte_timeout = 60s; }}
sub vcl_recv {{
  if (req.url != "{SHARED}") {{ return (pass); }}
  if (!std.cache_req_body(2MB)) {{ return (synth(413)); }}
  set req.http.X-Method = req.method;
  return (hash);
}}
sub vcl_hash {{ bodyaccess.hash_req_body(); hash_data(req.http.Authorization); }}
sub vcl_backend_fetch {{ if (bereq.http.X-Method) {{ set bereq.method = bereq.http.X-Method; }} }}
sub vcl_backend_response {{ set beresp.ttl = 1h; }}
"""
    listen, store = ["-a", f"127.0.0.1:{site.port}"], ["-s", "malloc,512m"]
    limits = ["-p", "thread_pools=1", "-p", "thread_pool_max=3000", "-p", "listen_depth=4096"]
    return [
        "varnishd",
        "-j",
        "none",
        "-F",
        "-n",
        str(site.folder),
        "-f",
        site.write("v.vcl", vcl),
        *listen,
        *store,
        *limits,
    ]


def envoy(site: Site) -> list[str]:
    """A plain HTTP/1.1 route with one worker."""
    port = int(site.origin.rpartition(":")[2])

    def address(number: int) -> dict[str, object]:
        return {"socket_address": {"address": "127.0.0.1", "port_value": number}}

    types = "type.googleapis.com/envoy.extensions"
    router = {"name": "router", "typed_config": {"@type": f"{types}.filters.http.router.v3.Router"}}
    hosts = [{"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "origin"}}]}]
    manager = {
        "@type": f"{types}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "bench",
        "http_filters": [router],
        "route_config": {"virtual_hosts": hosts},
    }
    listener = {
        "address": address(site.port),
        "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
    }
    endpoints = [{"lb_endpoints": [{"endpoint": {"address": address(port)}}]}]
    assigned = {"cluster_name": "origin", "endpoints": endpoints}
    cluster = {"name": "origin", "type": "STATIC", "connect_timeout": "5s", "load_assignment": assigned}
    config = {"static_resources": {"listeners": [listener], "clusters": [cluster]}}
    quiet = ["--log-level", "error", "--concurrency", "1", "--disable-hot-restart"]
    return [str(PEERS / "envoy"), "-c", site.write("envoy.json", json.dumps(config)), *quiet]


def litellm(cache: str = "") -> Callable[[Site], list[str]]:
    """LiteLLM's proxy with one worker; ``cache``: none, ``local`` or ``redis``."""

    def command(site: Site) -> list[str]:
        where = {"host": "127.0.0.1", "port": str(site.redis)} if cache == "redis" else {}
        settings = {"cache": True, "cache_params": {"type": cache, **where}} if cache else {}
        params = {"model": "openai/m", "api_base": f"{site.origin}/v1", "api_key": "k"}
        models = [{"model_name": "m", "litellm_params": params}]
        general = {"master_key": KEY}
        config = {"model_list": models, "litellm_settings": settings, "general_settings": general}
        uvicorn = {"version": 1, "loggers": {"uvicorn.access": {"level": "CRITICAL"}}}
        files = [
            "--config",
            site.write("litellm.yaml", json.dumps(config)),
            "--log_config",
            site.write("log.json", json.dumps(uvicorn)),
        ]
        # Prices come with it; without this it asks the net for newer ones first.
        start = ["env", "LITELLM_LOCAL_MODEL_COST_MAP=True", "LITELLM_LOG=ERROR", str(PEERS / "litellm")]
        return [*start, *files, "--host", "127.0.0.1", "--port", str(site.port), "--telemetry", "False"]

    return command


SOLOFLIGHT = Contender("soloflight", soloflight(), sys.executable)
PARSED = Contender("soloflight, recognise off", soloflight(server="recognise = false"), sys.executable)
FROM_REDIS = Contender("soloflight over Redis", soloflight("local_retention = 0"), sys.executable)
WRITER = Contender("soloflight, the node that asked", soloflight(), sys.executable)
NODE = Contender("soloflight, nodes over Redis", soloflight(), sys.executable)
TEXTBOOK = Contender("textbook aiohttp proxy", textbook("proxy"), sys.executable)
DICT = Contender("textbook aiohttp from a dict", textbook("memory"), sys.executable)
NGINX = Contender("nginx", nginx(), "nginx")
NGINX_DIGEST = Contender("nginx, key by MD5 (Lua)", nginx(digest=True), f"{MODULES}/ngx_http_lua_module.so")
VARNISH = Contender("Varnish", varnish, "varnishd")
ENVOY = Contender("Envoy", envoy, str(PEERS / "envoy"))
LITELLM = Contender("LiteLLM", litellm(), str(PEERS / "litellm"), ready_s=90)
LITELLM_LOCAL = Contender("LiteLLM, local cache", litellm("local"), str(PEERS / "litellm"), ready_s=90)
LITELLM_REDIS = Contender("LiteLLM, Redis cache", litellm("redis"), str(PEERS / "litellm"), ready_s=90)

INSTALLED = "import sys, importlib.metadata as m; print(*(f'{n} {m.version(n)}' for n in sys.argv[1:]), sep=', ')"
VERSIONS: dict[str, list[str]] = {
    "Python": [sys.executable, "--version"],
    "with": [sys.executable, "-c", INSTALLED, "soloflight", "aiohttp", "uvloop", "redis", "hiredis"],
    "nginx": ["nginx", "-v"],
    "Varnish": ["varnishd", "-V"],
    "Envoy": [str(PEERS / "envoy"), "--version"],
    "LiteLLM's": [str(PEERS / "python"), "-c", INSTALLED, "litellm", "uvicorn"],
    "Redis": ["redis-server", "--version"],
    "wrk": ["wrk", "-v"],
}


def versions() -> dict[str, str]:
    """What each program says of itself; "not installed" where it is not there."""
    said = {}
    for name, command in VERSIONS.items():
        try:
            done = subprocess.run(command, capture_output=True, text=True, env={"PATH": SEARCH}, check=False)
        except FileNotFoundError:
            said[name] = "not installed"
            continue
        text = done.stdout + done.stderr
        found = (
            re.search(r"(?:Python |varnish-|nginx/|v=|wrk (?:debian/)?|/)(\d[\d.]*\d)", text) if name in TERSE else None
        )
        said[name] = found[1] if found else text.strip().splitlines()[0]
    return said


TERSE = {"Python", "nginx", "Varnish", "Envoy", "Redis", "wrk"}
