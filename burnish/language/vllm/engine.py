"""Samples responses with vLLM, on the trainer's tokens and pixels and with its weights, and compares the two."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from burnish.language.encode import Encoder
from burnish.language.engine import Respond, ResponseEngine, ResponseJob
from burnish.language.logprobs import response_logprobs
from burnish.language.model.forwards import conversations
from burnish.language.roles import LanguageRoles
from burnish.language.sampling import Ended, Sampling, Turn
from burnish.language.vllm.apart.burnish_vllm.channel import Channel, device_for
from burnish.language.vllm.apart.burnish_vllm.shared import buckets, entries_of, mismatch, place_of, placed
from burnish.language.vllm.process import (
    BUCKET,
    SharedWeights,
    VllmDiedError,
    VllmFailedError,
    VllmProcess,
    adapter_of,
    handle_of,
    settings_of,
    through_channel,
    through_gpu,
    weights_of,
)
from burnish.options.language import LanguageLoraOptions
from burnish.options.vllm import RANKS, VllmOptions, sends_adapter
from burnish.training.ranks import open_store
from burnish.types.batch import Gathered
from burnish.types.completion import Completion, Encoded
from burnish.types.prompt import Prompt
from burnish.utils import random
from burnish.utils.allocator import give_back_cached, shareable
from burnish.utils.errors import Cancelled, UserError

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1}

T = TypeVar("T")
Carrier = Callable[[str, dict[str, Tensor]], tuple[dict[str, Any], list[int]]]


class VllmEngine(ResponseEngine):
    """vLLM in a process of its own, which starts with random weights and samples with none but published ones.

    What a weight sync does not reach stays random, and shows at once: after each of them, both sides score the same
    responses to an example.
    """

    def __init__(
        self,
        roles: LanguageRoles,
        options: VllmOptions,
        *,
        path: Path,
        seed: int,
        example: Callable[[], Prompt],
        lora: LanguageLoraOptions | None = None,
    ) -> None:
        """Start vLLM; it gets ready while the caller goes on.

        Args:
            roles: of the trainer.
            options: of vLLM.
            path: directory of the model, of which vLLM reads all but the weights.
            seed: of the run.
            example: a prompt that the two sides are compared with.
            lora: of the policy.
        """
        self.roles, self.model, self.options, self.seed = roles, roles.model, options, seed
        self.encode = Encoder(roles.model)
        self.metrics: dict[str, float] = {}  # of the last weight sync
        self.restarts = 0
        dtype = str(self.model.compute).removeprefix("torch.")
        # vLLM has the weights of the model's directory then, and gets the adapter alone
        self._adapter = lora if sends_adapter(options.adapter, lora, dtype) else None
        self._first = {"arguments": self._arguments(path), "banned": self.model.banned.tolist()}
        self._weights = SharedWeights()  # where they go through the CPU's memory
        self._checksums: list[int] = []  # of a version's buckets, where they don't
        self._channel: Channel | None = None  # to vLLM's workers, where they are on other GPUs
        self._version: int | None = None  # that vLLM has, or is about to get
        self._network: nn.Module | None = None  # the policy's, while its weights are published
        self._example = example
        self._resting = False
        self._cancelled = False  # the run is to stop: nothing is sampled any more
        self._process = self._started()

    @contextmanager
    def responding(self, job: ResponseJob) -> Iterator[Respond]:
        """Who answers for a job.

        Raises:
            UserError: vLLM can't do what the job asks for.
            VllmFailedError: it failed, or its log-probs are not the trainer's.
            Cancelled: the run is to stop; what vLLM still sends is dropped.
        """
        try:
            job.check_cancelled()
            self._insist(lambda: self._process.ready(job.check_cancelled))  # it may still be starting
            if self._version is None:
                self.sync_weights(0)
            yield partial(self._sample, job)
        except Cancelled:
            self._cancelled = True
            raise

    @cached_property
    def _probe(self) -> Completion:
        """A response of arbitrary tokens to the example."""
        model, prompt = self.model, self.encode([self._example()])
        banned = set(model.banned.tolist())
        allowed = torch.tensor([token for token in range(model.vocabulary) if token not in banned])
        ids = allowed[torch.tensor(random.permutation(len(allowed), self.seed, "probe", 0)[:PROBED])]
        return Completion.of_text(prompt, ids[None], torch.tensor([len(ids)]), axes=model.axes)

    def sync_weights(self, version: int) -> None:
        """Sample with the policy's present weights from now on.

        Raises:
            VllmFailedError: vLLM failed, lacks a weight, or does not score responses as the trainer does.
        """
        if self._cancelled:
            return
        begun = time.monotonic()
        with self._published() as network:
            if self._insist(lambda: self._carrier) is None:
                # what vLLM lacks of a version: the adapter, or all weights with the adapter folded in
                weights = weights_of(network) if self._adapter is None else adapter_of(network)
                settings = None if self._adapter is None else settings_of(self._adapter, weights)
                self._weights.write(weights, version, dtype=self.model.compute, settings=settings)
            self._version, self._checksums = version, []
            self._insist(self._load)
            self._compare(network)
        self.metrics |= {
            "timing_s/update_weights_vllm": time.monotonic() - begun,
            "vllm/restarts": float(self.restarts),
        }

    @contextmanager
    def _published(self) -> Iterator[nn.Module]:
        """The network with the weights that are published, in one context or in another one inside of it."""
        if self._network is not None:
            yield self._network
            return
        with self.roles.sampling(merge=self._adapter is None) as network, patch.object(self, "_network", network):
            yield network

    @cached_property
    def _carrier(self) -> Carrier | None:
        """How weights get to vLLM without passing through the CPU's memory; None where they pass through it."""
        device, devices = self.model.device, self._process.ready()["devices"]
        place = place_of(device)
        if self._adapter is not None or not place:
            return None
        if device_for([place, *devices]) == "cuda":
            return self._send
        if devices != [place]:
            return None
        try:
            memory = shareable(1, device)
            handle = handle_of(memory)
        except RuntimeError as error:
            failed = str(error)
        else:
            failed = self._process.ask("the GPU's memory", {"do": "reach", "handle": handle})["failed"]
        if failed:
            warnings.warn(
                f"weights reach vLLM through the CPU's memory, as the GPU's can't be shared: {failed}", stacklevel=2
            )
        return None if failed else self._hand_over

    def rest(self) -> None:
        """Have vLLM give its memory of the GPU back until the next weight sync, if it may."""
        if self.options.sleep and not self._resting and not self._cancelled:
            self._insist(lambda: self._process.ask("rest", {"do": "rest"}))
            self._resting = True

    def close(self) -> None:
        """End vLLM and free the memory of its weights."""
        super().close()
        self._leave()
        self._process.close()
        self._weights.close()

    def _arguments(self, path: Path) -> dict[str, Any]:
        options = self.options
        found: dict[str, Any] = {
            "model": str(path),
            "dtype": str(self.model.compute).removeprefix("torch."),
            "load_format": "dummy",
            "logprobs_mode": "raw_logprobs",
            "worker_extension_cls": "burnish_vllm.extension.Extension",
            "generation_config": "vllm",
            "mm_processor_cache_gb": 0,
            "skip_mm_profiling": True,
            "disable_log_stats": True,
            "enforce_eager": options.enforce_eager,
            "gpu_memory_utilization": options.memory_fraction,
            "tensor_parallel_size": options.tensor_parallel,
            "enable_sleep_mode": options.sleep,
            "max_num_seqs": options.max_num_seqs,
        }
        if options.max_model_len is not None:
            found["max_model_len"] = options.max_model_len
        if self.roles.routers is not None:
            found["enable_return_routed_experts"] = True
        if self._adapter is not None:
            rank = next(size for size in RANKS if size >= self._adapter.rank)
            found |= {"load_format": "auto", "enable_lora": True, "max_loras": 1, "max_lora_rank": rank}
        return found | options.arguments

    def _started(self) -> VllmProcess:
        options = self.options
        give_back_cached()  # vLLM refuses to start where its fraction of a GPU isn't free
        return VllmProcess(options.python, self._first, devices=options.devices, timeout=options.timeout)

    def _insist(self, question: Callable[[], T]) -> T:
        """Ask again where vLLM has died: with the same weights and seeds it gives the same responses."""
        left = self.options.restarts
        while True:
            try:
                return question()
            except VllmDiedError as error:
                if not left:
                    raise
                warnings.warn(f"{error}\nvLLM is started again", stacklevel=3)
            left -= 1
            self.restarts += 1
            self._process.close()
            self._leave()
            self._process = self._started()
            if self._version is not None:
                self._load()

    def _load(self) -> None:
        if self._resting:  # it wakes up, and what the trainer has freed of the GPU since is needed for that
            give_back_cached()
        what = f"weights of version {self._version}"
        carrier = self._carrier
        response = self._load_by(carrier, what) if carrier else self._process.ask(what, self._weights.message)
        self._resting = False
        if response["missing"]:
            raise VllmFailedError(
                f"vLLM has weights that the trainer does not publish: {', '.join(response['missing'][:5])}; "
                "this model can't be sampled with it, use Burnish's own engine"
            )

    def _load_by(self, carrier: Carrier, what: str) -> dict[str, Any]:
        """vLLM's answer to weights that it gets without the CPU's memory.

        Raises:
            VllmFailedError: it read other bytes than were sent.
            VllmDiedError: it was started again, and its weights are no longer here.
        """
        again = self._network is None
        lost = (
            f"vLLM died, and {what} are no longer here to be sent to another one; start the same command again to "
            "resume (with runtime=ray that is done)"
        )
        if again and self.roles.shards.networks:  # the other ranks would have to gather them, too
            raise VllmDiedError(lost)
        with self._published() as network:
            response, checksums = carrier(what, weights_of(network))
        if again and checksums != self._checksums:  # a rollout worker gets the next version while this one samples
            raise VllmDiedError(lost)
        self._checksums = checksums
        return response

    def _hand_over(self, what: str, weights: dict[str, Tensor]) -> tuple[dict[str, Any], list[int]]:
        """Bring weights to a vLLM on the same GPU through memory there: its answer, and checksums."""
        version, checksums = self._version, []
        assert version is not None
        for message, checksum in through_gpu(weights, version, device=self.model.device, dtype=self.model.compute):
            responses = self._process.answers(what, message)
            if (own := next(responses)["checksum"]) != checksum:
                raise VllmFailedError(f"weight sync v{version}: {mismatch(message['places'], checksum, own)}")
            checksums.append(checksum)
        return next(responses), checksums

    def _send(self, what: str, weights: dict[str, Tensor]) -> tuple[dict[str, Any], list[int]]:
        """Bring weights to a vLLM on other GPUs over NCCL: its answer, and checksums."""
        parts = list(buckets(entries_of(weights, dict.fromkeys(weights, self.model.compute)), BUCKET))
        message = {"do": "load", "adapter": None, "parts": [placed(part) for part in parts]}
        with ThreadPoolExecutor(1) as beside:
            channel = self._channel = self._channel or self._joined(beside)
            sending = beside.submit(through_channel, weights, parts, channel)
            try:
                return self._process.ask(what, message), sending.result()
            except BaseException:
                self._leave()  # or it would wait for vLLM
                raise

    def _joined(self, beside: ThreadPoolExecutor) -> Channel:
        """A channel to all of vLLM's workers."""
        seconds, size = self.options.timeout, 1 + len(self._process.ready()["devices"])
        store = open_store("127.0.0.1", 0, seconds)
        channel = beside.submit(Channel, store, 0, size, device=self.model.device.type, seconds=seconds)
        self._process.ask(
            "the channel for weights", {"do": "join", "port": store.port, "size": size, "seconds": seconds}
        )
        return channel.result()

    def _leave(self) -> None:
        if self._channel is not None:
            self._channel.abort()
            self._channel = None

    def _sample(
        self, job: ResponseJob, table: Encoded, index: Sequence[int], keys: Sequence[int], *,
        limits: Sequence[int] | None = None, on_ended: Ended | None = None, turn: Turn | None = None,
    ) -> Completion:  # fmt: skip
        """As ``decode``; of a ``turn`` vLLM finds by itself what it has computed."""
        sampling, prompts = job.sampling, Gathered(table=table, index=torch.tensor(index, dtype=torch.long))
        limits = [sampling.max_new_tokens] * len(index) if limits is None else limits
        self._check_room(prompts, limits)
        message = {
            "do": "sample", "prompts": packed(table), "temperature": sampling.scored_at,
            "sampling": parameters(sampling, self.model.stop),
            "rows": list(zip(index, keys, limits, strict=True)),
        }  # fmt: skip
        what = f"{len(keys)} responses"
        responses = self._insist(lambda: self._rows(what, message, job.check_cancelled, on_ended))
        ids, logprob = (
            nn.utils.rnn.pad_sequence([torch.from_numpy(row[name]) for row in responses], batch_first=True)
            for name in ("ids", "logprob")
        )
        routers = self.roles.routers
        routed = routers and [torch.from_numpy(row["experts"].astype(np.int16))[:, routers.layers] for row in responses]
        return Completion.of_text(
            prompts, ids, torch.tensor([len(row["ids"]) for row in responses]), axes=self.model.axes, logprob=logprob,
            finished=torch.tensor([row["finished"] for row in responses]),
            routed_experts=routed or None,
        )  # fmt: skip

    def _rows(
        self, what: str, message: dict[str, Any],
        check_cancelled: Callable[[], None] = lambda: None, told: Ended | None = None,
    ) -> list[dict[str, Any]]:  # fmt: skip
        """Responses in order of their rows; ``told`` gets each as it comes."""
        rows = {}
        for response in self._process.answers(what, message, check_cancelled):
            if "done" in response:
                break
            rows[response["row"]] = response
            if told is not None:
                told([response["row"]], [response["ids"].tolist()], [response["finished"]])
        return [rows[row] for row in range(len(rows))]

    def _check_room(self, prompts: Gathered[Encoded], limits: Sequence[int]) -> None:
        longest = self._process.ready()["longest"]
        lengths = prompts.table.lengths
        before, own = max(
            ((lengths[row], limit) for row, limit in zip(prompts.index.tolist(), limits, strict=True)), key=sum
        )
        if before + own > longest:
            raise UserError(
                f"{before} tokens of a prompt or a dialogue and {own} of a response make {before + own}, but vLLM "
                f"reads {longest}; raise rollout.vllm.max_model_len, or lower rollout.max_new_tokens or "
                "environment.max_length"
            )

    def _compare(self, network: nn.Module) -> None:
        """Score the probe on both sides.

        Raises:
            VllmFailedError: they differ by more than the tolerance.
        """
        probe = self._probe
        message = {"do": "score", "prompts": packed(conversations(probe, {})), "temperature": 1.0}
        ours = response_logprobs(self.model, network, probe, temperature=1.0).logprob.cpu()[0]
        (answer,) = self._insist(lambda: self._rows("log-probs of the example", message))
        difference = (ours - torch.from_numpy(answer["logprob"][-len(ours) :])).abs()
        mean, largest = float(difference.mean()), float(difference.max())
        self.metrics |= {"vllm/logprob_abs_diff_mean": mean, "vllm/logprob_abs_diff_max": largest}
        spread = max(1.0, float(ours.std()))  # larger logits round further apart
        tolerance = self.options.tolerance or TOLERANCE[self.model.compute] * spread
        if not mean <= tolerance:
            raise VllmFailedError(
                f"after weight sync v{self._version}, vLLM's log-probs differ from the "
                f"trainer's by {mean:.2g} on average, more than rollout.vllm.tolerance = {tolerance:.2g}: it has "
                "kept some of its old weights, or computes this model otherwise; use Burnish's own engine"
            )


