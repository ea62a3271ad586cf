"""Trains the generator that the third quickstart improves: it draws digits that move, and often the wrong ones.

    python tools/tiny_video.py --output build/video_quickstart --evaluate

First the VAE, as an autoencoder of rendered clips; then flow matching on its latents. On one thread; the same seed
gives the same bytes on one machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan
from PIL import Image
from rich.console import Console
from tiny_measure import measure_clips, to_bytes
from tiny_pipeline import save_half
from tiny_training import check_steps, command_line, fit, repeatable
from tiny_video_data import (
    FEW_STYLES,
    FRAMES,
    HEIGHT,
    STYLES,
    WIDTH,
    Scene,
    Style,
    render,
    scenes_of,
    split,
    write_prompts,
)
from tiny_video_model import (
    MAX_TOKENS,
    Pipeline,
    build_pipeline,
    compress,
    encode,
    expand,
    load,
    networks,
    token_ids,
)
from torch import Tensor

from burnish.utils.random import generator

VAE_STEPS, STEPS, LAST_STEPS = 900, 2400, 1000
BATCH, VAE_BATCH = 32, 2
LEARNING_RATE, WARMUP = 2e-3, 100
VAE_LEARNING_RATE, VAE_WARMUP = 5e-3, 50
SHORT, SHORT_SHARE = 5, 0.6  # the VAE begins with clips of so many frames, and ends with all
JITTER = 0.1  # noise on the latents that the VAE's decoder learns from, in their std: what is drawn is never exact
BLUNT = 0.3  # weight of the absolute error beside the squared one, which tells white from almost white
DROPPED = 0.1  # share of prompts that are replaced by "", which guidance needs
# Zero tokens that fill a prompt up. Who leaves diffusers' length has 512, so some steps have as many
MANY_TOKENS, MANY_TOKENS_EVERY = 512, 16

SAMPLING_STEPS, SAMPLES = 8, 4  # of the evaluation, as the quickstart samples
WITH_IMAGES = 10  # clips on the sheet


def train_vae(pipeline: Pipeline, *, steps: int, seed: int, console: Console) -> None:
    """Train the VAE to give clips back, and note what its latents are like."""
    scenes, vae = split(seed).train, pipeline.vae

    def loss(step: int) -> Tensor:
        draws = generator(seed, "vae", step)
        chosen = torch.randint(len(scenes) * len(STYLES), (VAE_BATCH,), generator=draws).tolist()
        clips = torch.stack([render(scenes[i // len(STYLES)], STYLES[i % len(STYLES)]) for i in chosen])
        if step < SHORT_SHARE * steps:
            start = int(torch.randint(FRAMES - SHORT + 1, (), generator=draws))
            clips = clips[:, start : start + SHORT]
        latents = compress(vae, clips)
        noise = torch.randn(latents.shape, generator=draws) * latents.detach().std()
        error = expand(vae, latents + JITTER * noise) - clips[:, None]
        return error.square().mean() + BLUNT * error.abs().mean()

    fit(vae, loss, steps=steps, learning_rate=VAE_LEARNING_RATE, warmup=VAE_WARMUP, console=console, name="VAE")


@torch.no_grad()
def latents_of(pipeline: Pipeline, styles: tuple[Style, ...], *, seed: int) -> Tensor:
    """What the generator learns to draw, as the VAE compresses it: [scenes, styles, C, f, h, w]."""
    scenes = split(seed).train
    return torch.stack([
        compress(pipeline.vae, torch.stack([render(scene, style) for style in styles])) for scene in scenes
    ])  # fmt: skip


def normalise(latents: Tensor, vae: AutoencoderKLWan) -> Tensor:
    """Latents with the mean and std that the VAE's config names."""
    mean, std = (torch.tensor(vae.config[name]).view(-1, 1, 1, 1) for name in ("latents_mean", "latents_std"))
    return (latents - mean) / std


