"""What the figures mean, in words: which axis before which, what eviction and offload buy, what would fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from armillary.advisor.option import Option, Question
from armillary.layout import Layout

GB = 1e9

PCIE = 64
"""GB/s in one direction: a card with no faster link has no NVLink."""

HOST_BYTES_TO_MENTION = 256 * GB
"""Of all ranks together: more than a small server has."""


def advise_on(
    question: Question,
    devices: int,
    options: Sequence[Option],
    smallest: Mapping[str, Option | None],
    doublings: Mapping[int, Option],
) -> list[str]:
    """One sentence each, the most important first."""
    best = next((option for option in options if option.fits), None)
    lines = [*_verdict(question, devices, best, options, smallest)]
    if best:
        lines += [*_unused(devices, best), *_axes(best, options), *_places(best, options)]
        lines += [*_host(best, options), *_more(best, devices, doublings)]
    if best and best.layout.tp > 1 and question.engine.factors.reduce < 1 and question.gpu.link <= PCIE:
        lines.append(
            "the published times leave little of tp's all-reduces to see, which over PCIe cannot be (see "
            "docs/advisor.md): do not count on this one, and prefer cfg and Ulysses"
        )
    if question.model.facts and not question.model.vae:
        lines.append("the VAE's decode of this family is not counted, in time or in memory")
    if question.model.dtype == "float32":
        lines.append(
            "the times are those of half precision: float32 has lower rates and takes several times as long"
        )
    if not question.engine.measured:
        lines.append(
            f"{question.engine.title} has not been measured on this card: its times come from the engines "
            "that it resembles"
        )
    return lines


def _verdict(
    question: Question,
    devices: int,
    best: Option | None,
    options: Sequence[Option],
    smallest: Mapping[str, Option | None],
) -> Iterator[str]:
    has = question.gpu.memory_bytes / GB
    if best:
        yield (
            f"use {describe(best)}: {best.latency.seconds:.1f} s a request, "
            f"{best.memory.peak / GB:.1f} of {has:.1f} GB at the peak ({best.memory.peak_phase})"
        )
        return
    if options:
        least = min(options, key=lambda option: option.memory.peak)
        yield (
            f"nothing fits on {devices} x {question.gpu.name}: {describe(least)} comes nearest with "
            f"{least.memory.peak / GB:.1f} of {has:.1f} GB, in the phase {least.memory.peak_phase}"
        )
    else:
        yield f"{question.engine.title} runs no layout of {devices} ranks; see the refused ones"
    counts = {name: option for name, option in smallest.items() if option}
    if counts:
        fewest = min(counts.values(), key=lambda option: option.layout.world_size)
        yield f"{fewest.layout.world_size} x {question.gpu.name} would do, as {describe(fewest)}"


def describe(option: Option) -> str:
    """ "cfg=2 x tp=4, weights evicted"."""
    places = {
        "device": "",
        "evict": ", what only the prompt needs evicted",
        "offload": ", layers offloaded",
        "offload+evict": ", layers offloaded and the prompt's evicted",
        "sharded": ", each layer's weights gathered from all",
    }
    return f"{option.layout}{places[option.residency_name]}"


def _unused(devices: int, best: Option) -> Iterator[str]:
    used = best.layout.world_size
    if used < devices:
        yield (
            f"{used} of the {devices} devices are faster than any split over all of them: leave "
            f"{devices - used} to another job"
        )


def _axes(best: Option, options: Sequence[Option]) -> Iterator[str]:
    """Why this axis before the others, where a comparison can be made."""
    alike = [
        option
        for option in options
        if option.residency == best.residency and option.layout.world_size == best.layout.world_size
    ]
    size = best.layout.world_size
    rivals = {"tp": Layout(tp=size), "ulysses": Layout(ulysses=size), "gather": Layout(gather=size)}
    for axis, layout in rivals.items():
        rival = next((option for option in alike if option.layout == layout), None)
        if rival is None or rival.layout == best.layout:
            continue
        slower = rival.latency.seconds / best.latency.seconds - 1
        if slower < 0.02:
            continue
        yield (
            f"use {best.layout} before {axis}={size} here, because {_because(best, rival)} "
            f"({100 * slower:.0f} % faster)"
        )
        return


def _because(best: Option, rival: Option) -> str:
    ours, theirs = best.latency.parts["collectives"], rival.latency.parts["collectives"]
    if best.layout.cfg == 2:
        return (
            "the two branches of guidance meet only once a step: "
            f"{ours:.1f} s of collectives instead of {theirs:.1f} s"
        )
    return f"its collectives take {ours:.1f} s and those of the other {theirs:.1f} s"


def _places(best: Option, options: Sequence[Option]) -> Iterator[str]:
    """What the residency of the best costs or saves beside the others of its layout."""
    same = {o.residency_name: o for o in options if o.layout == best.layout}
    device = same.get("device")
    if best.residency_name != "device" and device is not None and not device.fits:
        saved = (device.memory.peak - best.memory.peak) / GB
        cost = best.latency.parts["weights on the way"]
        hidden = "hidden behind the computation" if cost < 0.01 * best.latency.seconds else f"{cost:.0f} s"
        yield (
            f"with all weights on the device {best.layout} needs {device.memory.peak / GB:.1f} GB; this "
            f"saves {saved:.1f} GB of it, and the copies are {hidden}"
        )
    elif (evicted := same.get("evict")) and best.residency_name == "device":
        saved = (best.memory.peak - evicted.memory.peak) / GB
        more = evicted.latency.seconds - best.latency.seconds
        if saved > 1:
            yield f"--evict would free {saved:.1f} GB on each device for {more:+.1f} s a new prompt"


def _host(best: Option, options: Sequence[Option]) -> Iterator[str]:
    """Where the copies in host memory are more than most machines have, a layout that keeps fewer."""
    total = best.memory.host * best.layout.world_size
    if total < HOST_BYTES_TO_MENTION:
        return
    line = f"all ranks together keep {total / GB:.0f} GB of weights in host memory"
    fewer = [o for o in options if o.fits and o.memory.host * o.layout.world_size < total / 2]
    if fewer:
        other = min(fewer, key=lambda option: option.latency.seconds)
        kept = other.memory.host * other.layout.world_size / GB
        line += f"; {describe(other)} keeps {kept:.0f} GB and takes {other.latency.seconds:.1f} s"
    else:
        line += "; --offload-to disk reads the checkpoint again instead"
    yield line


def _more(best: Option, devices: int, doublings: Mapping[int, Option]) -> Iterator[str]:
    now, then = doublings.get(devices, best), doublings.get(2 * devices)
    if then is not None:
        gain = now.latency.seconds / then.latency.seconds
        yield f"twice as many devices would be {gain:.2f} times as fast ({then.layout})"
