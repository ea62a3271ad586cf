"""Sections of a run that trains a model that sees, or one that only reads."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from burnish.options.flow import FilterOptions, LoraOptions, ModelOptions
from burnish.options.shared import (
    BelowOne,
    Count,
    NonNegative,
    OptimizerOptions,
    Positive,
    StepOptions,
    Temperature,
    TemperatureOrGreedy,
    Tokens,
    Whole,
)
from burnish.registry import options


@options
class LanguageLoraOptions(LoraOptions):
    """Low-rank adapters. The reference is the model with them switched off."""

    targets: list[str] | None = None
    """Endings of the names of the linear layers that get an adapter, wherever they are; one that matches nothing is an
    error. null takes the projections of attention and MLP in the language model."""
    vision: bool = False
    """Adapt every linear layer of the vision tower and of what leads from it to the language model, too."""

    @model_validator(mode="after")
    def _vision_is_read(self) -> Self:
        if self.vision and self.targets is not None:
            raise ValueError("vision is never read when targets are given; name layers of the tower among them")
        return self


@options
class LanguageModelOptions(ModelOptions):
    """Which network is trained, and how much of it."""

    path: str
    """Directory in transformers layout, or burnish:NAME for one that ships with Burnish."""
    family: str = "auto"
    """Model family by name; auto reads it from config.json."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the network's forward; log-probs and losses are always float32."""
    lora: LanguageLoraOptions | None = None
    """Train low-rank adapters with these options; null trains all weights that are not frozen."""
    freeze: list[str] = Field(default_factory=list)
    """Parts that are not trained: beginnings of parameter names, or patterns with * (model.visual*). One that matches
    nothing is an error."""
    router_aux_loss_coef: NonNegative = 0.0
    """Weight of the load balancing loss of a mixture of experts, whose use is counted in a further forward pass; 0
    does without. Dense models have none."""


@options
class SamplingOptions:
    """How responses are drawn from the policy."""

    temperature: TemperatureOrGreedy = 1.0
    """Divides the logits, in sampling and in the log-probs of training alike; 0 always takes the likeliest token."""
    top_k: Whole = 0
    """Draw from the so many likeliest tokens; 0 draws from all."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Draw from the likeliest tokens that together have this probability; 1 draws from all."""
    min_p: BelowOne = 0.0
    """Leave out tokens below this share of the likeliest one's probability; 0 leaves out none."""


@options
class LanguageRolloutOptions(SamplingOptions):
    """How responses are sampled."""

    n: Count = 8
    """Responses per prompt; algorithms that compare responses need at least 2."""
    temperature: Temperature = 1.0
    """Divides the logits, in sampling and in the log-probs of training alike."""
    max_new_tokens: Tokens = 128
    """Longest response; one that is longer is cut and counts as truncated."""
    min_new_tokens: Whole = 0
    """No response ends before so many tokens."""
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] = 1.0
    """Divides the logits of tokens that were there before; 1 is none."""
    stop: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    """Texts that end a response, besides the model's own end tokens."""
    fire_temperature: Temperature | None = None
    """FIRE sampling: the first token of a response is drawn at this higher temperature; null draws it like the rest."""
    filter_groups: FilterOptions | None = None
    """Leave out prompts whose responses all got the same reward, and ask others in their place (DAPO's dynamic
    sampling); null keeps them."""
    batch_size: Count = 256
    """Responses that are decoded at once; changes no response, only speed and memory."""


