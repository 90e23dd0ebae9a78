"""The commands that run a layout, each by its engine's own rules; or the reason why there is none."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from armillary.advisor.engines import ENGINES
from armillary.advisor.option import Option, Question
from armillary.advisor.rules import layout_problems, residency_problems
from armillary.engine.modes import INPUTS
from armillary.layout import Layout
from armillary.residency import Residency

VLLM_DEADLINE_SECONDS = 600
"""After which vLLM-Omni 0.30 ends the workers of a request on several devices."""

VLLM_IMAGE = "vllm/vllm-omni:v0.30.0"

_LAYOUT_FLAGS = {
    "tp": "--tensor-parallel-size",
    "ulysses": "--ulysses-degree",
    "ring": "--ring-degree",
    "gather": "--allgather-degree",
    "cfg": "--cfg-parallel-size",
}
_PIPELINE = "Cosmos3OmniDiffusersPipeline"
_REASONER = '{"architectures": ["Cosmos3ReasonerForConditionalGeneration"]}'


@dataclass(frozen=True)
class Command:
    """What to type; or, where `text` is empty, why nothing is right."""

    text: str = ""
    reason: str = ""


def commands_for(question: Question, option: Option, given: Mapping[str, Any]) -> dict[str, Command]:
    """By name: Armillary's verbs, vLLM-Omni and its Docker form, the reasoner, diffusers.

    `given` are the fields of the request that were given; the others take the published settings.
    """
    if question.model.facts:
        return _of_other_family(question, option)
    generate = _generate(question, option, given)
    vllm = _vllm(question, option)
    return {
        "generate": generate,
        "serve": _serve(question, option),
        "vllm-omni": vllm,
        "vllm-omni-docker": Command(f"{_docker(option)} {vllm.text}") if vllm.text else vllm,
        "reasoner": _reasoner(question, option),
        "diffusers": _diffusers(question, option),
    }


def _of_other_family(question: Question, option: Option) -> dict[str, Command]:
    """Armillary splits the transformer for the pipeline of its own; its verbs generate with Cosmos 3."""
    no = Command(reason="Armillary's engine generates with Cosmos 3; use the snippet")
    name, tp = question.model.name, option.layout.tp
    lines = [
        "import torch, armillary" if tp > 1 else "import torch",
        "from diffusers import DiffusionPipeline",
        "",
    ]
    if tp > 1:
        lines.insert(0, f"# torchrun --nproc-per-node {tp} script.py")
        lines += [
            f'transformer = armillary.load({name!r}, subfolder="transformer",',
            f"                             layout=armillary.Layout(tp={tp}), dtype=torch.bfloat16)",
            f"pipe = DiffusionPipeline.from_pretrained({name!r}, transformer=transformer,",
            "                                         torch_dtype=torch.bfloat16)",
        ]
    else:
        lines.append(f"pipe = DiffusionPipeline.from_pretrained({name!r}, torch_dtype=torch.bfloat16)")
    place = '"cuda"' if tp == 1 else "transformer.device"
    snippet = Command("\n".join([*lines, f"pipe.to({place})"]))
    return {"generate": no, "serve": no, "diffusers": snippet}


def _armillary_reason(question: Question, option: Option) -> str:
    """Why Armillary itself cannot run an option that another engine was asked about; empty where it can."""
    if not option.fits:
        return _no_room(question, option)
    if option.sharded > 1:
        return "Armillary gathers no weights layer by layer: ask with --engine armillary"
    own = replace(question, engine=ENGINES["armillary"])
    problems = layout_problems(own, option.layout) or residency_problems(own.engine, option.residency)
    return "; ".join(map(str, problems))


def _no_room(question: Question, option: Option) -> str:
    return f"it does not fit: {option.memory.peak / 1e9:.1f} GB at the peak on a {question.gpu.name}"


def _generate(question: Question, option: Option, given: Mapping[str, Any]) -> Command:
    if reason := _armillary_reason(question, option):
        return Command(reason=reason)
    verb = ["generate", question.model.name]
    words = [*verb, *_request_flags(question, given), *_own_flags(question, option)]
    words += ["-o", "out.png" if question.workload.frames == 1 else "out.mp4"]
    if (nodes := question.nodes(option.layout)) == 1:
        return Command(_line(["armillary", *words]))
    each = option.layout.world_size // nodes
    start = f"torchrun --nnodes {nodes} --nproc-per-node {each} --rdzv-backend c10d"
    return Command(f"{start} --rdzv-endpoint FIRST_HOST:29500 -m armillary {_line(words)}")


def _request_flags(question: Question, given: Mapping[str, Any]) -> list[str]:
    """The fields that were given, as flags; and the input that the mode needs."""
    fields = {"prompt": "...", **given}
    if (needed := INPUTS.get(question.workload.mode)) and needed not in fields:
        fields[needed] = "input.png" if needed == "image" else "input.mp4"
    flags = []
    for name, value in fields.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            flags.append(flag)
        elif value not in (None, False):
            joined = isinstance(value, list | tuple)
            flags += [flag, ",".join(map(str, value)) if joined else str(value)]
    return flags


def _own_flags(question: Question, option: Option) -> list[str]:
    flags = [*_degree_flags(option.layout), *_residency_flags(option.residency)]
    return [*flags, "--dtype", question.model.dtype] if question.model.dtype_given else flags


def _degree_flags(layout: Layout) -> list[str]:
    pairs = ((flag, layout.degrees[axis]) for axis, flag in _LAYOUT_FLAGS.items())
    return [word for flag, degree in pairs if degree > 1 for word in (flag, str(degree))]


def _residency_flags(residency: Residency) -> list[str]:
    flags = ["--enable-layerwise-offload"] if residency.offload else []
    flags += ["--evict"] if residency.evict else []
    if "disk" in (residency.offload, residency.evict):
        flags += ["--offload-to", "disk"]
    if residency.prefetch != 1:
        flags += ["--offload-prefetch", str(residency.prefetch)]
    if residency.resident_layers:
        flags += ["--offload-resident-layers", str(residency.resident_layers)]
    return flags


def _serve(question: Question, option: Option) -> Command:
    if reason := _armillary_reason(question, option):
        return Command(reason=reason)
    if question.nodes(option.layout) > 1:
        return Command(reason="armillary serve runs on one machine; generate runs on several under torchrun")
    return Command(_line(["armillary", "serve", question.model.name, *_own_flags(question, option)]))


def _vllm(question: Question, option: Option) -> Command:
    """`vllm serve --omni`, held against vLLM-Omni's rules, the card and its deadline."""
    theirs = replace(question, engine=ENGINES["vllm-omni"])
    problems = layout_problems(theirs, option.layout)
    problems += residency_problems(theirs.engine, option.residency)
    if problems:
        return Command(reason=f"{'; '.join(map(str, problems))} (--engine vllm-omni finds what it can do)")
    judged = theirs.evaluate(option.layout, option.residency)
    if not judged.fits:
        needs, has = judged.memory.peak / 1e9, question.gpu.memory_bytes / 1e9
        return Command(reason=f"vLLM-Omni would need {needs:.0f} GB of {has:.0f} GB: it keeps both pathways")
    if option.layout.world_size > 1 and judged.latency.seconds > VLLM_DEADLINE_SECONDS:
        took = f"about {judged.latency.seconds:.0f} s"
        return Command(
            reason=f"a request takes {took}, over the {VLLM_DEADLINE_SECONDS} s after which vLLM-Omni ends "
            "its workers; raise VLLM_OMNI_DLO_DP_WAVE_TIMEOUT first"
        )
    words = ["vllm", "serve", question.model.name, "--omni", "--model-class-name", _PIPELINE]
    words += _degree_flags(option.layout)
    words += ["--enable-layerwise-offload"] if option.residency.offload else []
    return Command(_line([*words, "--init-timeout", "1800"]))


