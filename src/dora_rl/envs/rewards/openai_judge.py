"""A language model as a judge, behind an endpoint that speaks OpenAI's chat completions.

The key is read from the environment by name and stands in no recipe.
"""

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from dora_rl.core.errors import UserError
from dora_rl.envs.chat_client import ChatClient
from dora_rl.envs.rewards.texts import Completion, text_of

_PROMPT = """\
Rate the answer to the question from 0 (useless) to 10 (perfect). Think briefly, and end with `Score: N`.

Question:
{prompt}

Answer:
{completion}
"""
_SCORE = r"Score:\s*(-?\d+(?:\.\d+)?)"
_KEY = "OPENAI_API_KEY"
_SHOWN = 300


class JudgeFailed(Exception):
    """The judge gave no score; the message says why."""


class OpenAIJudge:
    """Asks a judge for a score of each completion, many at a time; 0 is its lowest, 1 its highest score."""

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        prompt: str = _PROMPT,
        system: str | None = None,
        score: str = _SCORE,
        lowest: float = 0.0,
        highest: float = 10.0,
        key_env: str | None = None,
        temperature: float = 0.0,
        max_tokens: int = 512,
        body: Mapping[str, Any] | None = None,
        concurrent: int = 16,
        retries: int = 4,
        pause_s: float = 1.0,
        time_limit_s: float = 30.0,
    ) -> None:
        """`base_url` is what OpenAI's client would be given, such as `http://localhost:8000/v1`.

        `{prompt}`, `{completion}` and `{COLUMN}` in `prompt` are filled in. The last match of the regular
        expression `score` holds the score, in its first group, from `lowest` to `highest`. `key_env` names
        the variable with the key; left out, OPENAI_API_KEY, if there is one. `body` is sent along.
        """
        self._template, self._system, self._score = prompt, system, re.compile(score)
        self._lowest, self._highest = lowest, highest
        self._body = {"model": model, "temperature": temperature, "max_tokens": max_tokens, **(body or {})}
        self._endpoint = ChatClient(
            base_url,
            who="the judge",
            key=_key(key_env),
            concurrent=concurrent,
            retries=retries,
            pause_s=pause_s,
            time_limit_s=time_limit_s,
        )

    async def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Completion], log_extra: Any, **columns: Any
    ) -> list[float]:
        """Scores between 0 and 1; what the judge said is a column beside the completions."""
        known = {name: values for name, values in columns.items() if isinstance(values, list)}
        asked = [
            self._filled({name: values[number] for name, values in known.items()}, prompt, completion)
            for number, (prompt, completion) in enumerate(zip(prompts, completions, strict=True))
        ]
        said = await asyncio.gather(*map(self._said, asked))
        log_extra("judge", said)
        return [self._parsed(text) for text in said]

    def _filled(self, columns: Mapping[str, Any], prompt: Any, completion: Completion) -> str:
        """The judge's prompt about one completion; braces in what is filled in stay what they are."""
        values = {**columns, "prompt": _readable(prompt), "completion": text_of(completion)}
        return re.sub(r"\{(\w+)\}", lambda name: str(values.get(name[1], name[0])), self._template)

    def _parsed(self, text: str) -> float:
        found = [match.group(1) for match in self._score.finditer(text)]
        if not found:
            raise JudgeFailed(
                f"no score by {self._score.pattern!r} in what the judge said: {text[-_SHOWN:]!r}"
            )
        value = float(found[-1])
        if not self._lowest <= value <= self._highest:
            raise JudgeFailed(f"the score {value:g} is not within {self._lowest:g} to {self._highest:g}")
        return (value - self._lowest) / (self._highest - self._lowest)

    async def _said(self, prompt: str) -> str:
        """The judge's answer."""
        messages = [{"role": "system", "content": self._system}] if self._system else []
        body = {**self._body, "messages": [*messages, {"role": "user", "content": prompt}]}
        message, _ = await self._endpoint.ask(body)
        return str(message.get("content") or "")


def _key(name: str | None) -> str | None:
    if name is not None and not os.environ.get(name):
        raise UserError(
            f"the judge's key is to be in the environment variable {name}, which is not set",
            hint=f"export {name}=..., or leave key_env out where no key is needed",
        )
    return os.environ.get(name or _KEY)


def _readable(prompt: Any) -> str:
    """A prompt as text: of messages, each behind its role."""
    if isinstance(prompt, str):
        return prompt
    return "\n\n".join(f"{message['role']}: {text_of([message])}" for message in prompt)
