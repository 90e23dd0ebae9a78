"""What every family file says is true of the class it names; no ranks."""

import inspect
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from safetensors.torch import load_file, save_file

from armillary import CheckpointError, Layout, LayoutError, PlanError, load, resolve
from armillary.models.cost import Cost, Size
from armillary.models.coverage import split_fraction, whole_layers
from armillary.models.described import describe
from armillary.models.registry import complete, families, skeleton_for, skeleton_of
from armillary.models.tiny_cases import TinyCase, tiny_cases
from armillary.plan.explain import match_key, pattern_of
from armillary.plan.plan import ParallelPlan
from armillary.plan.skeleton import Skeleton
from armillary.plan.styles import Optional

CASES = {case.label: case for case in tiny_cases()}
NEW = {label: case for label, case in CASES.items() if case.model_class != "Cosmos3OmniTransformer"}
FUSED = {"to_qkv", "to_added_qkv", "to_kv", "to_added_kv"}
"""What a model has after `fuse_qkv_projections()`."""
FAMILIES = {name: family for name, family in families().items() if name != "Cosmos3OmniTransformer"}


@pytest.fixture(scope="module")
def skeletons() -> Mapping[str, Skeleton]:
    """From the classes themselves, on meta."""
    return {label: skeleton_for(case.model_class, case.config) for label, case in NEW.items()}


@pytest.mark.parametrize("name", FAMILIES)
def test_defaults_are_those_of_the_class(name: str) -> None:
    signature = inspect.signature(getattr(diffusers, name).__init__)
    theirs = {key: signature.parameters[key].default for key in FAMILIES[name].DEFAULTS}
    assert dict(FAMILIES[name].DEFAULTS) == theirs


@pytest.mark.parametrize("name", FAMILIES)
def test_modules_kept_in_float32_are_those_of_the_class(name: str) -> None:
    kept = getattr(diffusers, name)._keep_in_fp32_modules or ()
    assert set(FAMILIES[name].FP32_MODULES) == set(kept)


@pytest.mark.parametrize("name", FAMILIES)
def test_tensors_passed_over_are_those_of_the_class(name: str) -> None:
    theirs = getattr(diffusers, name)._keys_to_ignore_on_load_unexpected or ()
    assert set(getattr(FAMILIES[name], "IGNORED", ())) == set(theirs)


def test_a_norm_that_only_the_checkpoints_of_wan_have_is_passed_over(
    tmp_path: Path,
) -> None:
    case = CASES["WanTransformer3DModel-image-to-video"]
    case.model().save_pretrained(tmp_path)
    file = tmp_path / "diffusion_pytorch_model.safetensors"
    save_file({**load_file(file), "blocks.0.attn2.norm_added_q.weight": torch.ones(48)}, file)
    assert resolve(describe(tmp_path).skeleton, Layout(tp=2)).shards
    assert isinstance(load(tmp_path, progress=False), type(case.model()))


def test_a_config_that_the_class_refuses_is_told_in_one_line(tmp_path: Path) -> None:
    config = {"_class_name": "WanVACETransformer3DModel", "vace_layers": [1]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"proj_out.bias": torch.ones(1)}, tmp_path / "diffusion_pytorch_model.safetensors")
    with pytest.raises(CheckpointError, match=r"no WanVACETransformer3DModel can be built .* layer 0"):
        load(tmp_path, progress=False)


@pytest.mark.parametrize("label", NEW)
def test_every_variant_splits_its_blocks_and_names_what_it_does_not(
    label: str, skeletons: Mapping[str, Skeleton]
) -> None:
    resolved = resolve(skeletons[label], Layout(tp=2))
    reasons = NEW[label].family.REPLICATED
    assert split_fraction(resolved) >= 0.9 or set(whole_layers(resolved)) <= set(reasons)
    assert all(reasons.values())


@pytest.mark.parametrize("name", FAMILIES)
def test_every_key_finds_something_in_some_variant(name: str, skeletons: Mapping[str, Skeleton]) -> None:
    """A key that only a fused model has is the exception."""
    trees = [skeletons[label].tree for label, case in NEW.items() if case.model_class == name]
    found = {key for key, _ in FAMILIES[name].PLAN if any(match_key(key, tree).paths for tree in trees)}
    assert {key.rpartition(".")[2] for key, _ in FAMILIES[name].PLAN if key not in found} <= FUSED


