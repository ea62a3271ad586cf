"""Options of vLLM as an engine; free of torch, because a command line is checked with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field

from burnish.options.shared import Count, Positive, Seconds, Whole
from burnish.registry import options
from burnish.utils.errors import UserError

OURS = {
    "model": "model.path",
    "dtype": "model.dtype",
    "max_model_len": "rollout.vllm.max_model_len",
    "enforce_eager": "rollout.vllm.enforce_eager",
    "gpu_memory_utilization": "rollout.vllm.memory_fraction",
    "kv_cache_memory_bytes": "rollout.vllm.kv_cache_gb",
    "tensor_parallel_size": "rollout.vllm.tensor_parallel",
    "enable_sleep_mode": "rollout.vllm.sleep",
    "max_num_seqs": "rollout.batch_size",
}
FIXED = (
    "load_format", "logprobs_mode", "worker_extension_cls", "generation_config", "mm_processor_cache_gb",
    "skip_mm_profiling", "disable_log_stats", "mm_device_do_normalize",
)  # fmt: skip


@options
class VllmOptions:
    """vLLM, which samples in a process and an environment of its own."""

    python: str
    """Python of the environment that vLLM is installed in (docs/vllm.md): vllm-env/bin/python."""
    memory_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.4
    """Part of a GPU's memory that vLLM may take, weights included; the trainer needs the rest where both share it."""
    kv_cache_gb: Positive | None = None
    """GiB for keys and values; null takes what memory_fraction leaves."""
    max_model_len: Count | None = None
    """Tokens of the longest prompt and response together; null takes the model's own limit. Less saves memory."""
    sleep: bool = False
    """Give the GPU's memory back while the policy learns, for a trainer on the same GPU: weights wait in the CPU's
    memory until the next ones are published. On GPUs only."""
    tensor_parallel: Count = 1
    """GPUs that share each layer."""
    devices: str | None = None
    """GPUs that vLLM sees, as CUDA_VISIBLE_DEVICES names them; null shows it those that the trainer sees."""
    enforce_eager: bool = False
    """Run without CUDA graphs and compilation: starts at once, samples slower."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of vLLM's EngineArgs, by their names there."""
    tolerance: Positive | None = None
    """Largest mean difference between vLLM's log-probs and the trainer's after a publication; more stops the run.
    null is 1e-3 in float32 and 0.1 in bfloat16."""
    restarts: Whole = 2
    """Times that a vLLM that died or hung is started again for a job, whose responses come out the same."""
    start_timeout: Seconds = 1200.0
    """Seconds until vLLM must be ready."""
    timeout: Seconds = 300.0
    """Seconds without any sign of life after which vLLM counts as hung; a publication may take as long."""

    def __post_init__(self) -> None:
        for name in self.arguments:
            if name in OURS:
                raise UserError(f"rollout.vllm.arguments has {name}, which {OURS[name]} decides; set it there")
            if name in FIXED:
                raise UserError(f"rollout.vllm.arguments has {name}, which Burnish needs as it sets it; leave it out")

    def complaints(self, *, fire_temperature: float | None) -> Iterator[str]:
        """What of the sampling vLLM can't do."""
        if fire_temperature is not None:
            yield (
                f"rollout.fire_temperature is {fire_temperature}, but vLLM has one temperature for all tokens; "
                "sample with Burnish's own engine, or leave it out"
            )
