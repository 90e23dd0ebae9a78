"""Flags of `vllm serve` that `armillary serve` does not honour, each with what to use instead.

They are known so that none is swallowed and none is called a slip of the pen. Those that ask for what is so
anyway are taken, and listed in the help as such.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from armillary.cli.options import Flag
from armillary.errors import Problem

TAKEN = "Taken for vLLM's sake: it is so anyway"
"""The panel of the help."""


@dataclass(frozen=True)
class Foreign(Flag):
    """A flag that is refused, unless it is given one of the `legal` values, which say what is so anyway.
    `help` is what to use instead; without a metavar the flag is a switch, refused unless `so_anyway`."""

    metavar: str | None = "X"
    legal: tuple[str, ...] = ()
    so_anyway: bool = False

    def parameter(self, name: str, panel: str) -> inspect.Parameter:
        """The keyword parameter that typer makes the flag from; shown in the help where it can be taken."""
        kind: Any = bool if self.metavar is None else str | None
        option = typer.Option(
            spelling(name),
            help=self.help,
            metavar="|".join(self.legal) or self.metavar or " ",
            hidden=not (self.so_anyway or self.legal),
            rich_help_panel=panel,
        )
        return inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=False if self.metavar is None else None,
            annotation=Annotated[kind, option],
        )

    def takes(self, value: str | bool | None) -> bool:
        """Whether a value changes nothing: the flag was not given, or it says what is so anyway."""
        return value is None or value is False or self.so_anyway or value in self.legal


def spelling(name: str) -> str:
    """The flag of a parameter: short ones are vLLM's abbreviations, with one dash."""
    return f"--{name.replace('_', '-')}" if len(name) > 2 else f"-{name}"


def foreign_problems(flags: Mapping[str, Any]) -> Iterator[Problem]:
    """One for each flag that was given and is not honoured."""
    for name, flag in FOREIGN.items():
        if not flag.takes(flags[name]):
            only = f"only {' or '.join(flag.legal)} is taken; " if flag.legal else ""
            yield Problem("foreign-flag", f"{spelling(name)} is not honoured", f"{only}{flag.help}")


_AXES = "use --tensor-parallel-size, --ulysses-degree, --ring-degree, --allgather-degree, --cfg-parallel-size"
_OFFLOAD = "use --enable-layerwise-offload, with --offload-to, --offload-prefetch, --offload-resident-layers"
_VAE = "a large picture is decoded by all ranks, in strips, without a flag"
_NO_QUANTIZATION = "weights are computed with as they are stored, or in --dtype"
_NO_CACHE = "every step is computed; no step cache is used"
_ONE_STAGE = "there is one stage, set by the other flags"
_REQUEST = "send it with the request"
_ONE_LOG = (
    "the log has one form: JSON lines on standard error, refused requests and those that change something"
)
_PROXY = "put a proxy in front that does it"
_TORCHRUN = "start the same command with torchrun on each machine"

