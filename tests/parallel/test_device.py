"""Which devices there are, and how many ranks they hold."""

import warnings

import pytest
import torch

from armillary.parallel import device

on_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="says what a machine without CUDA does")


@on_cpu
def test_without_cuda_ranks_meet_on_the_cpu_over_gloo() -> None:
    assert (device.device_type(), device.backend(), device.device_for(3)) == (
        "cpu",
        "gloo",
        torch.device("cpu"),
    )


@on_cpu
def test_as_many_ranks_as_cores_are_fine() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert device.check_devices(device.cores()) == []


@on_cpu
def test_more_ranks_than_cores_are_allowed_with_a_warning() -> None:
    with pytest.warns(RuntimeWarning, match=f"ranks share {device.cores()} CPU cores"):
        assert device.check_devices(device.cores() + 1) == []


def test_more_ranks_than_cuda_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "device_type", lambda: "cuda")
    monkeypatch.setattr(device, "visible_devices", lambda: 2)
    assert device.check_devices(2) == []
    (problem,) = device.check_devices(4)
    assert str(problem).startswith("4 ranks need a CUDA device each and 2 are visible; use degrees")
