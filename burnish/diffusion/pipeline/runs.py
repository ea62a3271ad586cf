"""Runs of a pipeline's own ``__call__``: as it is, recorded, or to its end.

Stand-ins take the places of its scheduler and its parts in a shallow copy of the pipeline; nothing is patched."""

from __future__ import annotations

import copy
import functools
import inspect
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from burnish.diffusion.options import RolloutOptions
from burnish.diffusion.pipeline.forwards import Forwards, RunDone
from burnish.diffusion.pipeline.program import Value, numbers_in
from burnish.diffusion.pipeline.schedules import Unsupported, once_a_step, shifted
from burnish.diffusion.pipeline.trace import Trace
from burnish.types.batch import to_device


class Proxy:
    """A part of a pipeline that answers some calls otherwise; all else is the part's own."""

    def __init__(self, part: nn.Module, call: Callable[..., Any] | None = None, **known: Any) -> None:
        """Args: ``call`` in place of the part's own; ``known`` attributes, methods among them."""
        self.__dict__ |= known
        self._part, self._call = part, call or part

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._part)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)


def precise(part: Any, method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a part that is given tensors of the part's own precision: a VAE of float32 beside others of less."""

    def called(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map_only(Tensor, lambda v: v.to(part.dtype) if v.is_floating_point() else v, (args, kwargs))
        return method(*args, **kwargs)

    return functools.wraps(method)(called)


class EncoderCache:
    """Results in the order of the calls.

    What is drawn for them comes from generators of their own, so that the noise of a sample doesn't depend on what is
    recorded.
    """

    def __init__(self, seed: int, written: Sequence[int] = ()) -> None:
        """Args: ``seed`` of all that is random in the prompt's condition; ``written`` are tokens of a sample's own."""
        self.seed, self.written, self.bytes = seed, written, 0
        self._results: list[tuple[list[Any], Any]] = []  # leaves, tensors with the device where they belong; and tree
        self._drawn = 0

    def __len__(self) -> int:
        return len(self._results)

    def leaves(self, count: int) -> list[Any]:
        """What is in the first results, tensors on their devices."""
        return [leaf for leaves, _ in self._results[:count] for leaf in _there(leaves)]

    def answering(self, run: PipelineRun) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """What makes functions answer from the tape in one run, and record where it ends."""
        count, inside = 0, False

        def answers(function: Callable[..., Any]) -> Callable[..., Any]:
            def answered(*args: Any, **kwargs: Any) -> Any:
                nonlocal count, inside
                if inside:  # called by another recorded function
                    return function(*args, **kwargs)
                with nullcontext() if run.trace is None else run.trace.paused():
                    run.asked(getattr(function, "__name__", ""), args, kwargs)
                    if count == len(self._results):
                        inside = True
                        try:
                            self._record(function, *tree_map_only(torch.Generator, self._generator, (args, kwargs)))
                        finally:
                            inside = False
                    leaves, tree = self._results[count]
                    count += 1
                    return run.answered(tree_unflatten(_there(leaves), tree))

            return functools.wraps(function)(answered)

        return answers

    def written_by(self, part: Any, /, **arguments: Any) -> Tensor:
        """What a part's ``generate`` returns: the tokens that are given, or else what it writes by itself."""
        if self.written:
            asked: Tensor = arguments["input_ids"]
            return torch.cat([asked, asked.new_tensor([self.written])], 1)
        from burnish.diffusion.pipeline.writing import generated  # which imports this module

        torch.manual_seed(self.seed)
        return generated(part, arguments)

    def _generator(self, given: torch.Generator) -> torch.Generator:
        self._drawn += 1  # not the place on the tape, which depends on guidance
        return torch.Generator().manual_seed(self.seed + self._drawn)

    def _record(self, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        leaves, tree = tree_flatten(function(*args, **kwargs))
        self._results.append(([(x.to("cpu"), x.device) if isinstance(x, Tensor) else x for x in leaves], tree))
        self.bytes += sum(leaf.nbytes for leaf in leaves if isinstance(leaf, Tensor))


def _there(leaves: list[Any]) -> list[Any]:
    """Tensors on the device where they belong; all else as it is."""
    return [to_device(*leaf) if isinstance(leaf, tuple) else leaf for leaf in leaves]


DECODE = "vae.decode"  # the name of its calls


class Runner:
    """Runs a pipeline, whose parts and steps are answered by a ``PipelineRun``."""

    def __init__(
        self, pipeline: Any, names: tuple[str, ...], device: Callable[[], torch.device], rollout: RolloutOptions
    ) -> None:
        """Args: ``names`` of the networks that are trained; ``device`` tells where they are once they are placed."""
        kind = type(pipeline)
        self._pipeline, self._device, self.names = pipeline, device, names
        self.scheduler = shifted(once_a_step(pipeline.scheduler), rollout.shift)
        self._linear = rollout.schedule == "shift_once"
        self._call = inspect.unwrap(kind.__call__)  # without its no_grad
        self._encoders = [name for name in dir(kind) if name.startswith(("encode_", "_encode_"))]
        modules: dict[str, Any] = {
            name: part for name, part in pipeline.components.items() if isinstance(part, nn.Module)
        }
        self._decoders = {name: part for name, part in modules.items() if hasattr(part, "decode")}  # of sound, too
        self.parts = {name: part for name, part in modules.items() if name not in self._decoders}

    @functools.cached_property
    def answering(self) -> dict[str, Callable[..., Any]]:
        """What answers the calls that are recorded, by their names."""
        return self.parts | {f"{name}.decode": precise(part, part.decode) for name, part in self._decoders.items()}

    @functools.cached_property
    def _facts(self) -> tuple[type, dict[str, dict[str, Any]]]:
        """What pipelines and networks would look for in all of their modules, several times a run."""
        where, kind = self._device(), type(self._pipeline)
        own = type(kind.__name__, (kind,), {"_execution_device": where, "device": where})
        return own, {
            name: {"dtype": self.parts[name].dtype, "device": where} for name in self.names if name in self.parts
        }

    @functools.cached_property
    def _attends(self) -> list[tuple[str, str, Any]]:
        """Modules that have an attention processor, each with the names of its part and its own."""
        found = [(part, *one) for part, network in self.parts.items() for one in network.named_modules()]
        return [one for one in found if hasattr(one[-1], "processor")]

    def __call__(self, arguments: Mapping[str, Any], tape: EncoderCache, run: PipelineRun) -> Any:
        """What the pipeline returns."""
        clone, answering = copy.copy(self._pipeline), tape.answering(run)
        clone.__class__, facts = self._facts
        own = clone.__dict__  # its __setattr__ would also write its configuration

        def network(name: str, part: nn.Module) -> Proxy:
            @functools.wraps(part.forward)  # some call that, or look at what it takes
            def called(*args: Any, **kwargs: Any) -> Any:
                return run.call(name, part, named(part.forward, args, kwargs))

            known = {"forward": called, **facts.get(name, {})}
            if hasattr(part, "generate"):
                tokens = tape if name in self.names else EncoderCache(tape.seed)
                known["generate"] = answering(functools.partial(tokens.written_by, part))
            return Proxy(part, called, **known)

        own |= {name: network(name, part) for name, part in self.parts.items()}
        # its methods know it, and would keep the run's tensors until garbage is collected
        own["scheduler"] = stand_in_scheduler(
            self.scheduler, weakref.ref(run), self._pipeline.scheduler.set_timesteps, linear=self._linear
        )
        if (guider := getattr(clone, "guider", None)) is not None:
            own["guider"] = copy.deepcopy(guider)  # some have a memory of the steps before

        def decoder(name: str, part: Any) -> Proxy:
            called = f"{name}.decode"
            methods = {"encode": answering(precise(part, part.encode))} if hasattr(part, "encode") else {}
            methods["decode"] = lambda *a, **k: run.call(called, self.answering[called], named(part.decode, a, k))
            return Proxy(part, dtype=torch.float32, **methods)  # what it is given is cast here, and no earlier

        own |= {name: decoder(name, part) for name, part in self._decoders.items()}
        own |= {name: answering(getattr(clone, name)) for name in self._encoders}
        run.attention = [(part, name, module, module.processor) for part, name, module in self._attends]
        others = np.random.get_state()
        try:
            np.random.seed(tape.seed % 2**32)  # for classes of users' own
            with torch.random.fork_rng(devices=[]), run.trace or nullcontext():
                torch.default_generator.manual_seed(tape.seed)
                found = self._call(clone, **arguments, generator=torch.Generator().manual_seed(tape.seed))
                # as diffusers' own return it: in a tuple, or in fields
                found = SimpleNamespace(**found) if type(found) is dict else found
                return (found,) if isinstance(found, list | Tensor | np.ndarray | Image) else found
        finally:
            own.clear()  # what stands in knows the run, too
            np.random.set_state(others)
            for *_, module, processor in run.attention:
                module.processor = processor


def stand_in_scheduler(
    scheduler: Any, run: Callable[[], Any], placing: Callable[..., None], *, linear: bool
) -> Any:  # fmt: skip
    """A copy whose steps are those of a run; all else is the scheduler's own. Its copies are the same: a stream each.

    Args: ``run`` gives the run while it lasts; ``placing`` is the method of the pipeline's own scheduler, at whose
    arguments it looks; ``linear`` gives noise levels to shift that are evenly spaced, in place of its own.
    """
    from diffusers.schedulers.scheduling_ddim import DDIMSchedulerOutput  # its fields are also a tuple's

    fresh, kind = copy.copy(scheduler), type(scheduler)
    takes = inspect.signature(kind.set_timesteps)

    @functools.wraps(placing)  # pipelines look at what these take
    def set_timesteps(*args: Any, **kwargs: Any) -> None:
        given = takes.bind(fresh, *args, **kwargs)
        if run().reads_times and "device" in takes.parameters:
            given.arguments["device"] = "cpu"
        if linear:
            own = given.arguments.get("sigmas")
            given.arguments["sigmas"] = evenly(given.arguments["num_inference_steps"] if own is None else len(own))
        kind.set_timesteps(*given.args, **given.kwargs)
        run().placed(fresh)

    @functools.wraps(scheduler.step)
    def step(
        model_output: Tensor, timestep: Any, sample: Tensor, *args: Any, return_dict: bool = True, **kwargs: Any
    ) -> Any:  # by the names that pipelines call them
        def own(predicted: Tensor = model_output, at: Tensor = sample) -> Any:
            if backward and predicted is not model_output:
                raise NotImplementedError("a step whose tokens have times of their own")
            return kind.step(fresh, predicted, timestep, at, *args, return_dict=False, **kwargs)[0]

        # with a time for each token, schedulers step forward along the negative of what a network predicts
        backward = kwargs.get("per_token_timesteps") is not None
        landed = run().step(fresh, -model_output if backward else model_output, timestep, sample, own)
        # schedulers that also return what they predict: it is the sample, where the last step lands on it
        return DDIMSchedulerOutput(landed, landed) if return_dict else (landed, landed)

    own: dict[str, Any] = {
        "set_timesteps": set_timesteps, "step": step,
        "__deepcopy__": lambda memo: stand_in_scheduler(fresh, run, placing, linear=linear),
    }  # fmt: skip
    if hasattr(scheduler, "add_noise") and hasattr(scheduler, "alphas_cumprod") and not hasattr(scheduler, "sigmas"):
        # looked up in a table by the time, also where the one that is asked for lies between two; double: whole numbers
        # are no operation to round, and it would not be recorded
        def add_noise(original_samples: Tensor, noise: Tensor, timesteps: Tensor) -> Any:
            return kind.add_noise(fresh, original_samples, noise, timesteps.double().round().long())

        own["add_noise"] = add_noise
    fresh.__dict__ |= own
    return fresh


def evenly(steps: int) -> np.ndarray:
    """Noise levels [steps] from 1 to 1 / steps, as Flow-Factory, DanceGRPO and the pipelines of FLUX.1 shift them."""
    return np.linspace(1.0, 1 / steps, steps)


def named(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name."""
    signature = inspect.signature(function)
    bound = signature.bind(*args, **kwargs)
    return dict(zip(signature.parameters, bound.args, strict=False)) | bound.kwargs


class Step(NamedTuple):
    """Of one stream: images and sound that are drawn together are two."""

    name: Tensor  # what the scheduler calls its time
    state: Tensor
    output: Tensor
    following: Tensor  # the next state


class PipelineRun:
    """Some parts answer with zeros, or with what is drawn, while the pipeline takes its steps, and states stay."""

    trace: Trace | None = None  # what records it
    attention: Sequence[tuple[str, str, Any, Any]] = ()  # processors of modules, with names of parts and modules
    reads_times = False  # whether times lie in the CPU's memory, where nobody waits for them

    def __init__(
        self, forwards: Forwards, parts: Collection[str] = (), *, end: Sequence[Tensor] = (),
        count: int = 0, decode: Callable[..., Any] | None = None, encoded: int = 0,
    ) -> None:  # fmt: skip
        """Args: ``end``: the states [1, ...] after the last one of ``count`` steps, which ``decode`` may be given;
        ``encoded``: results of encoders after which it ends, if it does."""
        self.forwards, self._left = forwards, encoded
        self._parts, self._end, self._count, self._decode = parts, end, count, decode
        self.streams: dict[Any, list[Step]] = {}  # by their schedulers, in the order of their first steps
        self.scheduler: Any = None

    @property
    def steps(self) -> list[tuple[Step, ...]]:
        """Those of each iteration.

        Raises:
            Unsupported: streams have other times than the first one.
        """
        streams = list(self.streams.values())
        if any([step.name for step in stream] != [step.name for step in streams[0]] for stream in streams):
            raise Unsupported("it steps several schedulers in an iteration, whose times differ")
        return list(zip(*streams, strict=True))

    def asked(self, *question: Any) -> None:
        """What an encoder is to be called with: its name, and arguments."""

    def answered(self, result: Any) -> Any:
        """What an encoder gave."""
        self._left -= 1
        if not self._left:
            raise RunDone
        return result

    def placed(self, scheduler: Any) -> None:
        """The pipeline has set its scheduler to its timesteps.

        Raises:
            Unsupported: it has taken steps of that scheduler before.
        """
        if scheduler in self.streams:
            raise Unsupported(
                "it sets its scheduler's timesteps again after its first steps, as for a second pass over a larger "
                "image; choose a pipeline of one pass"
            )
        self.scheduler = scheduler

    def call(self, name: str, network: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """A network's output."""
        if name == DECODE and self._decode is not None:
            return self._decode(**arguments)
        if name not in self._parts or min(map(len, self.streams.values()), default=0) == self._count:
            return network(**arguments)
        return self.blank(network, self.forwards.noted(name, arguments))

    def blank(self, network: Callable[..., Any], call: Any) -> Any:
        """A made-up output."""
        return tree_map_only(Tensor, torch.clone, self.forwards.blank(network, call))

    def step(self, scheduler: Any, output: Tensor, time: Any, x: Tensor, own: Callable[..., Tensor]) -> Tensor:
        """The next state after ``x`` at ``time``, in the scheduler's terms; ``own`` is the scheduler's own step, which
        takes another output and state too."""
        self.scheduler, steps = scheduler, self.streams.setdefault(scheduler, [])
        following = self.stepped(scheduler, len(steps), output, x, own)
        # some write the next state over this one
        steps.append(Step(torch.as_tensor(time).reshape(()).cpu(), x.clone(), output, following))
        return following

    def stepped(self, scheduler: Any, number: int, output: Tensor, x: Tensor, own: Callable[..., Tensor]) -> Tensor:
        """The same of the step of that number."""
        scheduler._step_index = (getattr(scheduler, "_begin_index", None) or 0) + number + 1
        at = list(self.streams).index(scheduler)
        if number + 1 == self._count and at < len(self._end):
            return self._end[at].reshape(-1, *x.shape[1:]).expand_as(x).clone()
        return x.clone()


class RecordedRun(PipelineRun):
    """A run that is recorded."""

    reads_times = True

    def __init__(
        self, forwards: Forwards, device: torch.device, tables: Callable[[str, Tensor], Tensor] | None = None,
        moving: Collection[str] = (),
    ) -> None:  # fmt: skip
        """Args: ``tables`` gives others in place of the scheduler's timesteps and sigmas; ``moving`` are networks whose
        outputs are no constants."""
        super().__init__(forwards)
        self.trace: Trace = Trace(device)
        self._tables, self._moving = tables, moving
        self.first: dict[Any, Tensor] = {}  # states of streams
        self.ends: list[int] = []  # by iteration, the entry that comes after its last step
        self.answers = 0  # of encoders
        self.prompt: list[Any] = []  # what they gave: numbers of tensors, and all else
        self.generic = True  # whether nothing else tells prompts apart

    def drop_unread(self) -> None:
        """Leave out schedulers that are stepped for their counter alone, with what is dropped (LTX2HDR)."""
        read = {number for entry in self.trace.entries for number in entry.inputs}
        for scheduler, steps in list(self.streams.items()):
            if read.isdisjoint(numbers_in([self.trace.value(step.following) for step in steps])):
                del self.streams[scheduler], self.first[scheduler]

    def answered(self, result: Any) -> Any:
        self.answers += 1
        for leaf in tree_leaves(result):
            plain = isinstance(leaf, int | float | str) or leaf is None
            self.generic &= plain or isinstance(leaf, Tensor)
            self.prompt.append(Value(self.trace.leaf(leaf)) if isinstance(leaf, Tensor) else leaf)
        return result

    def placed(self, scheduler: Any) -> None:
        super().placed(scheduler)
        with self.trace.paused():
            for name in ("timesteps", "sigmas"):
                if isinstance(table := getattr(scheduler, name, None), Tensor):
                    own = table.clone() if self._tables is None else self._tables(name, table)
                    setattr(scheduler, name, own)
                    self.trace.tables[self.trace.leaf(own)] = name, own

    def call(self, name: str, network: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        if not self.trace.varies(arguments):
            if name in self._moving:
                raise Unsupported(
                    f"its {name} also computes what all samples of a prompt share, such as keys of its images or its "
                    "encoding, which would stay as it is while it learns; give prompts without images, or leave it out "
                    "of model.networks. Or its first state is not drawn by torch, but by numpy: draw it by torch.randn"
                )
            self.generic &= self.trace.is_paused
            with self.trace.paused():
                return network(**arguments)
        with self.trace.paused():
            arguments = tree_map_only(Tensor, self.trace.beside, arguments)
        call = self.forwards.noted(name, arguments, self.trace.varies)
        attends = [(at, module.processor, own) for part, at, module, own in self.attention if part == name]
        call = call._replace(attention={at: processor for at, processor, own in attends if processor is not own})
        return self.trace.call(call, lambda: self.blank(network, call))

    def step(self, scheduler: Any, output: Tensor, time: Any, x: Tensor, own: Callable[..., Tensor]) -> Tensor:
        with self.trace.paused():
            framed = len(x) > 1 and bool((x != x[:1]).any())  # rows that repeat no sample are parts of it, as frames
        if framed:
            output, x = output[None], x[None]
        self.first.setdefault(scheduler, x)
        x = x.clone() if x._is_view() else x  # streams may be written back one by one into what holds all of them
        with self.trace.paused():
            following = super().step(scheduler, output, time, x, own).float()
            self.trace.leaf(following, varies=True)
            steps = self.streams[scheduler]
            steps[-1] = steps[-1]._replace(state=x, following=following)
            self.ends[len(steps) - 1 :] = [len(self.trace.entries)]
        return following[0] if framed else following
