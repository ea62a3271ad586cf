"""Videos [B, C, F, H, W] through the mathematics of pictures: folding the frames into the height changes nothing."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from burnish.algorithms.flow.base import Needs, Recording
from burnish.algorithms.flow.diffusion_nft import DiffusionNFT
from burnish.algorithms.flow.policy_gradient import FlowGRPO
from burnish.batches.levels import NoiseLevels
from burnish.batches.samples import judge
from burnish.flow.sampling import Plan, denoise, guide
from burnish.flow.schedules import schedule
from burnish.flow.transitions import transition
from burnish.flow.windows import Window
from burnish.losses.kl import gaussian_kl, squared_distance
from burnish.losses.matching import awm_logprob, matching_error, negative_aware
from burnish.losses.surrogates import guard_log_ratio
from burnish.models.flow.embedded import EmbeddedPipeline
from burnish.options.flow import RolloutOptions
from burnish.tasks.flow.engine import FlowEngine, FlowJob
from burnish.tasks.flow.roles import FlowRoles
from burnish.types.rollout import Denoising, Embeddings, Prompt, Scored, Scores
from burnish.utils import random
from burnish.utils.lru_cache import LruCache

VIDEO = (2, 3, 4, 5)  # C, F, H, W
FOLDED = (2, 12, 5)
COUNT = 4
KINDS = ["sde", "cps", "dance", "ode"]


def draws(count: int, batch: int = COUNT) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(5)
    return [torch.randn(batch, *VIDEO, generator=g) for _ in range(count)]


def fold(*videos: torch.Tensor) -> list[torch.Tensor]:
    return [video.flatten(-3, -2) for video in videos]


def same(video: torch.Tensor, folded: torch.Tensor) -> None:
    if video.shape[-4:] == VIDEO:
        video = video.flatten(-3, -2)
    torch.testing.assert_close(video, folded, rtol=1e-6, atol=1e-6)


def test_noise_of_a_video_is_that_of_its_frames_one_below_the_other():
    keys = [(1, "rollout", 0, "prompt", sample, "start") for sample in range(3)]
    assert torch.equal(*fold(random.normal(VIDEO, keys)), random.normal(FOLDED, keys))


@pytest.mark.parametrize("density", ["gaussian", "squared_error"])
@pytest.mark.parametrize("kind", KINDS)
def test_transitions(kind, density):
    videos = draws(4)
    t, t_next = torch.tensor([1.0, 0.9, 0.5, 0.2]), torch.tensor([0.9, 0.5, 0.2, 0.1])
    pairs = (videos[:2], fold(*videos[:2]))
    steps = [transition(kind, v, x, t, t_next, noise=0.6, t_max=0.9) for v, x in pairs]
    same(steps[0].mean, steps[1].mean)
    assert torch.equal(steps[0].std, steps[1].std)
    same(steps[0].sample(videos[2]), steps[1].sample(*fold(videos[2])))
    if kind != "ode":
        logprobs = [step.logprob(x, density) for step, x in zip(steps, (videos[3], *fold(videos[3])), strict=True)]
        assert logprobs[0].shape == (COUNT,)
        same(*logprobs)


@pytest.mark.parametrize("rescale", [False, True])
def test_guidance(rescale):
    towards, away = draws(2)
    guided = guide(towards, away, 4.0, rescale=rescale)
    same(guided, guide(*fold(towards, away), 4.0, rescale=rescale))
    if rescale:
        torch.testing.assert_close(guided.norm(dim=1), towards.norm(dim=1))


def test_rescaled_guidance_of_nothing_is_nothing():
    nothing = torch.zeros(1, *VIDEO, requires_grad=True)
    guided = guide(nothing, nothing, 4.0, rescale=True)
    guided.sum().backward()
    assert torch.equal(guided, torch.zeros_like(guided))
    assert nothing.grad.isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_denoising(kind):
    times, recorded = schedule(6, {"shift": 3.0}), torch.zeros(COUNT, 6, dtype=torch.bool)
    recorded[:, 1:4] = True
    plan = Plan(times=times, kind=kind, noise=0.5, recorded=recorded)
    start, *noises = draws(7)
    paths = [
        denoise(lambda x, t, rows: torch.tanh(x) + t.view(-1, *[1] * (x.ndim - 1)), x, plan, noise_at)
        for x, noise_at in ((start, lambda i: noises[i]), (*fold(start), lambda i: fold(noises[i])[0]))
    ]
    assert paths[0].state.shape == (COUNT, 3, *VIDEO)
    for name in ("latents", "state", "next_state", "time", "time_next", "logprob"):
        same(getattr(paths[0], name), getattr(paths[1], name))


TIME, PER_SAMPLE, OLD = torch.linspace(0.2, 0.9, COUNT), torch.linspace(-1, 1, COUNT), torch.zeros(COUNT)
LOSSES = {
    "matching_error": lambda a, b, c: matching_error(a, c - b),
    "gaussian_kl": lambda a, b, c: gaussian_kl(a, b, TIME),
    "squared_distance": lambda a, b, c: squared_distance(a, b),
    "distill_kl": lambda a, b, c: gaussian_kl(a, b, TIME),
    "distill_fm_mse": lambda a, b, c: squared_distance(a, b),
    "guard_log_ratio": lambda a, b, c: guard_log_ratio(PER_SAMPLE, OLD, a, b, TIME),
    "negative_aware": lambda a, b, c: negative_aware(a, b, c, b + c, TIME, TIME, beta=0.5)[0],
    "awm_logprob": lambda a, b, c: awm_logprob(a, b, TIME, weighting="t"),
    "awm_logprob huber": lambda a, b, c: awm_logprob(a, b, TIME, weighting="ghuber"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_their_gradients(name):
    first, *others = draws(3)
    first.requires_grad_()
    values = [LOSSES[name](*videos) for videos in ([first, *others], fold(first, *others))]
    assert values[0].shape == (COUNT,)
    same(*values)
    gradients = [torch.autograd.grad(value.sum(), first, retain_graph=True)[0] for value in values]
    same(gradients[0], *fold(gradients[1]))


class Painter(EmbeddedPipeline):
    """A model that mixes channels by a learned matrix, at any number of axes."""

    placement, lora_targets, class_name = "diffusers", (), "Painter"

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape, self.network = shape, nn.Linear(2, 2)
        self.rollout, self.scheduler_config = RolloutOptions(batch_size=96, guidance_rescale=True), {"shift": 3.0}
        self._embedded, self.compute, self.device = LruCache(10), torch.float32, torch.device("cpu")
        with torch.no_grad():
            self.network.weight.copy_(torch.tensor([[0.3, -0.2], [0.1, 0.4]]))
            self.network.bias.fill_(0.1)

    def latent_shape(self, height, width):
        return self.shape

    def image_tokens(self, shape):
        return 0

    def encode(self, texts):
        tokens = torch.tensor([[[float(len(text))]] for text in texts])
        return Embeddings(tokens=tokens, pooled=tokens[:, 0])

    def velocity(self, network, x, time, conditioning):
        column = [-1, *[1] * (x.ndim - 1)]
        mixed = network(torch.tanh(x).movedim(1, -1)).movedim(-1, 1)
        return mixed + time.view(column) * conditioning.pooled.view(column) / 10

    def decode(self, latents, conditioning=None):
        return [None] * len(latents)


RECORDING = Recording("sde", 0.7, Window())
PROMPTS = [Prompt(text="a"), Prompt(text="a longer one")]


def rollout(model: Painter, needs: Needs, guidance: float) -> tuple[Scored, FlowRoles]:
    roles = FlowRoles(model, needs, None, guidance=guidance, micro_batch_size=3, on_policy=False, seed=0)
    engine = FlowEngine(roles, RolloutOptions(num_inference_steps=5, batch_size=3), seed=2)
    job = FlowJob.groups(PROMPTS, 2, purpose="rollout", update=1, recording=needs.recording, role=needs.sampler)
    trace = Denoising.cat([part for _, part, _ in engine.sample(job)])
    reward = trace.latents.flatten(1).mean(1)
    scores = Scores(
        reward=reward, missing=torch.zeros(COUNT, dtype=torch.bool), components=reward[:, None], names=("mean",),
        notes=[""] * COUNT,
    )  # fmt: skip
    scored = Scored(
        prompts=job.prompts, group=job.group, sample=job.sample, trace=trace, scores=scores, update=1, version=0, seed=2
    )
    return scored, roles


@pytest.mark.parametrize("guidance", [1.0, 3.0])
@pytest.mark.parametrize(
    "algorithm", [FlowGRPO(noise_level=0.7, clip=0.1, kl_coef=0.1), DiffusionNFT(kl_coef=0.1)], ids=lambda a: a.name
)
def test_from_prompts_to_gradients(algorithm, guidance):
    results = []
    for shape in (VIDEO, FOLDED):
        scored, roles = rollout(Painter(shape), algorithm.needs(), guidance)
        batch, _ = algorithm.credit(algorithm.annotate(scored, roles))
        with torch.no_grad():
            roles.model.network.weight.add_(0.05)  # the policy has moved since it sampled
        roles.stepped()
        for part in algorithm.micro_batches(batch, 3):
            (algorithm.loss(part, roles).total / algorithm.size(batch)).backward()
        results.append((scored.trace.latents, roles.model.network.weight.grad))
    same(results[0][0], results[1][0])
    assert results[0][1].abs().max() > 1e-4
    torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-5, atol=1e-7)


def test_judged_videos_are_noised_like_their_folded_frames():
    terms = []
    for shape in (VIDEO, FOLDED):
        scored, _ = rollout(Painter(shape), Needs(recording=RECORDING), 1.0)
        judged = judge(scored, torch.full((COUNT,), 0.5), NoiseLevels(count=3))
        terms.append(next(judged.terms(99)))
    assert terms[0].noisy.shape == (3 * COUNT, *VIDEO)
    same(terms[0].noisy, terms[1].noisy)
    same(terms[0].clean, terms[1].clean)
