"""Flags of `vllm serve` that `armillary serve` does not honour, each with what to use instead.

They are known so that none is swallowed and none is called a slip of the pen.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from armillary.cli.options import Flag


@dataclass(frozen=True)
class Foreign(Flag):
    """A flag that is refused, unless it is given one of the `legal` values, which say what is so anyway.
    `help` is what to use instead; without a metavar the flag is a switch, refused unless `so_anyway`."""

    metavar: str | None = "X"
    legal: tuple[str, ...] = ()
    so_anyway: bool = False

    def parameter(self, name: str, panel: str) -> inspect.Parameter:
        spelling = f"--{name.replace('_', '-')}" if len(name) > 2 else f"-{name}"

        def judge(value: Any) -> Any:
            if value and not self.so_anyway and value not in self.legal:
                raise typer.BadParameter(f"{spelling} is not honoured: {self.help}")
            return value

        kind: Any = bool if self.metavar is None else str | None
        option = typer.Option(spelling, metavar=self.metavar, hidden=True, callback=judge)
        return inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=False if self.metavar is None else None,
            annotation=Annotated[kind, option],
        )


_AXES = "use --tensor-parallel-size, --ulysses-degree, --ring-degree, --allgather-degree, --cfg-parallel-size"
_OFFLOAD = "use --enable-layerwise-offload, with --offload-to, --offload-prefetch, --offload-resident-layers"
_VAE = "a large picture is decoded by all ranks, in strips, without a flag"
_NO_QUANTIZATION = "weights are computed with as they are stored, or in --dtype"
_NO_CACHE = "every step is computed; no step cache is used"
_ONE_STAGE = "there is one stage, set by the other flags"
_REQUEST = "send it with the request"

FOREIGN: Mapping[str, Foreign] = {
    "tp": Foreign("use --tensor-parallel-size"),
    "usp": Foreign("use --ulysses-degree"),
    "ring": Foreign("use --ring-degree"),
    "pipeline_parallel_size": Foreign(_AXES, legal=("1",)),
    "data_parallel_size": Foreign("start one server for each copy", legal=("1",)),
    "enable_expert_parallel": Foreign("Cosmos 3 has no experts", None),
    "use_hsdp": Foreign("--tensor-parallel-size splits the weights", None),
    "hsdp_shard_size": Foreign("--tensor-parallel-size splits the weights"),
    "hsdp_replicate_size": Foreign("--tensor-parallel-size splits the weights"),
    "ulysses_mode": Foreign("heads that do not divide are refused; --allgather-degree has no such rule"),
    "ulysses_a2a_permute": Foreign("the exchange has one form", None),
    "vae_patch_parallel_size": Foreign(_VAE),
    "vae_parallel_mode": Foreign(_VAE),
    "vae_use_tiling": Foreign(_VAE, None),
    "vae_use_slicing": Foreign(_VAE, None),
    "vae_fast_path": Foreign(_VAE),
    "text_encoder_tp_size": Foreign("the understanding pathway is split by --tensor-parallel-size"),
    "enable_cpu_offload": Foreign("use --evict, or --enable-layerwise-offload", None),
    "enable_distributed_layerwise_offload": Foreign(_OFFLOAD, None),
    "dlo_use_allgather": Foreign(_OFFLOAD, None),
    "dlo_no_use_allgather": Foreign(_OFFLOAD, None),
    "dlo_resident_layers": Foreign("use --offload-resident-layers"),
    "diffusion_offload_config": Foreign(_OFFLOAD),
    "cpu_offload_gb": Foreign(_OFFLOAD),
    "host_weight_runtime_mode": Foreign(_OFFLOAD),
    "num_weight_load_threads": Foreign("every rank reads its own ranges only"),
    "disable_multithread_weight_load": Foreign("every rank reads its own ranges only", None),
    "enable_broadcast_weight_load": Foreign("every rank reads its own ranges only", None),
    "diffusion_load_format": Foreign("the published layout is read", legal=("default",)),
    "load_format": Foreign("safetensors files are read", legal=("auto", "safetensors")),
    "diffusers_load_kwargs": Foreign("use --dtype and the layout's flags"),
    "diffusers_call_kwargs": Foreign(_REQUEST),
    "download_dir": Foreign("set HF_HOME"),
    "revision": Foreign("download the revision and give its folder"),
    "quantization": Foreign(_NO_QUANTIZATION),
    "diffusion_quantization_config": Foreign(_NO_QUANTIZATION),
    "force_cutlass_fp8": Foreign(_NO_QUANTIZATION, None),
    "diffusion_kv_cache_dtype": Foreign(_NO_QUANTIZATION),
    "cache_backend": Foreign(_NO_CACHE, legal=("none",)),
    "cache_config": Foreign(_NO_CACHE),
    "enable_cache_dit_summary": Foreign(_NO_CACHE, None),
    "enforce_eager": Foreign("nothing is compiled", None, so_anyway=True),
    "diffusion_compile_granularity": Foreign("nothing is compiled"),
    "diffusion_attention_backend": Foreign("attention runs through torch's own kernels"),
    "diffusion_attention_config": Foreign("attention runs through torch's own kernels"),
    "fa_deterministic": Foreign("attention runs through torch's own kernels", None),
    "default_sampling_params": Foreign("what a request leaves out takes the published default of its mode"),
    "flow_shift": Foreign(_REQUEST),
    "boundary_ratio": Foreign("Cosmos 3 has no boundary"),
    "step_execution": Foreign("jobs run one after another", None),
    "request_batch_max_wait_ms": Foreign("jobs run one after another", legal=("0",)),
    "max_num_seqs": Foreign("jobs run one after another; use --max-queue", legal=("1",)),
    "max_model_len": Foreign("a prompt has at most 32000 characters"),
    "max_generated_image_size": Foreign("a side has at most 4096 pixels"),
    "diffusion_streaming_output": Foreign("use GET /v1/videos/{id}/events", None),
    "lora_path": Foreign("merge it into the checkpoint"),
    "deploy_config": Foreign(_ONE_STAGE),
    "stage_overrides": Foreign(_ONE_STAGE),
    "stage_init_timeout": Foreign("use --init-timeout"),
    "custom_pipeline_args": Foreign("the stock Cosmos 3 pipeline is run"),
    "worker_backend": Foreign("ranks are processes of this machine, or torchrun's", legal=("multi_process",)),
    "distributed_executor_backend": Foreign("ranks are processes of this machine, or torchrun's"),
    "omni_heartbeat_timeout": Foreign("use --step-timeout"),
    "batch_timeout": Foreign("use --step-timeout"),
    "no_guardrails": Foreign("no guardrails are run", None, so_anyway=True),
    "gpu_memory_utilization": Foreign("see the start-up table, and the offload flags"),
    "trust_remote_code": Foreign("no code of a checkpoint is run", None),
    "hf_overrides": Foreign("the reasoner is not served; start it beside this server"),
    "async_scheduling": Foreign("the reasoner is not served; start it beside this server", None),
    "mm_encoder_tp_mode": Foreign("the reasoner is not served; start it beside this server"),
    "allowed_media_domains": Foreign("no address is opened; upload the file"),
    "api_server_count": Foreign("one HTTP process serves all", legal=("1",)),
    "ssl_keyfile": Foreign("put a proxy that ends TLS in front"),
    "ssl_certfile": Foreign("put a proxy that ends TLS in front"),
    "root_path": Foreign("put a proxy in front that strips the prefix"),
    "log_stats": Foreign("see GET /metrics", None),
    "enable_sleep_mode": Foreign("stop the server; its jobs stay", None),
    "enable_diffusion_pipeline_profiler": Foreign("see GET /metrics", None),
}
