"""`dora bench peer`: TRL's GRPOTrainer beside `dora`, on the same model, task, batch and reward."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from dora_rl.bench.peer.environment_comparison import EnvironmentComparison
    from dora_rl.bench.peer.peer_comparison import PeerComparison


def peer(
    steps: Annotated[int, typer.Option(min=3, help="Train steps of ours.")] = 30,
    peer_steps: Annotated[
        int | None, typer.Option(min=3, help="Train steps of TRL's; left out, a third.")
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="What both train; left out, answers with a long tail: countdown.")
    ] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a value of the recipe.")
    ] = None,
    environment: Annotated[
        bool,
        typer.Option(help="An environment class (`environment_factory`), its tools quick and slow."),
    ] = False,
    target: Annotated[
        float | None, typer.Option(help="The reward to reach; left out, the highest both reach.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """TRL beside us on CPUs, in one run: trajectories a second, and time to the same reward.

    TRL is no part of this package: pip install trl accelerate datasets
    """
    from pathlib import Path
    from tempfile import TemporaryDirectory

    import msgspec

    from dora_rl.bench.peer.environment_comparison import compare_environments
    from dora_rl.bench.peer.peer_comparison import compare_with_peer
    from dora_rl.observe.terminal import say, stdout

    if environment:
        with TemporaryDirectory(prefix="dora-peer-") as place:
            played = compare_environments(
                tuple(sets or ()), steps=steps, peer_steps=peer_steps or 5, place=Path(place), tell=say
            )
        if as_json:
            typer.echo(msgspec.json.format(msgspec.json.encode(played)))
        else:
            stdout().print(_environments(played))
        return
    with TemporaryDirectory(prefix="dora-peer-") as place:
        beside = compare_with_peer(
            recipe,
            tuple(sets or ()),
            steps=steps,
            peer_steps=peer_steps or max(3, steps // 3),
            target=target,
            place=Path(place),
        )
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(beside)))
    else:
        stdout().print(_table(beside))


def _table(beside: "PeerComparison") -> "Table":
    from dora_rl.observe.tables import table

    shown = table(
        beside.title,
        "what", "threads", ">trajectories/s", ">reward\nfirst", ">\nlast",
        f">reward {beside.target:.3f}\nafter s",
        caption="Seconds from the first request on; the reward is the mean of three steps.",
    )  # fmt: skip
    for side in (beside.ours, beside.theirs):
        reached = f"{side.reached_s:.1f}" if side.reached_s is not None else "not reached"
        ends = f"{side.rewards[0]:.3f}", f"{side.rewards[-1]:.3f}"
        shown.add_row(side.name, side.threads, f"{side.trajectories_per_s:.1f}", *ends, reached)
    ratio = beside.time_ratio
    times = f"{ratio:.2f}x" if ratio is not None else "-"
    shown.add_row("ours over theirs", "", f"{beside.speed_ratio:.2f}x", "", "", times)
    return shown


def _environments(played: "EnvironmentComparison") -> "Table":
    from dora_rl.observe.tables import table

    shown = table(
        played.title,
        "tools",
        "what",
        ">episodes/s",
        ">x TRL",
        ">tokens an\nepisode",
        "threads",
        ">staleness\nmean",
        ">reward\nfirst",
        ">\nlast",
    )
    for run in played.runs:
        shown.add_row(
            run.tools,
            run.name,
            f"{run.episodes_per_s:.2f}",
            f"{run.episodes_per_s / played.peer_speed(run.tools):.2f}",
            f"{run.tokens_mean:.0f}",
            run.threads,
            f"{run.staleness_mean:.2f}" if run.staleness_mean is not None else "-",
            f"{run.rewards[0]:.3f}",
            f"{run.rewards[-1]:.3f}",
        )
    return shown
