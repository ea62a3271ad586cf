"""Measures what Burnish makes of each pipeline class of diffusers, and writes the table in docs/generators.md.

    python tools/generator_table.py                       # every tiny pipeline; about an hour on an idle core
    python tools/generator_table.py --jobs 2
    python tools/generator_table.py --only wan2.2 sdxl    # these anew; the others as they were measured before
    python tools/generator_table.py --check flux sdxl     # these, without the page; exit status 1 where one has a fault

A row is a tiny random pipeline of `burnish tiny`, written to a temporary folder, loaded as model family `pipeline`,
compared with the pipeline's own call, trained by flow_grpo and diffusion_nft, exported, and loaded by diffusers alone.
A difference above 5e-4 of the largest value is a fault, and so is an update that changes anything but what is trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from class_table import ClassTable, figure, lines_of
from generator_classes import groups
from generator_row import Row, measure

from burnish.models.tiny import ALL, describe

KINDS = {"images": "Images", "videos": "Videos", "sound": "Sound"}


def measured(name: str, folder: Path) -> Row:
    """A row of a tiny pipeline."""
    return measure(describe(name), folder / "run")


def failed(name: str, why: str) -> Row:
    """A row of a pipeline that could not be measured."""
    tiny = describe(name)
    return Row(name=tiny.name, pipeline=tiny.kind, makes=tiny.makes, failed=why)


def told(row: Row) -> str:
    """A row as a line of progress."""
    if row.refused:
        return f"{row.name} {row.pipeline}: {row.refused}"
    figures = {"latents": row.latents, "output": row.output, "same": row.same, "log-probs": row.logprob,
               "adapter": row.lora, "weights": row.full}  # fmt: skip
    shown = " ".join(f"{name} {figure(value)}" for name, value in figures.items())
    return f"{row.name} {row.pipeline}: {shown}"


def page(rows: Sequence[Row]) -> str:
    """The text of the page."""
    import diffusers

    trained = [row for row in rows if row.good]
    classes = len({row.pipeline for row in trained})
    parts = [HEAD.format(classes=classes, models=len(trained), version=diffusers.__version__)]
    for kind, title in KINDS.items():
        if some := [row for row in trained if row.makes == kind]:
            parts.append(f"## {title}\n\n{table(some)}\n")
    parts.append(REASONS)
    others = sorted((row for row in rows if not row.good), key=lambda row: row.pipeline)
    if others:
        lines = [
            [row.pipeline.removesuffix("Pipeline"), row.name, row.refused or "; ".join(row.faults)] for row in others
        ]
        parts.append(f"{REFUSED}\n{lines_of([['class', 'model', 'reason'], *lines])}\n")
    parts.append(OTHERS)
    for reason, names in groups({row.pipeline for row in rows}).items():
        parts.append(f"- **{reason}** ({len(names)}): {', '.join(names)}.")
    return "\n".join(parts) + "\n"


def table(rows: Sequence[Row]) -> str:
    """Rows of a kind, sorted by their classes."""
    head = "class | model | latents | output | why | then | log-probs | updates | adapter | weights | slower"
    lines = [head.split(" | ")]
    for row in sorted(rows, key=lambda row: (row.pipeline, row.name)):
        then = figure(row.same) if row.changed else ""
        lines.append([
            row.pipeline.removesuffix("Pipeline"), row.name, figure(row.latents), figure(row.output),
            ", ".join(row.changed), then, figure(row.logprob), "5 + 5", figure(row.lora), figure(row.full),
            "" if row.shares else "single",
        ])  # fmt: skip
    return lines_of(lines)


HEAD = """# Which generators can be trained

Burnish trains any pipeline of diffusers that steps its scheduler once per iteration, or once for each of several
streams, such as frames and sound, without code for it: it runs the pipeline's own `__call__`, and compares what it
makes of it with that call when a model is loaded ([models](models.md)).
This page says what that gave for **{classes} classes** ({models} models) of diffusers {version}, with tiny random
weights in float32 on a CPU. `python tools/generator_table.py` measures all of it again and writes this page.

Every difference is relative to the largest value, so that 1e-6 is rounding. It grows to 1e-4 where a solver counts in
logarithms of noise levels (UniPC) and an untrained decoder makes more of it, and to 3e-4 where noise begins at 500
times the signal (Stable Audio), which float32 has no digits left for:

- **latents, output**: our deterministic sampler beside the pipeline's own call in diffusers alone, from the same seed,
  in 12 steps with guidance and without: final latents, and the decoded image, clip or sound.
- **why** they differ, if they do, and what is left **then**: *solver* and *condition* are explained below the tables.
- **log-probs**: sampler's against trainer's, at the same weights.
- **updates**: of flow_grpo and of diffusion_nft, with adapters: all losses are finite, every gradient has a length, and
  every weight but those of the adapters has the same bits as before.
- **adapter, weights**: what diffusers alone draws with the exported adapter, and with all weights, exported after two
  updates of all of them, beside what our sampler draws with the trained ones.
- **slower**: *single*: every sample has its own forward, as together they differ.
"""
REASONS = """## Why some differ from the pipeline's own call

- *solver*: the pipeline comes with another solver than Euler's (UniPC, DPM-Solver++, PNDM), or with one that draws new
  noise. Burnish takes its noise levels and steps by Euler's method, which is DDIM where the network predicts noise: the
  stochastic steps of reinforcement learning are made from it. Diffusers' DDIM is another solver where the number of
  steps doesn't divide 1000: its steps are 1000 // N long, but trailing timesteps are 1000 / N apart, so that a step
  ends up to one timestep from where the next begins (CogVideoX in 12 steps). *Then* the pipeline has our solver too.
- *condition*: the pipeline draws more than its first latents from the sample's generator: noise in the encoding of its
  image, or in what it keeps of it, or tokens that a frozen part writes. In Burnish all samples of a prompt share what
  is random in their condition, or a group would be compared on unequal terms. *Then* both sides have it from the same
  seed, and encode to means. What writes in GLM-Image and ErnieImage writes for each sample
  [once it is trained](sampling.md#tokens-before-the-image), on one process or several.
"""
REFUSED = """## Measured, and not trained
"""
OTHERS = """
## Not measured

Most of these can't be trained, by what their code does:

"""

TABLE = ClassTable(
    about=__doc__,
    names=[tiny.name for tiny in ALL],
    describe=describe,
    row=Row,
    measure=measured,
    failed=failed,
    told=told,
    page=page,
    trained=lambda rows: len({row.pipeline for row in rows if row.good}),
    file="generators.md",
    work="build/generators",
)

if __name__ == "__main__":
    raise SystemExit(TABLE.main())
