"""Configuration sections of language and vision-language models (task language)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from burnish.options import (
    ALWAYS,
    SAMPLED,
    SCORED,
    Batch,
    BelowOne,
    CommonValidationOptions,
    Count,
    Finite,
    NonNegative,
    OptimizerOptions,
    Positive,
    Rate,
    Rules,
    SaveOptions,
    StepOptions,
    SupervisedOptions,
    Temperature,
    TemperatureOrGreedy,
    Tokens,
    Whole,
)
from burnish.options.data import FilterOptions, OrderOptions, RecordOptions
from burnish.options.model import CommonModelOptions, LoraOptions
from burnish.options.vllm import VllmOptions
from burnish.registry import MayChange, ReadIf, options
from burnish.utils.addresses import secret_in

if TYPE_CHECKING:
    from burnish.config.run import RunConfig

DRAWN = ReadIf("temperature", why="temperature is 0, which always takes the likeliest token; raise it")
# validations and suites sample always
ASKED = ReadIf(lambda section, run: section is not getattr(run, "rollout", None) or run.online, why=SAMPLED.why)


@options
class LanguageLoraOptions(LoraOptions):
    """LoRA adapters. The reference policy is the model with the adapters disabled."""

    vision: Annotated[bool, ReadIf("targets", None, why="targets are given; list layers of the vision tower there")] = (
        False
    )
    """Also adapt every linear layer of the vision tower and its projector."""
    modules_to_save: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    """Suffixes of the names of modules that are trained in full beside the adapters and saved with them: lm_head,
    embed_tokens, norm. They get no adapters."""


@options
class LanguageModelOptions(CommonModelOptions):
    """Which model is trained, and which of its weights."""

    tokenizer: str | None = None
    """Directory, or org/name or org/name@REVISION on the hub, of a tokenizer in the place of the model's own, with its
    chat template, and its processor if there is one. It is checked against the model's vocabulary, and exported with
    the weights."""
    chat_template: str | None = None
    """Chat template (Jinja) in the place of the tokenizer's own: a file, or the template itself."""
    lora: LanguageLoraOptions | None = None
    """Train low-rank adapters with these options; null trains all weights that are not frozen."""
    attention: Literal["auto", "sdpa", "eager", "flash_attention_2", "flash_attention_3", "flex_attention"] = "auto"
    """Attention implementation by transformers' names; all but auto are compared with sdpa at the start, and pad rows.
    auto is Burnish's own attention over packed sequences where a model allows it, else sdpa."""
    freeze: list[str] = Field(default_factory=list)
    """Parameters that are not trained: prefixes of their names, or patterns with * (model.visual*). One that matches
    nothing is an error."""
    router_aux_loss_coef: NonNegative = 0.0
    """Weight of the load balancing loss of a mixture of experts, in the policy and in a critic with a trunk of its own;
    0 disables it. It is that of micro-batches, weighted with their tokens. Dense models have none."""


@options
class ImageTokenModelOptions(LanguageModelOptions):
    """Which unified model learns to draw, and which of its weights."""


@options
class SamplingOptions:
    """Sampling parameters."""

    temperature: TemperatureOrGreedy = 1.0
    """Divides the logits, in sampling and in the log-probs of training; 0 is greedy decoding."""
    top_k: Annotated[Whole, DRAWN, ASKED] = 0
    """Sample from the N most likely tokens; 0 samples from all."""
    top_p: Annotated[float, Field(gt=0, le=1), DRAWN, ASKED] = 1.0
    """Nucleus sampling: sample from the most likely tokens that together have this probability; 1 samples from all."""
    min_p: Annotated[BelowOne, DRAWN, ASKED] = 0.0
    """Drop tokens below this fraction of the most likely token's probability; 0 drops none."""


