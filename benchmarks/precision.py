"""What bfloat16 does to log-probs, on models of some size: sampler against trainer, beside transformers' own forwards.

    python -m benchmarks.precision --device cuda --output precision.json

Every line compares forward passes under the same weights. Nothing is trained, so every difference is rounding.
"""

import tempfile
import time
from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from benchmarks.forwards import LAYOUTS, apart, learned, load, repeated, sampled, scored, theirs
from benchmarks.setting import Burnish, RandomSD3, options, sd3, table, write
from burnish.diffusion.algorithms.policy_gradient import FlowGRPO, Window
from burnish.options.model import LoraOptions
from tests.support.tiny_language import build_tokenizer, chat

SIZE = {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 12, "num_attention_heads": 14}
SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
MICRO = (64, 48, 24, 8, 5, 1)


def build(folder: Path, size: dict[str, int], *, experts: bool) -> None:
    """A random model of that size, whose biases of queries and keys are above all that they are added to."""
    tokenizer = build_tokenizer("text")
    text = {
        "vocab_size": 32_000, "num_key_value_heads": 2, "max_position_embeddings": 4096, "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, **size,
    }  # fmt: skip
    torch.manual_seed(0)
    network = (
        Qwen3MoeForCausalLM(
            Qwen3MoeConfig(**text, num_experts=16, num_experts_per_tok=4, moe_intermediate_size=256, head_dim=64)
        )
        if experts
        else Qwen2ForCausalLM(Qwen2Config(**text, tie_word_embeddings=False))
    )
    for name, parameter in network.named_parameters():
        if name.endswith(("q_proj.bias", "k_proj.bias")):
            torch.nn.init.normal_(parameter, std=5.0)
        elif name.endswith(("embed_tokens.weight", "lm_head.weight")):
            torch.nn.init.normal_(parameter, std=0.08)  # logits as wide as a trained model's
        elif parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)  # every layer says something
    network.generation_config.eos_token_id = tokenizer.eos_token_id
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def language(device: str, size: dict[str, int], rows: int, longest: int) -> list[dict]:
    """Differences of log-probs of the same responses."""
    found = []
    for experts in (False, True):
        with tempfile.TemporaryDirectory() as name:
            build(Path(name), size, experts=experts)
            for lora in (True, False):
                what = f"{'experts' if experts else 'dense'}, {'adapters' if lora else 'all weights'}"
                model = load(Path(name), device, lora=lora)
                encoded = model.encode(*chat("How many words does a question of some length have? " * 3))
                sampled(model, encoded, rows=4, longest=4)  # warms up
                started = time.perf_counter()
                completion = sampled(model, encoded, rows=rows, longest=longest)
                rate = int(completion.length.sum()) / (time.perf_counter() - started)
                ours = scored(model, completion)
                few = completion.select(range(min(rows, 8)))
                uncached, cached = theirs(Path(name), model, few, device, lora=lora)
                pairs = [(f"sampler and trainer, {layout}", one, completion.logprob, completion.mask)
                         for layout, one in zip(LAYOUTS, ours, strict=True)]  # fmt: skip
                pairs += [
                    ("trainer, padded and packed", ours[0], ours[1], completion.mask),
                    ("trainer, padded and shared", ours[0], ours[2], completion.mask),
                    ("trainer, all rows and 8 of them", ours[0][: len(few)], scored(model, few)[0], few.mask),
                    ("transformers, cached and not", cached, uncached, few.mask),
                    ("sampler and transformers, cached", few.logprob, cached, few.mask),
                ]
                for pair, one, other, mask in pairs:
                    mean, largest = apart(one, other, mask)
                    found.append({"name": f"{what}: {pair}", "mean": mean, "largest": largest})
                found[-1]["tokens_per_second"] = rate
                del model
    return found


def generator(device: str, size: dict[str, int], rows: int, steps: int) -> list[dict]:
    """Differences of log-probs of the same denoising steps, which are means over all elements of a latent."""
    found = []
    for what, lora, merge in (
        ("adapters", True, "auto"),
        ("adapters merged", True, True),
        ("all weights", False, "auto"),
    ):
        network = sd3(**size).to(device, torch.bfloat16 if lora else torch.float32)
        bench = Burnish(
            RandomSD3(network, 77, torch.bfloat16), FlowGRPO(window=Window(kind="fixed", size=2)), text_tokens=77,
            guidance=1.0, steps=steps, rollout_batch=rows, micro_batch=2 * rows, merge=merge,
            lora=LoraOptions(rank=16) if lora else None,
        )  # fmt: skip
        if lora:
            learned(bench.roles.parameters().values())
        recorded = bench.rollout(2, rows // 2, 1).trace.steps()
        for micro in MICRO:
            bench.roles.micro_batch_size = micro
            again = repeated(bench, recorded)
            mean, largest = apart(again, recorded.logprob, torch.ones_like(again, dtype=torch.bool))
            found.append({"name": f"generator, {what}: rollout of {rows}, micro-batches of {micro}"})
            found[-1] |= {"mean": mean, "largest": largest}
    return found


def main() -> None:
    arguments = options(__doc__.splitlines()[0], device={"default": "cuda" if torch.cuda.is_available() else "cpu"})
    device = arguments.device
    if arguments.smoke:
        rows = language(device, SMALL, 4, 4) + generator(device, {"layers": 1, "heads": 2, "head_width": 8}, 4, 3)
    else:
        rows = language(device, SIZE, 64, 128) + generator(device, {"layers": 8, "heads": 12, "head_width": 64}, 24, 8)
    columns = {"name": "", "mean": "mean", "largest": "largest", "tokens_per_second": "tokens/s"}
    print(table(rows, columns))
    write(arguments.output, {"device": device, "rows": rows})


if __name__ == "__main__":
    main()
