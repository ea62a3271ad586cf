"""The one tiny configuration of every text encoder and vision encoder of transformers, and its tokenizer."""

from __future__ import annotations

from typing import Any

from burnish.models.tiny.base import Config
from burnish.models.tiny.networks import CLIP, TEXT

T5 = {"d_model": TEXT, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 4, "relative_attention_num_buckets": 8}
LANGUAGE: dict[str, Any] = {
    "hidden_size": TEXT, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 4096,
}  # fmt: skip
CLIP_TEXT = {
    "hidden_size": CLIP, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2,
    "max_position_embeddings": 77, "projection_dim": CLIP,
}  # fmt: skip
SECTIONS = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}  # sum to half of a head
QWEN_VISION = {
    "depth": 2, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": TEXT, "patch_size": 14,
    "spatial_merge_size": 2, "temporal_patch_size": 2,
}  # fmt: skip

CLIP_VISION = {
    "hidden_size": CLIP, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14, "projection_dim": CLIP,
}  # fmt: skip
MISTRAL3 = {
    "text_config": {**LANGUAGE, "model_type": "mistral"},
    "vision_config": {"hidden_size": CLIP, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
                      "head_dim": 8, "image_size": 28, "patch_size": 14, "model_type": "pixtral"},
}  # fmt: skip
QWEN_TEXT = {**{k: v for k, v in LANGUAGE.items() if k != "head_dim"}, "rope_parameters": SECTIONS}
QWEN3_VL = {
    "text_config": {**LANGUAGE, "rope_parameters": SECTIONS},
    "vision_config": {**QWEN_VISION, "patch_size": 16, "num_position_embeddings": 64, "deepstack_visual_indexes": [0]},
    "tie_word_embeddings": False,
}

ENCODERS: dict[str, Config] = {
    "CLIPTextModel": CLIP_TEXT,
    "CLIPTextModelWithProjection": CLIP_TEXT,
    "CLIPVisionModel": CLIP_VISION,
    "CLIPVisionModelWithProjection": CLIP_VISION,
    "SiglipVisionModel": CLIP_VISION,
    "LlavaForConditionalGeneration": {
        "text_config": {**LANGUAGE, "model_type": "llama"},
        "vision_config": {**CLIP_VISION, "image_size": 336, "model_type": "clip_vision_model"},
        "vision_feature_select_strategy": "default", "vision_feature_layer": -2,
    },
    "Mistral3ForConditionalGeneration": MISTRAL3,
    "Mistral3Model": MISTRAL3,
    "T5EncoderModel": T5,
    "UMT5EncoderModel": T5,
    "BertModel": {
        "hidden_size": TEXT, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "max_position_embeddings": 77,
    },
    "Qwen3Model": LANGUAGE,
    "Qwen3ForCausalLM": LANGUAGE,
    "GemmaModel": LANGUAGE,
    "Gemma2Model": LANGUAGE,
    "GlmModel": {**LANGUAGE, "partial_rotary_factor": 0.5},
    "LlamaModel": LANGUAGE,
    "LlamaForCausalLM": LANGUAGE,
    "SmolLM3ForCausalLM": LANGUAGE,
    "Qwen2_5_VLForConditionalGeneration": {
        "text_config": QWEN_TEXT,
        "vision_config": {**QWEN_VISION, "window_size": 56, "fullatt_block_indexes": [1]},
        "tie_word_embeddings": False,
    },
    "Qwen2_5_VLTextModel": QWEN_TEXT,
    "Qwen3VLModel": QWEN3_VL,
    "Qwen3VLForConditionalGeneration": QWEN3_VL,
}  # fmt: skip

# where a signature names no class of tokenizer
TOKENIZER_OF = {
    "CLIPTextModel": "CLIPTokenizer", "CLIPTextModelWithProjection": "CLIPTokenizer",
    "BertModel": "BertTokenizer", "T5EncoderModel": "T5Tokenizer", "UMT5EncoderModel": "T5Tokenizer",
    "Qwen3Model": "Qwen2Tokenizer", "Qwen3ForCausalLM": "Qwen2Tokenizer",
    "Qwen2_5_VLForConditionalGeneration": "Qwen2Tokenizer", "Qwen2_5_VLTextModel": "Qwen2Tokenizer",
    "Qwen3VLModel": "Qwen2Tokenizer", "Qwen3VLForConditionalGeneration": "Qwen2Tokenizer",
    "GemmaModel": "GemmaTokenizer", "Gemma2Model": "GemmaTokenizer", "GlmModel": "PreTrainedTokenizerFast",
    "LlamaModel": "LlamaTokenizer", "LlamaForCausalLM": "LlamaTokenizer",
    "SmolLM3ForCausalLM": "PreTrainedTokenizerFast",
}  # fmt: skip

# tokens that a configuration names by their ids
TOKENS = {
    "image_token_id": "<|image_pad|>", "image_token_index": "<image>", "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>",
}  # fmt: skip
