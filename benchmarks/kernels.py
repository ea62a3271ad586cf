"""Operations that models launch, beside those of diffusers and transformers alone: counts depend on no machine.

Every operation that computes is a kernel of a GPU, and views are none. The network of a generator is called as the
pipeline calls it, in bfloat16: by diffusers, with peft's adapters in that precision, and by Burnish, whose adapters are
float32. Language models run on the tests' pretended GPU: *token* is what a longer response has more, by transformers'
``generate`` in bfloat16 and by Burnish's sampling, *forward* gives the log-probs of responses, with all weights in
float32 under autocast, or with adapters.

    python -m benchmarks.kernels
    python -m benchmarks.kernels --language
"""

from __future__ import annotations

import argparse
import copy
import inspect
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from peft import LoraConfig
from PIL import Image
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from burnish.diffusion.algorithms.base import Needs
from burnish.diffusion.engine import FlowEngine, FlowJob
from burnish.diffusion.options import ModelOptions, RolloutOptions
from burnish.diffusion.pipeline.forwards import Call, Forwards
from burnish.diffusion.pipeline.loading import load_model
from burnish.diffusion.roles import FlowRoles
from burnish.language.decoders import decode
from burnish.language.layers import Layers
from burnish.language.logprobs import response_logprobs
from burnish.language.model.base import Shown
from burnish.language.model.forwards import conversations
from burnish.language.model.loading import load_language_model
from burnish.language.sampling import Sampling
from burnish.models.linear import cast_once, joined
from burnish.models.lora import add_adapters, attach, lora_layers
from burnish.models.tiny import describe
from burnish.models.tiny.build import write
from burnish.models.tiny.language import write as write_language
from burnish.options.model import LoraOptions
from burnish.plan.made_up import made_up_prompts
from burnish.types.completion import Completion, Encoded
from tests.support.pretend_gpu import PretendGpu
from tools.tiny_calls import load

CLASSES = ("sd3", "flux", "qwen-image", "qwen-image-edit", "sdxl", "wan2.1", "wan2.2", "ltx", "z-image")
BLOCKS = ("num_layers", "n_layers", "num_single_layers", "n_refiner_layers")  # in a transformer's configuration
LANGUAGE = ("qwen2_5_vl", "qwen3_vl", "internvl", "gemma3", "llava_onevision", "qwen3")
FURTHER = 16  # tokens
ATTENTION = "scaled_dot_product_attention"
ONE_KERNEL = (ATTENTION, "rms_norm")  # of a GPU
NO_KERNELS = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "_unsafe_view")


