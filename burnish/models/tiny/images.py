"""Pipelines that draw images from text."""

from __future__ import annotations

from typing import Any

from burnish.models.tiny.base import Config, Parts, Tiny
from burnish.models.tiny.networks import CLIP
from burnish.models.tiny.others import DYNAMIC

# of models that predict noise
DPM = {"use_flow_sigmas": False, "prediction_type": "epsilon", "beta_start": 0.0001, "beta_end": 0.02}
XL_UNET = {
    "cross_attention_dim": 2 * CLIP, "addition_embed_type": "text_time", "addition_time_embed_dim": 8,
    "projection_class_embeddings_input_dim": 6 * 8 + CLIP, "transformer_layers_per_block": [1, 1],
    "use_linear_projection": True,
}  # fmt: skip
SHIFTED: Parts = {"scheduler": DYNAMIC}
XL: Parts = {"unet": XL_UNET, "scheduler": "EulerDiscreteScheduler", "vae": {"shift_factor": None}}
STABLE: dict[str, Any] = {
    "parts": {
        "scheduler": "PNDMScheduler",
        "safety_checker": None,
        "feature_extractor": None,
        "vae": {"shift_factor": None},
    },
    "values": {"requires_safety_checker": False},
}
# with eight pixels a side for each latent position, which some pipelines count on
EIGHT = {"block_out_channels": [8, 8, 8, 8], "down_block_types": ["DownEncoderBlock2D"] * 4,
         "up_block_types": ["UpDecoderBlock2D"] * 4}  # fmt: skip
SIXTEEN = {"in_channels": 12, "out_channels": 12, "is_residual": True, "patch_size": 2, "scale_factor_spatial": 16}
GEMMA2: Parts = {"text_encoder": "Gemma2Model"}
FTFY = ("ftfy",)  # cleans prompts in some pipelines, which do not say so when it is absent
BINS = {"use_resolution_binning": False}  # sizes of the call are taken as they are

NO_PAG = {"pag_scale": 0.0}  # without which the attention of networks is changed

QWEN3: Parts = {"text_encoder": "Qwen3Model"}
# this pipeline takes the 9th, 18th and 27th layer, another the eighth from the last
KLEIN: Parts = {**SHIFTED, "text_encoder": {"num_hidden_layers": 28}}
DEEP_VL: Config = {"text_config": {"num_hidden_layers": 8}}
LONGCAT: Parts = {**SHIFTED, "vae": {"latent_channels": 16}}

