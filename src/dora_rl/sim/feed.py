"""The prompts of a simulated run: a source, and control's queue kept filled from it."""

from collections.abc import Sequence

from dora_rl.control.plane import ControlPlane
from dora_rl.core.decisions import Decision
from dora_rl.core.inputs import Input, PromptsOffered
from dora_rl.core.named import load_named
from dora_rl.core.recipe import Recipe
from dora_rl.core.recipe.data import OrderConfig
from dora_rl.envs.data.rows import Row
from dora_rl.envs.prompt_offers import GroupScores, PromptOffers, exhausted
from dora_rl.envs.prompt_source import PromptSource, built_in_source, make_source


class SimulatedPromptFeed:
    """Fills control's queue from a prompt source when it runs low; in this process, as time is virtual."""

    def __init__(
        self,
        recipe: Recipe,
        prompt_tokens: Sequence[int],
        plane: ControlPlane,
        source: PromptSource | None = None,
    ) -> None:
        """`prompt_tokens` is the length of each row's prompt; `source` replaces the recipe's own."""
        order = recipe.data.order if recipe.data is not None else OrderConfig()
        is_told = source is not None or not order.is_built_in
        self._source = source if source is not None else _source(order, len(prompt_tokens), recipe.seed)
        self._offers = PromptOffers(prompt_tokens)
        self.prompt_tokens = prompt_tokens.__getitem__
        """Tokens of a row's prompt."""
        self._scores = GroupScores(group_size=recipe.batch.group_size)
        self._is_exhausted = False
        self.low_water = order.low_water(plane.prompts.most_at_once, recipe.batch.groups)
        """Number of queued prompts below which more are asked for."""
        self.watchers = [self._watch] if is_told else []
        """Watchers that pass scores to the source; none where it looks at no reward."""

    def offer(self, num_queued: int, at: float) -> PromptsOffered | None:
        """The offer of the next block of prompts, or None where the source has nothing now."""
        if self._is_exhausted:
            return None
        rows = self._source.choose(2 * self.low_water - num_queued)
        if rows is not None and not len(rows):
            return None
        offer = self._offers.offer(rows, at)
        self._source.offered(rows or ())
        self._is_exhausted = offer.is_last
        return offer

    def check(self, plane: ControlPlane) -> None:
        """Raise an error if the run cannot go on for want of prompts."""
        if plane.is_stranded:
            raise exhausted(plane.window.newest, plane.steps)

    def _watch(self, told: Input, decisions: list[Decision]) -> None:
        for score in self._scores.watch(told, decisions):
            self._source.scored(score)


def _source(order: OrderConfig, num_rows: int, seed: int) -> PromptSource:
    if order.is_built_in:
        return built_in_source(order, num_rows, seed=seed)
    rows = [Row(row=row, prompt="", columns={}) for row in range(num_rows)]
    return make_source(load_named(order.name), rows, seed=seed, options=order.options)
