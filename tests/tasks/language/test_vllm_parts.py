"""What of the vLLM engine needs no vLLM: messages, prompts, publications, deadlines, options."""

import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from burnish.language.sampling import Sampling
from burnish.options.vllm import VllmOptions
from burnish.tasks.language.vllm import environment, process
from burnish.tasks.language.vllm.apart.burnish_vllm.inputs import Prompt, key_of
from burnish.tasks.language.vllm.apart.burnish_vllm.wire import Channel
from burnish.tasks.language.vllm.apart.burnish_vllm.worker import METHODS, NAMES
from burnish.tasks.language.vllm.engine import parameters
from burnish.tasks.language.vllm.probe import imagined, remembered
from burnish.tasks.language.vllm.process import VllmDiedError, VllmFailedError, VllmProcess
from burnish.tasks.language.vllm.prompts import packed, with_responses
from burnish.tasks.language.vllm.weight_file import WeightFile, weights_of
from burnish.types.completion import Encoded, Features
from burnish.utils.errors import Cancelled, UserError
from tests.support.processes import alive

IMAGE, VIDEO = 90, 91


@pytest.fixture
def ends():
    left, right = socket.socketpair()
    yield Channel(left), Channel(right)
    left.close()
    right.close()


def test_a_message_arrives_as_it_was_sent(ends):
    arrays = {
        "ids": np.arange(5),
        "pixels": np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)[:, ::2],
        "none": np.zeros((0, 3), dtype=np.int64),
    }
    ends[0].send({"do": "x", "list": [1, None, "ü"]}, arrays)
    ends[0].send({})
    header, got = ends[1].receive()
    assert header == {"do": "x", "list": [1, None, "ü"]}
    assert {name: (a.dtype, a.shape) for name, a in got.items()} == {n: (a.dtype, a.shape) for n, a in arrays.items()}
    assert all((got[name] == arrays[name]).all() for name in arrays)
    assert ends[1].receive() == ({}, {})


def test_a_closed_connection_is_an_error_and_not_an_empty_message(ends):
    ends[0].close()
    with pytest.raises(EOFError):
        ends[1].receive()


def seen(ids, **media):
    arrays = {"ids": np.asarray(ids)}
    for kind, (pixels, grid) in media.items():
        arrays |= {kind: pixels, f"{kind}_grid": np.asarray(grid)}
    placeholders = {"image": IMAGE, "video": VIDEO}
    return Prompt({kind: placeholders[kind] for kind in media}, arrays)


def test_each_image_takes_its_own_places():
    pixels = np.arange(32 * 2, dtype=np.float32).reshape(32, 2)
    # 2 x 4 and 4 x 6 patches, of which 4 are a token; something stands between tokens of the second one
    ids = [1, IMAGE, IMAGE, 2, 3, IMAGE, IMAGE, 4, IMAGE, IMAGE, IMAGE, IMAGE, 5]
    prompt = seen(ids, image=(pixels, [[1, 2, 4], [1, 4, 6]]))
    assert [places.tolist() for places in prompt.ranges["image"]] == [[1, 2], [5, 6, 8, 9, 10, 11]]
    assert [len(part) for part in prompt._pixels("image")] == [8, 24]
    assert len(set(prompt.names["image"])) == 2


def test_media_are_known_by_their_content():
    pixels = np.arange(16, dtype=np.float32).reshape(8, 2)
    ids = [IMAGE, IMAGE, 2]
    one, same = seen(ids, image=(pixels, [[1, 2, 4]])), seen(ids, image=(pixels.copy(), [[1, 2, 4]]))
    other, turned = seen(ids, image=(pixels + 1, [[1, 2, 4]])), seen(ids, image=(pixels, [[1, 4, 2]]))
    assert one.key == same.key
    assert len({prompt.key for prompt in (one, other, turned)}) == 3


def test_a_prompt_is_looked_up_by_its_media_in_order_of_their_places():
    still = np.zeros((4, 2), dtype=np.float32)
    prompt = seen([VIDEO, 1, IMAGE], image=(still, [[1, 2, 2]]), video=(still, [[1, 2, 2]]))
    assert prompt.key == key_of(prompt.ids, [prompt.names["video"][0], prompt.names["image"][0]])


