"""What alarms do: options that they change, and the update from which on the run has them.

The actions of a run are a file in its folder. It says with which options a checkpoint goes on, so that a resumed run
does what an uninterrupted one does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from burnish.alarms.record import Alarm, Row, Update, amount, number
from burnish.config import RunConfig
from burnish.options import MOST, AlarmAction
from burnish.rewards.base import Hold, Schedule
from burnish.utils.disk import write_atomically, writing
from burnish.utils.errors import UserError
from burnish.utils.reading import read_file
from burnish.utils.records import RECORD, leads_out

if TYPE_CHECKING:
    from burnish.checkpoint.store import CheckpointStore

KL_FACTOR = 10.0  # by which raise_kl multiplies
LR_FACTOR = 0.5  # by which rewind does
REWINDS = 3  # of a run; the alarm after them ends it
BAND = 2.0  # standard deviations of the first samples: those beyond are held to the reference
PAUSED = Schedule(points=[(MOST - 1, 0.0), (MOST, 1.0)])  # validations count a reward as before
RECENT = 5  # updates over which the dominating reward is found


@dataclass(config=RECORD, frozen=True, kw_only=True)
class Action:
    """Something that an alarm did."""

    kind: AlarmAction
    alarm: str
    update: Update  # at which the alarm was raised
    to: Update  # after which the run goes on
    text: str  # a sentence: what was done
    reward: str = ""  # that is paused, or whose samples beyond a bound are held to the reference; "": all samples are
    below: float | None = None
    above: float | None = None


_ACTIONS = TypeAdapter(list[Action])


def read_actions(file: Path) -> list[Action]:
    """The actions of a run, in their order; none if there is no file.

    Raises:
        UserError: it is damaged.
    """
    if not file.is_file() or leads_out(file, file.parent.parent):
        return []
    try:
        return _ACTIONS.validate_json(read_file(file))
    except ValidationError:
        raise UserError(
            f"{file} is damaged: it says which options alarms have changed; give another output_dir, or remove it to "
            "go on with the options that are given"
        ) from None


def write_actions(file: Path, actions: Sequence[Action]) -> None:
    """Write the actions of a run, atomically."""
    with writing(file):
        file.parent.mkdir(exist_ok=True)
        write_atomically(file, _ACTIONS.dump_json(list(actions), indent=1))


def changed(config: RunConfig, actions: Sequence[Action]) -> RunConfig:
    """The configuration with the options that these actions have changed."""
    algorithm, rewards, optimizer, rollout = config.algorithm, dict(config.rewards), config.optimizer, config.rollout
    for one in actions:
        reward = rewards.get(one.reward)
        if one.kind == "rewind":
            optimizer = replace(optimizer, lr=optimizer.lr * LR_FACTOR)
        elif one.kind == "exact_sampling":
            rollout = replace(rollout, cache_interval=1, fp8=False)
        elif one.kind == "pause_reward" and reward is not None:
            rewards[one.reward] = replace(reward, schedule=PAUSED)
        elif one.kind == "raise_kl" and reward is not None:
            factor = KL_FACTOR * (reward.hold.factor if reward.hold else 1.0)
            rewards[one.reward] = replace(reward, hold=Hold(below=one.below, above=one.above, factor=factor))
        elif one.kind == "raise_kl" and not one.reward and algorithm.kl_option:
            section, _, name = algorithm.kl_option.rpartition(".")
            inner = vars(algorithm)[section] if section else algorithm
            raised = replace(inner, **{name: vars(inner)[name] * KL_FACTOR})
            algorithm = replace(algorithm, **{section: raised}) if section else raised
    return replace(config, algorithm=algorithm, rewards=rewards, optimizer=optimizer, rollout=rollout)


def decide(
    kind: AlarmAction, alarm: Alarm, update: int, config: RunConfig, before: Sequence[Action], rows: Sequence[Row],
    checkpoints: Path,
) -> Action:  # fmt: skip
    """What an alarm does.

    Args:
        kind: of action that the options name for it.
        alarm: that was raised.
        update: that is done.
        config: of the run, before any action.
        before: the actions so far.
        rows: metrics of the last updates, this one's last.
        checkpoints: folder of the run's checkpoints.
    """
    done: dict[str, Any] = {"kind": kind, "alarm": alarm.name, "update": update, "to": update}
    if kind == "pause_reward":
        return _pause(done, config, before, rows)
    if kind == "raise_kl":
        return _raise_kl(done, alarm, config, rows[-1])
    if kind == "rewind":
        return _rewind(done, alarm, config, before, checkpoints)
    if kind == "exact_sampling":
        return Action(**done, text="no denoising step is forecast any more, and none is in fp8")
    return Action(**done, text="the run stops; the same command goes on with it")


def _pause(done: dict[str, Any], config: RunConfig, before: Sequence[Action], rows: Sequence[Row]) -> Action:
    paused = {one.reward for one in before if one.kind == "pause_reward"}
    counting = [label for label, reward in config.rewards.items() if reward.counts and label not in paused]
    shares: dict[str, float] = {}
    for label in counting:
        known = [share for row in rows if (share := number(row, f"critic/{label}/reward_share")) is not None]
        shares |= {label: sum(known) / len(known)} if known else {}
    if len(counting) < 2 or not shares:
        return Action(**done, text="no reward is paused: another one has to be left, and differ among samples")
    label = max(shares, key=shares.__getitem__)
    text = f"{label}, which made {100 * shares[label]:.0f} % of the reward's differences, has weight 0 in training"
    return Action(**done, reward=label, text=text)


def _raise_kl(done: dict[str, Any], alarm: Alarm, config: RunConfig, row: Row) -> Action:
    label, now = alarm.metric.removeprefix("critic/").removesuffix("/mean"), number(row, alarm.metric)
    has_band = alarm.kind == "drift" and label in config.rewards and config.algorithm.gates_kl
    if not has_band or now is None or alarm.before is None or alarm.spread is None:
        text = f"algorithm.{config.algorithm.kl_option} is {KL_FACTOR:g} times as large"
        return Action(**done, text=text)
    side = "above" if now > alarm.before else "below"
    bound = alarm.before + (BAND if side == "above" else -BAND) * alarm.spread
    text = f"samples with {label} {side} {amount(bound)} are held to the reference {KL_FACTOR:g} times as strongly"
    return Action(**done | {"reward": label, side: bound}, text=text)


def _rewind(
    done: dict[str, Any], alarm: Alarm, config: RunConfig, before: Sequence[Action], checkpoints: Path
) -> Action:
    rewinds = sum(one.kind == "rewind" for one in before)
    # a regular one: others depend on when a run was stopped
    every, keep_last = config.checkpoint.every, config.checkpoint.keep_last
    to, oldest = (alarm.since - 1) // every * every, (done["update"] // every - keep_last + 1) * every
    if rewinds == REWINDS:
        return Action(**done | {"kind": "stop"}, text=f"the run stops: it was rewound {REWINDS} times already")
    if to < oldest or not (checkpoints / f"{to:08d}").is_dir():  # an older one may be removed at this moment
        text = f"the run stops: no checkpoint of update {to}, before the drift, is kept (checkpoint.keep_last)"
        return Action(**done | {"kind": "stop"}, text=text)
    lr = config.optimizer.lr * LR_FACTOR ** (rewinds + 1)
    text = f"the run goes back from update {done['update']} to {to} and on with optimizer.lr {lr:g}"
    return Action(**done | {"to": to}, text=text)


def at_checkpoint(actions: Sequence[Action], update: int) -> list[Action]:
    """Those that the checkpoint of an update goes on with."""
    return [one for one in actions if one.to <= update]


def carry_out(file: Path, store: CheckpointStore, before: Sequence[Action], decided: Sequence[Action]) -> None:
    """Write down what is decided, and remove the checkpoints of updates that a rewind takes back.

    These go first: a process that is killed in between comes to the same decision again.
    """
    to = min(one.to for one in decided)
    kept = [replace(one, to=min(one.to, to)) if one.kind == "rewind" else one for one in [*before, *decided]]
    store.rewind(max(one.update for one in decided), to)
    write_actions(file, at_checkpoint(kept, to))
