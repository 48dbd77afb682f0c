"""Whole runs of episodes: real processes, a tiny model, several turns, branches, deaths."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dora_rl.core.decisions import Close, Retire, Start
from dora_rl.core.history import History
from dora_rl.core.inputs import (
    Ended,
    EnvironmentFailed,
    EnvironmentReplied,
    EpisodeEnded,
    Published,
    Scored,
    TurnEnded,
)
from dora_rl.core.recipe import Control, Evaluation
from dora_rl.core.recipe.episodes import EpisodeSettings, RoleSettings
from dora_rl.core.recipe.generation import ResponseSettings, Sampling
from dora_rl.run.episodes.host import EpisodesFailed
from dora_rl.run.live_run import run_live
from dora_rl.run.open_run import replay_live
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import DeviceLayout, RunSetup
from dora_rl.store.journal import Journal
from dora_rl.store.journal_records import JournalledTrajectory

from ..envs.chat_server import serving
from .conftest import MakeSetup, staged
from .test_crashes import run, summary
from .verdict import check_journal
from .victim import Plan

PLAYING = Path(__file__).with_name("playing.py")


def playing(make_setup: MakeSetup, function: str = "play", **changes: Any) -> RunSetup:
    """A run of episodes, of a few seconds."""
    options = changes.pop("options", {})
    episode = EpisodeSettings(
        function=f"{PLAYING}:{function}", options=options, processes=1, max_turns=8, max_context_tokens=256
    )
    return make_setup(
        episode=episode,
        rewards=(),
        response=ResponseSettings(max_new_tokens=16, stop_strings=("a", "b", "c")),
        **changes,
    )


def check_episodes(root: Path) -> None:
    """Every policy token of a trained member is in one branch, of one version, and every turn is counted."""
    with Journal.open(LiveLayout(root=root).journal) as journal:
        batches = list(journal.batches_after(journal.oldest_start))
    members = [member for batch in batches for group in batch.groups for member in group.members]
    assert members
    for member in members:
        branches = member.every_branch
        assert len(branches) == 3, "the root, its fork and the sub-agent"
        assert sum(not branch.is_trained for branch in branches) == 1
        assert sum(len(branch.turns) for branch in branches) == 4
        for branch in branches:
            versions = {stretch.version for stretch in branch.response.stretches}
            assert versions <= {None, member.version}
            num_drawn = sum(branch.response.is_policy)
            assert len(branch.response.logprobs) == num_drawn > 0
        fork = next(branch for branch in branches if branch.number and branch.is_trained)
        root_tokens = (*member.prompt, *member.response.tokens)
        shared = 0
        while shared < len(root_tokens) and root_tokens[shared] == fork.response.tokens[shared]:
            shared += 1
        first_turn_end = member.response.stretches[-2].start if len(member.response.stretches) > 2 else 0
        assert shared >= len(member.prompt) + first_turn_end, "a fork shares what was said before it"


@pytest.mark.timeout(180)
def test_a_run_of_episodes_trains_its_steps_turn_by_turn(make_setup: MakeSetup) -> None:
    setup = playing(make_setup, evaluation=Evaluation(every=2, max_rows=3))
    done = run_live(setup, staged(setup))
    root = Path(setup.run_directory)
    assert done.is_complete
    assert done.trained_trajectories == 3 * 2 * 3
    check_journal(root)
    check_episodes(root)
    assert replay_live(root).difference is None
    told = Counter(type(each) for each, _ in History(root / "events.jsonl"))
    assert told[TurnEnded] >= 4 * told[EpisodeEnded] > 0
    assert told[EnvironmentReplied] >= 3 * told[EpisodeEnded]
    lines = [json.loads(line) for line in (root / "metrics.jsonl").read_text().splitlines()]
    evaluated = {line["step"]: line for line in lines if "eval/reward" in line}
    assert set(evaluated) == {0, 2, 3}
    assert all(line["eval/prompts"] == 3 for line in evaluated.values())
    rewards = [each.reward for each, _ in History(root / "events.jsonl") if isinstance(each, Scored)]
    assert len({reward for reward in rewards if reward is not None}) > 1


DEATHS: tuple[Plan, ...] = (
    [(40, "SIGKILL", "workers.episode_worker"), (80, "SIGKILL", "workers.episode_worker")],
    [(60, "SIGKILL", "workers.episode_worker"), (90, "SIGKILL", "workers.instance_worker")],
    [(70, "SIGKILL", "workers.trainer_main"), (100, "SIGKILL", "workers.episode_worker")],
)


def check_roles(root: Path) -> None:
    """Version 0 says every turn of a role, nothing of which is trained on, and it outlives its use."""
    events = [(each, decisions) for each, decisions in History(root / "events.jsonl")]
    starts = [
        d for _, decisions in events for d in decisions if isinstance(d, Start) and d.question is not None
    ]
    said = [each for each, _ in events if isinstance(each, Ended)]
    assert starts, "nobody was asked"
    assert {start.version for start in starts} == {0}
    assert {each.trajectory for each in said} <= {start.trajectory for start in starts}
    assert not [d for _, decisions in events for d in decisions if d == Retire(version=0)]
    with Journal.open(LiveLayout(root=root).journal) as journal:
        batches = list(journal.batches_after(journal.oldest_start))
        known = {summary.trajectory for summary in journal.summaries()}
    assert known.isdisjoint(start.trajectory for start in starts), "a role's turn is no trajectory"
    for member in (member for batch in batches for group in batch.groups for member in group.members):
        assert len(member.every_branch) == 1, "what the role says is no branch"
        values = [msgspec.msgpack.decode(once.value) for once in member.onces]
        assert len(values) == 2
        for value in values:
            assert 0 < len(value["tokens"]) <= 5
            assert value["message"]["role"] == "assistant"


def frozen(make_setup: MakeSetup, **changes: Any) -> RunSetup:
    return playing(
        make_setup,
        "served",
        roles={"user": RoleSettings(version="initial", max_tokens=5, sampling=Sampling(temperature=0.5))},
        **changes,
    )


@pytest.mark.timeout(180)
def test_the_initial_model_plays_a_role_beside_the_policy(make_setup: MakeSetup) -> None:
    setup = frozen(make_setup, evaluation=Evaluation(every=2, max_rows=2))
    done = run_live(setup, staged(setup))
    root = Path(setup.run_directory)
    assert done.is_complete
    assert done.trained_trajectories == 3 * 2 * 3
    check_journal(root)
    check_roles(root)
    assert replay_live(root).difference is None
    events = list(History(root / "events.jsonl"))
    published = next(number for number, (each, _) in enumerate(events) if isinstance(each, Published))
    late = [d for _, decisions in events[published:] for d in decisions if isinstance(d, Start)]
    assert any(start.question is not None for start in late), "version 0 speaks beside later ones"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_killed_run_goes_on_with_what_its_frozen_version_said(make_setup: MakeSetup) -> None:
    setup = frozen(make_setup)
    root = Path(setup.run_directory)
    for number, moment in enumerate((8, "RoleTurnAsked", "TurnEnded", 60, "RoleTurnAsked")):
        ended = run(setup, [(moment, "SIGKILL", "self")], is_first=number == 0)
        if ended.returncode == 0:
            break
        assert ended.returncode == -9, ended.stderr[-2000:]
    else:
        assert summary(run(setup, [], is_first=False))["is_complete"]
    check_journal(root)
    check_roles(root)
    assert replay_live(root).difference is None
    failed = [each for each, _ in History(root / "events.jsonl") if isinstance(each, EnvironmentFailed)]
    assert not failed, "what was asked again was drawn again"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "plan",
    [
        [(40, "SIGKILL", "workers.instance_worker"), (90, "SIGKILL", "workers.episode_worker")],
        [(60, "SIGKILL", "workers.trainer_main"), (90, "SIGKILL", "workers.instance_worker")],
    ],
)
def test_roles_of_a_frozen_version_go_on_whoever_dies(make_setup: MakeSetup, plan: Plan) -> None:
    setup = frozen(make_setup, layout=DeviceLayout(instances=2))
    assert summary(run(setup, plan))["is_complete"]
    root = Path(setup.run_directory)
    check_journal(root)
    check_roles(root)
    assert replay_live(root).difference is None


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("plan", DEATHS)
def test_whoever_dies_episodes_go_on_where_they_were(make_setup: MakeSetup, plan: Plan) -> None:
    setup = playing(make_setup, layout=DeviceLayout(instances=2))
    ended = summary(run(setup, plan))
    assert ended["is_complete"]
    root = Path(setup.run_directory)
    check_journal(root)
    check_episodes(root)
    assert replay_live(root).difference is None


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_killed_run_goes_on_from_snapshots(make_setup: MakeSetup, tmp_path: Path) -> None:
    effects = tmp_path / "effects"
    effects.touch()
    setup = playing(make_setup, "saved", options={"effects": str(effects)})
    root = Path(setup.run_directory)
    dies: Plan = [(40, "SIGKILL", "workers.episode_worker"), (70, "SIGKILL", "self")]
    assert run(setup, dies).returncode == -9
    for moment in ("TurnEnded", "EnvironmentReplied"):
        assert run(setup, [(moment, "SIGKILL", "self")], is_first=False).returncode == -9
    summary(run(setup, [(50, "SIGKILL", "workers.episode_worker")], is_first=False))
    check_journal(root)
    assert replay_live(root).difference is None
    assert effects.read_text().count("restored") >= 4
    with Journal.open(LiveLayout(root=root).journal) as journal:
        batches = list(journal.batches_after(journal.oldest_start))
    for member in (each for batch in batches for group in batch.groups for each in group.members):
        # Rewards of turns before a snapshot are kept, whoever died since.
        assert [turn.reward for turn in member.turns] == [0.125 * num for num in _turn_lengths(member)]


def _turn_lengths(member: JournalledTrajectory) -> list[int]:
    stretches = member.response.stretches
    ends = [*(each.start for each in stretches[1:]), len(member.response.tokens)]
    return [end - each.start for each, end in zip(stretches, ends, strict=True) if each.version is not None]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_run_of_episodes_that_is_killed_goes_on_with_the_turns_it_had(
    make_setup: MakeSetup, tmp_path: Path
) -> None:
    effects = tmp_path / "effects"
    setup = playing(make_setup, options={"effects": str(effects)}, evaluation=Evaluation(every=2, max_rows=3))
    root = Path(setup.run_directory)
    for number, moment in enumerate((20, "TurnEnded", "EnvironmentReplied", 60, "Opened", 90)):
        ended = run(setup, [(moment, "SIGKILL", "self")], is_first=number == 0)
        if ended.returncode == 0:
            break
        assert ended.returncode == -9, ended.stderr[-2000:]
    else:
        summary(run(setup, [], is_first=False))
    check_journal(root)
    check_episodes(root)
    assert replay_live(root).difference is None
    keys = Counter(effects.read_text().split())
    # At least once, and again only where a kill came before its value was durable.
    assert sum(count - 1 for count in keys.values()) <= 6 * 2 * 3


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_what_a_role_said_outlives_the_run(make_setup: MakeSetup) -> None:
    with serving() as endpoint:
        # Each answer is another one: who is asked again would say something else.
        endpoint.answers = [(200, f"answer {number}") for number in range(1000)]
        roles = {"user": RoleSettings(url=endpoint.url, model="user-1")}
        setup = playing(make_setup, "served", roles=roles)
        root = Path(setup.run_directory)
        for number, moment in enumerate(("Opened", "TurnEnded", 60)):
            ended = run(setup, [(moment, "SIGKILL", "self")], is_first=number == 0)
            if ended.returncode == 0:
                break
            assert ended.returncode == -9, ended.stderr[-2000:]
        else:
            assert summary(run(setup, [], is_first=False))["is_complete"]
        asked = [json.dumps(each["messages"]) for each in endpoint.asked]
    check_journal(root)
    assert replay_live(root).difference is None
    events = [each for each, _ in History(root / "events.jsonl")]
    failed = [each.reason for each in events if isinstance(each, EnvironmentFailed)]
    assert len(failed) <= 3, f"{failed}: what was known was not asked again"
    with Journal.open(LiveLayout(root=root).journal) as journal:
        batches = list(journal.batches_after(journal.oldest_start))
    members = [member for batch in batches for group in batch.groups for member in group.members]
    assert members
    for member in members:
        assert [branch.number for branch in member.every_branch] == [0], "a role is no branch to train on"
        assert len(member.turns) == 2
    assert len(asked) >= 2 * len(members)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_redundant_members_and_groups_are_ended_counted_and_their_environments_closed(
    make_setup: MakeSetup, tmp_path: Path
) -> None:
    closed = tmp_path / "closed"
    control = Control(
        schedule="async_ratio", max_staleness=1, redundant_groups=1, redundant_members=1, silence_s=20.0
    )
    setup = playing(make_setup, "straggles", options={"closed": str(closed)}, control=control)
    done = run_live(setup, staged(setup))
    root = Path(setup.run_directory)
    assert done.is_complete
    assert done.trained_trajectories == 3 * 2 * 2, "two of the three members of each group"
    check_journal(root)
    assert replay_live(root).difference is None
    outcomes: Counter[str] = Counter()
    for _, decisions in History(root / "events.jsonl"):
        for close in decisions:
            if isinstance(close, Close):
                outcomes[close.outcome] += len(close.members)
    assert outcomes["aborted: redundant"] >= 3, "a group that would play for ever holds nobody up"
    assert outcomes["aborted: redundant member"] >= 3 * 2
    told = [each for each, _ in History(root / "events.jsonl")]
    assert not any(isinstance(each, EpisodeEnded) and each.truncated for each in told), "none was waited for"
    noted = [line.split(maxsplit=1) for line in closed.read_text().splitlines()]
    opened, ended = ({which for word, which in noted if word == kind} for kind in ("opened", "closed"))
    assert opened == ended, "whoever played on was closed, the last ones with the run"
    assert {"0 1 0", "0 1 1", "0 1 2"} < opened


@pytest.mark.timeout(180)
def test_a_run_whose_environments_all_fail_ends_with_the_reason(make_setup: MakeSetup) -> None:
    setup = playing(make_setup, "fails", control=msgspec.structs.replace(Control(), max_staleness=1))
    with pytest.raises(EpisodesFailed, match=r"in a row, the last one: raised: KeyError: 'door'") as ended:
        run_live(setup, staged(setup))
    log = Path(setup.run_directory) / "logs/environments.log"
    assert str(log) in (ended.value.hint or "")
    assert "Traceback" in log.read_text()