@dataclass(frozen=True)
class Part:
    """What one training step learns from."""

    clean: Tensor  # [B, C, f, h, w]
    noise: Tensor  # like clean
    time: Tensor  # [B]
    row: Tensor  # [B] which row of the token ids
    length: int  # of the prompts, in tokens


def draw(latents: Tensor, *, seed: int, step: int) -> Part:
    """The batch of a step: a function of the seed and the step alone."""
    draws = generator(seed, "pretrain", step)
    row = torch.randint(len(latents), (BATCH,), generator=draws)
    clean = latents[row, torch.randint(latents.shape[1], (BATCH,), generator=draws)]
    return Part(
        clean=clean,
        noise=torch.randn(clean.shape, generator=draws),
        time=torch.randn(BATCH, generator=draws).sigmoid(),
        row=row.masked_fill(torch.rand(BATCH, generator=draws) < DROPPED, len(latents)),
        length=MANY_TOKENS if step % MANY_TOKENS_EVERY == MANY_TOKENS_EVERY - 1 else MAX_TOKENS,
    )


def loss_of(pipeline: Pipeline, part: Part, ids: Tensor) -> Tensor:
    """Flow matching: on the line from latents to noise the velocity is their difference."""
    share = part.time.view(-1, 1, 1, 1, 1)
    velocity: Tensor = pipeline.transformer(
        hidden_states=(1 - share) * part.clean + share * part.noise,
        timestep=part.time * 1000,
        encoder_hidden_states=encode(pipeline, ids, length=part.length),
        return_dict=False,
    )[0]
    return (velocity - (part.noise - part.clean)).square().mean()


def train_generator(pipeline: Pipeline, latents: Tensor, *, steps: int, seed: int, console: Console, name: str) -> None:
    """Train transformer and text encoder together on normalised latents, to the end of a schedule."""
    ids = token_ids(pipeline, [*(scene.prompt for scene in split(seed).train), ""])

    def loss(step: int) -> Tensor:
        part = draw(latents, seed=seed, step=step)
        return loss_of(pipeline, part, ids[part.row])

    fit(
        networks(pipeline),
        loss,
        steps=steps,
        learning_rate=LEARNING_RATE,
        warmup=WARMUP,
        console=console,
        name="generator",
    )


def pretrain(folder: Path, *, vae_steps: int, steps: int, last_steps: int, seed: int, console: Console) -> None:
    """Train the VAE, the generator on clips of all styles, and then of few; each goes on from what was written."""
    if vae_steps:
        pipeline = build_pipeline(seed)
        train_vae(pipeline, steps=vae_steps, seed=seed, console=console)
        save_half(pipeline, folder, MAX_TOKENS)
    if steps:
        pipeline = build_pipeline(seed)
        pipeline.vae = load(folder).vae
        latents = latents_of(pipeline, STYLES, seed=seed)
        channels = latents.transpose(0, 2).flatten(1)
        found = {"latents_mean": channels.mean(1).tolist(), "latents_std": channels.std(1).tolist()}
        pipeline.vae.register_to_config(**found)
        latents = normalise(latents, pipeline.vae)
        train_generator(pipeline, latents, steps=steps, seed=seed, console=console, name="all styles")
        save_half(pipeline, folder, MAX_TOKENS)
    if last_steps:
        pipeline = load(folder)
        latents = normalise(latents_of(pipeline, FEW_STYLES, seed=seed), pipeline.vae)
        train_generator(pipeline, latents, steps=last_steps, seed=seed, console=console, name="few styles")
        save_half(pipeline, folder, MAX_TOKENS)


def sample(pipeline: Pipeline, prompts: list[str], *, guidance: float, seed: int, length: int = MAX_TOKENS) -> Tensor:
    """Clips [prompts, SAMPLES, F, H, W, 3] in [0, 1] as diffusers draws them; the same seed, the same noise."""
    noise = [generator(seed, "evaluate", i, j) for i in range(len(prompts)) for j in range(SAMPLES)]
    clips: Tensor = pipeline(
        prompt=prompts, height=HEIGHT, width=WIDTH, num_frames=FRAMES, num_inference_steps=SAMPLING_STEPS,
        guidance_scale=guidance, num_videos_per_prompt=SAMPLES, generator=noise, max_sequence_length=length,
        output_type="pt",
    ).frames  # fmt: skip
    return clips.movedim(2, -1).view(len(prompts), SAMPLES, FRAMES, HEIGHT, WIDTH, 3)


