"""The process of vLLM as its owner sees it, and the memory through which weights reach it.

The other side is apart/burnish_vllm/worker.py.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import reduce_tensor
from transformers.core_model_loading import revert_weight_conversion

from burnish.language.vllm.apart.burnish_vllm.channel import Channel
from burnish.language.vllm.apart.burnish_vllm.shared import (
    SUM,
    Entry,
    buckets,
    checksum,
    entries_of,
    mapped,
    placed,
    tensors,
)
from burnish.models.adapters import PREFIX, saved_name
from burnish.models.lora import adapter_parameters, plain_name
from burnish.options.model import LoraOptions
from burnish.utils.allocator import ON_GPU, shareable
from burnish.utils.errors import UserError
from burnish.utils.supervisor import Child, ChildDied

APART = Path(__file__).with_name("apart")  # all that vLLM's environment gets to see of Burnish
START = "import sys; from burnish_vllm.worker import main; main(int(sys.argv[1]), int(sys.argv[2]))"
LONGEST_START = 1200.0  # seconds until vLLM must be ready
SHOWN = 20  # last lines of its log that an error quotes
BUCKET = 256 << 20  # bytes of a GPU's memory that are filled at a time


class VllmFailedError(RuntimeError):
    """vLLM could not do what it was asked; the message says what that was, and quotes its log."""


class VllmDiedError(VllmFailedError):
    """Its process ended or hung."""


class VllmProcess(Child):
    """Starts at once. After an error it is of no more use and should be closed."""

    def __init__(self, python: str, first: Mapping[str, Any], *, devices: str | None, timeout: float) -> None:
        """Start the process and have it build vLLM, which takes a minute or more.

        Args:
            python: of the environment that vLLM is installed in.
            first: what the process is told: arguments of the engine, and tokens that are never written.
            devices: what it sees as CUDA_VISIBLE_DEVICES; None is what this process sees.
            timeout: seconds without a sign of life after which it counts as hung.

        Raises:
            UserError: there is no such Python.
        """
        self._timeout = timeout
        self._ready: dict[str, Any] | None = None
        self._log = tempfile.NamedTemporaryFile(prefix="burnish-vllm-", suffix=".log")  # noqa: SIM115 (until close)
        try:
            super().__init__(
                START, python=python, environment=_environment(devices), output=self._log.file,
            )  # fmt: skip
        except OSError as error:
            raise UserError(
                f"rollout.vllm.python is {python}, which can't be run ({error.strerror}); "
                "it must be the Python of an environment with vLLM, see docs/speed.md"
            ) from error
        with contextlib.suppress(OSError):  # it has ended already: so says the first question
            self.wire.send(first)

    def ready(self, check_cancelled: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Wait until vLLM is there; at once where it is. Its version, and the longest text that it reads.

        Raises:
            VllmFailedError: it could not be built, or not in time.
        """
        if self._ready is None:
            self._ready = next(self._responses("its start", LONGEST_START, check_cancelled))
        return self._ready

    def ask(self, what: str, message: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request that has one; see ``answers``."""
        return next(self.answers(what, message))

    def answers(
        self, what: str, message: Mapping[str, Any], check_cancelled: Callable[[], None] = lambda: None
    ) -> Iterator[dict[str, Any]]:
        """Send a request and yield the responses, until the caller has enough.

        Args:
            what: is asked for, in words.
            message: the request.
            check_cancelled: called once a second; what it raises ends the wait, and the process is of no more use.

        Raises:
            VllmFailedError: vLLM reported an error.
            VllmDiedError: its process ended, or gave no sign of life in time.
        """
        self.ready(check_cancelled)
        with self._watched(what, self._timeout):
            self.wire.send(message)
        yield from self._responses(what, self._timeout, check_cancelled)

    def close(self) -> None:
        """Kill the process and free what its owner holds of it."""
        if not self._log.closed:
            super().close()
            self._log.close()

    def _responses(self, what: str, limit: float, check_cancelled: Callable[[], None]) -> Iterator[dict[str, Any]]:
        while True:
            with self._watched(what, limit):
                self.await_message(check_cancelled)
                response = self.wire.recv()
            if "error" in response:
                raise VllmFailedError(self._quoting_log(f"vLLM failed at {what}: {response['error']}"))
            if "alive" not in response:
                yield response

    @contextlib.contextmanager
    def _watched(self, what: str, limit: float) -> Iterator[None]:
        try:
            with self.deadline(
                limit, f"timed out after {limit:g} s without a sign of life from vLLM, waiting for {what}"
            ):
                yield
        except TimeoutError as error:
            raise VllmDiedError(self._quoting_log(str(error))) from None
        except ChildDied as error:
            raise VllmDiedError(self._quoting_log(f"vLLM ended while it was asked for {what}: {error}")) from None

    def _quoting_log(self, text: str) -> str:
        lines = Path(self._log.name).read_text(errors="replace").splitlines()[-SHOWN:]
        return "\n".join([text, *([f"The last of what it wrote ({len(lines)} lines):"] if lines else []), *lines])


def _environment(devices: str | None) -> dict[str, str]:
    """Nothing of the trainer's Python may be seen by the other one; and nothing is sent to anybody."""
    # segments that grow, which are good for training, end a vLLM that sleeps or is shared out over GPUs
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONHOME", "VIRTUAL_ENV", *ON_GPU)}
    own = {"PYTHONPATH": str(APART), "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1"}
    if devices is not None:
        own["CUDA_VISIBLE_DEVICES"] = devices
    if torch.are_deterministic_algorithms_enabled():
        own["VLLM_BATCH_INVARIANT"] = "1"  # who else is in a batch depends on when each was done
    return {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "WARNING"} | kept | own


def weights_of(network: nn.Module) -> dict[str, Tensor]:
    """The plain network's weights by their names in files, adapters folded in beforehand; of tied ones the first.

    Those that ranks have gathered are taken as they are; the network's own ``state_dict`` would give them up.
    """
    found = dict(network.named_parameters(remove_duplicate=False))
    for place, module in network.named_modules():
        for name, value in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:
                found[f"{place}.{name}" if place else name] = value
    named = {plain_name(key, "policy"): value for key, value in found.items()}
    plain: dict[str, Tensor] = {}
    seen: set[tuple[int, torch.Size]] = set()
    for name, value in named.items():
        place = (value.data_ptr(), value.shape)
        if name is not None and place not in seen:
            seen.add(place)
            plain[name] = value
    return revert_weight_conversion(network, plain)  # type: ignore[no-any-return]


def adapter_of(network: nn.Module) -> dict[str, Tensor]:
    """The policy's adapter by the names that peft saves its weights under."""
    return {f"{PREFIX}{saved_name(key)}": value for key, value in adapter_parameters(network, "policy").items()}


def settings_of(lora: LoraOptions, names: Iterable[str]) -> dict[str, Any]:
    """Settings of an adapter, as peft has them; ``names`` are those of its weights."""
    layers = {name.split(".lora_")[0].rpartition(".")[2] for name in names}
    return {
        "peft_type": "LORA", "r": lora.rank, "lora_alpha": 2 * lora.rank if lora.alpha is None else lora.alpha,
        "use_rslora": lora.rslora, "target_modules": sorted(layers), "bias": "none",
    }  # fmt: skip


class SharedWeights:
    """Weights of the last version, in memory that has no name and is mapped by vLLM's processes.

    One copy is all that a publication makes: it rounds, leaves the GPU, and is used again by the next version.
    """

    def __init__(self) -> None:
        self._file = os.memfd_create("burnish-weights")
        self._memory = torch.empty(0, dtype=torch.uint8)
        self.message: dict[str, Any] = {}  # for vLLM: where the weights lie; empty before the first version

    def write(
        self, weights: Mapping[str, Tensor], version: int, *, dtype: torch.dtype, settings: Mapping[str, Any] | None
    ) -> None:
        """Put weights in the place of those before, which nobody may be reading.

        Args:
            weights: by their names.
            version: policy updates that they have seen.
            dtype: floating-point numbers are written with this precision.
            settings: of the adapter that they are, as peft has them; None where they are all weights of the network.
        """
        places, size = placed(entries_of(weights, dict.fromkeys(weights, dtype)))
        path = f"/proc/{os.getpid()}/fd/{self._file}"  # where processes of this user find it
        if len(self._memory) != size:
            self._memory = mapped(path, size)
        for name, target in tensors(self._memory, places):
            target.copy_(weights[name].detach())
        self.message = {
            "do": "load", "version": version, "path": path, "size": size, "places": places, "adapter": settings,
        }  # fmt: skip

    def close(self) -> None:
        """Free the memory."""
        if self._file >= 0:
            os.close(self._file)
        self._file, self._memory = -1, torch.empty(0, dtype=torch.uint8)


def through_gpu(
    weights: Mapping[str, Tensor], version: int, *, device: torch.device, dtype: torch.dtype
) -> Iterator[tuple[dict[str, Any], int]]:
    """Bring weights to a vLLM on the same GPU: memory there is filled with one bucket after the other.

    Each weight is copied once, and summed up where it lies.

    Args:
        weights: by their names.
        version: policy updates that they have seen.
        device: the GPU.
        dtype: floating-point numbers are written with this precision.

    Yields:
        What vLLM is told of a bucket, and its checksum. The next one takes its place.
    """
    parts = list(buckets(entries_of(weights, dict.fromkeys(weights, dtype)), BUCKET))
    memory = shareable(max(placed(part)[1] for part in parts), device)
    handle = handle_of(memory)
    for number, part in enumerate(parts, start=1):
        places, size = placed(part)
        for name, target in tensors(memory, places):
            target.copy_(weights[name].detach())
        message = {
            "do": "load", "version": version, "adapter": None, "handle": handle, "size": size, "places": places,
            "more": number < len(parts),
        }  # fmt: skip
        yield message, int(checksum(memory[:size]))  # read by the CPU, which waits for the copies


def through_channel(weights: Mapping[str, Tensor], parts: Sequence[Sequence[Entry]], channel: Channel) -> list[int]:
    """Send weights to vLLM's workers, each on a GPU of its own: a bucket is filled while the one before travels.

    Args:
        weights: by their names.
        parts: buckets of them, in the precision that they are sent with.
        channel: which this process is rank 0 of.

    Returns:
        A checksum of each bucket.

    Raises:
        RuntimeError: a worker is gone.
    """
    checksums = []
    for part in parts:
        places, size = placed(part)
        content = torch.empty(size + SUM, dtype=torch.uint8, device=weights[part[0].name].device)
        for name, target in tensors(content, places):
            target.copy_(weights[name].detach())
        checksums.append(checksum(content[:size]))
        content[size:].view(torch.int64).copy_(checksums[-1])
        channel.broadcast(content)
    channel.finish()
    return list(map(int, torch.stack(checksums).tolist()))


def handle_of(memory: Tensor) -> tuple[Any, ...]:
    """What another process opens a GPU's memory by; see ``opened`` there."""
    return reduce_tensor(memory)[1]  # type: ignore[no-any-return]
