"""Sections of a run that trains a model that draws."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from burnish.options.shared import (
    Count,
    DenoisingSteps,
    Guidance,
    Pixels,
    Positive,
    SomeGuidance,
    StepOptions,
    Whole,
)
from burnish.registry import options


@options
class LoraOptions:
    """Low-rank adapters. The reference is the model with them switched off."""

    rank: Annotated[int, Field(ge=1, le=2**16)] = 32
    """Rank of each adapter."""
    alpha: Positive | None = None
    """Scale of the adapters is alpha / rank; null means alpha = 2 x rank, as in Flow-GRPO."""
    targets: list[str] | None = None
    """Endings of the names of the linear layers that get an adapter, one that matches nothing is an error; null takes
    those that the field adapts in the model's family."""


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
    """Prompts, one a line: .txt, or .jsonl with prompt, and optionally negative_prompt, answer, data_source. sft reads
    pictures instead, and diffusion_dpo without sampling pairs: .jsonl with image, or chosen and rejected, beside the
    prompt; a folder of pictures with .txt captions; or .safetensors with latents and embedded prompts."""
    val_files: str | None = None
    """Prompts for validation; null validates on the training prompts and says so."""
    train_batch_size: Count = 8
    """Prompts per policy update; or pictures, or pairs."""
    shuffle: bool = True
    """Draw a new order every epoch; false keeps the order of the file."""
    fit: Literal["exact", "centre_crop"] = "exact"
    """Pictures of another size than the run draws: refused, or scaled and cut around their centre."""
    decode_check: bool = True
    """Decode every picture once before the run begins, in parallel, and name the records of broken ones; false
    reads only headers, and a broken one ends the run when its turn comes."""


@options
class SupervisedOptions:
    """Pictures of the user that every optimizer step also learns to imitate, whatever the algorithm."""

    train_files: str
    """Pictures with their prompts: .jsonl with prompt and image, a folder with .txt captions, or .safetensors."""
    coef: Positive = 0.1
    """Weight of their flow-matching loss."""
    batch_size: Count = 8
    """Pictures per optimizer step, each at one noise level from the middle (logit-normal)."""
    time_shift: Positive = 1.0
    """Shift of those levels towards noise."""
    fit: Literal["exact", "centre_crop"] = "exact"
    """Pictures of another size than the run draws: refused, or scaled and cut around their centre."""


@options
class CandidateOptions:
    """The best and the worst few of a larger group."""

    n: Annotated[int, Field(ge=3, le=10**6)]
    """Candidates per prompt; rollout.n of them are kept, half of those the best and half the worst."""
    num_inference_steps: DenoisingSteps | None = None
    """Denoising steps of candidates, without noise between them; the kept ones are drawn again from their own seeds in
    the run's steps, and judged again. null draws candidates as they are learned from, and nothing twice."""


@options
class FilterOptions:
    """What is done about prompts that nothing can be learned from (DAPO's dynamic sampling)."""

    max_num_gen_batches: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Batches that are sampled at most until data.train_batch_size prompts are left; 1 replaces none. An update for
    which nothing is left is skipped."""


@options
class RolloutOptions:
    """How pictures are sampled."""

    n: Count = 8
    """Samples per prompt; algorithms that compare samples need at least 2."""
    candidates: CandidateOptions | None = None
    """Sample more, and learn from the best and the worst rollout.n of each prompt alone; null samples just those."""
    filter_groups: FilterOptions | None = None
    """Leave out prompts whose samples all got the same reward, and draw others in their place; null keeps them."""
    num_inference_steps: DenoisingSteps = 10
    """Denoising steps."""
    guidance_scale: Guidance = 1.0
    """Classifier-free guidance in rollout and training; 1 is none and costs half."""
    guidance_rescale: bool = False
    """Give the guided velocity the norm of the conditional one, per position (true CFG of Qwen-Image)."""
    embedded_guidance: Annotated[float, Field(ge=0, le=1000)] | None = None
    """Guidance scale given to a network that has it as an input (FLUX.1-dev), in rollout and training; null takes the
    pipeline's default, 3.5."""
    height: Pixels | None = None
    """Height of a picture in pixels; null takes the model's own size."""
    width: Pixels | None = None
    """Width of a picture in pixels; null takes the model's own size."""
    schedule: Literal["diffusers", "shift_once"] = "diffusers"
    """Noise levels: as the model's own pipeline in diffusers places them, or linear and shifted once (Flow-Factory,
    DanceGRPO)."""
    shift: Positive | None = None
    """Shift of the schedule towards noise; null takes the value in the model's scheduler configuration."""
    max_sequence_length: Whole | None = None
    """Prompt tokens of the T5 encoder; null takes the pipeline's default. Fewer are faster; longer prompts are
    refused."""
    batch_size: Count = 96
    """Pictures that are denoised in one forward; changes no picture, only speed and memory. On a CPU 4 to 8 thousand
    tokens (pictures x image and text tokens) are fastest."""
    merge_lora: Literal["auto"] | bool = "auto"
    """Fold the adapters into the weights while sampling: a third faster, and in float32 the same pictures to 1e-6.
    In bfloat16 that rounds the adapters, so that another policy samples than the one that learns; auto folds where
    the weights rest in float32."""


@options
class TrainerOptions(StepOptions):
    """How a batch becomes optimizer steps."""

    micro_batch_size: Count = 96
    """Network rows (a sample at one denoising step) per forward; changes no gradient, only speed and memory. On a CPU
    4 to 8 thousand tokens (rows x image and text tokens) are fastest."""


@options
class ValidationOptions:
    """Judging on held-out prompts, always with the same noise."""

    every: Whole = 10
    """Policy updates between validations; 0 validates only before and after."""
    n: Count = 4
    """Pictures per prompt."""
    max_prompts: Count | None = None
    """Use only the first so many prompts; null uses all."""
    reference_guidance: SomeGuidance | None = None
    """Also judge the untrained model at this guidance scale, as a line to compare with; null does not."""