@options
class LanguageRolloutOptions(SamplingOptions):
    """How responses are sampled, and by whom."""

    n: Annotated[Count, ReadIf("grouped", why="{run.algorithm.name} learns from {run.holds} that are given")] = 8
    """Responses per prompt, sampled or with scores; algorithms that compare responses need at least 2."""
    temperature: Temperature = 1.0
    """Divides the logits, in sampling and in the log-probs of training."""
    max_new_tokens: Annotated[Tokens, ALWAYS] = 128
    """Most tokens of a response; a longer one is truncated."""
    min_new_tokens: Annotated[Whole, SAMPLED] = 0
    """Fewest tokens of a response."""
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100), SAMPLED] = 1.0
    """Divides the logits of tokens that occurred before; 1 disables it."""
    stop: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    """Stop strings, in addition to the model's end-of-sequence tokens."""
    fire_temperature: Annotated[Temperature | None, SAMPLED] = None
    """FIRE sampling: temperature of a response's first token, higher than the others'; null uses the same for all."""
    router_replay: Annotated[bool, SAMPLED] = False
    """Mixtures of experts: the policy's log-probs use the experts that the sampler chose for each token (R3, Ma et al.
    2025, arXiv:2510.11370), as rounding makes routers choose others. Weights of experts are computed anew."""
    filter_groups: Annotated[FilterOptions | None, SAMPLED] = None
    """Drop prompts whose responses all have the same reward, and sample others instead (DAPO's dynamic sampling); null
    keeps them."""
    save: Annotated[SaveOptions | None, MayChange(), SAMPLED] = None
    """Keep samples of training as files, to look at or to learn from (burnish pairs); null keeps none."""
    batch_size: Annotated[Batch, MayChange()] = "auto"
    """Responses that are decoded at once; changes no response, only speed and memory. auto: on a GPU the largest number
    up to 256 that the memory forecast has room for, on a CPU 256."""
    engine: Literal["burnish", "vllm"] = "burnish"
    """Who samples: the trainer's own weights in its own process, or vLLM in an environment of its own."""
    vllm: Annotated[VllmOptions | None, SCORED] = None
    """Options of engine=vllm."""


@options
class ImageTokenRolloutOptions(LanguageRolloutOptions):
    """How images are sampled token by token, and by whom."""

    max_new_tokens: Annotated[Tokens, ALWAYS] = 576
    """Tokens of an image, as the model's config.json has them: vision_config.num_image_tokens."""


@options
class LanguageTrainerOptions(StepOptions):
    """Optimizer steps of an update."""

    rollouts_per_update: Count = 1
    """Rollouts (data.train_batch_size prompts each, sampled with the same weights) per policy update."""
    micro_batch_tokens: Annotated[Batch, MayChange()] = "auto"
    """Tokens per forward pass, prompts and images included; changes no gradient, only speed and memory. auto: on a GPU
    the largest number up to 16,384 that the memory forecast has room for, on a CPU 4,096."""
    layout: Literal["auto", "padded", "packed", "shared"] = "auto"
    """Layout of a forward pass: padded; packed without padding; shared, which computes a group's prompt once; auto
    chooses the cheapest. Gradients differ only by rounding, so in bfloat16 one layout is used for an update."""


@options
class CriticOptimizerOptions(OptimizerOptions):
    """The optimizer of a value network."""

    lr: Rate = 1e-3


@options
class CriticOptions:
    """Value network, for algorithms that need one."""

    trunk: Literal["own", "shared"] = "own"
    """own: a separate network that starts as a copy of the policy (with LoRA, separate adapters); shared: a value head
    on the policy's hidden states."""
    detach: Annotated[bool, ReadIf("trunk", "shared")] = True
    """shared: the value loss trains only the value head, not the policy."""
    optimizer: CriticOptimizerOptions = Field(default_factory=CriticOptimizerOptions)
    """Optimizer of the critic."""
    warmup_updates: Whole = 0
    """First N policy updates train only the critic; the policy is frozen."""


@options
class LanguageValidationOptions(CommonValidationOptions, SamplingOptions):
    """Validation on held-out prompts, always with the same random numbers."""

    n: Count = 1
    """Responses per prompt."""


@options
class LanguageSupervisedOptions(SupervisedOptions):
    """Auxiliary supervised loss (PTX): every optimizer step also trains on these responses, whatever the algorithm."""

    coef: Positive = 0.05
    batch_size: Count = 32


