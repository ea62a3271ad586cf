"""``burnish push``: what is sent to the hub, what the card says, and that others load it without Burnish."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from huggingface_hub import constants
from PIL import Image

from burnish.cli import main
from burnish.commands.loading_code import loading_code
from burnish.utils.paths import ASSETS
from tests.support.fake_hub import use
from tests.support.fake_hub_writes import TOKEN, WritableHub, writable_hub
from tests.support.http_servers import serving
from tests.support.reports import Story, run_folder
from tests.support.tiny_recipes import reward, write_recipe, write_rewards


@pytest.fixture
def hub(monkeypatch, tmp_path) -> Iterator[WritableHub]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with writable_hub() as made:
        use(monkeypatch, made, str(tmp_path / "cache"))
        yield made


@pytest.fixture(scope="module")
def drawn(tmp_path_factory) -> Path:
    """A run of one update of the quickstart's model, with validations."""
    folder = tmp_path_factory.mktemp("drawn")
    write_rewards(folder)
    (folder / "prompts.txt").write_text("the number 4\nthe number 7\n")
    tree = {
        "model": {"path": "burnish:quickstart/model", "lora": {"rank": 2}},
        "data": {"train_files": str(folder / "prompts.txt"), "train_batch_size": 2},
        "algorithm": "flow_grpo",
        "rewards": {"brightness": reward(folder, "brightness")},
        "rollout": {"n": 2, "num_inference_steps": 3, "max_sequence_length": 4},
        "validation": {"every": 1, "n": 2, "reference_guidance": None},
        "scoring": {"processes": 0},
        "steps": 1,
        "output_dir": str(folder / "run"),
    }
    assert main(["train", str(write_recipe(folder / "recipe.yaml", tree))]) == 0
    for file in (folder / "run").glob("validation/*/samples.jsonl"):  # a folder may come from somebody else
        file.write_text(file.read_text().replace('"the number 7"', json.dumps(HOSTILE)))
    return folder / "run"


HOSTILE = "</table><script>alert(1)</script> [x](javascript:alert(2)) `a` | b\n# c\n---\nlicense: mit"


@pytest.mark.slow
def test_what_was_pushed_is_loaded_by_diffusers_alone(hub, drawn, tmp_path, capsys):
    assert main(["push", str(drawn), "--to", "me/numbers"]) == 0
    said = capsys.readouterr()
    assert hub.private == {"me/numbers": True}
    assert f"{hub.url}/me/numbers (private)" in said.out
    files = hub.files("me/numbers")
    assert {"README.md", "model_index.json", "transformer/diffusion_pytorch_model.safetensors"} <= set(files)
    assert not [name for name in files if name.startswith((".push", "checkpoints"))]
    assert not list(drawn.glob(".push-*")), "the folder is removed"
    everything = b"".join(files.values()) + said.out.encode()
    assert TOKEN.encode() not in everything
    assert str(tmp_path.parent).encode() not in everything, "a path of this machine was published"
    text = files["README.md"].decode()
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    assert "StableDiffusion3Pipeline" in code
    code = code.replace('"a prompt"', '"the number 4", output_type="latent", height=32, width=32')
    code = code.replace(", height=16, width=32)", ")")
    assert alone(f"{code}\nprint(len(out.images))", hub, tmp_path) == "1"


def alone(code: str, hub: WritableHub, folder: Path) -> str:
    """The last word that a program prints which asks the hub and has no Burnish."""
    code = f"import sys\n{code}\nassert not any(name.startswith('burnish') for name in sys.modules)\n"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HOME": str(folder / "theirs"),
             "HF_HUB_DISABLE_XET": "1", "OMP_NUM_THREADS": "1", "HOME": str(folder)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