def _docker(option: Option) -> str:
    devices = "all" if option.layout.world_size == 1 else str(option.layout.world_size)
    return (
        f"docker run --rm --gpus {devices} --ipc=host -p 8000:8000 -e HF_TOKEN "
        f"-v ~/.cache/huggingface:/root/.cache/huggingface {VLLM_IMAGE}"
    )


def _reasoner(question: Question, option: Option) -> Command:
    """vLLM with the understanding half; its tensor ranks are whole K/V heads."""
    model = question.model
    if model.abilities.edge:
        return Command(reason="no override for the reasoner of Edge checkpoints is published")
    heads = model.skeleton.heads[0].key_value_heads
    ranks = max(tp for tp in range(1, option.layout.world_size + 1) if heads % tp == 0)
    words = ["vllm", "serve", model.name, "--hf-overrides", _REASONER]
    words += ["--mm-encoder-tp-mode", "data", "--async-scheduling"]
    rank = question.rank(Layout(tp=ranks))
    held = sum(rank.nbytes(name) for names in model.blocks["understanding"].values() for name in names)
    if held > 0.8 * question.gpu.memory_bytes:
        needs = f"{held / 1e9:.0f} GB a rank at tp={ranks}"
        return Command(reason=f"the understanding half alone is {needs}: use more devices")
    return Command(_line([*words, *_degree_flags(Layout(tp=ranks))]))


def _diffusers(question: Question, option: Option) -> Command:
    """The snippet for a script: the stock pipeline on one device, with our transformer on several."""
    layout = option.layout
    if layout.cfg > 1:
        return Command(reason="the cfg axis acts in Armillary's own denoiser, not in a bare transformer")
    if option.residency.moves or option.sharded > 1:
        return Command(reason="snippets keep the weights on the device; use armillary generate")
    if layout.world_size > 1 and not option.fits:
        return Command(reason=_no_room(question, option))
    name = question.model.name
    if layout.world_size == 1:
        theirs = replace(question, engine=ENGINES["diffusers"]).evaluate(layout, Residency())
        if not theirs.fits:
            return Command(reason=f"the whole pipeline needs {theirs.memory.peak / 1e9:.0f} GB on one device")
        return Command("\n".join(_stock_snippet(name)))
    degrees = ", ".join(f"{axis}={degree}" for axis, degree in layout.degrees.items() if degree > 1)
    return Command("\n".join(_sharded_snippet(name, degrees, layout.world_size)))


def _stock_snippet(name: str) -> Sequence[str]:
    return (
        "import torch",
        "from diffusers import Cosmos3OmniPipeline",
        "",
        f"pipe = Cosmos3OmniPipeline.from_pretrained({name!r}, torch_dtype=torch.bfloat16)",
        'pipe.to("cuda")',
    )


def _sharded_snippet(name: str, degrees: str, ranks: int) -> Sequence[str]:
    return (
        f"# torchrun --nproc-per-node {ranks} script.py",
        "import torch, armillary",
        "from diffusers import Cosmos3OmniModularPipeline",
        "",
        f'transformer = armillary.load({name!r}, subfolder="transformer",',
        f"                             layout=armillary.Layout({degrees}), dtype=torch.bfloat16)",
        f"pipe = Cosmos3OmniModularPipeline.from_pretrained({name!r})",
        'pipe.load_components(names=["vae", "text_tokenizer", "scheduler"], dtype=torch.bfloat16)',
        "pipe.update_components(transformer=transformer)",
        "pipe.to(transformer.device)",
        "pipe.disable_safety_checker()  # or enable it, where its model is installed",
    )


def _line(words: Sequence[str]) -> str:
    return shlex.join(words)
