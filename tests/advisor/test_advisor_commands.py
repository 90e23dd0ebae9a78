"""The commands: valid for their engine, or the reason why there is none."""

import shlex
from typing import Any

import pytest

from armillary.advisor.ask import Answer, ask
from armillary.advisor.commands import Command, commands_for
from armillary.advisor.hardware import GPUS
from armillary.cli.options import LAYOUT, REQUEST, RESIDENCY

SUPER = "nvidia/Cosmos3-Super"


def told(gpu: str = "h200-141gb", model: str = SUPER, **arguments: Any) -> dict[str, Command]:
    answer: Answer = ask(model, GPUS[gpu], **{"residency": {"prefetch": 1}, **arguments})
    return commands_for(answer.question, answer.options[0], answer.given)


def test_armillarys_flags_are_its_own() -> None:
    known = {f"--{name.replace('_', '-')}" for name in (*REQUEST, *LAYOUT, *RESIDENCY)}
    commands = told(
        layout={"cfg": 2, "ulysses": 2, "tp": 2},
        residency={"offload": "disk", "evict": "disk", "prefetch": 2, "resident_layers": 4},
        request={"prompt": "a cat's tea", "guidance_interval": (400, 1000), "sound": True},
    )
    words = shlex.split(commands["generate"].text)
    assert {word for word in words if word.startswith("--")} <= known
    assert "a cat's tea" in words
    assert "400,1000" in words
    assert shlex.split(commands["serve"].text)[:3] == ["armillary", "serve", SUPER]


def test_vllm_omni_gets_its_flags_and_its_docker_form() -> None:
    commands = told(layout={"cfg": 2, "ulysses": 4})
    assert commands["vllm-omni"].text == (
        f"vllm serve {SUPER} --omni --model-class-name Cosmos3OmniDiffusersPipeline --ulysses-degree 4 "
        "--cfg-parallel-size 2 --init-timeout 1800"
    )
    assert commands["vllm-omni-docker"].text.endswith(commands["vllm-omni"].text)


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        ({"tp": 16}, "8 K/V heads"),
        ({"tp": 4, "ulysses": 4}, "tp x ulysses = 16"),
        ({"gather": 3}, "causal"),
        ({"ring": 7}, "does not divide 44160 rows"),
    ],
)
def test_what_vllm_omni_would_fail_on_is_not_printed(layout: dict[str, int], reason: str) -> None:
    commands = told(layout=layout)
    assert not commands["vllm-omni"].text
    assert reason in commands["vllm-omni"].reason


def test_a_request_over_its_deadline_is_told() -> None:
    commands = told("h20", layout={"tp": 4})
    assert "600 s" in commands["vllm-omni"].reason
    assert commands["generate"].text


def test_what_does_not_fit_vllm_omni_is_told() -> None:
    assert "would need" in told("h100-80gb", layout={"tp": 1})["vllm-omni"].reason


def test_the_reasoner_has_whole_heads_and_room() -> None:
    assert told(layout={"gather": 3, "cfg": 2})["reasoner"].text.endswith("--tensor-parallel-size 4")
    assert "62 GB" in told("l40s", layout={"tp": 1})["reasoner"].reason


def test_several_machines_start_with_torchrun() -> None:
    commands = told(layout={"cfg": 2, "tp": 8}, counts=[16], nodes=2)
    assert commands["generate"].text.startswith("torchrun --nnodes 2 --nproc-per-node 8 ")
    assert "one machine" in commands["serve"].reason
    assert "one machine" in commands["vllm-omni"].reason


def test_the_snippets_compile_and_stay_away_where_they_would_fail() -> None:
    compile(told(layout={"tp": 2})["diffusers"].text, "sharded", "exec")
    compile(told("b200", layout={"tp": 1})["diffusers"].text, "stock", "exec")
    assert "own denoiser" in told(layout={"cfg": 2})["diffusers"].reason
    assert "on one device" in told("h100-80gb", layout={"tp": 1})["diffusers"].reason


def test_a_mode_that_needs_a_picture_says_so() -> None:
    commands = told(layout={"tp": 2}, request={"mode": "image-to-video"})
    assert "--image input.png" in commands["generate"].text
