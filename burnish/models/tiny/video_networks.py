"""The one tiny configuration of every network of diffusers that draws or decodes videos."""

from __future__ import annotations

from burnish.models.tiny.base import Config
from burnish.models.tiny.networks import CLIP, LATENT, TEXT, WAN

FOUR = [8, 8, 8, 8]
ROTARY = {"num_attention_heads": 2, "attention_head_dim": 16, "rope_axes_dim": [4, 6, 6]}
VIDEO_VAES: dict[str, Config] = {
    "AutoencoderKLHunyuanVideo": {
        "latent_channels": LATENT, "block_out_channels": FOUR, "layers_per_block": 1, "norm_num_groups": 4,
    },
    "AutoencoderKLHunyuanVideo15": {"latent_channels": LATENT, "block_out_channels": [16] * 5, "layers_per_block": 1},
    "AutoencoderKLCogVideoX": {
        "latent_channels": LATENT, "block_out_channels": FOUR, "layers_per_block": 1, "norm_num_groups": 4,
        "sample_height": 32, "sample_width": 32,
    },
    "AutoencoderKLMochi": {
        "encoder_block_out_channels": [32] * 4, "decoder_block_out_channels": [32] * 4, "latent_channels": 12,
        "layers_per_block": [1] * 5, "add_attention_block": [False] * 5,
    },
    "AutoencoderKLAllegro": {
        "latent_channels": LATENT, "block_out_channels": FOUR, "layers_per_block": 1, "norm_num_groups": 4,
        "sample_size": 32,
    },
    "AutoencoderKLMagvit": {
        "latent_channels": LATENT, "block_out_channels": FOUR, "layers_per_block": 1, "norm_num_groups": 4,
    },
    "AutoencoderKLTemporalDecoder": {
        "latent_channels": LATENT, "block_out_channels": [32, 32, 32], "layers_per_block": 1, "sample_size": 32,
        "down_block_types": ["DownEncoderBlock2D"] * 3,
    },
}  # fmt: skip

VIDEO_DENOISERS: dict[str, Config] = {
    "WanTransformer3DModel": WAN,
    "WanVACETransformer3DModel": {**WAN, "vace_layers": [0, 1], "vace_in_channels": 2 * LATENT + 64},
    "WanAnimateTransformer3DModel": {
        **WAN, "in_channels": 2 * LATENT + 4, "latent_channels": LATENT, "image_dim": CLIP,
        "motion_encoder_channel_sizes": {"4": 8, "8": 8, "16": 8}, "motion_encoder_size": 16, "motion_style_dim": 8,
        "motion_dim": 4, "motion_encoder_dim": 8, "face_encoder_hidden_dim": 8, "face_encoder_num_heads": 2,
        "inject_face_latents_blocks": 2,
    },
    "SkyReelsV2Transformer3DModel": WAN,
    "ChronoEditTransformer3DModel": WAN,
    "AnyFlowTransformer3DModel": WAN,
    "LTXVideoTransformer3DModel": {
        "in_channels": 8, "out_channels": 8, "num_attention_heads": 2, "attention_head_dim": 16,
        "cross_attention_dim": 32, "num_layers": 2, "caption_channels": TEXT,
    },
    "HunyuanVideoTransformer3DModel": {
        "in_channels": LATENT, "out_channels": LATENT, **ROTARY, "num_layers": 1, "num_single_layers": 1,
        "num_refiner_layers": 1, "text_embed_dim": TEXT, "pooled_projection_dim": CLIP, "guidance_embeds": True,
    },
    "HunyuanVideo15Transformer3DModel": {
        "in_channels": 2 * LATENT + 1, "out_channels": LATENT, **ROTARY, "num_layers": 2, "num_refiner_layers": 1,
        "text_embed_dim": TEXT, "text_embed_2_dim": TEXT, "image_embed_dim": CLIP, "target_size": 32,
        "task_type": "t2v",
    },
    "CogVideoXTransformer3DModel": {
        "in_channels": LATENT, "out_channels": LATENT, "num_attention_heads": 2, "attention_head_dim": 16,
        "time_embed_dim": 16, "text_embed_dim": TEXT, "num_layers": 2, "sample_width": 4, "sample_height": 4,
        "sample_frames": 5,
    },
    "MochiTransformer3DModel": {
        "in_channels": 12, "num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 2,
        "pooled_projection_dim": 16, "text_embed_dim": TEXT, "time_embed_dim": 16,
    },
    "AllegroTransformer3DModel": {
        "in_channels": LATENT, "out_channels": LATENT, "num_attention_heads": 2, "attention_head_dim": 24,
        "num_layers": 2, "cross_attention_dim": 48, "sample_height": 4, "sample_width": 4, "sample_frames": 2,
        "caption_channels": TEXT,
    },
    "LatteTransformer3DModel": {
        "sample_size": 8, "patch_size": 2, "in_channels": LATENT, "out_channels": 2 * LATENT, "num_layers": 2,
        "num_attention_heads": 2, "attention_head_dim": 8, "caption_channels": TEXT, "cross_attention_dim": 16,
        "attention_bias": True, "activation_fn": "gelu-approximate", "num_embeds_ada_norm": 1000,
        "norm_type": "ada_norm_single", "norm_elementwise_affine": False, "norm_eps": 1e-6, "video_length": 4,
    },
    "SanaVideoTransformer3DModel": {
        "in_channels": LATENT, "out_channels": LATENT, "num_layers": 2, "num_attention_heads": 2,
        "attention_head_dim": 12, "num_cross_attention_heads": 2, "cross_attention_head_dim": 12,
        "cross_attention_dim": 24, "caption_channels": TEXT, "sample_size": 4, "rope_max_seq_len": 64,
    },
    "Kandinsky5Transformer3DModel": {
        "in_visual_dim": LATENT, "out_visual_dim": LATENT, "in_text_dim": TEXT, "in_text_dim2": CLIP, "time_dim": 16,
        "model_dim": 32, "ff_dim": 64, "num_text_blocks": 1, "num_visual_blocks": 2, "axes_dims": [4, 6, 6],
    },
    "EasyAnimateTransformer3DModel": {
        "in_channels": LATENT, "out_channels": LATENT, "num_attention_heads": 2, "attention_head_dim": 16,
        "time_embed_dim": 4, "text_embed_dim": TEXT, "num_layers": 2, "mmdit_layers": 1, "patch_size": 2,
        "sample_width": 4, "sample_height": 4,
    },
    "MotionAdapter": {
        "block_out_channels": [16, 32], "motion_layers_per_block": 1, "motion_norm_num_groups": 4,
        "motion_num_attention_heads": 2,
    },
    "UNetSpatioTemporalConditionModel": {
        "sample_size": 8, "in_channels": 2 * LATENT, "out_channels": LATENT, "block_out_channels": [32, 32],
        "down_block_types": ["CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"],
        "up_block_types": ["UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal"], "layers_per_block": 1,
        "addition_time_embed_dim": 8, "projection_class_embeddings_input_dim": 24, "cross_attention_dim": CLIP,
        "num_attention_heads": 2,
    },
}  # fmt: skip