def evaluate(folder: Path, *, seed: int, console: Console) -> None:
    """Draw held-out scenes with and without guidance; print measurements, write sheets of clips."""
    pipeline, scenes = load(folder / "model"), scenes_of(folder / "heldout.jsonl")
    rendered = torch.stack([render(scene, STYLES[i % len(STYLES)]) for i, scene in enumerate(scenes)])
    with torch.no_grad():
        back = pipeline.vae.decode(compress(pipeline.vae, rendered)).sample.movedim(1, -1)
    show(console, "renderings", rendered[:, None, ..., None].expand(-1, -1, -1, -1, -1, 3) / 2 + 0.5, scenes)
    show(console, "renderings through the VAE", back[:, None] / 2 + 0.5, scenes)
    for guidance, length in ((1.0, MAX_TOKENS), (3.0, MAX_TOKENS), (1.0, MANY_TOKENS)):
        clips = sample(pipeline, [scene.prompt for scene in scenes], guidance=guidance, seed=seed, length=length)
        show(console, f"guidance {guidance:g}, max_sequence_length {length}", clips, scenes)
        if length == MAX_TOKENS:
            write_sheet(folder / f"guidance_{guidance:g}.png", clips[:WITH_IMAGES, 0])


def show(console: Console, name: str, clips: Tensor, scenes: tuple[Scene, ...]) -> None:
    """Print what clips [scenes, samples, F, H, W, 3] in [0, 1] measure."""
    figures = ", ".join(f"{name} {value:.4f}" for name, value in measure_clips(clips, scenes).items())
    console.print(f"{name}: {figures}", soft_wrap=True)


def write_sheet(path: Path, clips: Tensor) -> None:
    """Clips [N, F, H, W, 3] in [0, 1], a row each, a grey line around every frame."""
    frames = torch.nn.functional.pad(to_bytes(clips * 2 - 1), (0, 0, 0, 1, 0, 1), value=160)
    rows, columns, height, width = frames.shape[:4]
    image = Image.fromarray(frames.transpose(1, 2).reshape(rows * height, columns * width, 3).numpy())
    image.resize((image.width * 4, image.height * 4), Image.Resampling.NEAREST).save(path)


def main(arguments: list[str] | None = None) -> None:
    """Command line."""
    parser = command_line(__doc__ or "", "build/video_quickstart")
    for name, usual, what in (
        ("--vae-steps", VAE_STEPS, "the VAE"),
        ("--steps", STEPS, "the generator on clips of all styles"),
        ("--last-steps", LAST_STEPS, "the generator on clips of few styles"),
    ):
        parser.add_argument(
            name, type=int, default=usual,
            help=f"optimizer steps of {what}, 0 takes what is there already ({usual})",
        )  # fmt: skip
    parser.add_argument(
        "--evaluate", action="store_true",
        help="draw and judge the held-out scenes and write sheets of them to the output folder; "
        "with 0 steps of each for the model that is there already",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    check_steps(parser, options, "vae_steps", "steps", "last_steps")
    console = Console(highlight=False)
    repeatable()
    options.output.mkdir(parents=True, exist_ok=True)
    given = {name: getattr(options, name) for name in ("vae_steps", "steps", "last_steps", "seed")}
    pretrain(options.output / "model", **given, console=console)
    scenes = split(options.seed)
    write_prompts(options.output / "train.jsonl", scenes.train)
    write_prompts(options.output / "heldout.jsonl", scenes.heldout)
    if options.evaluate:
        evaluate(options.output, seed=options.seed, console=console)


if __name__ == "__main__":
    main()
