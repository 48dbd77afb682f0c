"""An environment in gymnasium's form, without the package: walk to the treasure."""

import random


class Corridor:
    """Five places in a row; the treasure lies at one of the ends, and a sign says at which."""

    def reset(self, *, seed=None, options=None):
        self.place, self.goal = 2, random.Random(seed).choice((0, 4))
        return f"The sign says {'left' if self.goal == 0 else 'right'}. left or right?", {}

    def step(self, action):
        self.place += 1 if action == 1 else -1
        is_over = self.place in (0, 4)
        reward = float(self.place == self.goal)
        return f"You are at {self.place}. left or right?", reward, is_over, False, {}
