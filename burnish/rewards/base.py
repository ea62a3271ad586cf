"""What a reward is, and what it may ask for besides samples and prompts. Scoring processes read it: nothing heavy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import itemgetter
from statistics import fmean, median
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from burnish.options import Count, Finite, NonNegative, Positive, Whole
from burnish.registry import Named, ReadIf, options
from burnish.types.media import evenly_spaced
from burnish.types.prompt import Prompt, kinds_of
from burnish.types.samples import Clip, Kind, is_finite, kind
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor


Stream = Literal["video", "audio"]  # of samples that have several
Compared = Literal["samples", "pairs", "groups"]  # what a reward judges: each by itself, two of a prompt, all of them


@dataclass(frozen=True, kw_only=True)
class RewardInputs:
    """Of a batch of samples. Only what a reward asks for is sent to the process that computes it."""

    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # latents, response_ids, by sample
    group: Sequence[int] = ()  # equal for the samples of one prompt; empty: those with the same prompt
    update: int = 0  # the policy update that the samples are for; 0 is validation
    made_up: bool = False  # the samples are made up, to try the rewards: nobody knows what their latents would be

    def select(self, rows: Sequence[int]) -> RewardInputs:
        """Of some of the samples, in that order."""
        columns = {name: [values[row] for row in rows] for name, values in self.columns.items()}
        return replace(self, columns=columns, group=[self.group[row] for row in rows] if self.group else ())

    def only(self, names: Collection[str]) -> RewardInputs:
        """Without the inputs that are not named."""
        return replace(self, columns={name: values for name, values in self.columns.items() if name in names})

    def groups(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        """The rows of each group, in order of their first."""
        groups: dict[object, list[int]] = {}
        for row, prompt in enumerate(prompts):
            groups.setdefault(self.group[row] if self.group else prompt.uid, []).append(row)
        return list(groups.values())


NOTHING = RewardInputs()


def fields_required(rewards: Mapping[str, AnyReward]) -> set[str]:
    """What any of these rewards asks for."""
    return {name for reward in rewards.values() for name in reward.required_fields()}


FRAMES = 8  # of a clip that are scored, or compared, where none are chosen
NOTES = 4  # different notes on the frames of a clip that its own note shows


@dataclass(frozen=True)
class Score:
    """The result of a reward for one sample. A ``value`` of None is missing, never zero."""

    value: float | None
    note: str = ""  # shown to users: the text that was read, or why the value is missing
    numbers: Mapping[str, float] = field(default_factory=dict)  # further ones: logged, never optimised
    applicable: bool = True  # False: the reward doesn't apply to the prompt, which is not the same as missing
    fault: str = ""  # set if the reward failed: the traceback, or what it returned instead of a number
    steps: tuple[tuple[int, float], ...] = ()  # rewards of steps, by the character of the response where each ends
    tokens: tuple[float, ...] = ()  # or of its tokens: of both the sum is part of the value
    answer: str | None = None  # that a response gives, in one normal form, for votes; None where no answers are read


@options
class Schedule:
    """A factor on a reward's weight that changes over the policy updates."""

    points: Annotated[list[tuple[Count, NonNegative]], Field(min_length=1)]
    """Updates with the factor at each: [[1, 0.0], [200, 1.0]] fades a reward in. Before the first and after the last
    one it stays the same, and between two it moves from one factor to the next. Validation always counts with the last
    one, so that validations can be compared."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if any(one >= other for (one, _), (other, _) in pairwise(self.points)):
            raise ValueError(f"points is {self.points}; updates must rise from one to the next")
        if not any(factor for _, factor in self.points):
            raise ValueError("points has no factor above 0: the reward would never count; set weight to 0 instead")
        return self

    def factor(self, update: int) -> float:
        """At a policy update; 0 is a validation."""
        past = bisect_right(self.points, update, key=itemgetter(0)) if update else len(self.points)
        if past in (0, len(self.points)):
            return self.points[max(past - 1, 0)][1]
        (start, before), (end, after) = self.points[past - 1 : past + 1]
        return before + (after - before) * (update - start) / (end - start)


@options
class Gate:
    """A reward that counts only where another one is high enough."""

    by: str
    """Which other reward decides, by its label: format."""
    least: Finite = 1.0
    """From which of its values on the gate is open."""
    otherwise: Finite = 0.0
    """What the reward counts as where the gate is closed, whether it has a value or not."""


@options
class Hold:
    """Samples that are held to the reference more strongly, by the value of a reward. GARDO's gate is ``kl_gate``."""

    below: Finite | None = None
    """Those with a lower value."""
    above: Finite | None = None
    """Those with a higher value."""
    factor: Positive = 10.0
    """What the KL to the reference is multiplied by for them."""

    @model_validator(mode="after")
    def _has_a_side(self) -> Self:
        if self.below is None and self.above is None:
            raise ValueError("below and above are null, so that no sample is held; give one of them")
        return self

    def of(self, value: float) -> float:
        """The factor of a sample with this value, 1 where it is not held; a missing value, NaN, holds none."""
        beyond = (self.below is not None and value < self.below) or (self.above is not None and value > self.above)
        return self.factor if beyond else 1.0


