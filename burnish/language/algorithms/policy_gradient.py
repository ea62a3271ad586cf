"""The policy gradient over tokens: an action is a token that the policy chose, under its sampling temperature."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from burnish.language.algorithms.base import LanguageNeeds, in_parts, token_budget_batches
from burnish.options import Count, Finite, NonNegative, Positive, Rules
from burnish.registry import ReadIf, options, register
from burnish.rl.algorithm import Metrics, PolicyGradient, advantages_of, clip_range, rewards_read
from burnish.rl.kl import TokenKl, gated_kl

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.language.batches import AnnotatedTokens, TokenBatch
    from burnish.language.config import LanguageConfig
    from burnish.language.logprobs import TokenScores
    from burnish.language.roles import LanguageRoles
    from burnish.rl.advantages import Rewards
    from burnish.rl.kl import TokenKl
    from burnish.types.completion import Completion
    from burnish.types.rollout import Loss, ScoredResponses


Share = Annotated[float, Field(gt=0, le=1)]
Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]


@options
class Overlong:
    """DAPO's soft penalty of responses that come near the limit."""

    buffer: Count
    """Tokens before rollout.max_new_tokens over which the penalty grows in a line."""
    factor: Positive = 1.0
    """The penalty at the limit."""


@options
class TokenPolicyGradient(PolicyGradient):
    """Base of policy gradients over tokens. Rewards are shaped (length, scale, bounds, KL, in this order), compared,
    and learned from token by token."""

    of_responses = True
    learns_values: ClassVar[bool] = False  # trains a value network beside the policy

    given_logprobs: Annotated[
        Literal["recorded", "reference"],
        ReadIf("data.scores", why="data.scores is null, and own responses have theirs"),
    ] = "recorded"
    """data.scores: log-probs of the policy that wrote the responses, which importance correction begins from. recorded:
    every record has them; reference: where one has none, those of the model before training."""
    overlong: Overlong | None = None
    """Take something off the reward of responses that come near the limit; null takes nothing."""
    reward_norm: bool = False
    """Bring rewards to mean 0 and std 1, by the statistics of all of the run so far."""
    reward_clip: Positive | None = None
    """Clip rewards to +- this; null never clips."""
    reward_clip_low: Finite | None = None
    """Smallest reward if the lower bound is to be another; null takes -reward_clip."""
    kl: TokenKl | None = None
    """What it costs to leave the reference; null costs nothing and needs no reference."""
    mask_truncated: bool = False
    """Learn nothing from responses that were cut at the limit; they are compared with all the same."""
    high_entropy_fraction: Share = 1.0
    """Learn from this share of the tokens alone, those of highest entropy."""
    high_entropy_per: Literal["batch", "sequence"] = "batch"
    """One threshold for all tokens of an update, or one for each response, as LightRFT has it."""
    high_entropy_count: Literal["all", "selected"] = "all"
    """What the policy's loss on them is divided by: all tokens as before, or only those that are selected, of the
    update or, with seq-mean-token-mean, of their response. A KL and an entropy bonus stay means over all tokens."""
    entropy_coef: NonNegative = 0.0
    """Weight of the entropy bonus."""
    loss_agg_mode: Aggregation = "token-mean"
    """How the losses of tokens become one: their mean over the batch; the mean over responses of their means, of their
    sums, or of their sums divided by loss_length."""
    loss_length: Annotated[Count | None, ReadIf("loss_agg_mode", "seq-mean-token-sum-norm")] = None
    """What seq-mean-token-sum-norm divides by; null takes rollout.max_new_tokens."""

    def contradictions(self, run: LanguageConfig) -> Rules:
        advantage, count = self.part("advantage"), self.high_entropy_count
        overlong, kl, low, high = self.overlong, self.kl, self.reward_clip_low, self.reward_clip
        scaling = {
            "reward_norm": self.reward_norm, "reward_clip": high is not None, "reward_clip_low": low is not None,
        }  # fmt: skip
        by_kl = kl is not None and kl.route == "reward"
        shaping = scaling | {"overlong": overlong is not None, "kl.route=reward": by_kl}
        scales, shapes = (", ".join(name for name, given in one.items() if given) for one in (scaling, shaping))
        what = "reads a value network, and only ppo trains one" if advantage.critic else "reads no value network"
        return [
            *super().contradictions(run),
            (
                low is not None and high is not None and low >= high,
                f"reward_clip_low is {low} and reward_clip is {high}: nothing lies between; lower reward_clip_low",
            ),
            (
                self.high_entropy_fraction == 1 and (self.high_entropy_per != "batch" or count != "all"),
                "high_entropy_per and high_entropy_count are never read when high_entropy_fraction is 1; leave them "
                "out",
            ),
            (
                count != "all" and "token-sum" in self.loss_agg_mode,
                f"high_entropy_count is {count}, but loss_agg_mode {self.loss_agg_mode} divides by no number of "
                "tokens; remove it",
            ),
            (
                advantage.turn_rewards and scales,
                f"turn_rewards is true, but the sum of the turns, not the turns, is what {scales} changes; "
                "leave one of them out",
            ),
            (
                advantage.steps and scales,
                f"advantage is {advantage.name}, but the sum of the steps, not the steps, is what {scales} "
                "changes; remove it",
            ),
            (
                advantage.advantage_aggregation != "sum" and shapes,
                f"advantage_aggregation is {advantage.advantage_aggregation}, which compares each reward by itself, "
                f"but their sum is what {shapes} changes; leave one of them out",
            ),
            (
                advantage.critic != self.learns_values,
                f"advantage is {advantage.name}, which {what}; choose another, or another algorithm",
            ),
            (
                self.given_logprobs == "reference" and kl is not None and kl.refresh_every is not None,
                "given_logprobs is reference, but kl.refresh_every moves the reference away from the model before "
                "training; leave one of them out",
            ),
            (
                advantage.greedy and overlong is not None,
                f"overlong is set, but the greedy response that {self.name} compares with is judged by its reward "
                "alone; leave overlong out",
            ),
            (
                overlong is not None and overlong.buffer >= run.longest,
                f"algorithm.overlong.buffer is {overlong and overlong.buffer}, but rollout.max_new_tokens is "
                f"{run.longest}: every response would be punished; make it smaller",
            ),
            (
                kl is not None and kl.target is not None and run.samples >= 5 * kl.horizon,
                f"algorithm.kl.horizon is {kl and kl.horizon} with {run.samples} responses per update: one step could "
                f"make the coefficient negative; set it above {run.samples // 5}",
            ),
        ]  # fmt: skip

    def needs(self) -> LanguageNeeds:
        kl, advantage = self.kl, self.part("advantage")
        return LanguageNeeds(
            reference=kl is not None or self.given_logprobs == "reference", logprobs=self.given_logprobs == "recorded",
            refreshed=kl is not None and kl.refresh_every is not None,
            groups=advantage.groups, samples=advantage.samples, critic=advantage.critic, greedy=advantage.greedy,
            turn_rewards=advantage.turn_rewards, step_rewards=advantage.steps,
            each_reward=advantage.advantage_aggregation == "each", reads=rewards_read(self),
        )  # fmt: skip

    def make_memory(self) -> dict[str, Any]:
        from burnish.rl.advantages import RunningMoments

        parts: dict[str, Any] = {"rewards": RunningMoments()} if self.reward_norm else {}
        return super().make_memory() | parts | ({"kl": self.kl.make_controller()} if self.kl else {})

    def compute_logprobs(self, scored: ScoredResponses, roles: LanguageRoles) -> AnnotatedTokens:
        from dataclasses import replace

        import torch

        from burnish.language.batches import AnnotatedTokens
        from burnish.rl.importance import correction_metrics

        trace, needs = scored.trace, self.needs()
        reference = trace.logprob[:, :0]
        if needs.reference:
            with roles.clock("ref"):
                (reference,) = in_parts(lambda rows: [roles.reference(trace.select(rows)).logprob], trace, roles)
        if self.given_logprobs == "reference":
            trace = replace(trace, logprob=torch.where(trace.logprob.isnan(), reference, trace.logprob))
            scored = replace(scored, trace=trace)
        old_logprobs, metrics = self.old_logprobs(roles, lambda: difference(trace, roles))
        recomputed = old_logprobs == "recomputed"
        # a sampler that rounds otherwise would show a KL where there is none
        own = self.kl is not None and self.kl.early and roles.sampler_rounds
        logprob = recomputed or self.rollout_correction is not None or self.high_entropy_fraction < 1 or own
        learner, entropy, value = forward(trace, roles, logprob=logprob, critic=needs.critic)
        if learner.shape[1]:
            metrics |= correction_metrics(learner, trace.logprob, trace.mask)
        old = learner if recomputed else trace.logprob
        return AnnotatedTokens(
            scored=scored,
            old=old,
            learner=learner,
            entropy=entropy,
            reference=reference,
            compared=learner if roles.sampler_rounds else old,
            value=value,
            old_logprobs=old_logprobs,
            memory=roles.memory,
            metrics=metrics,
        )

    def compute_advantages(self, annotated: AnnotatedTokens) -> tuple[TokenBatch, Metrics]:
        from burnish.language.batches import TokenBatch
        from burnish.rl.algorithm import range_metrics

        scored, trace = annotated.scored, annotated.scored.trace
        rewards, coef, metrics = shape(self, annotated)
        found, known = advantages_of(self, rewards), ~rewards.missing
        metrics = annotated.metrics | metrics
        metrics |= range_metrics(  # verl's names: scores are as they were given, rewards what shaping and KL leave
            score=scored.scores.reward[known],
            rewards=rewards.reward[known],
            advantages=found.advantage[rewards.mask],
            returns=found.returns[rewards.mask],
        )
        advantage, clipped = self.clipped(found.advantage, rewards.mask)
        trained = rewards.mask & trace.finished[:, None] if self.mask_truncated else rewards.mask
        weight, selected = self._selected(annotated, trained, advantage)
        if self.rollout_correction is not None:
            factor, trained, corrected = self.rollout_correction.apply(
                annotated.learner, trace.logprob, trained, compares=self.part("surrogate").compares
            )
            weight, metrics = weight * factor, metrics | corrected
        batch = TokenBatch(
            trace=trace,
            mask=trained,
            advantage=advantage,
            weight=weight,
            old=annotated.old,
            reference=annotated.reference,
            value=annotated.value,
            returns=found.returns,
            held=self._held(annotated, trained, advantage),
            asked=annotated.asked or [()] * len(trace),
            kl_factor=scored.scores.kl_factor,
            kl_coef=coef,
            old_logprobs=annotated.old_logprobs,
            kl_measured=self.kl is None or annotated.kl_is_known,
            limit=scored.limit,
            update=scored.update,
        )
        batch, extended = self._extended(batch, annotated)
        return batch.select(batch.mask.any(1).nonzero().flatten()), metrics | clipped | selected | extended

    def _extended(self, batch: TokenBatch, annotated: AnnotatedTokens) -> tuple[TokenBatch, Metrics]:
        """The batch with what else there is to learn from, and what that reports."""
        return batch, {}

    def _selected(self, annotated: AnnotatedTokens, trained: Tensor, advantage: Tensor) -> tuple[Tensor, Metrics]:
        """Weight [B, T] of each token in the policy's loss, by its entropy."""
        from burnish.language.losses import high_entropy_mask

        if self.high_entropy_fraction == 1:
            return trained.float(), {}
        selected = high_entropy_mask(annotated.entropy, trained, self.high_entropy_fraction, per=self.high_entropy_per)
        weight = selected.float()
        if self.high_entropy_count == "selected":
            among = (0, 1) if self.loss_agg_mode == "token-mean" else (1,)
            counted, chosen = (one.sum(among, keepdim=True) for one in (trained, selected))
            weight = weight * counted / chosen.clamp_min(1)
        return weight, {"actor/high_entropy_ratio": float(selected.sum() / trained.sum().clamp_min(1))}

    def _held(self, annotated: AnnotatedTokens, trained: Tensor, advantage: Tensor) -> Tensor:
        """Weight [B, T] of a penalty for moving the log-prob of a token; [B, 0] holds none."""
        return annotated.old[:, :0]

    def micro_batches(self, batch: TokenBatch, size: int) -> Iterator[TokenBatch]:
        return (batch.select(rows) for rows in token_budget_batches(batch.trace, size))

    def loss(self, part: TokenBatch, roles: LanguageRoles) -> Loss:
        return self.policy_loss(part, roles.policy(part.trace), roles)

    def policy_loss(self, part: TokenBatch, scores: TokenScores, roles: LanguageRoles) -> Loss:
        """Surrogate, KL and entropy of a micro-batch."""
        from burnish.rl.surrogates import extremes_of, masked, terms
        from burnish.types.batch import to_device
        from burnish.types.rollout import Loss

        mask, logprob, old = part.mask, scores.logprob, old_of(part, scores, roles)
        loss, values = self.objective(logprob, old, part.advantage, mask, part.weight)
        summed = {"actor/pg_loss": loss}
        if part.held.shape[1]:
            summed["actor/held_loss"] = held = masked(part.held * (logprob - old).abs(), mask)
            loss = loss + held
        entropy = masked(scores.entropy, mask)
        if self.entropy_coef > 0:
            loss = loss - self.entropy_coef * entropy
        if self.kl is not None and self.kl.route == "loss":
            summed["actor/kl_loss"] = kl = self.kl.estimate(logprob, part.reference, mask, old=old)
            loss = loss + part.kl_coef * gated_kl(kl, part.kl_factor)
        if not roles.moved:
            sampled = to_device(part.trace.logprob, logprob.device)
            values["rollout_corr/logprob_abs_diff"] = masked((logprob - sampled).abs(), mask)
        values["actor/entropy"] = entropy
        tokens, size = mask.sum(), terms(mask, self.loss_agg_mode)
        metrics: dict[str, Any] = {name: (value.detach().sum(), tokens) for name, value in values.items()}
        metrics |= {name: (self.total(value, part).detach(), size) for name, value in summed.items()}
        if self.kl is not None and not part.kl_measured and roles.fresh:
            estimate = self.kl.value(logprob.detach(), part.reference, mask)
            metrics["actor/kl_per_response"] = estimate.sum(), mask.any(1).sum()
        extremes = extremes_of(values.get("actor/ratio_mean"), values.get("rollout_corr/logprob_abs_diff"), mask)
        return Loss(self.total(loss, part), metrics, extremes)

    def total(self, values: Tensor, part: TokenBatch) -> Tensor:
        """Losses of tokens [B, T] as the sum that is divided by the size of the batch."""
        from burnish.rl.surrogates import weights

        norm = self.loss_agg_mode == "seq-mean-token-sum-norm"
        length = (self.loss_length or part.limit) if norm else None
        return (values * weights(part.mask, self.loss_agg_mode, length)).sum()

    def size(self, batch: TokenBatch) -> int:
        from burnish.rl.surrogates import terms

        return int(terms(batch.mask, self.loss_agg_mode))

    def after_update(self, roles: LanguageRoles, update: int) -> Metrics:
        every = self.kl.refresh_every if self.kl else None
        if every is None or update % every:
            return {}
        roles.move("reference", 1.0)
        return {"actor/reference_refreshed": 1.0}