@options
class LanguageTrainerOptions(StepOptions):
    """How a batch becomes optimizer steps."""

    mini_batch_size: Count | None = None
    """Responses per optimizer step; null takes all responses of the update (one step, strictly on-policy)."""
    epochs: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Passes over the responses of one update."""
    rollouts_per_update: Count = 1
    """Rollouts (data.train_batch_size prompts each, sampled with the same weights) that one policy update learns
    from."""
    micro_batch_tokens: Count = 4096
    """Tokens per forward, prompts and pictures included; changes no gradient, only speed and memory."""
    layout: Literal["auto", "padded", "packed", "shared"] = "auto"
    """How responses lie in a forward: padded, packed without padding, or behind the prompt that a group shares; auto
    takes what costs least. Changes no gradient but by rounding, so in bfloat16 all forwards of an update have one."""


@options
class CriticOptions:
    """The network that predicts rewards to come, for algorithms that need one."""

    trunk: Literal["own", "shared"] = "own"
    """A network of its own that starts as a copy of the policy (its own adapters with LoRA), or a head on the
    policy's states."""
    detach: bool = True
    """shared: the value loss trains the head alone, not the policy's trunk."""
    optimizer: OptimizerOptions = Field(default_factory=lambda: OptimizerOptions(lr=1e-3))
    """AdamW of the critic and its learning rate."""
    warmup_updates: Whole = 0
    """Policy updates in which only the critic learns, and the policy is frozen."""

    @model_validator(mode="after")
    def _detach_is_read(self) -> Self:
        if self.trunk == "own" and not self.detach:
            raise ValueError("detach is never read when trunk is own; leave it out, or take trunk=shared")
        return self


@options
class LanguageValidationOptions(SamplingOptions):
    """Judging on held-out questions, always with the same random numbers."""

    every: Whole = 10
    """Policy updates between validations; 0 validates only before and after."""
    n: Count = 1
    """Responses per question."""
    max_prompts: Count | None = None
    """Use only the first so many questions; null uses all."""


@options
class PtxOptions:
    """Responses of the user that every optimizer step also learns to imitate, whatever the algorithm (PTX)."""

    train_files: str | list[str]
    """Records with responses, or conversations, with or without pictures; read by the keys of data."""
    coef: Positive = 0.05
    """Weight of their negative log-likelihood, a mean over the tokens of the responses."""
    batch_size: Count = 32
    """Responses per optimizer step."""


@options
class LanguageDataOptions:
    """Questions for training and validation, with their pictures and right answers."""

    train_files: str | list[str]
    """Records: .jsonl, .json (a list), .parquet, or what the datasets library saved to a folder; a list is joined."""
    val_files: str | list[str] | None = None
    """Records for validation; null validates on the training records, with a warning."""
    prompt_key: str | None = None
    """Key of the question, plain text or chat messages; null looks for prompt, messages, question, problem, query.
    Dots lead into nested objects (extra_info.question)."""
    images_key: str | None = None
    """Key of the pictures; null looks for images and image."""
    videos_key: str | None = None
    """Key of the videos; null looks for videos and video."""
    unmarked: Literal["first", "last", "error"] = "first"
    """Position of pictures and videos in records without placeholders: before the first user message's text, as in
    TRL's data sets, or after it; error refuses such records."""
    answer_key: str | None = None
    """Key of the right answer; null looks for answer, solution, ground_truth, reward_model.ground_truth, reference,
    target."""
    response_key: str | None = None
    """Key of the response in demonstrations and judgements; null looks for response, completion, output."""
    label_key: str | None = None
    """Key of the label that chooses the rewards of a question; null reads label where that is text."""
    extra_keys: list[str] = Field(default_factory=lambda: ["extra_info"])
    """Further keys, which rewards read as prompt.info."""
    system_prompt: str | None = None
    """System message of questions that have none; null adds none."""
    train_batch_size: Count = 32
    """Prompts per rollout."""
    shuffle: bool = True
    """Shuffle the records anew every epoch; false keeps their order."""
    max_prompt_length: Tokens | None = None
    """Longest question in tokens, pictures included; null sets no limit. Nothing is truncated."""
    overlong: Literal["filter", "error"] = "error"
    """What to do with longer ones: filter leaves them out with a warning, error refuses to start."""
    decode_check: bool = True
    """Decode every picture and video once before the run, in parallel, and name the records of broken ones; false
    reads headers only, and a broken one ends the run when it is first used."""
