"""A reward model: a sequence classifier that reads prompt and completion and gives a number.

Loaded once in each process that scores, with torch and transformers, and asked for a whole group at a time.
"""

from collections.abc import Sequence
from typing import Any

from dora_rl.core.errors import UserError
from dora_rl.core.named import optional_module
from dora_rl.envs.rewards.texts import Completion

_NEEDED_FOR = "reward_model"
_NO_LIMIT = 10**9
"""Length above which a tokenizer says that it knows none."""


class RewardModel:
    """What a sequence classifier says of a completion: its one logit, or the probability of one label."""

    def __init__(
        self,
        model: str,
        *,
        device: str = "cpu",
        dtype: str | None = None,
        label: int | None = None,
        batch_size: int = 16,
        max_tokens: int | None = None,
    ) -> None:
        """`model` is a directory or a name that AutoModelForSequenceClassification opens.

        `label` is needed where the classifier has several. Of a text of more than `max_tokens` the end is
        read; left out, what its tokenizer says. `dtype` is bfloat16 on GPUs, and float32 elsewhere.
        """
        self._torch = optional_module("torch", needed_for=_NEEDED_FOR, install="torch")
        transformers = optional_module("transformers", needed_for=_NEEDED_FOR, install="transformers")
        chosen = getattr(self._torch, dtype or ("float32" if device == "cpu" else "bfloat16"))
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(model)
            opened = transformers.AutoModelForSequenceClassification.from_pretrained(model, dtype=chosen)
            self._model = opened.eval().to(device)
        except (OSError, ValueError, RuntimeError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise UserError(
                f"the reward model '{model}' cannot be loaded on {device}: {reason}",
                hint="give a directory with config.json, weights and tokenizer of a sequence classifier",
            ) from error
        self._device, self._label, self._batch_size = device, label, batch_size
        known = self._tokenizer.model_max_length
        self._max_tokens = max_tokens or (known if known < _NO_LIMIT else None)
        self._check_labels(model)
        # The end of a long text is the completion.
        self._tokenizer.truncation_side, self._tokenizer.padding_side = "left", "right"
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        self._model.config.pad_token_id = self._tokenizer.pad_token_id

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Completion], **columns: Any
    ) -> list[float]:
        """The classifier's value of each completion, read behind its prompt."""
        texts = [self._text(prompt, given) for prompt, given in zip(prompts, completions, strict=True)]
        is_chat = not isinstance(prompts[0], str) and self._tokenizer.chat_template is not None
        values: list[float] = []
        for first in range(0, len(texts), self._batch_size):
            values += self._values(texts[first : first + self._batch_size], is_chat=is_chat)
        return values

    def _text(self, prompt: Any, completion: Any) -> str:
        """Prompt and completion as one text: messages by the classifier's own chat template."""
        if isinstance(prompt, str):
            return prompt + str(completion)
        messages = [*prompt, *completion]
        if self._tokenizer.chat_template is None:
            return "\n".join(f"{message['role']}: {message['content']}" for message in messages)
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False))

    def _values(self, texts: list[str], *, is_chat: bool) -> list[float]:
        inputs = self._tokenizer(
            texts,
            # A chat template writes its own.
            add_special_tokens=not is_chat,
            padding=True,
            truncation=self._max_tokens is not None,
            max_length=self._max_tokens,
            return_tensors="pt",
        ).to(self._device)
        with self._torch.inference_mode():
            logits = self._model(**inputs).logits.float()
        found = logits[:, 0] if self._label is None else logits.softmax(dim=1)[:, self._label]
        return [float(value) for value in found]

    def _check_labels(self, model: str) -> None:
        num_labels = self._model.config.num_labels
        if num_labels > 1 and self._label is None:
            raise UserError(
                f"the reward model '{model}' has {num_labels} labels: {dict(self._model.config.id2label)}",
                hint="say whose probability is the reward: options: {label: 1}",
            )
        if self._label is not None and not 0 <= self._label < num_labels:
            raise UserError(
                f"the reward model '{model}' has no label {self._label}",
                hint=f"it has 0 to {num_labels - 1}"
                if num_labels > 1
                else "it has one value: leave label out",
            )
