"""Trains a FLUX of two million weights on the quickstart's numbers, to show that FLUX learns what SD3 learns.

    python tools/tiny_flux.py --output build/flux_quickstart
    python tools/tiny_flux.py --output build/flux_quickstart --go-on --seed 1 --evaluate
    burnish train quickstart model.path=build/flux_quickstart/model
    burnish train quickstart model.path=build/flux_quickstart/model model.family=pipeline

First the VAE, as an autoencoder of rendered numbers; then flow matching on its packed latents. It isn't shipped: the
two commands draw and train alike, by FLUX's own family and by the pipeline's own code.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
from pretrain_tiny import SAMPLES, SAMPLING_STEPS, draw, write_grid
from rich.console import Console
from tiny_data import HEIGHT, STYLES, WIDTH, prompt_of, render, split, write_prompts
from tiny_measure import measure
from tiny_pipeline import MAX_TOKENS, clip_tokenizer, save_half
from tiny_training import SEED, command_line, fit, repeatable
from torch import Tensor, nn
from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel, T5Tokenizer

from burnish.utils.random import generator

Pipeline: TypeAlias = Any  # a FluxPipeline; diffusers declares no types

VAE_STEPS, STEPS = 600, 3000
VAE_BATCH, VAE_LEARNING_RATE = 32, 5e-3
LEARNING_RATE, WARMUP = 2e-3, 100
CHANNELS, SQUEEZED = 4, 2  # of the latents, and pixels of one along each side
JITTER = 0.1  # noise on the latents that the VAE's decoder learns from, in their std: what is drawn is never exact
TOKENS, TEXT_WIDTH = 5, 64  # the, number, the first digit, the other two, end
LAYERS, SINGLE_LAYERS, HEADS, HEAD_WIDTH, AXES = 2, 4, 3, 32, (8, 12, 12)
POOLED_WIDTH = 64
EMBEDDING_STD = 0.1


def t5_tokenizer() -> T5Tokenizer:
    """T5's tokenizer with a vocabulary of our own. Its pieces say where a digit stands, which T5 learns slowly."""
    digits = [str(digit) for digit in range(10)]
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("\u2581", -2.0)]
    pieces += [(f"\u2581{word}", -1.0) for word in ("the", "number", *digits)]
    pieces += [(first + second, -1.0) for first in digits for second in digits] + [(digit, -3.0) for digit in digits]
    return T5Tokenizer(vocab=pieces, extra_ids=0, model_max_length=TOKENS)


def build_pipeline(seed: int) -> Pipeline:
    """An untrained pipeline; its weights depend on the seed alone."""
    torch.manual_seed(seed)  # modules initialise themselves from the global generator
    words, spelled = clip_tokenizer(), t5_tokenizer()
    pipeline: Pipeline = FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=1.0),
        vae=AutoencoderKL(
            block_out_channels=(8, 16), down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2, latent_channels=CHANNELS, layers_per_block=1, norm_num_groups=4,
            use_quant_conv=False, use_post_quant_conv=False, mid_block_add_attention=False, shift_factor=0.0,
        ),
        text_encoder=CLIPTextModel(
            CLIPTextConfig(
                vocab_size=len(words), hidden_size=POOLED_WIDTH, intermediate_size=4 * POOLED_WIDTH,
                num_hidden_layers=3, num_attention_heads=2, max_position_embeddings=MAX_TOKENS,
                bos_token_id=len(words) - 2, eos_token_id=len(words) - 1, pad_token_id=len(words) - 1,
            )
        ),
        tokenizer=words,
        text_encoder_2=T5EncoderModel(
            T5Config(
                vocab_size=len(spelled), d_model=TEXT_WIDTH, d_kv=32, d_ff=4 * TEXT_WIDTH, num_layers=3, num_heads=2,
                dropout_rate=0.0,
            )
        ),
        tokenizer_2=spelled,
        transformer=FluxTransformer2DModel(
            in_channels=4 * CHANNELS, num_layers=LAYERS, num_single_layers=SINGLE_LAYERS, attention_head_dim=HEAD_WIDTH,
            num_attention_heads=HEADS, joint_attention_dim=TEXT_WIDTH, pooled_projection_dim=POOLED_WIDTH,
            axes_dims_rope=AXES,
        ),
    )  # fmt: skip
    # T5 begins with words so large that few steps would never teach it their order
    nn.init.normal_(pipeline.text_encoder_2.shared.weight, std=EMBEDDING_STD)
    return pipeline


def networks(pipeline: Pipeline) -> nn.ModuleList:
    """What is trained to draw, together; the VAE comes before."""
    return nn.ModuleList([pipeline.transformer, pipeline.text_encoder, pipeline.text_encoder_2])


def compress(vae: AutoencoderKL, images: Tensor) -> Tensor:
    """Grey images [B, 1, H, W] in [-1, 1] as latents, not normalised: [B, C, h, w]."""
    latents: Tensor = vae.encode(images.expand(-1, 3, -1, -1)).latent_dist.mode()
    return latents


