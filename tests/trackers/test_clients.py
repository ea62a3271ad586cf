"""Each tracker's own library writes without a network, and what it wrote is read back.

The run is killed after its seventh update, with a checkpoint of its fifth, and goes on from there to its ninth.
"""

import json
from importlib.util import find_spec

import pytest

from tests.support.tracked import SAID, swanlab_records, track, wandb_history, wandb_records

pytestmark = pytest.mark.slow

ALL = list(range(10))
LOSSES = [(update, update / 8) for update in ALL]
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
    run = interrupted(tmp_path / "run", monkeypatch, "trackers.wandb.mode=offline")
    rows = wandb_history(run)
    assert len({name for name, _ in rows}) == 1
    assert [(row["_step"], row["actor/loss"]) for _, row in rows] == LOSSES
    assert [row[REWARD] for _, row in rows if REWARD in row] == [0, 0.75, 1.5, 2.25]
    drawn, clips, _, said = (row for _, row in rows if REWARD in row)
    assert drawn["val/samples/captions"] == ["0 | prompt 0", "missing | prompt 1"]
    assert [one["_type"] for one in clips["val/samples/videos"]] == ["video-file"] * 2
    (table,) = run.glob(f"trackers/wandb/wandb/offline-run-*/files/{said['val/generations/path']}")
    assert json.loads(table.read_text())["data"][0] == [9, "prompt 0", "Image", "**five** <b>0</b>", 2.25]
    alerts = [one.alert for _, one in wandb_records(run) if one.WhichOneof("record_type") == "alert"]
    assert [one.text for one in alerts] == [f"update 4: {SAID}", f"update 7: {OVER}", f"update 9: {SAID}"]


@pytest.mark.thorough
@needs("mlflow")
def test_mlflow(tmp_path, monkeypatch):
    from mlflow import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    run = interrupted(tmp_path / "run", monkeypatch, "trackers.mlflow.project=mine")
    client = MlflowClient((run / "trackers" / "mlflow").as_uri())
    (found,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert (found.info.run_name, found.info.status) == ("run", "FINISHED")
    assert found.data.params["algorithm.name"] == "diffusion_nft"
    assert found.data.tags["alarm.dark_share"] == f"since update 9: {SAID}"
    losses = client.get_metric_history(found.info.run_id, "actor/loss")
    assert [(one.step, one.value) for one in losses] == LOSSES
    artifacts = run / "trackers" / "mlflow" / found.info.experiment_id / found.info.run_id / "artifacts"
    rows = json.loads((artifacts / "val" / "generations" / "step_000009.json").read_text())
    assert rows[0] == {"step": 9, "input": "prompt 0", "output": "**five** <b>0</b>", "score": 2.25}


@needs("swanlab")
def test_swanlab(tmp_path, monkeypatch):
    run = interrupted(tmp_path / "run", monkeypatch, "trackers.swanlab.mode=offline")
    records = swanlab_records(run)
    assert len({name for name, _ in records}) == 1
    losses = [one.scalar for _, one in records if one.HasField("scalar") and one.scalar.key == "actor/loss"]
    assert [one.step for one in losses] == ALL
    texts = [file.read_text() for file in sorted(run.glob("trackers/swanlab/run-*/media/text/*"))]
    assert texts == [SAID, OVER, SAID]


@needs("trackio")
def test_trackio(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    interrupted(tmp_path / "run", monkeypatch, "trackers.trackio.project=mine")
    import trackio.utils
    from trackio.sqlite_storage import SQLiteStorage

    monkeypatch.setattr(trackio.utils, "TRACKIO_DIR", tmp_path / "trackio")
    monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", tmp_path / "trackio")
    (name,) = SQLiteStorage.get_runs("mine")
    rows = sorted(SQLiteStorage.get_logs("mine", name), key=lambda row: row["step"])
    assert [(row["step"], row["actor/loss"]) for row in rows if "actor/loss" in row] == LOSSES
    alerts = sorted(SQLiteStorage.get_alerts("mine", name), key=lambda one: one["step"])
    assert [(one["step"], one["text"]) for one in alerts] == [(4, SAID), (7, OVER), (9, SAID)]


def test_tensorboard(tmp_path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = interrupted(tmp_path / "run", monkeypatch, "trackers.tensorboard=true")
    curves = EventAccumulator(str(run / "tensorboard"), purge_orphaned_data=True).Reload()
    assert [(one.step, one.value) for one in curves.Scalars(REWARD)] == [
        (update, update / 4) for update in (0, 3, 6, 9)
    ]
    shown = EventAccumulator(str(run / "tensorboard" / "samples"), size_guidance={"images": 0, "audio": 0}).Reload()
    assert [(one.step, one.width, one.height) for one in shown.Images("val/samples/0")] == [(0, 24, 16), (3, 24, 16)]
    (sound,) = shown.Audio("val/samples/1")
    assert (sound.step, sound.sample_rate, sound.length_frames) == (6, 8000, 800)
    assert [one.step for one in shown.Tensors("alarms/dark_share/text_summary")] == [4, 7, 9]
    # indented, so that TensorBoard's Markdown shows what a model says as it is
    said = shown.Tensors("val/generations/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert "\n    **five** <b>0</b>" in said


@needs("clearml")
def test_clearml(tmp_path, monkeypatch):
    run = interrupted(tmp_path / "run", monkeypatch, "trackers.clearml.mode=offline", "trackers.clearml.project=mine")
    (folder,) = [path for path in (run / "trackers" / "clearml" / "offline").iterdir() if path.is_dir()]
    assert folder.with_suffix(".zip").is_file()  # what ClearML's import_offline_session takes
    assert json.loads((folder / "task.json").read_text())["project_name"] == "mine"
    events = [event for line in (folder / "metrics.jsonl").read_text().splitlines() for event in json.loads(line)]
    losses = [one for one in events if (one["metric"], one["variant"]) == ("actor", "loss")]
    assert [(one["iter"], one["value"]) for one in losses] == LOSSES
    assert [one["iter"] for one in events if one["metric"] == "val/generations"] == [0, 3, 6, 9]
    assert (folder / "log.jsonl").read_text().count("alarm dark_share is over") == 1
