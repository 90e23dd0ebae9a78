"""How far apart two results of `armillary generate -o FILE.npz` are.

python examples/compare.py one.npz two.npz
"""

import sys

import numpy as np


def main(one_path: str, two_path: str) -> None:
    one, two = np.load(one_path), np.load(two_path)
    latents = np.linalg.norm(two["latents"] - one["latents"]) / np.linalg.norm(one["latents"])
    colours = np.abs(two["frames"].astype(int) - one["frames"])
    print(f"{one_path} and {two_path}: {len(one['frames'])} frames")
    print(f"  final latents  {latents:.2g} apart (relative L2)")
    print(
        f"  frames         {(colours > 0).mean():.4%} of the bytes differ, by {colours.max()} of 255 at most"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
