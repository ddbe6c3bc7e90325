"""Upstreams as configured: from settings to connectors, TLS contexts and what is written for them."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from soloflight.config.models import Settings
from soloflight.config.models import Upstream as UpstreamSettings
from soloflight.core.fields import Forwarding
from soloflight.flow.admit import Target
from soloflight.flow.upstream import Endpoint, Upstream


def targets(settings: Settings) -> dict[str, Target]:
    """Every configured upstream by name, not opened yet. Raises ValueError for a CA bundle that can not be read."""
    return {name: _target(name, settings.upstream_called(name)) for name in ("default", *settings.upstreams)}


def _target(name: str, one: UpstreamSettings) -> Target:
    url = urlsplit(one.url)
    host = url.netloc.rpartition("@")[2]
    endpoint = Endpoint(
        origin=f"{url.scheme}://{host}",
        connect_timeout_s=one.connect_timeout,
        limit=one.max_connections,
        tls=_tls(one.verify_tls) if url.scheme == "https" else False,
        proxy=_outbound_proxy(one.proxy, url.scheme, url.hostname or "", host),
    )
    headers = tuple(
        (key.encode("latin-1"), value.get_secret_value().encode("latin-1")) for key, value in one.headers.items()
    )
    forwarding = Forwarding(
        host.encode("idna" if not host.isascii() else "ascii"), url.path.rstrip("/"), headers, one.forwarded
    )
    return Target(name, Upstream(endpoint), forwarding, one.url)


def _tls(verify: bool | str) -> ssl.SSLContext | bool:
    """A verifying context (system store, or a bundle), or False where the operator turned verification off."""
    if verify is False:
        return False
    context = ssl.create_default_context(cafile=verify if isinstance(verify, str) else None)
    context.set_alpn_protocols(["http/1.1"])
    return context


def _outbound_proxy(proxy: str, scheme: str, host: str, netloc: str) -> str | None:
    """The outbound proxy's URL; ``env`` takes HTTPS_PROXY or HTTP_PROXY unless NO_PROXY names the host."""
    if proxy != "env":
        return proxy or None
    if proxy_bypass(netloc) or proxy_bypass(host):
        return None
    return getproxies_environment().get(scheme)


async def open_all(all_targets: Iterable[Target]) -> None:
    """Open every upstream's connector; nothing is dialled."""
    for target in all_targets:
        await target.upstream.open()


async def close_all(all_targets: Iterable[Target]) -> None:
    """Close every upstream."""
    for target in all_targets:
        await target.upstream.close()
