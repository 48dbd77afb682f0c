"""Where a live run keeps what only it has, beside what every run directory holds."""

from pathlib import Path

from dora_rl.store.run_directory import RunLayout


class LiveLayout(RunLayout, frozen=True):
    """The names of what a live run leaves behind."""

    @property
    def setup(self) -> Path:
        """The resolved set-up."""
        return self.root / "setup.json"

    @property
    def prompts(self) -> Path:
        """Rows and their token ids: the run does not depend on where they came from any more."""
        return self.root / "prompts.msgpack"

    @property
    def tokenizer(self) -> Path:
        """What turns token ids into the text that is scored."""
        return self.root / "tokenizer.json"

    @property
    def metrics_log(self) -> Path:
        """One JSON line a step."""
        return self.root / "metrics.jsonl"

    @property
    def rewards_log(self) -> Path:
        """What reward functions printed, and how they failed."""
        return self.logs / "rewards.log"

    @property
    def rendezvous(self) -> Path:
        """Where the ranks of a trainer find each other."""
        return self.root / "rendezvous"

    @property
    def initial_model(self) -> Path:
        """Version 0, where a warm start made it."""
        return self.root / "initial_model"
