"""The admin listener of a running proxy, as commands ask it. Every refusal is one sentence that says what to do.

The token comes from SOLOFLIGHT_ADMIN_TOKEN, the address from ``--admin``, SOLOFLIGHT_ADMIN, or where
SOLOFLIGHT_ADMIN_LISTEN says that the listener is. Nothing goes through an outbound proxy.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import OpenerDirector, ProxyHandler, Request, build_opener

import click
import orjson

__all__ = ["AdminApi", "admin_option", "found_flight"]

ADDRESS = "http://127.0.0.1:8081"
TIMEOUT_S = 10.0


class AdminApi:
    """One admin listener. Every method raises a click error where it does not answer as it should."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url.rstrip("/") if "://" in url else f"http://{url.rstrip('/')}"
        self._token = token
        self._opener: OpenerDirector = build_opener(ProxyHandler({}))

    def __repr__(self) -> str:
        return f"AdminApi({self.url!r})"

    def get(self, path: str) -> Any:
        """The JSON at ``path``."""
        return self._ask("GET", path)

    def delete(self, path: str) -> Any:
        """DELETE ``path``."""
        return self._ask("DELETE", path)

    def post(self, path: str, body: object) -> Any:
        """POST ``body`` as JSON to ``path``."""
        return self._ask("POST", path, orjson.dumps(body))

    def _ask(self, method: str, path: str, body: bytes | None = None) -> Any:
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            request = Request(self.url + path, data=body, headers=headers, method=method)  # noqa: S310 - http(s) only, below
            if request.type not in ("http", "https"):
                raise click.ClickException(f"{self.url} is no http:// or https:// address")
            with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                return orjson.loads(answer.read())
        except HTTPError as error:
            with error:
                raise click.ClickException(self._refused(error)) from None
        except URLError as error:
            raise click.ClickException(self._unreachable(error.reason)) from None
        except (OSError, HTTPException) as error:
            raise click.ClickException(self._unreachable(error)) from None
        except ValueError:
            raise click.ClickException(f"what answers at {self.url} is no admin listener of soloflight") from None

    def _refused(self, error: HTTPError) -> str:
        if error.code == 401:
            wrong = (
                "the token in SOLOFLIGHT_ADMIN_TOKEN is not its own" if self._token else "set SOLOFLIGHT_ADMIN_TOKEN"
            )
            return f"{self.url} needs the admin token: {wrong}"
        try:
            told = orjson.loads(error.read())["error"]
        except (ValueError, KeyError, TypeError):
            return f"what answers at {self.url} is no admin listener of soloflight (status {error.code})"
        return str(told)

    def _unreachable(self, why: object) -> str:
        reason = str(getattr(why, "strerror", None) or why or type(why).__name__).lower()
        return (
            f"the admin listener at {self.url} can not be reached ({reason}). "
            "Is `soloflight serve` running, and does it listen there (--admin, server.admin_listen)?"
        )


def found_flight(api: AdminApi, start: str) -> str:
    """The id of the one live flight that begins with ``start``."""
    ids = {str(row["id"]) for row in api.get("/api/flights")["flights"] if row["id"].startswith(start)}
    if len(ids) == 1:
        return ids.pop()
    if not ids:
        raise click.ClickException(f"no live flight's id begins with {start!r}")
    raise click.ClickException(f"{len(ids)} live flights' ids begin with {start!r}: give more of it")


def admin_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--admin URL``, handed over as ``api``; a command within a group may leave it to the group."""

    def made(context: click.Context, _: click.Parameter, url: str | None) -> AdminApi:
        of_group = context.find_object(AdminApi)
        if url is None and of_group is not None:
            return of_group
        address = url or os.environ.get("SOLOFLIGHT_ADMIN") or _address()
        return AdminApi(address, os.environ.get("SOLOFLIGHT_ADMIN_TOKEN", ""))

    return click.option(
        "--admin",
        "api",
        metavar="URL",
        callback=made,
        help=f"The proxy's admin listener [{ADDRESS}].",
    )(command)


def _address() -> str:
    """Where the listener is, as the environment has it; one that listens everywhere is asked on loopback."""
    listen = os.environ.get("SOLOFLIGHT_ADMIN_LISTEN", "")
    host, _, port = listen.rpartition(":")
    if not port.isdigit():
        return ADDRESS
    return f"http://{'127.0.0.1' if host in ('', '0.0.0.0', '[::]') else host}:{port}"  # noqa: S104 - asked, not bound
