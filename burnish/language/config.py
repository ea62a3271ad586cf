"""The configuration of a run that trains a model that sees, or one that only reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from burnish.config.batches import Sizes
from burnish.config.run import RunConfig
from burnish.config.tasks import DRAWN, JUDGEMENTS, RESPONSES, Words
from burnish.environments.base import Environment
from burnish.language.algorithms.base import LanguageNeeds
from burnish.language.model.loading import check_files
from burnish.models.adapters import SETTINGS, WEIGHTS
from burnish.options import EVALUATED, SCORED, OptimizerOptions, Rules
from burnish.options.language import (
    CriticOptions,
    ImageTokenModelOptions,
    ImageTokenRolloutOptions,
    LanguageDataOptions,
    LanguageModelOptions,
    LanguageRolloutOptions,
    LanguageSupervisedOptions,
    LanguageTrainerOptions,
    LanguageValidationOptions,
    TokenTeacher,
)
from burnish.options.vllm import sends_adapter
from burnish.registry import Choice, ReadIf, options
from burnish.rewards.base import Reward
from burnish.rewards.text.base import EnvironmentReward, LanguageReward
from burnish.rl.algorithm import Algorithm
from burnish.types.samples import WATCHED
from burnish.utils.hub import hub_model
from burnish.utils.terminal import counted

CRITIC = ReadIf(
    lambda section, run: run.algorithm.needs().critic, why="{run.algorithm.name} has no critic; use algorithm=ppo"
)


@options
class LanguageConfig(RunConfig):
    """A language model, most often one that sees, learns from rewards of its responses."""

    needs: ClassVar[type] = LanguageNeeds
    algorithm_kind: ClassVar[str] = "language algorithm"
    reward_kind: ClassVar[str] = "language reward"
    model_kind: ClassVar[str] = "language model"
    model_index: ClassVar[str] = "config.json"
    adapter_files: ClassVar[tuple[str, ...]] = (SETTINGS, WEIGHTS)
    watched: ClassVar[tuple[str, ...]] = tuple(f"response_{name}" for name in WATCHED)
    prompt_file: ClassVar[str] = "a .jsonl, .json, .csv or .parquet file of records, or org/name@split of the hub"

    task: Literal["image-text-to-text"] = "image-text-to-text"
    """What is trained: text-to-image models that draw, or image-text-to-text models that see."""
    model: LanguageModelOptions
    """Which network is trained, and how much of it."""
    data: LanguageDataOptions
    """Training and validation questions, with their images and right answers."""
    algorithm: Annotated[Algorithm, Choice("language algorithm")]
    """What is learned from rewards: its name and its options."""
    rewards: dict[str, Annotated[LanguageReward, Choice("language reward")]]
    """What a good response is: a weighted sum of rewards, by name."""
    rollout: Annotated[LanguageRolloutOptions, SCORED] = Field(default_factory=LanguageRolloutOptions)
    """How responses are sampled."""
    environment: Annotated[Environment | None, Choice("environment")] = None
    """What answers the policy, turn by turn: its name and its options; null has every prompt answered once."""
    trainer: LanguageTrainerOptions = Field(default_factory=LanguageTrainerOptions)
    """How a batch becomes optimizer steps."""
    critic: Annotated[CriticOptions, CRITIC] = Field(default_factory=CriticOptions)
    """The value network, for algorithms that need one."""
    validation: Annotated[LanguageValidationOptions, EVALUATED, SCORED] = Field(
        default_factory=LanguageValidationOptions
    )
    """Validation on held-out questions, always with the same random numbers."""
    supervised: LanguageSupervisedOptions | None = None
    """Also imitate responses of the user at every optimizer step; null does not."""

    @property
    def batches_per_update(self) -> int:
        return self.trainer.rollouts_per_update

    @property
    def words(self) -> Words:
        return RESPONSES if self.scored else JUDGEMENTS

    @property
    def trainer_config(self) -> LanguageConfig:
        # the ranks evaluate with their own weights
        return replace(self, rollout=replace(self.rollout, vllm=None))

    @property
    def sampler_config(self) -> LanguageConfig:
        vllm = self.rollout.vllm
        if vllm is None or vllm.tensor_parallel == 1:
            return self
        # a model that vLLM shares out over GPUs need not fit one of them: the worker's own copy stays beside
        return replace(self, model=replace(self.model, device="cpu"))

    def check_model(self, folder: Path) -> None:
        from burnish.language.teacher_inputs import check_teacher_files

        check_files(self.model)
        for number, teacher in enumerate(self.algorithm.needs().teachers):
            option = f"algorithm.teachers[{number}]"
            if teacher.path is None:
                continue
            model = hub_model(teacher.path, index=self.model_index, option=f"{option}.path")
            if model is None or model.cached() is not None:
                check_teacher_files(self.model, teacher, option)

    def user_code(self) -> dict[str, list[str]]:
        environment = {} if self.environment is None else {"environment": self.environment.user_code()}
        return super().user_code() | environment

    def batch_sizes(self) -> dict[str, Sizes]:
        return {
            "trainer.micro_batch_tokens": Sizes((1024, 2048, 4096, 8192, 16384), 4096, 4096),
            "rollout.batch_size": Sizes((8, 16, 32, 64, 128, 256), 256, 64),
        }

    @property
    def scored(self) -> bool:
        return not self.algorithm.needs().heads  # nothing is sampled where a reward model is trained

    @property
    def longest(self) -> int:
        """Tokens that the policy can write for a sample."""
        limit = self.rollout.max_new_tokens
        return limit if self.environment is None else self.environment.longest(limit)

    def contradictions(self, run: RunConfig) -> Rules:
        teachers = enumerate(self.algorithm.needs().teachers)
        return [
            *super().contradictions(run), *self._of_responses(), *self._of_engine(), *self._of_steps(),
            *self._of_environment(), *(rule for i, teacher in teachers for rule in self._of_teacher(i, teacher)),
        ]  # fmt: skip

    def _of_responses(self) -> Rules:
        needs, rollout, data, name = self.algorithm.needs(), self.rollout, self.data, self.algorithm.name
        samples = self.online and self.supervised is None
        return [
            (
                data.overlong == "filter" and data.max_prompt_length is None and samples,
                "data.overlong is filter, but data.max_prompt_length is null, so that no prompt is too long; set "
                "data.max_prompt_length, or leave data.overlong out",
            ),
            (
                needs.critic and self.critic.warmup_updates >= self.steps,
                f"critic.warmup_updates is {self.critic.warmup_updates}, but the run has only "
                f"{counted(self.steps, 'updates')}: the policy never learns; warm up for fewer, or raise steps",
            ),
            (
                self.model.compile and bool(self.model.gradient_checkpointing),
                "model.compile and model.gradient_checkpointing are given, but PyTorch would compute compiled layers "
                "of a language model again by another graph; leave one of them out",
            ),
            (
                rollout.min_new_tokens > rollout.max_new_tokens,
                f"rollout.min_new_tokens is {rollout.min_new_tokens}, but rollout.max_new_tokens is "
                f"{rollout.max_new_tokens}; a response can't be longer than its limit",
            ),
            (
                self.data.scores and (needs.greedy or needs.step_rewards or needs.turn_rewards or needs.teachers),
                f"data.scores is given, but {name} learns from what only own responses have: a greedy one beside them, "
                "rewards of their steps or turns, or answers of teachers; leave data.scores out, or take grpo",
            ),
            (
                needs.data == "demonstrations" and self.supervised is not None,
                f"supervised is given, but {name} imitates responses already: put all into data.train_files",
            ),
            (
                needs.imitates and (self.supervised is None or self.supervised.coef > 1),
                f"{name} imitates responses beside its own, by a share of the loss; give supervised.train_files, and a "
                "supervised.coef of 1 at most",
            ),
            (
                self.validation.temperature == 0 and self.validation.n > 1 and self.environment is None,
                f"validation.n is {self.validation.n}, but validation.temperature is 0, which always takes the "
                "likeliest token: they would all be the same; set it to 1, or raise the temperature",
            ),
            *(
                (
                    needs.heads,
                    f"rewards.{label} is given, but {name} trains a reward model, and nothing is sampled that it could "
                    f"score; remove it with rewards.{label}=null",
                )
                for label in self.rewards
            ),
            (
                needs.heads and needs.question and data.system_prompt is not None,
                "data.system_prompt is given, but algorithm.question is all that is asked about images, here and "
                "where the reward model scores; put it there",
            ),
        ]

    def _of_engine(self) -> Rules:
        rollout, vllm = self.rollout, self.rollout.vllm
        partial, writes = self.async_rollout.partial, f"async_rollout.partial is {self.async_rollout.partial}, but"
        return [
            (
                partial is not None and partial >= rollout.max_new_tokens,
                f"{writes} rollout.max_new_tokens is {rollout.max_new_tokens}: no response is put aside; lower it",
            ),
            (
                partial is not None and self.environment is not None,
                f"{writes} environment.name is given, whose dialogues are not put aside; leave one of them out",
            ),
            (
                partial is not None and vllm is not None,
                f"{writes} rollout.engine is vllm, which puts nothing aside; leave one of them out",
            ),
            *(
                (rollout.router_replay and there, f"rollout.router_replay is true, but {what}; remove one of them")
                for there, what in (
                    (self.environment is not None, "environment.name is given, of whose dialogues nothing is recorded"),
                    (partial is not None, f"async_rollout.partial is {partial}, and what is put aside is not recorded"),
                    (self.trainer.layout == "padded", "trainer.layout is padded, and packed rows alone are replayed"),
                )
            ),
            (
                rollout.engine == "vllm" and vllm is None,
                "rollout.engine is vllm, but rollout.vllm is null; set rollout.vllm.python=FILE, the Python of an "
                "environment with vLLM, or rollout.engine=burnish",
            ),
            (
                rollout.engine != "vllm" and vllm is not None,
                f"rollout.vllm is given, but rollout.engine is {rollout.engine}; set rollout.engine=vllm, or "
                "rollout.vllm=null",
            ),
            (
                vllm is not None and self.environment is not None and self.environment.max_length is None,
                "rollout.engine is vllm, which has to know the longest dialogue, but environment.max_length is null; "
                "give it in tokens",
            ),
        ]

    def _of_steps(self) -> Rules:
        """What contradicts itself about rewards of single steps."""
        counting = {label: reward for label, reward in self.rewards.items() if reward.counts}
        each = [label for label, reward in counting.items() if reward.judges_steps]
        scaled = [name for name in ("reward_norm", "reward_clip") if getattr(self.algorithm, name, None)]
        perhaps = any(reward.judges_steps is None for reward in counting.values())
        return [
            (
                each and scaled,
                f"rewards.{', '.join(each)}.steps is each, but algorithm.{', '.join(scaled)} changes the sum of the "
                "steps, not the steps; leave one of them out",
            ),
            (
                self.algorithm.needs().step_rewards and not each and not perhaps,
                "algorithm.advantage compares rewards of steps, but no reward gives any; set "
                "rewards.reward_model.steps=each for a reward model that judges steps, or choose another advantage",
            ),
        ]

    def _of_teacher(self, number: int, teacher: TokenTeacher) -> Rules:
        option, temperature = f"algorithm.teachers[{number}]", self.rollout.temperature
        key = teacher.prompt_key
        return [
            (
                self.environment is not None,
                f"environment.name is given, but {self.algorithm.name} asks teachers about single responses; leave it "
                "out",
            ),
            (
                teacher.is_policy and self.ranks > 1,
                f"{option} is the policy itself, which the {self.ranks} processes of pools.train share out; train with "
                f"one process, or give {option}.path",
            ),
            (
                teacher.url is not None and temperature != 1,
                f"{option}.url is given and rollout.temperature is {temperature:g}, but servers return log-probs at "
                "temperature 1; leave rollout.temperature out, or give a path",
            ),
            (
                key is not None and key.split(".")[0] not in self.data.extra_keys,
                f"{option}.prompt_key is {key}, which is not read from the records: data.extra_keys is "
                f"{self.data.extra_keys}; add it there",
            ),
        ]

    def _of_environment(self) -> Rules:
        environment, limit = self.environment, self.rollout.max_new_tokens
        given = {label: one for label, one in self.rewards.items() if isinstance(one, EnvironmentReward)}
        by_turn, talks = self.algorithm.needs().turn_rewards, environment is not None
        name, longest = (None, None) if environment is None else (environment.name, environment.max_length)
        return [
            (
                by_turn and not talks,
                "algorithm.turn_rewards is true, but there is no environment, whose turns it means; remove it",
            ),
            *(
                (
                    not talks,
                    f"rewards.{label} is the environment's reward, but there is no environment; give "
                    f"environment.name, or remove it with rewards.{label}=null",
                )
                for label in given
            ),
            (
                talks and by_turn and not any(reward.counts and reward.total == "sum" for reward in given.values()),
                "algorithm.turn_rewards is true, but no reward with a weight sums up what the environment gives; add "
                "rewards.environment.weight=1, or leave algorithm.turn_rewards out",
            ),
            (
                talks and not self.online,
                f"environment.name is {name}, but {self.algorithm.name} learns from given responses here, "
                "which nobody answers; leave environment out, or choose an algorithm that samples",
            ),
            (
                longest is not None and longest < limit,
                f"environment.max_length is {longest}, but one response alone may have rollout.max_new_tokens={limit}; "
                "raise the first or lower the second",
            ),
        ]

    @property
    def optimizers(self) -> dict[str, OptimizerOptions]:
        critic = {"critic.optimizer": self.critic.optimizer} if self.algorithm.needs().critic else {}
        return super().optimizers | critic

    def cautions(self) -> Iterator[str]:
        vllm, lora, dtype = self.rollout.vllm, self.model.lora, self.model.dtype
        if (
            vllm is not None
            and lora is not None
            and dtype == "bfloat16"
            and not sends_adapter(vllm.adapter, lora, dtype)
        ):
            yield (
                "rollout.engine is vllm and model.dtype is bfloat16: vLLM is sent weights with the adapters folded in, "
                "which rounds most of an early step off (watch rollout_corr/logprob_abs_diff); "
                "rollout.engine=burnish samples with the policy that learns"
            )


@options
class ImageTokenConfig(LanguageConfig):
    """A unified model learns to draw, token by token, from rewards of its images."""

    reward_kind: ClassVar[str] = "flow reward"

    task: Literal["text-to-image-tokens"] = "text-to-image-tokens"  # type: ignore[assignment]
    """What is trained: unified models that draw token by token."""
    model: ImageTokenModelOptions
    """Which network is trained, and how much of it."""
    rewards: dict[str, Annotated[Reward, Choice("flow reward")]]  # type: ignore[assignment]
    """What a good image is: a weighted sum of rewards, by name."""
    rollout: Annotated[ImageTokenRolloutOptions, SCORED] = Field(default_factory=ImageTokenRolloutOptions)
    """How images are sampled."""

    @property
    def words(self) -> Words:
        return DRAWN["image"]

    def contradictions(self, run: RunConfig) -> Rules:
        rollout, needs = self.rollout, self.algorithm.needs()
        whole = "of which an image has its own number, and no end"
        unread = [
            ("environment.name", self.environment is not None, "and nobody answers an image"),
            ("supervised", self.supervised is not None, "and records hold no images as tokens"),
            ("rollout.engine=vllm", rollout.engine == "vllm", "and vLLM has no head of image tokens"),
            ("rollout.min_new_tokens", rollout.min_new_tokens, whole),
            ("rollout.stop", rollout.stop, whole),
            ("rollout.repetition_penalty", rollout.repetition_penalty != 1, "and images repeat their tokens"),
            ("sharding.context_parallel", self.sharding.context_parallel > 1, "and ranks split no rows of guidance"),
        ]
        name = self.algorithm.name
        return [
            *super().contradictions(run),
            *(
                (given, f"{option} is given, but task is {self.task}, {why}; remove it")
                for option, given, why in unread
            ),
            (
                self.holds != "prompts" or needs.teachers,
                f"algorithm.name is {name}, which learns here from {'teachers' if needs.teachers else self.holds}, but "
                f"task is {self.task}, which learns from rewards of its own images alone; choose grpo or another that "
                "samples, without teachers",
            ),
        ]
