"""The folder by which one process hands over to the ranks: the two do not run at once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from armillary.proof.run import Outputs


@dataclass(frozen=True)
class Files:
    """What is known of one case so far."""

    folder: Path

    @property
    def activations(self) -> Path:
        """What the layers of one process computed in float32."""
        return self.folder / "activations"

    def write(self, name: str, value: Any) -> None:
        """Leave JSON for others."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / f"{name}.json").write_text(json.dumps(value))

    def read(self, name: str) -> Any:
        """What was left under `name`; None where nothing was."""
        file = self.folder / f"{name}.json"
        return json.loads(file.read_text()) if file.exists() else None

    def write_outputs(self, side: str, outputs: Outputs) -> None:
        """Leave the outputs of one side: a dtype of the one process, or "ranks"."""
        import torch

        self.folder.mkdir(parents=True, exist_ok=True)
        torch.save(dict(outputs), self.folder / f"outputs-{side}.pt")

    def read_outputs(self, side: str) -> Outputs:
        """The outputs of one side."""
        import torch

        outputs: Outputs = torch.load(self.folder / f"outputs-{side}.pt", weights_only=True)
        return outputs