FOREIGN: Mapping[str, Foreign] = {
    "model": Foreign("give it as the first word"),
    "config": Foreign("write the flags on the command line"),
    "tp": Foreign("use --tensor-parallel-size"),
    "pp": Foreign(_AXES, legal=("1",)),
    "dp": Foreign("start one server for each copy", legal=("1",)),
    "ep": Foreign("Cosmos 3 has no experts", None),
    "q": Foreign(_NO_QUANTIZATION),
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
    "dlo_host_registration_limit_gib": Foreign(_OFFLOAD),
    "host_weight_runtime_root": Foreign(_OFFLOAD),
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
    "diffusion_kv_cache_skip_steps": Foreign(_NO_QUANTIZATION),
    "diffusion_kv_cache_skip_layers": Foreign(_NO_QUANTIZATION),
    "cache_backend": Foreign(_NO_CACHE, legal=("none",)),
    "cache_config": Foreign(_NO_CACHE),
    "enable_cache_dit_summary": Foreign(_NO_CACHE, None),
    "enforce_eager": Foreign("nothing is compiled", None, so_anyway=True),
    "diffusion_compile_granularity": Foreign("nothing is compiled"),
    "diffusion_compile_dynamic": Foreign("nothing is compiled", None),
    "no_diffusion_compile_dynamic": Foreign("nothing is compiled", None, so_anyway=True),
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
    "diffusion_streaming_output": Foreign("use GET /v1/videos/{id}/events", None),
    "lora_path": Foreign("merge it into the checkpoint"),
    "lora_backend": Foreign("merge it into the checkpoint"),
    "lora_scale": Foreign("merge it into the checkpoint"),
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
    "trust_remote_code": Foreign("no code of a checkpoint is run", None, so_anyway=True),
    "hf_overrides": Foreign("the reasoner is not served; start it beside this server"),
    "async_scheduling": Foreign("the reasoner is not served; start it beside this server", None),
    "mm_encoder_tp_mode": Foreign("the reasoner is not served; start it beside this server"),
    "allowed_media_domains": Foreign("no address is opened; upload the file"),
    "api_server_count": Foreign("one HTTP process serves all", legal=("1",)),
    "ssl_keyfile": Foreign("put a proxy that ends TLS in front"),
    "ssl_certfile": Foreign("put a proxy that ends TLS in front"),
    "root_path": Foreign("put a proxy in front that strips the prefix"),
    "log_stats": Foreign("see GET /metrics", None),
    "disable_log_stats": Foreign("figures are told by GET /metrics alone", None, so_anyway=True),
    "disable_log_requests": Foreign("no prompt is logged", None, so_anyway=True),
    "enable_log_requests": Foreign("what was asked is told by GET /v1/videos/{id}", None),
    "max_log_len": Foreign("no prompt is logged"),
    "uvicorn_log_level": Foreign(_ONE_LOG),
    "disable_uvicorn_access_log": Foreign(_ONE_LOG, None),
    "disable_access_log_for_endpoints": Foreign(_ONE_LOG),
    "log_config_file": Foreign(_ONE_LOG),
    "allowed_origins": Foreign(_PROXY),
    "allowed_methods": Foreign(_PROXY),
    "allowed_headers": Foreign(_PROXY),
    "allow_credentials": Foreign(_PROXY, None),
    "middleware": Foreign(_PROXY),
    "uds": Foreign("use --host and --port"),
    "ssl_ca_certs": Foreign("put a proxy that ends TLS in front"),
    "ssl_cert_reqs": Foreign("put a proxy that ends TLS in front"),
    "enable_request_id_headers": Foreign("every answer has x-request-id", None, so_anyway=True),
    "disable_fastapi_docs": Foreign("stop /docs in a proxy in front", None),
    "media_io_kwargs": Foreign(_REQUEST),
    "limit_mm_per_prompt": Foreign("a request has one picture or one clip"),
    "video_output_transport": Foreign("frames go to the encoder as they are decoded"),
    "shm_threshold_bytes": Foreign("frames go to the encoder as they are decoded"),
    "chat_template": Foreign("the checkpoint's own is used"),
    "tokenizer": Foreign("the checkpoint's own is used"),
    "hf_token": Foreign("set HF_TOKEN"),
    "swap_space": Foreign(_OFFLOAD),
    "block_size": Foreign("there is no paged cache"),
    "kv_cache_dtype": Foreign(_NO_QUANTIZATION),
    "max_num_batched_tokens": Foreign("jobs run one after another"),
    "compilation_config": Foreign("nothing is compiled"),
    "nnodes": Foreign(_TORCHRUN),
    "node_rank": Foreign(_TORCHRUN),
    "master_addr": Foreign(_TORCHRUN),
    "master_port": Foreign(_TORCHRUN),
    "headless": Foreign(_TORCHRUN, None),
    "omni_master_address": Foreign(_ONE_STAGE),
    "omni_master_port": Foreign(_ONE_STAGE),
    "omni_lb_policy": Foreign(_ONE_STAGE),
    "stage_id": Foreign(_ONE_STAGE),
    "robot_openpi_idle_timeout": Foreign("no robot policy is served"),
    "fastvideo_vsa_topk": Foreign("attention sees every row"),
    "layerwise_num_gpu_layers": Foreign("use --offload-resident-layers"),
    "enable_sleep_mode": Foreign("stop the server; its jobs stay", None),
    "enable_diffusion_pipeline_profiler": Foreign("see GET /metrics", None),
}
