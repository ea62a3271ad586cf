"""When adapters travel to vLLM as adapters, and how; a stand-in takes vLLM's place."""

import json
import socket
import sys
import tempfile
import types
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from burnish.models.lora import add_adapters
from burnish.options.language import LanguageLoraOptions
from burnish.options.vllm import VllmOptions, sends_adapter
from burnish.tasks.language.vllm.apart.burnish_vllm.wire import Channel
from burnish.tasks.language.vllm.apart.burnish_vllm.worker import Server
from burnish.tasks.language.vllm.weight_file import WeightFile, adapter_of, settings_of

READABLE = LanguageLoraOptions(rank=4)


@pytest.mark.parametrize(
    ("adapter", "lora", "dtype", "sent"),
    [
        ("auto", READABLE, "bfloat16", True),
        ("auto", READABLE, "float32", False),  # folding rounds nothing off there
        ("auto", LanguageLoraOptions(dora=True), "bfloat16", False),
        ("auto", LanguageLoraOptions(modules_to_save=["lm_head"]), "bfloat16", False),
        ("auto", LanguageLoraOptions(vision=True), "bfloat16", False),
        ("auto", LanguageLoraOptions(rank=1024), "bfloat16", False),
        ("auto", None, "bfloat16", False),
        ("request", READABLE, "float32", True),
        ("folded", READABLE, "bfloat16", False),
    ],
)
def test_an_adapter_is_sent_alone_where_folding_it_would_round_it_off(adapter, lora, dtype, sent):
    options = VllmOptions(python="p", adapter=adapter)
    assert sends_adapter(adapter, lora, dtype) == sent
    assert not list(options.complaints(fire_temperature=None, lora=lora))


@pytest.mark.parametrize(
    ("adapter", "lora", "said"),
    [
        ("folded", None, "rollout.vllm.adapter is folded, but model.lora is null"),
        ("request", LanguageLoraOptions(dora=True), "request, but model.lora.dora is true"),
        ("request", LanguageLoraOptions(rank=1024), "request, but model.lora.rank is 1024, and vLLM's highest is 512"),
    ],
)
def test_an_adapter_that_vllm_cant_read_is_refused(adapter, lora, said):
    (complaint,) = VllmOptions(python="p", adapter=adapter).complaints(fire_temperature=None, lora=lora)
    assert said in complaint


class Engine:
    """Takes adapters as vLLM does: it reads the folder at once."""

    def __init__(self) -> None:
        self.adapters: dict[int, tuple[dict, dict]] = {}
        self.requests: list[dict] = []

    def is_sleeping(self):
        return False

    def reset_prefix_cache(self):
        return True

    def reset_encoder_cache(self): ...
    def reset_mm_cache(self): ...

    def add_lora(self, request):
        folder = Path(request.lora_path)
        settings = json.loads((folder / "adapter_config.json").read_text())
        self.adapters[request.lora_int_id] = settings, load_file(folder / "adapter_model.safetensors")
        return True

    def remove_lora(self, number):
        return self.adapters.pop(number) is not None

    def add_request(self, name, prompt, parameters, **more):
        self.requests.append(more)

    def has_unfinished_requests(self):
        return False


def test_vllm_gets_an_adapter_alone_and_answers_every_request_with_it(monkeypatch):
    @dataclass
    class LoRARequest:
        lora_name: str
        lora_int_id: int
        lora_path: str

    module = types.ModuleType("vllm.lora.request")
    module.LoRARequest = LoRARequest
    monkeypatch.setitem(sys.modules, "vllm.lora.request", module)
    network = torch.nn.Module()
    network.q_proj = torch.nn.Linear(4, 4)
    network = torch.nn.ModuleDict({"layers": network})
    add_adapters(network, READABLE, ["policy", "other"], seed=0, default_targets=["q_proj"])
    names = [f"base_model.model.layers.q_proj.lora_{side}.weight" for side in "AB"]

    server = Server.__new__(Server)
    server.engine, server.adapter, server.asked = Engine(), None, 0
    server._folder = tempfile.TemporaryDirectory()
    left, right = socket.socketpair()
    with left, right:
        server.channel = Channel(left)
        for version in (3, 4):
            with torch.no_grad():
                network.layers.q_proj.lora_A["policy"].weight.fill_(version)
            adapter = adapter_of(network)
            assert sorted(adapter) == names
            written = WeightFile(adapter, version, dtype=torch.bfloat16, settings=settings_of(READABLE, adapter))
            header = {"path": written.path, "version": version, "digest": written.digest, "adapter": written.settings}
            server.load(header, {})
            answer, _ = Channel(right).receive()
            assert answer == {"version": version, "digest": written.digest, "missing": []}
            ((settings, weights),) = server.engine.adapters.values()
            assert settings == {
                "peft_type": "LORA", "r": 4, "lora_alpha": 8, "use_rslora": False, "target_modules": ["q_proj"],
                "bias": "none",
            }  # fmt: skip
            assert weights[names[0]].dtype == torch.bfloat16
            assert (weights[names[0]] == version).all()
            with pytest.raises(RuntimeError, match="lost 1 of 1"):
                list(server._run([("prompt", "parameters")]))
            assert server.engine.requests.pop()["lora_request"].lora_int_id in server.engine.adapters
            written.close()
