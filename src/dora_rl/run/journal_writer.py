"""Inputs and decisions are made durable before anything is done about them.

The order is journal, event log, watchers. Owns no decision of its own, and carries none out.
"""

from collections.abc import Sequence

from dora_rl.control.plane import ControlPlane
from dora_rl.core.decisions import Admit, Decision, Start
from dora_rl.core.history import Event, HistoryWriter, Watcher
from dora_rl.core.inputs import Input
from dora_rl.run.prompt_table import RunPrompts
from dora_rl.store.journal import Journal
from dora_rl.store.journal_records import AnyPayload, PromptTokens


class JournalWriter:
    """Lets control decide, and makes inputs, decisions and payloads durable together."""

    def __init__(
        self,
        plane: ControlPlane,
        journal: Journal,
        log: HistoryWriter,
        prompts: RunPrompts,
        watchers: Sequence[Watcher],
        past: Sequence[Event] = (),
    ) -> None:
        """`past`: what was written down about evaluations before the run was cut short."""
        self._plane = plane
        self._journal = journal
        self._log = log
        self._prompts = prompts
        self._watchers = watchers
        self._recorded = {
            decision.group
            for _, decisions in past
            for decision in decisions
            if isinstance(decision, Start) and decision.evaluation
        }
        """Evaluation groups whose prompt is journalled."""

    def decide(self, inputs: Sequence[Input], payloads: Sequence[AnyPayload] = ()) -> list[Decision]:
        """Let control decide about these inputs, in order; both are durable when this returns."""
        events: list[Event] = [(told, self._plane.handle(told)) for told in inputs]
        decided = [decision for _, decisions in events for decision in decisions]
        starting: list[Admit | Start] = []
        for decision in decided:
            match decision:
                case Admit():
                    starting.append(decision)
                case Start(evaluation=True) if decision.group not in self._recorded:
                    # Groups of an evaluation are never admitted, they just start.
                    self._recorded.add(decision.group)
                    starting.append(decision)
        prompts = [PromptTokens(group=s.group, tokens=self._prompts[s.row].token_ids) for s in starting]
        if events or payloads:
            self._journal.append(events, [*payloads, *prompts])
        for told, decisions in events:
            self._log.watch(told, decisions)
            for watch in self._watchers:
                watch(told, decisions)
        self._log.flush()
        return decided
