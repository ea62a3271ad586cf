"""The process that vLLM lives in: it answers one question after another until its parent is gone."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from .extension import Weights, shared_weights
from .inputs import Prompt
from .shared import checksum, mapped, opened, tensors

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
    channel = Connection(descriptor)
    # a closed connection: the parent is gone, or wants no more
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        try:
            first = channel.recv()
            server = Server(channel, first["arguments"], first["banned"])
            while True:
                message = channel.recv()
                getattr(server, message["do"])(message)
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


class Server:
    """An engine, and the questions that are put to it."""

    def __init__(self, channel: Connection, arguments: dict[str, Any], banned: list[int]) -> None:
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
        devices = self.engine.collective_rpc("burnish_prepare", args=(banned,))
        self.adapter: Any = None  # that requests are answered with
        self._folder = tempfile.TemporaryDirectory(prefix="burnish-adapter-")
        self.asked = 0
        self._processor: Any = None
        longest = self.engine.model_config.max_model_len
        channel.send({"ready": vllm.__version__, "longest": longest, "devices": devices})

    def reach(self, message: dict[str, Any]) -> None:
        """Whether memory of the GPU that the trainer shares can be opened here; why not."""
        error = ""
        try:
            opened(message["handle"])
        except Exception as failed:
            error = f"{type(failed).__name__}: {failed}"
        self.channel.send({"failed": error})

    def join(self, message: dict[str, Any]) -> None:
        """Have all workers join the trainer's channel."""
        self.engine.collective_rpc("burnish_join", args=(message["port"], message["size"], message["seconds"]))
        self.channel.send({"joined": True})

    def load(self, message: dict[str, Any]) -> None:
        """Put weights in place, and forget what was computed with those before."""
        resting = self.engine.is_sleeping()
        if resting:
            self.engine.wake_up(["weights"])
        missing: set[str] = set()
        if message["adapter"] is not None:
            self._adapt(message)
        elif "parts" in message:
            missing = set().union(*self.engine.collective_rpc("burnish_receive", args=(message["parts"],)))
        else:
            weights: partial[Weights] = (
                partial(self._arriving, message)
                if "handle" in message
                else partial(shared_weights, message["path"], message["size"], message["places"])
            )
            missing = set().union(*self.engine.collective_rpc("burnish_load", args=(weights,)))
        if resting:
            self.engine.wake_up(["kv_cache"])
        if not self.engine.reset_prefix_cache():
            raise RuntimeError("vLLM keeps prompts that the old weights have read")
        self.engine.reset_encoder_cache()
        self.engine.reset_mm_cache()
        self.channel.send({"missing": sorted(missing)})

    def _arriving(self, message: dict[str, Any]) -> Weights:
        """Weights that come through memory of the GPU, which is filled again as soon as they are copied.

        vLLM may use some of them only when it has all: no view of that memory would be theirs any more.
        """
        memory, more = opened(message["handle"]), True
        while more:
            content = memory[: message["size"]].clone()
            number, more = int(checksum(content)), message["more"]  # read by the CPU, which waits for the copy
            if not more:
                del memory  # the trainer frees it next
            self.channel.send({"checksum": number})
            yield from tensors(content, message["places"])
            if more:
                message = self.channel.recv()

    def _adapt(self, message: dict[str, Any]) -> None:
        """Have requests use an adapter in the place of the one before; vLLM reads it from a folder."""
        from safetensors.torch import save_file
        from vllm.lora.request import LoRARequest

        before, self.adapter = self.adapter, None
        if before is not None:
            self.engine.remove_lora(before.lora_int_id)
            shutil.rmtree(before.lora_path)
        number = 1 if before is None else before.lora_int_id + 1
        folder = pathlib.Path(self._folder.name) / f"{number}"
        folder.mkdir()
        (folder / "adapter_config.json").write_text(json.dumps(message["adapter"]))
        weights = tensors(mapped(message["path"], message["size"]), message["places"])
        save_file({name: tensor.clone() for name, tensor in weights}, folder / "adapter_model.safetensors")
        adapter = LoRARequest(f"v{message['version']}-{number}", number, str(folder))
        try:
            added = self.engine.add_lora(adapter)
        except Exception as error:
            raise RuntimeError(
                f"the adapter can't be read by this vLLM: {error}; set rollout.vllm.adapter=folded"
            ) from error
        if not added:
            raise RuntimeError("vLLM did not take the adapter; set rollout.vllm.adapter=folded")
        self.adapter = adapter

    def rest(self, message: dict[str, Any]) -> None:
        """Give the memory of the GPU back until weights are loaded; where these are an adapter's, the CPU keeps the
        model's."""
        self.engine.reset_encoder_cache()
        self.engine.sleep(2 if self.adapter is None else 1)
        self.channel.send({"resting": True})

    def sample(self, message: dict[str, Any]) -> None:
        """Sample responses; each is sent as soon as it is there, in whatever order they come."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        requests = []
        least = message["sampling"]["min_tokens"]
        for prompt, seed, limit in message["rows"]:
            length = {"max_tokens": limit, "min_tokens": min(least, limit)}
            parameters = SamplingParams(**message["sampling"] | length, seed=seed, logprobs=0)
            parameters.output_kind = RequestOutputKind.FINAL_ONLY
            requests.append((prompt, parameters))
        for row, output in self._run(message, requests):
            answer = output.outputs[0]
            if answer.finish_reason not in ("stop", "length"):
                raise RuntimeError(f"vLLM ended a response with {answer.finish_reason}")
            ids = np.asarray(answer.token_ids, dtype=np.int64)
            scores = [step[token].logprob for token, step in zip(answer.token_ids, answer.logprobs, strict=True)]
            self.channel.send({
                "row": row, "finished": answer.finish_reason == "stop",
                "ids": ids, "logprob": np.asarray(scores, dtype=np.float32),
                "experts": getattr(answer, "routed_experts", None),  # [tokens read, layers, k]
            })  # fmt: skip

    def score(self, message: dict[str, Any]) -> None:
        """Log-probs of all tokens of given prompts but the first."""
        from vllm import SamplingParams

        parameters = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, detokenize=False)
        requests = [(prompt, parameters) for prompt in range(len(message["prompts"]))]
        for row, output in self._run(message, requests):
            known = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
            scores = [step[token].logprob for token, step in known]
            self.channel.send({"row": row, "logprob": np.asarray(scores, dtype=np.float32)})

    def _read(self, message: dict[str, Any]) -> tuple[list[Prompt], list[Any]]:
        """Prompts, and what the engine takes of them; all workers know the temperature, and the positions of media."""
        prompts = [Prompt(**prompt) for prompt in message["prompts"]]
        if self._processor is None and self.engine.model_config.is_multimodal_model:
            from vllm.multimodal import MULTIMODAL_REGISTRY

            self._processor = MULTIMODAL_REGISTRY.create_processor(self.engine.model_config)
        inputs = [prompt.engine_input(self._processor) for prompt in prompts]
        positions = {prompt.key: prompt.positions for prompt in prompts if prompt.sizes}
        self.engine.collective_rpc("burnish_begin", args=(message["temperature"], positions))
        return prompts, inputs

    def _run(self, message: dict[str, Any], requests: list[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
        """Work off requests, each a prompt of the message and its parameters: the number of each, and what came of it.

        Raises:
            ValueError: vLLM has read other tokens than a prompt's: its log-probs would be of another text.
        """
        prompts, inputs = self._read(message)
        numbers = {}
        for number, (prompt, parameters) in enumerate(requests):
            self.asked += 1
            numbers[f"{self.asked}"] = number
            adapted = {} if self.adapter is None else {"lora_request": self.adapter}
            self.engine.add_request(f"{self.asked}", inputs[prompt], parameters, **adapted)
        beaten = time.monotonic()
        while self.engine.has_unfinished_requests():
            for output in self.engine.step():
                if output.finished:
                    number = numbers.pop(output.request_id)
                    if list(output.prompt_token_ids) != prompts[requests[number][0]].ids:
                        raise ValueError("vLLM has read other tokens than the prompt has")
                    yield number, output
            if time.monotonic() - beaten > BEAT:
                beaten = time.monotonic()
                self.channel.send({"alive": len(numbers)})
        if numbers:
            raise RuntimeError(f"vLLM has lost {len(numbers)} of {len(requests)} requests")
        self.channel.send({"done": True})