def train_vae(vae: AutoencoderKL, *, steps: int, seed: int, console: Console) -> None:
    """Train the VAE to give images back, and note what its latents are like."""
    numbers = split(SEED).seen

    def images(step: int) -> tuple[Tensor, torch.Generator]:
        draws = generator(seed, "vae", step)
        chosen = torch.randint(len(numbers) * len(STYLES), (VAE_BATCH,), generator=draws).tolist()
        return torch.stack([render(numbers[i // len(STYLES)], STYLES[i % len(STYLES)]) for i in chosen]), draws

    def loss(step: int) -> Tensor:
        clean, draws = images(step)
        latents = compress(vae, clean)
        noise = torch.randn(latents.shape, generator=draws) * latents.detach().std()
        error = vae.decode(latents + JITTER * noise, return_dict=False)[0] - clean
        squared: Tensor = error.square().mean()
        return squared

    fit(vae, loss, steps=steps, learning_rate=VAE_LEARNING_RATE, warmup=WARMUP, console=console, name="VAE")
    with torch.no_grad():
        found = torch.cat([compress(vae, images(steps + i)[0]) for i in range(16)])
    vae.register_to_config(shift_factor=float(found.mean()), scaling_factor=1 / float(found.std()))


def train_generator(pipeline: Pipeline, *, steps: int, seed: int, console: Console) -> None:
    """Flow matching on the VAE's latents: on the line from latents to noise the velocity is their difference."""
    numbers, vae = split(SEED), pipeline.vae.requires_grad_(False)
    prompts = [*(prompt_of(number) for number in numbers.seen), ""]
    words, spelled = (
        token_ids(pipeline.tokenizer, prompts, MAX_TOKENS),
        token_ids(pipeline.tokenizer_2, prompts, TOKENS),
    )
    places = FluxPipeline._prepare_latent_image_ids(1, HEIGHT // 4, WIDTH // 4, "cpu", torch.float32)
    text = torch.zeros(TOKENS, 3)

    def loss(step: int) -> Tensor:
        part = draw(numbers, seed=seed, step=step)
        with torch.no_grad():
            clean = (compress(vae, part.clean) - vae.config.shift_factor) * vae.config.scaling_factor
        noise = torch.randn(clean.shape, generator=generator(seed, "noise", step))
        share = part.time[:, None, None, None]
        velocity = pipeline.transformer(
            hidden_states=pack((1 - share) * clean + share * noise),
            timestep=part.time,  # the network multiplies it by 1000
            encoder_hidden_states=pipeline.text_encoder_2(spelled[part.row])[0],
            pooled_projections=pipeline.text_encoder(words[part.row]).pooler_output,
            txt_ids=text, img_ids=places, return_dict=False,
        )[0]  # fmt: skip
        squared: Tensor = (velocity - pack(noise - clean)).square().mean()
        return squared

    fit(networks(pipeline), loss, steps=steps, learning_rate=LEARNING_RATE, warmup=WARMUP, console=console)


def pack(latents: Tensor) -> Tensor:
    """Latents [B, C, H, W] as the network's tokens."""
    tokens: Tensor = FluxPipeline._pack_latents(latents, *latents.shape)
    return tokens


def token_ids(tokenizer: Any, prompts: Sequence[str], length: int) -> Tensor:
    """What a text encoder reads: [prompts, length]."""
    padded = tokenizer(list(prompts), padding="max_length", max_length=length, truncation=True, return_tensors="pt")
    ids: Tensor = padded.input_ids
    return ids


def load(folder: Path) -> Pipeline:
    """The pipeline as float32, as anyone would load it."""
    pipeline: Pipeline = FluxPipeline.from_pretrained(
        folder / "model", torch_dtype=torch.float32, local_files_only=True
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@torch.no_grad()
def evaluate(folder: Path, *, seed: int, console: Console) -> None:
    """Draw held-out numbers as diffusers draws them; print measurements, write a grid of images."""
    pipeline = load(folder)
    numbers = split(SEED).heldout
    noise = [generator(seed, "evaluate", i, j) for i in range(len(numbers)) for j in range(SAMPLES)]
    drawn = pipeline(
        prompt=[prompt_of(number) for number in numbers], height=HEIGHT, width=WIDTH, output_type="pt",
        num_inference_steps=SAMPLING_STEPS, num_images_per_prompt=SAMPLES, generator=noise, max_sequence_length=TOKENS,
    ).images  # fmt: skip
    images = (drawn.mean(1, keepdim=True) * 2 - 1).view(len(numbers), SAMPLES, 1, HEIGHT, WIDTH)
    figures = ", ".join(f"{name} {value:.4f}" for name, value in measure(images, numbers).items())
    console.print(figures, soft_wrap=True)
    write_grid(folder / "pictures.png", images[::4])


def main(arguments: list[str] | None = None) -> None:
    """Command line."""
    parser = command_line(__doc__ or "", "build/flux_quickstart")
    parser.add_argument("--vae-steps", type=int, default=VAE_STEPS, help=f"optimizer steps of the VAE ({VAE_STEPS})")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"optimizer steps of the generator ({STEPS})")
    parser.add_argument("--go-on", action="store_true", help="train the generator that is there once more as long")
    parser.add_argument("--evaluate", action="store_true", help="draw and read the held-out numbers")
    options = parser.parse_args(arguments)
    if min(options.vae_steps, options.steps) < 1:
        parser.error("--vae-steps and --steps must be 1 or more")
    if options.go_on and options.vae_steps != VAE_STEPS:
        parser.error("--vae-steps is never read with --go-on, which keeps the VAE that is there; remove it")
    if options.go_on and not (options.output / "model").is_dir():
        parser.error(f"--go-on finds no model/ in {options.output}; train one without it first")
    console = Console(highlight=False)
    repeatable()
    numbers = split(SEED)
    pipeline = load(options.output) if options.go_on else build_pipeline(options.seed)
    if not options.go_on:
        train_vae(pipeline.vae, steps=options.vae_steps, seed=options.seed, console=console)
    train_generator(pipeline, steps=options.steps, seed=options.seed, console=console)
    options.output.mkdir(parents=True, exist_ok=True)
    save_half(pipeline, options.output / "model", TOKENS)
    write_prompts(options.output / "train.jsonl", numbers.train)
    write_prompts(options.output / "heldout.jsonl", numbers.heldout)
    if options.evaluate:
        evaluate(options.output, seed=options.seed, console=console)


if __name__ == "__main__":
    main()
