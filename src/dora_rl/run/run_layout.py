"""File names of a live run: what only it keeps, beside what every run directory holds."""

from pathlib import Path

from dora_rl.store.run_directory import RunLayout


class LiveLayout(RunLayout, frozen=True):
    """Paths of the files and directories in a live run's directory."""

    @property
    def setup(self) -> Path:
        """The file with the run's resolved set-up, as JSON."""
        return self.root / "setup.json"

    @property
    def prompts(self) -> Path:
        """The file with all rows and their token ids: the run no longer depends on where they came from."""
        return self.root / "prompts.msgpack"

    @property
    def tokenizer(self) -> Path:
        """The tokenizer file that turns token ids into the text that is scored."""
        return self.root / "tokenizer.json"

    @property
    def metrics_log(self) -> Path:
        """The metrics file: one JSON line a train step."""
        return self.root / "metrics.jsonl"

    @property
    def tracked(self) -> Path:
        """The file with what trackers were given, and the runs of theirs that this one goes on in."""
        return self.root / "tracked.json"

    @property
    def orchestrator_log(self) -> Path:
        return self.logs / "orchestrator.log"

    def instance_log(self, number: int) -> Path:
        return self.logs / f"instance_{number}.log"

    def episodes_log(self, number: int) -> Path:
        """The log of what episodes of one process printed, and of how it ended."""
        return self.logs / f"episodes_{number}.log"

    @property
    def rewards_log(self) -> Path:
        """The log of what reward functions printed, and of how they failed."""
        return self.logs / "rewards.log"

    @property
    def environments_log(self) -> Path:
        """The log of how environments of episodes failed."""
        return self.logs / "environments.log"

    @property
    def wish(self) -> Path:
        """The file in which somebody says how many instances the run shall have."""
        return self.root / "wish.json"

    @property
    def rendezvous(self) -> Path:
        """The file through which the ranks of a trainer find each other."""
        return self.root / "rendezvous"

    @property
    def initial_model(self) -> Path:
        """The directory of version 0 where a warm start made it."""
        return self.root / "initial_model"

    @property
    def initial_adapter(self) -> Path:
        """The directory of the adapter that the run started from, where it started from one."""
        return self.root / "initial_adapter"

    @property
    def sealed(self) -> tuple[Path, ...]:
        """What a run begins with and never changes, as far as it has it."""
        return self.prompts, self.tokenizer, self.initial_model, self.initial_adapter