def parameters(sampling: Sampling, stop: tuple[int, ...]) -> dict[str, Any]:
    """A way of sampling as vLLM's SamplingParams have it.

    The logits that vLLM gets are divided by the temperature already: all that is left of it is whether to draw.
    """
    return {
        "temperature": 1.0 if sampling.temperature else 0.0,
        "top_k": sampling.top_k or -1,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "min_tokens": sampling.min_new_tokens,
        "stop": list(sampling.stop),
        "stop_token_ids": list(stop),
        "include_stop_str_in_output": True,
        "ignore_eos": True,  # the stop ids are all that there are
        "detokenize": bool(sampling.stop),
    }


PROBED = 8  # tokens of the response that both sides score


def packed(prompts: Encoded) -> list[dict[str, Any]]:
    """Prompts as vLLM's process takes them (``Prompt`` there)."""
    return [
        {
            "sizes": features.sizes,
            "ids": ids.tolist(),
            "positions": _array(positions),
            "features": {name: _array(value) for name, value in features.tensors.items()},
        }
        for ids, positions, features in zip(prompts.ids, prompts.positions, prompts.features, strict=True)
    ]


def _array(tensor: Tensor) -> np.ndarray:
    """NumPy has no bfloat16, in which pixels may be kept."""
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).cpu().numpy()
