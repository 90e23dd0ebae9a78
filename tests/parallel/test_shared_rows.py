"""The context plans of diffusers' classes: rows over ranks, beside tp, give what one process gives."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from diffusers import FluxTransformer2DModel, UNet2DModel

from armillary.errors import ArmillaryError, EngineError, LayoutError, PlanError
from armillary.layout import Layout
from armillary.models.tiny_cases import TinyCase, tiny_cases
from armillary.parallel.context_plan import WRONG_PLANS
from armillary.parallel.parallelize import parallelize
from rank_cases import Told, World, cases_of, run_cases

LIMIT = 1e-5
"""Relative L2 that float32 may always be apart (law 5)."""
FLUX = "FluxTransformer2DModel"
LAYOUTS = (
    Layout(tp=2, ulysses=2),
    Layout(ring=2, ulysses=2),
    Layout(tp=2, ring=2),
    Layout(tp=2, gather=2),
    Layout(ulysses=4),
    Layout(gather=3),
    Layout(ring=4),
)


def planned() -> Iterator[TinyCase]:
    """The families whose classes declare, rightly, where rows are split."""
    import diffusers

    return (
        case
        for case in tiny_cases()
        if getattr(diffusers, case.model_class)._cp_plan and case.model_class not in WRONG_PLANS
    )


def inputs_of(case: TinyCase) -> dict[str, Any]:
    """As a pipeline gives them: FLUX.2's positions have a batch, which its context plan counts on."""
    inputs = case.inputs()
    if case.model_class == "Flux2Transformer2DModel":
        inputs |= {name: inputs[name].expand(2, -1, -1) for name in ("img_ids", "txt_ids")}
    return inputs


def in_dtype(inputs: Any, dtype: torch.dtype) -> dict[str, Any]:
    return {
        name: value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for name, value in inputs.items()
    }


@torch.no_grad()
def run(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    out = model(**inputs)
    first = out[0]
    assert isinstance(first, torch.Tensor)
    return first


def relative(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.double() - other.double()).norm() / other.double().norm())


def longer(case: TinyCase) -> dict[str, Any]:
    """The inputs of another request: the second shape that a model sees."""
    inputs = inputs_of(case)
    if case.model_class == FLUX:
        inputs["encoder_hidden_states"] = inputs["encoder_hidden_states"].repeat(1, 2, 1)[:, :6]
        inputs["txt_ids"] = torch.zeros(6, 3)
    return inputs


def on_ranks_every_planned_family_over_every_layout(world: World) -> dict[str, float]:
    """How far from one process, in units of what law 5 allows; lengths do not divide."""
    distances = {}
    seen: set[str] = set()
    for case in planned():
        # one variant of a class over all layouts, the others over the first, where every axis but ring is
        some = LAYOUTS[:1] if case.model_class in seen else LAYOUTS
        seen.add(case.model_class)
        for inputs in (inputs_of(case), longer(case)) if case.model_class == FLUX else (inputs_of(case),):
            whole = run(case.model(), inputs)
            finer = run(case.model().double(), in_dtype(inputs, torch.float64))
            allowed = max(LIMIT, 4 * relative(whole, finer))
            for layout in some:
                mesh = world.mesh(layout)
                if mesh is None:
                    continue
                model = parallelize(case.model(), layout, mesh=mesh)
                for _ in range(2):  # the second time the counts of rows are known
                    out = run(model, inputs)
                    bits = out.numpy().tobytes()
                    assert mesh.everyone.share(bits) == [bits] * layout.world_size, (case.label, layout)
                    distances[f"{case.label} {layout}"] = relative(out, whole) / allowed
    return distances


def flux() -> TinyCase:
    return next(case for case in tiny_cases() if case.model_class == FLUX)


def on_ranks_a_sequence_shorter_than_the_ranks_is_refused_on_all(world: World) -> None:
    layout = Layout(gather=4)
    model = parallelize(flux().model(), layout, mesh=world.mesh(layout))
    inputs = flux().inputs()
    short = {"hidden_states": inputs["hidden_states"][:, :2], "img_ids": inputs["img_ids"][:2]}
    with pytest.raises(EngineError, match=r"hidden_states of the model has 2 rows, too few for .* = 4 ranks"):
        run(model, {**inputs, **short})


def on_ranks_masked_keys_are_seen_by_no_rank(world: World) -> None:
    """A mask over keys, different on every rank, with every layout of the context axes."""
    from torch.nn.functional import scaled_dot_product_attention

    from armillary.parallel.context import Context
    from armillary.parallel.shared_attention import Counts, SharedAttention

    generator = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(2, 11, 4, 8, generator=generator) for _ in range(3))
    mask = torch.rand(2, 1, 1, 11, generator=generator) > 0.4
    heads_first = [x.transpose(1, 2) for x in (query, key, value)]
    expected = scaled_dot_product_attention(heads_first[0], heads_first[1], heads_first[2], attn_mask=mask)
    for layout in (Layout(ring=2, ulysses=2), Layout(gather=4), Layout(ulysses=4)):
        context = Context.of(world.mesh(layout).groups)
        start, stop = context.rows(11).ranges[context.position]
        counts = Counts(context)
        counts.begin("shapes")
        attention = SharedAttention(context, counts)
        q, k, v = (x[:, start:stop] for x in (query, key, value))
        out = attention(q, k, v, attn_mask=mask[..., start:stop])
        assert torch.allclose(out, expected.transpose(1, 2)[:, start:stop], atol=1e-6)
        with pytest.raises(EngineError, match="which tells queries apart"):
            attention(q, k, v, attn_mask=torch.ones(2, 1, 3, 3))
        with pytest.raises(EngineError, match="causal attention cannot be computed"):
            attention(query, key, value, is_causal=True)
        with pytest.raises(ValueError, match="`attn_mask` is not supported for native flash attention"):
            attention(q, k, v, attn_mask=mask[..., start:stop], backend="_native_flash")


