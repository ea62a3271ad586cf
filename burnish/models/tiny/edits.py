"""Pipelines that draw images from text and pictures: edits, inpainting, control."""

from __future__ import annotations

from burnish.models.tiny.base import Inputs, Parts, Tiny
from burnish.models.tiny.images import KLEIN, QWEN3, SHIFTED, STABLE, XL, XL_UNET
from burnish.models.tiny.networks import LATENT

HALF = {"strength": 0.5}  # of the steps: of two, the second
IMAGE: Inputs = {"image": "image"}
PAINT: Inputs = {"image": "image", "mask_image": "mask"}
CONTROL: Inputs = {"control_image": "image"}
PACKED = 4 * LATENT  # channels of packed latents
BESIDE: Parts = {**SHIFTED, "transformer": {"in_channels": 2 * PACKED, "out_channels": PACKED}}
# the mask has a channel for each pixel of a packed latent position: 2 * 2 * 4 * 4
FILL: Parts = {**SHIFTED, "transformer": {"in_channels": 2 * PACKED + 64, "out_channels": PACKED}}
# these scale pictures to a million pixels before they encode them, so each latent position stands for 32 * 32
WIDE = {"base_dim": 4, "dim_mult": [1, 1, 1, 1, 1, 2], "temperal_downsample": [False, False, False, True, True]}
QWEN_EDIT: Parts = {**SHIFTED, "vae": {**WIDE, "base_dim": 8}}  # fewer channels would magnify rounding
WIDE_KL = {"block_out_channels": [4, 4, 4, 4, 4, 8], "down_block_types": ["DownEncoderBlock2D"] * 6,
           "up_block_types": ["UpDecoderBlock2D"] * 6, "latent_channels": 16}  # fmt: skip

