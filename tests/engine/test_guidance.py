"""Guidance over two groups has the bits of guidance in one, and a branch nobody needs is not computed."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from armillary.engine.abilities import abilities
from armillary.engine.guidance import own_denoiser
from armillary.engine.pipeline import build_pipeline, run_pipeline
from armillary.engine.prepare import prepare
from armillary.engine.request import CompleteRequest, GenerationRequest, complete
from armillary.errors import LayoutError
from armillary.layout import Layout
from armillary.models.cosmos3.tiny import TinyOptions, write_tiny
from armillary.parallel.collectives import Group
from armillary.parallel.load import load
from armillary.parallel.mesh import build_mesh
from rank_cases import Told, World, run_cases

STEPS = 4
REQUESTS: dict[str, dict[str, Any]] = {
    "guided": {},
    "unequal-prompts": {"prompt": "one", "negative_prompt": "a very long list of what nobody wants to see"},
    "interval": {"guidance_interval": "400,900"},
    "no-step-guided": {"guidance_interval": "0,0"},
    "guidance-1": {"guidance_scale": 1.0},
    "sound": {"sound": True},
}


def request_of(folder: Path, name: str) -> CompleteRequest:
    fields = {
        "prompt": "a red ball rolls",
        "negative_prompt": "blurry",
        "mode": "text-to-video",
        "size": "48x80",
        "num_frames": 5,
        "num_inference_steps": STEPS,
        "guidance_scale": 6.0,
        "guidance_interval": "none",
        "seed": 3,
        **REQUESTS[name],
    }
    return complete(GenerationRequest.parse(fields), abilities(folder))


TRANSFERS: dict[str, dict[str, Any]] = {
    "text": {},
    "text-and-control": {"control_guidance": 2.0},
    "control": {"guidance_scale": 1.0, "control_guidance": 2.0},
    "neither": {"guidance_scale": 1.0},
    "intervals": {"interval": (400.0, 900.0), "control_guidance": 2.0, "control_guidance_interval": (0, 900)},
}
"""What guides a transfer."""


class Generation:
    """One pipeline for all requests, and how often its transformer is called at every step."""

    def __init__(self, folder: Path, mesh: Any) -> None:
        self.folder, self.mesh = folder, mesh
        self.transformer: Any = load(
            folder, subfolder="transformer", layout=mesh.layout, mesh=mesh, prefill=True, progress=False
        )
        self.pipeline = build_pipeline(folder, request_of(folder, "sound"), self.transformer, torch.float32)
        self.calls = 0
        self.transformer.register_forward_hook(lambda *_: setattr(self, "calls", self.calls + 1))

    def run(self, name: str) -> tuple[torch.Tensor, list[int]]:
        """The final latents, and the calls of the transformer up to every step."""
        counts: list[int] = []
        self.calls = 0
        request = request_of(self.folder, name)
        _, latents = run_pipeline(
            self.pipeline, request, self.mesh, on_step=lambda i: counts.append(self.calls)
        )
        return latents, counts

    def transfer(self, name: str) -> tuple[torch.Tensor, list[int]]:
        """The same for a transfer in two chunks: a video that follows another's edges."""
        counts: list[int] = []
        self.calls = 0
        how: dict[str, Any] = {"guidance_scale": 3.0, "interval": None, **TRANSFERS[name]}
        generator = torch.Generator().manual_seed(5)
        with own_denoiser(
            self.pipeline, how.pop("interval"), self.mesh.groups["cfg"], lambda i: counts.append(self.calls)
        ):
            state = self.pipeline(
                prompt="a red ball",
                negative_prompt="blurry",
                control_videos={"edge": torch.rand(1, 9, 3, 48, 80, generator=generator)},
                height=48,
                width=80,
                num_video_frames_per_chunk=5,
                num_inference_steps=STEPS,
                generator=generator,
                output_type="pt",
                **how,
            )
        return state.get("videos"), counts


def on_ranks_transfers(world: World) -> dict[str, list[int]]:
    """Every guidance of a transfer over two groups, beside the same in this process.

    Returns how often each step calls the model on this rank.
    """
    folder = world.folder / "tiny"
    both = Generation(folder, world.mesh(Layout(cfg=2)))
    alone = Generation(folder, build_mesh(Layout()))
    calls = {}
    for name in TRANSFERS:
        video, counts = both.transfer(name)
        calls[name] = [count - before for before, count in zip([0, *counts], counts, strict=False)]
        expected, _ = alone.transfer(name)
        assert torch.equal(video, expected), name
    return calls


def on_ranks_generations(world: World) -> dict[str, list[int]]:
    """Every request over two groups, beside the same one after another in this process."""
    folder = world.folder / "tiny"
    both = Generation(folder, world.mesh(Layout(cfg=2)))
    alone = Generation(folder, build_mesh(Layout()))
    calls = {}
    for name in REQUESTS:
        latents, calls[name] = both.run(name)
        expected, _ = alone.run(name)
        assert torch.equal(latents, expected), name
    return calls


def on_ranks_traffic(world: World) -> None:
    """Once a guided step, each group sends its velocities in float32, and nothing else; docs/layouts.md."""
    for name, guided in (("guided", STEPS), ("sound", STEPS), ("guidance-1", 0)):
        mesh = world.mesh(Layout(cfg=2))
        generation = Generation(world.folder / "tiny", mesh)
        before = mesh.traffic()["cfg"]
        sizes: list[int] = []
        watch = generation.transformer.register_forward_hook(
            lambda _, args, out, sizes=sizes: sizes.append(
                sum(tensor.numel() for kind in out if kind for tensor in kind)
            )
        )
        generation.run(name)
        watch.remove()
        assert mesh.traffic()["cfg"] - before == guided * 4 * sizes[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("guidance") / "tiny", TinyOptions(layers=2, bias=True))


