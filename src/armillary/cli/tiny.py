"""`armillary tiny OUT`: a random-weight Cosmos 3 checkpoint in the published folder layout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from armillary.models.cosmos3.tiny import TinyOptions, write_tiny
from armillary.models.cosmos3.tiny.weights import Progress as Report

_DEFAULT = TinyOptions()


def tiny(
    out: Annotated[Path, typer.Argument(help="Folder to write; missing or empty.", show_default=False)],
    variant: Annotated[
        str, typer.Option(help="silu: gated MLP, as Nano and Super. relu2: ungated MLP, as Edge.")
    ] = _DEFAULT.variant,
    layers: Annotated[int, typer.Option(help="Decoder layers.")] = _DEFAULT.layers,
    hidden: Annotated[int, typer.Option(help="Hidden size.")] = _DEFAULT.hidden,
    heads: Annotated[int, typer.Option(help="Query heads.")] = _DEFAULT.heads,
    kv_heads: Annotated[int, typer.Option(help="Key and value heads; divides --heads.")] = _DEFAULT.kv_heads,
    head_dim: Annotated[int, typer.Option(help="Size of one head; even, 6 or more.")] = _DEFAULT.head_dim,
    intermediate: Annotated[int, typer.Option(help="MLP width.")] = _DEFAULT.intermediate,
    vocab: Annotated[int, typer.Option(help="Vocabulary rows; 264 or more.")] = _DEFAULT.vocab,
    files: Annotated[
        int, typer.Option(help="Safetensors files of the transformer; above 1 with an index.")
    ] = _DEFAULT.files,
    seed: Annotated[int, typer.Option(help="Same seed and options, same bytes.")] = _DEFAULT.seed,
    bias: Annotated[bool, typer.Option(help="Biases on the attention projections.")] = _DEFAULT.bias,
    sound: Annotated[bool, typer.Option(help="Sound heads and a sound tokenizer.")] = _DEFAULT.sound,
    action: Annotated[bool, typer.Option(help="Action heads.")] = _DEFAULT.action,
    dtype: Annotated[
        str, typer.Option(help="Stored dtype of the transformer: float32, bfloat16 or float16.")
    ] = _DEFAULT.dtype,
    qk_norm_for_text: Annotated[
        bool | None,
        typer.Option(help="Normed queries and keys on text.  [default: on for silu, off for relu2]"),
    ] = None,
    use_und_k_norm_for_gen: Annotated[
        bool | None,
        typer.Option(help="Normed text keys for generation.  [default: off for silu, on for relu2]"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier checkpoint in OUT.")] = False,
) -> None:
    """Write a small random-weight Cosmos 3 checkpoint in the published folder layout.

    The stock diffusers pipeline loads it offline. The defaults allow tensor parallelism over 1, 2, 4 and 8
    ranks and pictures from 32x32 up.
    """
    options = TinyOptions(
        variant=variant,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=intermediate,
        vocab=vocab,
        files=files,
        seed=seed,
        bias=bias,
        sound=sound,
        action=action,
        dtype=dtype,
        qk_norm_for_text=qk_norm_for_text,
        use_und_k_norm_for_gen=use_und_k_norm_for_gen,
    )
    with _progress_bar() as progress:
        folder = write_tiny(out, options, force=force, progress=progress)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    typer.echo(f"wrote {folder} ({size / 1e6:.1f} MB)")


@contextmanager
def _progress_bar() -> Iterator[Report]:
    """A bar over the transformer's bytes on stderr, where a terminal watches; it leaves no line behind."""
    columns = (TextColumn("weights"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("weights", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
