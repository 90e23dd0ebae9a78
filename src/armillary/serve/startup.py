"""The table that the server shows once every rank is ready."""

from __future__ import annotations

import io
from collections.abc import Sequence

from armillary.layout import Layout
from armillary.residency import Residency
from armillary.serve.settings import Settings

_GIB = 2**30


def startup_table(settings: Settings, *, weights: Sequence[int], memory: Sequence[int]) -> str:
    """Model, layout, memory of each rank as predicted and as it is, and where the server is.

    `weights` and `memory` are bytes by rank: of the transformer's weights, and in all.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    payload = settings.payload
    table.add_row("model", f"{settings.checkpoint} as {', '.join(settings.names)}")
    table.add_row("layout", f"{Layout(**payload['layout'])}, {payload['dtype']}")
    moves = Residency(**payload["residency"]).moves
    for rank, (held, all_of_it) in enumerate(zip(weights, memory, strict=True)):
        shards = _shown(settings.predicted_bytes[rank])
        predicted = f"of {shards}, the rest elsewhere" if moves else f"predicted {shards}"
        table.add_row(f"rank {rank}", f"weights {_shown(held)} ({predicted}), in all {_shown(all_of_it)}")
    media = "uploads only"
    if settings.allowed_local_media_path is not None:
        media += f"; files under {settings.allowed_local_media_path} are not served by this version"
    table.add_row("media", media)
    table.add_row("jobs", f"{settings.data}, at most {settings.max_queue} waiting")
    table.add_row("address", f"{settings.address}/docs{'' if settings.api_key else ' (no key)'}")
    out = io.StringIO()
    Console(file=out, width=200).print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _shown(nbytes: int) -> str:
    return f"{nbytes / _GIB:.2f} GiB" if nbytes >= _GIB / 100 else f"{nbytes / 2**20:.1f} MiB"
