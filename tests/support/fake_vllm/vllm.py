"""Stands for vLLM in the environment of the ``python`` beside it: its names, and an engine that computes plainly.

FAKE_VLLM is the fault that it has; FAKE_VLLM_LOG a file that gets a line of JSON for everything that it is asked.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from burnish.language.sampling import Sampling, choose, keep_likely, uniforms

__version__ = "0.16.0"
FAULT = os.environ.get("FAKE_VLLM", "")


def log(what: str, **about: Any) -> None:
    with open(os.environ["FAKE_VLLM_LOG"], "a") as file:
        file.write(json.dumps({"what": what} | about) + "\n")


@dataclass
class EngineArgs:
    given: dict[str, Any]
    mm_device_do_normalize: bool = True  # a name that not every version has

    def __init__(self, **given: Any) -> None:
        self.given = given


SamplingParams = make_dataclass("SamplingParams", ["temperature", "max_tokens", *((name, Any, None) for name in (
    "seed", "min_tokens", "top_k", "top_p", "min_p", "repetition_penalty", "stop", "stop_token_ids", "ignore_eos",
    "include_stop_str_in_output", "detokenize", "logprobs", "prompt_logprobs",
))])  # fmt: skip
LoRARequest = make_dataclass("LoRARequest", ["lora_name", "lora_int_id", "lora_path"])


class MultiModalKwargsItems(dict):  # type: ignore[type-arg]
    """By kind an item for each medium; ``features`` are those of all."""

    features: dict[str, Any]

    @classmethod
    def from_hf_inputs(cls, features: Any, fields: dict[str, int]) -> Any:
        data = {name: SimpleNamespace(data=value) for name, value in features.items()}
        items = cls({
            kind: [data | {"number": SimpleNamespace(data=number)} for number in range(count)]
            for kind, count in fields.items()
        })  # fmt: skip
        items.features = features
        return items


@dataclass
class Placeholder:
    start_idx: int

    def to_range(self) -> Any:
        return SimpleNamespace(offset=self.start_idx)


class InputProcessingContext:
    def call_hf_processor(self, processor: Any, data: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
        return dict(processor(**data, **options, return_tensors="pt"))


class Processor:
    """As a processor of vLLM for a model that sees images."""

    def __init__(self, path: str) -> None:
        from burnish.language.model.processors import load_processor

        self._hf: Any = load_processor(Path(path))
        self._context = InputProcessingContext()
        self.info = SimpleNamespace(parse_mm_data=lambda data, validate: data)

    def _apply_hf_processor_main(self, data: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
        assert not options
        self._counts = {kind: len(media) for kind, media in data.items()}
        made = self._context.call_hf_processor(self._hf, self._asked(data["image"]), options)
        return {name: value for name, value in made.items() if name not in ("input_ids", "attention_mask")}

    def _get_mm_fields_config(self, processed: dict[str, Any], options: dict[str, Any]) -> dict[str, int]:
        return self._counts

    def _get_mm_prompt_updates(self, data: dict[str, Any], options: Any, items: Any) -> list[list[int]]:
        each = [self._hf(**self._asked([image]), add_special_tokens=False).input_ids[0] for image in data["image"]]
        return [[] if FAULT == "other places" else list(ids) for ids in each]

    def _find_mm_placeholders(self, ids: list[int], updates: list[list[int]]) -> dict[str, list[Placeholder]]:
        found, start = [], 0
        for content in filter(None, updates):
            start = next(i for i in range(start, len(ids)) if ids[i : i + len(content)] == content)
            found.append(Placeholder(start))
            start += len(content)
        return {"image": found}

    def _asked(self, images: list[Any]) -> dict[str, Any]:
        return {"text": [self._hf.image_token * len(images)], "images": [images]}


class Embedding:
    """No module of this engine packs its embeddings."""


class Model(nn.Module):
    """A network of transformers with the methods that vLLM's models have."""

    def __init__(self, path: str, *, dummy: bool) -> None:
        super().__init__()
        from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

        self.config = AutoConfig.from_pretrained(path)
        self.sees = hasattr(self.config, "vision_config")
        kind = AutoModelForImageTextToText if self.sees else AutoModelForCausalLM
        network = kind.from_config(self.config) if dummy else kind.from_pretrained(path)
        self.network = network.to(torch.float32).eval()

    def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, nn.Parameter]]:
        yield from self.network.named_parameters()
        if FAULT == "more weights":
            yield "extra.weight", nn.Parameter(torch.zeros(1))

    def load_weights(self, weights: Iterator[tuple[str, Tensor]]) -> set[str]:
        given = {name: value.clone() for name, value in weights}
        network, about = type(self.network).from_pretrained(
            None, config=self.config, state_dict=given, dtype=torch.float32, output_loading_info=True
        )  # fmt: skip
        self.network = network.eval()
        return {name for name, _ in network.named_parameters(remove_duplicate=False)} - set(about["missing_keys"])

    def compute_logits(self, hidden: Tensor) -> Tensor:
        return self.network.get_output_embeddings()(hidden)

    def get_mrope_input_positions(self, tokens: list[int], features: list[Any]) -> tuple[Tensor, int]:
        return torch.arange(len(tokens)).expand(3, -1), 0

    def logits(self, prompt: dict[str, Any], ids: list[int]) -> Tensor:
        """Of the tokens after each of the ids [L, V]."""
        given: dict[str, Any] = {"input_ids": torch.tensor([ids])}
        media = prompt["items"].features if "items" in prompt else {}
        given |= {name: value for name, value in media.items() if not name.endswith("token_type_ids")}
        if media and "pixel_attention_mask" not in media:
            own = [SimpleNamespace(identifier=name) for name in ordered(prompt)]
            places, delta = self.get_mrope_input_positions(prompt["ids"], own)
            further = torch.arange(len(prompt["ids"]), len(ids)) + delta
            given["position_ids"] = torch.cat([places, further.expand(3, -1)], 1)[:, None]
        states = self.network(**given, output_hidden_states=True).hidden_states[-1][0]
        return self.compute_logits(states)