class Model:
    """What the parts want of a model."""

    placeholders = torch.tensor([IMAGE, VIDEO])
    banned = placeholders
    vocabulary = 100
    axes = 3


def encoded(*images):
    """Prompts of 4 tokens, of which the second and third stand for an image of as many patches as said, or none."""
    ids = [torch.tensor([1, IMAGE, IMAGE, 2] if image else [1, 2, 3, 4]) for image in images]
    grids = [torch.tensor([[1, 2, image // 2]]) for image in images]
    features = [
        Features({"images": torch.full((image, 2), float(image)), "image_grid": grid}) if image else Features.none()
        for image, grid in zip(images, grids, strict=True)
    ]
    positions = [torch.arange(4).expand(3, -1)] * len(images)
    return Encoded(ids=ids, positions=positions, features=features)


def test_prompts_travel_as_they_are():
    prompts = encoded(0, 8)
    media, arrays = packed(Model(), prompts)
    assert media == [{}, {"image": IMAGE}]
    assert arrays.keys() == {"0/ids", "1/ids", "1/positions", "1/image", "1/image_grid"}
    assert (arrays["1/image"] == prompts.features[1].get("images").numpy()).all()


def test_the_probe_prefers_pixels_and_writes_nothing_that_is_banned():
    probe = imagined(Model(), encoded(0, 0, 8, 0, 16, 0), seed=1)
    assert [len(features.get("images")) for features in probe.prompts.rows().features] == [16, 8, 0, 0]
    assert not torch.isin(probe.ids, Model.banned).any()
    assert torch.equal(probe.ids, imagined(Model(), encoded(0, 0, 8, 0, 16, 0), seed=1).ids)
    whole = with_responses(probe)
    assert torch.equal(whole.ids[0], torch.cat([torch.tensor([1, IMAGE, IMAGE, 2]), probe.ids[0]]))
    assert whole.positions[0][0].tolist() == list(range(12))


def test_what_was_sampled_becomes_the_probe():
    probe = imagined(Model(), encoded(0, 8), seed=1)
    twice = probe.select([0, 0, 1, 1])
    twice.length[0] = 0
    kept = remembered(twice)
    assert torch.equal(kept.ids, twice.ids[[1, 2]])
    twice.length[:] = 0
    assert remembered(twice) is None


def test_a_publication_has_no_name_and_says_what_it_holds(tmp_path, monkeypatch):
    monkeypatch.setattr("burnish.tasks.language.vllm.weight_file.SHARED", tmp_path)
    words = torch.randn(6, 4)
    publication = WeightFile({"embed": words, "head": words, "step": torch.tensor(3)}, 7, dtype=torch.bfloat16)
    path = publication.path
    try:
        assert not list(tmp_path.iterdir())
        found = load_file(publication.path)
        assert found.keys() == {"embed", "step"}
        assert torch.equal(found["embed"], words.bfloat16())
        assert found["step"] == 3
        code = "import hashlib,sys; print(hashlib.sha256(open(sys.argv[1], 'rb').read()).hexdigest())"
        elsewhere = subprocess.run([sys.executable, "-c", code, publication.path], capture_output=True, text=True)
        assert elsewhere.stdout.strip() == publication.digest
    finally:
        publication.close()
    assert not os.path.exists(path)


def test_weights_have_the_names_of_the_plain_network():
    class Adapted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.base_layer = torch.nn.Linear(2, 2, bias=False)
            self.lora_A = torch.nn.ModuleDict({"policy": torch.nn.Linear(2, 1, bias=False)})

    network = torch.nn.ModuleDict({"q": Adapted(), "embed": torch.nn.Embedding(3, 2), "head": torch.nn.Linear(2, 3)})
    network["head"].weight = network["embed"].weight
    network["head"].register_buffer("scale", torch.ones(3))
    network["head"].register_buffer("frequency", torch.ones(3), persistent=False)
    found = weights_of(network)
    assert found.keys() == {"q.weight", "embed.weight", "head.weight", "head.bias", "head.scale"}
    assert all(torch.equal(value, network.state_dict()[name]) for name, value in found.items() if name != "q.weight")
    assert torch.equal(found["q.weight"], network["q"].base_layer.weight)


def started(monkeypatch, code, **timeouts):
    monkeypatch.setattr(process, "START", f"import sys, os, time, socket\n{code}")
    limits = {"start_timeout": 20.0, "timeout": 20.0} | timeouts
    return VllmProcess(sys.executable, {"arguments": {}, "banned": []}, devices=None, **limits)


TALK = """\
from burnish_vllm.wire import Channel
channel = Channel(socket.socket(fileno=int(sys.argv[1])))
channel.receive()
channel.send({'ready': 'x'})
header, arrays = channel.receive()
"""


def test_an_environment_without_vllm_is_told_of_at_the_start():
    alone = VllmProcess(sys.executable, {"arguments": {}, "banned": []}, devices=None, start_timeout=60.0, timeout=60.0)
    with pytest.raises(VllmFailedError, match="failed at its start: ModuleNotFoundError: No module named 'vllm'"):
        alone.ready()
    alone.close()


def test_a_python_that_is_none_is_the_users_to_put_right():
    with pytest.raises(UserError, match=r"rollout\.vllm\.python is /no/python"):
        VllmProcess("/no/python", {}, devices=None, start_timeout=1.0, timeout=1.0)


def test_nothing_of_the_trainers_python_reaches_the_process(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/trainer")
    code = TALK + "channel.send({'path': os.environ['PYTHONPATH'], 'gpu': os.environ['CUDA_VISIBLE_DEVICES']})"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    child = started(monkeypatch, code)
    answer, _ = next(child.ask("x", {}))
    assert answer == {"path": str(process.APART), "gpu": "3"}
    child.close()


def test_what_an_earlier_request_left_is_no_answer_to_the_next(monkeypatch):
    child = started(monkeypatch, TALK + "channel.send({'row': 0}); channel.send({'row': 1}); channel.receive()")
    assert next(child.ask("one row", {}))[0] == {"row": 0}
    with pytest.raises(VllmDiedError, match="another request"):
        next(child.ask("another row", {}))
    child.close()


def test_a_run_that_is_to_stop_waits_for_no_answer(monkeypatch):
    def stop():
        raise Cancelled

    child = started(monkeypatch, TALK + "time.sleep(20)")
    begun = time.monotonic()
    with pytest.raises(Cancelled):
        next(child.ask("3 responses", {}, check_cancelled=stop))
    child.close()
    assert time.monotonic() - begun < 10


def test_a_process_that_dies_says_how_and_what_it_wrote_last(monkeypatch):
    child = started(monkeypatch, TALK + "print('out of memory', flush=True); os.kill(os.getpid(), 9)")
    with pytest.raises(VllmDiedError, match=r"asked for 3 responses: signal 9(.|\n)*out of memory"):
        next(child.ask("3 responses", {}))
    with pytest.raises(VllmDiedError):
        next(child.ask("3 responses", {}))
    child.close()


def test_a_reported_error_is_no_death(monkeypatch):
    child = started(monkeypatch, TALK + "channel.send({'error': 'ValueError: no'}); time.sleep(60)")
    with pytest.raises(VllmFailedError, match="failed at x: ValueError: no") as failed:
        next(child.ask("x", {}))
    assert not isinstance(failed.value, VllmDiedError)
    child.close()


def test_a_process_without_a_sign_of_life_is_killed_in_time(monkeypatch):
    beats = "for _ in range(3):\n    time.sleep(0.5)\n    channel.send({'alive': 1})\ntime.sleep(60)"
    child = started(monkeypatch, TALK + beats, timeout=1.5)
    begun = time.monotonic()
    with pytest.raises(VllmDiedError, match=r"timed out after 1.5 s without a sign of life from vLLM, waiting for x"):
        next(child.ask("x", {}))
    assert time.monotonic() - begun > 2.5, "signs of life were not counted"
    assert child.process.wait(10) == -signal.SIGKILL
    child.close()


def test_the_worker_dies_with_its_parent(tmp_path):
    code = f"""
import subprocess, sys, os, socket
a, b = socket.socketpair()
kept = os.dup(a.fileno()); os.set_inheritable(kept, True)
child = subprocess.Popen([sys.executable, "-c", {process.START!r}, str(b.fileno()), str(os.getpid())],
                         pass_fds=[b.fileno(), kept], env=os.environ | {{"PYTHONPATH": {str(process.APART)!r}}})
print(child.pid, flush=True)
os._exit(0)
"""
    # the child holds the other end of its own connection, so that only its parent's absence can tell it
    pid = int(subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, timeout=30).stdout.split()[0])
    for _ in range(200):
        if not alive(pid):
            return
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("the worker outlived its parent")


def test_sampling_in_vllms_words():
    found = parameters(Sampling(max_new_tokens=9, temperature=0.3, top_k=4, stop=("x",)), (7, 8))
    assert found["temperature"] == 1.0, "the logits are divided already"
    assert (found["top_k"], found["min_tokens"], found["stop_token_ids"]) == (4, 0, [7, 8])
    assert found["detokenize"]
    assert parameters(Sampling(max_new_tokens=9, temperature=0.0), ())["temperature"] == 0.0


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("dtype", "; set model.dtype"),
        ("max_num_seqs", "; set rollout.batch_size"),
        ("load_format", ", which Burnish sets itself"),
    ],
)
def test_an_argument_that_is_decided_elsewhere_is_refused(name, instead):
    with pytest.raises(ValueError, match=f"has {name}{instead}"):
        VllmOptions(python="p", arguments={name: 1})


def test_fire_sampling_is_refused():
    options = VllmOptions(python="p")
    assert not list(options.complaints(fire_temperature=None, lora=None))
    (complaint,) = options.complaints(fire_temperature=2.0, lora=None)
    assert complaint.startswith("rollout.fire_temperature is 2.0")


OLD = """\
import sys, types
for name, inside in {inside!r}.items():
    module = sys.modules[name] = types.ModuleType(name)
    for one in inside:
        setattr(module, one, type(one, (), {{method: None for method in {methods!r}}}))
    module.__path__ = []
sys.modules["vllm"].__version__ = "0.16.0"
exec(sys.argv[2])
"""


@pytest.mark.parametrize(
    ("lacks", "said"),
    [
        ({}, "vLLM 0.16.0"),
        ({"vllm.inputs": ("mm_input",)}, "has no vllm.inputs.tokens_input; Burnish needs vllm>="),
        ({"vllm.multimodal.inputs": None}, "has no vllm.multimodal.inputs"),
        ({"methods": ("step",)}, "LLMEngine.reset_encoder_cache"),
    ],
)
def test_a_vllm_that_lacks_what_is_used_is_refused_by_name(lacks, said):
    """What runs in the environment after it was made, and when vLLM is started."""
    inside = {name: names for name, names in (NAMES | lacks).items() if names is not None and name != "methods"}
    old = OLD.format(inside=inside, methods=lacks.get("methods", METHODS))
    command = [sys.executable, "-c", old, str(environment.APART), environment.CHECK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert said in done.stdout + done.stderr
    assert (done.returncode == 0) == (not lacks)


def test_how_the_trainer_allocates_is_not_how_vllm_does(monkeypatch):
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.setenv("VLLM_CACHE_ROOT", "/tmp/cache")
    given = process._environment("1")
    assert "PYTORCH_ALLOC_CONF" not in given
    assert given["VLLM_CACHE_ROOT"] == "/tmp/cache"
    assert given["CUDA_VISIBLE_DEVICES"] == "1"


def test_weights_that_ranks_have_gathered_can_be_given_up_after_they_were_written():
    gathered = torch.randn(8, 8)
    WeightFile({"weight": gathered}, 1, dtype=torch.float32).close()
    gathered.untyped_storage().resize_(0)
