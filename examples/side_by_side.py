"""Results of `armillary generate -o FILE.npz` beside each other, as an animated GIF or a PNG sheet.

python examples/side_by_side.py one.npz two.npz -o side-by-side.gif
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image

SCALE = 3
GAP = 4


def beside(results: list[np.ndarray]) -> list[Image.Image]:
    """One picture per frame: [T, H, W, 3] arrays from left to right."""
    gap = np.full((results[0].shape[0], results[0].shape[1], GAP, 3), 255, dtype=np.uint8)
    parts = [part for result in results for part in (result, gap)][:-1]
    pictures = [Image.fromarray(frame) for frame in np.concatenate(parts, axis=2)]
    return [p.resize((p.width * SCALE, p.height * SCALE), Image.Resampling.NEAREST) for p in pictures]


def main(arguments: list[str]) -> None:
    at = arguments.index("-o")
    paths, output = arguments[:at], Path(arguments[at + 1])
    pictures = beside([np.load(path)["frames"] for path in paths])
    if output.suffix == ".gif":
        pictures[0].save(output, save_all=True, append_images=pictures[1:], duration=125, loop=0)
    else:
        sheet = np.concatenate([np.asarray(picture) for picture in pictures[:: len(pictures) // 4]], axis=0)
        Image.fromarray(sheet).save(output)
    print(output)


if __name__ == "__main__":
    main(sys.argv[1:])