class Kernels(TorchDispatchMode):
    """Counts operations that compute something on a device."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__()
        self.device = device
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, composite = func.overloadpacket.__name__, "CompositeImplicitAutograd"
        if name not in ONE_KERNEL and torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), composite):
            with self:  # in inference mode nobody else has taken it apart
                found = func.decompose(*args, **(kwargs or {}))
            if found is not NotImplemented:
                return found
        found = func(*args, **(kwargs or {}))
        views = any(one.alias_info is not None and not one.alias_info.is_write for one in func._schema.returns)
        tensors = [leaf for leaf in tree_leaves((args, kwargs, found)) if isinstance(leaf, Tensor)]
        here = any(tensor.device.type == self.device for tensor in tensors)
        if here and not views and name not in NO_KERNELS:
            self.counts[name] += 1
        return found


@contextmanager
def captured(networks: Sequence[str]) -> Iterator[list[Call]]:
    """The calls of networks in this context."""
    calls: list[Call] = []
    original = Forwards.__call__

    def call(self: Forwards, function: Callable[..., Any], given: Call) -> Any:
        if given.network in networks:
            calls.append(given)
        return original(self, function, given)

    Forwards.__call__ = call  # type: ignore[method-assign]
    try:
        yield calls
    finally:
        Forwards.__call__ = original  # type: ignore[method-assign]


Found = dict[str, tuple[Counter[str], ...]]  # by who runs it


def counted(run: Callable[[], Any], device: str = "cpu") -> tuple[Counter[str], Counter[str]]:
    """Of a forward, and of the backward pass after it if there is one."""
    with Kernels(device) as forward:
        output = run()
    tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.requires_grad]
    with Kernels(device) as backward:
        if tensors:
            tensors[0].float().sum().backward()
    return forward.counts, backward.counts


def work(name: str, layers: int, folder: Path, *, lora: bool) -> Found:
    """Counts of one forward by diffusers and by Burnish."""
    tiny = describe(name)
    network = "unet" if "unet" in tiny.parts or name == "sdxl" else "transformer"
    path = folder / f"{name}-{layers}"
    if not path.exists():
        write(tiny, path, 0)
        takes = inspect.signature(type(load(path).components[network])).parameters
        deeper = {key: layers for key in BLOCKS if key in takes}
        shutil.rmtree(path)
        write(replace(tiny, parts={**tiny.parts, network: {**tiny.parts.get(network, {}), **deeper}}), path, 0)
    rollout = RolloutOptions(
        num_inference_steps=3, height=tiny.height, width=tiny.width, num_frames=tiny.num_frames, batch_size=4,
        call=dict(tiny.call),
    )  # fmt: skip
    options = LoraOptions(rank=4)
    model: Any = load_model(ModelOptions(path=str(path), dtype="bfloat16", lora=options), rollout)
    adapted = options if lora else None
    roles = FlowRoles(model, Needs(), adapted, guidance=1.0, micro_batch_size=4, on_policy=True, seed=0)
    engine = FlowEngine(roles, rollout, seed=0)
    job = FlowJob.groups(list(made_up_prompts(1, (64, 64) if "edit" in name else None)), 2, purpose="rollout", update=1)
    if not lora:
        model.network.requires_grad_(False)
    _, trace, _ = next(engine.sample(job))
    x, conditioning = trace.latents, trace.conditioning
    time = trace.schedule[torch.tensor([1, 1])]
    with captured(model.names) as calls, torch.no_grad():
        roles.policy(x, time, conditioning)
    found, call = {}, calls[-1]
    ours = model.networks[call.network]
    with cast_once(lora_layers(ours), ["policy"]):  # as in every optimizer step
        found["burnish"] = counted(lambda: model.forwards(ours, call))
    other: Any = load_model(ModelOptions(path=str(path), dtype="bfloat16", lora=options), rollout)
    plain = other.networks[call.network]
    if lora:
        targets = list({key.rsplit(".lora_A", 1)[0] for key, _ in ours.named_modules() if key.endswith("lora_A")})
        attach(plain, LoraConfig(r=4, lora_alpha=8, target_modules=targets), "policy")
        for key, weight in plain.named_parameters():
            weight.data = weight.data.to(torch.bfloat16) if "lora_" in key else weight.data
    arguments = call.arguments
    low = tree_map(_low, {key: value for key, value in arguments.items() if key != "timestep"})
    found["diffusers"] = counted(lambda: plain(**arguments | low))
    return found


def _low(value: Any) -> Any:
    return value.to(torch.bfloat16) if isinstance(value, Tensor) and value.dtype == torch.float32 else value


def language_work(name: str, layers: int, folder: Path, *, lora: bool) -> Found:
    """Counts of further tokens, and of a forward and a backward pass, by Burnish and by transformers."""
    tiny, path = describe(name), folder / f"{name}-{layers}"
    if not path.exists():
        text = tiny.config.get("text_config", {}) if tiny.places else tiny.config
        kinds = {"layer_types": text["layer_types"] * (layers // 2)} if "layer_types" in text else {}
        deeper = {**text, "num_hidden_layers": layers, **kinds}
        write_language(replace(tiny, config={**tiny.config, "text_config": deeper} if tiny.places else deeper), path, 0)
    options = LoraOptions(rank=4, targets=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"])
    with PretendGpu():
        model: Any = load_language_model(
            ModelOptions(path=str(path), dtype="bfloat16", device="cuda", lora=options if lora else None)
        )
        policy = model.network
        if lora:
            add_adapters(policy, options, ["policy"], seed=0)
            joined(lora_layers(policy))
        else:
            policy.requires_grad_(True)
        parts = [{"type": "image"}] if tiny.places else []
        shown = Shown(images=[Image.new("RGB", (16, 16)) for _ in parts])
        chats = [[{"role": "user", "content": [*parts, {"type": "text", "text": text}]}] for text in ("A", "A or B?")]
        prompts = Encoded.cat([model.encode(chat, shown) for chat in chats])

        def sampled(tokens: int) -> Completion:
            sampling = Sampling(max_new_tokens=tokens, min_new_tokens=tokens)
            with mock.patch.object(Layers, "static", False):  # a graph's kernels would not be seen
                return decode(model, policy, prompts, [0, 0, 1, 1], range(4), sampling)

        answers = sampled(8)
        with cast_once(lora_layers(policy), ["policy"]), mock.patch.object(functional, ATTENTION, one_kernel):
            learned = counted(lambda: response_logprobs(model, policy, answers, temperature=1.0).logprob, "cuda")
        burnish = (further(sampled, "cuda"), *learned)
    network = type(policy).from_pretrained(path, dtype=torch.float32)  # the CPU has an operation for attention, too
    low = copy.deepcopy(network)
    if lora:
        targets = list({key.rsplit(".lora_A", 1)[0] for key, _ in policy.named_modules() if key.endswith("lora_A")})
        attach(low, LoraConfig(r=4, lora_alpha=8, target_modules=targets), "policy")
    low.to(torch.bfloat16)
    network = low if lora else network
    rows, asked = (
        model.forwards.inputs(network, texts, side="left")
        for texts in (conversations(answers, model.capabilities.fill), prompts)
    )
    asked.pop("position_ids", None)

    def generated(tokens: int) -> None:
        low.generate(
            **asked, do_sample=True, num_return_sequences=2, top_k=0, max_new_tokens=tokens, min_new_tokens=tokens
        )

    def forward() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=not lora):
            logits = network(**rows, use_cache=False).logits[:, -9:-1]
        return logits.float().log_softmax(-1).gather(-1, rows["input_ids"][:, -8:, None])

    return {"burnish": burnish, "transformers": (further(generated), *counted(forward))}


def one_kernel(q: Tensor, k: Tensor, v: Tensor, attn_mask: Any = None, dropout_p: float = 0, **how: Any) -> Tensor:
    """Attention of a vision tower, which takes itself apart where C++ sees no GPU."""
    how.pop("enable_gqa", None)
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return flash(q, k, v, dropout_p, attn_mask=attn_mask, **how)[0]  # type: ignore[no-any-return]


def further(sample: Callable[[int], Any], device: str = "cpu") -> Counter[str]:
    """Of further tokens."""
    counts = []
    for tokens in (8, 8 + FURTHER):
        with Kernels(device) as kernels:
            sample(tokens)
        counts.append(kernels.counts)
    return counts[1] - counts[0]


def main() -> None:
    """Count, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", nargs="*", help="as burnish tiny knows them")
    parser.add_argument("--language", action="store_true", help="language models")
    parser.add_argument("--show", action="store_true", help="also by which operations they differ")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    known, run = (LANGUAGE, language_work) if arguments.language else (CLASSES, work)
    columns = ["token"] * arguments.language + ["forward", "backward"]
    print(f"{'class':16}{'layers':>7}{'adapters':>10}" + "".join(f"{column:>24}" for column in columns))
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.classes or known:
            for layers in (2, 8):
                for lora in (False, True):
                    ours, theirs = run(name, layers, Path(folder), lora=lora).values()
                    cells = []
                    for column, own, other in zip(columns, ours, theirs, strict=True):
                        ratio = f"{own.total() / other.total():.3f}" if other.total() else ""
                        times = FURTHER if column == "token" else 1
                        cells.append(f"{own.total() / times:8.0f} /{other.total() / times:6.0f} {ratio:>7}")
                    print(f"{name:16}{layers:7}{'lora' if lora else 'none':>10}{''.join(cells)}", flush=True)
                    if arguments.show:
                        for own, other in zip(ours, theirs, strict=True):
                            print("   ", {key: n for key in own | other if (n := own[key] - other[key])})


if __name__ == "__main__":
    main()
