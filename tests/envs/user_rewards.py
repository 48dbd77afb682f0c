"""Reward functions as users write them, good and bad."""

import asyncio
import os
import signal
import sys
import time

SEEN = []


def slow(completions, **kwargs):
    time.sleep(0.05)
    return [1.0 for _ in completions]


def length(completions, **kwargs):
    return [float(len(c)) for c in completions]


def half(completions, **kwargs):
    return [0.5 for _ in completions]


def nothing(completions, **kwargs):
    return [None for _ in completions]


def by_answer(prompts, completions, completion_ids, answer, log_metric, **kwargs):
    """Every keyword TRL promises, in lists of one length."""
    assert len(prompts) == len(completions) == len(completion_ids) == len(answer)
    assert set(kwargs) == {"extra", "trainer_state", "log_extra"}, kwargs
    log_metric("num_ids", len(completion_ids[0]))
    return [float(c == a) for c, a in zip(completions, answer, strict=True)]


def strict(completions, answer):
    """Without **kwargs: gets what it names."""
    return [float(c == a) for c, a in zip(completions, answer, strict=True)]


def chat(prompts, completions, **kwargs):
    assert isinstance(prompts[0], list), prompts
    return [float(len(c[0]["content"])) if c[0]["role"] == "assistant" else None for c in completions]


def rank(completions, **kwargs):
    """Needs the whole group: how many members are shorter."""
    return [float(sum(len(d) < len(c) for d in completions)) for c in completions]


def loud(completions, **kwargs):
    raise ValueError(f"cannot judge {completions[0]}")


def leaves(completions, **kwargs):
    sys.exit(3)


def not_finite(completions, **kwargs):
    return [float("nan")] * len(completions)


def huge(completions, **kwargs):
    return [1.7e308] * len(completions)


def huge_metric(completions, log_metric, **kwargs):
    log_metric("huge", 1.7e308)
    log_metric("huge", float("-inf"))
    return [1.0] * len(completions)


def one(completions, **kwargs):
    return [1.0]


def by_progress(completions, trainer_state, log_extra, **kwargs):
    """A curriculum: what a completion is worth changes with the run."""
    log_extra("characters", [len(c) for c in completions])
    log_extra("parsed", [{"text": c} for c in completions])
    share = trainer_state.global_step / trainer_state.max_steps
    return [share + trainer_state.epoch for _ in completions]


def too_few_extras(completions, log_extra, **kwargs):
    log_extra("column", [1, 2, 3])
    return [1.0] * len(completions)


def too_few(completions, **kwargs):
    return []


def words(completions, **kwargs):
    return ["good"] * len(completions)


def hangs_on_slow(completions, **kwargs):
    if completions[0] == "slow":
        time.sleep(60)
    return [1.0] * len(completions)


def dies_on_bad(completions, **kwargs):
    if completions[0] == "bad":
        os.kill(os.getpid(), signal.SIGKILL)
    return [1.0] * len(completions)


def dies_once(completions, marker, **kwargs):
    """Kills its process the first time, leaving behind a child that holds on to everything it inherited."""
    if not os.path.exists(marker[0]):
        open(marker[0], "w").close()
        if os.fork() == 0:
            time.sleep(60)
        os._exit(7)
    return [1.0] * len(completions)


def pid(completions, log_metric, **kwargs):
    log_metric("pid", os.getpid())
    return [0.0]


def has_torch(completions, **kwargs):
    return [float("torch" in sys.modules)]


def own_loop(completions, **kwargs):
    """What functions did before asynchronous ones were allowed."""

    async def later():
        await asyncio.sleep(0)
        return 2.0

    return [asyncio.run(later())]


def on_alarm(completions, **kwargs):
    """Signals work in the main thread only."""
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    return [1.0]


async def naps(completions, **kwargs):
    await asyncio.sleep(float(completions[0]))
    return [1.0]


async def raises_later(completions, **kwargs):
    await asyncio.sleep(0)
    raise KeyError("later")


class Judge:
    async def __call__(self, completions, **kwargs):
        return [3.0 for _ in completions]


judge = Judge()


def moody_sleep(completions, **kwargs):
    time.sleep(float(completions[0]))
    return [1.0]


def spoken(completions, **kwargs):
    print("said on standard output")
    return [1.0]


def moody(completions, **kwargs):
    """Does what the completion says."""
    return {"dies": dies_on_bad, "hangs": hangs_on_slow, "raises": loud}.get(completions[0], half)(
        [{"dies": "bad", "hangs": "slow"}.get(completions[0], completions[0])]
    )


class Longer:
    """A reward that holds something: made once, called often."""

    def __init__(self, than):
        self.than = than + 0

    def __call__(self, completions, **kwargs):
        return [float(len(c) > self.than) for c in completions]


def _owners_socket():
    """The descriptor of the socket that this process answers on."""
    return int(sys.argv[1].removeprefix("fd:"))


def half_a_message(completions, **kwargs):
    """Hangs while a part of a message is on its way."""
    if completions[0] == "bad":
        os.write(_owners_socket(), b"\0\0\1\0half")
        time.sleep(600)
    return [1.0]


def babbles(completions, **kwargs):
    """Writes to the socket what is no message."""
    if completions[0] == "bad":
        os.write(_owners_socket(), b"Epoch 1/3 done\n")
    return [1.0]


def doubles(completions, **kwargs):
    """Copies its process, and both answer."""
    if completions[0] == "bad":
        os.fork()
    return [1.0]


def with_key(completions, api_key, **kwargs):
    """Asks somebody who wants a key, and says it when it is wrong."""
    if completions[0] == "bad":
        raise ValueError(f"the key {api_key} is not known")
    return [float(len(api_key))]
