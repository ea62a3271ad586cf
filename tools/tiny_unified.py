"""Trains a small unified model: one half writes what is drawn, the other draws it, and neither does it well.

    python tools/tiny_unified.py --output build/unified

An ERNIE-Image of .4 million weights, on one thread. Asked for a thing, its language model writes the thing's name and
a colour, often the wrong one. Its transformer draws a disc of about the colour that is written.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import torch
from rich.console import Console
from tiny_training import check_steps, command_line, fit, repeatable
from tiny_unified_reward import COLOURS, GREY
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from burnish.models.tiny import Tiny, describe
from burnish.models.tiny.build import build
from burnish.utils.random import generator, permutation

VAE_STEPS, STEPS, WRITER_STEPS, BATCH = 300, 700, 250, 64
SIDE = 16  # pixels of an image
THINGS = {
    "tomato": "red", "cherry": "red", "banana": "yellow", "lemon": "yellow", "leaf": "green", "frog": "green",
    "sea": "blue", "sky": "blue", "snow": "white", "milk": "white", "coal": "black", "raven": "black",
}  # fmt: skip
WORDS = ("a", "the", "my", "her", "his", "some", "this", "old")
HELDOUT = 24
RIGHT = 0.3  # share of colours that the writer learns right; at the pipeline's temperature it is more sure
JITTER = 0.2  # standard deviation of what is drawn from the colour that is written
WIDE = {"hidden_size": 64, "intermediate_size": 128}
PARTS: dict[str, Any] = {
    "pe": ["Ministral3ForCausalLM", WIDE], "text_encoder": {"text_config": WIDE},
    "pe_tokenizer": ["PreTrainedTokenizerFast", {"model_max_length": 16}],
    "transformer": {"hidden_size": 64, "ffn_hidden_size": 128, "text_in_dim": 64, "rope_axes_dim": [8, 12, 12]},
    "vae": {"block_out_channels": [8, 16], "down_block_types": ["DownEncoderBlock2D"] * 2,
            "up_block_types": ["UpDecoderBlock2D"] * 2},
}  # fmt: skip


def discs(names: list[str], draws: torch.Generator) -> Tensor:
    """Images [B, 3, 16, 16] in [-1, 1]: discs of about these colours on grey."""
    colour = torch.tensor([COLOURS[name] for name in names])
    colour = (colour + JITTER * torch.randn(colour.shape, generator=draws)).clamp(0, 1)
    radius = 4 + 3 * torch.rand(len(names), 1, 1, generator=draws)
    place = (torch.arange(SIDE) - (SIDE - 1) / 2).square()
    inside = ((place[:, None] + place).sqrt() < radius)[:, None]
    return torch.where(inside, colour[:, :, None, None], GREY) * 2 - 1


def chosen(step: int, seed: int, right: float) -> tuple[list[str], list[str], torch.Generator]:
    """Things and colours of a batch, a share of which is right, by the seed and the step alone."""
    draws = generator(seed, "unified", step)
    things = [list(THINGS)[i] for i in torch.randint(len(THINGS), (BATCH,), generator=draws).tolist()]
    others = torch.randint(len(COLOURS), (BATCH,), generator=draws).tolist()
    known = (torch.rand(BATCH, generator=draws) < right).tolist()
    names = [
        THINGS[thing] if is_known else list(COLOURS)[other]
        for thing, other, is_known in zip(things, others, known, strict=True)
    ]
    return things, names, draws


def padded(rows: list[list[int]], value: int) -> Tensor:
    """Ids [B, T], behind which there is ``value``."""
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=value)


def pretrain(pipeline: Any, steps: tuple[int, int, int], *, seed: int, console: Console) -> None:
    """Train the VAE, then transformer and text encoder together, and what writes."""
    norm = pipeline.vae.bn  # of its latents

    def autoencoder(step: int) -> Tensor:
        _, names, draws = chosen(step, seed, 0.0)
        images = discs(names, draws)
        restored: Tensor = pipeline.vae.decode(pipeline.vae.encode(images).latent_dist.mode()).sample
        return (restored - images).square().mean()

    def encoded(images: Tensor) -> Tensor:
        latents: Tensor = pipeline._patchify_latents(pipeline.vae.encode(images).latent_dist.mode())
        return latents

    def denoiser(step: int) -> Tensor:
        things, names, draws = chosen(step, seed, 0.0)
        with torch.no_grad():
            mean, variance = norm.running_mean[:, None, None], norm.running_var[:, None, None]
            clean: Tensor = (encoded(discs(names, draws)) - mean) / (variance + 1e-5).sqrt()
        noise, share = torch.randn(clean.shape, generator=draws), torch.randn(BATCH, generator=draws).sigmoid()
        texts = [f"{name} {thing}" for name, thing in zip(names, things, strict=True)]
        rows = pipeline.tokenizer(texts)["input_ids"]
        hidden = pipeline.text_encoder(padded(rows, 0), output_hidden_states=True).hidden_states[-2]
        at = share[:, None, None, None]
        found: Tensor = pipeline.transformer(
            hidden_states=(1 - at) * clean + at * noise, timestep=share * 1000, text_bth=hidden,
            text_lens=torch.tensor([len(row) for row in rows]), return_dict=False,
        )[0]  # fmt: skip
        return (found - (noise - clean)).square().mean()

    def writer(step: int) -> Tensor:
        things, names, draws = chosen(step, seed, RIGHT)
        words, reads = torch.randint(len(WORDS), (BATCH,), generator=draws).tolist(), pipeline.pe_tokenizer
        asked, said = list[list[int]](), list[list[int]]()
        for word, thing, name in zip(words, things, names, strict=True):
            content = json.dumps({"prompt": f"{WORDS[word]} {thing}", "width": SIDE, "height": SIDE})
            asked.append(reads.apply_chat_template([{"role": "user", "content": content}], return_dict=False))
            said.append([*reads(f"{name} {thing}")["input_ids"], reads.eos_token_id])
        rows = [one + other for one, other in zip(asked, said, strict=True)]
        wanted = padded([[-100] * len(one) + other for one, other in zip(asked, said, strict=True)], -100)
        logits: Tensor = pipeline.pe(padded(rows, 0)).logits
        return cross_entropy(logits[:, :-1].flatten(0, 1), wanted[:, 1:].flatten())

    for name, network, loss, count, lr in (
        ("vae", pipeline.vae, autoencoder, steps[0], 4e-3),
        ("transformer", nn.ModuleList([pipeline.transformer, pipeline.text_encoder]), denoiser, steps[1], 2e-3),
        ("pe", pipeline.pe, writer, steps[2], 2e-3),
    ):
        if name == "transformer":
            with torch.no_grad():
                _, names, draws = chosen(-1, seed, 0.0)
                latents = encoded(discs(names * 8, draws))
            norm.running_mean.copy_(latents.mean((0, 2, 3)))
            norm.running_var.copy_(latents.var((0, 2, 3)))
        fit(network, loss, steps=count, learning_rate=lr, warmup=20, console=console, name=name)


def main(arguments: list[str] | None = None) -> None:
    """Command line."""
    parser = command_line(__doc__ or "", "build/unified")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"optimizer steps of the transformer ({STEPS})")
    options = parser.parse_args(arguments)
    check_steps(parser, options, "steps")
    repeatable()
    options.output.mkdir(parents=True, exist_ok=True)
    records = [{"prompt": f"{word} {thing}", "answer": colour} for thing, colour in THINGS.items() for word in WORDS]
    order = permutation(len(records), options.seed, "split")
    for name, rows in (("heldout", order[:HELDOUT]), ("train", order[HELDOUT:])):
        lines = [f"{json.dumps(records[row])}\n" for row in rows]
        (options.output / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    if options.steps:
        tiny = describe("ernie-image-rewritten")
        assert isinstance(tiny, Tiny)
        pipeline = build(replace(tiny, parts={**tiny.parts, **PARTS}), options.seed)
        share = options.steps / STEPS
        steps = max(round(VAE_STEPS * share), 1), options.steps, max(round(WRITER_STEPS * share), 1)
        pretrain(pipeline, steps, seed=options.seed, console=Console(highlight=False))
        pipeline.save_pretrained(options.output / "model")


if __name__ == "__main__":
    main()
