"""The model that is asked about: its configs, from a folder, the hub's cache, or the package itself."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from armillary.advisor.shipped import Facts, cosmos3, diffusers, facts_of, skeleton_of_entry
from armillary.advisor.vae import Decode, decode_cost
from armillary.checkpoint.index import read_index, read_object
from armillary.checkpoint.locate import is_here, locate
from armillary.engine.abilities import Abilities, abilities
from armillary.errors import CheckpointError, Problem, list_choices
from armillary.models.cosmos3.pathways import Pathway, blocks_of
from armillary.models.described import as_loaded, class_named_in
from armillary.models.family import Family
from armillary.models.registry import family_of, skeleton_for
from armillary.plan.skeleton import Skeleton
from armillary.residency import Elsewhere, Residency

DTYPES = ("float32", "bfloat16", "float16")
"""In which a generation can be computed."""


_BLOCK = re.compile(r"[^.]+\.\d+\.")


@dataclass(frozen=True)
class Model:
    """What is known of a model without its weights."""

    name: str
    model_class: str
    config: Mapping[str, Any]
    vae: Mapping[str, Any]
    abilities: Abilities
    source: str
    """Where the configs come from."""
    dtype: str
    """In which a generation computes."""
    folder: Path | None = None
    """Where a checkpoint's own headers are, which know every tensor's dtype."""
    dtype_given: bool = False
    """It was asked for, and is not only how the weights are stored."""
    mode: str | None = None
    """What it is made for, where it is made for one mode."""
    facts: Facts | None = None
    """Of a model that Armillary splits but does not generate with; None for Cosmos 3."""
    _decodes: dict[tuple[int, int, int], Decode] = field(default_factory=dict, repr=False, compare=False)
    _moved: dict[Residency, Mapping[str, Elsewhere]] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def skeleton(self) -> Skeleton:
        """With the dtypes that a load gives the parameters."""
        if self.facts:
            return skeleton_of_entry(diffusers()[self.name], self.dtype)
        skeleton = skeleton_for(self.model_class, self.config, self.dtype)
        if self.folder is None:
            return skeleton
        try:
            index = read_index(self.folder / "transformer")
        except CheckpointError:  # configs alone: what the hub's cache holds before a download
            return skeleton
        return as_loaded(skeleton, index, self.dtype, self.family.FP32_MODULES)

    @property
    def family(self) -> Family:
        """The family of its class."""
        family = family_of(self.model_class)
        assert family is not None, "`skeleton_for` knows registered classes only"
        return family

    @cached_property
    def blocks(self) -> Mapping[Pathway, Mapping[int, tuple[str, ...]]]:
        """Pathway -> layer number -> the parameters of its part; models of one pathway have generation."""
        names = tuple(self.skeleton.parameters)
        if self.facts:
            return {"understanding": {}, "generation": _numbered(names)}
        both: tuple[Pathway, Pathway] = ("understanding", "generation")
        return {pathway: blocks_of(names, pathway) for pathway in both}

    def moved(self, residency: Residency) -> Mapping[str, Elsewhere]:
        """The parameters that do not live on a device which has memory of its own, and where they live."""
        if not residency.moves or not self.family.CONTEXT:
            return {}
        if residency not in self._moved:
            self._moved[residency] = self.family.moved(self.skeleton.parameters, residency.on("cuda"))
        return self._moved[residency]

    def decode(self, latents: tuple[int, int, int]) -> Decode:
        """What decoding latents of (frames, height, width) takes; nothing for other VAEs than Wan's."""
        if latents not in self._decodes:
            known = self.vae.get("_class_name") == "AutoencoderKLWan"
            self._decodes[latents] = (
                decode_cost(self.vae, latents, self.itemsize) if known else Decode(0, 0, 0)
            )
        return self._decodes[latents]

    @property
    def vae_factors(self) -> tuple[int, int]:
        """Pixels of a side, and frames, that one latent stands for."""
        if self.facts:
            return self.facts.spatial, self.facts.temporal
        return self.abilities.spatial_grid, self.abilities.temporal

    @property
    def itemsize(self) -> int:
        """Bytes of an element of its activations."""
        return {"float32": 4}.get(self.dtype, 2)


def find_model(name: str, dtype: str | None = None) -> Model:
    """The model of a folder, of a hub id in the cache, or of a name that ships with the package.

    Raises `CheckpointError` for one that is none of them, with the nearest known names.
    """
    return replace(_find(name, dtype), dtype_given=dtype is not None)