@pytest.fixture(scope="module")
def told(folder: Path) -> Told:
    return run_cases(__name__, 2, folder.parent, step_timeout=600)


def test_two_groups_have_the_bits_of_one_process_and_call_the_model_once_a_step(told: Told) -> None:
    for calls in told.values("generations"):
        assert all(counts == [1, 2, 3, 4] for counts in calls.values())


def test_a_transfers_branches_are_computed_once_and_shared(told: Told) -> None:
    first, second = told.values("transfers")
    chunks = 2
    for name, expected in {
        "text": (1, 1),
        "text-and-control": (2, 1),
        "control": (1, 1),
        "neither": (1, 1),
    }.items():
        assert (set(first[name]), set(second[name])) == tuple({each} for each in expected)
        assert len(first[name]) == STEPS * chunks
    assert set(first["intervals"]) == {1, 2}


def test_the_bytes_of_a_step_are_those_of_the_formula(told: Told) -> None:
    told.check("traffic")


@pytest.fixture(scope="module")
def alone(folder: Path) -> Generation:
    return Generation(folder, build_mesh(Layout()))


def test_one_process_computes_only_the_branches_that_a_step_needs(alone: Generation) -> None:
    assert alone.run("guided")[1] == [2, 4, 6, 8]
    assert alone.run("guidance-1")[1] == alone.run("no-step-guided")[1] == [1, 2, 3, 4]
    inside = [400 <= float(t) <= 900 for t in alone.pipeline.scheduler.timesteps]
    each = alone.run("interval")[1]
    assert [count - before for before, count in zip([0, *each], each, strict=False)] == [
        1 + guided for guided in inside
    ]
    assert len(set(inside)) == 2


def test_unguided_steps_are_those_of_guidance_1(alone: Generation) -> None:
    unguided = alone.run("no-step-guided")[0]
    assert torch.equal(unguided, alone.run("guidance-1")[0])
    assert not torch.equal(unguided, alone.run("guided")[0])


def denoisers(block: Any) -> list[Any]:
    """Every denoiser in the pipeline's blocks."""
    own = getattr(block, "sub_blocks", None) or {}
    here = [own["denoiser"]] if "denoiser" in own else []
    return here + [found for child in own.values() for found in denoisers(child)]


def test_the_denoiser_is_replaced_in_all_its_places_and_put_back_even_after_an_error(
    alone: Generation,
) -> None:
    stock = denoisers(alone.pipeline._blocks)
    inside = []

    def fail() -> None:
        with own_denoiser(alone.pipeline, None, Group("cfg"), lambda i: None):
            inside.extend(denoisers(alone.pipeline._blocks))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert [type(one).__name__ for one in inside] == ["TransferDenoiser"] + ["GuidanceDenoiser"] * 4
    assert [id(one) for one in denoisers(alone.pipeline._blocks)] == [id(one) for one in stock]


def job(folder: Path, name: str, layout: dict[str, int], **fields: Any) -> Any:
    request = {"prompt": "a ball", "size": "48x80", "num_frames": 5, **REQUESTS[name], **fields}
    return prepare(request, folder, layout)


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ({"cfg": 3}, "cfg=3, but guidance has two branches; use cfg=1 or cfg=2"),
        ({"ring": 2, "gather": 2}, "ring=2 and gather=2 both split the same keys"),
        ({"ulysses": 3}, "ulysses=3 cannot share the 8 query and 4 K/V heads .* use ulysses=1, 2, 4 or 8"),
        ({"tp": 2, "ulysses": 8}, "ulysses=8 cannot share the 4 query and 2 K/V heads .* at tp=2"),
        ({"tp": 3}, "tp=3 does not divide 8 query heads|tp=3 does not divide the 8 query heads"),
        ({"gather": 0}, "gather=0 is not a number of ranks"),
    ],
)
def test_a_layout_that_cannot_be_is_refused_before_a_weight_is_read(
    folder: Path, layout: dict[str, int], message: str
) -> None:
    with pytest.raises(LayoutError, match=message):
        job(folder, "guided", layout)


def test_every_problem_of_request_and_layout_is_told_at_once(folder: Path) -> None:
    with pytest.raises(Exception, match=r"cfg=3") as caught:
        job(folder, "guided", {"cfg": 3, "ring": 2, "gather": 2}, size="47x80")
    assert {"cfg-degree", "ring-or-gather", "size-grid"} <= {p.rule for p in caught.value.problems}  # type: ignore[attr-defined]


def test_two_groups_are_refused_for_a_distilled_checkpoint(tmp_path: Path) -> None:
    distilled = write_tiny(tmp_path / "tiny", TinyOptions(layers=1))
    index = distilled / "modular_model_index.json"
    sigmas = {"is_distilled": True, "distilled_sigmas": [1.0, 0.75, 0.5, 0.25]}
    index.write_text(json.dumps({**json.loads(index.read_text()), **sigmas}))
    with pytest.raises(LayoutError, match="cfg=2, but a distilled checkpoint has no second branch"):
        prepare({"prompt": "a ball", "size": "48x80", "num_frames": 1}, distilled, {"cfg": 2})


def test_two_groups_without_guidance_are_told_that_they_save_nothing(folder: Path) -> None:
    with pytest.warns(RuntimeWarning, match="cfg=2 with guidance 1 saves nothing"):
        job(folder, "guidance-1", {"cfg": 2})
