"""Runs struck at random: their journals are judged by SQL, their leftovers counted."""

import os
import sqlite3
import time
from pathlib import Path

import msgspec
import pytest

from .campaign import MINUTES, SEED
from .fault_campaign import AGENTS, EPISODES, SCRIPTED, FaultCampaign, StruckKind
from .sql_verdict import violations

NUM_SIGNALS = int(os.environ.get("FAULT_SIGNALS", "1000"))
NUM_KILLS = int(os.environ.get("FAULT_EPISODE_KILLS", "100"))


@pytest.mark.slow
@pytest.mark.timeout(400 + 60 * MINUTES)
def test_runs_that_are_struck_again_and_again_keep_the_laws(tmp_path: Path) -> None:
    until = time.monotonic() + 60 * MINUTES
    campaign = FaultCampaign(tmp_path, seed=SEED, num_signals=NUM_SIGNALS, until=until)
    campaign.run()
    print(campaign.tally)
    assert not campaign.tally.wrong, "\n".join(campaign.tally.wrong)


@pytest.mark.slow
@pytest.mark.timeout(400 + 60 * MINUTES)
@pytest.mark.parametrize("kind", [EPISODES, AGENTS, SCRIPTED], ids=["native", "agents", "scripted"])
def test_episodes_whose_processes_are_killed_in_the_middle_keep_the_laws(
    tmp_path: Path, kind: StruckKind
) -> None:
    if kind is AGENTS:
        pytest.importorskip("aiohttp")
    until = time.monotonic() + 60 * MINUTES
    campaign = FaultCampaign(tmp_path, seed=SEED, num_signals=NUM_KILLS, until=until, kind=kind)
    campaign.run()
    print(campaign.tally)
    assert not campaign.tally.wrong, "\n".join(campaign.tally.wrong)


# --- the verdict can fail ---

RECIPE = {"steps": 1, "batch": {"groups": 2, "group_size": 1}, "control": {"max_staleness": 1}}


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A run of one step, of two groups of one member, as its journal has it."""
    path, packed = tmp_path / "journal.sqlite", msgspec.msgpack.encode
    admits = [{"decision": "Admit", "group": group} for group in (0, 1)]
    events = [
        ({"input": "Tick"}, admits),
        ({"input": "Tick"}, [{"decision": "Take", "batch": 0, "groups": [0, 1]}]),
        ({"input": "Published", "version": 1}, []),
    ]
    with sqlite3.connect(path) as db:
        db.executescript(
            "CREATE TABLE settings (name, value); CREATE TABLE events (seq, input, decisions);"
            "CREATE TABLE groups (id, version, epoch, row, is_evaluation, batch);"
            "CREATE TABLE trajectories (id, group_id, member, version, attempt, state, num_tokens, outcome);"
            "CREATE TABLE responses (trajectory, stretches, tokens, logprobs);"
            "CREATE TABLE batches (number, groups, is_published); CREATE TABLE metrics (version);"
            "INSERT INTO groups VALUES (0, 0, 0, 0, 0, 0), (1, 0, 0, 1, 0, 0);"
            "INSERT INTO trajectories VALUES"
            " (0, 0, 0, 0, 0, 'scored', 1, NULL), (1, 1, 0, 0, 0, 'scored', 1, NULL);"
            "INSERT INTO metrics VALUES (1);"
        )
        db.execute("INSERT INTO settings VALUES ('recipe', ?)", (packed(RECIPE),))
        for seq, (told, decided) in enumerate(events):
            db.execute("INSERT INTO events VALUES (?, ?, ?)", (seq, packed(told), packed(decided)))
        db.execute("INSERT INTO batches VALUES (0, ?, 1)", (packed([0, 1]),))
        for key in (0, 1):
            row = (key, packed([(0, 0)]), b"1234", b"1234")
            db.execute("INSERT INTO responses VALUES (?, ?, ?, ?)", row)
    db.close()
    return path


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("SELECT 1", None),
        ("UPDATE groups SET batch = NULL WHERE id = 1", "group 1 of batch 0 is marked as of None"),
        ("UPDATE groups SET version = -2 WHERE id = 1", "group 1 of version -2 is in batch 0"),
        ("UPDATE groups SET row = 0", "row 0 was admitted 2 times"),
        (
            "UPDATE trajectories SET state = 'running' WHERE id = 0",
            "group 0 was taken with 1 members, 0.0 scored",
        ),
        ("UPDATE trajectories SET version = 1 WHERE id = 0", "trajectory 0 of version 1 is in a group of 0"),
        ("UPDATE trajectories SET num_tokens = 2 WHERE id = 0", "trajectory 0 has 4 bytes of 2 tokens"),
        ("DELETE FROM groups WHERE id = 0", "groups [0] were admitted and are missing"),
        ("INSERT INTO groups VALUES (2, 0, 0, 2, 0, NULL)", "1 groups that were admitted are in no batch"),
        ("UPDATE batches SET groups = x'9100'", "batch 0 has 1 groups"),
        ("UPDATE batches SET groups = x'920000'", "group 0 is in 2 batches"),
        ("UPDATE batches SET is_published = 0", "1 batches were not published"),
        (
            "INSERT INTO events SELECT 3, input, decisions FROM events WHERE seq = 1",
            "batch 0 was taken twice",
        ),
        ("INSERT INTO events SELECT 3, input, decisions FROM events WHERE seq = 2", "in the order [1, 1]"),
        ("DELETE FROM events WHERE seq = 2", "0 versions of 1 were published"),
        ("DELETE FROM metrics", "metrics are of the steps []"),
    ],
)
def test_the_verdict_by_sql_can_fail(journal: Path, statement: str, said: str | None) -> None:
    with sqlite3.connect(journal) as db:
        db.execute(statement)
    db.close()
    found = violations(journal)
    assert any(said in each for each in found) if said else not found, found
