"""Small but real pipelines, made in a second: random weights, real classes, the layout that diffusers writes."""

from pathlib import Path

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel, StableDiffusion3Pipeline
from transformers import CLIPTextConfig, CLIPTextModelWithProjection, CLIPTokenizer, T5Config, T5EncoderModel

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


def clip_tokenizer(length: int = 16) -> CLIPTokenizer:
    """A real CLIP tokenizer that spells everything."""
    tokens = [*LETTERS, *(letter + "</w>" for letter in LETTERS), "<|startoftext|>", "<|endoftext|>"]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    return CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=length)


def t5_tokenizer():  # type: ignore[no-untyped-def]
    from tokenizers import Tokenizer
    from tokenizers.models import Unigram
    from tokenizers.pre_tokenizers import Metaspace
    from tokenizers.processors import TemplateProcessing
    from transformers import T5TokenizerFast

    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", -9.0), *((c, -2.0) for c in ["▁", *LETTERS])]
    tokenizer = Tokenizer(Unigram(pieces, unk_id=2))
    tokenizer.pre_tokenizer = Metaspace()
    tokenizer.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return T5TokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")


def clip(width: int, vocabulary: int, length: int, kind: type = CLIPTextModelWithProjection):  # type: ignore[no-untyped-def]
    return kind(
        CLIPTextConfig(
            vocab_size=vocabulary, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=2,
            num_attention_heads=2, max_position_embeddings=length, projection_dim=width,
            bos_token_id=vocabulary - 2, eos_token_id=vocabulary - 1, pad_token_id=vocabulary - 1,
        )
    )  # fmt: skip


def t5_encoder() -> T5EncoderModel:
    return T5EncoderModel(T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=2))


def autoencoder(channels: int = 4) -> AutoencoderKL:
    """Images of 2 x 2 pixels to a latent position."""
    return AutoencoderKL(
        block_out_channels=(8, 8), down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2, latent_channels=channels, norm_num_groups=4, layers_per_block=1,
        shift_factor=0.06, scaling_factor=1.5, use_quant_conv=False, use_post_quant_conv=False,
    )  # fmt: skip


def reacting(network: torch.nn.Module) -> torch.nn.Module:
    """diffusers starts some layers at zero; a random network must react to everything."""
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return network.eval()


def tiny_pipeline(
    folder: Path, *, vae: bool = True, t5: bool = False, seed: int = 0, layers: int = 2, size: int = 8
) -> Path:
    """Save a random Stable Diffusion 3 pipeline and return its directory."""
    torch.manual_seed(seed)
    tokenizer = clip_tokenizer()
    channels = 4 if vae else 1
    transformer = SD3Transformer2DModel(
        sample_size=size, patch_size=2, in_channels=channels, out_channels=channels, num_layers=layers,
        attention_head_dim=8, num_attention_heads=2, joint_attention_dim=32, caption_projection_dim=16,
        pooled_projection_dim=24, pos_embed_max_size=8, qk_norm="rms_norm",
        dual_attention_layers=(0,) if t5 else (),  # as Stable Diffusion 3.5 has them, which comes with a T5
    )  # fmt: skip
    pipeline = StableDiffusion3Pipeline(
        transformer=reacting(transformer), scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=autoencoder() if vae else None, text_encoder=clip(16, len(tokenizer), 16), tokenizer=tokenizer,
        text_encoder_2=clip(8, len(tokenizer), 16), tokenizer_2=tokenizer, text_encoder_3=t5_encoder() if t5 else None,
        tokenizer_3=t5_tokenizer() if t5 else None,
    )  # fmt: skip
    pipeline.save_pretrained(folder / "pipeline")
    return folder / "pipeline"
