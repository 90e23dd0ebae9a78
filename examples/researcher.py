"""A diffusers script on several devices: the transformer is loaded by Armillary, the rest is as before.

    armillary tiny tiny
    torchrun --nproc-per-node 2 examples/researcher.py tiny two.npz --size 64x64 --frames 9 --steps 8
    python examples/researcher.py tiny one.npz --size 64x64 --frames 9 --steps 8
    python examples/compare.py one.npz two.npz

On four GPUs: torchrun --nproc-per-node 4 examples/researcher.py nvidia/Cosmos3-Super tea.npz
"""

import argparse
import os

import numpy as np
import torch
from diffusers import Cosmos3OmniModularPipeline, TensorParallelConfig

import armillary
from armillary import Layout


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", help="a folder or hub id")
    parser.add_argument("output", help="an .npz file")
    parser.add_argument("--prompt", default="A robot arm pours tea beside a window.")
    parser.add_argument("--size", default="1280x720")
    parser.add_argument("--frames", type=int, default=189)
    parser.add_argument("--steps", type=int, default=35)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--diffusers-config", action="store_true", help="say the degree as diffusers does")
    return parser.parse_args()


def main(arguments: argparse.Namespace) -> None:
    dtype = getattr(torch, arguments.dtype)
    ranks = int(os.environ.get("WORLD_SIZE", 1))  # set by torchrun

    # each rank reads its part of the weights and nothing more
    layout = TensorParallelConfig(tp_degree=ranks) if arguments.diffusers_config else Layout(tp=ranks)
    transformer = armillary.load(arguments.model, subfolder="transformer", layout=layout, dtype=dtype)

    pipe = Cosmos3OmniModularPipeline.from_pretrained(arguments.model)
    pipe.load_components(names=["vae", "text_tokenizer", "scheduler"], dtype=dtype)
    pipe.update_components(transformer=transformer)
    pipe.to(transformer.device)
    pipe.disable_safety_checker()

    # every rank runs the pipeline, with the same seed
    width, height = map(int, arguments.size.split("x"))
    state = pipe(
        prompt=arguments.prompt,
        width=width,
        height=height,
        num_frames=arguments.frames,
        num_inference_steps=arguments.steps,
        generator=torch.Generator("cpu").manual_seed(7),
    )

    if ranks == 1 or torch.distributed.get_rank() == 0:
        frames = np.stack([np.asarray(frame) for frame in state.get("videos")])
        np.savez(arguments.output, frames=frames, latents=state.get("latents").float().cpu())


if __name__ == "__main__":
    main(parse_arguments())