@options
class AnyReward(Named, ABC):
    """Base of all rewards."""

    numbers: ClassVar[tuple[str, ...]] = ()  # names of further numbers that every score with a value has
    judged: ClassVar[str] = "samples"  # its samples, for messages
    has_weights: ClassVar[bool] = False  # it loads a model, so that it is scored in a process of its own
    higher_is_better: ClassVar[bool] = True  # false: a statistic of which neither way is worse
    deterministic: ClassVar[bool] = False  # equal samples of equal prompts have equal values: they are scored once
    reads_prompts: ClassVar[bool] = False  # ``unfit`` depends on more than what ``Prompts.kinds`` tells apart
    # without types, as subclasses have options of these names, or properties
    put_away = False  # its weights leave the GPU while nothing is scored
    endless = ""  # the option by which scoring may never end, which only another process can be ended for
    judges_steps: ClassVar[bool | None] = False  # its scores have values of single steps; None: only the scores tell

    weight: Finite = 1.0
    """Weight in what is optimised; 0 only logs the reward."""
    weight_by: dict[str, Finite] = Field(default_factory=dict)
    """Weights for the prompts of single labels or data sources, by name, in place of weight: {geo3k: 0.5, ocr: 0}. A
    prompt's label counts before its source."""
    schedule: Schedule | None = None
    """Factor of the weight over the policy updates, for curricula; null keeps the weight."""
    cap: Finite | None = None
    """Values above this count as this, so that nothing is gained beyond; null caps nothing. Logs show them uncapped."""
    gate: Gate | None = None
    """Count only where another reward is high enough: accuracy only where the format is kept; null counts always."""
    hold: Hold | None = None
    """Hold samples whose value is beyond a bound to the reference more strongly; null treats all alike."""
    on_failure: Literal["missing", "drop_group", "raise"] = "missing"
    """What becomes of a sample that this reward has no value for: missing leaves it out of its group, drop_group leaves
    out all samples of its prompt, raise saves a checkpoint and ends the run."""
    retries: Whole = 0
    """How often a sample is scored again for which the reward failed, before on_failure."""

    @property
    def counts(self) -> bool:
        """Whether it ever has a weight; else it is only watched."""
        return any([self.weight, *self.weight_by.values()])

    def weight_for(self, prompt: Prompt, update: int) -> float:
        """Its weight for a prompt at a policy update; 0 is a validation."""
        names = [name for name in (prompt.label, prompt.source) if name is not None]
        own = next((self.weight_by[name] for name in names if name in self.weight_by), self.weight)
        return own if self.schedule is None else own * self.schedule.factor(update)

    @abstractmethod
    def score(self, samples: Sequence[Any], prompts: Sequence[Prompt]) -> list[Score]:
        """One score per sample; one that can't be scored has the value None, and the reason as its note.

        A reward that has required fields, or compares samples of a prompt, has a third parameter, ``inputs``.
        """

    def __call__(
        self, samples: Sequence[Any], prompts: Sequence[Prompt], inputs: RewardInputs = NOTHING
    ) -> list[Score]:
        """The scores of samples, which are brought into the form that ``score`` reads.

        Raises:
            ValueError: there are fewer or more of them.
        """
        wanted = {"inputs": inputs} if self.required_fields() or self.compares() != "samples" else {}
        scores = self.score(samples, prompts, **wanted)
        if len(scores) != len(samples):
            raise ValueError(f"it returned {len(scores)} scores for {len(samples)} {self.judged}")
        return scores

    def required_fields(self) -> tuple[str, ...]:
        """Which of latents and response_ids it reads; no others are sent to it."""
        return ()

    def compares(self) -> Compared:
        """What it judges. One that compares gets all samples of a prompt together."""
        return "samples"

    @property
    def repeats(self) -> int:
        """How often whoever asks has to ask again after a failure."""
        return self.retries

    @property
    def device_name(self) -> str:
        """Where its weights are, as rewards with weights call that option."""
        return str(vars(self).get("device", "cpu"))

    def applies_to(self, prompt: Prompt) -> bool:
        """Whether this reward applies to a prompt."""
        return True

    @abstractmethod
    def unable(self, sample: Any) -> str:
        """Why a sample can't be scored by any reward, which makes its value missing; "" if it can."""

    def unfit(self, prompt: Prompt) -> str:
        """Why no sample of a prompt can be scored, which makes values missing; "" if they can."""
        return ""

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Check prompts and options before anything is sampled.

        Raises:
            UserError: this reward can't score a prompt, or an option is wrong.
        """
        for prompt in filter(self.applies_to, prompts if self.reads_prompts else kinds_of(prompts)):
            if why := self.unfit(prompt):
                raise UserError(f"reward {self.name} can't score {prompt.name}: {why}")

    def user_code(self) -> list[str]:
        """Paths of the user's functions that it calls, as ``burnish.utils.user_code`` takes them."""
        return []

    def prepare(self) -> None:
        """Load what scoring needs before the first batch."""


