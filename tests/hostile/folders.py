"""Pipelines of strangers: what their folders name, link to and ask for, in every file that loading reads."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.hostile.cases import STOLEN, Case, Place

Attack = Callable[[Path], None]
INDEX, SCHEDULER = "model_index.json", "scheduler/scheduler_config.json"
NETWORK, ENCODER = "transformer/config.json", "text_encoder/config.json"
NUMBERS: dict[str, Any] = {
    "zero": 0, "minus one": -1, "half": 0.5, "a million": 10**6, "a billion": 10**9, "beyond counting": 10**30,
    "not a number": float("nan"), "infinite": float("inf"), "a word": "x", "null": None, "true": True,
    "a list": [10**9] * 3, "a long list": [1] * 10**6,
}  # fmt: skip
# numbers by which networks, schedulers and tokenizers are as large as they are
SIZES = {
    NETWORK: (
        "num_layers", "attention_head_dim", "num_attention_heads", "sample_size", "patch_size", "in_channels",
        "out_channels", "joint_attention_dim", "caption_projection_dim", "pooled_projection_dim", "pos_embed_max_size",
        "dual_attention_layers",
    ),
    ENCODER: (
        "hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
        "max_position_embeddings", "projection_dim", "eos_token_id", "layer_norm_eps",
    ),
    SCHEDULER: (
        "num_train_timesteps", "shift", "base_shift", "max_shift", "base_image_seq_len", "max_image_seq_len",
        "shift_terminal", "invert_sigmas", "use_karras_sigmas", "stochastic_sampling",
    ),
    "tokenizer/tokenizer_config.json": ("model_max_length", "max_length", "padding_side", "added_tokens_decoder"),
    "tokenizer/tokenizer.json": ("truncation", "padding", "added_tokens", "post_processor"),
}  # fmt: skip
CLASSES: tuple[Any, ...] = (
    "", "DiffusionPipeline", "AutoPipelineForText2Image", "StableDiffusionPipeline", "FluxPipeline", "ModelMixin",
    "SD3Transformer2DModel", "../../thief", "thief.Pipeline", "os.system", "__class__", "__builtins__", "utils",
    "StableDiffusion3PipelineOutput", "FlaxStableDiffusionPipeline", "OnnxStableDiffusionPipeline", "x" * 5000,
    "\x1b[31mred", ["thief", "Pipeline"], {"thief": "Pipeline"}, 3,
)  # fmt: skip
PARTS: tuple[Any, ...] = (
    ["thief", "Network"], ["os", "system"], ["builtins", "eval"], ["diffusers", "DiffusionPipeline"],
    ["diffusers", "StableDiffusion3Pipeline"], ["diffusers", "AutoModel"], ["diffusers", "utils"],
    ["diffusers", "x" * 5000], ["diffusers", "__version__"], ["diffusers", 3], ["diffusers", None],
    ["diffusers", ["AutoModel"]], [None, "AutoModel"], ["transformers", "AutoModel"],
    ["transformers", "AutoModelForCausalLM"], ["transformers", "pipeline"], ["transformers", "Trainer"],
    ["transformers", "utils"], ["diffusers.utils", "export_to_video"], ["stable_diffusion_3", "x"],
    ["stable_diffusion", "StableDiffusionSafetyChecker"], ["diffusers", "UNet2DConditionModel"],
    ["diffusers", "AutoencoderKL"], ["transformers", "CLIPTokenizer"], [["diffusers"], "AutoModel"], [{}, {}],
    ["diffusers"], ["a", "b", "c"], "diffusers", 3,
)  # fmt: skip
FIRST, ABSENT = (f"diffusion_pytorch_model-0000{number}-of-00002.safetensors" for number in (1, 2))
THIEF = f"open({STOLEN!r}, 'w').write('x')\nraise SystemExit('code of a stranger ran')\n"


def _entry(file: str, key: str, value: Any) -> Attack:
    def attack(folder: Path) -> None:
        content = json.loads((folder / file).read_text()) if (folder / file).is_file() else {}
        (folder / file).write_text(json.dumps(content | {key: value}))

    return attack


def _code(attack: Attack) -> Attack:
    """The same beside code of the folder's, wherever it may be looked for."""

    def both(folder: Path) -> None:
        for where in (folder, folder / "transformer", folder / "text_encoder", folder.parent):
            for name in ("thief.py", "pipeline.py", "modeling_thief.py"):
                (where / name).write_text(THIEF)
        attack(folder)

    return both


