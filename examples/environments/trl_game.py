"""One environment class, for this trainer and for TRL's: `python trl_game.py` trains the tiny model on it.

TRL takes it as `GRPOTrainer(..., environment_factory=Hotter)`.
"""


class Hotter:
    """Find a number from 1 to 9; the environment says hotter or colder."""

    def reset(self, seed=0, **row):
        self.secret, self.best = seed % 9 + 1, 9
        return "Find my number, 1 to 9."

    def guess(self, number: int) -> str:
        """Guess the number.

        Args:
            number: from 1 to 9
        """
        away = abs(number - self.secret)
        word = "found" if not away else "hotter" if away < self.best else "colder"
        self.best = min(self.best, away)
        return word

    def get_reward(self):
        return 1 - self.best / 9


if __name__ == "__main__":
    from dora_rl import train

    # No rows are given: every row is a seed, the same for all members of a group.
    train(model="tiny", environment_factory=Hotter, steps=10, max_completion_length=80, num_generations=8)
