"""Language models that see."""

from __future__ import annotations

from burnish.models.tiny.base import Config
from burnish.models.tiny.language.base import TinyLanguage
from burnish.models.tiny.language.qwen import (
    FRAMES,
    NARROW,
    PATCHES,
    PIXELS,
    QWEN3_5,
    QWEN_MARKS,
    QWEN_PLACES,
    QWEN_TOKENS,
    QWENS,
)

SIDE: Config = {"height": 16, "width": 16}  # of a picture, or of one of its tiles
RATIOS = [[1, 1], [1, 2], [1, 3], [1, 4], [2, 1], [2, 2], [3, 1], [4, 1]]  # of up to four tiles of Mllama
TILES = [[16, 16], [16, 32], [32, 16], [32, 32]]  # pixels of several tiles

GEMMA_MARKS = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
INTERN_MARKS = {
    "start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}  # fmt: skip

OTHERS = (
    TinyLanguage(
        name="gemma3", model="Gemma3ForConditionalGeneration", tokenizer="gemma", style="gemma",
        config={"text_config": {"layer_types": ["sliding_attention", "full_attention"], "query_pre_attn_scalar": 16},
                "mm_tokens_per_image": 4},
        places={"image": "<start_of_image>"}, marks=GEMMA_MARKS,
        tokens={"boi_token_index": "<start_of_image>", "eoi_token_index": "<end_of_image>",
                "image_token_index": "<image_soft_token>"},
        processor="Gemma3Processor", values={"image_seq_length": 4},
        parts={"image_processor": ("Gemma3ImageProcessor", {"size": SIDE})},
    ),
    TinyLanguage(
        name="internvl", model="InternVLForConditionalGeneration",
        config={"vision_config": {"image_size": [16, 16], "patch_size": [4, 4]}, "image_seq_length": 4,
                "text_config": {"model_type": "qwen2"}},
        places={"image": "<IMG_CONTEXT>\n", "video": "<video>\n"}, marks=INTERN_MARKS,
        tokens={"image_token_id": "<IMG_CONTEXT>"}, processor="InternVLProcessor", values={"image_seq_length": 4},
        parts={"image_processor": ("GotOcr2ImageProcessor", {"size": SIDE, "crop_to_patches": True, "max_patches": 3}),
               "video_processor": ("InternVLVideoProcessor", {"size": SIDE, "num_frames": 4})},
    ),
    TinyLanguage(
        name="llava_onevision", model="LlavaOnevisionForConditionalGeneration",
        config={"image_grid_pinpoints": TILES,
                "vision_aspect_ratio": "anyres_max_9"},
        places={"image": "<image>\n", "video": "<video>\n"},
        marks={"image_token": "<image>", "video_token": "<video>"},
        tokens={"image_token_index": "<image>", "video_token_index": "<video>"},
        processor="LlavaOnevisionProcessor",
        values={"num_image_tokens": 16, "vision_feature_select_strategy": "full"},
        parts={"image_processor": ("LlavaOnevisionImageProcessor", {
                   "size": SIDE, "image_grid_pinpoints": TILES}),
               "video_processor": ("LlavaOnevisionVideoProcessor", {"size": SIDE, "num_frames": 4})},
    ),
)  # fmt: skip
GLM_MARKS = {
    "image_token": "<|image|>", "video_token": "<|video|>", "image_start_token": "<|begin_of_image|>",
    "image_end_token": "<|end_of_image|>", "video_start_token": "<|begin_of_video|>",
    "video_end_token": "<|end_of_video|>",
}  # fmt: skip
GLM_FRAMES: Config = {
    "patch_size": 4, "temporal_patch_size": 2, "merge_size": 2, "num_frames": 4,
    "size": {"shortest_edge": 64, "longest_edge": 4096}, "max_image_size": {"longest_edge": 4096},
}  # fmt: skip


def glm(name: str, model: str, processor: str, pictures: str, frames: str, config: Config) -> TinyLanguage:
    """One of GLM's."""
    return TinyLanguage(
        name=name, model=model, config=config, tokenizer="pieces",
        places={"image": "<|begin_of_image|><|image|><|end_of_image|>",
                "video": "<|begin_of_video|><|video|><|end_of_video|>"},
        marks=GLM_MARKS, tokens={f"{mark}_id": token for mark, token in GLM_MARKS.items()}, processor=processor,
        parts={"image_processor": (pictures, PATCHES), "video_processor": (frames, GLM_FRAMES)},
    )  # fmt: skip


GLMS = (
    glm("glm_ocr", "GlmOcrForConditionalGeneration", "Glm46VProcessor", "Glm46VImageProcessor",
        "Glm46VVideoProcessor", {"text_config": {"rope_parameters": {**NARROW, "partial_rotary_factor": 1.0}}}),
    glm("glm4v", "Glm4vForConditionalGeneration", "Glm4vProcessor", "Glm4vImageProcessor", "Glm4vVideoProcessor",
        {"text_config": {"rope_parameters": {**NARROW, "partial_rotary_factor": 1.0}}}),
    glm("glm46v", "Glm46VForConditionalGeneration", "Glm46VProcessor", "Glm46VImageProcessor", "Glm46VVideoProcessor",
        {"text_config": {"rope_parameters": {**NARROW, "partial_rotary_factor": 1.0}}}),
    glm("glm4v_moe", "Glm4vMoeForConditionalGeneration", "Glm4vProcessor", "Glm4vImageProcessor",
        "Glm4vVideoProcessor", {"text_config": {"rope_parameters": {**NARROW, "partial_rotary_factor": 1.0}}}),
)  # fmt: skip

IDEFICS_MARKS = ("<fake_token_around_image>", "<global-img>", "<end_of_utterance>")
ROWS = tuple(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7))
IDEFICS_PIXELS: Config = {"size": {"longest_edge": 32}, "max_image_size": {"longest_edge": 16}}