def _link(name: str, target: str) -> Attack:
    def attack(folder: Path) -> None:
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        path.symlink_to(target)

    return attack


def _weights(header: bytes, rest: bytes = b"", length: int | None = None) -> Attack:
    """A file of weights with this header."""

    def attack(folder: Path) -> None:
        size = struct.pack("<Q", len(header) if length is None else length)
        (folder / "transformer" / "diffusion_pytorch_model.safetensors").write_bytes(size + header + rest)

    return attack


def _header(change: Callable[[dict[str, Any]], None]) -> Attack:
    """The weights as they are under another header."""

    def attack(folder: Path) -> None:
        file = folder / "transformer" / "diffusion_pytorch_model.safetensors"
        content = file.read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + length])
        change(header)
        _weights(json.dumps(header).encode(), content[8 + length :])(folder)

    return attack


def _first(change: dict[str, Any]) -> Attack:
    return _header(lambda header: header[next(key for key in header if key != "__metadata__")].update(change))


def _sharded(named: dict[str, Any] | Any) -> Attack:
    """An index in place of the one file of weights, which stays under another name."""

    def attack(folder: Path) -> None:
        part = folder / "transformer"
        (part / "diffusion_pytorch_model.safetensors").rename(
            part / "diffusion_pytorch_model-00001-of-00002.safetensors"
        )
        index = {"metadata": {"total_size": 1}, "weight_map": named}
        (part / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps(index))

    return attack


def _pickled(suffix: str) -> Attack:
    def attack(folder: Path) -> None:
        file = folder / "transformer" / "diffusion_pytorch_model.safetensors"
        # unpickling this calls os.system
        file.with_suffix(suffix).write_bytes(f"cos\nsystem\n(S'touch {STOLEN}'\ntR.".encode())
        file.unlink()

    return attack


def _deep(file: str, depth: int) -> Attack:
    def attack(folder: Path) -> None:
        content = json.loads((folder / file).read_text())
        text = json.dumps(content)[:-1] + ', "x": ' + '{"a":' * depth + "1" + "}" * depth + "}"
        (folder / file).write_text(text)

    return attack


def _parts(count: int) -> Attack:
    def attack(folder: Path) -> None:
        content = json.loads((folder / INDEX).read_text())
        for number in range(count):
            (folder / f"part_{number}").mkdir()
        named = {f"part_{number}": ["diffusers", "AutoencoderKL"] for number in range(count)}
        (folder / INDEX).write_text(json.dumps(content | named))

    return attack


