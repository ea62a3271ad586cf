"""Options of models that both tasks share: which weights are trained, in what precision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from burnish.options import Count, Positive, Rules
from burnish.registry import MayChange, ReadIf, known, names, options
from burnish.utils.installed import lacking

if TYPE_CHECKING:
    from burnish.config.run import RunConfig

Precision = Literal["nf4", "int8", "fp8", "fp8_cast"]  # of quantised weights


@options
class LoraOptions:
    """LoRA adapters. The reference policy is the model with the adapters disabled."""

    rank: Annotated[int, Field(ge=1, le=2**16)] = 32
    """LoRA rank."""
    alpha: Positive | None = None
    """LoRA alpha: adapters are scaled by alpha / rank; null is 2 x rank, as in Flow-GRPO."""
    targets: list[str] | None = None
    """Suffixes of the names of linear layers that get an adapter; one that matches nothing is an error. null takes of a
    pipeline all linear layers of attention, of a language model all but those of its head and of routers of experts."""
    exclude: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    """Layers that get none though they are targets: suffixes of their names, or patterns with * (*.layers.0.*). One
    that matches no target is an error."""
    rslora: bool = False
    """Scale adapters by alpha / sqrt(rank) instead of alpha / rank, so that a higher rank learns no slower
    (Kalajdzievski 2023, arXiv:2312.03732)."""
    dora: bool = False
    """Also train the length of each row of an adapted weight (DoRA, Liu et al. 2024, arXiv:2402.09353): often better
    at low ranks, for more time and memory per layer."""
    path: str | None = None
    """Folder of an adapter to go on from, as burnish export, diffusers or peft writes it, or org/name or
    org/name@REVISION on the Hugging Face hub; of the same rank, alpha and targets. null begins with one that changes
    nothing. The reference stays the model without adapters."""


@options
class QuantizationOptions:
    """Frozen weights in fewer bits, under LoRA adapters: the linear layers of a network's blocks."""

    weights: Precision | None = None
    """nf4: 4 bits (bitsandbytes, as in QLoRA); int8, fp8: 8 bits, with a scale per row (torchao); fp8_cast: stored in
    fp8 without a scale, and cast to model.dtype layer by layer (needs no library); null leaves them in model.dtype.
    With int8 and fp8, use model.gradient_checkpointing, or cast weights wait in memory for the backward pass."""
    exclude: Annotated[list[Annotated[str, Field(min_length=1)]], ReadIf("weights")] = Field(default_factory=list)
    """Layers that stay as they are: suffixes of their names, or patterns with * (*.layers.0.*). One that matches none
    is an error."""

    def contradictions(self, run: RunConfig) -> Rules:
        lora, rollout, text = run.model.lora, run.rollout, getattr(self, "text_encoders", None)
        if self.weights is None:
            nothing = "model.quantization is given, but names no weights; set model.quantization.weights=nf4"
            return [(text is None, nothing)]
        what = f"model.quantization.weights is {self.weights}"
        return [
            (
                lora is None,
                f"{what}, but model.lora is null, and all weights are trained; train adapters with model.lora.rank=16",
            ),
            (
                lora is not None and lora.dora,
                f"{what} and model.lora.dora is true, which needs the lengths of rows of plain weights; leave one of "
                "them out",
            ),
            (
                getattr(rollout, "merge_lora", None) is True,
                f"{what} and rollout.merge_lora is true, but nothing can be added to quantised weights; set "
                "rollout.merge_lora=auto, which samples with the adapter beside them",
            ),
            (
                getattr(rollout, "vllm", None) is not None,
                f"{what}, but vLLM is sent weights with the adapters merged into them; set rollout.engine=burnish and "
                "rollout.vllm=null, or leave model.quantization out",
            ),
            (
                run.sharding.offload,
                f"{what} and sharding.offload is true, but quantised weights can't be copied back and forth; leave one "
                "of them out",
            ),
            (
                run.runtime == "ray" and run.pools.rollout is not None,
                f"{what}, but a rollout pool is sent plain weights once at its start; sample on the trainer "
                "(pools.rollout=null), or leave model.quantization out",
            ),
        ]


@options
class CommonModelOptions:
    """Which model is trained, and which of its weights."""

    path: str
    """Directory in the layout of diffusers or transformers, or a language model's GGUF file; org/name downloads that
    model of the Hugging Face hub, org/name@REVISION a branch, tag or commit of it, and a run records the commit, with
    which it resumes; burnish:NAME is one that ships with Burnish (burnish:quickstart/model),
    package:NAME/FILE one inside of an installed Python package."""
    family: str = "auto"
    """What runs the model: auto is Burnish's own, for every pipeline of diffusers and every class of transformers, or a
    plugin's for its class of pipelines; NAME, file.py:Class or package.module:Class is one of yours, or a class of
    pipelines of yours, in place of the one that model_index.json names."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the forward pass; latents, log-probs and losses are always float32."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the model; auto uses a GPU if there is one."""
    lora: LoraOptions | None = None
    """Train low-rank adapters with these options; null trains all weights of the networks."""
    gradient_checkpointing: Annotated[bool | Count, MayChange()] = False
    """Recompute activations in the backward pass, block by block: less memory, about one third slower. A number does so
    in the first N blocks only."""
    float32_matmul_precision: Literal["highest", "high"] = "highest"
    """Products of float32 matrices, such as those of language heads and of model.dtype=float32: high lets a GPU take
    TF32, with 10 bits of mantissa, for the whole process (torch.set_float32_matmul_precision)."""
    compile: bool = False
    """Compile the repeated blocks (torch.compile): minutes at the start, then faster; rounds otherwise."""
    quantization: QuantizationOptions | None = None
    """Store frozen weights in fewer bits, for small cards; null stores them in dtype."""

    def contradictions(self, run: RunConfig) -> Rules:
        attention, ranks = run.model.attention, run.ranks  # each half has backends of its own
        families = [] if self.family == "auto" else names(run.model_kind)  # which imports those of diffusers
        lacks = lacking(attention)
        return [
            (
                self.family != "auto" and not known(run.model_kind, self.family),
                f"model.family is {self.family!r}; remove it, or give one of {', '.join(['auto', *families])}",
            ),
            (
                self.compile and run.sharding.offload,
                "model.compile and sharding.offload are true, but compiled blocks are not shown to work rightly with "
                "weights that come to the GPU block by block; leave one of them out",
            ),
            (
                self.compile and max(run.sharding.context_parallel, run.sharding.parts) > 1,
                "model.compile is true, but sharding.context_parallel, expert_parallel or tensor_parallel splits them, "
                "which is not shown to be right for compiled ones; leave one of them out",
            ),
            (
                attention != "auto" and run.task != "text-to-image" and ranks > 1,
                f"model.attention is {attention}, but the {ranks} processes of pools.train hold the network in shards, "
                "on which it can't be compared with sdpa at the start; remove it",
            ),
            (lacks, f"model.attention={attention} {lacks}"),
            (
                attention == "sage",
                "model.attention is sage, which has no backward pass, so that nothing can be trained with it; use "
                "flash or xformers",
            ),
        ]
