"""The sections of a run's configuration, apart from the algorithm and the rewards, which bring their own options."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from burnish.registry import options

Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]


@options
class LoraOptions:
    """Low-rank adapters. The reference is the model with them switched off."""

    rank: Count = 32
    """Rank of each adapter."""
    alpha: Positive | None = None
    """Scale of the adapters is alpha / rank; null means alpha = 2 x rank, as in Flow-GRPO."""
    targets: list[str] = Field(
        default_factory=lambda: [
            "attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0",
            "attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj", "attn.to_add_out",
        ]
    )  # fmt: skip
    """Endings of the names of the linear layers that get an adapter; one that matches nothing is an error."""


@options
class ModelOptions:
    """Which network is trained, and how much of it."""

    path: str
    """Directory in diffusers layout, or burnish:NAME for one that ships with Burnish (burnish:quickstart/model)."""
    family: str = "auto"
    """Model family by name; auto reads it from model_index.json."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the network's forward; latents, log-probs and losses are always float32."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the network runs; auto takes a GPU if there is one."""
    lora: LoraOptions | None = None
    """Train low-rank adapters with these options; null trains all weights of the transformer."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""


@options
class DataOptions:
    """Prompts to learn on and prompts to judge by."""

    train_files: str
    """Prompts, one a line: .txt, or .jsonl with prompt, and optionally negative_prompt, answer, data_source."""
    val_files: str | None = None
    """Prompts for validation; null validates on the training prompts and says so."""
    train_batch_size: Count = 8
    """Prompts per policy update."""
    shuffle: bool = True
    """Draw a new order every epoch; false keeps the order of the file."""


@options
class RolloutOptions:
    """How pictures are sampled."""

    n: Count = 8
    """Samples per prompt; algorithms that compare samples need at least 2."""
    num_inference_steps: Count = 10
    """Denoising steps."""
    guidance_scale: Annotated[float, Field(ge=1)] = 1.0
    """Classifier-free guidance in rollout and training; 1 is none and costs half."""
    guidance_rescale: bool = False
    """Give the guided velocity the norm of the conditional one, per position (true CFG of Qwen-Image)."""
    height: Count | None = None
    """Height of a picture in pixels; null takes the model's own size."""
    width: Count | None = None
    """Width of a picture in pixels; null takes the model's own size."""
    schedule: Literal["diffusers", "shift_once"] = "diffusers"
    """Noise levels: as diffusers' pipelines place them, or linear and shifted once (Flow-Factory, DanceGRPO)."""
    shift: Positive | None = None
    """Shift of the schedule towards noise; null takes the value in the model's scheduler configuration."""
    max_sequence_length: Whole | None = None
    """Prompt tokens of the T5 encoder; null takes the pipeline's default. Fewer are faster; longer prompts are
    refused."""
    batch_size: Count = 96
    """Pictures that are denoised in one forward; changes no picture, only speed and memory. On a CPU 4 to 8 thousand
    tokens (pictures x image and text tokens) are fastest."""
    merge_lora: bool = True
    """Fold the adapters into the weights while sampling: the same pictures to 1e-6, a third faster."""


@options
class OptimizerOptions:
    """AdamW and its learning rate."""

    lr: Positive = 3e-4
    """Peak learning rate."""
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.999)
    """Decay of the running mean and of the running square of the gradient."""
    eps: Positive = 1e-8
    """Added to the root of the running square."""
    weight_decay: NonNegative = 0.0
    """Decoupled weight decay."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate after the warm-up: constant, or falling to zero at the last update."""
    warmup_steps: Whole = 0
    """Optimizer steps in which the learning rate rises linearly from zero."""
    max_grad_norm: Positive | None = 1.0
    """Longer gradients are scaled down to this norm; null never clips."""


@options
class TrainerOptions:
    """How a batch becomes optimizer steps."""

    mini_batch_size: Count | None = None
    """Samples per optimizer step; null takes all samples of the update (one step, strictly on-policy)."""
    epochs: Count = 1
    """Passes over the samples of one update."""
    micro_batch_size: Count = 96
    """Network rows (a sample at one denoising step) per forward; changes no gradient, only speed and memory. On a CPU
    4 to 8 thousand tokens (rows x image and text tokens) are fastest."""
    max_skipped_updates: Whole = 3
    """Optimizer steps in a row that a non-finite loss or gradient may skip before the run stops."""


@options
class EmaOptions:
    """A running average of the trained weights, for validation and export."""

    decay: BelowOne = 0.9
    """Weight of the past per optimizer step, reached gradually as min(decay, (1 + n) / (10 + n))."""


@options
class ValidationOptions:
    """Judging on held-out prompts, always with the same noise."""

    every: Whole = 10
    """Policy updates between validations; 0 validates only before and after."""
    n: Count = 4
    """Pictures per prompt."""
    max_prompts: Count | None = None
    """Use only the first so many prompts; null uses all."""
    reference_guidance: Annotated[float, Field(gt=1)] | None = None
    """Also judge the untrained model at this guidance scale, as a line to compare with; null does not."""


@options
class CheckpointOptions:
    """What a killed run can go on from."""

    every: Count = 10
    """Policy updates between checkpoints; one is always written at the end and when a signal asks to stop."""
    keep_last: Count = 2
    """Newest checkpoints that are kept."""
    keep_best: bool = True
    """Also keep the one with the best validation reward."""


@options
class ScoringOptions:
    """Where rewards are computed."""

    processes: Whole = 1
    """Processes of their own that score pictures while others are sampled; 0 scores in the run's own process."""
    timeout: Positive = 300.0
    """Seconds that one reward may take for one batch of pictures; what takes longer counts as missing."""
