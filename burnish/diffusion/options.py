"""Configuration sections of generators (task flow)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from burnish.options import (
    ALWAYS,
    ON_CPU,
    SAMPLED,
    Batch,
    CommonValidationOptions,
    Count,
    DenoisingSteps,
    Guidance,
    Pixels,
    Positive,
    Rules,
    SaveOptions,
    Solver,
    SomeGuidance,
    StepOptions,
    Whole,
)
from burnish.options.data import FilterOptions, OrderOptions, PromptOptions
from burnish.options.model import CommonModelOptions, Precision, QuantizationOptions
from burnish.registry import MayChange, ReadIf, options

if TYPE_CHECKING:
    from burnish.config.run import RunConfig


@options
class PipelineQuantizationOptions(QuantizationOptions):
    """Frozen weights in fewer bits: the linear layers of the networks' and the text encoders' blocks."""

    text_encoders: Precision | None = None
    """The same for the text encoders, which are frozen in every run; null leaves them as they are."""


@options
class ModelOptions(CommonModelOptions):
    """Which model is trained, and which of its weights."""

    quantization: PipelineQuantizationOptions | None = None
    """Store frozen weights in fewer bits, for small cards; null stores them in dtype."""
    offload: Annotated[bool, MayChange()] = False
    """Keep text encoders and the VAE in CPU memory, and copy them to the GPU while they are used: they leave it when
    the networks that are trained run. With LoRA, these networks' frozen weights leave it in turn, while all prompts of
    a rollout are encoded."""
    attention: Literal[
        "auto",
        "native",
        "_native_math",
        "_native_flash",
        "_native_efficient",
        "_native_cudnn",
        "flash",
        "_flash_3",
        "flex",
        "sage",
        "xformers",
    ] = "auto"
    """Attention backend of the networks, by diffusers' names. All but auto are compared with native at the start, by
    outputs and gradients; auto leaves the choice to diffusers."""

    networks: list[str] | None = None
    """Which parts of the pipeline are trained, by their names in model_index.json; null trains all that predict
    velocities (both experts of Wan 2.2). One may be a part that writes tokens before an image is drawn."""
    vae_tiling: bool = False
    """Decode large images and videos in overlapping tiles: less memory, and slightly other pixels at the seams."""

    def contradictions(self, run: RunConfig) -> Rules:
        text = None if self.quantization is None else self.quantization.text_encoders
        return [
            *super().contradictions(run),
            (self.offload and self.device == "cpu", ON_CPU.format("model.offload")),
            (
                self.offload and run.algorithm.needs().reward_gradients,
                f"model.offload is true, but {run.algorithm.name} follows gradients of rewards through the VAE, which "
                "has to stay on the GPU for that; remove it",
            ),
            (
                self.offload and self.lora is not None and run.rollout.merge_lora is True,
                "model.offload and rollout.merge_lora are true, but frozen weights leave the GPU, which adapters are "
                "merged into; set rollout.merge_lora=auto",
            ),
            (
                self.offload and text not in (None, "fp8_cast"),
                f"model.offload is true and model.quantization.text_encoders is {text}, whose weights can't be copied "
                "back and forth; leave one of them out, or set model.quantization.text_encoders=fp8_cast",
            ),
        ]


@options
class DataOptions(OrderOptions, PromptOptions):
    """Training and validation prompts."""

    train_files: str | list[str]
    """Prompts: .txt, one per line; .jsonl, .json, .csv, .tsv, .parquet, a folder of the datasets library, a data set of
    the hub as org/name@split, or code of yours as file.py:NAME, with prompt and optionally images, negative_prompt,
    answer, data_source; or a folder of images, each with its prompt in a .txt file. sft reads images to imitate
    instead, and offline diffusion_dpo image pairs: records with prompt and image, or chosen and rejected; a folder of
    images with .txt captions. With data.scores records have prompt, image and scores. Lists are concatenated, or mixed
    by data.mix."""
    train_batch_size: Count = 8
    """Prompts (or images, or pairs) per policy update."""
    fit: Annotated[
        Literal["exact", "centre_crop"],
        ReadIf(
            lambda section, run: not run.online or run.supervised,
            why="{run.algorithm.name} learns from prompts, which have no size",
        ),
    ] = "exact"
    """Images whose size differs from the run's resolution: exact refuses them, centre_crop scales and crops them."""


@options
class CandidateOptions:
    """Sample a larger group, and train on its best and worst samples."""

    n: Annotated[int, Field(ge=3, le=10**6)]
    """Candidates per prompt, of which the best and the worst rollout.n / 2 are trained on."""
    num_inference_steps: DenoisingSteps | None = None
    """Denoising steps of candidates, sampled as an ODE; those selected are sampled and scored again with the run's
    own steps and the same seeds. null samples candidates once, with the run's own steps."""

    def contradictions(self, run: RunConfig) -> Rules:
        needs, name, n = run.algorithm.needs(), run.algorithm.name, run.rollout.n
        own, fewer, steps = "rollout.candidates", self.num_inference_steps, run.rollout.num_inference_steps
        shared = needs.recording is not None and needs.recording.shared_noise
        return [
            (
                self.n <= n,
                f"{own}.n is {self.n}, but rollout.n is {n}: all would be kept; raise the one or lower the other",
            ),
            (
                needs.tree,
                f"{own} is given, but {name} learns from complete trees of samples; remove it",
            ),
            (
                fewer is not None and fewer >= steps,
                f"{own}.num_inference_steps is {fewer}, which is no fewer than rollout.num_inference_steps {steps}; "
                "lower it, or null draws nothing twice",
            ),
            (
                fewer is not None and shared,
                f"{own}.num_inference_steps is {fewer}, but {name} starts all samples of a prompt from "
                "the same noise, and only noise on the way tells them apart; null draws candidates with it",
            ),
        ]


