"""Trains the generator that the quickstart improves: it draws clean digits, and often the wrong ones.

    python tools/pretrain_tiny.py --output build/quickstart --evaluate

Flow matching on rendered numbers, on one thread; the same seed gives the same bytes on one machine.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from rich.console import Console
from tiny_data import HEIGHT, STYLES, WIDTH, Split, prompt_of, render, split, write_prompts
from tiny_measure import measure, to_bytes
from tiny_pipeline import BLANKS, Pipeline, build_pipeline, encode, load, networks, save, token_ids
from tiny_training import check_steps, command_line, fit, repeatable
from torch import Tensor

from burnish.utils.random import generator

STEPS = 1900
BATCH = 64
LEARNING_RATE, WARMUP = 2e-3, 100
DROPPED = 0.1  # share of prompts that are replaced by "", which guidance needs
# Zero tokens in place of the T5 encoder. A user who does not know that there is none leaves diffusers' 256 of
# them, so some steps have many: the network learns to look past them. They are rare because they are slow.
MANY_BLANKS, MANY_BLANKS_EVERY = (77, 256), 16

SAMPLING_STEPS, SAMPLES = 8, 6  # of the evaluation, as the quickstart samples
WITH_IMAGES = 12  # prompts in the grid of images


@dataclass(frozen=True)
class Part:
    """What one training step learns from."""

    clean: Tensor  # [B, 1, H, W]
    noise: Tensor  # [B, 1, H, W]
    time: Tensor  # [B]
    row: Tensor  # [B] which row of the token ids
    blanks: int


def draw(numbers: Split, *, seed: int, step: int) -> Part:
    """The batch of a step: a function of the seed and the step alone."""
    draws = generator(seed, "pretrain", step)
    row = torch.randint(len(numbers.seen), (BATCH,), generator=draws)
    style = torch.randint(len(STYLES), (BATCH,), generator=draws)
    clean = torch.stack([render(numbers.seen[r], STYLES[s]) for r, s in zip(row.tolist(), style.tolist(), strict=True)])
    many = MANY_BLANKS[step // MANY_BLANKS_EVERY % len(MANY_BLANKS)]
    return Part(
        clean=clean,
        noise=torch.randn(clean.shape, generator=draws),
        time=torch.randn(BATCH, generator=draws).sigmoid(),
        row=row.masked_fill(torch.rand(BATCH, generator=draws) < DROPPED, len(numbers.seen)),
        blanks=many if step % MANY_BLANKS_EVERY == MANY_BLANKS_EVERY - 1 else BLANKS,
    )


def loss_of(pipeline: Pipeline, part: Part, ids: Tensor) -> Tensor:
    """Flow matching: on the line from image to noise the velocity is their difference."""
    share = part.time[:, None, None, None]
    tokens, pooled = encode(pipeline, ids, blanks=part.blanks)
    velocity: Tensor = pipeline.transformer(
        hidden_states=(1 - share) * part.clean + share * part.noise,
        timestep=part.time * 1000,
        encoder_hidden_states=tokens,
        pooled_projections=pooled,
        return_dict=False,
    )[0]
    return (velocity - (part.noise - part.clean)).square().mean()


def pretrain(*, steps: int, seed: int, console: Console) -> Pipeline:
    """Train transformer and text encoders together, to the end of a schedule made for this many steps."""
    pipeline, numbers = build_pipeline(seed), split(seed)
    ids = token_ids(pipeline, [*(prompt_of(number) for number in numbers.seen), ""])

    def loss(step: int) -> Tensor:
        part = draw(numbers, seed=seed, step=step)
        return loss_of(pipeline, part, ids[part.row])

    fit(networks(pipeline), loss, steps=steps, learning_rate=LEARNING_RATE, warmup=WARMUP, console=console)
    return pipeline


def sample(pipeline: Pipeline, prompts: list[str], *, guidance: float, seed: int, blanks: int = BLANKS) -> Tensor:
    """Images [prompts, SAMPLES, 1, H, W] as diffusers draws them; the same seed, the same noise."""
    noise = [generator(seed, "evaluate", i, j) for i in range(len(prompts)) for j in range(SAMPLES)]
    images: Tensor = pipeline(
        prompt=prompts, height=8 * HEIGHT, width=8 * WIDTH, num_inference_steps=SAMPLING_STEPS,
        guidance_scale=guidance, num_images_per_prompt=SAMPLES, generator=noise, max_sequence_length=blanks,
        output_type="latent",
    ).images  # fmt: skip
    return images.view(len(prompts), SAMPLES, 1, HEIGHT, WIDTH)


def evaluate(folder: Path, *, seed: int, console: Console) -> None:
    """Draw held-out numbers with and without guidance; print measurements, write grids of images."""
    pipeline = load(folder / "model")
    rows = [json.loads(line) for line in (folder / "heldout.jsonl").read_text(encoding="utf-8").splitlines()]
    for guidance, blanks in ((1.0, BLANKS), (3.0, BLANKS), (1.0, MANY_BLANKS[-1])):
        images = sample(pipeline, [row["prompt"] for row in rows], guidance=guidance, seed=seed, blanks=blanks)
        measured = measure(images, [row["answer"] for row in rows])
        figures = ", ".join(f"{name} {value:.4f}" for name, value in measured.items())
        console.print(f"guidance {guidance:g}, max_sequence_length {blanks}: {figures}", soft_wrap=True)
        if blanks == BLANKS:
            write_grid(folder / f"guidance_{guidance:g}.png", images[:: len(rows) // WITH_IMAGES])


def write_grid(path: Path, images: Tensor) -> None:
    """A row for each prompt."""
    rows, columns = images.shape[:2]
    canvas = to_bytes(images)[:, :, 0].permute(0, 2, 1, 3).reshape(rows * HEIGHT, columns * WIDTH)
    image = Image.fromarray(canvas.numpy())
    image.resize((image.width * 4, image.height * 4), Image.Resampling.NEAREST).save(path)


def main(arguments: list[str] | None = None) -> None:
    """Command line."""
    parser = command_line(__doc__ or "", "build/quickstart")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"optimizer steps, 0 trains nothing ({STEPS})")
    parser.add_argument(
        "--evaluate", action="store_true",
        help="draw and read the held-out numbers and write grids of them to the output folder; "
        "with --steps 0 for the model that is there already",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    check_steps(parser, options, "steps")
    console = Console(highlight=False)
    repeatable()
    options.output.mkdir(parents=True, exist_ok=True)
    if options.steps > 0:
        pipeline = pretrain(steps=options.steps, seed=options.seed, console=console)
        save(pipeline, options.output / "model")
        numbers = split(options.seed)
        write_prompts(options.output / "train.jsonl", numbers.train)
        write_prompts(options.output / "heldout.jsonl", numbers.heldout)
    if options.evaluate:
        evaluate(options.output, seed=options.seed, console=console)


if __name__ == "__main__":
    main()
