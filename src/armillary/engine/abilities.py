"""What a checkpoint can do, read from its config files alone: no weight is read, no library is imported."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from armillary.errors import CheckpointError, Problem, list_choices

MODEL_CLASS = "Cosmos3OmniTransformer"
DEFAULTS_FILE = "generation_defaults.json"
"""What a small checkpoint prefers to the published settings: size, num_frames, fps, ... of a video."""
_PREFERENCES: Mapping[str, type | tuple[type, ...]] = {
    "size": str,
    "num_frames": int,
    "fps": (int, float),
    "num_inference_steps": int,
    "guidance_scale": (int, float),
    "flow_shift": (int, float),
}
_INDEXES = ("modular_model_index.json", "model_index.json")


@dataclass(frozen=True, kw_only=True)
class Abilities:
    """What requests are held against; see `abilities`, which makes one from a folder."""

    name: str
    """Named in messages: the hub id of a cached checkpoint, else the folder's name."""
    spatial_grid: int = 16
    """Pixels: width and height are multiples of it. The VAE's spatial factor; see `abilities`."""
    temporal: int = 4
    """The VAE's temporal factor: videos have `temporal * k + 1` frames."""
    sound: bool = False
    """The transformer has a sound head and the folder has the tokenizer that turns its latents into sound."""
    action: bool = False
    """The transformer has an action head."""
    edge: bool = False
    """Of the Edge family (ReLU²): its own defaults, no sound, no video-to-video."""
    distilled: bool = False
    """Few steps of a fixed schedule, with guidance baked into the weights."""
    distilled_steps: int | None = None
    """Length of that schedule; None unless `distilled`."""
    preferred: Mapping[str, Any] = field(default_factory=dict)
    """Fields of a request that the checkpoint's `generation_defaults.json` sets."""


def abilities(folder: Path, name: str | None = None) -> Abilities:
    """Read what the checkpoint in `folder` can do from its JSON files.

    `spatial_grid` is the VAE's spatial factor alone: the transformer pads latents of odd height or width to
    its patch, and the published 1280x720 (latents of 45 x 80, patch 2) depends on that.

    Raises CheckpointError with every file that is missing or malformed.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise CheckpointError(
            Problem("checkpoint-folder", f"{folder} is not a folder", "give the folder of a checkpoint")
        )
    configs = _Configs(folder)
    transformer = configs.read("transformer/config.json")
    vae = configs.read("vae/config.json")
    index = configs.read(next((file for file in _INDEXES if (folder / file).is_file()), _INDEXES[0]))
    configs.check_class(transformer)
    sigmas = configs.sigmas(index)
    preferred = configs.preferred() if (folder / DEFAULTS_FILE).is_file() else {}
    found = Abilities(
        name=name or _name_of(folder),
        spatial_grid=configs.factor(vae, "scale_factor_spatial", default=8),
        temporal=configs.factor(vae, "scale_factor_temporal", default=4),
        sound=bool(transformer.get("sound_gen")) and (folder / "sound_tokenizer" / "config.json").is_file(),
        action=bool(transformer.get("action_gen")),
        edge=transformer.get("hidden_act") == "relu2",
        distilled=sigmas is not None,
        distilled_steps=None if sigmas is None else len(sigmas),
        preferred=preferred,
    )
    if configs.problems:
        raise CheckpointError(configs.problems)
    return found


class _Configs:
    """The folder's JSON files; what is wrong with them is collected in `problems`, not raised one by one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: list[Problem] = []

    def read(self, file: str) -> dict[str, Any]:
        path = self.folder / file
        try:
            config = json.loads(path.read_bytes() if path.is_file() or not path.exists() else b"")
        except OSError as error:
            return self._refuse(f"{path} cannot be read ({error.strerror})", "download the whole checkpoint")
        except (ValueError, RecursionError) as error:
            return self._refuse(f"{path} is not JSON ({error})", "download the file again")
        if not isinstance(config, dict):
            return self._refuse(f"{path} holds no JSON object", "download the file again")
        return config

    def check_class(self, transformer: dict[str, Any]) -> None:
        # An unreadable file came back empty and has its problem already.
        if transformer and transformer.get("_class_name") != MODEL_CLASS:
            self._refuse(
                f"transformer/config.json has _class_name {transformer.get('_class_name')!r}, "
                f"and generation runs {MODEL_CLASS}",
                "give a Cosmos 3 checkpoint",
            )

    def factor(self, vae: dict[str, Any], key: str, *, default: int) -> int:
        """A whole number of at least 1; `default` is that of diffusers' `AutoencoderKLWan`."""
        value = vae.get(key, default)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return value
        self._refuse(f"vae/config.json has {key} {value!r}, not a whole number of at least 1")
        return default

    def sigmas(self, index: dict[str, Any]) -> list[float] | None:
        """The fixed schedule of a distilled checkpoint, else None."""
        sigmas = index.get("distilled_sigmas")
        classes = (str(index.get("_class_name")), str(index.get("_blocks_class_name")))
        if not (index.get("is_distilled") or sigmas or any("Distilled" in name for name in classes)):
            return None
        if isinstance(sigmas, list) and sigmas and all(map(_is_number, sigmas)):
            return [float(sigma) for sigma in sigmas]
        self._refuse(
            f"the pipeline index is of a distilled checkpoint, with distilled_sigmas {sigmas!r}",
            f"it needs the list of its steps in {list_choices(_INDEXES)}",
        )
        return []

    def preferred(self) -> dict[str, Any]:
        """The settings that the checkpoint prefers; they are judged like a request's."""
        settings = self.read(DEFAULTS_FILE)
        for key, value in settings.items():
            kind = _PREFERENCES.get(key)
            if kind is None:
                self._refuse(f"{DEFAULTS_FILE} has {key!r}", f"it may have {list_choices([*_PREFERENCES])}")
            elif not isinstance(value, kind) or isinstance(value, bool):
                self._refuse(f"{DEFAULTS_FILE} has {key} {value!r}", "give it as a request does")
        return settings

    def _refuse(self, message: str, fix: str = "") -> dict[str, Any]:
        self.problems.append(Problem("checkpoint-config", message, fix))
        return {}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _name_of(folder: Path) -> str:
    """The hub's cache names the folder by its commit; two above is the id: models--nvidia--Cosmos3-Nano."""
    folder = folder.absolute()
    cached = folder.parent.parent.name
    if folder.parent.name == "snapshots" and cached.startswith("models--"):
        return cached.removeprefix("models--").replace("--", "/")
    return folder.resolve().name