TILED = (
    TinyLanguage(
        name="idefics3", model="Idefics3ForConditionalGeneration", tokenizer="pieces",
        config={"text_config": {"model_type": "llama"}, "scale_factor": 2}, places={"image": "<image>"},
        further=("<image>", *IDEFICS_MARKS, *ROWS), tokens={"image_token_id": "<image>"},
        processor="Idefics3Processor", values={"image_seq_len": 4},
        parts={"image_processor": ("Idefics3ImageProcessor", IDEFICS_PIXELS)},
    ),
    TinyLanguage(
        name="smolvlm", model="SmolVLMForConditionalGeneration", tokenizer="pieces",
        config={"text_config": {"model_type": "llama"}, "scale_factor": 2},
        places={"image": "<image>", "video": "<video>"},
        further=("<image>", "<video>", *IDEFICS_MARKS, *ROWS), tokens={"image_token_id": "<image>"},
        processor="SmolVLMProcessor", values={"image_seq_len": 4},
        parts={"image_processor": ("SmolVLMImageProcessor", IDEFICS_PIXELS),
               "video_processor": ("SmolVLMVideoProcessor", {
                   **IDEFICS_PIXELS, "do_sample_frames": True,
                   "video_sampling": {"fps": 1, "max_frames": 4, "video_size": {"longest_edge": 16}}})},
    ),
    TinyLanguage(
        name="llava", model="LlavaForConditionalGeneration", tokenizer="llama", style="mistral",
        config={"image_seq_length": 16}, places={"image": "<image>\n"}, further=("<image>",),
        tokens={"image_token_index": "<image>"}, processor="LlavaProcessor",
        values={"patch_size": 4, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
        parts={"image_processor": ("CLIPImageProcessor", {"size": {"shortest_edge": 16}, "crop_size": SIDE})},
    ),
    TinyLanguage(
        name="llava_next", model="LlavaNextForConditionalGeneration", tokenizer="llama", style="mistral",
        config={"image_grid_pinpoints": TILES, "image_seq_length": 16}, places={"image": "<image>\n"},
        further=("<image>",), tokens={"image_token_index": "<image>"}, processor="LlavaNextProcessor",
        values={"patch_size": 4, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
        parts={"image_processor": ("LlavaNextImageProcessor", {
            "size": {"shortest_edge": 16}, "crop_size": SIDE, "image_grid_pinpoints": TILES})},
    ),
    TinyLanguage(
        name="mistral3", model="Mistral3ForConditionalGeneration", tokenizer="llama", style="mistral",
        config={"text_config": {"model_type": "mistral", "sliding_window": None},
                "vision_config": {"image_size": 32}},
        places={"image": "[IMG]"}, further=("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
        tokens={"image_token_index": "[IMG]"}, processor="PixtralProcessor",
        values={"patch_size": 4, "spatial_merge_size": 2},
        # transformers takes the length of a side in merged patches from the processor
        parts={"image_processor": ("PixtralImageProcessor", {
            "size": {"longest_edge": 32}, "patch_size": {"height": 4, "width": 4}})},
    ),
    TinyLanguage(
        name="aya_vision", model="AyaVisionForConditionalGeneration", tokenizer="pieces",
        config={"text_config": {"model_type": "cohere2", "layer_types": ["sliding_attention", "full_attention"]}},
        places={"image": "<image>"},
        further=("<image>", "<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_PATCH|>", "<|IMG_LINE_BREAK|>", "TILE_GLOBAL",
                 *(f"TILE_{number}" for number in range(1, 13))),
        tokens={"image_token_index": "<|IMG_PATCH|>"}, processor="AyaVisionProcessor",
        values={"patch_size": 4, "img_size": 16, "downsample_factor": 2},
        parts={"image_processor": ("GotOcr2ImageProcessor", {"size": SIDE, "crop_to_patches": True, "max_patches": 3})},
    ),
    TinyLanguage(
        name="llama4", model="Llama4ForConditionalGeneration", tokenizer="llama", style="llama3",
        config={"text_config": {"attention_chunk_size": 16, "intermediate_size_mlp": 48, "moe_layers": [1],
                                "num_experts_per_tok": 1, "no_rope_layers": [1, 0], "floor_scale": 8,
                                "layer_types": ["chunked_attention", "full_attention"]},
                "vision_config": {"image_size": 16, "intermediate_size": 64, "vision_output_dim": 64,
                                  "projector_input_dim": 64, "projector_output_dim": 64}},
        places={"image": "<|image|>"},
        further=("<|image|>", "<|image_start|>", "<|image_end|>", "<|patch|>", "<|tile_x_separator|>",
                 "<|tile_y_separator|>"),
        tokens={"boi_token_index": "<|image_start|>", "eoi_token_index": "<|image_end|>",
                "image_token_index": "<|patch|>"},
        processor="Llama4Processor", values={"patch_size": 4, "pixel_shuffle_ratio": 0.5},
        parts={"image_processor": ("Llama4ImageProcessor", {"size": SIDE, "max_patches": 4})},
    ),
)  # fmt: skip

FLEXIBLE = (
    TinyLanguage(
        name="gemma4", model="Gemma4ForConditionalGeneration", tokenizer="gemma", style="gemma",
        config={
            "text_config": {"layer_types": ["sliding_attention", "full_attention"], "final_logit_softcapping": 30.0,
                            "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 0},
            "vision_config": {"model_type": "gemma4_vision", "pooling_kernel_size": 2, "position_embedding_size": 64},
            "audio_config": {"model_type": "gemma4_audio", "subsampling_conv_channels": [16, 4],
                             "output_proj_dims": 32},
        },
        places={"image": "<|image|>", "video": "<|video|>", "audio": "<|audio|>"},
        marks={"boi_token": "<|image>", "eoi_token": "<image|>", "image_token": "<|image|>", "audio_token": "<|audio|>",
               "boa_token": "<|audio>", "eoa_token": "<audio|>"},
        further=("<|video|>",),
        tokens={"boi_token_id": "<|image>", "eoi_token_id": "<image|>", "image_token_id": "<|image|>",
                "video_token_id": "<|video|>", "audio_token_id": "<|audio|>", "boa_token_id": "<|audio>",
                "eoa_token_index": "<audio|>"},
        processor="Gemma4Processor", values={"image_seq_length": 70},
        parts={"feature_extractor": ("Gemma4AudioFeatureExtractor", {"feature_size": 16}),
               "image_processor": ("Gemma4ImageProcessor", {
                   "patch_size": 4, "pooling_kernel_size": 2, "max_soft_tokens": 70}),
               "video_processor": ("Gemma4VideoProcessor", {
                   "patch_size": 4, "pooling_kernel_size": 2, "max_soft_tokens": 70, "num_frames": 2})},
    ),
    TinyLanguage(
        name="minicpmv4_6", model="MiniCPMV4_6ForConditionalGeneration",
        config={"text_config": QWEN3_5["text_config"] | {
                    "model_type": "qwen3_5_text",
                    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}},
                "vision_config": {"insert_layer_id": 0, "image_size": 32}, "insert_layer_id": 0, "image_size": 32,
                "patch_size": 4},
        places={"image": "<|image_pad|>", "video": "<|video_pad|>"},
        marks={"image_token": "<|image_pad|>", "video_token": "<|video_pad|>", "image_start_token": "<image>",
               "image_end_token": "</image>", "slice_start_token": "<slice>", "slice_end_token": "</slice>",
               "image_id_start_token": "<image_id>", "image_id_end_token": "</image_id>"},
        tokens={"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"},
        processor="MiniCPMV4_6Processor",
        parts={"image_processor": ("MiniCPMV4_6ImageProcessor", {
                   "scale_resolution": 32, "patch_size": 4, "max_slice_nums": 2}),
               "video_processor": ("MiniCPMV4_6VideoProcessor", {
                   "scale_resolution": 32, "patch_size": 4, "max_slice_nums": 1, "max_num_frames": 4})},
    ),
    TinyLanguage(
        name="kimi_k25", model="Kimi_K25ForConditionalGeneration", tokenizer="pieces",
        config={"text_config": {"model_type": "deepseek_v3", "num_key_value_heads": 4, "head_dim": 8},
                "vision_config": {"pos_emb_height": 8, "pos_emb_width": 8}, "projection_hidden_size": 16},
        # transformers 5.23 counts the tokens of its videos otherwise than its vision tower
        places={"image": "<|media_begin|><|media_pad|><|media_end|>"},
        marks={"image_token": "<|media_pad|>", "video_token": "<|kimi_k25_video_placeholder|>"},
        further=("<|media_begin|>", "<|media_end|>"),
        tokens={"image_token_id": "<|media_pad|>", "video_token_id": "<|kimi_k25_video_placeholder|>",
                "vision_start_token_id": "<|media_begin|>", "vision_end_token_id": "<|media_end|>"},
        processor="Kimi_K25Processor",
        parts={"image_processor": ("Kimi_K25ImageProcessor", {
                   "patch_size": 4, "max_patches": 64, "size": {"max_height": 32, "max_width": 32}}),
               "video_processor": ("Kimi_K25VideoProcessor", {
                   "patch_size": 4, "max_patches": 64, "size": {"max_height": 32, "max_width": 32}})},
    ),
    TinyLanguage(
        name="lfm2_vl", model="Lfm2VlForConditionalGeneration", tokenizer="pieces",
        config={"text_config": {"layer_types": ["conv", "full_attention"], "full_attn_idxs": [1],
                                "block_auto_adjust_ff_dim": False},
                "vision_config": {"num_patches": 16, "vision_use_head": False}, "projector_hidden_size": 32},
        places={"image": "<image>"}, marks={"image_token": "<image>"},
        further=("<|image_start|>", "<|image_end|>", "<|img_thumbnail|>",
                 *(f"<|img_row_{row}_col_{column}|>" for row in range(1, 4) for column in range(1, 4))),
        tokens={"image_token_id": "<image>"}, processor="Lfm2VlProcessor",
        parts={"image_processor": ("Lfm2VlImageProcessor", {
            "encoder_patch_size": 4, "tile_size": 32, "size": {"height": 32, "width": 32}, "min_image_tokens": 4,
            "max_image_tokens": 16, "max_tiles": 4, "max_num_patches": 64})},
    ),
    TinyLanguage(
        name="mllama", model="MllamaForConditionalGeneration", tokenizer="pieces",
        config={
            "text_config": {"model_type": "mllama_text_model", "num_hidden_layers": 4, "cross_attention_layers": [1, 3],
                            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
            "vision_config": {"num_global_layers": 1, "attention_heads": 2, "intermediate_layers_indices": [0, 1],
                              "hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 24, "image_size": 16,
                              "patch_size": 4, "vision_output_dim": 48, "max_num_tiles": 4,
                              "supported_aspect_ratios": RATIOS},
        },
        places={"image": "<|image|>"}, marks={"image_token": "<|image|>"}, tokens={"image_token_index": "<|image|>"},
        processor="MllamaProcessor",
        parts={"image_processor": ("MllamaImageProcessor", {"size": SIDE, "max_image_tiles": 4})},
    ),
    TinyLanguage(
        name="ovis2", model="Ovis2ForConditionalGeneration",
        config={"vision_config": {"vocab_size": 24}, "hidden_size": 32},
        places={"image": "<image>\n"},
        further=("<image>", "<IMG_ATOM>", "<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>"),
        tokens={"image_token_id": "<IMG_ATOM>"},
        processor="Ovis2Processor", values={"image_seq_length": 16},
        parts={"image_processor": ("Ovis2ImageProcessor", {"size": SIDE, "crop_to_patches": True, "max_patches": 3})},
    ),
    TinyLanguage(
        name="paligemma", model="PaliGemmaForConditionalGeneration", tokenizer="gemma", style="plain",
        config={"text_config": {"model_type": "gemma2", "layer_types": ["sliding_attention", "full_attention"],
                                "num_image_tokens": 16},
                "vision_config": {"vision_use_head": False, "projection_dim": 32}, "projection_dim": 32,
                "hidden_size": 32},
        places={"image": "<image>"}, marks={"image_token": "<image>"}, tokens={"image_token_index": "<image>"},
        processor="PaliGemmaProcessor",
        parts={"image_processor": ("SiglipImageProcessor", {"size": SIDE, "image_seq_length": 16})},
    ),
)  # fmt: skip
LLAVA: Config = {"patch_size": 4, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
CROPPED: Config = {"size": {"shortest_edge": 16}, "crop_size": SIDE}
LARGER: Config = {"image_size": 980, "patch_size": 70}  # its processor makes pictures of 490 or 980 pixels

FURTHER = (
    TinyLanguage(
        name="vipllava", model="VipLlavaForConditionalGeneration", tokenizer="llama", style="mistral",
        config={"text_config": {"model_type": "llama"}, "vision_feature_layers": [-2, -1], "image_seq_length": 16},
        places={"image": "<image>"}, further=("<image>",), tokens={"image_token_index": "<image>"},
        processor="LlavaProcessor", values=LLAVA, parts={"image_processor": ("CLIPImageProcessor", CROPPED)},
    ),
    TinyLanguage(
        name="llava_next_video", model="LlavaNextVideoForConditionalGeneration", tokenizer="llama", style="mistral",
        config={"image_grid_pinpoints": TILES, "image_seq_length": 16, "video_seq_length": 4},
        places={"image": "<image>\n", "video": "<video>\n"}, further=("<image>", "<video>"),
        tokens={"image_token_index": "<image>", "video_token_index": "<video>"},
        processor="LlavaNextVideoProcessor", values=LLAVA,
        parts={"image_processor": ("LlavaNextImageProcessor", {**CROPPED, "image_grid_pinpoints": TILES}),
               "video_processor": ("LlavaNextVideoVideoProcessor", {**CROPPED, "num_frames": 4})},
    ),
    TinyLanguage(
        name="idefics2", model="Idefics2ForConditionalGeneration", tokenizer="llama", style="mistral",
        config={"text_config": {"model_type": "mistral"},
                "perceiver_config": {"resampler_n_latents": 4, "resampler_depth": 1, "resampler_n_heads": 2,
                                     "resampler_head_dim": 8, "num_key_value_heads": 1, "hidden_size": 32}},
        places={"image": "<image>"}, further=("<image>", "<fake_token_around_image>", "<end_of_utterance>"),
        tokens={"image_token_id": "<image>"}, processor="Idefics2Processor", values={"image_seq_len": 4},
        parts={"image_processor": ("Idefics2ImageProcessor", {
            "size": {"shortest_edge": 8, "longest_edge": 16}, "do_image_splitting": False})},
    ),
    TinyLanguage(
        name="aria", model="AriaForConditionalGeneration", tokenizer="llama", style="mistral",
        config={"text_config": {"moe_num_experts": 4, "moe_topk": 2, "moe_num_shared_experts": 1},
                "vision_config": LARGER, "projector_patch_to_query_dict": {"49": 4, "196": 4}},
        places={"image": "<image>"}, marks={"image_token": "<image>"}, tokens={"image_token_index": "<image>"},
        processor="AriaProcessor", values={"size_conversion": {490: 4, 980: 4}},
        parts={"image_processor": ("AriaImageProcessor", {"max_image_size": 490})},
    ),
    TinyLanguage(
        name="cohere2_vision", model="Cohere2VisionForConditionalGeneration", tokenizer="pieces",
        config={"text_config": {"model_type": "cohere2", "layer_types": ["sliding_attention", "full_attention"]},
                "downsample_factor": 2, "alignment_intermediate_size": 32},
        places={"image": "<image>"},
        marks={"image_token": "<image>", "boi_token": "<|START_OF_IMG|>", "eoi_token": "<|END_OF_IMG|>",
               "img_line_break_token": "<|IMG_LINE_BREAK|>"},
        tokens={"image_token_id": "<image>"}, processor="Cohere2VisionProcessor",
        parts={"image_processor": ("Cohere2VisionImageProcessor", {
            "size": SIDE, "patch_size": 2, "downsample_factor": 2, "max_patches": 3})},
    ),
    TinyLanguage(
        name="deepseek_vl", model="DeepseekVLForConditionalGeneration", tokenizer="pieces",
        config={"text_config": {"model_type": "llama"}}, places={"image": "<image_placeholder>"},
        marks={"image_token": "<image_placeholder>"}, tokens={"image_token_id": "<image_placeholder>"},
        processor="DeepseekVLProcessor", values={"num_image_tokens": 16},
        parts={"image_processor": ("DeepseekVLImageProcessor", {"size": SIDE, "min_size": 4})},
    ),
    TinyLanguage(
        name="exaone4_5", model="Exaone4_5_ForConditionalGeneration",
        config={"text_config": {"model_type": "exaone4", "layer_types": ["sliding_attention", "full_attention"],
                                "sliding_window_pattern": 2}},
        places=QWEN_PLACES, marks=QWEN_MARKS, tokens=QWEN_TOKENS, processor="Exaone4_5_Processor",
        parts={"image_processor": ("Qwen2VLImageProcessor", PATCHES),
               "video_processor": ("Qwen2VLVideoProcessor", FRAMES)},
    ),
    TinyLanguage(
        name="video_llama_3", model="VideoLlama3ForConditionalGeneration",
        config={"text_config": {"model_type": "qwen2"}}, places={"image": "<image>", "video": "<video>"},
        marks={"image_token": "<image>", "video_token": "<video>"},
        tokens={"image_token_id": "<image>", "video_token_id": "<video>"}, processor="VideoLlama3Processor",
        parts={"image_processor": ("VideoLlama3ImageProcessor", {"patch_size": 4, "merge_size": 1, "size": PIXELS}),
               "video_processor": ("VideoLlama3VideoProcessor", {
                   "patch_size": 4, "merge_size": 2, "max_frames": 4, "size": PIXELS})},
    ),
)  # fmt: skip
SEEING = (*QWENS, *OTHERS, *GLMS, *TILED, *FLEXIBLE, *FURTHER)
