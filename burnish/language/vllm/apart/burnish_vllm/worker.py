"""The process that vLLM lives in: it answers one question after another until its parent is gone."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import signal
import socket
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .inputs import Prompt
from .wire import Arrays, Channel

WHERE_KNOWN = {  # arguments that not every version of vLLM has
    "mm_device_do_normalize": False,  # the pixels are normalised already
    "enable_batch_sharded_sampling": False,  # it goes round compute_logits, which knows the temperature
}
OLDEST = "0.31"  # of vLLM that has all of the names that are used here
BEAT = 1.0  # seconds between signs of life while responses are being sampled


def main(descriptor: int, parent: int) -> None:
    """Answer questions.

    Args:
        descriptor: of the socket to the parent.
        parent: process id; the process ends when this is no longer its parent.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer, which then ends this process
    os.set_inheritable(descriptor, False)
    threading.Thread(target=_follow, args=(parent,), daemon=True).start()
    channel = Channel(socket.socket(fileno=descriptor))
    # a closed connection: the parent is gone, or wants no more
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        try:
            _serve(channel)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise
        except Exception as error:
            traceback.print_exc()
            older = f"; Burnish needs vLLM {OLDEST} or newer" if isinstance(error, ImportError | AttributeError) else ""
            channel.send({"error": f"{type(error).__name__}: {error}{older}"})


def _follow(parent: int) -> None:
    # a closed socket tells nothing to a process that is busy
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _serve(channel: Channel) -> None:
    header, _ = channel.receive()
    server = Server(channel, header["arguments"], header["banned"])
    while True:
        header, arrays = channel.receive()
        action: Callable[[dict[str, Any], Arrays], None] = {
            "load": server.load,
            "rest": server.rest,
            "sample": server.sample,
            "score": server.score,
        }[header["do"]]
        action(header, arrays)