EDITS = (
    Tiny(name="sd3-img2img", pipeline="StableDiffusion3Img2ImgPipeline", inputs=IMAGE, call=HALF),
    Tiny(name="sd3-inpaint", pipeline="StableDiffusion3InpaintPipeline", inputs=PAINT,
         parts={"transformer": {"in_channels": 16, "out_channels": 16}, "vae": {"latent_channels": 16}}),
    Tiny(name="flux-img2img", pipeline="FluxImg2ImgPipeline", parts=SHIFTED, inputs=IMAGE, call=HALF),
    Tiny(name="flux-inpaint", pipeline="FluxInpaintPipeline", parts=SHIFTED, inputs=PAINT),
    Tiny(name="flux-fill", pipeline="FluxFillPipeline", parts=FILL, inputs=PAINT),
    Tiny(name="flux-control", pipeline="FluxControlPipeline", parts=BESIDE, inputs=CONTROL),
    Tiny(name="flux-control-img2img", pipeline="FluxControlImg2ImgPipeline", parts=BESIDE,
         inputs={**IMAGE, **CONTROL}, call=HALF),
    Tiny(name="flux-control-inpaint", pipeline="FluxControlInpaintPipeline", parts=BESIDE,
         inputs={**PAINT, **CONTROL}),
    Tiny(name="flux-kontext", pipeline="FluxKontextPipeline", also=("kontext",), parts=SHIFTED,
         inputs=IMAGE, call={"_auto_resize": False, "max_area": 32 * 32}),
    Tiny(name="flux-kontext-inpaint", pipeline="FluxKontextInpaintPipeline", parts=SHIFTED,
         inputs=PAINT, call={"_auto_resize": False, "max_area": 32 * 32}),
    Tiny(name="flux2-klein-inpaint", pipeline="Flux2KleinInpaintPipeline",
         parts=KLEIN, inputs=PAINT),
    Tiny(name="flux2-klein-edit", pipeline="Flux2KleinPipeline",
         parts=KLEIN, inputs=IMAGE, height=64, width=64),
    Tiny(name="qwen-image-img2img", pipeline="QwenImageImg2ImgPipeline", parts=SHIFTED, inputs=IMAGE, call=HALF),
    Tiny(name="qwen-image-inpaint", pipeline="QwenImageInpaintPipeline", parts=SHIFTED, inputs=PAINT),
    Tiny(name="qwen-image-edit", pipeline="QwenImageEditPipeline", parts=QWEN_EDIT, inputs=IMAGE, height=128,
         width=128),
    Tiny(name="qwen-image-edit-plus", pipeline="QwenImageEditPlusPipeline", also=("qwen-image-edit-2509",),
         parts=QWEN_EDIT, inputs={"image": "images"}, height=128, width=128),
    Tiny(name="z-image-img2img", pipeline="ZImageImg2ImgPipeline", parts=QWEN3, inputs=IMAGE, call=HALF),
    Tiny(name="z-image-inpaint", pipeline="ZImageInpaintPipeline", parts=QWEN3, inputs=PAINT),
    Tiny(name="sdxl-img2img", pipeline="StableDiffusionXLImg2ImgPipeline", parts=XL, inputs=IMAGE, height=None,
         width=None, call=HALF),
    Tiny(name="sdxl-inpaint", pipeline="StableDiffusionXLInpaintPipeline", inputs=PAINT,
         parts={**XL, "unet": {**XL_UNET, "in_channels": 2 * LATENT + 1}}),
    Tiny(name="sd1.5-img2img", pipeline="StableDiffusionImg2ImgPipeline", inputs=IMAGE, height=None, width=None,
         **STABLE),
    Tiny(name="sd1.5-inpaint", pipeline="StableDiffusionInpaintPipeline", inputs=PAINT, values=STABLE["values"],
         parts={**STABLE["parts"], "unet": {"in_channels": 2 * LATENT + 1}}),
    Tiny(name="instruct-pix2pix", pipeline="StableDiffusionInstructPix2PixPipeline", inputs=IMAGE, height=None,
         width=None, values=STABLE["values"], parts={**STABLE["parts"], "unet": {"in_channels": 2 * LATENT}}),
    Tiny(name="chroma-img2img", pipeline="ChromaImg2ImgPipeline", inputs=IMAGE, call=HALF),
    Tiny(name="cogview4-control", pipeline="CogView4ControlPipeline", inputs=CONTROL,
         parts={"transformer": {"in_channels": 2 * LATENT}}),
    Tiny(name="sana-sprint-img2img", pipeline="SanaSprintImg2ImgPipeline", inputs=IMAGE,
         parts={"text_encoder": "Gemma2Model", "scheduler": "SCMScheduler", "transformer": {"guidance_embeds": True}},
         call={"use_resolution_binning": False, **HALF}),
    Tiny(name="longcat-image-edit", pipeline="LongCatImageEditPipeline", inputs=IMAGE, height=None, width=None,
         parts={**SHIFTED, "vae": WIDE_KL}),
    Tiny(name="sdxl-pix2pix", pipeline="StableDiffusionXLInstructPix2PixPipeline", inputs=IMAGE,
         parts={**XL, "unet": {**XL_UNET, "in_channels": 2 * LATENT}}),
    Tiny(name="sd1.5-variation", pipeline="StableDiffusionImageVariationPipeline", inputs=IMAGE, prompt=False,
         values=STABLE["values"], parts={**STABLE["parts"], "feature_extractor": "CLIPImageProcessor"}),
    Tiny(name="sd-upscale", pipeline="StableDiffusionUpscalePipeline", inputs=IMAGE, height=None, width=None,
         parts={**STABLE["parts"], "scheduler": "DDIMScheduler", "unet": {"in_channels": LATENT + 3,
                "num_class_embeds": 1000}, "vae": {"shift_factor": None, "use_post_quant_conv": True}}),
    Tiny(name="lcm-img2img", pipeline="LatentConsistencyModelImg2ImgPipeline", inputs=IMAGE, height=None, width=None,
         values=STABLE["values"], call=HALF,
         parts={**STABLE["parts"], "scheduler": "LCMScheduler", "unet": {"time_cond_proj_dim": 16}}),
)  # fmt: skip
