"""Every file of a killed run damaged, one at a time: resumed to the right end, or refused in a sentence."""

import os
import time
from pathlib import Path

import pytest

from .campaign import MINUTES, SEED
from .damage_campaign import DamageCampaign, figures

ONLY = os.environ.get("FAULT_ONLY", "")
FIRST = int(os.environ.get("FAULT_FIRST", "0"))


@pytest.mark.slow
@pytest.mark.timeout(600 + 60 * MINUTES)
def test_damaged_files_are_made_up_for_or_named(tmp_path: Path) -> None:
    campaign = DamageCampaign(tmp_path, seed=SEED, until=time.monotonic() + 60 * MINUTES)
    trials = campaign.run(ONLY, first=FIRST)
    print(figures(trials))
    assert trials
    wrong = [trial for trial in trials if trial.verdict == "wrong"]
    assert not wrong, "\n".join(map(str, wrong))
