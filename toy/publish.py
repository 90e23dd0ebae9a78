"""Puts the trained parts together into a checkpoint in the published folder layout.

Run as `python -m toy.publish RUN OUT` after the training scripts wrote into RUN; also keeps their losses
beside the scripts.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from diffusers import AutoencoderKLWan, Cosmos3OmniTransformer, UniPCMultistepScheduler

from armillary.models.cosmos3.tiny.parts import INDEX_NAME, write_index
from armillary.models.cosmos3.tiny.weights import write_json
from toy.clips import FPS, NUM_FRAMES, SIZE
from toy.evaluate import GUIDANCE, STEPS

_LOGS = ("vae.csv", "denoiser.csv")
# what the checkpoint was trained for; everything else would be noise
_DEFAULTS = {
    "size": f"{SIZE}x{SIZE}",
    "num_frames": NUM_FRAMES,
    "fps": FPS,
    "num_inference_steps": STEPS,
    "guidance_scale": GUIDANCE,
    "flow_shift": 3.0,
}


def publish(run: Path, out: Path) -> None:
    """Writes the checkpoint folder; a model card that is already there stays."""
    Cosmos3OmniTransformer.from_pretrained(run / "transformer").save_pretrained(out / "transformer")
    AutoencoderKLWan.from_pretrained(run / "vae").save_pretrained(out / "vae")
    shutil.copytree(run / "text_tokenizer", out / "text_tokenizer", dirs_exist_ok=True)
    scheduler = UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
    )
    scheduler.save_config(out / "scheduler")
    write_index(out, sound=False)
    _switch_off_safety_checker(out / INDEX_NAME)
    write_json(out / "generation_defaults.json", _DEFAULTS)
    for folder in ("transformer", "vae"):
        _forget_origin(out / folder / "config.json")


def _switch_off_safety_checker(index: Path) -> None:
    """There is nothing unsafe to draw here, and the checker would be a download."""
    write_json(index, json.loads(index.read_text()) | {"enable_safety_checker": False})


def _forget_origin(config: Path) -> None:
    """diffusers notes the folder a model was loaded from; a checkpoint names no folder of another machine."""
    kept = {key: value for key, value in json.loads(config.read_text()).items() if key != "_name_or_path"}
    write_json(config, kept)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    publish(options.run, options.out)
    for log in _LOGS:
        shutil.copy(options.run / log, Path(__file__).parent / log)
