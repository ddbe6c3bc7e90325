"""``soloflight purge``: kept answers forgotten, on every node of the fleet."""

from __future__ import annotations

import click

from soloflight.cli.admin_api import AdminApi, admin_option

__all__ = ["purge"]


@click.command()
@admin_option
@click.option("--stage", metavar="STAGE", help="Forget every answer of this stage.")
@click.option(
    "--key", metavar="KEY", help="Forget the answer with this fingerprint, or that of the flight with this id."
)
def purge(api: AdminApi, stage: str | None, key: str | None) -> None:
    """Forget kept answers, on every node. Running flights go on.

    A flight's id is in X-Soloflight-Flight of each answer, a fingerprint in `soloflight flights show`.
    """
    if (stage is None) == (key is None):
        raise click.UsageError("give --stage or --key, one of the two")
    done = api.post("/api/purge", {"stage": stage} if stage is not None else {"key": key})
    what = f"stage {stage}" if stage is not None else f"answer {key}"
    here = f"{done['local']} kept in the process that was asked"
    if stage is not None:
        backend = "no older one is taken from the backend" if done["kept"] else "the backend could not be told"
    else:
        backend = "forgotten by the backend" if done["kept"] else "the backend kept none of it"
    told = "every node was told" if done["told"] else "other nodes could not be told"
    click.echo(f"{what}: {here}; {backend}; {told}")
    if not done["told"] or (stage is not None and not done["kept"]):
        raise SystemExit(1)
