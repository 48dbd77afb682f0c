"""A live run from its beginning, or from where it was cut short, to its end.

A new run is one that was cut short before anything happened: it is written down, and then gone on with.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from dora_rl.control.plane import ControlPlane
from dora_rl.core.errors import DoraError
from dora_rl.core.history import Watcher
from dora_rl.core.named import Objects
from dora_rl.launch.local import LOCAL
from dora_rl.launch.protocol import Launch
from dora_rl.launch.waiting import Interrupts
from dora_rl.run.open_run import OpenRun
from dora_rl.run.orchestrator import Orchestrator
from dora_rl.run.prompt_table import PromptTable, check_lengths
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import RunSetup, write_setup
from dora_rl.run.run_summary import RunSummary
from dora_rl.store.durable import full_disk_named
from dora_rl.store.run_directory import RunDirectory
from dora_rl.store.sealed_files import seal_files

__all__ = ["Watcher", "resume_live", "run_live"]


def run_live(
    setup: RunSetup,
    inputs: Path,
    watchers: Sequence[Watcher] = (),
    *,
    launch: Launch = LOCAL,
    objects: Objects | None = None,
    interrupts: Interrupts | None = None,
) -> RunSummary:
    """Run a set-up to its end, or until it is interrupted, leaving everything in its run directory.

    `inputs` is where its prompts, its tokenizer and, after a warm start, its model lie; they are copied.
    `launch` starts every worker; `objects` are what `object:LABEL` in the recipe stands for.

    The first SIGINT or SIGTERM lets the step in progress end, writes a checkpoint and returns; the second
    returns at once. Either way `resume_live` goes on. A UserError: the set-up cannot work; another DoraError:
    the run could not go on, with the reason; what is durable can be resumed. Another thread may ask for the
    end through `interrupts`.
    """
    root, made = Path(setup.run_directory), LiveLayout(root=inputs)

    def fill(partial: Path) -> None:
        """Write what a run is opened from, beside its journal."""
        layout = LiveLayout(root=partial)
        shutil.copyfile(made.prompts, layout.prompts)
        shutil.copyfile(made.tokenizer, layout.tokenizer)
        for source, target in (
            (made.initial_model, layout.initial_model),
            (made.initial_adapter, layout.initial_adapter),
        ):
            if source.exists():
                shutil.copytree(source, target)
        write_setup(setup, layout.setup)
        seal_files(partial, layout.sealed)

    with full_disk_named(root):
        # Nothing is left behind if the set-up does not fit.
        check_lengths(PromptTable.read(made.prompts), setup)
        RunDirectory.create(root, setup.recipe, fill).close()
    return resume_live(root, watchers, launch=launch, objects=objects, interrupts=interrupts)


def resume_live(
    run_directory: Path,
    watchers: Sequence[Watcher] = (),
    tell: Callable[[str], None] = lambda text: None,
    *,
    launch: Launch = LOCAL,
    objects: Objects | None = None,
    interrupts: Interrupts | None = None,
) -> RunSummary:
    """Go on with a run that was interrupted, killed or failed, as `run_live` would have.

    `tell` hears where it goes on.
    """
    with resumable(run_directory, objects):
        opened = OpenRun(run_directory)
        done, steps = opened.journal.newest_version, opened.setup.recipe.steps
        tell(f"goes on {f'after step {done}' if done else 'before the first step'} of {steps}")
        try:
            orchestrator = Orchestrator(
                opened, launch, tuple(watchers), objects=objects, interrupts=interrupts
            )
            with orchestrator.interrupts.heeded():
                orchestrator.run()
                orchestrator.stop()
                # An interrupt that comes now changes nothing: the run is ending.
                summary = _summary(opened, orchestrator)
                if summary.is_complete:
                    opened.directory.finish(msgspec.to_builtins(summary))
                opened.close()
            return summary
        finally:
            opened.close()


@contextmanager
def resumable(root: Path, objects: Objects | None = None) -> Iterator[None]:
    """Add how to resume to errors that end a run and would not end it again, once it can be.

    The command cannot go on with a run that was given functions as `objects`.
    """
    try:
        with full_disk_named(root):
            yield
    except DoraError as error:
        if not error.is_lasting and LiveLayout(root=root).setup.exists():
            again = f"dora_rl.resume({str(root)!r}, ...)" if objects else f"dora train --resume {root}"
            go_on = f"`{again}` goes on"
            error.hint = f"{error.hint}; then {go_on}" if error.hint else go_on
        raise


def _left_over(plane: ControlPlane) -> dict[str, int]:
    """Trajectories of the last groups, which are too few for another batch."""
    groups = [group for group in plane.ledger.groups.values() if not group.is_evaluation]
    number = sum(len(group.left()) for group in groups)
    return {"left over: the stream ended": number} if number else {}


def _summary(opened: OpenRun, orchestrator: Orchestrator) -> RunSummary:
    plane, steps, newest = opened.plane, opened.setup.recipe.steps, opened.plane.window.newest
    # A table's rows are known, and a run that asks for more of them than there are is a mistake; how many a
    # stream has nobody knows, so its end is an end of the run like any other.
    has_ended_early = plane.is_stranded and opened.setup.data.train.stream
    staleness = plane.meters.staleness
    return RunSummary(
        run_directory=str(opened.layout.root),
        is_complete=(plane.is_done or has_ended_early)
        and opened.journal.covered_step >= (newest if has_ended_early else steps),
        overlong_rows=opened.feed.num_overlong,
        steps_asked=steps if has_ended_early else None,
        steps=plane.window.newest,
        elapsed_s=orchestrator.now,
        trained_trajectories=plane.ledger.num_committed,
        closed_trajectories=dict(plane.ledger.outcomes) | (_left_over(plane) if has_ended_early else {}),
        staleness_mean=sum(s * n for s, n in staleness.items()) / max(1, staleness.total()),
        staleness_max=max(staleness, default=0),
        starved_s=plane.meters.starved_s,
        window_stall_s=plane.meters.window_stall_s,
        worker_deaths=dict(orchestrator.deaths.total),
        reward_failures=orchestrator.failures,
        checkpoint=orchestrator.trainer.checkpoint,
        last_metrics=orchestrator.metrics.last,
    )
