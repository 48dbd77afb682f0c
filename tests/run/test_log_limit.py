"""What workers print fills no disk."""

from pathlib import Path

from dora_rl.run.log_limit import LogLimit


def test_a_log_that_grows_too_large_begins_anew_under_whoever_writes_it(tmp_path: Path) -> None:
    now = [0.0]
    limit = LogLimit(tmp_path, max_bytes=1000, clock=lambda: now[0])
    log, other = tmp_path / "rewards.log", tmp_path / "trainer.log"
    other.write_text("short\n")
    with log.open("ab", buffering=0) as worker:
        for number in range(1000):
            now[0] += 0.3
            worker.write(f"line {number:04}\n".encode())
            limit.look()
            assert log.stat().st_size < 1200
    assert log.read_text().endswith("line 0999\n")
    first, *_ = log.read_text().splitlines()
    assert first.endswith("the last 0.000953674 MiB are in rewards.log.1")
    kept = (tmp_path / "rewards.log.1").read_text()
    assert len(kept) == 1000
    # Nothing is missing between the two.
    numbers = [int(line.split()[-1]) for line in (kept + log.read_text()).splitlines() if "line 0" in line]
    assert numbers == list(range(numbers[0], 1000))
    assert other.read_text() == "short\n"
    assert {path.name for path in tmp_path.iterdir()} == {"rewards.log", "rewards.log.1", "trainer.log"}
