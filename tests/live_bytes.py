"""Live tensor bytes, counted at the allocator."""

from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile


def measured(forward: Callable[[], object]) -> int:
    """The most bytes that were live at once, of those allocated meanwhile."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as told:
        forward()
    events = told.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    live = peak = 0
    for _, change in changes:
        live += change
        peak = max(peak, live)
    return peak
