"""Options of models that both tasks share: which weights are trained, in what precision."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from burnish.options import Count, NonNegative, Positive
from burnish.registry import options

Precision = Literal["nf4", "int8", "fp8", "fp8_cast"]  # of quantised weights


@options
class LoraOptions:
    """LoRA adapters. The reference policy is the model with the adapters disabled."""

    rank: Annotated[int, Field(ge=1, le=2**16)] = 32
    """LoRA rank."""
    alpha: Positive | None = None
    """LoRA alpha: adapters are scaled by alpha / rank; null is 2 x rank, as in Flow-GRPO."""
    targets: list[str] | None = None
    """Suffixes of the names of linear layers that get an adapter; one that matches nothing is an error. null uses the
    usual target modules of the model's family: for any pipeline, all linear layers of attention."""
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
    """Folder of an adapter to go on from, as burnish export, diffusers or peft writes it, or org/name on the Hugging
    Face hub; of the same rank, alpha and targets. null begins with one that changes nothing. The reference stays the
    model without adapters."""
    revision: str | None = None
    """Branch, tag or commit of an adapter of the hub; null is its default branch, whose commit a run records."""


@options
class QuantizationOptions:
    """Frozen weights in fewer bits, under LoRA adapters: the linear layers of a network's blocks."""

    weights: Precision | None = None
    """nf4: 4 bits (bitsandbytes, as in QLoRA); int8, fp8: 8 bits, with a scale per row (torchao); fp8_cast: stored in
    fp8 without a scale, and cast to model.dtype layer by layer (needs no library); null leaves them in model.dtype.
    With int8 and fp8, use model.gradient_checkpointing, or cast weights wait in memory for the backward pass."""
    exclude: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    """Layers that stay as they are: suffixes of their names, or patterns with * (*.layers.0.*). One that matches none
    is an error."""


@options
class CommonModelOptions:
    """Which model is trained, and which of its weights."""

    path: str
    """Directory in diffusers layout; org/name downloads that model of the Hugging Face hub; burnish:NAME is one that
    ships with Burnish (burnish:quickstart/model)."""
    revision: str | None = None
    """Branch, tag or commit of a model of the hub; null is its default branch. A run records the commit, and resumes
    with it."""
    family: str = "auto"
    """What runs the model: pipeline runs any pipeline's own code, other names are of plugins; auto takes a plugin's for
    its class of pipelines, else pipeline."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the forward pass; latents, log-probs and losses are always float32."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the model; auto uses a GPU if there is one."""
    lora: LoraOptions | None = None
    """Train low-rank adapters with these options; null trains all weights of the networks."""
    gradient_checkpointing: bool | Count = False
    """Recompute activations in the backward pass, block by block: less memory, about one third slower. A number does so
    in the first N blocks only."""
    float32_matmul_precision: Literal["highest", "high"] = "highest"
    """Products of float32 matrices, such as those of language heads and of model.dtype=float32: high lets a GPU take
    TF32, with 10 bits of mantissa, for the whole process (torch.set_float32_matmul_precision)."""
    compile: bool = False
    """Compile the repeated blocks (torch.compile): minutes at the start, then faster; rounds otherwise."""
    quantization: QuantizationOptions | None = None
    """Store frozen weights in fewer bits, for small cards; null stores them in dtype."""
    cache_gb: NonNegative = 4.0
    """GiB of host memory, in each process, for what prompts were encoded to (embeddings, pixels, latents of images to
    imitate), in the precision of dtype; what was used longest ago makes room. What an update uses is kept whatever its
    size."""