@options
class RolloutOptions:
    """How images are sampled."""

    n: Annotated[Count, ReadIf("grouped", why="{run.algorithm.name} learns from {run.finished} that are given")] = 8
    """Samples per prompt (group size), or images with scores of each; algorithms that compare samples need at least
    2."""
    candidates: Annotated[CandidateOptions | None, SAMPLED] = None
    """Sample more, and train on the best and worst rollout.n of each prompt; null trains on all samples."""
    filter_groups: Annotated[FilterOptions | None, SAMPLED] = None
    """Drop prompts whose samples all have the same reward, and sample others instead; null keeps them."""
    num_inference_steps: DenoisingSteps = 10
    """Denoising steps."""
    guidance_scale: Guidance = 1.0
    """Classifier-free guidance scale in rollout and training; 1 disables it and halves the cost."""
    embedded_guidance: Annotated[float, Field(ge=0, le=1000)] | None = None
    """Guidance scale of guidance-distilled models, which take it as an input (FLUX.1-dev), in rollout and training;
    null uses the pipeline's default, 3.5."""
    height: Pixels | None = None
    """Image height in pixels; null uses the model's default."""
    width: Pixels | None = None
    """Image width in pixels; null uses the model's default."""
    num_frames: Count | None = None
    """Frames of a video; null uses the pipeline's default."""
    fps: Positive | None = None
    """Frames per second that a video plays at, and that a pipeline which asks for it is told; null uses the pipeline's
    default, or 16."""
    trajectories: Annotated[Literal["device", "host"], MayChange(), SAMPLED] = "device"
    """Where recorded states of samples wait until they are learned: on the model's device, or in the host's memory,
    each state once, from which every micro-batch takes its own. Several processes always take the latter."""
    call: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of the pipeline's own call, such as {guidance_scale_2: 3.0} for Wan 2.2; in rollout, training
    and validation."""
    solver: Solver = "euler"
    """Steps without noise: Euler's method; Heun's, of second order for two forwards a step; or dpm2m, DPM-Solver++ 2M,
    of second order by the step before, at no cost. The last step is Euler's by all of them."""
    cache_interval: Annotated[Count, SAMPLED] = 1
    """TaylorSeer: run the networks at one in so many steps, and forecast the others from the last two runs; 1 runs them
    at each. They always run at the first two, at the last, and where a step is learned from. Validation samples without
    it."""
    fp8: Annotated[bool, SAMPLED] = False
    """Multiply in fp8 at steps that are not learned from: the linear layers in blocks of the networks that are trained,
    with a scale for each token and each output. It needs an NVIDIA GPU of compute capability 8.9 or more, a second
    copy of these weights in a byte each, and model.compile to be faster. Validation samples without it."""
    schedule: Literal["diffusers", "shift_once"] = "diffusers"
    """Noise schedule: diffusers uses that of the model's pipeline, shift_once is linear and shifted once
    (Flow-Factory, DanceGRPO)."""
    shift: Annotated[float, Field(ge=0.1, le=1000)] | None = None  # float32 has no such levels beyond
    """Timestep shift of the schedule; null uses the model's scheduler configuration."""
    max_sequence_length: Whole | None = None
    """Prompt tokens of the T5 encoder; null uses what the model's model_index.json states (_max_sequence_length), else
    the pipeline's default. Fewer are faster; the end of longer prompts is left out, with a warning."""
    batch_size: Annotated[Batch, MayChange()] = "auto"
    """Images per forward pass in sampling; changes no image, only speed and memory. auto: on a GPU the largest number
    up to 96 that the memory forecast has room for, on a CPU 96. On a CPU 4 to 8 thousand tokens (images x image and
    text tokens) are fastest."""
    save: Annotated[SaveOptions | None, MayChange(), SAMPLED] = None
    """Keep samples of training as files, to look at or to learn from (burnish pairs); null keeps none."""
    merge_lora: Annotated[
        Literal["auto"] | bool,
        ReadIf("model.lora", why="model.lora is null: there are no adapters to fold in; set model.lora.rank=16"),
    ] = "auto"
    """Merge the adapters into the weights for sampling: a third faster, and in float32 the same images to 1e-6. In
    bfloat16 merging rounds the adapters, so that the sampling policy differs from the trained one; auto merges only
    weights that are stored in float32."""


@options
class TrainerOptions(StepOptions):
    """Optimizer steps of an update."""

    micro_batch_size: Annotated[Batch, MayChange()] = "auto"
    """Rows (a sample at one denoising step) per forward pass; changes no gradient, only speed and memory. auto: as of
    rollout.batch_size."""


@options
class ValidationOptions(CommonValidationOptions):
    """Validation on held-out prompts, always with the same noise."""

    n: Count = 4
    """Images per prompt."""
    num_inference_steps: DenoisingSteps | None = None
    """Denoising steps; null takes rollout.num_inference_steps, as the options below take theirs."""
    guidance_scale: Guidance | None = None
    """Classifier-free guidance scale; null takes rollout's."""
    solver: Solver | None = None
    """Solver of the steps; null takes rollout's."""
    height: Pixels | None = None
    """Image height in pixels; null takes rollout's."""
    width: Pixels | None = None
    """Image width in pixels; null takes rollout's."""
    reference_guidance: Annotated[SomeGuidance | None, ALWAYS] = None
    """Also evaluate the untrained model at this guidance scale, as a baseline; null does not."""