def old_of(part: TokenBatch, scores: TokenScores, roles: LanguageRoles) -> Tensor:
    """Log-probs [B, T] that ratios refer to."""
    # then its own log-probs are exactly the old ones; another micro-batch may have rounded them otherwise
    itself = part.old_logprobs != "sampler" and roles.fresh
    return scores.logprob.detach() if itself else part.old


def difference(trace: Completion, roles: LanguageRoles) -> float:
    """The largest difference between the log-probs of sampler and trainer in one micro-batch."""
    import torch

    probe = trace.select(next(token_budget_batches(trace, roles.micro_batch_size)))
    with torch.no_grad():
        logprob = roles.policy(probe).logprob.cpu()
    return float(torch.where(probe.mask, logprob - probe.logprob, 0.0).abs().max())


def forward(trace: Completion, roles: LanguageRoles, *, logprob: bool, critic: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs, entropies and values before the policy learns, each [B, T], or [B, 0] where nobody reads it."""

    def read(rows: list[int]) -> list[Tensor]:
        part = trace.select(rows)
        if not logprob:
            return [roles.values(part)]
        scores, *value = roles.scores_and_values(part) if critic else (roles.policy(part),)
        return [scores.logprob, scores.entropy, *value]

    nothing = trace.logprob[:, :0]
    with roles.clock("values") if critic and not logprob else nullcontext():
        found = in_parts(read, trace, roles) if logprob or critic else []
    found = found if logprob else [nothing, nothing, *found]
    return found[0], found[1], found[2] if critic else nothing


@register("language algorithm", "grpo")
class GRPO(TokenPolicyGradient, advantage="group", surrogate="clip"):
    """Clipped policy gradient over tokens, with advantages relative to the group; every response counts alike
    (Shao et al. 2024, arXiv:2402.03300)."""

    loss_agg_mode: Aggregation = "seq-mean-token-mean"
    """How the losses of tokens become one; the paper counts every response alike."""


def shape(algorithm: TokenPolicyGradient, annotated: AnnotatedTokens) -> tuple[Rewards, float, Metrics]:
    """What responses earned, the coefficient of a KL in the loss, and what there is to report.

    The memory takes in this batch: what it knew before decides the KL's weight, and what it knows then how
    rewards are scaled.
    """
    import torch

    from burnish.rl.advantages import Rewards, place_reward, place_step_rewards, turn_numbers

    scored = annotated.scored
    missing = scored.scores.missing
    if algorithm.needs().greedy:
        missing = missing | scored.greedy.isnan()
    mask = scored.trace.mask & ~missing[:, None]
    reward, greedy, metrics = _scaled(algorithm, annotated, missing)
    penalty, coef, measured = _penalty(algorithm, annotated, mask)
    earned, turns = torch.where(missing, 0.0, reward), scored.turn_rewards
    steps = scored.step_rewards.masked_fill(~mask, torch.nan)
    by_step = steps.nan_to_num(0.0)
    rest = earned - by_step.sum(1)
    by_turn = place_reward(rest - turns.sum(1), mask) + place_step_rewards(turns, turn_numbers(mask), mask) + by_step
    rewards = Rewards(
        reward=reward - penalty.sum(1),
        components=scored.scores.counted.to(scored.scores.components),
        weights=scored.scores.weights,
        applied=scored.scores.applied,
        names=scored.scores.names,
        actions=place_reward(rest, mask) + by_step - penalty,
        by_turn=by_turn - penalty,
        greedy=greedy,
        group=scored.group,
        missing=missing,
        mask=mask,
        value=annotated.value,
        steps=steps,
    )
    return rewards, coef, metrics | measured


def _scaled(
    algorithm: TokenPolicyGradient, annotated: AnnotatedTokens, missing: Tensor
) -> tuple[Tensor, Tensor, Metrics]:
    """Rewards of the responses and of the greedy ones, [B] each, by the options of scale."""
    from burnish.rl.advantages import clip_values, overlong_penalty

    scored, metrics = annotated.scored, {}
    reward, greedy = scored.scores.reward.float(), scored.greedy.float()
    if algorithm.overlong is not None:
        penalty = overlong_penalty(
            scored.trace.mask.sum(1), max_length=scored.limit,
            buffer=algorithm.overlong.buffer, factor=algorithm.overlong.factor,
        )  # fmt: skip
        reward = reward + penalty
        metrics["critic/overlong_penalty/mean"] = float(penalty.mean())
        metrics["critic/overlong_penalty/ratio"] = float((penalty < 0).float().mean())
    if algorithm.reward_norm:
        statistics = annotated.memory["rewards"]
        statistics.update(reward, ~missing)
        reward, greedy = statistics.normalise(reward), statistics.normalise(greedy)
        metrics["critic/reward_norm/mean"] = statistics.known.mean
        metrics["critic/reward_norm/std"] = statistics.known.std(unbiased=True)
    if algorithm.reward_clip is not None or algorithm.reward_clip_low is not None:
        low, high = clip_range("reward_clip", algorithm.reward_clip_low, algorithm.reward_clip)
        reward, share = clip_values(reward, low, high, ~missing)
        greedy = greedy.clamp(low, high)
        metrics["critic/rewards/clip_ratio"] = share
    return reward.masked_fill(missing, 0.0), greedy, metrics


def _penalty(algorithm: TokenPolicyGradient, annotated: AnnotatedTokens, mask: Tensor) -> tuple[Tensor, float, Metrics]:
    """What the KL takes off each token [B, T], its coefficient in the loss, and the controller's step."""
    import torch

    nothing = torch.zeros(mask.shape)
    if algorithm.kl is None:
        return nothing, 0.0, {}
    controller = annotated.memory["kl"]
    coef = controller.coef
    metrics = {"actor/kl_coef": coef}
    if not annotated.kl_is_known:
        return nothing, coef, metrics
    estimate = algorithm.kl.value(annotated.compared, annotated.reference, mask)
    rows, in_reward = mask.any(1), algorithm.kl.route == "reward"
    if bool(rows.any()):
        metrics["actor/kl_per_response"] = current = float(estimate.sum(1)[rows].mean())
        controller.update(current, len(mask))
        if in_reward:
            metrics["actor/reward_kl_penalty"] = float(estimate.sum() / mask.sum())
    if not in_reward:
        return nothing, coef, metrics
    return coef * gated_kl(estimate, annotated.scored.scores.kl_factor), 0.0, metrics