@pytest.mark.parametrize("name", FAMILIES)
def test_a_required_entry_is_there_in_every_variant(name: str, skeletons: Mapping[str, Skeleton]) -> None:
    required = [key for key, entry in FAMILIES[name].PLAN if not isinstance(entry, Optional)]
    for label in (label for label, case in NEW.items() if case.model_class == name):
        assert [key for key in required if not match_key(key, skeletons[label].tree).paths] == []


@pytest.mark.parametrize("label", NEW)
def test_headers_tell_what_the_class_tells(
    label: str, skeletons: Mapping[str, Skeleton], tmp_path: Path
) -> None:
    told = describe(_headers_only(NEW[label], skeletons[label], tmp_path)).skeleton
    known = skeletons[label]
    assert told.parameters == known.parameters
    assert told.heads == known.heads
    layout = Layout(tp=2)
    assert resolve(told, layout).shards == resolve(known, layout).shards


def _headers_only(case: TinyCase, skeleton: Skeleton, folder: Path) -> Path:
    """A checkpoint as diffusers writes it, with holes instead of weights."""
    config = {"_class_name": case.model_class, **skeleton.config}
    (folder / "config.json").write_text(json.dumps(config))
    header: dict[str, Any] = {}
    at = 0
    for name, p in skeleton.parameters.items():
        header[name] = {"dtype": "F32", "shape": list(p.shape), "data_offsets": [at, at + p.nbytes]}
        at += p.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "diffusion_pytorch_model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)
    return folder


@pytest.mark.parametrize("label", NEW)
def test_the_cost_knows_the_rows_of_every_layer_in_the_blocks(
    label: str, skeletons: Mapping[str, Skeleton]
) -> None:
    cost = _cost(NEW[label])
    for path, owned in skeletons[label].modules.items():
        if re.match(r"\w+\.\d+\.", path) and {p.kind for p in owned.values()} == {"linear"}:
            layer = pattern_of(path)
            assert any(f"{layer}.".startswith(f"{key}.") for key in cost.rows), layer
            assert cost.rows_of(layer) >= 1


@pytest.mark.parametrize("name", FAMILIES)
def test_the_cost_speaks_of_nothing_that_no_variant_has(name: str, skeletons: Mapping[str, Skeleton]) -> None:
    cases = {label: case for label, case in NEW.items() if case.model_class == name}
    trees = [skeletons[label].tree for label in cases]
    for case in cases.values():
        cost = _cost(case)
        for key in [*cost.rows, *(attention.module for attention in cost.attentions)]:
            fused = key.rpartition(".")[2] in FUSED
            assert fused or any(match_key(key, tree).paths for tree in trees), key


def _cost(case: TinyCase) -> Cost:
    return case.family.cost(complete(case.family, case.config), Size(height=8, width=12, frames=4, text=7))


@pytest.mark.parametrize("name", families())
def test_the_page_of_the_families_tells_every_class_and_variant(name: str) -> None:
    page = Path(__file__).parents[2] / "docs" / "families.md"
    (row,) = (line for line in page.read_text().splitlines() if line.startswith(f"| `{name}` |"))
    assert row.split(" | ")[1] == ", ".join(families()[name].TINY)


def test_degrees_that_the_published_heads_do_not_allow_are_refused_with_those_that_they_do() -> None:
    config = {"num_layers": 1, "num_single_layers": 1}
    with pytest.raises(LayoutError, match="use tp=1, 2, 3, 4, 6, 8, 12 or 24"):
        resolve(skeleton_for("FluxTransformer2DModel", config), Layout(tp=5))


def test_a_norm_across_heads_must_be_split_with_them() -> None:
    case = CASES["WanTransformer3DModel-text-to-video"]
    with pytest.raises(PlanError, match="norm_q"):
        resolve(
            skeleton_for(case.model_class, case.config),
            Layout(tp=2),
            overrides={"blocks.*.attn1.norm_q": None},
        )


def test_the_context_plan_is_that_of_the_class() -> None:
    model = CASES["FluxTransformer2DModel-guidance"].model()
    assert skeleton_of(model).declared is not None or isinstance(resolve(model, Layout()).plan, ParallelPlan)
