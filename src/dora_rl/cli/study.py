"""`dora simulate study`: comparisons that answer a question, each with a table, a CSV file and pictures."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Comparisons: a table, a CSV file and pictures each.")

Out = Annotated[Path | None, typer.Option(help="Directory for CSV and pictures.  [default: runs/study-NAME]")]
Steps = Annotated[int, typer.Option(min=6, help="Train steps of each run.")]
Seed = Annotated[int, typer.Option(help="Of lengths, prompts and faults.")]
Preset = Annotated[str, typer.Option(help="The set-up to vary; `dora simulate --list` shows them.")]


@app.command()
def paper(out: Out = None, steps: Steps = 12, seed: Seed = 0) -> None:
    """The table of the DORA paper, ours beside it, at 64 and 128 GPUs; seconds and timelines of schedules."""
    from dora_rl.bench.studies.study_runs import study_paper

    study_paper(out or Path("runs/study-paper"), steps=steps, seed=seed)


@app.command()
def scale(
    out: Out = None,
    steps: Steps = 12,
    seed: Seed = 0,
    max_gpus: Annotated[int, typer.Option(min=64, help="The greatest size; 16,384 takes minutes.")] = 16_384,
) -> None:
    """From 64 to 16,384 GPUs, the batch growing with them: what share of the limit is left?"""
    from dora_rl.bench.studies.study_runs import study_scale

    study_scale(out or Path("runs/study-scale"), steps=steps, seed=seed, max_gpus=max_gpus)


@app.command()
def staleness(out: Out = None, steps: Steps = 12, seed: Seed = 0, preset: Preset = "paper-128") -> None:
    """Step time and staleness over the bound S and the number of active groups R."""
    from dora_rl.bench.studies.study_runs import study_staleness

    study_staleness(out or Path("runs/study-staleness"), preset, steps=steps, seed=seed)


@app.command()
def ablation(out: Out = None, steps: Steps = 12, seed: Seed = 0, preset: Preset = "paper-128") -> None:
    """Every part of the algorithm switched off, one at a time."""
    from dora_rl.bench.studies.study_runs import study_ablation

    study_ablation(out or Path("runs/study-ablation"), preset, steps=steps, seed=seed)


@app.command()
def peers(
    out: Out = None,
    steps: Steps = 20,
    seed: Seed = 0,
    preset: Preset = "h100-8",
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a value for all rules.")
    ] = None,
) -> None:
    """The rules of other papers at the same GPUs and slots: time against staleness, each at its best."""
    from dora_rl.bench.studies.study_runs import study_peers

    study_peers(out or Path("runs/study-peers"), preset, steps=steps, seed=seed, assignments=sets or ())


@app.command()
def episodes(out: Out = None, steps: Steps = 12, seed: Seed = 0) -> None:
    """Episodes with slow environments at 64 GPUs: sync, async ratio and dora on the same draws."""
    from dora_rl.bench.studies.study_runs import study_episodes

    study_episodes(out or Path("runs/study-episodes"), steps=steps, seed=seed)
