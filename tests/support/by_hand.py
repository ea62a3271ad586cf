"""open_clip's and BLIP's encoders, written down from the papers on weights with their published names."""

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

Weights = dict[str, Tensor]


def linear(x: Tensor, w: Weights, name: str) -> Tensor:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def norm(x: Tensor, w: Weights, name: str, eps: float = 1e-5) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], eps=eps)


def gelu(x: Tensor, quick: bool = False) -> Tensor:
    return x * torch.sigmoid(1.702 * x) if quick else 0.5 * x * (1 + torch.erf(x / 2**0.5))


def attend(q: Tensor, k: Tensor, v: Tensor, heads: int, *, causal: bool = False) -> Tensor:
    """Attention of each head, one after another."""
    outputs = []
    for one, other, value in zip(q.chunk(heads, -1), k.chunk(heads, -1), v.chunk(heads, -1), strict=True):
        scores = one @ other.transpose(-1, -2) / one.shape[-1] ** 0.5
        if causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)
        outputs.append(scores.softmax(-1) @ value)
    return torch.cat(outputs, -1)


def blocks(x: Tensor, w: Weights, prefix: str, *, causal: bool, quick: bool) -> Tensor:
    """open_clip's, with two heads."""
    count = sum(name.startswith(f"{prefix}.resblocks.") and name.endswith(".ln_1.weight") for name in w)
    for n in range(count):
        at = f"{prefix}.resblocks.{n}"
        joined = norm(x, w, f"{at}.ln_1") @ w[f"{at}.attn.in_proj_weight"].T + w[f"{at}.attn.in_proj_bias"]
        x = x + linear(attend(*joined.chunk(3, -1), 2, causal=causal), w, f"{at}.attn.out_proj")
        inner = gelu(linear(norm(x, w, f"{at}.ln_2"), w, f"{at}.mlp.c_fc"), quick)
        x = x + linear(inner, w, f"{at}.mlp.c_proj")
    return x


def clip_image(pixels: Tensor, w: Weights, *, quick: bool = False) -> Tensor:
    """Normalised embeddings [B, E] of pixels [B, 3, S, S]."""
    kernel = w["visual.conv1.weight"]
    patches = F.conv2d(pixels, kernel, stride=kernel.shape[-1]).flatten(2).transpose(1, 2)
    first = w["visual.class_embedding"].expand(len(pixels), 1, -1)
    x = torch.cat([first, patches], 1) + w["visual.positional_embedding"]
    x = blocks(norm(x, w, "visual.ln_pre"), w, "visual.transformer", causal=False, quick=quick)
    return F.normalize(norm(x[:, 0], w, "visual.ln_post") @ w["visual.proj"], dim=-1)


def clip_text(ids: Tensor, w: Weights, *, quick: bool = False) -> Tensor:
    """Normalised embeddings [B, E] of tokens [B, T], whose largest is the end of the text."""
    x = w["token_embedding.weight"][ids] + w["positional_embedding"][: ids.shape[1]]
    x = norm(blocks(x, w, "transformer", causal=True, quick=quick), w, "ln_final")
    return F.normalize(x[torch.arange(len(ids)), ids.argmax(-1)] @ w["text_projection"], dim=-1)


def image_reward(pixels: Tensor, ids: Tensor, w: Weights, heads: int = 2) -> Tensor:
    """ImageReward's raw score [1] of an image [1, 3, S, S] and a text [1, T], with two layers of each encoder."""
    at = "blip.visual_encoder"
    kernel = w[f"{at}.patch_embed.proj.weight"]
    patches = F.conv2d(pixels, kernel, w[f"{at}.patch_embed.proj.bias"], stride=kernel.shape[-1])
    seen = torch.cat([w[f"{at}.cls_token"], patches.flatten(2).transpose(1, 2)], 1) + w[f"{at}.pos_embed"]
    for n in range(2):
        block = f"{at}.blocks.{n}"
        joined = linear(norm(seen, w, f"{block}.norm1", 1e-6), w, f"{block}.attn.qkv")
        seen = seen + linear(attend(*joined.chunk(3, -1), heads), w, f"{block}.attn.proj")
        inner = gelu(linear(norm(seen, w, f"{block}.norm2", 1e-6), w, f"{block}.mlp.fc1"))
        seen = seen + linear(inner, w, f"{block}.mlp.fc2")
    seen = norm(seen, w, f"{at}.norm", 1e-6)

    at = "blip.text_encoder"
    x = w[f"{at}.embeddings.word_embeddings.weight"][ids]
    x = norm(
        x + w[f"{at}.embeddings.position_embeddings.weight"][: ids.shape[1]], w, f"{at}.embeddings.LayerNorm", 1e-12
    )
    for n in range(2):
        layer = f"{at}.encoder.layer.{n}"
        for part in ("attention", "crossattention"):
            others = x if part == "attention" else seen
            q = linear(x, w, f"{layer}.{part}.self.query")
            k, v = (linear(others, w, f"{layer}.{part}.self.{one}") for one in ("key", "value"))
            own = linear(attend(q, k, v, heads), w, f"{layer}.{part}.output.dense")
            x = norm(own + x, w, f"{layer}.{part}.output.LayerNorm", 1e-12)
        inner = gelu(linear(x, w, f"{layer}.intermediate.dense"))
        x = norm(linear(inner, w, f"{layer}.output.dense") + x, w, f"{layer}.output.LayerNorm", 1e-12)
    x = x[:, 0]
    for i in (0, 2, 4, 6, 7):
        x = linear(x, w, f"mlp.layers.{i}")
    return x[:, 0]


MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # of CLIP's pixels


def _normalised(pixels: Tensor) -> Tensor:
    return (pixels - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]


def padded(image: np.ndarray, size: int) -> Tensor:
    """HPSv2's pixels [1, 3, S, S]: of floats, the longer side fits, and black surrounds the rest."""
    scale = size / max(image.shape[:2])
    high, wide = (round(side * scale) for side in image.shape[:2])
    pixels = torch.from_numpy(image.copy()).permute(2, 0, 1)[None] / 255
    if scale != 1:
        pixels = F.interpolate(pixels, (high, wide), mode="bicubic", antialias=True)
    whole = torch.zeros(1, 3, size, size)
    top, left = (size - high) // 2, (size - wide) // 2
    whole[..., top : top + high, left : left + wide] = pixels
    return _normalised(whole)


def cropped(image: np.ndarray, size: int) -> Tensor:
    """BLIP's pixels [1, 3, S, S], by Pillow and torchvision's rules: the shorter side fits, the middle is cut out."""
    high, wide = image.shape[:2]
    high, wide = (size, int(size * wide / high)) if high <= wide else (int(size * high / wide), size)
    top, left = round((high - size) / 2), round((wide - size) / 2)
    resized = Image.fromarray(image).resize((wide, high), Image.Resampling.BICUBIC)
    pixels = np.asarray(resized)[top : top + size, left : left + size]
    return _normalised(torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None] / 255)