OTHERS: dict[str, Attack] = {
    "code under auto_map of the index": _code(_entry(INDEX, "auto_map", {"DiffusionPipeline": "thief.Pipeline"})),
    "custom_pipeline": _code(_entry(INDEX, "custom_pipeline", "thief")),
    "code of a network": _code(_entry(NETWORK, "auto_map", {"AutoModel": "modeling_thief.Network"})),
    "code of an encoder": _code(_entry(ENCODER, "auto_map", {"AutoConfig": "thief.Config", "AutoModel": "thief.Net"})),
    "code of a tokenizer": _code(
        _entry("tokenizer/tokenizer_config.json", "auto_map", {"AutoTokenizer": ["thief.Tokenizer", None]})
    ),
    "code of a scheduler": _code(_entry(SCHEDULER, "auto_map", {"Scheduler": "thief.Scheduler"})),
    "a network that is a path": _code(_entry(NETWORK, "_class_name", "../thief")),
    "a scheduler that is a path": _code(_entry(SCHEDULER, "_class_name", "../thief")),
    "kernels of an encoder": _entry(ENCODER, "_attn_implementation", "thief/kernels"),
    "weights elsewhere": _entry(NETWORK, "_name_or_path", "/etc/passwd"),
    "quantized by nobody": _entry(NETWORK, "quantization_config", {"quant_method": "thief"}),
    "quantized by a package": _entry(NETWORK, "quantization_config", {"quant_method": "gguf", "load_in_4bit": True}),
    "thousands of parts": _parts(5000),
    "linked to a device": _link(NETWORK, "/dev/zero"),
    "linked to a file of the system": _link(NETWORK, "/etc/passwd"),
    "weights linked to a device": _link("transformer/diffusion_pytorch_model.safetensors", "/dev/zero"),
    "weights linked to memory": _link("transformer/diffusion_pytorch_model.safetensors", "/proc/self/mem"),
    "a part linked to its folder": _link("transformer", "."),
    "a part linked to itself": _link("transformer", "transformer"),
    "a part linked to the system": _link("transformer", "/etc"),
    "a part linked to processes": _link("transformer", "/proc/self"),
    "links in a circle": _link("transformer/further", ".."),
    "deep index": _deep(INDEX, 5000),
    "nested index": _deep(INDEX, 150),
    "deep network": _deep(NETWORK, 50_000),
    "nested network": _deep(NETWORK, 90),
    "deep encoder": _deep(ENCODER, 5000),
    "nested encoder": _deep(ENCODER, 90),
    "deep scheduler": _deep(SCHEDULER, 5000),
    "nested tokenizer": _deep("tokenizer/tokenizer_config.json", 5000),
    "a header of exabytes": _weights(b"{}", length=2**63),
    "a header of the largest size": _weights(b"{" + b" " * (90 << 20) + b"}"),
    "a header of brackets": _weights(b"[" * 100_000),
    "a header that is a list": _weights(b"[]"),
    "a header of nothing": _weights(b""),
    "no weights at all": _weights(b"{}"),
    "a million weights": _weights(
        json.dumps({f"w{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(10**6)}).encode()
    ),
    "an unknown precision": _first({"dtype": "F7"}),
    "a precision that is a number": _first({"dtype": 32}),
    "a shape beyond memory": _first({"shape": [10**9, 10**9]}),
    "a negative shape": _first({"shape": [-1]}),
    "a shape that is a word": _first({"shape": "x"}),
    "offsets turned round": _first({"data_offsets": [64, 0]}),
    "negative offsets": _first({"data_offsets": [-64, 0]}),
    "offsets beyond the end": _first({"data_offsets": [0, 2**62]}),
    "offsets of three": _first({"data_offsets": [0, 1, 2]}),
    "offsets that are words": _first({"data_offsets": ["0", "64"]}),
    "overlapping weights": _header(
        lambda header: [one.update(data_offsets=[0, one["data_offsets"][1] - one["data_offsets"][0]])
                        for name, one in header.items() if name != "__metadata__"]
    ),
    "an index of a file outside": _sharded({"pos_embed.proj.weight": f"../transformer/{FIRST}"}),
    "an index of the system": _sharded({"pos_embed.proj.weight": "/etc/passwd"}),
    "an index of what is missing": _sharded({"pos_embed.proj.weight": ABSENT}),
    "an index of a part": _sharded({"pos_embed.proj.weight": FIRST}),
    "an index of numbers": _sharded({"pos_embed.proj.weight": 3}),
    "an index of lists": _sharded({"pos_embed.proj.weight": [FIRST]}),
    "an index of folders": _sharded({"pos_embed.proj.weight": "."}),
    "an index that is a list": _sharded([FIRST]),
    "an index of nothing": _sharded({}),
    "an index of half a million": _sharded({f"w{i}": f"{i}.safetensors" for i in range(500_000)}),
    **{f"a pickle {suffix}": _pickled(suffix) for suffix in (".bin", ".ckpt", ".pt", ".pth", ".msgpack", ".h5")},
}  # fmt: skip


def cases() -> Iterator[Case]:
    for value in CLASSES:
        yield _case(f"_class_name is {json.dumps(value):.60}", _code(_entry(INDEX, "_class_name", value)))
    for part in ("transformer", "text_encoder", "scheduler", "tokenizer", "further"):
        for value in PARTS:
            yield _case(f"{part} is {json.dumps(value):.60}", _code(_part(part, value)))
    for file, keys in SIZES.items():
        for key in keys:
            for name, value in NUMBERS.items():
                yield _case(f"{file}, {key} is {name}", _entry(file, key, value))
    for name, attack in OTHERS.items():
        yield _case(name, attack)


def _part(part: str, value: Any) -> Attack:
    def attack(folder: Path) -> None:
        (folder / part).mkdir(exist_ok=True)
        _entry(INDEX, part, value)(folder)

    return attack


def _case(name: str, attack: Attack) -> Case:
    def make(place: Place, scratch: Path) -> list[str]:
        shutil.copytree(place.folder / "pipeline", scratch / "model", symlinks=True)
        attack(scratch / "model")
        return ["train", str(place.drawing), "model.path=model"]

    return Case(kind="folders", name=name, make=make, expect="either", words=())
