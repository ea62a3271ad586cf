"""An option of the command line that a run never reads is refused, whatever section it is of."""

from __future__ import annotations

import pytest

from burnish.config.load import load
from burnish.utils.errors import ConfigError

NEVER = ["validation.every=null", "validation.before=false"]
JUDGES = ["algorithm=bradley_terry"]
PAIRS = ["algorithm=diffusion_dpo", "algorithm.online=false", "data.train_files=pairs.jsonl"]
GREEDY = ["validation.temperature=0"]
CHOSEN = ["data.sampler=mine.py:choose"]

# recipe, what it is read in, the option, what is said
CASES = [
    ("vlm_quickstart", NEVER, "validation.n=2", "nothing is validated"),
    ("vlm_quickstart", NEVER, "validation.top_k=2", "nothing is validated"),
    ("vlm_quickstart", NEVER, "checkpoint.keep_best=false", "nothing is validated"),
    ("vlm_quickstart", [*NEVER, "trackers.tensorboard=true"], "trackers.samples=2", "nothing is validated"),
    ("quickstart", [*NEVER, "validation.reference_guidance=null"], "validation.height=32", "nothing is validated"),
    ("vlm_quickstart", GREEDY, "validation.top_p=0.5", "always takes the likeliest token"),
    ("vlm_quickstart", GREEDY, "validation.n=4", "they would all be the same"),
    ("vlm_quickstart", JUDGES, "scoring.max_failures=3", "bradley_terry samples nothing"),
    ("vlm_quickstart", JUDGES, "mixing.rule=product", "bradley_terry samples nothing"),
    ("quickstart", ["trainer.mini_batch_size=null"], "trainer.shuffle=false", "all samples of an update are one"),
    ("quickstart", [], "scoring.merge=true", "no reward here has weights of its own"),
    ("quickstart", PAIRS, "rollout.trajectories=host", "learns from pairs that are given"),
    ("quickstart", CHOSEN, "data.shuffle=false", "data.sampler chooses the records"),
    ("quickstart", [], "alarms.limits={entropy_growth: 2}", "no alarm of this run is called"),
    ("vlm_quickstart", [], "alarms.limits={velocity: 2}", "no alarm of this run is called"),
    ("quickstart", [], "alarms.off=[response_length]", "no alarm of this run is called"),
]  # fmt: skip


@pytest.mark.parametrize(("recipe", "beside", "option", "said"), CASES)
def test_it_is_refused(recipe, beside, option, said):
    load(recipe, beside)
    with pytest.raises(ConfigError, match=said) as caught:
        load(recipe, [*beside, option])
    assert option.split("=")[0] in str(caught.value)


@pytest.mark.parametrize(("recipe", "options"), [
    ("vlm_quickstart", ["validation.every=null", "validation.n=2"]),  # before training
    ("quickstart", [*NEVER, "validation.n=2"]),  # the untrained model, with guidance
    ("vlm_quickstart", ["validation.temperature=0", "validation.n=1"]),
    ("vlm_quickstart", ["algorithm=bradley_terry", "validation.max_prompts=4"]),
    ("quickstart", ["scoring.merge=true", "rewards.clip.weight=0.1"]),
    ("quickstart", [*CHOSEN, "data.shuffle=false", "data.train_max_samples=4"]),  # the first ones
    ("quickstart", ["trainer.shuffle=false", "trainer.mini_batch_size=48"]),
    ("quickstart", ["alarms.limits={velocity: 2, kl: 1}", "alarms.off=[narrowing, ocr]"]),
])  # fmt: skip
def test_what_is_read_is_accepted(recipe, options):
    load(recipe, options)
