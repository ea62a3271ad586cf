"""Seconds until another process has the trainer's weights, over the memory that Burnish shares with vLLM.

The other process copies them into weights of its own with what vLLM's workers run; the first version also pays for the
memory's pages. With ``--vllm`` it is vLLM itself, which gets the weights by that memory and, beside it, by a file.

    python -m benchmarks.vllm_weights
    python -m benchmarks.vllm_weights --vllm vllm-env/bin/python
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.setting import table
from burnish.language.vllm.apart.burnish_vllm.extension import kept, tensors
from burnish.language.vllm.process import SharedWeights, VllmProcess

MATRIX = (2500, 2000)
LAYER = 16_800_000  # weights of a layer of ``network_of``
VERSIONS = 6
TYPES = {"F32": "float32", "BF16": "bfloat16"}  # of safetensors
Carry = Callable[[dict[str, Tensor], int], dict[str, Any]]


def receive(end: Connection, count: int, dtype: torch.dtype) -> None:
    """Load versions as they come."""
    own = {f"layers.{number}": torch.zeros(MATRIX, dtype=dtype) for number in range(count)}
    end.send("ready")
    while (message := end.recv()) is not None:
        for name, tensor in tensors(kept(message["path"], message["size"]), message["places"]):
            own[name].copy_(tensor)
        end.send([float(tensor[0, 0]) for tensor in own.values()])


def plain(millions: int) -> None:
    """A plain process in vLLM's place: a line for each precision."""
    count = millions * 1_000_000 // (MATRIX[0] * MATRIX[1])
    for dtype in (torch.float32, torch.bfloat16):
        weights = {f"layers.{number}": torch.zeros(MATRIX) for number in range(count)}
        ours, theirs = multiprocessing.get_context("spawn").Pipe()
        process = multiprocessing.get_context("spawn").Process(target=receive, args=(theirs, count, dtype), daemon=True)
        process.start()
        assert ours.recv() == "ready"
        shared, seconds = SharedWeights(), []
        for version in range(VERSIONS):
            for tensor in weights.values():
                tensor.fill_(version)
            begun = time.perf_counter()
            shared.write(weights, version, dtype=dtype, settings=None)
            ours.send(shared.message)
            assert ours.recv() == [version] * count
            seconds.append(time.perf_counter() - begun)
        ours.send(None)
        process.join()
        shared.close()
        size = sum(tensor.numel() for tensor in weights.values()) * dtype.itemsize / 1e9
        later = median(seconds[1:])
        print(f"{dtype}: {size:.2f} GB in {later:.3f} s, {size / later:.1f} GB/s; the first in {seconds[0]:.2f} s")


def network_of(millions: int) -> LlamaForCausalLM:
    """A Llama of about so many weights, nearly all of them in its layers."""
    config = LlamaConfig(
        hidden_size=1024, intermediate_size=4096, num_attention_heads=16,
        num_hidden_layers=millions * 1_000_000 // LAYER,
        vocab_size=512, max_position_embeddings=256,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def places_of(path: Path) -> dict[str, tuple[str, tuple[int, ...], int]]:
    """Where the tensors of a safetensors file lie in it."""
    with path.open("rb") as file:
        start = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(start))
    header.pop("__metadata__", None)
    return {
        name: (TYPES[told["dtype"]], tuple(told["shape"]), 8 + start + told["data_offsets"][0])
        for name, told in header.items()
    }


def real(python: str, millions: int) -> None:
    """vLLM itself: a row for each precision and way."""
    print(f"{millions} M weights")
    rows = [row for dtype in (torch.float32, torch.bfloat16) for row in _of_vllm(python, network_of(millions), dtype)]
    print(table(rows, {name: name for name in rows[0]}))


def _of_vllm(python: str, network: LlamaForCausalLM, dtype: torch.dtype) -> list[dict[str, Any]]:
    kind, shared = str(dtype).removeprefix("torch."), SharedWeights()
    with tempfile.TemporaryDirectory() as folder:
        network.config.save_pretrained(folder)
        path = Path(folder) / "weights.safetensors"
        process = VllmProcess(python, {"arguments": _arguments(folder, kind), "banned": []}, devices=None, timeout=300)

        def memory(weights: dict[str, Tensor], version: int) -> dict[str, Any]:
            shared.write(weights, version, dtype=dtype, settings=None)
            assert shared.message is not None
            return shared.message

        def file(weights: dict[str, Tensor], version: int) -> dict[str, Any]:
            save_file({name: value.to(dtype) for name, value in weights.items()}, path)
            places = {"path": str(path), "size": path.stat().st_size, "places": places_of(path)}
            return {"do": "load", "version": version, "adapter": None} | places

        try:
            named = f"vLLM {process.ready()['ready']}, {kind}"
            return [
                {"weights": f"{named}, by {way.__name__}"} | _timed(process, network, way, dtype)
                for way in (memory, file)
            ]
        finally:
            process.close()
            shared.close()


def _arguments(folder: str, kind: str) -> dict[str, Any]:
    return {
        "model": folder, "dtype": kind, "load_format": "dummy", "skip_tokenizer_init": True, "enforce_eager": True,
        "worker_extension_cls": "burnish_vllm.extension.Extension", "max_num_seqs": 4, "kv_cache_memory_bytes": 1 << 26,
    }  # fmt: skip


def _timed(process: VllmProcess, network: LlamaForCausalLM, carry: Carry, dtype: torch.dtype) -> dict[str, float]:
    """Median seconds of all versions but the first: of the trainer's part, and of vLLM's."""
    weights = {name: value.detach() for name, value in network.named_parameters()}
    sent, loaded = [], []
    for version in range(VERSIONS):
        for tensor in weights.values():
            tensor.add_(1e-3)
        begun = time.perf_counter()
        message = carry(weights, version)
        sent.append(time.perf_counter() - begun)
        assert process.ask("new weights", message) == {"missing": []}
        loaded.append(time.perf_counter() - begun - sent[-1])
    size = sum(tensor.numel() for tensor in weights.values()) * dtype.itemsize / 1e9
    ours, theirs = median(sent[1:]), median(loaded[1:])
    return {"GB": size, "trainer s": ours, "vLLM s": theirs, "both s": ours + theirs, "GB/s": size / (ours + theirs)}


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=int, default=200, help="millions")
    parser.add_argument("--smoke", action="store_true", help="5 millions, with vLLM 17")
    parser.add_argument("--vllm", metavar="PYTHON", help="of an environment with vLLM (docs/speed.md)")
    given = parser.parse_args()
    if given.vllm is None:
        plain(5 if given.smoke else given.weights)
    else:
        real(given.vllm, 17 if given.smoke else given.weights)


if __name__ == "__main__":
    main()
