"""Options of the vLLM engine; imports no torch, since the command line is checked with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from burnish.options import Count, Positive, Rules, Seconds, Whole
from burnish.registry import options

if TYPE_CHECKING:
    from burnish.config.run import RunConfig
    from burnish.options.language import LanguageLoraOptions

OURS = {
    "model": "model.path",
    "dtype": "model.dtype",
    "max_model_len": "rollout.vllm.max_model_len",
    "enforce_eager": "rollout.vllm.enforce_eager",
    "gpu_memory_utilization": "rollout.vllm.memory_fraction",
    "tensor_parallel_size": "rollout.vllm.tensor_parallel",
    "enable_sleep_mode": "rollout.vllm.sleep",
    "max_num_seqs": "rollout.vllm.max_num_seqs",
}
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # of adapters, that vLLM makes room for
FIXED = (
    "enable_lora", "max_loras", "max_lora_rank",
    "load_format", "logprobs_mode", "worker_extension_cls", "generation_config", "mm_processor_cache_gb",
    "skip_mm_profiling", "disable_log_stats", "mm_device_do_normalize",
    "enable_batch_sharded_sampling",
)  # fmt: skip


@options
class VllmOptions:
    """vLLM as the rollout engine, in its own process and environment."""

    python: str
    """Python executable of the environment with vLLM (docs/speed.md): vllm-env/bin/python."""
    memory_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.4
    """Fraction of a GPU's memory that vLLM may use, weights included; a colocated trainer needs the rest."""
    max_model_len: Count | None = None
    """Most tokens of prompt and response together; null uses the model's limit. Less saves memory."""
    sleep: bool = False
    """Free the GPU's memory during training, for a colocated trainer, until the next weight sync. On GPUs only."""
    max_num_seqs: Count = 256
    """Responses that vLLM decodes at once; the others wait for a place."""
    tensor_parallel: Count = 1
    """Tensor parallel size."""
    devices: str | None = None
    """CUDA_VISIBLE_DEVICES of vLLM; null uses the trainer's."""
    enforce_eager: bool = False
    """Run without CUDA graphs and compilation: starts faster, samples slower."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of vLLM's EngineArgs, by name, such as kv_cache_memory_bytes."""
    tolerance: Positive | None = None
    """Largest mean difference between vLLM's and the trainer's log-probs after a weight sync; more stops the run.
    null is 1e-3 in float32 and 0.1 in bfloat16, times the standard deviation of the log-probs where that is above 1."""
    adapter: Literal["auto", "request", "folded"] = "auto"
    """How a LoRA adapter reaches vLLM: request sends it alone, and vLLM adds it to the model in model.path with every
    request; folded sends all weights with the adapter folded in; auto is request in bfloat16, where folding rounds most
    of an early step off, if the adapter is one that vLLM can read, and folded otherwise."""
    restarts: Whole = 2
    """Restarts of a dead or hung vLLM per job, whose responses are the same afterwards."""
    timeout: Seconds = 300.0
    """Seconds without a heartbeat after which vLLM counts as hung; also the timeout of a weight sync."""

    def contradictions(self, run: RunConfig) -> Rules:
        lora, fire = run.model.lora, run.rollout.fire_temperature
        unread = unreadable(lora) if self.adapter == "request" and lora is not None else ()
        given = {name: OURS.get(name) for name in self.arguments if name in (*OURS, *FIXED)}
        return [
            *(
                (True, f"rollout.vllm.arguments has {name}; {f'set {option} instead' if option else 'remove it'}")
                for name, option in given.items()
            ),
            (
                self.adapter != "auto" and lora is None,
                f"rollout.vllm.adapter is {self.adapter}, but model.lora is null: there is no adapter; remove it",
            ),
            *(
                (True, f"rollout.vllm.adapter is request, but {what}; set rollout.vllm.adapter=folded")
                for what in unread
            ),
            (
                fire is not None,
                f"rollout.fire_temperature is {fire}, but vLLM has one temperature for all tokens; remove it, or "
                "use Burnish's own engine",
            ),
        ]


def sends_adapter(adapter: str, lora: LanguageLoraOptions | None, dtype: str) -> bool:
    """Whether vLLM gets the adapter and not all weights, by the options adapter, model.lora and model.dtype."""
    if adapter == "auto":
        return lora is not None and dtype == "bfloat16" and not any(unreadable(lora))
    return lora is not None and adapter == "request"


def unreadable(lora: LanguageLoraOptions) -> Iterator[str]:
    """Why vLLM can't read an adapter."""
    if lora.dora:
        yield "model.lora.dora is true, which vLLM does not compute"
    if lora.modules_to_save:
        yield f"model.lora.modules_to_save has {lora.modules_to_save[0]}, which vLLM does not replace"
    if lora.vision:
        yield "model.lora.vision is true, and vLLM adapts the language model alone"
    if lora.rank > RANKS[-1]:
        yield f"model.lora.rank is {lora.rank}, and vLLM's highest is {RANKS[-1]}"
