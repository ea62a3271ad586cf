"""Each tracker's own library writes without a network, and what it wrote is read back.

The run is killed after its seventh update, with a checkpoint of its fifth, and goes on from there to its ninth.
"""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest

from burnish.config.run_folder import STEP
from burnish.trackers.base import About
from tests.support.tracked import SAID, swanlab_records, track, wandb_history, wandb_records

pytestmark = pytest.mark.slow

ALL = list(range(10))
OVER = f"over since update 7; raised because {SAID}"
REWARD = "val-core/x/reward/mean@1"


def needs(name):
    command = f"pip install -e '.[{name}]' && python -m pytest tests/trackers"
    return pytest.mark.skipif(find_spec(name) is None, reason=f"{name} is not installed: {command}")


SECRETS = ("WANDB_API_KEY", "SWANLAB_API_KEY", "MLFLOW_TRACKING_TOKEN", "HF_TOKEN", "CLEARML_API_SECRET_KEY")
SECRET = "0123456789abcdef0123456789abcdef01234567"  # as long as a key of W&B


def interrupted(path, monkeypatch, *options):
    for name in SECRETS:
        monkeypatch.setenv(name, SECRET)
    track(path, range(8), options, finished=False)
    track(path, range(6, 10), options, resumed_at=5)
    for file in path.parent.rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes(), file
    return path


