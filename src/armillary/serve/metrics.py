"""What `/metrics` tells Prometheus. Counted since the HTTP process started."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_LONG = (0.1, 0.5, 1, 5, 15, 30, 60, 120, 300, 600, 1200, 3600)
_STEP = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """One registry of its own, so that two servers in one process do not mix."""

    def __init__(self) -> None:
        self.registry = here = CollectorRegistry()
        self.accepted = Counter("armillary_jobs_accepted", "Jobs stored.", ["kind"], registry=here)
        self.ended = Counter("armillary_jobs_ended", "Jobs that ended, by how.", ["status"], registry=here)
        self.refused = Counter("armillary_requests_refused", "Refused requests.", ["status"], registry=here)
        self.waiting = Gauge("armillary_jobs_waiting", "Jobs in the queue.", registry=here)
        self.running = Gauge("armillary_jobs_running", "1 while a job runs.", registry=here)
        self.ready = Gauge("armillary_engine_ready", "1 while every rank is ready.", registry=here)
        self.restarts = Counter("armillary_engine_restarts", "Restarts of the ranks.", registry=here)
        self.memory = Gauge("armillary_rank_memory_bytes", "Memory of a rank.", ["rank"], registry=here)
        self.weights = Gauge("armillary_rank_weights_bytes", "Weights on a rank.", ["rank"], registry=here)
        self.run_seconds = Histogram(
            "armillary_job_seconds", "From a job's start to its file.", buckets=_LONG, registry=here
        )
        self.wait_seconds = Histogram(
            "armillary_job_wait_seconds", "From a job's storing to its start.", buckets=_LONG, registry=here
        )
        self.step_seconds = Histogram(
            "armillary_step_seconds", "One denoising step.", buckets=_STEP, registry=here
        )

    def text(self) -> bytes:
        return generate_latest(self.registry)
