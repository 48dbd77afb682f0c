"""Opening a run: its directory, journal, prompts and control plane, as they were when it was left."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
from msgspec import Struct, field

from dora_rl.control.estimates import Estimates, LearnedLengths
from dora_rl.control.fingerprint import control_code
from dora_rl.control.plane import ControlPlane
from dora_rl.control.replay import Difference, Replay, replay
from dora_rl.core.decisions import Admit, Close, Decision, Hand, Open, Retire, Start, Take
from dora_rl.core.errors import DoraError
from dora_rl.core.fence import Fence, take_epoch
from dora_rl.core.history import Event, History, HistoryWriter
from dora_rl.core.inputs import Ended, EpisodeEnded, EvaluationAsked, Input, OpenFailed, Published, Scored
from dora_rl.run.prompt_feed import Feed
from dora_rl.run.prompt_table import PromptTable, RunPrompts
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import RunSetup, encode_setup, read_setup
from dora_rl.run.stream_feed import open_feed
from dora_rl.store.durable import write_atomically
from dora_rl.store.journal import Journal
from dora_rl.store.reconcile import reconcile
from dora_rl.store.run_directory import RunDirectory
from dora_rl.store.sealed_files import check_sealed
from dora_rl.store.storage import check_locks, is_shared

_LOAD_S, _MOVE_S, _STEP_S = 1.0, 0.1, 0.02
"""Seconds that loading a version, moving a request and a decode step are taken for until measured."""


class ResumePoint(Struct, kw_only=True):
    """What happened before this process began, as far as parts other than control need it to go on."""

    evaluations: list[Event] = field(default_factory=list)
    """Every journalled event that speaks of an evaluation, in order."""
    at: float = 0.0
    starts: dict[int, Start] = field(default_factory=dict)
    """The last Start of each trajectory that is not known to have ended, by trajectory."""
    handed: list[Hand] = field(default_factory=list)
    openings: list[Open] = field(default_factory=list)
    """Prompts whose environments were being reset, or were, and whose groups had not started."""
    retired: list[int] = field(default_factory=list)
    is_resumed: bool = False
    """Whether anything happened before; nothing did in a new run."""


class OpenRun:
    """A run whose directory, journal, log, prompts and control plane are open: ready to go on."""

    def __init__(self, root: Path) -> None:
        """Open a run where it stands, new or cut short: its event log reconciled, its plane as it was."""
        with ExitStack() as closing:
            self.directory = closing.enter_context(RunDirectory.resume(root))
            self.layout = layout = LiveLayout(root=root)
            setup = read_setup(layout.setup)
            # With its paths as they are now: the run directory may have been moved.
            model = str(layout.initial_model) if layout.initial_model.exists() else setup.model_directory
            self.setup = msgspec.structs.replace(setup, run_directory=str(root), model_directory=model)
            self.fence = _begun_to_lead(layout, setup)
            self.journal = journal = closing.enter_context(Journal.open(layout.journal))
            self._is_shared = is_shared(root, setup.recipe.run.storage)
            journal.lead(self.fence, is_shared=self._is_shared)
            check_sealed(root)
            reconcile(layout.events, journal)
            self.log = HistoryWriter(layout.events, journal.recipe, num_written=journal.num_inputs)
            closing.enter_context(self.log)
            self.prompts = RunPrompts(PromptTable.read(layout.prompts), journal)
            # As it was when the run began: what was changed since is among the inputs.
            self.plane = make_plane(self.setup, journal.recipe.steps)
            self.feed = open_feed(self.setup, self.prompts)

            # Brought to where they were, by telling them the journal again.
            self.past = ResumePoint(is_resumed=journal.num_inputs > 0)
            difference = replay(self.plane, _remembered(journal, self.past, self.feed)).difference
            if difference is not None:
                raise _decides_otherwise(difference, setup, layout)
            if setup.control_codes[-1:] != (control_code(),):
                led = msgspec.structs.replace(setup, control_codes=(*setup.control_codes, control_code()))
                write_atomically(layout.setup, encode_setup(led))
            self.closing = closing.pop_all()

    def lead_anew(self) -> int:
        """Take the next epoch, which it returns: a worker that was given up writes nothing any more.

        It may be cut off and still at work, on a machine that nobody reaches.
        """
        self.fence = self.fence.renewed()
        self.journal.lead(self.fence, is_shared=self._is_shared)
        return self.fence.epoch

    def close(self) -> None:
        self.closing.close()


def _begun_to_lead(layout: LiveLayout, setup: RunSetup) -> Fence:
    """Take the run's next epoch, its journal whole: whoever led it before is refused when this returns.

    So whatever is read from the journal afterwards is the end of what others wrote.
    """
    shared = is_shared(layout.root, setup.recipe.run.storage)
    if shared:
        check_locks(layout.root)
    with Journal.open(layout.journal) as journal:
        journal.check()
        fence = take_epoch(layout.epochs, above=journal.epoch)
        journal.lead(fence, is_shared=shared)
    return fence


def _decides_otherwise(difference: Difference, setup: RunSetup, layout: LiveLayout) -> DoraError:
    """The error about a run that control cannot go on with, and the way out."""
    told = (
        f"control decides otherwise than it did about event {difference.seq} of {layout.journal}, "
        f"{type(difference.event).__name__}: {_decided(difference.recorded)} then, "
        f"{difference.refusal or _decided(difference.replayed)} now"
    )
    begin_anew = "start another run from the last checkpoint: --set model=CHECKPOINT"
    code, codes = control_code(), setup.control_codes
    if codes[-1:] == (code,):
        return DoraError(
            f"{told}, though its code is the same ({code})",
            hint=f"resume where the run was begun, with the same version of Python, or {begin_anew}",
        )
    led_by = f"dora-rl {codes[-1]}" if codes else "an earlier dora-rl, which kept no name of its code"
    return DoraError(
        f"{told}; the run was led by {led_by}, and this is {code}",
        hint=f"resume with the version of dora-rl that led the run, or {begin_anew}",
    )


def _decided(decision: Decision | None) -> str:
    return "nothing" if decision is None else type(decision).__name__


def _remembered(journal: Journal, past: ResumePoint, feed: Feed) -> Iterator[Event]:
    """The journal's events, one by one; what parts other than control need of them is kept in `past`."""
    evaluated: set[int] = set()
    for told, decisions in journal.events():
        past.at = told.at
        feed.watch(told, decisions)
        if isinstance(told, Ended | EpisodeEnded):
            past.starts.pop(told.trajectory, None)
        if isinstance(told, OpenFailed):
            _close_opening(past, told.epoch, told.row, is_evaluation=told.is_evaluation)
        for decision in decisions:
            match decision:
                case Start():
                    if decision.evaluation and decision.trajectory not in past.starts:
                        _close_opening(past, decision.epoch, decision.row, is_evaluation=True)
                    if decision.question is None:
                        past.starts[decision.trajectory] = decision
                case Close():
                    for trajectory in decision.members:
                        past.starts.pop(trajectory, None)
                case Open():
                    past.openings.append(decision)
                case Admit():
                    _close_opening(past, decision.epoch, decision.row, is_evaluation=False)
                case Hand():
                    past.handed.append(decision)
                case Take():
                    past.handed.clear()
                case Retire():
                    past.retired.append(decision.version)
        if _speaks_of_evaluation(told, decisions, evaluated):
            past.evaluations.append((told, decisions))
        yield told, decisions


