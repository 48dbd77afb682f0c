"""`dora bench`: how fast the parts are, against what they must reach. One file a command."""

import typer

from dora_rl.cli import (
    bench_control,
    bench_engine,
    bench_episodes,
    bench_freshness,
    bench_gap,
    bench_models,
    bench_peer,
    bench_schedules,
    bench_staleness,
    bench_train,
    bench_weights,
)

app = typer.Typer(no_args_is_help=True, help="How fast the parts are, against what they must reach.")

app.command(name="train")(bench_train.train)
app.command(name="gap")(bench_gap.gap)
app.command(name="models")(bench_models.models)
app.command(name="weights")(bench_weights.weights)
app.command(name="schedules")(bench_schedules.schedules)
app.command(name="staleness")(bench_staleness.staleness)
app.command(name="freshness")(bench_freshness.freshness)
app.command(name="peer")(bench_peer.peer)
app.command(name="control")(bench_control.control)
app.command(name="engine")(bench_engine.engine)
app.command(name="episodes")(bench_episodes.episodes)
