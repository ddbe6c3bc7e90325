"""``soloflight explain``: what the proxy would make of a request, and why two requests do not share.

Decides nothing: ``flow.explain`` judges, here it is read from files and put into words. Needs no running proxy.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from ipaddress import ip_network
from pathlib import Path

import click

from soloflight.cli.refusal import EXIT_FAULT, plugin_names_checked, refusing
from soloflight.cli.request_file import Unreadable, read_request_file
from soloflight.config import load, stages
from soloflight.config.models import Settings
from soloflight.core.control import NONE_FRESH
from soloflight.core.errors import SoloflightError
from soloflight.core.fields import is_trusted
from soloflight.core.request import Request
from soloflight.flow.admit import Admission
from soloflight.flow.explain import Explained, Explainer, differences
from soloflight.flow.flights import Call
from soloflight.flow.plan import Alone
from soloflight.plugins import Plugins

__all__ = ["explain"]

WHY_ALONE = {
    "upgrade": "it asks for another protocol, which is tunnelled",
    "route": "this route is not shareable, and no stage's match names it",
    "method": "only GET and POST can share",
    "no-store": "the client asks for a call of its own (Cache-Control: no-store)",
    "conditional": "it is a conditional or range request",
    "body": "its body is larger than server.max_shared_body",
    "coding": "its body has a content coding that is not known here",
    "share": "its stage neither shares requests like it nor keeps their answers",
}


@click.command(epilog="Exit codes: 0; with two files 0 if they share and 1 if not; 2 for bad usage or configuration.")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE [FILE]")
@click.option(
    "--config", type=click.Path(path_type=Path), metavar="FILE", help="TOML file with the settings, as for serve."
)
@click.option("--peer", default="127.0.0.1", metavar="ADDRESS", help="Who sends it: trusted proxies may name a scope.")
def explain(files: tuple[Path, ...], config: Path | None, peer: str) -> None:
    """Tell a request's stage, scope, fingerprint and verdict; of two, why they do or do not share.

    FILE holds a request as it goes over the wire (request line, fields, an empty line, the body), or a JSON object
    {"method": …, "url": …, "headers": {…}, "body": …}. No value of it is printed: scope and fingerprint are digests.
    """
    if len(files) > 2:
        raise click.UsageError("one FILE, or two to compare")
    with refusing():
        settings = load(config, os.environ, {})
        plugins = Plugins.load(settings.plugins.disabled)
        plugin_names_checked(plugins, [*settings.plugins.disabled, *settings.plugins.sections])
        requests = [_read(file, settings, peer) for file in files]
        found = asyncio.run(_explained(settings, plugins, requests))
    for file, one in zip(files, found, strict=True):
        click.echo(_told(file, one) + "\n")
    if not settings.server.scope_key.get_secret_value():
        click.echo("server.scope_key is not set: these digests are of this run alone; a proxy's own are others.")
    if len(found) == 2:
        shared, why = compared(*found)
        click.echo(why)
        raise SystemExit(0 if shared else 1)


async def _explained(settings: Settings, plugins: Plugins, requests: list[tuple[Request, bytes]]) -> list[Explained]:
    from soloflight.web.targets import Targets  # a refusal above needs no web server

    scope_key = settings.server.scope_key.get_secret_value().encode() or secrets.token_bytes(32)
    targets = Targets()
    try:
        taken = targets.take(settings)
        keys = [key.get_secret_value().encode("latin-1") for key in settings.server.client_keys]
        admission = Admission(stages(settings), taken, plugins, scope_key, keys)
        explainer = Explainer(admission, scope_key, taken, settings.server.max_shared_body)
        return [await explainer.explain(request, body) for request, body in requests]
    finally:
        await targets.close()


def _read(file: Path, settings: Settings, peer: str) -> tuple[Request, bytes]:
    """The request in ``file``, as if ``peer`` had sent it."""
    from soloflight.web.read import read_target

    try:
        written = read_request_file(file.read_bytes())
        target = read_target(written.target)
        trusted = is_trusted(peer, [ip_network(network) for network in settings.server.trusted_proxies])
    except OSError as error:
        raise _refusal(file, error.strerror or type(error).__name__) from None
    except (Unreadable, SoloflightError, ValueError) as error:
        raise _refusal(file, str(error)) from None
    return Request(written.method, target, written.fields, peer, trusted), written.body


def _refusal(file: Path, why: str) -> SystemExit:
    click.echo(f"soloflight: {file}: {why}", err=True)
    return SystemExit(EXIT_FAULT)


def compared(one: Explained, other: Explained) -> tuple[bool, str]:
    """Whether two requests share, and the sentence that says why (not)."""
    for name, each in (("first", one), ("second", other)):
        if not each.key:
            return False, f"They do not share: the {name} one goes alone, or is refused (see above)."
    if one.key == other.key:
        payloads = {each.verdict.payload for each in (one, other) if isinstance(each.verdict, Call)}
        if len(payloads) > 1:
            return (
                False,
                "They do not share: one Idempotency-Key with two bodies; the later one is 422 idempotency_mismatch.",
            )
        return True, "They share: one fingerprint."
    places = differences(one, other)
    return False, "They do not share. They differ in:\n" + "\n".join(f"  {place}" for place in places)


def _told(file: Path, one: Explained) -> str:
    lines = [("request", f"{one.request.method} {one.request.path}  ({file})")]
    if one.fault is not None:
        lines.append(("verdict", f"refused: {one.fault.code.status} {one.fault.code.code} ({one.fault.message})"))
        return _aligned(lines)
    assert one.stage is not None
    assert one.verdict is not None
    lines.append(("stage", one.stage.name))
    lines.append(("scope", f"{one.scope[:16]}  ({_scope_of(one)})"))
    if isinstance(one.verdict, Alone):
        why = WHY_ALONE.get(one.verdict.reason, "")
        return _aligned([*lines, ("verdict", f"alone ({one.verdict.reason}): {why}")])
    lines.append(("fingerprint", one.key))
    lines += [("verdict" if not index else "", text) for index, text in enumerate(_verdict(one.verdict))]
    return _aligned(lines)


def _scope_of(one: Explained) -> str:
    assert one.stage is not None
    if one.stage.scope == "everyone":
        return "everyone shares"
    rule = "" if one.stage.scope == "credential" else f"{one.stage.scope}, else "
    return f"{rule}of {', '.join(one.credentials)}" if one.credentials else f"{rule}of no credential at all"


def _verdict(call: Call) -> list[str]:
    """What becomes of a request that may share."""
    kind = "sampled" if call.facts.sampled else "not sampled"
    if call.payload:
        kind = "named by an Idempotency-Key"
    fresh = call.fresh_s
    return [
        "joins an identical request in flight" if call.share else "joins nobody, and nobody joins it",
        "takes no kept answer"
        if fresh == NONE_FRESH
        else f"takes a kept answer{'' if fresh is None else f' of at most {fresh:g} s'}",
        f"its complete answer is kept for {call.retention_s:g} s ({kind})"
        if call.retention_s
        else "its answer is not kept",
        *([] if call.may_own else ["causes no upstream call (only-if-cached)"]),
        *(["holds its session's lock while it runs"] if call.session else []),
    ]


def _aligned(lines: list[tuple[str, str]]) -> str:
    return "\n".join(f"{name:<12} {text}".rstrip() for name, text in lines)
