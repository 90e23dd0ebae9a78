"""What the start-up table says."""

from __future__ import annotations

from pathlib import Path

from offline import settings

from armillary.serve.startup import startup_table

HOME = {"offload": None, "prefetch": 1, "resident_layers": 0, "evict": None}
MIB = 2**20


def _table(folder: Path, **changes: object) -> str:
    payload = {"layout": {"tp": 2}, "dtype": "bfloat16", "residency": changes.pop("residency", HOME)}
    made = settings(folder, payload=payload, predicted_bytes=(3 * MIB, 3 * MIB), **changes)
    return startup_table(made, weights=[3 * MIB, 2 * MIB], memory=[5 * MIB, 2**31])


def test_every_rank_has_its_memory_as_predicted_and_as_it_is(tmp_path: Path) -> None:
    lines = _table(tmp_path).splitlines()
    assert "rank 0   weights 3.0 MiB (predicted 3.0 MiB), in all 5.0 MiB" in lines
    assert "rank 1   weights 2.0 MiB (predicted 3.0 MiB), in all 2.00 GiB" in lines
    assert "layout   tp=2, bfloat16" in lines


def test_weights_that_live_elsewhere_are_said_to(tmp_path: Path) -> None:
    table = _table(tmp_path, residency=HOME | {"offload": "host"})
    assert "weights 2.0 MiB (of 3.0 MiB, the rest elsewhere)" in table


def test_a_flag_without_effect_is_said_to_be_one(tmp_path: Path) -> None:
    table = _table(tmp_path, allowed_local_media_path="/media")
    assert "media    uploads only; files under /media are not served by this version" in table
