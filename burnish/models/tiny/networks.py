"""The one tiny configuration of every network of diffusers; pipelines note only where theirs differs."""

from __future__ import annotations

from burnish.models.tiny.base import Config

# Text encoders give 32 values per token, CLIP's 16; latents have 4 channels, unless a class fixes another number.
TEXT, CLIP, LATENT = 32, 16, 4
VIDEO_MEANS = {"latents_mean": [0.0, 0.1, -0.1, 0.2], "latents_std": [1.0, 0.9, 1.1, 1.2]}
WAN = {
    "patch_size": [1, 2, 2], "num_attention_heads": 2, "attention_head_dim": 12, "in_channels": LATENT,
    "out_channels": LATENT, "text_dim": TEXT, "freq_dim": 32, "ffn_dim": 32, "num_layers": 2, "rope_max_seq_len": 64,
}  # fmt: skip

HUNYUAN_DIT = {
    "num_attention_heads": 2, "attention_head_dim": 16, "in_channels": LATENT, "patch_size": 2, "sample_size": 8,
    "hidden_size": 32, "num_layers": 4, "cross_attention_dim": TEXT, "cross_attention_dim_t5": TEXT,
    "pooled_projection_dim": TEXT,
}  # fmt: skip

VAES: dict[str, Config] = {
    "AutoencoderKL": {
        "in_channels": 3, "out_channels": 3, "latent_channels": LATENT, "block_out_channels": [8, 8, 16],
        "down_block_types": ["DownEncoderBlock2D"] * 3, "up_block_types": ["UpDecoderBlock2D"] * 3,
        "layers_per_block": 1, "norm_num_groups": 4, "sample_size": 32, "scaling_factor": 0.5, "shift_factor": 0.1,
        "use_quant_conv": False, "use_post_quant_conv": False,
    },
    "AutoencoderKLFlux2": {
        "latent_channels": LATENT, "block_out_channels": [8, 8, 16], "down_block_types": ["DownEncoderBlock2D"] * 3,
        "up_block_types": ["UpDecoderBlock2D"] * 3, "layers_per_block": 1, "norm_num_groups": 4, "sample_size": 32,
    },
    "AutoencoderKLQwenImage": {
        "base_dim": 8, "z_dim": LATENT, "dim_mult": [1, 2, 2], "num_res_blocks": 1,
        "temperal_downsample": [False, True], **VIDEO_MEANS,
    },
    "AutoencoderKLQwenImage21": {
        "base_dim": 4, "decoder_base_dim": 4, "z_dim": LATENT, "dim_mult": [1, 1, 1, 1, 1], "num_res_blocks": 1,
        **VIDEO_MEANS,
    },
    "AutoencoderKLWan": {
        "base_dim": 4, "z_dim": LATENT, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1,
        "temperal_downsample": [False, True, True], **VIDEO_MEANS,
    },
    "AutoencoderKLHunyuanImage": {
        "in_channels": 3, "out_channels": 3, "latent_channels": LATENT, "block_out_channels": [32, 32, 32, 32],
        "layers_per_block": 1, "spatial_compression_ratio": 8, "sample_size": 32, "scaling_factor": 0.5,
    },
    "AutoencoderDC": {
        "in_channels": 3, "latent_channels": LATENT, "attention_head_dim": 4,
        "encoder_block_types": ["ResBlock", "ResBlock", "EfficientViTBlock"],
        "decoder_block_types": ["ResBlock", "ResBlock", "EfficientViTBlock"],
        "encoder_block_out_channels": [8, 8, 16], "decoder_block_out_channels": [8, 8, 16],
        "encoder_layers_per_block": [1, 1, 1], "decoder_layers_per_block": [1, 1, 1],
        "encoder_qkv_multiscales": [[], [], [5]], "decoder_qkv_multiscales": [[], [], [5]], "scaling_factor": 0.5,
    },
    "AutoencoderKLLTXVideo": {
        "in_channels": 3, "out_channels": 3, "latent_channels": 8, "block_out_channels": [8, 8, 8, 8],
        "decoder_block_out_channels": [8, 8, 8, 8], "layers_per_block": [1, 1, 1, 1, 1],
        "decoder_layers_per_block": [1, 1, 1, 1, 1], "spatio_temporal_scaling": [True, True, False, False],
        "decoder_spatio_temporal_scaling": [True, True, False, False],
        "decoder_inject_noise": [False, False, False, False, False], "upsample_residual": [False, False, False, False],
        "upsample_factor": [1, 1, 1, 1], "timestep_conditioning": False, "patch_size": 1, "patch_size_t": 1,
        "encoder_causal": True, "decoder_causal": False,
    },
}  # fmt: skip

