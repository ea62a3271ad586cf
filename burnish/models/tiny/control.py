"""Pipelines with a second network that reads a control image."""

from __future__ import annotations

from burnish.models.tiny.base import Config, Inputs, Parts, Tiny
from burnish.models.tiny.edits import HALF, PAINT
from burnish.models.tiny.images import GEMMA2, QWEN3, SHIFTED, STABLE, XL, XL_UNET
from burnish.models.tiny.networks import CLIP, DENOISERS, LATENT

CONTROL: Inputs = {"control_image": "image"}
IMAGE: Inputs = {"image": "image"}


def fewer(named: str, *left_out: str, **changes: object) -> Config:
    """The configuration of a network that is controlled, with one layer."""
    kept = {name: value for name, value in DENOISERS[named].items() if name not in left_out}
    return {**kept, "num_layers": 1, **changes}


CONTROLNETS: dict[str, Config] = {
    "ControlNetModel": {
        "in_channels": LATENT, "block_out_channels": [16, 32], "layers_per_block": 1, "norm_num_groups": 4,
        "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"], "cross_attention_dim": CLIP,
        "attention_head_dim": 2, "conditioning_embedding_out_channels": [8, 8, 8],
    },
    "ControlNetUnionModel": {
        "in_channels": LATENT, "block_out_channels": [16, 32], "layers_per_block": 1, "norm_num_groups": 4,
        "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"], "cross_attention_dim": CLIP,
        "attention_head_dim": 2, "conditioning_embedding_out_channels": [8, 8, 8], "num_trans_channel": 16,
        "num_trans_head": 2, "num_proj_channel": 16, "num_control_type": 2,
    },
    "T2IAdapter": {"channels": [16, 32], "num_res_blocks": 1, "downscale_factor": 4},
    "SD3ControlNetModel": fewer("SD3Transformer2DModel"),
    "FluxControlNetModel": fewer("FluxTransformer2DModel"),
    "QwenImageControlNetModel": fewer("QwenImageTransformer2DModel"),
    "SanaControlNetModel": fewer("SanaTransformer2DModel"),
    "ZImageControlNetModel": {
        "control_layers_places": [0], "control_refiner_layers_places": [0], "control_in_dim": LATENT, "dim": 32,
        "n_refiner_layers": 1, "n_heads": 2, "n_kv_heads": 2,
    },
}  # fmt: skip

# an adapter's features are added to those of blocks that attend
ADAPTED = {"down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
           "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"]}  # fmt: skip
XL_CONTROL: Parts = {**XL, "controlnet": XL_UNET}
XL_UNION: Parts = {**XL, "controlnet": ("ControlNetUnionModel", XL_UNET)}
CONTROLLED = (
    Tiny(name="sd1.5-controlnet", pipeline="StableDiffusionControlNetPipeline", inputs=IMAGE, **STABLE),
    Tiny(name="sdxl-controlnet", pipeline="StableDiffusionXLControlNetPipeline", inputs=IMAGE, parts=XL_CONTROL),
    Tiny(name="sd1.5-controlnet-img2img", pipeline="StableDiffusionControlNetImg2ImgPipeline",
         inputs={**IMAGE, **CONTROL}, call=HALF, **STABLE),
    Tiny(name="sdxl-controlnet-img2img", pipeline="StableDiffusionXLControlNetImg2ImgPipeline",
         inputs={**IMAGE, **CONTROL}, call=HALF, parts=XL_CONTROL),
    Tiny(name="sdxl-controlnet-inpaint", pipeline="StableDiffusionXLControlNetInpaintPipeline",
         inputs={**PAINT, **CONTROL}, call=HALF, parts=XL_CONTROL),
    Tiny(name="sdxl-controlnet-union", pipeline="StableDiffusionXLControlNetUnionPipeline", inputs=CONTROL,
         call={"control_mode": [0]}, parts=XL_UNION),
    Tiny(name="sdxl-controlnet-union-img2img", pipeline="StableDiffusionXLControlNetUnionImg2ImgPipeline",
         inputs={**IMAGE, **CONTROL}, call={"control_mode": [0], **HALF}, parts=XL_UNION),
    Tiny(name="sdxl-adapter", pipeline="StableDiffusionXLAdapterPipeline", inputs=IMAGE,
         parts={**XL, "unet": {**XL_UNET, **ADAPTED}, "adapter": "T2IAdapter"}),
    Tiny(name="sd3-controlnet", pipeline="StableDiffusion3ControlNetPipeline", inputs=CONTROL),
    Tiny(name="flux-controlnet", pipeline="FluxControlNetPipeline", inputs=CONTROL, parts=SHIFTED),
    Tiny(name="flux-controlnet-img2img", pipeline="FluxControlNetImg2ImgPipeline", inputs={**IMAGE, **CONTROL},
         call=HALF, parts=SHIFTED),
    Tiny(name="flux-controlnet-inpaint", pipeline="FluxControlNetInpaintPipeline", inputs={**PAINT, **CONTROL},
         parts=SHIFTED),
    Tiny(name="qwen-image-controlnet", pipeline="QwenImageControlNetPipeline", inputs=CONTROL, parts=SHIFTED),
    Tiny(name="z-image-controlnet", pipeline="ZImageControlNetPipeline", inputs=CONTROL, parts=QWEN3),
    Tiny(name="z-image-controlnet-inpaint", pipeline="ZImageControlNetInpaintPipeline", inputs={**PAINT, **CONTROL},
         parts={**QWEN3, "controlnet": {"control_in_dim": 2 * LATENT + 1}}),
    Tiny(name="sana-controlnet", pipeline="SanaControlNetPipeline", inputs=CONTROL, parts=GEMMA2,
         call={"use_resolution_binning": False}),
)  # fmt: skip