REDUCED: dict[str, Callable[[Sequence[float]], float]] = {"median": median, "min": min, "max": max}
SEVERAL = ReadIf("reduce", "mean", "median", "min", "max")


@options
class FrameOptions:
    """Frames of a clip that a reward on images scores."""

    every: Annotated[Count | None, SEVERAL] = None
    """Score every Nth frame, from the first on."""
    count: Annotated[Count | None, SEVERAL] = None
    """Score N frames, evenly spaced from the first to the last; null with every null too scores 8."""
    reduce: Literal["mean", "median", "min", "max", "first", "last"] = "mean"
    """Value of the clip: the mean, median, minimum or maximum over these frames, or the value of the clip's first or
    last frame, which is then the only one that is scored."""

    @model_validator(mode="after")
    def _one_chooses(self) -> Self:
        if self.every is not None and self.count is not None:
            raise ValueError("every and count both choose the frames; give one of them")
        return self

    def chosen(self, total: int) -> list[int]:
        """Indices of the frames that are scored, of ``total``."""
        if self.reduce in ("first", "last"):
            return [0 if self.reduce == "first" else total - 1]
        if self.every is not None:
            return list(range(0, total, self.every))
        return evenly_spaced(total, self.count or FRAMES)

    def reduced(self, values: Sequence[float]) -> float:
        """The clip's value of its frames' values, of which the first or last is the only one."""
        return REDUCED.get(self.reduce, fmean)(values)

    def reduced_tensor(self, values: Tensor) -> Tensor:
        """The clips' values [B] of their frames' values [B, K], with gradients."""
        kinds = {"median": values.quantile(0.5, 1), "min": values.amin(1), "max": values.amax(1)}
        return kinds.get(self.reduce, values.mean(1))


