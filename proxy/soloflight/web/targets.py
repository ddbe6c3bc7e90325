"""Upstreams as configured: from settings to connectors, TLS contexts and what is written for them."""

from __future__ import annotations

import ssl
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass
from weakref import WeakSet

from soloflight.config.models import Settings
from soloflight.config.models import Upstream as UpstreamSettings
from soloflight.core.fields import Forwarding
from soloflight.flow.plan import Target
from soloflight.flow.upstream import Endpoint, Upstream


class Targets:
    """The upstreams in use. A reload keeps those whose settings did not change.

    A replaced one lives for as long as a call may still go to it: only those calls know it, and its idle connections end by time.
    """

    def __init__(self) -> None:
        self._current: dict[str, tuple[UpstreamSettings, Target]] = {}
        self._opened: WeakSet[Upstream] = WeakSet()

    def __repr__(self) -> str:
        return f"Targets({', '.join(self._current)})"

    def take(self, settings: Settings) -> dict[str, Target]:
        """Every configured upstream by name, ready to be called. Raises ValueError for a CA bundle that can not be read."""
        taken: dict[str, tuple[UpstreamSettings, Target]] = {}
        for name in ("default", *settings.upstreams):
            one = settings.upstream_called(name)
            known = self._current.get(name)
            taken[name] = known if known is not None and known[0] == one else (one, _target(name, one))
        for _, target in taken.values():
            if target.upstream not in self._opened:
                target.upstream.open()
                self._opened.add(target.upstream)
        self._current = taken
        return {name: target for name, (_, target) in taken.items()}

    async def close(self) -> None:
        """Close every upstream, replaced ones that still have calls too."""
        for upstream in list(self._opened):
            await upstream.close()


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
    try:
        context = ssl.create_default_context(cafile=verify if isinstance(verify, str) else None)
    except OSError as error:
        raise ValueError(f"upstream.verify_tls: the CA bundle can not be read ({error})") from None
    context.set_alpn_protocols(["http/1.1"])
    return context


def _outbound_proxy(proxy: str, scheme: str, host: str, netloc: str) -> str | None:
    """The outbound proxy's URL; ``env`` takes HTTPS_PROXY or HTTP_PROXY unless NO_PROXY names the host."""
    if proxy != "env":
        return proxy or None
    if proxy_bypass(netloc) or proxy_bypass(host):
        return None
    return getproxies_environment().get(scheme)