@pytest.mark.slow
def test_a_dry_run_sends_nothing_and_shows_hostile_texts_as_text(hub, drawn, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    assert main(["push", str(drawn), "--to", "me/numbers", "--dry-run", "-o", "shown", "--format", "lora"]) == 0
    assert hub.asked == []
    said = capsys.readouterr().out
    assert "Nothing was sent" in said
    assert "pytorch_lora_weights.safetensors" in said
    text = (tmp_path / "shown" / "README.md").read_text()
    _, head, body = text.split("---\n", 2)
    known = yaml.safe_load(head)
    assert known["license"] == "apache-2.0"
    assert {"burnish", "flow_grpo", "lora"} <= set(known["tags"])
    assert known["pipeline_tag"] == "text-to-image"
    assert "<script" not in markdown(body)
    for name in re.findall(r"\]\((card/[\w.-]+)\)", body):
        with Image.open(tmp_path / "shown" / name) as picture:
            assert min(picture.size) > 100
    assert {"curves.png", "before_after.jpg"} == {path.name for path in (tmp_path / "shown" / "card").iterdir()}


@pytest.mark.slow
def test_samples_are_left_out_where_that_is_asked_for(hub, drawn, tmp_path):
    assert main(["push", str(drawn), "--to", "me/x", "--dry-run", "-o", "bare", "--no-samples"]) == 0
    assert not (tmp_path / "bare" / "card" / "before_after.jpg").exists()
    assert "Before and after" not in (tmp_path / "bare" / "README.md").read_text()


def markdown(text: str) -> str:
    from markdown_it import MarkdownIt

    rendered: str = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
    return rendered


REFUSED = {
    "no name": (["--to", "numbers"], "ORGANISATION/NAME"),
    "a name that leads out": (["--to", "../numbers"], "ORGANISATION/NAME"),
    "a dry run into nothing": (["--to", "me/numbers", "--dry-run"], "--output"),
    "somebody else's": (["--to", "them/numbers"], "your token may not write there"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_before_anything_is_loaded(hub, tmp_path, capsys, case):
    given, words = REFUSED[case]
    folder = run_folder(tmp_path / "run", Story(pictures=False))
    assert main(["push", str(folder.path), *given]) == 2
    assert words in " ".join(capsys.readouterr().err.split())
    assert not hub.commits


def test_a_token_is_needed_and_goes_to_no_other_host(hub, tmp_path, capsys, monkeypatch):
    run = str(run_folder(tmp_path / "run", Story(pictures=False)).path)
    with serving(hub.stranger, "127.0.0.3") as hub.elsewhere:
        assert main(["push", run, "--to", "me/numbers"]) == 2
    assert hub.redirected == [("/api/repos/create", "")]
    assert TOKEN not in capsys.readouterr().err
    monkeypatch.delenv("HF_TOKEN")
    assert main(["push", run, "--to", "me/numbers"]) == 2
    assert "hf auth login" in capsys.readouterr().err
    monkeypatch.setenv("HF_TOKEN", "wrong")
    hub.elsewhere = ""
    assert main(["push", run, "--to", "me/numbers"]) == 2
    assert "does not accept your token" in " ".join(capsys.readouterr().err.split())
    monkeypatch.setattr(constants, "ENDPOINT", "http://hub.example")
    assert main(["push", run, "--to", "me/numbers"]) == 2
    assert "unencrypted" in capsys.readouterr().err
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert main(["push", run, "--to", "me/numbers"]) == 2
    assert "HF_HUB_OFFLINE is set" in capsys.readouterr().err


def test_what_is_public_already_is_not_pushed_to_by_mistake(hub, tmp_path, capsys):
    hub.publish("me/numbers", {"README.md": b"mine"})
    run = str(run_folder(tmp_path / "run", Story(pictures=False)).path)
    assert main(["push", run, "--to", "me/numbers"]) == 2
    assert "add --public" in " ".join(capsys.readouterr().err.split())
    assert hub.files("me/numbers") == {"README.md": b"mine"}


@pytest.mark.thorough
def test_an_adapter_is_loaded_by_transformers_and_peft_alone(hub, tmp_path, capsys):
    """Its base is on the hub with a licence, so an adapter is what is pushed."""
    model = ASSETS / "vlm_quickstart" / "model"
    hub.publish("makers/reader", {path.name: path.read_bytes() for path in model.iterdir()})
    hub.cards["makers/reader"] = {"license": "other", "license_name": "makers-own", "license_link": "LICENSE.md"}
    given = ["model.path=makers/reader", "model.lora.rank=2", "data.train_batch_size=2", "rollout.n=2", "steps=1",
             "validation.max_prompts=4", "validation.n=2", "scoring.processes=0", "output_dir=run",
             "trainer.mini_batch_size=null", "optimizer.warmup_steps=0"]  # fmt: skip
    assert main(["train", "vlm_quickstart", *given]) == 0
    capsys.readouterr()
    assert main(["push", "run", "--to", "me/reader", "--public"]) == 0
    said = capsys.readouterr().out
    assert "(public)" in said
    files = hub.files("me/reader")
    assert json.loads(files["adapter_config.json"])["base_model_name_or_path"] == "makers/reader"
    text = files["README.md"].decode()
    known = yaml.safe_load(text.split("---\n", 2)[1])
    assert (known["base_model"], known["base_model_relation"]) == ("makers/reader", "adapter")
    assert (known["license"], known["license_name"]) == ("other", "makers-own")
    assert known["license_link"] == "https://huggingface.co/makers/reader/blob/main/LICENSE.md"
    assert known["pipeline_tag"] == "image-text-to-text"
    assert "vllm serve makers/reader --enable-lora --max-lora-rank 8 --lora-modules reader=me/reader" in text
    assert {name for name in files if name.startswith("card/question")} == set(re.findall(r'src="(card/[^"]+)"', text))
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert 'processor = AutoProcessor.from_pretrained("makers/reader")' in code
    if find_spec("torchvision") is None:  # which this processor needs in transformers
        code = "\n".join(line for line in code.splitlines() if not line.startswith("processor"))
    assert alone(f"{code}\nprint(type(model).__name__)", hub, tmp_path).startswith("Peft")


def test_weights_in_folders_of_a_repository_are_fetched_first():
    lines = ['pipe = WanPipeline.from_pretrained("makers/wan")', 'pipe.load_lora_weights("me/mine")',
             'pipe.transformer_2.load_lora_adapter("me/mine/transformer_2", prefix=None)']  # fmt: skip
    steps = SimpleNamespace(num_inference_steps=4, height=None, width=None)
    assembly = SimpleNamespace(
        loading_lines=lambda base, adapter: lines, library="diffusers",
        config=SimpleNamespace(validation=SimpleNamespace(num_inference_steps=None), rollout=steps),
    )  # fmt: skip
    assert loading_code(assembly, "me/mine", "lora", "makers/wan") == [
        "from diffusers import WanPipeline",
        "from huggingface_hub import snapshot_download",
        "",
        'folder = snapshot_download("me/mine")',
        'pipe = WanPipeline.from_pretrained("makers/wan")',
        "pipe.load_lora_weights(folder)",
        'pipe.transformer_2.load_lora_adapter(f"{folder}/transformer_2", prefix=None)',
        'out = pipe("a prompt", num_inference_steps=4)',
    ]