@options
class Reward(AnyReward):
    """Base of rewards on what a generator draws. A subclass is a dataclass of its own options, registered by name.

    It scores images, unless ``reads`` names something else. A reward on images scores a clip by its frames.
    """

    judged: ClassVar[str] = "images"
    reads: ClassVar[tuple[Kind, ...]] = ("image",)  # what ``score`` takes: images, whole clips, sounds

    frames: FrameOptions | None = None
    """Frames of a clip that are scored, and how their values make one; null takes the mean over 8 evenly spaced frames,
    or the whole clip where the reward reads clips."""
    stream: Stream | None = None
    """Of a model that draws frames and sound together: which of the two the reward teaches, video or audio; null
    teaches both. Once a reward names one, each has advantages, log-probs and losses of its own, which count alike
    however many elements a stream has (OmniNFT, arXiv:2605.12480)."""

    @model_validator(mode="after")
    def _frames_are_read(self) -> Self:
        if self.frames is not None and "image" not in self.reads:
            raise ValueError(f"frames is never read, because {self.name} scores {_named(self.reads)}; remove it")
        return self

    def check(self, prompts: Sequence[Prompt]) -> None:
        if self.frames is not None and self.compares() != "samples":
            raise UserError(
                f"reward {self.name} compares {self.compares()}, and with frames each frame is judged by itself; leave "
                "frames out"
            )
        super().check(prompts)

    def check_size(self, prompts: Sequence[Prompt], height: int, width: int) -> None:
        """Check that images of a size can be scored, in pixels, before anything is sampled.

        Raises:
            UserError: with a prompt that such images are too small for.
        """

    def refusal(self, drawn: Kind) -> str:
        """Why this reward can't score what a model draws, before anything is drawn; "" if it can.

        The sound of a clip is only known once there is one.
        """
        if self.stream is not None and drawn != "clip":
            return f"stream is {self.stream}, but the model draws {drawn}s, which have a single one"
        if drawn in self.reads or (drawn == "clip" and {"image", "sound"} & set(self.reads)):
            return "" if drawn == "clip" or self.frames is None else f"frames is given, but the model draws {drawn}s"
        return f"{self.name} scores {_named(self.reads)}, but the model draws {drawn}s"

    def unable(self, sample: Any) -> str:
        if hasattr(sample, "text"):
            return f"{self.name} scores {_named(self.reads)}, and this is a text"
        if not is_finite(sample):
            return f"the {kind(sample)} has non-finite values"
        if isinstance(sample, Clip) and self.reads == ("sound",) and sample.sound is None:
            return f"{self.name} scores sounds, and the clip has none"
        return self.refusal(kind(sample))

    @abstractmethod
    def score(self, images: Sequence[Any], prompts: Sequence[Prompt]) -> list[Score]:
        """Score images.

        Args:
            images: uint8 arrays [H, W, 3], RGB, whose sizes may differ; where ``reads`` names others, clips and sounds
                as in ``burnish.types.samples``.
            prompts: of each image.

        Returns:
            One score per image; one that can't be scored has the value None, and the reason as its note.
        """

    def __call__(
        self, samples: Sequence[Any], prompts: Sequence[Prompt], inputs: RewardInputs = NOTHING
    ) -> list[Score]:
        parts = [self._parts(sample) for sample in samples]
        rows = [row for row, frames in enumerate(parts) for _ in frames]
        repeated = [prompts[row] for row in rows]
        own = inputs if len(rows) == len(samples) else inputs.select(rows)
        scores = super().__call__([part for frames in parts for part in frames], repeated, own)
        if len(repeated) == len(samples):
            return scores
        scored = iter(scores)
        return [self._reduced([next(scored) for _ in frames]) for frames in parts]

    def _parts(self, sample: Any) -> list[Any]:
        """What ``score`` gets of a sample."""
        if not isinstance(sample, Clip) or self._takes_whole_clips:
            return [sample]
        if "image" not in self.reads:
            return [sample.sound]
        return [sample.frames[i] for i in self._frames.chosen(len(sample.frames))]

    @property
    def _takes_whole_clips(self) -> bool:
        return "clip" in self.reads and self.frames is None

    @property
    def _frames(self) -> FrameOptions:
        return self.frames or FrameOptions()

    def _reduced(self, scores: Sequence[Score]) -> Score:
        """The score of a clip by those of its frames: missing where one of them is."""
        lacking = next((score for score in scores if score.value is None), None)
        if lacking is not None:
            return lacking
        notes = list(dict.fromkeys(score.note for score in scores if score.note))
        return Score(
            self._frames.reduced([score.value for score in scores if score.value is not None]),
            " | ".join([*notes[:NOTES], *(["..."] if len(notes) > NOTES else [])]),
            {name: self._frames.reduced([score.numbers[name] for score in scores]) for name in self.numbers},
        )

    def differentiable(self, images: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        """The reward with gradients, for algorithms that need them; optional.

        Args:
            images: [B, 3, H, W] RGB in [0, 1], on any device; clips, where ``reads`` names them, are [B, F, 3, H, W].
            prompts: of each image.

        Returns:
            [B]. It may differ from ``score`` by the rounding of pixels to 8 bits.
        """
        raise NotImplementedError

    def with_gradients(self, samples: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        """``differentiable`` of images [B, 3, H, W] or clips [B, F, 3, H, W]: [B]."""
        if samples.ndim == 4 or self._takes_whole_clips:
            return self.differentiable(samples, prompts)
        frames = samples[:, self._frames.chosen(samples.shape[1])]
        repeated = [prompt for prompt in prompts for _ in range(frames.shape[1])]
        values = self.differentiable(frames.flatten(0, 1), repeated)
        return self._frames.reduced_tensor(values.unflatten(0, frames.shape[:2]))

    @classmethod
    def has_gradients(cls) -> bool:
        """Whether ``differentiable`` is implemented."""
        return cls.differentiable is not Reward.differentiable

    def gradient_refusal(self) -> str:
        """Why an algorithm can't follow its gradients with these options; "" if it can."""
        return "" if self.has_gradients() else f"{self.name} has none"


def images_of(sample: Any) -> list[Any]:
    """What is looked at of a sample where its images are looked at together: itself, or frames of a clip."""
    if not isinstance(sample, Clip):
        return [sample]
    return [sample.frames[i] for i in evenly_spaced(len(sample.frames), FRAMES)]


def _named(kinds: Sequence[Kind]) -> str:
    return " and ".join(f"{kind}s" for kind in kinds)
