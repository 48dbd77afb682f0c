"""The benchmark measures what it says: every section on a tiny shape, and the sums behind its columns."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dora_rl.bench.engine.device_speed import DeviceSpeed, least_time_s
from dora_rl.bench.engine.engine_bench import make_setup
from dora_rl.bench.engine.features import SHARES, _dealt
from dora_rl.bench.engine.reference import references
from dora_rl.bench.engine.suite import SECTIONS, run_sections
from dora_rl.bench.engine.workloads import RequestWorkload, long_tail, parse_workload, requests_of
from dora_rl.bench.figures import Figures
from dora_rl.cli.bench import app
from dora_rl.core.errors import ConfigError
from dora_rl.model.random_models import QWEN3_06B
from dora_rl.model.tiny import save_tiny


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Figures]:
    lengths = tmp_path_factory.mktemp("lengths") / "lengths.json"
    lengths.write_text("[3, 20, 9]")
    rows = ("2x4", "3xtail")
    setup = make_setup(device="cpu", shape="tiny", rows=rows, lengths=lengths, repeats=1)
    lines: list[str] = []
    names = [name for name in SECTIONS if name != "cpu"]
    figures = dict(zip(names, run_sections(names, setup, lines.append), strict=True))
    assert all(any(line.startswith(name) for line in lines) for name in names)
    return figures


def test_every_section_measures(measured: dict[str, Figures]) -> None:
    for name, figures in measured.items():
        assert "refused" not in figures.columns, f"{name}: {figures.rows}"
        assert figures.rows
    assert [row[0] for row in measured["table"].rows] == ["2x4", "3xtail"]
    assert all(row[1] > 0 for row in measured["table"].rows)  # type: ignore[operator]
    assert [row[0] for row in measured["versions"].rows] == [1, 2, 3, 4]


def test_a_real_model_is_measured_beside_transformers(tmp_path: Path) -> None:
    save_tiny(tmp_path / "tiny")
    setup = replace(
        make_setup(device="cpu", directory=tmp_path / "tiny"),
        cpu_tail=RequestWorkload(name="3xtail", lengths=(2, 5, 30), prompt_tokens=8),
    )
    (figures,) = run_sections(["cpu"], setup, lambda _: None)
    assert [row[0] for row in figures.rows] == ["3xtail", "1x64"]
    assert "KV at its peak" in figures.note


def test_the_roofline_is_what_a_step_reads() -> None:
    """One request of two tokens: the second costs the weights and the KV of the prompt and the first."""
    hardware = DeviceSpeed(bytes_s=1e12, flops=1e30)
    workload = RequestWorkload(name="1x2", lengths=(2,), prompt_tokens=7)
    matrices = 28 * (1024 * (2 * 2048 + 2 * 1024) + 3 * 1024 * 3072) + 151_936 * 1024
    least_s = least_time_s(QWEN3_06B, workload, hardware, itemsize=2)
    assert least_s == pytest.approx((2 * matrices + 8 * 114_688) / 1e12)


def test_the_roofline_counts_only_rows_that_still_run() -> None:
    hardware = DeviceSpeed(bytes_s=1e12, flops=1e30)
    times = [
        least_time_s(QWEN3_06B, RequestWorkload(name="", lengths=lengths), hardware, itemsize=2)
        for lengths in ((100,), (100, 1), (100, 100))
    ]
    assert times[0] == times[1] < times[2] < 2 * times[0]


def test_a_slow_multiplier_bounds_the_prompts() -> None:
    hardware = DeviceSpeed(bytes_s=1e30, flops=1e12)
    short, long = (RequestWorkload(name="", lengths=(1,), prompt_tokens=length) for length in (10, 1000))
    ratio = least_time_s(QWEN3_06B, long, hardware, itemsize=2) / least_time_s(
        QWEN3_06B, short, hardware, itemsize=2
    )
    assert 60 < ratio < 110


def test_workloads_by_name(tmp_path: Path) -> None:
    assert parse_workload("3x5", ()).lengths == (5, 5, 5)
    assert parse_workload("2xtail", (9, 8, 7)).lengths == (9, 8)
    for wrong in ("3", "x5", "0x5", "3xlong", "4xtail"):
        with pytest.raises(ConfigError):
            parse_workload(wrong, (9, 8, 7))
    lengths = tmp_path / "lengths.json"
    lengths.write_text("[3, 1]")
    assert make_setup(device="cpu", rows=("2xtail",), lengths=lengths).workloads[0].lengths == (3, 1)
    lengths.write_text('["long"]')
    with pytest.raises(ConfigError, match="positive whole numbers"):
        make_setup(device="cpu", rows=("2xtail",), lengths=lengths)


def test_the_long_tail_is_long() -> None:
    lengths = long_tail()
    assert min(lengths) == 16
    assert 350 < sum(lengths) / len(lengths) < 650
    assert max(lengths) > 8 * sorted(lengths)[512]
    assert lengths == long_tail()


def test_prompts_are_distinct() -> None:
    requests = requests_of(parse_workload("50x2", ()), vocab_size=1000)
    assert len({each.prompt for each in requests}) == 50
    assert len({each.key for each in requests}) == 50


@pytest.mark.parametrize("num_versions", range(1, len(SHARES) + 1))
def test_requests_are_spread_as_said(num_versions: int) -> None:
    dealt = _dealt(256, num_versions)
    assert len(dealt) == 256
    assert set(dealt) == set(range(num_versions))


def test_the_reference_holds_every_default_row() -> None:
    assert [each.name for each in make_setup(device="cuda").workloads] == list(references().gpu.speeds)


def test_the_command_prints_a_table_or_json() -> None:
    options = ["engine", "--shape", "tiny", "--rows", "2x3", "--sections", "table", "--repeats", "1"]
    shown = CliRunner().invoke(app, options)
    assert shown.exit_code == 0, shown.output
    assert "of roofline" in shown.output
    printed = CliRunner().invoke(app, [*options, "--json"])
    (figures,) = json.loads(printed.stdout)
    assert figures["rows"][0][0] == "2x3"


def test_unknown_names_are_errors_that_name_the_known() -> None:
    setup = make_setup(device="cpu", shape="tiny")
    with pytest.raises(ConfigError, match="no section 'tabel'") as error:
        list(run_sections(["tabel"], setup, print))
    assert "table" in (error.value.hint or "")
    with pytest.raises(ConfigError, match="no shape"):
        make_setup(device="cpu", shape="huge")
