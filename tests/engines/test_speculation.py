"""Guesses follow what followed before, are as deep as they come true, and are not made where they do not."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dora_rl.engines.native.scheduling import speculation
from dora_rl.engines.native.scheduling.sequence import Sequence
from dora_rl.engines.native.scheduling.speculation import Speculation
from dora_rl.engines.native.scheduling.text_index import TextIndex
from dora_rl.engines.requests import Request, Stopping, StreamKey


def found(index: TextIndex, number: int, most: int) -> tuple[int, tuple[int, ...]] | None:
    index.note(10_000)
    match = index.match(number, most)
    return None if match is None else (match.length, match.following)


def test_the_longest_match_is_followed() -> None:
    index = TextIndex()
    index.add([1, 2, 3, 4, 5, 60, 61], num_prompt=1)
    index.add([1, 9, 3, 4, 5, 70, 71], num_prompt=1)
    own = [1, 2, 3, 4, 5]
    number = index.add(own, num_prompt=1)
    assert found(index, number, 2) == (5, (60, 61))
    own[1] = 8
    assert found(index, number, 1) == (3, (70,)), "of equal matches the latest"
    own.append(6)
    assert found(index, number, 2) is None


def test_a_prompt_is_searched_too() -> None:
    index = TextIndex()
    number = index.add([7, 8, 9, 10, 11, 5, 7, 8, 9], num_prompt=5)
    assert found(index, number, 2) == (3, (10, 11))


def test_a_text_that_repeats_itself_is_taken_to_go_on() -> None:
    index = TextIndex()
    number = index.add([1, 5, 6, 5, 6, 5, 6], num_prompt=1)
    assert found(index, number, 5) == (4, (5, 6, 5, 6, 5))
    other = index.add([2, 5, 6, 5, 6], num_prompt=1)
    index.end(number)
    assert found(index, other, 9) is not None


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=30), min_size=1, max_size=4), st.data())
def test_what_follows_a_match_followed_it_somewhere(texts: list[list[int]], data: st.DataObject) -> None:
    """Whatever grows when, and however little is noted at a time."""
    index, grown = TextIndex(), [list[int]([0]) for _ in texts]
    numbers = [index.add(tokens, num_prompt=1) for tokens in grown]
    left = {place: list(text) for place, text in enumerate(texts)}
    while any(left.values()):
        place = data.draw(st.sampled_from([each for each, text in left.items() if text]))
        grown[place].append(left[place].pop(0))
        index.note(data.draw(st.integers(0, 3)))
        match = index.match(numbers[place], most=1)
        if match is not None:
            run = (*grown[place][-match.length :], *match.following)
            size = len(run)
            assert any(
                tuple(text[first : first + size]) == run for text in grown for first in range(len(text))
            )


def sequence(number: int, prompt: tuple[int, ...] = (1, 2, 3)) -> Sequence:
    key, stopping = StreamKey(seed=1, row=number), Stopping(max_new_tokens=10)
    request = Request(id=number, version=0, prompt=prompt, key=key, stopping=stopping)
    return Sequence(
        request=request, priority=(0, number), serial=number, tokens=[*prompt], max_tokens=10**6, turn_start=3
    )


def played(texts: list[list[int]], most: int = 8) -> tuple[int, int, int]:
    """Verifications, guesses and right guesses while one text after the other is drawn."""
    guessing, num_verified = Speculation(most), 0
    for number, text in enumerate(texts):
        own, left = sequence(number), list(text)
        guessing.begin(own)
        while left:
            made = guessing.guesses([own], room=60)
            guesses = made[0] if made else ()
            num_right = 0
            while num_right < min(len(guesses), len(left) - 1) and guesses[num_right] == left[num_right]:
                num_right += 1
            own.tokens += left[: num_right + 1]
            own.num_tokens = len(own.tokens)
            del left[: num_right + 1]
            if guesses:
                num_verified += 1
                guessing.learn(own, len(guesses), num_right)
        guessing.end(own)
    return num_verified, guessing.num_guessed, guessing.num_right


def test_a_text_drawn_before_is_guessed_as_deep_as_allowed() -> None:
    text = random.Random(1).choices(range(1000), k=400)
    num_verified, _, num_right = played([text, text])
    assert num_right > 330
    assert num_verified < 70, "about eight at a time"


def test_text_that_does_not_repeat_is_hardly_guessed_at() -> None:
    draw = random.Random(2)
    num_verified, num_guessed, _ = played([draw.choices(range(10), k=2000)])
    assert num_verified < 0.05 * 2000, "most runs of three came before, and say nothing"
    assert num_guessed < 0.1 * 2000


def test_tokens_being_drawn_are_guessed_over() -> None:
    guessing = Speculation(4)
    first, second = sequence(1), sequence(2)
    for own in (first, second):
        guessing.begin(own)
    first.tokens += [10, 11, 12, 13, 14, 15, 16]
    second.tokens += [10, 11, 12]
    second.num_tokens = len(second.tokens)
    for _ in range(20):
        guessing.guesses([second], room=60)
        guessing.learn(second, 4, 4)
    assert guessing.guesses([second], room=60) == [(13, 14, 15, 16)]
    second.num_tokens += 1
    assert guessing.guesses([second], room=60) == [(14, 15, 16)]


def test_texts_are_kept_for_the_next_epoch_while_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculation, "_KEPT_TOKENS", 40)
    guessing = Speculation(4)

    def ended(number: int, prompt: tuple[int, ...]) -> None:
        own = sequence(number, prompt)
        guessing.begin(own)
        own.tokens += range(20, 32)
        guessing.end(own)

    def is_known(prompt: tuple[int, ...]) -> bool:
        own = sequence(99, prompt)
        guessing.begin(own)
        own.tokens += (20, 21, 22)
        own.num_tokens = len(own.tokens)
        made = guessing.guesses([own], room=60)
        guessing.end(own)
        return bool(made and made[0])

    ended(1, (1, 2, 3))
    assert is_known((1, 2, 3))
    for number in range(2, 5):
        ended(number, (number,) * 3)
    assert not is_known((1, 2, 3))
