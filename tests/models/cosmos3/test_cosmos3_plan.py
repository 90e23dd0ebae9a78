"""The plan of Cosmos 3: Super over every legal degree, every variant, and typos that are not let through."""

import random
import string
import time
from collections.abc import Iterator
from typing import Any

import pytest

from armillary import Layout, LayoutError, ParallelPlan, PlanError, Skeleton, resolve
from armillary.models.cosmos3 import PLAN
from armillary.models.cosmos3.tiny import VARIANTS, tiny_config
from armillary.models.registry import skeleton_for

NAME = "Cosmos3OmniTransformer"
SUPER = skeleton_for(
    NAME,
    {
        "num_hidden_layers": 64,
        "hidden_size": 5120,
        "intermediate_size": 25600,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
    },
    dtype="bfloat16",
)
SHORT = skeleton_for(NAME, {**SUPER.config, "num_hidden_layers": 2})
"""The same names and widths."""
LEGAL = [1, 2, 4, 8, 16, 32, 64]


def _tiny(variant: str) -> Skeleton:
    return skeleton_for(NAME, tiny_config(VARIANTS[variant]))


def _accepts(skeleton: Skeleton, tp: int) -> bool:
    try:
        resolve(skeleton, Layout(tp=tp))
    except LayoutError:
        return False
    return True


def test_super_has_64_billion_parameters() -> None:
    count = sum(parameter.nbytes // parameter.itemsize for parameter in SUPER.parameters.values())
    assert round(count / 1e9) == 64
    assert round(SUPER.nbytes / 1e9, 2) == 128.05


def test_super_runs_on_the_degrees_that_share_its_heads_and_no_others() -> None:
    assert [tp for tp in range(1, 129) if _accepts(SHORT, tp)] == LEGAL
    assert all(_accepts(SUPER, tp) for tp in LEGAL)


@pytest.mark.parametrize("tp", [3, 12, 128])
def test_another_degree_is_refused_with_the_legal_ones(tp: int) -> None:
    with pytest.raises(LayoutError) as caught:
        resolve(SUPER, Layout(tp=tp))
    first, *_ = problems = [str(problem) for problem in caught.value.problems]
    assert first.startswith(f"tp={tp} does not divide the 64 query heads of {NAME}")
    fix = "; use tp=1, 2, 4, 8, 16, 32 or 64 (K/V heads are replicated above 8)"
    assert all(line.endswith(fix) for line in problems)


def test_super_is_resolved_in_well_under_a_second() -> None:
    start = time.process_time()
    resolve(skeleton_for(NAME, SUPER.config), Layout(tp=16))
    assert time.process_time() - start < 0.5


def test_above_8_ranks_a_key_value_head_is_on_several() -> None:
    resolved = resolve(SUPER, Layout(tp=16))
    keys = resolved.shards["layers.63.self_attn.add_k_proj.weight"]
    assert keys.ranges(2) == keys.ranges(3) == ((128, 256),)
    assert resolved.local_shape("layers.0.self_attn.to_q.weight", 3) == (512, 5120)
    assert resolved.heads["layers.0.self_attn"].local("queries_per_key_value") == 4


def test_the_ranks_of_super_share_its_bytes() -> None:
    resolved = resolve(SUPER, Layout(tp=8))
    whole = sum(SUPER.parameters[name].nbytes for name in resolved.replicated)
    assert sum(resolved.bytes_on(rank) for rank in range(8)) == SUPER.nbytes + 7 * whole
    assert whole < 0.002 * SUPER.nbytes


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_plan_fits_every_variant(variant: str) -> None:
    skeleton = _tiny(variant)
    resolved = resolve(skeleton, Layout(tp=8))
    gates = [key for key, _ in PLAN if "gate_proj" in key]
    assert list(resolved.skipped_optional) == (gates if variant.startswith("relu2") else [])
    layers = {n for n, p in skeleton.parameters.items() if p.kind == "linear" and n.startswith("layers.")}
    assert {name for name in layers if name in resolved.replicated} == {
        name for name in layers if name.endswith(("to_out.bias", "to_add_out.bias"))
    }


def test_the_plan_splits_both_pathways_alike() -> None:
    resolved = resolve(_tiny("silu-bias"), Layout(tp=4))
    twins = {"to_q": "add_q_proj", "to_k": "add_k_proj", "to_v": "add_v_proj", "to_out": "to_add_out"}
    for one, other in twins.items():
        path = "layers.0.self_attn"
        assert resolved.shards[f"{path}.{one}.weight"] == resolved.shards[f"{path}.{other}.weight"]


def _slip(name: str, rng: random.Random) -> str:
    """One character inserted, deleted, substituted or swapped with the next one."""
    at, letter = rng.randrange(len(name)), rng.choice(string.ascii_lowercase + "_")
    return rng.choice(
        [
            name[:at] + letter + name[at:],
            name[:at] + name[at + 1 :],
            name[:at] + letter + name[at + 1 :],
            name[:at] + name[at : at + 2][::-1] + name[at + 2 :],
        ]
    )


def _typos(count: int) -> Iterator[tuple[str, str]]:
    """(key of the plan, the same key with a slip in one of its names), the slip naming no other module."""
    rng, keys = random.Random(0), [key for key, _ in PLAN]
    names = {segment for path in SHORT.modules for segment in path.split(".")}
    while count:
        key = rng.choice(keys)
        segments = key.split(".")
        at = rng.choice([at for at, segment in enumerate(segments) if segment != "*"])
        wrong = _slip(segments[at], rng)
        if wrong and wrong not in names:
            count -= 1
            yield key, ".".join([*segments[:at], wrong, *segments[at + 1 :]])


def test_of_200_typos_all_are_refused_and_the_right_name_is_told() -> None:
    named = 0
    for key, typo in _typos(200):
        entries: dict[str, Any] = {(typo if k == key else k): entry for k, entry in PLAN}
        with pytest.raises(PlanError) as caught:
            resolve(SHORT, Layout(), plan=ParallelPlan(entries))
        (problem,) = [problem for problem in caught.value.problems if repr(typo) in problem.message]
        suggestions = problem.fix.removeprefix("did you mean ").split("?")[0]
        named += key in suggestions.replace(" or ", ", ").split(", ")
    assert named == 200


def test_a_single_key_value_head_is_as_wide_as_a_norm_of_one_head() -> None:
    sizes = {"num_hidden_layers": 1, "hidden_size": 32, "head_dim": 8, "num_attention_heads": 4}
    more = {"num_key_value_heads": 1, "intermediate_size": 32, "vocab_size": 32}
    skeleton = skeleton_for("Cosmos3OmniTransformer", {**sizes, **more})
    assert resolve(skeleton, Layout(tp=2)).heads["layers.0.self_attn"].local_key_value == 1
