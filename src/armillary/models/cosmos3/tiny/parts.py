"""The parts of a tiny checkpoint, one writer each; scale factors are the published ones, widths are not.

The VAE is 16 x in space and 4 x in time on 48 channels, so that with patches of 2 pictures start at 32x32;
sound is 48 kHz stereo at 25 latents a second, which AAC encoders take.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from armillary.models.cosmos3.tiny.tokenizer import write_tokenizer as write_tokenizer
from armillary.models.cosmos3.tiny.weights import Progress, Recipe, write_json, write_model

INDEX_NAME = "modular_model_index.json"
LATENT_CHANNELS = 48
SOUND_DIM = 16

_VAE = {
    "base_dim": 8,
    "decoder_base_dim": 8,
    "z_dim": LATENT_CHANNELS,
    "dim_mult": [1, 2, 2, 2],
    "num_res_blocks": 1,
    "temperal_downsample": [False, True, True],
    "is_residual": True,
    "in_channels": 12,
    "out_channels": 12,
    "patch_size": 2,
    "scale_factor_spatial": 16,
    "scale_factor_temporal": 4,
    "latents_mean": [round(0.05 * (i % 7 - 3), 4) for i in range(LATENT_CHANNELS)],
    "latents_std": [round(0.6 + 0.05 * (i % 5), 4) for i in range(LATENT_CHANNELS)],
}
_SOUND: dict[str, Any] = {
    "sampling_rate": 48_000,
    "vocoder_input_dim": SOUND_DIM,
    "dec_dim": 4,
    "dec_c_mults": [1, 1, 1, 2, 2],
    "dec_strides": [2, 4, 5, 6, 8],
    "enc_dim": 4,
    "enc_num_blocks": 1,
    "enc_latent_dim": 2 * SOUND_DIM,
}
_SCHEDULER = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 10.0}
_COMPONENTS = {
    "scheduler": ("diffusers", "UniPCMultistepScheduler"),
    "sound_tokenizer": ("diffusers", "Cosmos3AVAEAudioTokenizer"),
    "text_tokenizer": ("transformers", "AutoTokenizer"),
    "transformer": ("diffusers", "Cosmos3OmniTransformer"),
    "vae": ("diffusers", "AutoencoderKLWan"),
}


def write_transformer(
    folder: Path,
    config: Mapping[str, Any],
    *,
    seed: int,
    dtype: str,
    files: int,
    progress: Progress | None = None,
) -> None:
    """The transformer; biases and norms are far from 0 and 1, so that leaving one out shows."""
    from diffusers import Cosmos3OmniTransformer

    # Two residual additions a layer: without this the stream grows with the square root of the depth.
    residual = (2 * config["num_hidden_layers"]) ** -0.5
    # Random queries and keys attend to everything alike, and the average of everything says little; a wider
    # norm makes each query choose a few keys, so that prompts and single keys matter.
    sharp = dict.fromkeys(("norm_q.", "norm_k.", "norm_added_", "k_norm_und_for_gen."), 1.4)
    recipe = Recipe(
        seed=seed,
        dtype=dtype,
        bias_std=0.5,
        fan_in={"action_proj_in": config["action_dim"], "action_proj_out": config["hidden_size"]},
        gain={"down_proj.": residual, **sharp},
    )
    write_model(folder, Cosmos3OmniTransformer, config, recipe, files=files, progress=progress)


def write_vae(folder: Path, seed: int) -> None:
    """The VAE, in float32."""
    from diffusers import AutoencoderKLWan

    write_model(folder, AutoencoderKLWan, _VAE, Recipe(seed=seed, bias_std=0.1))


def write_sound_tokenizer(folder: Path, seed: int) -> None:
    """The sound VAE, in float32."""
    from diffusers import Cosmos3AVAEAudioTokenizer

    # An upsampling spreads each input's energy over `stride` samples, residual units add to it; with these
    # gains the waveform follows the latents and stays inside the clamp to [-1, 1].
    upsampling = {
        f"block.{i}.conv_t1": stride**0.5 for i, stride in enumerate(reversed(_SOUND["dec_strides"]))
    }
    gain = {"decoder.conv2": 0.1, "res_unit": 0.5, **upsampling}
    recipe = Recipe(seed=seed, bias_std=0.1, gain=gain)
    with warnings.catch_warnings():
        # diffusers builds this model with torch's older weight_norm, whose parameter names the files have
        warnings.filterwarnings("ignore", "`torch.nn.utils.weight_norm` is deprecated", FutureWarning)
        write_model(folder, Cosmos3AVAEAudioTokenizer, _SOUND, recipe)


def write_scheduler(folder: Path) -> None:
    """UniPC on flow sigmas with the shift of the video modes."""
    from diffusers import UniPCMultistepScheduler

    UniPCMultistepScheduler(**_SCHEDULER).save_config(folder)


def write_defaults(folder: Path) -> None:
    """What a request that says nothing gets: the published 44,000 tokens would take hours on a laptop."""
    write_json(
        folder / "generation_defaults.json", {"size": "64x64", "num_frames": 9, "num_inference_steps": 8}
    )


def write_index(folder: Path, *, sound: bool) -> None:
    """The pipeline index. Its components name no repository: they are looked for beside the index."""
    from diffusers import __version__

    index: dict[str, Any] = {
        "_blocks_class_name": "Cosmos3OmniBlocks",
        "_class_name": "Cosmos3OmniModularPipeline",
        "_diffusers_version": __version__,
        "default_use_system_prompt": True,
        "enable_safety_checker": True,
    }
    for name, home in _COMPONENTS.items():
        if sound or name != "sound_tokenizer":
            spec = {
                "pretrained_model_name_or_path": None,
                "revision": None,
                "subfolder": name,
                "type_hint": home,
                "variant": None,
            }
            index[name] = [*home, spec]
    write_json(folder / INDEX_NAME, index)
