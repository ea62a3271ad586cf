"""Of a folder that somebody else wrote, trackers are sent nothing that lies outside."""

import json

from burnish.config.run_folder import RunFolder
from burnish.hooks.trackers import first_samples, sendable
from tests.support.tracked import validate


def test_samples_are_the_first_of_each_of_the_first_prompts_and_no_file_of_another_folder(tmp_path):
    folder = RunFolder(tmp_path)
    validate(folder, 9)
    place = folder.validation(9)
    records = [json.loads(text) for text in (place / "samples.jsonl").read_text().splitlines()]
    records = [records[0], records[0] | {"sample": 1, "response": "another"}, records[1] | {"images": ["../../x.png"]}]
    (tmp_path / "x.png").write_bytes(b"secret")
    (place / "samples.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    first, second = first_samples(place, 8)
    assert (first.response, [file.name for file in first.shown]) == ("**five** <b>0</b>", ["000-0.png"])
    assert sendable(second.shown) == []