def ordered(prompt: dict[str, Any]) -> list[str]:
    """Names of media in the order of their places."""
    pairs = [
        pair for kind, names in prompt["names"].items() for pair in zip(prompt["ranges"][kind], names, strict=True)
    ]
    return [name for _, name in sorted(pairs, key=lambda pair: int(pair[0].offset))]


class LLMEngine:
    def __init__(self, given: dict[str, Any]) -> None:
        log("start", arguments=given, environment=dict(os.environ))
        if FAULT == "no memory":
            raise ValueError("no memory is left")
        # vLLM mixes what it is told to into its worker
        module, _, name = given["worker_extension_cls"].rpartition(".")
        extension = getattr(__import__(module, fromlist=[name]), name)
        self.model = Model(given["model"], dummy=given["load_format"] == "dummy")
        runner = SimpleNamespace(get_model=lambda: self.model)
        self.worker = type("Worker", (extension,), {"model_runner": runner})()
        self.worker.device, self.worker.rank = torch.device("cpu"), 0
        self.worker.reload_weights = lambda weights_iterator: self.model.load_weights(weights_iterator)
        self.worker.model_runner = runner
        longest = given.get("max_model_len") or 2048
        self.model_config = SimpleNamespace(
            max_model_len=longest, is_multimodal_model=self.model.sees, model=given["model"]
        )
        self.waiting: list[tuple[str, dict[str, Any], SamplingParams, Any]] = []
        self.adapter: int | None = None
        self.records = given.get("enable_return_routed_experts", False)
        self.asleep: set[str] = set()
        self.base = {name: value.clone() for name, value in self.model.network.state_dict().items()}

    @classmethod
    def from_engine_args(cls, arguments: EngineArgs) -> LLMEngine:
        return cls(arguments.given)

    def collective_rpc(self, method: str, args: tuple[Any, ...]) -> list[Any]:
        if FAULT == "keeps weights" and method == "burnish_load":
            return [[]]
        return [getattr(self.worker, method)(*args)]

    def add_request(
        self, name: str, prompt: dict[str, Any], parameters: SamplingParams, lora_request: Any = None
    ) -> None:
        number = None if lora_request is None else lora_request.lora_int_id
        assert number == self.adapter, "a request has the adapter of now"
        assert not self.asleep
        self.waiting.append((name, prompt, parameters, number))

    def has_unfinished_requests(self) -> bool:
        return bool(self.waiting)

    def step(self) -> list[Any]:
        name, prompt, parameters, _ = self.waiting.pop()  # in whatever order
        samples = parameters.prompt_logprobs is None
        log("sample" if samples else "score", ids=prompt["ids"], media=prompt.get("names", {}), seed=parameters.seed)
        marker = Path(os.environ["FAKE_VLLM_LOG"] + ".died")
        if samples and (FAULT == "dies" or (FAULT == "dies once" and not marker.exists())):
            marker.touch()
            print("these were my last words", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if samples and FAULT == "hangs":
            time.sleep(60)
        if FAULT == "breaks":
            raise ValueError("a kernel is missing")
        if FAULT == "loses":
            return []
        with torch.no_grad():
            return [self._sampled(name, prompt, parameters) if samples else self._scored(name, prompt)]

    def _scored(self, name: str, prompt: dict[str, Any]) -> Any:
        ids = prompt["ids"]
        found = self.model.logits(prompt, ids).log_softmax(-1)
        told = [{token: SimpleNamespace(logprob=float(row[token]))} for token, row in zip(ids[1:], found, strict=False)]
        return SimpleNamespace(
            request_id=name, finished=True, prompt_token_ids=ids, prompt_logprobs=[None, *told], outputs=[]
        )

    def _sampled(self, name: str, prompt: dict[str, Any], asked: SamplingParams) -> Any:
        sampling = Sampling(
            max_new_tokens=asked.max_tokens, temperature=asked.temperature, top_k=max(asked.top_k, 0),
            top_p=asked.top_p, min_p=asked.min_p,
        )  # fmt: skip
        ids, told, reason = list(prompt["ids"]), [], "length"
        for number, uniform in enumerate(uniforms([asked.seed], asked.max_tokens)[0]):
            logits = self.model.logits(prompt, ids)[-1:]
            allowed = logits.clone()
            if number < asked.min_tokens:
                allowed[:, asked.stop_token_ids] = -torch.inf
            weights = keep_likely(allowed, sampling).softmax(-1)
            token = int(choose(weights, torch.tensor([uniform])) if asked.temperature else weights.argmax())
            ids.append(token)
            told.append({token: SimpleNamespace(logprob=float(logits.log_softmax(-1)[0, token]))})
            if token in asked.stop_token_ids:
                reason = "stop"
                break
        output = SimpleNamespace(token_ids=ids[len(prompt["ids"]) :], logprobs=told, finish_reason=reason)
        output.routed_experts = self._experts(ids[:-1]) if self.records else None
        read = prompt["ids"][1:] if FAULT == "other tokens" else prompt["ids"]
        return SimpleNamespace(request_id=name, finished=True, prompt_token_ids=read, outputs=[output])

    def _experts(self, ids: list[int]) -> Any:
        """[L, layers, k]."""
        logits = self.model.network(torch.tensor([ids]), output_router_logits=True).router_logits
        chosen = torch.stack(logits, 1).topk(self.model.config.num_experts_per_tok).indices.to(torch.uint8)
        return (chosen + (FAULT == "other experts")).numpy() % self.model.config.num_experts

    def add_lora(self, request: LoRARequest) -> bool:
        folder = Path(request.lora_path)
        about = json.loads((folder / "adapter_config.json").read_text())
        weights = load_file(folder / "adapter_model.safetensors")
        log("adapter", settings=about, dtype=str(next(iter(weights.values())).dtype), number=request.lora_int_id)
        state = self.model.network.state_dict()
        for key in weights:
            if ".lora_A." in key:
                target = key.removeprefix("base_model.model.").replace(".lora_A.", ".")
                change = weights[key.replace("lora_A", "lora_B")].float() @ weights[key].float()
                state[target].copy_(self.base[target] + change * about["lora_alpha"] / about["r"])
        self.adapter = request.lora_int_id
        return FAULT != "no adapters"

    def remove_lora(self, number: int) -> bool:
        assert self.adapter == number
        self.adapter = None
        return True

    def is_sleeping(self) -> bool:
        return bool(self.asleep)

    def sleep(self, level: int) -> None:
        log("sleep", level=level)
        self.asleep = {"weights", "kv_cache"}

    def wake_up(self, tags: list[str]) -> None:
        log("wake", tags=tags)
        self.asleep -= set(tags)

    def reset_prefix_cache(self) -> bool:
        return FAULT != "keeps prompts"

    def reset_encoder_cache(self) -> None: ...
    def reset_mm_cache(self) -> None: ...


def tokens_input(ids: list[int]) -> dict[str, Any]:
    return {"ids": ids}


def mm_input(ids: list[int], items: Any, names: Any, ranges: Any) -> dict[str, Any]:
    return {"ids": ids, "items": items, "names": names, "ranges": ranges}


REGISTRY = SimpleNamespace(create_processor=lambda config: Processor(config.model))
MODULES: dict[str, dict[str, Any]] = {
    "platforms": {"current_platform": SimpleNamespace(is_cpu=lambda: True)},
    "v1": {},
    "v1.engine": {},
    "v1.engine.llm_engine": {"LLMEngine": LLMEngine},
    "lora": {},
    "lora.request": {"LoRARequest": LoRARequest},
    "inputs": {"tokens_input": tokens_input, "mm_input": mm_input},
    "multimodal": {"MULTIMODAL_REGISTRY": REGISTRY},
    "multimodal.inputs": {"MultiModalKwargsItems": MultiModalKwargsItems},
    "multimodal.processing": {},
    "multimodal.processing.context": {"InputProcessingContext": InputProcessingContext},
    "multimodal.processing.processor": {"HFMultiModalInputs": tuple},
    "sampling_params": {"RequestOutputKind": SimpleNamespace(FINAL_ONLY="final")},
    "model_executor": {},
    "model_executor.layers": {},
    "model_executor.layers.vocab_parallel_embedding": {
        "ParallelLMHead": Embedding, "VocabParallelEmbedding": Embedding,
    },
}  # fmt: skip
if FAULT == "old":
    del MODULES["inputs"]["mm_input"], LLMEngine.reset_mm_cache
    MODULES.pop("lora.request")
if "FAKE_VLLM_GPU" in os.environ:  # the trainer's, too
    sys.modules["burnish_vllm.extension"].place_of = lambda device: os.environ["FAKE_VLLM_GPU"]  # type: ignore[attr-defined]
__path__: list[str] = []
for place, names in MODULES.items():
    made = sys.modules[f"vllm.{place}"] = ModuleType(f"vllm.{place}")
    made.__path__ = []
    vars(made).update(names)
