"""What a model can not do is refused with the option, before its weights are loaded."""

import pytest

from tests.support.model_runs import refused

RAY = ["runtime=ray", "pools.train.processes=2"]
SHARED = ["runtime=ray", "model.lora=null"]
FEWER, LOW, CUDA = "model.quantization.weights=fp8_cast", "model.dtype=bfloat16", "model.device=cuda"


def two(*options: str) -> list[str]:
    return [*SHARED, "pools.train.processes=2", "sharding.context_parallel=2", *options]


MODELS = {
    # adapters
    ("llama", "{targets: [q_proj, lm_head]}"): ["'lm_head'"],
    ("llama", "{vision: true}"): ["model.lora.vision is true"],
    ("llama", "{modules_to_save: [mlp], targets: [up_proj]}"): ["model.lora.targets"],
    ("qwen2", "{modules_to_save: [lm_head]}"): ["lm_head"],  # tied to its embeddings
    ("sd3", "{targets: []}"): ["model.lora.targets"],
    # names that peft takes for those of experts, or loses when it saves them; what Mamba's kernels read
    ("deepseek_v3", "{targets: [mlp.gate_proj, mlp.up_proj, mlp.down_proj, q_a_proj]}"): ["model.lora.targets"],
    ("laguna", "{targets: [q_proj, gate_proj, up_proj]}"): ["*.shared_experts.*"],
    ("falcon_h1", "{targets: [q_proj, out_proj]}"): ["'out_proj'"],
}  # fmt: skip
OPTIONS = {
    "unknown attention": ("flux", ["model.attention=flex"], ["model.attention is flex"]),
    "attention of a package": ("flux", ["model.attention=flash"], ["model.attention=flash", "flash_attn"]),
    "a family that was": ("llama", ["model.family=qwen2_vl"], ["model.family is 'qwen2_vl'", "remove it"]),
    "embedded guidance": ("sd3", ["rollout.embedded_guidance=2.0"], ["rollout.embedded_guidance is 2.0"]),
    "pictures of many tokens": ("smolvlm", ["data.max_prompt_length=60"], ["85 tokens", "prompts.jsonl:3"]),
    "layers that are kept": ("jetmoe", ["model.gradient_checkpointing=true"], ["is True", "no layers of JetMoe"]),
    "long prompts": ("flux-dev", ["rollout.max_sequence_length=513"], ["max_sequence_length", "513", "512"]),
    "a shift of none": ("sdxl", ["rollout.shift=3"], ["rollout.shift is 3", "EulerDiscreteScheduler"]),
    "tokens": ("ernie-image-rewritten", ["model.networks=[pe]", "algorithm=diffusion_nft"], ["nft learns none"]),
    # ranks that share a sequence
    "sequences of a class": ("sd3", two(), ["StableDiffusion3Pipeline", "sharding.context_parallel"]),
    "fewer heads than ranks": (
        "flux", [*SHARED, "pools.train.processes=3", "sharding.context_parallel=3"], ["3", "attention heads"],
    ),
    "sequences of states": ("qwen3_next", two(), ["sharding.context_parallel is 2", "linear_attention"]),
    # ranks that share experts
    "experts of a dense network": ("llama", [*RAY, "sharding.expert_parallel=2"], ["is 2, but the network has no"]),
    "four experts of three ranks": (
        "qwen3_moe", [*SHARED, "pools.train.processes=3", "sharding.expert_parallel=3"], ["is 3", "4 experts"],
    ),
    # ranks that hold slices of layers
    "layers without a plan": ("qwen3_vl", [*RAY, "sharding.tensor_parallel=2"], ["is 2, but the library has no plan"]),
    "a generator without a plan": ("sd3", [*RAY, "sharding.tensor_parallel=2"], ["the library has no plan"]),
    "fewer key-value heads than ranks": (
        "llama", [*SHARED, "pools.train.processes=4", "sharding.tensor_parallel=4"], ["is 4", "k_proj"],
    ),
    # weights of few bits
    "of what is trained": ("sd3", [FEWER, LOW, "model.lora=null"], ["weights is fp8_cast", "model.lora is null"]),
    "with dora": ("sd3", [FEWER, LOW, "model.lora={rank: 2, dora: true}"], ["model.lora.dora is true"]),
    "merged": ("sd3", [FEWER, LOW, "rollout.merge_lora=true"], ["rollout.merge_lora is true"]),
    "of nothing": ("sd3", ["model.quantization.weights=null", LOW], ["model.quantization"]),
    "but for texts": ("sd3", ["model.quantization={text_encoders: fp8_cast, exclude: [a]}", LOW], ["exclude"]),
    "put away": ("sd3", [FEWER, LOW, "model.offload=true"], ["model.offload is true", "cpu"]),
    "states put away": ("sd3", [FEWER, LOW, "optimizer.offload=true"], ["optimizer.offload is true", "cpu"]),
    "put away from gradients": ("sd3", [FEWER, LOW, "model.offload=true", CUDA, "algorithm=draft"], ["draft"]),
    "compiled": ("llama", [FEWER, LOW, *RAY, "model.compile=true"], ["model.compile is true"]),
    "shards put away": ("sd3", [FEWER, LOW, CUDA, "sharding.offload=true"], ["quantised"]),
    "gathered": ("llama", [FEWER, LOW, *RAY, "sharding.gather=compute"], ["sharding.gather", "nothing is sharded"]),
    "sent": ("llama", [FEWER, LOW, "runtime=ray", "pools.rollout.processes=1"], ["pool"]),
    "of vLLM": ("llama", [FEWER, LOW, "rollout={engine: vllm, vllm: {python: /x}, n: 4, max_new_tokens: 5}"], ["vLLM"]),
}  # fmt: skip


@pytest.mark.parametrize(("model", "option"), MODELS)
def test_layers_that_can_not_be_adapted_are_refused(model, option, files):
    refused(files, model, f"model.lora={option}", names=MODELS[model, option])


@pytest.mark.parametrize("case", OPTIONS)
def test_what_a_model_does_not_have_is_refused(case, files):
    model, options, names = OPTIONS[case]
    refused(files, model, *options, names=names)
