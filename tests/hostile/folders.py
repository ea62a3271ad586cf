"""Pipelines of strangers: what their folders name, link to and ask for, in every file that loading reads."""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.hostile.bench import STOLEN, Case, Place
from tests.hostile.damage import entry

Attack = Callable[[Path], Any]
INDEX, SCHEDULER, TOKENIZER = "model_index.json", "scheduler/scheduler_config.json", "tokenizer/tokenizer_config.json"
NETWORK, ENCODER = "transformer/config.json", "text_encoder/config.json"
WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"
FIRST, ABSENT = (f"diffusion_pytorch_model-0000{number}-of-00002.safetensors" for number in (1, 2))
NUMBERS: dict[str, Any] = {f"{json.dumps(value):.40}": value for value in (
    0, -1, float("nan"), float("inf"), "x", None, [1] * 10**6,
)}  # fmt: skip
# numbers by which networks, schedulers and tokenizers are as large as they are
SIZES = {
    NETWORK: "num_layers attention_head_dim sample_size patch_size in_channels pos_embed_max_size",
    ENCODER: "hidden_size vocab_size num_hidden_layers max_position_embeddings eos_token_id",
    SCHEDULER: "num_train_timesteps shift base_shift max_shift",
}
CLASSES: list[Any] = [
    "", "FluxPipeline", "../../thief", "thief.Pipeline", "os.system", "__class__", "x" * 5000, "\x1b[31mred",
    ["thief", "Pipeline"], {"thief": "x"}, 3,
]  # fmt: skip
PARTS: list[Any] = [
    ["thief", "Network"], ["os", "system"], ["builtins", "eval"], ["diffusers", "utils"], ["diffusers", 3],
    [None, "AutoModel"], ["transformers", "AutoModelForCausalLM"], ["transformers", "pipeline"], [["diffusers"], "A"],
    ["a", "b", "c"], 3,
]  # fmt: skip
THIEF = f"open({STOLEN!r}, 'w').write('x')\nraise SystemExit('code of a stranger ran')\n"


def _entry(file: str, key: str, value: Any) -> Attack:
    """Another value in a file, beside code of the folder's wherever it may be looked for."""

    def attack(folder: Path) -> None:
        for where in (folder, folder / "transformer", folder / "text_encoder", folder.parent):
            for name in ("thief.py", "pipeline.py", "modeling_thief.py"):
                (where / name).write_text(THIEF)
        if file == INDEX:
            (folder / key).mkdir(exist_ok=True)
        entry(key, value)(folder / file, random.Random())

    return attack


def _link(name: str, target: str) -> Attack:
    def attack(folder: Path) -> None:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.symlink_to(target)

    return attack


def _pickled(suffix: str) -> Attack:
    def attack(folder: Path) -> None:
        # unpickling this calls os.system
        (folder / WEIGHTS).with_suffix(suffix).write_bytes(f"cos\nsystem\n(S'touch {STOLEN}'\ntR.".encode())
        (folder / WEIGHTS).unlink()

    return attack


OTHERS: dict[str, Attack] = {
    **{f"{key} of {file}": _entry(file, key, value) for file, key, value in (
        (INDEX, "auto_map", {"DiffusionPipeline": "thief.Pipeline"}), (INDEX, "custom_pipeline", "thief"),
        (NETWORK, "auto_map", {"AutoModel": "modeling_thief.Network"}), (NETWORK, "_class_name", "../thief"),
        (ENCODER, "auto_map", {"AutoConfig": "thief.Config", "AutoModel": "thief.Net"}),
        (TOKENIZER, "auto_map", {"AutoTokenizer": ["thief.Tokenizer", None]}), (SCHEDULER, "_class_name", "../thief"),
        (SCHEDULER, "auto_map", {"Scheduler": "thief.Scheduler"}), (ENCODER, "_attn_implementation", "thief/kernels"),
        (NETWORK, "_name_or_path", "/etc/passwd"), (NETWORK, "quantization_config", {"quant_method": "thief"}),
    )},
    **{f"{name} linked to {target}": _link(name, target) for name, target in (
        (NETWORK, "/dev/zero"), (NETWORK, "/etc/passwd"), (WEIGHTS, "/dev/zero"), (WEIGHTS, "/proc/self/mem"),
        ("transformer", "."), ("transformer", "transformer"), ("transformer", "/proc/self"), ("transformer/on", ".."),
    )},
    **{f"a pickle {suffix}": _pickled(suffix) for suffix in (".bin", ".ckpt", ".pt", ".pth", ".msgpack", ".h5")},
}  # fmt: skip


def cases() -> Iterator[Case]:
    for value in CLASSES:
        yield _case(f"_class_name is {json.dumps(value):.60}", _entry(INDEX, "_class_name", value))
    for part in ("transformer", "text_encoder", "scheduler", "tokenizer", "further"):
        for value in PARTS:
            yield _case(f"{part} is {json.dumps(value):.60}", _entry(INDEX, part, value))
    for file, keys in SIZES.items():
        for key in keys.split():
            for name, value in NUMBERS.items():
                yield _case(f"{file}, {key} is {name}", _entry(file, key, value))
    for name, attack in OTHERS.items():
        yield _case(name, attack)


def _case(name: str, attack: Attack) -> Case:
    def make(place: Place, scratch: Path) -> list[str]:
        shutil.copytree(place.folder / "pipeline", scratch / "model", symlinks=True)
        attack(scratch / "model")
        return ["train", str(place.recipe("drawing")), "model.path=model"]

    return Case(kind="folders", name=name, make=make, expect="either")