class Server:
    """An engine, and the questions that are put to it."""

    def __init__(self, channel: Channel, arguments: dict[str, Any], banned: list[int]) -> None:
        import vllm
        from vllm import EngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.llm_engine import LLMEngine

        self.channel = channel
        known = {field.name for field in dataclasses.fields(EngineArgs)}
        settled = {name: value for name, value in WHERE_KNOWN.items() if name in known}
        if current_platform.is_cpu():
            # a prompt that is read in parts has its seed set back in a way that only GPUs can
            settled["enable_chunked_prefill"] = False
        self.engine = LLMEngine.from_engine_args(EngineArgs(**(settled | arguments)))
        self.engine.collective_rpc("burnish_prepare", args=(banned,))
        self.version: int | None = None
        self.adapter: Any = None  # that requests are answered with
        self._folder = tempfile.TemporaryDirectory(prefix="burnish-adapter-")
        self.asked = 0
        self._processor: Any = None
        longest = self.engine.model_config.max_model_len
        channel.send({"ready": vllm.__version__, "longest": longest})

    def load(self, header: dict[str, Any], arrays: Arrays) -> None:
        """Put weights in place, and forget what was computed with those before."""
        with open(header["path"], "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != header["digest"]:
            raise ValueError(f"{header['path']} has sha256 {digest}, but {header['digest']} was published")
        self.version = None  # torn until all ranks have them
        resting = self.engine.is_sleeping()
        if resting:
            self.engine.wake_up(["weights"])
        missing: set[str] = set()
        if header["adapter"] is None:
            missing = {name for names in self._everywhere("burnish_load", header["path"]) for name in names}
        else:
            self._adapt(header)
        if resting:
            self.engine.wake_up(["kv_cache"])
        if not self.engine.reset_prefix_cache():
            raise RuntimeError("vLLM keeps prompts that the old weights have read")
        self.engine.reset_encoder_cache()
        self.engine.reset_mm_cache()
        self.version = header["version"]
        self.channel.send({"version": self.version, "digest": digest, "missing": sorted(missing)})

    def _adapt(self, header: dict[str, Any]) -> None:
        """Have requests use an adapter in the place of the one before."""
        from vllm.lora.request import LoRARequest

        before, self.adapter = self.adapter, None
        if before is not None:
            self.engine.remove_lora(before.lora_int_id)
        number = 1 if before is None else before.lora_int_id + 1
        folder = pathlib.Path(self._folder.name) / f"{number}"
        folder.mkdir()
        (folder / "adapter_config.json").write_text(json.dumps(header["adapter"]))
        (folder / "adapter_model.safetensors").symlink_to(header["path"])
        adapter = LoRARequest(f"v{header['version']}-{number}", number, str(folder))
        try:
            added = self.engine.add_lora(adapter)
        except Exception as error:
            raise RuntimeError(
                f"the adapter can't be read by this vLLM: {error}; set rollout.vllm.adapter=folded"
            ) from error
        if not added:
            raise RuntimeError("vLLM did not take the adapter; set rollout.vllm.adapter=folded")
        self.adapter = adapter

    def rest(self, header: dict[str, Any], arrays: Arrays) -> None:
        """Give the memory of the GPU back until weights are loaded; those of now are kept in the CPU's."""
        self.engine.reset_encoder_cache()
        self.engine.sleep(1)
        self.channel.send({"resting": True})

    def sample(self, header: dict[str, Any], arrays: Arrays) -> None:
        """Sample responses; each is sent as soon as it is there, in whatever order they come."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        prompts = self._prompts(header, arrays)
        inputs = self._inputs(header["temperature"], prompts)
        requests = []
        own = (arrays[name].tolist() for name in ("prompt", "seed", "limit"))
        least = header["sampling"]["min_tokens"]
        for prompt, seed, limit in zip(*own, strict=True):
            length = {"max_tokens": limit, "min_tokens": min(least, limit)}
            parameters = SamplingParams(**header["sampling"] | length, seed=seed, logprobs=0)
            parameters.output_kind = RequestOutputKind.FINAL_ONLY
            requests.append((inputs[prompt], parameters))
        for row, output in self._run(requests):
            self._check(output, prompts[int(arrays["prompt"][row])])
            answer = output.outputs[0]
            if answer.finish_reason not in ("stop", "length"):
                raise RuntimeError(f"vLLM ended a response with {answer.finish_reason}")
            ids = np.asarray(answer.token_ids, dtype=np.int64)
            scores = [step[token].logprob for token, step in zip(answer.token_ids, answer.logprobs, strict=True)]
            header = {"row": row, "finished": answer.finish_reason == "stop", "version": self.version}
            self.channel.send(header, {"ids": ids, "logprob": np.asarray(scores, dtype=np.float32)})
        self.channel.send({"done": True})

    def score(self, header: dict[str, Any], arrays: Arrays) -> None:
        """Log-probs of all tokens of given prompts but the first."""
        from vllm import SamplingParams

        prompts = self._prompts(header, arrays)
        parameters = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, detokenize=False)
        requests = [(prompt, parameters) for prompt in self._inputs(header["temperature"], prompts)]
        for row, output in self._run(requests):
            ids = prompts[row].ids
            self._check(output, prompts[row])
            scores = [step[token].logprob for token, step in zip(ids[1:], output.prompt_logprobs[1:], strict=True)]
            self.channel.send({"row": row, "version": self.version}, {"logprob": np.asarray(scores, dtype=np.float32)})
        self.channel.send({"done": True})

    @property
    def _processing(self) -> Any:
        if self._processor is None and self.engine.model_config.is_multimodal_model:
            from vllm.multimodal import MULTIMODAL_REGISTRY

            self._processor = MULTIMODAL_REGISTRY.create_processor(self.engine.model_config)
        return self._processor

    def _prompts(self, header: dict[str, Any], arrays: Arrays) -> list[Prompt]:
        found = []
        for number, sizes in enumerate(header["sizes"]):
            mark = f"{number}/"
            own = {name.removeprefix(mark): array for name, array in arrays.items() if name.startswith(mark)}
            found.append(Prompt(sizes, own))
        return found

    def _inputs(self, temperature: float, prompts: list[Prompt]) -> list[Any]:
        """What the engine takes of prompts; all workers know by which temperature they are scored, and positions."""
        if self.version is None:
            raise RuntimeError("no weights have been published")
        inputs, positions = [prompt.engine_input(self._processing) for prompt in prompts], {}
        for prompt in prompts:
            if prompt.sizes:
                array = np.ascontiguousarray(prompt.arrays["positions"])
                positions[prompt.key] = (list(array.shape), array.tobytes())
        self._everywhere("burnish_begin", temperature, positions)
        return inputs

    def _everywhere(self, method: str, *arguments: Any) -> list[Any]:
        answers: list[Any] = self.engine.collective_rpc(method, args=arguments)
        return answers

    def _run(self, requests: list[tuple[Any, Any]]) -> Iterator[tuple[int, Any]]:
        """Work off requests: the number of each, and what came of it."""
        numbers = {}
        for number, (prompt, parameters) in enumerate(requests):
            self.asked += 1
            numbers[f"{self.asked}"] = number
            adapted = {} if self.adapter is None else {"lora_request": self.adapter}
            self.engine.add_request(f"{self.asked}", prompt, parameters, **adapted)
        beaten = time.monotonic()
        while self.engine.has_unfinished_requests():
            for output in self.engine.step():
                if output.finished:
                    yield numbers.pop(output.request_id), output
            if time.monotonic() - beaten > BEAT:
                beaten = time.monotonic()
                self.channel.send({"alive": len(numbers)})
        if numbers:
            raise RuntimeError(f"vLLM has lost {len(numbers)} of {len(requests)} requests")

    def _check(self, output: Any, prompt: Prompt) -> None:
        if list(output.prompt_token_ids) != prompt.ids:
            raise ValueError("vLLM has read other tokens than the prompt has: its log-probs are of another text")
