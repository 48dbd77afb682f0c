"""A run that keeps a journal, and a second, simple set of books to hold it against.

The run may be a random history of control or a simulation. The scribe invents tokens and rewards for it,
hands everything to a journal in turns of random size, as an orchestrator would, and keeps in plain
dictionaries what the journal ought to know.
"""

from pathlib import Path
from random import Random
from typing import Any

from msgspec.structs import replace

from dora_rl.control.ledger import Phase
from dora_rl.control.plane import ControlPlane
from dora_rl.core import decisions as do
from dora_rl.core import inputs as told
from dora_rl.core.decisions import Decision
from dora_rl.core.history import Event
from dora_rl.core.inputs import Input
from dora_rl.core.recipe import Recipe
from dora_rl.store.journal import Journal
from dora_rl.store.journal_records import AnyPayload, Progress, PromptTokens, Rewarded, Rewound


class Member:
    """What the journal ought to know of one trajectory."""

    def __init__(self, start: do.Start) -> None:
        self.start = start
        self.tokens: list[int] = []
        self.writers: list[int | None] = []
        """Version that drew each token; None for the environment's."""
        self.state = "running"
        self.is_truncated = False
        self.score: tuple[float | None, dict[str, float | None]] | None = None


class Scribe:
    """Writes down what a control plane is told and decides, from its first input on."""

    def __init__(self, plane: ControlPlane, recipe: Recipe, path: Path) -> None:
        self.plane = plane
        self.fate = Random(f"journal {recipe.seed}")
        self.path = path
        self.journal = Journal.create(path, recipe)
        self.recorded: list[Event] = []
        self.prompts: dict[int, tuple[int, ...]] = {}
        self.members: dict[int, Member] = {}
        self.outcomes: dict[int, str] = {}
        self.batches: dict[int, tuple[int, ...]] = {}
        self.published = 0
        self.covered = 0
        self._turn: list[Event] = []
        self._turn_payloads: list[AnyPayload] = []
        self._touched: set[int] = set()
        self._decide = plane.handle
        plane.handle = self._handle  # type: ignore[method-assign]

    # --- turns ---

    def _handle(self, event: Input) -> list[Decision]:
        decisions = self._decide(event)
        payloads = [
            *self._noted(self._payloads_of(event)),
            *self._noted(self._some_progress()),
            *self._noted(self._new_prompts(decisions)),
        ]
        if self._touched & {getattr(payload, "trajectory", None) for payload in payloads}:
            # A decision is carried out after its turn was written: nothing is heard of it before.
            self.write()
        self._turn.append((event, decisions))
        self._turn_payloads += payloads
        for record in (event, *decisions):
            self._note(record)
        if self.fate.random() < 0.4:
            self.write()
        return decisions

    def write(self) -> None:
        self.journal.append(self._turn, self._turn_payloads)
        self.recorded += self._turn
        self._turn, self._turn_payloads, self._touched = [], [], set()
        if self.fate.random() < 0.05:
            self.covered = max(self.covered, self.fate.randint(0, self.published))
            self.journal.covered(self.covered)
        if self.fate.random() < 0.05:
            self.journal.prune()

    def reopen(self) -> None:
        """As a process that was just started."""
        self.write()
        self.journal.close()
        self.journal = Journal.open(self.path)

    def close(self) -> None:
        self.journal.close()

    # --- inventing payloads ---

    def _payloads_of(self, event: Input) -> list[AnyPayload]:
        member = self.members.get(getattr(event, "trajectory", -1))
        if member is None:
            return []
        key, attempt = member.start.trajectory, member.start.attempt
        known = self.plane.ledger.trajectory(key)
        match event:
            case told.Ended() if member.state == "running" and known and known.phase == Phase.ENDED:
                return self._last_words(member, event)
            case told.EnvironmentReplied() if member.state == "running" and known:
                return [self._progress(member, len(member.tokens), event.tokens, None)]
            case told.Scored() if member.state == "ended" and (not known or known.phase == Phase.SCORED):
                values = {"accuracy": event.reward, "format": None}
                return [Rewarded(trajectory=key, attempt=attempt, reward=event.reward, values=values)]
        return []

    def _some_progress(self) -> list[AnyPayload]:
        running = [m for m in self.members.values() if m.state == "running"]
        if not running or self.fate.random() < 0.5:
            return []
        member = self.fate.choice(running)
        known = self.plane.ledger.trajectory(member.start.trajectory)
        if known is None or known.phase >= Phase.ENDED or known.attempt != member.start.attempt:
            return []
        if self.fate.random() < 0.1:
            return [self._rewound(member, self.fate.randint(0, len(member.tokens)))]
        count = self.fate.randint(0, 5)
        return [self._progress(member, len(member.tokens), count, known.version)]

    def _last_words(self, member: Member, ended: told.Ended) -> list[AnyPayload]:
        """All its tokens and its end: in one payload, or after going back."""
        back = min(ended.tokens, len(member.tokens))
        missing = self._progress(member, back, ended.tokens - back, member.start.version)
        last = replace(missing, is_last=True, is_truncated=ended.truncated)
        return [self._rewound(member, back), last] if back < len(member.tokens) else [last]

    def _progress(self, member: Member, start: int, count: int, version: int | None) -> Progress:
        tokens = tuple(self.fate.randrange(2**31) for _ in range(count))
        logprobs = () if version is None else tuple(map(logprob_of, tokens))
        return Progress(
            trajectory=member.start.trajectory,
            attempt=member.start.attempt,
            start=start,
            tokens=tokens,
            version=version,
            logprobs=logprobs,
        )

    @staticmethod
    def _rewound(member: Member, num_tokens: int) -> Rewound:
        start = member.start
        return Rewound(trajectory=start.trajectory, attempt=start.attempt, num_tokens=num_tokens)

    def _new_prompts(self, decisions: list[Decision]) -> list[AnyPayload]:
        groups = self.plane.ledger.groups
        sizes = {d.group: groups[d.group].prompt.tokens for d in decisions if isinstance(d, do.Admit)}
        sizes |= {d.group: d.prompt_tokens for d in decisions if isinstance(d, do.Start)}
        return [
            PromptTokens(group=group, tokens=tuple(self.fate.randrange(50_000) for _ in range(size)))
            for group, size in sizes.items()
            if group not in self.prompts
        ]

    # --- the second set of books ---

    def _noted(self, payloads: list[AnyPayload]) -> list[AnyPayload]:
        for payload in payloads:
            self._note_payload(payload)
        return payloads

    def _note_payload(self, payload: AnyPayload) -> None:
        if isinstance(payload, PromptTokens):
            self.prompts[payload.group] = payload.tokens
            return
        member = self.members[payload.trajectory]
        match payload:
            case Progress():
                member.tokens += payload.tokens
                member.writers += [payload.version] * len(payload.tokens)
                if payload.is_last:
                    member.state, member.is_truncated = "ended", payload.is_truncated
            case Rewound():
                del member.tokens[payload.num_tokens :], member.writers[payload.num_tokens :]
            case Rewarded():
                member.state, member.score = "scored", (payload.reward, payload.values)

    def _note(self, record: Any) -> None:
        match record:
            case told.Published():
                self.published = record.version
            case told.StepLost():
                self.batches.pop(self.published, None)
            case do.Start():
                self._touched.add(record.trajectory)
                member = self.members.get(record.trajectory)
                if member is None or member.start.attempt != record.attempt:
                    self.members[record.trajectory] = Member(record)
                else:
                    member.start = record
            case do.Take():
                assert record.batch not in self.batches
                self.batches[record.batch] = record.groups
            case do.Close():
                for key in record.members:
                    self.outcomes[key] = record.outcome
                    if key in self.members:
                        self.members[key].state = "closed"


def logprob_of(token: int) -> float:
    """A number that float32 holds exactly."""
    return -(token % 4096) / 256
