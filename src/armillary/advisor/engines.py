"""The engines whose time is predicted: what each recomputes, keeps and splits, and its fitted factors.

Everything in `Factors` was chosen by looking at NVIDIA's published latencies (`benchmarks/advisor.py` fits
them and prints how far off they are); everything in `hardware.py` comes from data sheets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from armillary.errors import Problem, RequestError, list_choices


@dataclass(frozen=True, kw_only=True)
class Factors:
    """What a specification does not say. At most eight of them are fitted for an engine."""

    power: float = 1 / 3
    """A board holds its peak x (watts per TFLOP) ** power: its power grows with the cube of the clock."""
    matrix: float
    """Share of that rate that the linear layers reach."""
    attention: float
    """Share that attention reaches."""
    portable: float | None = None
    """Share of the *peak* that attention reaches where the engine has no kernel for the architecture."""
    decode: float
    """Share that the VAE's convolutions reach."""
    link: float = 1.0
    """Share of a link's rate that exchanges and gathers reach."""
    reduce: float = 1.0
    """Part of an all-reduce's bytes that shows; the rest is hidden or never sent."""
    overlap: float = 1.0
    """Exponent in which compute and gathered weights add up: 1 one after another, larger is better hidden."""
    launch: float
    """Seconds that a layer of one forward takes at least, however small: the host has to launch it."""
    request: float
    """Seconds of a video request that nothing above explains: the prompt, the file, the way to and fro."""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """How one engine runs a Cosmos 3 generation."""

    name: str
    title: str
    factors: Factors
    reuses_prompt: bool
    """Computes the understanding pathway once a prompt, not at every step."""
    packs_branches: bool = False
    """Both branches of guidance go through the model as one sequence."""
    divides_decode: bool = False
    """All ranks decode; else each decodes the whole clip."""
    replicates_key_value_heads: bool = False
    """More tensor ranks than K/V heads are possible."""
    own_split: bool = False
    """Has one way to use several cards; of a layout only the number of ranks counts."""
    evicts: bool = False
    """Can drop the understanding pathway from the device after the prompt."""
    offloads: bool = True
    leaves_out_unused: bool = True
    """Does not load what no generation calls (`lm_head`)."""
    missing_kernels: tuple[str, ...] = ()
    """Architectures for which it has no attention kernel of their own."""
    most_ranks: int = 4096
    measured: bool = True
    """False: no measurement of it on these cards exists; its factors come from the engines it resembles."""


_VLLM = Factors(
    matrix=0.6865, attention=0.6989, decode=0.3534, link=0.389, reduce=0.07697, launch=435.5e-6, request=1.385
)
_DIFFUSERS = Factors(matrix=0.6214, attention=0.6174, decode=0.4771, launch=811.7e-6, request=2.033)

ENGINES = {
    engine.name: engine
    for engine in (
        Engine(
            name="armillary",
            title="Armillary",
            # the stock modules that diffusers runs, exchanges as vLLM-Omni's, all-reduces in full
            factors=replace(_DIFFUSERS, link=_VLLM.link),
            reuses_prompt=True,
            divides_decode=True,
            replicates_key_value_heads=True,
            evicts=True,
            measured=False,
        ),
        Engine(
            name="vllm-omni",
            title="vLLM-Omni 0.30",
            factors=_VLLM,
            reuses_prompt=True,
        ),
        Engine(
            name="pytorch",
            title="NVIDIA's PyTorch reference",
            factors=Factors(
                matrix=0.6426,
                attention=0.7177,
                portable=0.25,
                decode=0.2476,
                overlap=1.164,
                launch=1.576e-3,
                request=0.4,
            ),
            reuses_prompt=False,
            packs_branches=True,
            own_split=True,
            offloads=False,
            leaves_out_unused=False,
            missing_kernels=("blackwell-rtx",),
        ),
        Engine(
            name="diffusers",
            title="diffusers 0.42",
            factors=_DIFFUSERS,
            reuses_prompt=False,
            leaves_out_unused=False,
            most_ranks=1,
        ),
    )
}


def find_engine(name: str) -> Engine:
    """The engine of that name; raises `RequestError` that lists them."""
    try:
        return ENGINES[name]
    except KeyError:
        raise RequestError(
            Problem("engine", f"{name!r} is no engine that is predicted", f"use {list_choices([*ENGINES])}")
        ) from None
