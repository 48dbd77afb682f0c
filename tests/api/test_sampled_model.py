"""A model is tried out by the engine and the rewards that a run has."""

import json
from pathlib import Path

import pytest

from dora_rl import evaluate, generate
from dora_rl.api.sampled_model import _has_chat_template, _listed, located
from dora_rl.core.errors import UserError
from dora_rl.model.tiny import save_tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    save_tiny(directory)
    return directory


def test_one_prompt_may_stand_by_itself_as_text_or_as_messages() -> None:
    chat = [{"role": "user", "content": "hi"}]
    assert _listed("hi") == ["hi"]
    assert _listed(chat) == [chat]
    assert _listed([chat, "hi"]) == [chat, "hi"]
    with pytest.raises(UserError, match="no prompt"):
        generate("tiny", [])


def test_a_run_stands_for_its_newest_checkpoint_and_a_checkpoint_knows_its_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    newest = run / "checkpoints/step_00010"
    newest.mkdir(parents=True)
    (run / "checkpoints/step_00002").mkdir()
    for path in (run / "setup.json", newest / "config.json"):
        path.write_text("{}")
    assert located(run) == (str(newest), run)
    assert located(newest) == (str(newest), run)
    assert located(tmp_path) == (str(tmp_path), None)
    assert located("tiny") == ("tiny", None)


def test_a_chat_template_is_found_in_the_models_directory(model: Path, tmp_path: Path) -> None:
    assert _has_chat_template(str(model))
    assert not _has_chat_template(str(tmp_path))


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_samples_are_compared_counted_and_written_down(model: Path, tmp_path: Path) -> None:
    def longest(completions, log_extra, **columns):
        most = max(map(len, completions))
        log_extra("length", [len(text) for text in completions])
        return [float(len(completions) == 3 and len(text) == most) for text in completions]

    rows = [{"prompt": letter} for letter in "abcd"]
    trainer = {"serving_dtype": "float32"}
    found = evaluate(
        str(model), data=rows, rewards=[longest], samples=3, max_new_tokens=12, seed=3, trainer=trainer
    )
    assert not found.figures.is_held_out, "they are all the rows there are"
    assert (found.figures.num_rows, found.figures.num_samples, found.figures.num_failed) == (4, 3, 0)
    assert found.figures.pass_rates["pass@3"] == 1.0, "in every row one is the longest"
    assert 0 < found.figures.reward <= 1
    assert [row.prompt for row in found.rows] == list("abcd")
    assert len({sample.text for row in found.rows for sample in row.samples}) > 4, "each is drawn apart"
    found.write(tmp_path / "out.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [len(line["samples"]) for line in lines] == [3] * 4
    assert lines[0]["samples"][0]["extras"] == {"length": len(lines[0]["samples"][0]["text"])}

    # The same draws without rewards.
    (row,) = generate(
        str(model), "a", samples=3, max_new_tokens=12, seed=3, trainer=trainer, wrap_in_chat=False
    )
    assert [each.text for each in row.samples] == [each.text for each in found.rows[0].samples]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_episodes_are_played_as_in_training(model: Path) -> None:
    async def thrice(chat, row):
        if row.prompt == "b":
            raise KeyError("no such game")
        turns = [await chat.turn(word, max_tokens=4) for word in (row.prompt, "more")]
        turns.append(await chat.fork().turn("and a fork", max_tokens=4))
        chat.log_metric("words", sum(len(turn.text) for turn in turns))
        return float(len(turns))

    found = evaluate(
        str(model), data=[{"prompt": letter} for letter in "abc"], episode=thrice, samples=2, max_new_tokens=8
    )
    assert (found.figures.reward, found.figures.num_failed) == (3.0, 2)
    assert found.figures.mean_turns == 2.0, "three of each that was played, none of those that failed"
    assert "words" in found.figures.rewards
    first, failed = found.rows[0].samples, found.rows[1].samples
    assert [each.num_turns for each in first] == [3, 3]
    assert first[0].text != first[1].text, "samples are drawn apart"
    assert "more" in first[0].text
    assert "and a fork" in first[0].text
    assert failed[0].failures[0].summary == "raised: KeyError: 'no such game'"
    assert len(generate(str(model), "a", max_new_tokens=4)[0].samples) == 1
