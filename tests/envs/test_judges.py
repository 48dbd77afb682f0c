"""A reward model and a judge behind an endpoint, as rewards."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dora_rl.core.errors import UserError
from dora_rl.core.recipe.data import RewardConfig
from dora_rl.envs.scoring.functions import load_function
from dora_rl.envs.scoring.reward_messages import Item, ScoreResult
from dora_rl.envs.scoring.reward_scorer import Scorer
from dora_rl.model.tokenizer import load_tokenizer

from .chat_server import CUT, Endpoint
from .scored import USER, asked, item


def scored(reward: RewardConfig, *items: Item) -> ScoreResult:
    scorer = Scorer([load_function(reward).ready()], time_limit_s=20.0, began=lambda *_: None)
    scores = scorer.call_plain(asked(0, *items, per=reward.called_per))
    asyncio.run(scorer.call_async(scores))
    return scores.result()


def values(result: ScoreResult) -> tuple[float | None, ...]:
    assert not result.failures, result.failures[0].detail
    return result.scores[0].values


# --- a class as a reward ------------------------------------------------------------------------


def test_a_class_is_made_once_with_its_options_and_called_like_a_function() -> None:
    reward = RewardConfig(function=f"{USER}:Longer", options={"than": 2})
    assert values(scored(reward, item("abc"), item("a"))) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "needs the option 'than'"),
        ({"tahn": 2}, "has no option 'tahn'"),
        ({"than": None}, "cannot be made: TypeError"),
    ],
)
def test_wrong_options_of_a_class_are_a_sentence(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        load_function(RewardConfig(function=f"{USER}:Longer", options=options)).ready()


# --- a reward model -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sequence classifier with one value, so small that it takes no time."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from dora_rl.model.tiny import save_tiny

    base, directory = tmp_path_factory.mktemp("base"), tmp_path_factory.mktemp("classifier")
    save_tiny(base)
    tokenizer = load_tokenizer(base)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer) + 8,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_labels=1,
        pad_token_id=tokenizer.eos_token_id,
    )
    transformers.LlamaForSequenceClassification(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def test_a_reward_model_reads_prompt_and_completion_in_batches(classifier: Path) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    texts = ["abc", "d", "efghi"]
    reward = RewardConfig(function="reward_model", options={"model": str(classifier), "batch_size": 2})
    assert reward.called_per == "group"
    found = values(scored(reward, *(item(text, prompt="x:") for text in texts)))

    tokenizer = AutoTokenizer.from_pretrained(classifier)
    model = AutoModelForSequenceClassification.from_pretrained(classifier).eval()
    with torch.inference_mode():
        alone = [model(**tokenizer([f"x:{text}"], return_tensors="pt")).logits.item() for text in texts]
    assert found == pytest.approx(alone, abs=1e-5)
    assert len(set(found)) == 3


def test_messages_are_read_by_the_classifiers_own_template(classifier: Path) -> None:
    reward = RewardConfig(function="reward_model", options={"model": str(classifier)})
    chat = [{"role": "user", "content": "hi"}]
    (value,) = values(scored(reward, item("there", prompt=chat)))
    messages = [*chat, {"role": "assistant", "content": "there"}]
    tokenizer = load_tokenizer(classifier)
    assert tokenizer.chat_template is not None
    (plain,) = values(
        scored(reward, item(tokenizer.apply_chat_template(messages, tokenize=False), prompt=""))
    )
    assert value == pytest.approx(plain, abs=1e-5)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"model": "/no/where"}, "'/no/where' cannot be loaded on cpu"), ({"label": 3}, "has no label 3")],
)
def test_a_reward_model_that_cannot_be_is_a_sentence(
    classifier: Path, options: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match=words):
        load_function(
            RewardConfig(function="reward_model", options={"model": str(classifier), **options})
        ).ready()


# --- a judge ------------------------------------------------------------------------------------


def judge(endpoint: Endpoint, **options: Any) -> RewardConfig:
    chosen = {"base_url": endpoint.url, "model": "judge-1", "pause_s": 0.01, **options}
    return RewardConfig(function="openai_judge", options=chosen)


def test_a_judge_is_asked_about_each_completion_and_its_score_is_parsed(endpoint: Endpoint) -> None:
    reward = judge(endpoint, prompt="{prompt}|{completion}|{answer}|{other}", highest=10.0)
    result = scored(reward, item("{prompt} 5", prompt="2+3?", answer="five"))
    assert values(result) == (0.7,)
    (body,) = endpoint.asked
    assert body["messages"] == [{"role": "user", "content": "2+3?|{prompt} 5|five|{other}"}]
    assert (body["model"], body["temperature"]) == ("judge-1", 0.0)
    assert [(column.name, column.values) for column in result.extras] == [("judge", ("fine.\nScore: 7",))]
    assert reward.called_per == "trajectory"


def test_a_busy_judge_is_asked_again_and_one_that_refuses_is_not(endpoint: Endpoint) -> None:
    endpoint.answers = [(429, "slow down"), (503, "busy"), (200, "Score: 10")]
    assert values(scored(judge(endpoint), item("x"))) == (1.0,)
    assert len(endpoint.asked) == 3
    endpoint.answers = [(401, "no such key")]
    (failure,) = scored(judge(endpoint), item("x")).failures
    assert "answered 401: no such key" in failure.detail
    assert len(endpoint.asked) == 4
    endpoint.answers = [(500, "broken")] * 9
    (failure,) = scored(judge(endpoint, retries=2), item("x")).failures
    assert "answered 500: broken, 3 times" in failure.detail
    assert len(endpoint.asked) == 7


@pytest.mark.parametrize(("said", "words"), [("good", "no score by"), ("Score: 11", "not within 0 to 10")])
def test_what_is_no_score_is_a_failure_with_the_judges_words(
    endpoint: Endpoint, said: str, words: str
) -> None:
    endpoint.answers = [(200, said)]
    (failure,) = scored(judge(endpoint), item("x")).failures
    assert words in failure.detail


def test_a_judge_whose_answer_breaks_off_is_asked_again(endpoint: Endpoint) -> None:
    endpoint.answers = [(CUT, '{"choices"')]
    assert values(scored(judge(endpoint, pause_s=0.01), item("x"))) == (0.7,)
    assert len(endpoint.asked) == 2


def test_a_judge_that_is_not_there_is_a_failure() -> None:
    options = {"base_url": "http://127.0.0.1:9/v1", "model": "m", "retries": 1, "pause_s": 0.01}
    (failure,) = scored(RewardConfig(function="openai_judge", options=options), item("x")).failures
    assert "cannot be asked" in failure.detail


def test_the_key_comes_from_the_environment_by_name(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    scored(judge(endpoint), item("x"))
    monkeypatch.setenv("MY_KEY", "s3cret")
    scored(judge(endpoint, key_env="MY_KEY"), item("x"))
    assert endpoint.keys == [None, "Bearer s3cret"]
    with pytest.raises(UserError, match="environment variable NO_KEY, which is not set"):
        load_function(judge(endpoint, key_env="NO_KEY")).ready()
    with pytest.raises(UserError, match="no option 'api_key'"):
        load_function(judge(endpoint, api_key="s3cret"))