@options
class LanguageDataOptions(OrderOptions, RecordOptions):
    """Questions for training and validation, with their images and right answers."""

    train_files: str | list[str]
    """Records: .jsonl, .json (a list), .csv, .tsv, .parquet, .txt (a question a line), a folder of the datasets
    library, a data set of the hub as org/name@split, or code of yours as file.py:NAME; lists are concatenated, or mixed
    by data.mix."""
    videos_key: str | None = None
    """Key of the videos; null looks for videos and video."""
    audios_key: str | None = None
    """Key of the sounds; null looks for audios and audio."""
    min_pixels: Count | None = None
    """Fewest pixels of an image (width x height): smaller ones are enlarged before the model's processor sees them;
    null leaves that to the processor."""
    max_pixels: Count | None = None
    """Most pixels of an image: larger ones are made smaller, which saves vision tokens; null leaves it to the
    processor."""
    video_fps: Positive | None = None
    """Frames per second that are taken of a video; null leaves the choice of frames to the processor."""
    video_max_frames: Count | None = None
    """Most frames that are taken of a video, evenly spaced; null sets no limit of its own."""
    video_max_pixels: Count | None = None
    """Most pixels of a frame; null leaves it to the processor."""
    response_key: Annotated[
        str | None,
        ReadIf(lambda section, run: not run.online or run.supervised is not None, why="this run reads no responses"),
    ] = None
    """Key of the response in demonstrations and judgements; null looks for response, completion, output."""
    system_prompt: str | None = None
    """System message of questions that have none; null adds none."""
    train_batch_size: Count = 32
    """Prompts per rollout."""
    max_prompt_length: Tokens | None = None
    """Longest question in tokens, images included; null sets no limit. Nothing is truncated."""
    overlong: Literal["filter", "error"] = "error"
    """What to do with longer ones: filter leaves them out with a warning, error refuses to start."""
    workers: Annotated[int, Field(ge=0, le=256), MayChange()] = 0
    """Processes beside each one that samples or learns from data, which decode and process images, videos and sounds
    ahead of their use; numbers stay the same. Each needs about 0.5 GiB. 0 reads them where they are used."""

    def contradictions(self, run: RunConfig) -> Rules:
        return [
            *super().contradictions(run),
            (
                self.max_pixels is not None and (self.min_pixels or 0) > self.max_pixels,
                f"data.min_pixels is {self.min_pixels}, but data.max_pixels is {self.max_pixels}; swap them",
            ),
        ]


@options
class TokenTeacher:
    """A network to learn from: a model, a server, or the policy itself with a prompt of its own."""

    path: str | None = None
    """Directory in transformers layout, or org/name or org/name@REVISION of the Hugging Face hub; null is the policy
    itself."""
    url: str | None = None
    """Address of a server in place of path, http://HOST:PORT/v1: one that speaks OpenAI's protocol and returns
    prompt_logprobs, as vLLM does. It is sent tokens, so it has to serve a model with the student's tokenizer, and it
    sees no images."""
    served_as: Annotated[str | None, ReadIf("url")] = None
    """Name of the model on that server; null takes the first that it lists."""
    token_variable: Annotated[str | None, ReadIf("url")] = None
    """Environment variable with a token for the server's Authorization header; null sends none. The token itself is not
    an option, so that it is neither logged nor saved."""
    weights: Annotated[Literal["current", "initial"], ReadIf("is_policy", why="this teacher has a path or a url")] = (
        "current"
    )
    """Without path and url: the policy as it is, without gradient, or as it was before training."""
    update_rate: Annotated[BelowOne, ReadIf("weights", "initial")] = 0.0
    """weights=initial: share of the policy that these weights take in after each update, so that they follow it slowly
    (EMA); 0 leaves them as they are."""
    prompt_key: str | None = None
    """Key of a prompt that this teacher reads in place of the question, with the answer, a hint or feedback in it; dots
    lead into nested objects. It has to be among data.extra_keys. null reads the student's own prompt."""
    solution: Finite | None = None
    """This teacher also reads another response to the prompt with at least this reward, of the same update (SDPO); null
    shows it none."""
    feedback: bool = False
    """Where there is no solution, this teacher also reads what the rewards note about the very response."""
    shared_weight: Annotated[float, Field(ge=0, le=1)] | None = None
    """algorithm=gold: weight of the divergence over the tokens that student and teacher both have, and 1 less this of
    the distance of the others; null takes their share of the teacher's tokens."""
    label: str | None = None
    """Only for prompts with this label (data.label_key); null is for all."""
    weight: Positive = 1.0
    """Weight of its loss."""

    @property
    def is_policy(self) -> bool:
        """Whether it is the policy itself."""
        return self.path is None and self.url is None

    @property
    def reads_more(self) -> bool:
        """Whether it reads what an update has found out about a prompt; it teaches nothing where that is nothing."""
        return self.solution is not None or self.feedback

    def contradictions(self, run: RunConfig) -> Rules:
        held = secret_in(self.url or "")
        return [
            (self.path is not None and self.url is not None, "path and url are given; a teacher has one of them"),
            (held, f"url contains {held}, which would be saved; use token_variable"),
            (
                self.url is not None and not held and not self.url.startswith(("http://", "https://")),
                f"url is {self.url}; it must begin with http:// or https://",
            ),
            (
                self.prompt_key is not None and self.reads_more,
                "prompt_key replaces the question, and solution and feedback add to it; leave one of them out",
            ),
            (
                self.is_policy and self.weights == "current" and self.prompt_key is None and not self.reads_more,
                "weights is current, and without path, url, prompt_key and solution this teacher is the student "
                "itself, from which nothing can be learned; give one of them, or weights: initial",
            ),
        ]