@needs("wandb")
def test_wandb(tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_DATA_DIR", raising=False)
    run = interrupted(tmp_path / "run", monkeypatch, "trackers.wandb.mode=offline", "trackers.wandb.name=mine")
    rows = wandb_history(run)
    assert len({name for name, _ in rows}) == 1
    assert [row["_step"] for _, row in rows] == ALL
    assert [row[STEP] for _, row in rows] == ALL
    assert [row["actor/loss"] for _, row in rows] == [update / 8 for update in ALL]
    assert [row[REWARD] for _, row in rows if REWARD in row] == [0, 0.75, 1.5, 2.25]
    drawn, clips, _, said = (row for _, row in rows if REWARD in row)
    assert drawn["val/samples/captions"] == ["0 | prompt 0", "missing | prompt 1"]
    assert [one["_type"] for one in clips["val/samples/videos"]] == ["video-file"] * 2
    (table,) = run.glob(f"trackers/wandb/wandb/offline-run-*/files/{said['val/generations/path']}")
    content = json.loads(table.read_text())
    assert content["columns"] == ["step", "input", "shown", "output", "score"]
    assert content["data"] == [
        [9, "prompt 0", "Image", "**five** <b>0</b>", 2.25], [9, "prompt 1", "Image", "**five** <b>1</b>", None],
    ]  # fmt: skip
    alerts = [one.alert for _, one in wandb_records(run) if one.WhichOneof("record_type") == "alert"]
    assert [(one.title, one.level, one.text) for one in alerts] == [
        ("alarm dark_share", "WARN", f"update 4: {SAID}"), ("alarm dark_share is over", "INFO", f"update 7: {OVER}"),
        ("alarm dark_share", "WARN", f"update 9: {SAID}"),
    ]  # fmt: skip
    # the pictures of tables wait beside the run, and not in the home folder
    waiting = [file.read_bytes()[:4] for file in run.glob("trackers/wandb/data/artifacts/staging/*") if file.is_file()]
    assert waiting.count(b"\x89PNG") == 4


@needs("mlflow")
def test_mlflow(tmp_path, monkeypatch):
    from mlflow import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    run = interrupted(
        tmp_path / "run", monkeypatch, "trackers.mlflow.experiment=mine", "trackers.mlflow.tags={who: me}"
    )
    client = MlflowClient((run / "trackers" / "mlflow").as_uri())
    (found,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert (found.info.run_name, found.info.status, found.data.tags["who"]) == ("run", "FINISHED", "me")
    assert found.data.params["algorithm.name"] == "diffusion_nft"
    assert found.data.tags["alarm.dark_share"] == f"since update 9: {SAID}"
    losses = client.get_metric_history(found.info.run_id, "actor/loss")
    assert [(one.step, one.value) for one in losses] == [(update, update / 8) for update in ALL]
    rewards = client.get_metric_history(found.info.run_id, "val-core/x.reward.mean_at_1")
    assert [one.step for one in rewards] == [0, 3, 6, 9]
    artifacts = run / "trackers" / "mlflow" / found.info.experiment_id / found.info.run_id / "artifacts"
    assert len(list((artifacts / "images").glob("val~samples~0+step+0+*.png"))) == 1
    assert sorted(file.stem for file in artifacts.glob("val/samples/step_*/*")) == [
        "000-00",
        "000-00",
        "001-00",
        "001-00",
    ]
    rows = json.loads((artifacts / "val" / "generations" / "step_000009.json").read_text())
    assert rows[0] == {"step": 9, "input": "prompt 0", "output": "**five** <b>0</b>", "score": 2.25}


@needs("mlflow")
def test_a_server_that_is_down(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:{SECRET}@127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    track(tmp_path / "run", range(3), ["trackers.mlflow={}"])
    assert "trackers.mlflow: 3 updates are not sent: MlflowException: " in caplog.text
    assert SECRET not in caplog.text


@needs("swanlab")
def test_swanlab(tmp_path, monkeypatch):
    run = interrupted(tmp_path / "run", monkeypatch, "trackers.swanlab.mode=offline")
    records = swanlab_records(run)
    assert len({name for name, _ in records}) == 1
    losses = [one.scalar for _, one in records if one.HasField("scalar") and one.scalar.key == "actor/loss"]
    assert [one.step for one in losses] == ALL
    media = [(one.media.key, one.media.step) for _, one in records if one.HasField("media")]
    assert [step for key, step in media if key == "val/generations"] == [0, 3, 6, 9]
    assert [step for key, step in media if key == "val/samples"] == [0, 3]
    assert [step for key, step in media if key == "alarms/dark_share"] == [4, 7, 9]
    texts = [file.read_text() for file in sorted(run.glob("trackers/swanlab/run-*/media/text/*"))]
    assert texts == [SAID, OVER, SAID]
    files = [file.suffix for file in run.glob("trackers/swanlab/run-*/media/image/*")]
    assert sorted(files) == [".gif", ".png"]
    (table,) = run.glob("trackers/swanlab/run-*/media/echarts/009-*.json")
    assert json.loads(table.read_text())["rowData"][0] == {
        "step": 9, "input": "prompt 0", "output": "**five** <b>0</b>", "score": 2.25,
    }  # fmt: skip


@needs("trackio")
def test_trackio(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    interrupted(tmp_path / "run", monkeypatch, "trackers.trackio.project=mine")
    import trackio.utils
    from trackio.sqlite_storage import SQLiteStorage

    monkeypatch.setattr(trackio.utils, "TRACKIO_DIR", tmp_path / "trackio")
    monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", tmp_path / "trackio")
    (name,) = SQLiteStorage.get_runs("mine")
    assert name.startswith("run-")
    rows = sorted(SQLiteStorage.get_logs("mine", name), key=lambda row: row["step"])
    assert [row["step"] for row in rows if "actor/loss" in row] == ALL
    assert [row["step"] for row in rows if "val/generations" in row] == [0, 3, 6, 9]
    alerts = sorted(SQLiteStorage.get_alerts("mine", name), key=lambda one: one["step"])
    assert [(one["step"], one["title"], one["text"], one["level"]) for one in alerts] == [
        (4, "alarm dark_share", SAID, "warn"), (7, "alarm dark_share is over", OVER, "info"),
        (9, "alarm dark_share", SAID, "warn"),
    ]  # fmt: skip
    media = [file.suffix for file in (tmp_path / "trackio" / "media").rglob("*") if file.is_file()]
    assert {".png", ".wav"} < set(media)


def test_tensorboard(tmp_path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = interrupted(tmp_path / "run", monkeypatch, "trackers.tensorboard=true", "trackers.names=lightrft")
    curves = EventAccumulator(str(run / "tensorboard"), purge_orphaned_data=True).Reload()
    assert [one.step for one in curves.Scalars("eval/reward_mean")] == [0, 3, 6, 9]
    shown = EventAccumulator(str(run / "tensorboard" / "samples"), size_guidance={"images": 0, "audio": 0}).Reload()
    drawn = shown.Images("val/samples/0")
    assert [(one.step, one.width, one.height) for one in drawn] == [(0, 24, 16), (3, 24, 16)]
    assert [one.encoded_image_string[:3] for one in drawn] == [b"\x89PN", b"GIF"]
    (sound,) = shown.Audio("val/samples/1")
    assert (sound.step, sound.sample_rate, sound.length_frames) == (6, 8000, 800)
    assert [one.step for one in shown.Images("val/shown/0-0")] == [9]
    alarms = shown.Tensors("alarms/dark_share")
    assert [one.step for one in alarms] == [4, 7, 9]
    told = [one.tensor_proto.string_val[0].decode() for one in alarms]
    assert told == [
        f"**alarm dark_share{title}**\n\n    {text}" for title, text in (("", SAID), (" is over", OVER), ("", SAID))
    ]
    tables = shown.Tensors("val/generations")
    assert [one.step for one in tables] == [0, 3, 6, 9]
    # indented, so that TensorBoard's Markdown shows what a model says as it is
    assert "\n    **five** <b>0</b>" in tables[-1].tensor_proto.string_val[0].decode()


@needs("clearml")
def test_clearml(tmp_path, monkeypatch):
    options = ["trackers.clearml.mode=offline", "trackers.clearml.project=mine", "trackers.clearml.tags=[nft]"]
    run = interrupted(tmp_path / "run", monkeypatch, *options)
    (folder,) = [path for path in (run / "trackers" / "clearml" / "offline").iterdir() if path.is_dir()]
    assert folder.with_suffix(".zip").is_file()  # what ClearML's import_offline_session takes
    task = json.loads((folder / "task.json").read_text())
    assert (task["project_name"], task["name"], task["tags"]) == ("mine", "run", ["nft"])
    assert "diffusion_nft" in task["configuration"]["options"]["value"]
    assert not any(task.get("script", {}).get(name) for name in ("repository", "diff"))
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    events = [event for line in lines for event in json.loads(line)]
    losses = [one for one in events if (one["metric"], one["variant"]) == ("actor", "loss")]
    assert [(one["iter"], one["value"]) for one in losses] == [(update, update / 8) for update in ALL]
    title, _, series = REWARD.partition("/")
    assert [one["iter"] for one in events if (one["metric"], one["variant"]) == (title, series)] == [0, 3, 6, 9]
    tables = [one for one in events if one["metric"] == "val/generations"]
    assert [one["iter"] for one in tables] == [0, 3, 6, 9]
    assert "**five** <b>0</b>" in tables[-1]["plot_str"]
    files = sorted(path.suffix for path in (folder / "data").rglob("*") if path.is_file())
    assert [suffix for suffix in files if suffix in (".png", ".wav")] == [".png"] * 2 + [".wav"] * 2
    log = (folder / "log.jsonl").read_text()
    assert log.count("alarm dark_share is over") == 1
    assert log.count(SAID.partition("</b>")[2]) == 3


@needs("mlflow")
def test_mlflow_takes_a_mean_and_the_same_of_each_step(tmp_path, monkeypatch):
    from burnish.trackers.mlflow import Mlflow

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    options = {"uri": None, "experiment": "mine", "tags": {}}
    run = Mlflow(About(folder=tmp_path, name="run", config={}, options=options, names="verl", id=None))
    run.scalars(1, {"actor/ratio_mean": 1.0, "actor/ratio_mean/step_0": 2.0, "timing_s/a": 3.0, "timing_s/a/b/c": 4.0})
    run.scalars(2, {"actor/ratio_mean": 5.0})
    metrics = run._client.get_run(run.id).data.metrics
    assert metrics == {
        "actor/ratio_mean": 5.0, "actor/ratio_mean.step_0": 2.0, "timing_s/a": 3.0, "timing_s/a.b.c": 4.0,
    }  # fmt: skip
