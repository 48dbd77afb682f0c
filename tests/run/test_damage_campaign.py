"""Every file of a killed run damaged, one at a time: resumed to the right end, or refused in a sentence."""

import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from .damage_campaign import HOW, Campaign

MINUTES = float(os.environ.get("FAULT_MINUTES", "0.5"))
ONLY = os.environ.get("FAULT_ONLY", "")


@pytest.mark.slow
@pytest.mark.timeout(600 + 60 * MINUTES)
def test_damaged_files_are_made_up_for_or_named(tmp_path: Path) -> None:
    draw, counted, wrong = random.Random(int(time.time())), Counter[str](), list[str]()
    campaign = Campaign(tmp_path)
    trials = [(file, how) for file in campaign.files for how in HOW if ONLY in str(file)]
    print(f"\n{len(campaign.files)} files, {len(trials)} trials a round", flush=True)
    draw.shuffle(trials)
    until = time.monotonic() + 60 * MINUTES
    for number, (file, how) in enumerate(trials * 1000):
        if time.monotonic() > until:
            break
        try:
            counted[verdict := campaign.trial(file, how, draw)] += 1
        except AssertionError as error:
            counted[verdict := "wrong"] += 1
            wrong.append(f"{how} {file}: {error}")
            print(error, flush=True)
        print(f"{number + 1:>4} {how:<6} {file}: {verdict}", flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in sorted(counted.items())))
    assert not wrong, "\n".join(wrong)
