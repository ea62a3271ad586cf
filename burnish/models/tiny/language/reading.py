"""Language models that read text alone."""

from __future__ import annotations

from burnish.models.tiny.base import Config
from burnish.models.tiny.language.base import Style, TinyLanguage, Tokenizer
from burnish.models.tiny.language.configurations import LENGTH

ALTERNATING = ["sliding_attention", "full_attention"]
RECURRENT = ["linear_attention", "full_attention"]
TURNED: Config = {"rope_type": "default", "rope_theta": 10000.0}
SCALED: Config = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
                  "high_freq_factor": 4.0, "original_max_position_embeddings": 64}  # fmt: skip
LATENT: Config = {"num_key_value_heads": 4, "head_dim": 8}  # of latent attention, beside the table of parts
FAR: Config = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 1024}


def text(
    name: str, model: str, tokenizer: Tokenizer = "pieces", style: Style = "chatml", **config: object
) -> TinyLanguage:
    """One whose configuration has no parts."""
    return TinyLanguage(name=name, model=model, tokenizer=tokenizer, style=style, config=config)


DENSE = (
    text("qwen2", "Qwen2ForCausalLM", "qwen", tie_word_embeddings=True),
    text("qwen3", "Qwen3ForCausalLM", "qwen"),
    text("llama", "LlamaForCausalLM", "llama", "llama3"),
    text("mistral", "MistralForCausalLM", "llama", "mistral"),
    text("ministral3", "Ministral3ForCausalLM", "llama", "mistral"),
    text("gemma2", "Gemma2ForCausalLM", "gemma", "gemma", query_pre_attn_scalar=16),
    text("gemma3_text", "Gemma3ForCausalLM", "gemma", "gemma", query_pre_attn_scalar=16, layer_types=ALTERNATING,
         final_logit_softcapping=30.0),
    text("granite", "GraniteForCausalLM", logits_scaling=2.0, embedding_multiplier=2.0, residual_multiplier=0.5,
         attention_multiplier=0.25),
    text("cohere2", "Cohere2ForCausalLM", layer_types=ALTERNATING, logit_scale=0.5),
    text("glm4", "Glm4ForCausalLM"),
    text("olmo2", "Olmo2ForCausalLM"),
    text("olmo3", "Olmo3ForCausalLM", layer_types=ALTERNATING),
    text("phi3", "Phi3ForCausalLM"),
    text("smollm3", "SmolLM3ForCausalLM", no_rope_layers=[1, 0], layer_types=["full_attention"] * 2),
    text("exaone4", "Exaone4ForCausalLM", layer_types=ALTERNATING, sliding_window_pattern=2),
    text("apertus", "ApertusForCausalLM", rope_parameters=SCALED),
    text("arcee", "ArceeForCausalLM"),
    text("bitnet", "BitNetForCausalLM"),
    text("cohere", "CohereForCausalLM", logit_scale=0.5),
    text("cwm", "CwmForCausalLM", "llama", "llama3", rope_parameters=SCALED, layer_types=ALTERNATING),
    text("diffllama", "DiffLlamaForCausalLM"),
    text("ernie4_5", "Ernie4_5ForCausalLM"),
    text("falcon", "FalconForCausalLM", new_decoder_architecture=True, num_kv_heads=2, ffn_hidden_size=48),
    text("gemma", "GemmaForCausalLM", "gemma", "gemma"),
    text("gemma3n_text", "Gemma3nForCausalLM", "gemma", "gemma", laurel_rank=4, hidden_size_per_layer_input=8,
         num_kv_shared_layers=0, activation_sparsity_pattern=[0.5, 0.0], layer_types=ALTERNATING, altup_num_inputs=2),
    text("gemma4_text", "Gemma4ForCausalLM", "gemma", "gemma", hidden_size_per_layer_input=8, num_kv_shared_layers=0,
         layer_types=ALTERNATING, final_logit_softcapping=30.0),
    text("glm", "GlmForCausalLM"),
    text("gpt2", "GPT2LMHeadModel", n_embd=32, n_layer=2, n_head=4, n_positions=LENGTH),
    text("gpt_neox", "GPTNeoXForCausalLM"),
    text("granite_swa", "GraniteSWAForCausalLM"),
    text("helium", "HeliumForCausalLM", head_dim=8),
    text("hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM"),
    text("jais2", "Jais2ForCausalLM"),
    text("minicpm3", "MiniCPM3ForCausalLM", **LATENT, dim_model_base=32, scale_emb=1.0),
    text("ministral", "MinistralForCausalLM", "llama", "mistral"),
    text("nanochat", "NanoChatForCausalLM"),
    text("nemotron", "NemotronForCausalLM"),
    text("olmo", "OlmoForCausalLM"),
    text("opt", "OPTForCausalLM", ffn_dim=48, word_embed_proj_dim=32),
    text("phi", "PhiForCausalLM"),
    text("seed_oss", "SeedOssForCausalLM"),
    text("stablelm", "StableLmForCausalLM"),
    text("starcoder2", "Starcoder2ForCausalLM"),
    text("vaultgemma", "VaultGemmaForCausalLM", "gemma", "gemma"),
    text("youtu", "YoutuForCausalLM", **LATENT),
)  # fmt: skip
EXPERTS = (
    text("qwen2_moe", "Qwen2MoeForCausalLM", "qwen"),
    text("qwen3_moe", "Qwen3MoeForCausalLM", "qwen"),
    text("mixtral", "MixtralForCausalLM", "llama", "mistral"),
    text("gpt_oss", "GptOssForCausalLM", layer_types=ALTERNATING, rope_parameters=FAR),
    text("deepseek_v3", "DeepseekV3ForCausalLM", num_key_value_heads=4, head_dim=8),
    text("glm4_moe", "Glm4MoeForCausalLM"),
    text("granitemoe", "GraniteMoeForCausalLM", logits_scaling=2.0),
    text("granitemoeshared", "GraniteMoeSharedForCausalLM", shared_intermediate_size=16, logits_scaling=2.0),
    text("afmoe", "AfmoeForCausalLM"),
    text("cohere2_moe", "Cohere2MoeForCausalLM", layer_types=ALTERNATING, logit_scale=0.5),
    text("deepseek_v2", "DeepseekV2ForCausalLM", **LATENT),
    text("deepseek_v32", "DeepseekV32ForCausalLM", **LATENT),
    text("dots1", "Dots1ForCausalLM"),
    text("ernie4_5_moe", "Ernie4_5_MoeForCausalLM", moe_num_experts=4, moe_k=2, moe_num_shared_experts=1,
         moe_layer_start_index=1),
    text("exaone_moe", "ExaoneMoeForCausalLM"),
    text("flex_olmo", "FlexOlmoForCausalLM"),
    text("glm4_moe_lite", "Glm4MoeLiteForCausalLM", **LATENT),
    text("glm_moe_dsa", "GlmMoeDsaForCausalLM", **LATENT),
    text("hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM"),
    text("laguna", "LagunaForCausalLM"),
    text("longcat_flash", "LongcatFlashForCausalLM", **LATENT, num_layers=1, ffn_hidden_size=48,
         expert_ffn_hidden_size=16, zero_expert_num=2, moe_topk=2),
    text("mimo_v2_flash", "MiMoV2FlashForCausalLM"),
    text("minimax_m2", "MiniMaxM2ForCausalLM"),
    text("mistral4", "Mistral4ForCausalLM", **LATENT),
    text("olmoe", "OlmoeForCausalLM"),
    text("phimoe", "PhimoeForCausalLM"),
    text("solar_open", "SolarOpenForCausalLM"),
)  # fmt: skip
RECURRENTS = (
    text("qwen3_next", "Qwen3NextForCausalLM", "qwen", layer_types=RECURRENT),
    text("falcon_h1", "FalconH1ForCausalLM"),
    text("lfm2", "Lfm2ForCausalLM", layer_types=["conv", "full_attention"], full_attn_idxs=[1],
         block_auto_adjust_ff_dim=False),
    text("granitemoehybrid", "GraniteMoeHybridForCausalLM", layer_types=["mamba", "attention"], logits_scaling=2.0,
         shared_intermediate_size=16),
    text("nemotron_h", "NemotronHForCausalLM", n_groups=1, chunk_size=16,
         layers_block_type=["linear_attention", "full_attention", "mlp"]),
    text("mamba2", "Mamba2ForCausalLM", num_heads=4, head_dim=16, expand=2, n_groups=1, chunk_size=16),
    text("recurrent_gemma", "RecurrentGemmaForCausalLM", "gemma", "gemma", num_hidden_layers=3, lru_width=32,
         attention_window_size=16),
    text("bamba", "BambaForCausalLM", attn_layer_indices=[1]),
    text("falcon_mamba", "FalconMambaForCausalLM", expand=2),
    text("jamba", "JambaForCausalLM", attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2,
         expert_layer_offset=1, mamba_dt_rank=4, mamba_d_state=8),
    text("lfm2_moe", "Lfm2MoeForCausalLM", layer_types=["conv", "full_attention"], num_dense_layers=1),
    text("mamba", "MambaForCausalLM", expand=2),
    text("minimax", "MiniMaxForCausalLM", layer_types=RECURRENT),
    text("olmo_hybrid", "OlmoHybridForCausalLM", layer_types=RECURRENT, num_key_value_heads=4, linear_num_key_heads=4),
    text("qwen3_5_text", "Qwen3_5ForCausalLM", "qwen", layer_types=RECURRENT,
         rope_parameters={**TURNED, "partial_rotary_factor": 0.5}),
    text("rwkv", "RwkvForCausalLM", attention_hidden_size=32, context_length=LENGTH),
    text("zamba2", "Zamba2ForCausalLM", num_hidden_layers=4, layers_block_type=["mamba", "hybrid"] * 2,
         hybrid_layer_ids=[1, 3], mamba_ngroups=1, n_mamba_heads=4, mamba_headdim=16, num_mem_blocks=1,
         use_mem_rope=True, num_key_value_heads=4, attention_head_dim=16, attention_hidden_size=64, chunk_size=8,
         kv_channels=8),
)  # fmt: skip
READING = (*DENSE, *EXPERTS, *RECURRENTS)