def _find(name: str, dtype: str | None) -> Model:
    if is_here(name):
        # by the name that was typed, so that a command finds it again
        return replace(_of_folder(locate(name), dtype), name=name)
    if shipped := _shipped(name, dtype):
        return shipped
    if cached := _cached(name):
        return replace(_of_folder(cached, dtype), name=name)
    raise CheckpointError(_unknown(name))


def shipped_names() -> list[str]:
    """Every model whose config travels with the package."""
    return sorted([*cosmos3()["models"], *diffusers()])


def _of_folder(folder: Path, dtype: str | None) -> Model:
    able = abilities(folder)
    config = read_object(folder / "transformer" / "config.json")
    model = Model(
        name=able.name,
        model_class=class_named_in(config, folder / "transformer"),
        config=config,
        vae=read_object(folder / "vae" / "config.json"),
        abilities=able,
        source=str(folder),
        dtype=dtype or "bfloat16",
        folder=folder,
    )
    return model if dtype else replace(model, dtype=_stored_dtype(folder, config))


def _stored_dtype(folder: Path, config: Mapping[str, Any]) -> str:
    """The dtype in which most bytes are stored; what the config says, or bfloat16, where no weights are."""
    from armillary.checkpoint.dtypes import DTYPES

    try:
        tensors = read_index(folder / "transformer").tensors
    except CheckpointError:
        return str(config.get("dtype") or "bfloat16")
    totals: dict[str, int] = {}
    for entry in tensors.values():
        kind = DTYPES[entry.dtype]
        totals[kind.name] = totals.get(kind.name, 0) + entry.nbytes
    return max(totals, key=lambda name: totals[name])


def _shipped(name: str, dtype: str | None) -> Model | None:
    assets = cosmos3()
    known = name if name in assets["models"] else f"nvidia/{name}"
    entry = assets["models"].get(known)
    if entry is None:
        return _of_family(name, dtype)
    config, vae = assets["transformers"][entry["transformer"]], assets["vaes"][entry["vae"]]
    able = Abilities(
        name=known,
        spatial_grid=vae["scale_factor_spatial"],
        temporal=vae["scale_factor_temporal"],
        sound=config["sound_gen"],
        action=config["action_gen"],
        edge=config["hidden_act"] == "relu2",
        distilled=entry["distilled_steps"] is not None,
        distilled_steps=entry["distilled_steps"],
    )
    return Model(
        name=known,
        model_class=config["_class_name"],
        config=config,
        vae=vae,
        abilities=able,
        source=entry["source"],
        dtype=dtype or "bfloat16",
        mode=entry["mode"],
    )


def _of_family(name: str, dtype: str | None) -> Model | None:
    """One of the common sizes of the diffusers families, also by its name without the owner."""
    known = next((full for full in diffusers() if name in (full, full.rpartition("/")[2])), None)
    if known is None:
        return None
    entry = diffusers()[known]
    able = Abilities(
        name=known,
        spatial_grid=entry["pixel_grid"],
        temporal=entry["vae_temporal"],
        preferred=entry["preferred"],
    )
    return Model(
        name=known,
        model_class=entry["model_class"],
        config=entry["transformer"],
        vae=entry["vae"] or {},
        abilities=able,
        source=entry["source"],
        dtype=dtype or "bfloat16",
        mode=entry["mode"],
        facts=facts_of(entry),
    )


def _numbered(names: Iterable[str]) -> Mapping[int, tuple[str, ...]]:
    """The parameters of every numbered block, whatever list it is in; counted from 0."""
    blocks: dict[str, list[str]] = {}
    for name in names:
        if found := _BLOCK.match(name):
            blocks.setdefault(found[0], []).append(name)
    return {number: tuple(block) for number, block in enumerate(blocks.values())}


def _cached(repo: str) -> Path | None:
    """The configs of a hub repo that are on this machine already; the network is not asked."""
    if repo.count("/") != 1:
        return None
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repo, allow_patterns=["*.json"], local_files_only=True))
    except Exception:  # whatever is wrong with a name or a cache, the repo is not here
        return None


def _unknown(name: str) -> Problem:
    names = shipped_names()
    short = {known.rpartition("/")[2].lower(): known for known in names}
    near = difflib.get_close_matches(name.rpartition("/")[2].lower(), short, n=2)
    fix = f"did you mean {list_choices([short[key] for key in near])}? " if near else ""
    return Problem(
        "model",
        f"{name} is no folder here, not in the hub's cache, and not known by name",
        f"{fix}known: {', '.join(names)}",
    )
