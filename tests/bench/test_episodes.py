"""The bench of episodes: its parts, and a small one of the whole."""

import importlib.util
from pathlib import Path

import pytest

from dora_rl.bench.episodes import scripted_launch
from dora_rl.bench.episodes.scripted_instance import read_arrivals
from dora_rl.bench.episodes.timed_reply import replied_at
from dora_rl.bench.episodes.turns_bench import measure_turns
from dora_rl.bench.episodes.waiting_bench import WaitingScope, bench_waiting
from dora_rl.model.characters import character_tokenizer
from dora_rl.model.tokenizer import save_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(character_tokenizer(), directory)
    return directory


@pytest.fixture(autouse=True)
def _few_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dora_rl.bench.episodes.turns_bench._PLAYED_TURNS", 1)


def test_eight_members_that_think_are_eight_rows_and_every_sampled_token_is_trained_on(
    tokenizer: Path,
) -> None:
    kept = measure_turns(tokenizer, 16, "keep")
    assert (kept.rows, kept.untrained_tokens, kept.changed_tokens) == (8, 0, 0)
    assert kept.sampled_tokens > 8 * 16 * 20


def test_thinking_that_is_stripped_makes_a_row_of_each_turn_and_loses_nothing(tokenizer: Path) -> None:
    stripped = measure_turns(tokenizer, 4, "strip")
    assert (stripped.rows, stripped.untrained_tokens, stripped.changed_tokens) == (8 * 4, 0, 0)


def test_a_reply_says_when_it_was_there() -> None:
    assert replied_at("Begin.") is None
    assert replied_at("replied at 12.250000<|end|>xx<|user|>replied at 13.500000<|end|>") == 13.5


def test_arrivals_that_were_written_in_part_are_left_out(tmp_path: Path) -> None:
    from struct import pack

    path = tmp_path / "arrivals"
    path.write_bytes(pack("<dd", 1.0, 2.0) + b"half")
    assert list(read_arrivals(path)) == [(1.0, 2.0)]


def test_every_worker_that_is_played_is_one_that_a_run_starts() -> None:
    for real, stand_in in scripted_launch._SCRIPTED.items():
        assert importlib.util.find_spec(real), f"no worker is called {real}"
        assert importlib.util.find_spec(stand_in)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_replies_are_timed_from_the_episode_to_the_instance(tmp_path: Path) -> None:
    # What waits is more than there is KV for, and replies come sooner than all KV is computed again by an
    # engine that has not said yet what prefill costs it.
    scope = WaitingScope(episodes=1600, replies_per_s=200.0, seconds=8.0)
    report = bench_waiting(scope, tmp_path, lambda text: None)
    assert report.waiting > 1400
    assert report.replies_per_s == pytest.approx(200.0, rel=0.2)
    assert report.started > 0
    assert report.queued < 40
    assert 0.0 < report.latency_p50_s < report.latency_p99_s <= report.latency_max_s
    assert report.latency_p99_s < 1.0, "nobody queues"
    assert report.is_small