def on_ranks_a_processor_that_is_set_later_is_refused(world: World) -> None:
    layout = Layout(ulysses=4)
    model: Any = parallelize(flux().model(), layout, mesh=world.mesh(layout))
    model.set_attn_processor(type(model.transformer_blocks[0].attn.processor).__mro__[1]())
    with pytest.raises(PlanError, match="FluxAttnProcessor was set after FluxTransformer2DModel was split"):
        run(model, flux().inputs())


def on_ranks_a_backend_that_ring_passes_over_is_refused_when_it_is_set_later_too(world: World) -> None:
    layout = Layout(ring=4)
    model: Any = parallelize(flux().model(), layout, mesh=world.mesh(layout))
    model.set_attention_backend("_native_cudnn")
    with pytest.raises(LayoutError, match=r"ring=4 computes with .* asks for _native_cudnn"):
        run(model, flux().inputs())
    model.set_attention_backend("native")
    run(model, flux().inputs())


def on_ranks_the_library_is_as_it_was(world: World) -> None:
    layout = Layout(ulysses=4)
    parallelize(flux().model(), layout, mesh=world.mesh(layout))
    from diffusers.models.transformers.transformer_flux import FluxAttnProcessor

    assert FluxAttnProcessor._parallel_config is None
    stock, mine = flux().model(), flux().inputs()
    assert torch.equal(run(stock, mine), run(flux().model(), mine))


def on_ranks_different_inputs_are_told_before_a_collective(world: World) -> None:
    layout = Layout(ring=2, ulysses=2)
    model = parallelize(flux().model(), layout, mesh=world.mesh(layout))
    inputs = flux().inputs()
    if world.rank == 3:
        inputs["encoder_hidden_states"] = inputs["encoder_hidden_states"].double()
    with pytest.raises(
        EngineError, match=r"differ in the inputs of the model: .*encoder_hidden_states.*float64"
    ):
        run(model, inputs)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return run_cases(__name__, 4, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("case", cases_of(__name__))
def test_on_4_ranks(told: Told, case: str) -> None:
    told.check(case)


def test_rows_over_ranks_give_what_one_process_gives(told: Told, record_property: Any) -> None:
    distances = told.values("every_planned_family_over_every_layout")[0]
    record_property("of_what_is_allowed", distances)
    assert {name.split("-")[0] for name in distances} == {case.model_class for case in planned()}
    assert max(distances.values()) <= 1, distances


def flux_model(**config: Any) -> Any:
    return FluxTransformer2DModel(**{**flux().config, **config})


@pytest.mark.parametrize(
    ("model", "layout", "error", "message"),
    [
        (flux_model, Layout(ulysses=3), LayoutError, r"ulysses=3 cannot share the 4 query"),
        (flux_model, Layout(tp=4, ulysses=2), LayoutError, r"ulysses=2 cannot share the 1 query"),
        (
            lambda: UNet2DModel(
                block_out_channels=(8,), down_block_types=("DownBlock2D",), up_block_types=("UpBlock2D",),
                norm_num_groups=4,
            ),
            Layout(ring=2),
            LayoutError,
            "ring=2: UNet2DModel has no context plan; use ring=1",
        ),
    ],
)  # fmt: skip
def test_what_cannot_share_rows_is_refused_before_ranks_meet(
    model: Any, layout: Layout, error: type[ArmillaryError], message: str
) -> None:
    with pytest.raises(error, match=message):
        parallelize(model(), layout)


@pytest.mark.parametrize("model_class", WRONG_PLANS)
def test_a_class_whose_own_plan_fails_is_refused_and_takes_another(model_class: str) -> None:
    case = next(case for case in tiny_cases() if case.model_class == model_class)
    with pytest.raises(PlanError, match=f"the context plan of diffusers' {model_class} leaves"):
        parallelize(case.model(), Layout(ring=2))
    with pytest.raises(LayoutError, match="start it with `torchrun"):
        parallelize(case.model(), Layout(ring=2), overrides={"tensor": {}, "context": {"rope": None}})


def test_an_attention_by_itself_or_a_backend_that_ring_would_pass_over_is_refused() -> None:
    from diffusers.models.attention_processor import AttnProcessor2_0

    model = flux_model()
    model.set_attn_processor(AttnProcessor2_0())
    with pytest.raises(
        PlanError, match="AttnProcessor2_0 computes attention by itself, over the keys of one"
    ):
        parallelize(model, Layout(ulysses=2))
    model = flux_model()
    model.transformer_blocks[0].attn.processor._attention_backend = "flex"
    with pytest.raises(
        LayoutError, match="ring=2 computes with torch's own kernels, FluxAttnProcessor asks for flex"
    ):
        parallelize(model, Layout(ring=2))
