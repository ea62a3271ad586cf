"""What runs in a worker's process: it holds one object and does what it is asked, one thing after another."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import signal
import socket
import sys
import sysconfig
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import ray

from burnish.runtime.calls import device_failure
from burnish.runtime.heartbeat import Place, place

log = logging.getLogger(__name__)

BESIDE = "beside"  # a second line of calls, which does not wait for the first
LIFE = "life"  # a third one, of a single call
BEAT = "beat"  # and one that says where the first one is
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
PASSED = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "HF_HUB_OFFLINE", "HF_HOME", "TRANSFORMERS_OFFLINE")


@dataclass(frozen=True, kw_only=True)
class RankInfo:
    """Which worker of its pool one is, and where they meet."""

    rank: int
    size: int
    device: str  # cpu or cuda: the GPUs that it sees are its own
    address: str  # of rank 0's machine, for torch.distributed
    port: int  # free on it when the workers were started
    directory: str = (
        ""  # where workers are to work, if it exists there; "" where the user's runtime environment says it
    )


class WorkerProcess:
    """An actor; everything that it does is asked for by the driver."""

    def __init__(self, *rebuild: Any) -> None:
        """Args: ``rebuild``, of ``build``, where Ray may restart this actor, which then builds its object itself."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver, which then ends this process
        self._worker: Any = None
        self._thread: int | None = None  # that is in a call
        self._rebuild = rebuild
        if rebuild:
            with contextlib.suppress(Exception):  # it is raised again by the first call
                self.build(*rebuild)

    @ray.method(concurrency_group=LIFE)
    def live(self) -> None:
        """Never return: the driver's reference to the answer is ready when this process is dead."""
        threading.Event().wait()

    @ray.method(concurrency_group=BEAT)
    def place(self) -> Place:
        """Where its call is."""
        return place(self._thread)

    def start(self) -> tuple[int, str, int]:
        """Its process id, and the address and a free port of its machine."""
        address = ray.util.get_node_ip_address()
        with socket.socket() as free:
            free.bind((address, 0))
            return os.getpid(), address, free.getsockname()[1]

    def build(self, kind: Callable[..., Any], rank_info: RankInfo, arguments: Sequence[Any]) -> None:
        """Make the object that answers calls."""
        if self._worker is not None:
            return
        if rank_info.directory and os.path.isdir(rank_info.directory):  # so that relative paths mean the same
            os.chdir(rank_info.directory)
        if rank_info.address.startswith("127."):  # by default gloo and NCCL talk through what other machines reach
            loopback = "lo0" if sys.platform == "darwin" else "lo"
            for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
                os.environ.setdefault(name, loopback)
        self._worker = _with_sendable_errors(kind, (rank_info, *arguments))

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the object, or of what an attribute of it holds: ``receiver.switch``."""
        self._thread = threading.get_ident()
        try:
            return self._answer(method, arguments)
        finally:
            self._thread = None

    @ray.method(concurrency_group=BESIDE)
    def call_beside(self, method: str, *arguments: Any) -> Any:
        """The same, while another call goes on."""
        return self._answer(method, arguments)

    def _answer(self, method: str, arguments: Sequence[Any]) -> Any:
        if self._worker is None:
            self.build(*self._rebuild)
        try:
            return _with_sendable_errors(attrgetter(method)(self._worker), arguments)
        except Exception as error:
            if self._rebuild and (failure := device_failure(error)):
                log.error("this worker ends, because it can't go on: %s", failure)
                os._exit(1)  # Ray starts another one, and repeats the call
            raise


def environment(cpus: float, gpus: float, given: Mapping[str, Any]) -> dict[str, str]:
    """Variables of a worker's environment.

    Args:
        cpus: of the worker.
        gpus: of the worker.
        given: the runtime environment that the user asked for, which goes first.
    """
    found = {"OMP_NUM_THREADS": str(max(1, int(cpus))), "OMP_WAIT_POLICY": "PASSIVE"}
    found |= {name: os.environ[name] for name in PASSED if name in os.environ}
    if not gpus:  # Ray leaves all GPUs of a machine visible to an actor that asked for none
        found |= dict.fromkeys(VISIBLE, "")
    if not {"working_dir", "py_modules"} & given.keys():  # that is where modules are to come from, then
        installed = {os.path.realpath(path) for path in sysconfig.get_paths().values()}
        own = [os.path.realpath(path) for path in sys.path if not path.endswith(".zip")]
        found["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path for path in own if path not in installed))
    return {name: value for name, value in found.items() if name not in given.get("env_vars", {})}


def _with_sendable_errors(function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """Call it; of an error that can't be pickled only the text is raised."""
    try:
        return function(*arguments)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            raise RuntimeError(f"{type(error).__name__}: {error}") from None
        raise