DENOISERS: dict[str, Config] = {
    "SD3Transformer2DModel": {
        "sample_size": 8, "patch_size": 2, "in_channels": LATENT, "out_channels": LATENT, "num_layers": 2,
        "attention_head_dim": 16, "num_attention_heads": 2, "joint_attention_dim": TEXT, "caption_projection_dim": 32,
        "pooled_projection_dim": 2 * CLIP, "pos_embed_max_size": 16, "qk_norm": "rms_norm",
    },
    "FluxTransformer2DModel": {
        "patch_size": 1, "in_channels": 4 * LATENT, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16,
        "num_attention_heads": 2, "joint_attention_dim": TEXT, "pooled_projection_dim": CLIP,
        "axes_dims_rope": [4, 4, 8], "guidance_embeds": True,
    },
    "Flux2Transformer2DModel": {
        "patch_size": 1, "in_channels": 4 * LATENT, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16,
        "num_attention_heads": 2, "joint_attention_dim": 3 * TEXT, "timestep_guidance_channels": 32,
        "axes_dims_rope": [4, 4, 4, 4], "guidance_embeds": False,
    },
    "QwenImageTransformer2DModel": {
        "patch_size": 2, "in_channels": 4 * LATENT, "out_channels": LATENT, "num_layers": 2, "attention_head_dim": 16,
        "num_attention_heads": 2, "joint_attention_dim": TEXT, "axes_dims_rope": [8, 4, 4],
    },
    "ZImageTransformer2DModel": {
        "all_patch_size": [2], "all_f_patch_size": [1], "in_channels": LATENT, "dim": 32, "n_layers": 2,
        "n_refiner_layers": 1, "n_heads": 2, "n_kv_heads": 2, "cap_feat_dim": TEXT, "axes_dims": [8, 4, 4],
        "axes_lens": [1024, 64, 64],
    },
    "ChromaTransformer2DModel": {
        "patch_size": 1, "in_channels": 4 * LATENT, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16,
        "num_attention_heads": 2, "joint_attention_dim": TEXT, "axes_dims_rope": [4, 4, 8],
        "approximator_num_channels": 32, "approximator_hidden_dim": 32, "approximator_layers": 1,
    },
    "AuraFlowTransformer2DModel": {
        "sample_size": 8, "patch_size": 2, "in_channels": LATENT, "out_channels": LATENT, "num_mmdit_layers": 1,
        "num_single_dit_layers": 1, "attention_head_dim": 16, "num_attention_heads": 2, "joint_attention_dim": TEXT,
        "caption_projection_dim": 32, "pos_embed_max_size": 64,
    },
    "CogView3PlusTransformer2DModel": {
        "patch_size": 2, "in_channels": LATENT, "out_channels": LATENT, "num_layers": 2, "attention_head_dim": 8,
        "num_attention_heads": 2, "text_embed_dim": TEXT, "time_embed_dim": 16, "condition_dim": 4,
        "pos_embed_max_size": 16, "sample_size": 8,
    },
    "CogView4Transformer2DModel": {
        "patch_size": 2, "in_channels": LATENT, "out_channels": LATENT, "num_layers": 2, "attention_head_dim": 8,
        "num_attention_heads": 2, "text_embed_dim": TEXT, "time_embed_dim": 16, "condition_dim": 4,
        "pos_embed_max_size": 16, "sample_size": 8, "rope_axes_dim": [16, 16],
    },
    "LuminaNextDiT2DModel": {
        "sample_size": 8, "patch_size": 2, "in_channels": LATENT, "hidden_size": 32, "num_layers": 2,
        "num_attention_heads": 2, "num_kv_heads": 1, "multiple_of": 16, "cross_attention_dim": TEXT,
    },
    "Lumina2Transformer2DModel": {
        "sample_size": 8, "patch_size": 2, "in_channels": LATENT, "hidden_size": 32, "num_layers": 2,
        "num_refiner_layers": 1, "num_attention_heads": 2, "num_kv_heads": 1, "multiple_of": 16,
        "axes_dim_rope": [8, 4, 4], "axes_lens": [512, 64, 64], "cap_feat_dim": TEXT,
    },
    "SanaTransformer2DModel": {
        "patch_size": 1, "in_channels": LATENT, "out_channels": LATENT, "num_layers": 2, "num_attention_heads": 2,
        "attention_head_dim": 8, "num_cross_attention_heads": 2, "cross_attention_head_dim": 8,
        "cross_attention_dim": 16, "caption_channels": TEXT, "sample_size": 8,
    },
    "PixArtTransformer2DModel": {
        "sample_size": 8, "patch_size": 2, "in_channels": LATENT, "out_channels": 2 * LATENT, "num_layers": 2,
        "num_attention_heads": 2, "attention_head_dim": 8, "cross_attention_dim": 16, "caption_channels": TEXT,
        "use_additional_conditions": False,
    },
    "HiDreamImageTransformer2DModel": {
        "patch_size": 2, "in_channels": LATENT, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16,
        "num_attention_heads": 2, "caption_channels": [TEXT, TEXT], "text_emb_dim": 2 * CLIP, "num_routed_experts": 2,
        "num_activated_experts": 2, "axes_dims_rope": [8, 4, 4], "max_resolution": [16, 16], "llama_layers": [0, 1],
        "force_inference_output": True,
    },
    "OvisImageTransformer2DModel": {
        "patch_size": 1, "in_channels": 4 * LATENT, "out_channels": 4 * LATENT, "num_layers": 1, "num_single_layers": 1,
        "attention_head_dim": 16, "num_attention_heads": 2, "joint_attention_dim": TEXT, "axes_dims_rope": [4, 4, 8],
    },
    "LongCatImageTransformer2DModel": {
        "patch_size": 1, "in_channels": 64, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16,
        "num_attention_heads": 2, "joint_attention_dim": TEXT, "pooled_projection_dim": TEXT,
        "axes_dims_rope": [4, 4, 8],
    },
    "Krea2Transformer2DModel": {
        "in_channels": 4 * LATENT, "num_layers": 2, "attention_head_dim": 16, "num_attention_heads": 2,
        "num_key_value_heads": 1, "intermediate_size": 32, "timestep_embed_dim": 16, "text_hidden_dim": TEXT,
        "num_text_layers": 2, "text_num_attention_heads": 2, "text_num_key_value_heads": 1,
        "text_intermediate_size": 32, "num_layerwise_text_blocks": 1, "num_refiner_text_blocks": 1,
        "axes_dims_rope": [4, 4, 8],
    },
    "BriaTransformer2DModel": {
        "patch_size": 1, "in_channels": 4 * LATENT, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16,
        "num_attention_heads": 2, "joint_attention_dim": TEXT, "axes_dims_rope": [4, 4, 8],
    },
    "BriaFiboTransformer2DModel": {
        "patch_size": 1, "in_channels": LATENT, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16,
        "num_attention_heads": 2, "joint_attention_dim": 2 * TEXT, "axes_dims_rope": [4, 4, 8],
        "text_encoder_dim": TEXT,
    },
    "PRXTransformer2DModel": {
        "in_channels": LATENT, "patch_size": 2, "context_in_dim": TEXT, "hidden_size": 32, "num_heads": 2, "depth": 2,
        "axes_dim": [8, 8],
    },
    "NucleusMoEImageTransformer2DModel": {
        "patch_size": 2, "in_channels": 4 * LATENT, "out_channels": LATENT, "num_layers": 5, "attention_head_dim": 16,
        "num_attention_heads": 2, "num_key_value_heads": 1, "joint_attention_dim": TEXT, "axes_dims_rope": [8, 4, 4],
        "num_experts": 4, "moe_intermediate_dim": 32, "capacity_factors": [1.0] * 5,
    },
    "HunyuanDiT2DModel": HUNYUAN_DIT,
    "HunyuanImageTransformer2DModel": {
        "in_channels": LATENT, "out_channels": LATENT, "num_attention_heads": 2, "attention_head_dim": 16,
        "num_layers": 1, "num_single_layers": 1, "num_refiner_layers": 1, "text_embed_dim": TEXT,
        "text_embed_2_dim": TEXT, "rope_axes_dim": [8, 8],
    },
    "ErnieImageTransformer2DModel": {
        "hidden_size": 32, "num_attention_heads": 2, "num_layers": 2, "ffn_hidden_size": 32,
        "in_channels": 4 * LATENT, "out_channels": 4 * LATENT, "text_in_dim": TEXT, "rope_axes_dim": [4, 6, 6],
    },
    "QwenImage21Transformer2DModel": {
        "in_channels": LATENT, "out_channels": LATENT, "num_layers": 2, "attention_head_dim": 16,
        "num_attention_heads": 2, "context_in_dim": TEXT, "axes_dims_rope": [4, 6, 6],
    },
    "DiTTransformer2DModel": {
        "sample_size": 8, "patch_size": 2, "in_channels": LATENT, "out_channels": 2 * LATENT, "num_layers": 2,
        "attention_head_dim": 8, "num_attention_heads": 2,
    },
    "UNet2DModel": {
        "sample_size": 8, "block_out_channels": [8, 16], "layers_per_block": 1, "norm_num_groups": 4,
        "attention_head_dim": 4, "down_block_types": ["DownBlock2D", "AttnDownBlock2D"],
        "up_block_types": ["AttnUpBlock2D", "UpBlock2D"],
    },
    "UNet2DConditionModel": {
        "sample_size": 8, "in_channels": LATENT, "out_channels": LATENT, "block_out_channels": [16, 32],
        "layers_per_block": 1, "norm_num_groups": 4, "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"],
        "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"], "cross_attention_dim": CLIP, "attention_head_dim": 2,
    },
}  # fmt: skip