def _close_opening(past: ResumePoint, epoch: int, row: int, *, is_evaluation: bool) -> None:
    """Forget the opening of a prompt that started or was given up; plain rows have none."""
    opening = Open(epoch=epoch, row=row, is_evaluation=is_evaluation)
    if opening in past.openings:
        past.openings.remove(opening)


def _speaks_of_evaluation(told: Input, decisions: list[Decision], evaluated: set[int]) -> bool:
    """Whether an event concerns an evaluation; `evaluated` are the evaluation trajectories so far."""
    starts = {d.trajectory for d in decisions if isinstance(d, Start) and d.evaluation}
    closes = {key for d in decisions if isinstance(d, Close) for key in d.members}
    evaluated |= starts
    if isinstance(told, Ended | EpisodeEnded | Scored):
        return bool(starts) or told.trajectory in evaluated
    if isinstance(told, OpenFailed):
        return told.is_evaluation
    return isinstance(told, EvaluationAsked | Published) or bool(starts) or not evaluated.isdisjoint(closes)


# --- the control plane of a live run -------------------------------------------------------------


def make_plane(setup: RunSetup, steps: int | None = None) -> ControlPlane:
    """A control plane as it is before the first input; `steps` are those the run began with, if others."""
    episode = setup.recipe.episode
    most_tokens = setup.max_new_tokens * (episode.max_turns if episode is not None else 1)
    lengths = LearnedLengths(prior_tokens=setup.max_new_tokens / 8, max_tokens=most_tokens)
    return ControlPlane(
        setup.recipe.control,
        setup.recipe.batch,
        steps=steps or setup.recipe.steps,
        estimates=Estimates(lengths=lengths, load_s=_LOAD_S, move_s=_MOVE_S, step_s=_STEP_S),
        episode=episode,
        frozen=setup.recipe.frozen_versions,
    )


def replay_live(run_directory: Path) -> Replay:
    """Whether control, told what a live run was told, decides the same."""
    layout = LiveLayout(root=run_directory)
    history = History(layout.events)
    return replay(make_plane(read_setup(layout.setup), history.recipe.steps), history)