IMAGES = (
    Tiny(name="sd3", pipeline="StableDiffusion3Pipeline", also=("sd3.5", "stable-diffusion-3")),
    Tiny(name="flux", pipeline="FluxPipeline", also=("flux.1", "flux-dev"), parts=SHIFTED),
    Tiny(name="flux2-klein", pipeline="Flux2KleinPipeline", also=("klein", "flux.2-klein"), parts=KLEIN),
    Tiny(name="qwen-image", pipeline="QwenImagePipeline", parts=SHIFTED),
    Tiny(name="z-image", pipeline="ZImagePipeline", parts=QWEN3),
    Tiny(name="sdxl", pipeline="StableDiffusionXLPipeline", also=("stable-diffusion-xl",), parts=XL),
    Tiny(name="sd1.5", pipeline="StableDiffusionPipeline", also=("sd", "stable-diffusion"), **STABLE),
    Tiny(name="if", pipeline="IFPipeline", also=("deepfloyd-if",), values=STABLE["values"],
         parts={"safety_checker": None, "feature_extractor": None, "watermarker": None,
                "scheduler": {"variance_type": "learned_range"},
                # twice the channels: the variance of a step, too
                "unet": {"in_channels": 3, "out_channels": 6, "cross_attention_dim": 16, "encoder_hid_dim": 32}}),
    Tiny(name="lcm", pipeline="LatentConsistencyModelPipeline", values=STABLE["values"],
         parts={**STABLE["parts"], "scheduler": "LCMScheduler", "unet": {"time_cond_proj_dim": 16}}),
    Tiny(name="chroma", pipeline="ChromaPipeline"),
    Tiny(name="auraflow", pipeline="AuraFlowPipeline", also=("aura-flow",)),
    Tiny(name="cogview3-plus", pipeline="CogView3PlusPipeline", parts={"vae": {"shift_factor": None}}),
    Tiny(name="cogview4", pipeline="CogView4Pipeline", parts=SHIFTED),
    Tiny(name="lumina", pipeline="LuminaPipeline", also=("lumina-next",),
         parts={"text_encoder": "GemmaModel", "vae": {**EIGHT, "shift_factor": None}}),
    Tiny(name="lumina2", pipeline="Lumina2Pipeline", parts={**GEMMA2, "vae": EIGHT}),
    Tiny(name="sana", pipeline="SanaPipeline", parts=GEMMA2, call=BINS),
    Tiny(name="sana-sprint", pipeline="SanaSprintPipeline", call=BINS,
         parts={**GEMMA2, "scheduler": "SCMScheduler", "transformer": {"guidance_embeds": True}}),
    Tiny(name="pixart-alpha", pipeline="PixArtAlphaPipeline", call=BINS,
         parts={"scheduler": DPM, "vae": {"shift_factor": None}}),
    Tiny(name="pixart-sigma", pipeline="PixArtSigmaPipeline", call=BINS,
         parts={"scheduler": ("DPMSolverMultistepScheduler", DPM), "vae": {"shift_factor": None}}),
    Tiny(name="hidream", pipeline="HiDreamImagePipeline", also=("hidream-i1",), height=128, width=128,
         parts={"text_encoder": {"max_position_embeddings": 248}, "text_encoder_2": {"max_position_embeddings": 248},
                "tokenizer_4": "LlamaTokenizer",
                # the pipeline draws 128 * 128 latent positions, whatever the size
                "vae": {"block_out_channels": [8], "down_block_types": ["DownEncoderBlock2D"],
                        "up_block_types": ["UpDecoderBlock2D"]}, "transformer": {"patch_size": 8}}),
    Tiny(name="ovis-image", pipeline="OvisImagePipeline", parts=SHIFTED),
    # without having its text encoder write a longer prompt
    Tiny(name="longcat-image", pipeline="LongCatImagePipeline", parts=LONGCAT, call={"enable_prompt_rewrite": False}),
    Tiny(name="krea2", pipeline="Krea2Pipeline", parts=SHIFTED, values={"text_encoder_select_layers": [1, 2]}),
    Tiny(name="bria", pipeline="BriaPipeline"),
    Tiny(name="bria-fibo", pipeline="BriaFiboPipeline",
         # the pipeline uses a fixed token for an empty prompt
         parts={"text_encoder": {"vocab_size": 128_001}, "vae": SIXTEEN}),
    Tiny(name="prx", pipeline="PRXPipeline", call=BINS, needs=FTFY,
         parts={**GEMMA2, "tokenizer": "GemmaTokenizer", "vae": "AutoencoderKL"}),
    Tiny(name="prx-pixel", pipeline="PRXPixelPipeline", call=BINS, needs=FTFY,
         parts={"text_encoder": "Qwen3Model", "transformer": {"in_channels": 3}}),
    Tiny(name="nucleus", pipeline="NucleusMoEImagePipeline", parts={**SHIFTED, "text_encoder": DEEP_VL}),
    Tiny(name="hunyuan-image", pipeline="HunyuanImagePipeline", also=("hunyuan-image-2.1",),
         parts={"guider": "AdaptiveProjectedMixGuidance", "ocr_guider": "AdaptiveProjectedMixGuidance"}),
    Tiny(name="hunyuan-image-unguided", pipeline="HunyuanImagePipeline",
         parts={"guider": None, "ocr_guider": None}),
    Tiny(name="hunyuan-dit", pipeline="HunyuanDiTPipeline", values=STABLE["values"], call=BINS,
         # the pipeline counts on eight pixels for each latent position
         parts={"safety_checker": None, "feature_extractor": None, "scheduler": {"prediction_type": "v_prediction"},
                "vae": {**EIGHT, "shift_factor": None}, "text_encoder_2": "T5EncoderModel",
                "tokenizer_2": "T5Tokenizer"}),
    Tiny(name="ernie-image", pipeline="ErnieImagePipeline", call={"use_pe": False},
         parts={"tokenizer": "PreTrainedTokenizerFast"}),
    Tiny(name="flux2", pipeline="Flux2Pipeline", also=("flux.2", "flux2-dev"),
         parts={**SHIFTED, "text_encoder": {"text_config": {"num_hidden_layers": 31}},
                "tokenizer": "PreTrainedTokenizerFast", "transformer": {"guidance_embeds": True}}),
    Tiny(name="qwen-image-2.1", pipeline="QwenImage21Pipeline", parts=SHIFTED),
    # draws from the number of a class
    Tiny(name="dit", pipeline="DiTPipeline", height=None, width=None, prompt=False, call={"class_labels": [207]},
         parts={"scheduler": "DDIMScheduler", "vae": {"shift_factor": None}}),
    Tiny(name="sd1.5-pag", pipeline="StableDiffusionPAGPipeline", call=NO_PAG, values=STABLE["values"],
         parts={**STABLE["parts"], "scheduler": "DDIMScheduler"}),
    Tiny(name="sd3-pag", pipeline="StableDiffusion3PAGPipeline", call=NO_PAG,
         values={"pag_applied_layers": "blocks.1"}),
    Tiny(name="sana-pag", pipeline="SanaPAGPipeline", call={**BINS, **NO_PAG}, parts=GEMMA2),
    Tiny(name="pixart-sigma-pag", pipeline="PixArtSigmaPAGPipeline", call={**BINS, **NO_PAG},
         parts={"scheduler": ("DPMSolverMultistepScheduler", DPM), "vae": {"shift_factor": None}}),
    # draws without a prompt
    Tiny(name="ddim", pipeline="DDIMPipeline", height=None, width=None, prompt=False),
    Tiny(name="ddpm", pipeline="DDPMPipeline", height=None, width=None, prompt=False),
    Tiny(name="flux2-klein-kv", pipeline="Flux2KleinKVPipeline",
         parts=KLEIN),
)  # fmt: skip
