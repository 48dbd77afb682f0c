"""The benchmark measures what it says: every section on a tiny shape, and the sums behind its columns."""

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from dora_rl.bench.engine import throughput
from dora_rl.bench.engine.device_speed import DeviceSpeed
from dora_rl.bench.engine.engine_bench import make_setup
from dora_rl.bench.engine.features import SHARES, _dealt
from dora_rl.bench.engine.reference import gpu_reference, references
from dora_rl.bench.engine.roofline import least_time_s
from dora_rl.bench.engine.suite import SECTIONS, run_sections
from dora_rl.bench.engine.vllm_beside import measure_vllm
from dora_rl.bench.engine.vllm_process import VllmAnswer
from dora_rl.bench.engine.workloads import RequestWorkload, long_tail, parse_workload, requests_of, timed_runs
from dora_rl.bench.figures import Figures
from dora_rl.cli.bench import app
from dora_rl.core.errors import ConfigError
from dora_rl.model.hub_config import to_published
from dora_rl.model.random_models import QWEN3_06B, QWEN3_8B, QWEN3_MOE_15B
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
    texts = [(row[1], row[5], row[6]) for row in measured["guesses"].rows]
    assert [text for text, _, _ in texts] == ["new", "new", "replayed", "replayed"]
    assert all(made == right > 0 for _, made, right in texts[2:]), "replayed text is guessed right"  # type: ignore[operator]


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
    """One request of two tokens: the prompt costs the weights, the second token those and the KV so far."""
    hardware = DeviceSpeed(bytes_s=1e12, flops=1e30)
    workload = RequestWorkload(name="1x2", lengths=(2,), prompt_tokens=7)
    matrices = 28 * (1024 * (2 * 2048 + 2 * 1024) + 3 * 1024 * 3072) + 151_936 * 1024
    least_s = least_time_s(QWEN3_06B, workload, hardware, itemsize=2)
    assert least_s == pytest.approx((2 * 2 * matrices + 8 * 114_688) / 1e12)


def test_the_roofline_adds_up_operations() -> None:
    """Where products multiply and attention reads, a step takes both times, not the longer of the two."""
    rows, prompt_tokens = 256, 1000
    workload = RequestWorkload(name="", lengths=(2,) * rows, prompt_tokens=prompt_tokens)
    first = RequestWorkload(name="", lengths=(1,) * rows, prompt_tokens=prompt_tokens)
    hardware = DeviceSpeed(bytes_s=4e12, flops=8e14)
    step_s = least_time_s(QWEN3_8B, workload, hardware, itemsize=2) - least_time_s(
        QWEN3_8B, first, hardware, itemsize=2
    )
    matrices = 36 * (4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 12_288) + 151_936 * 4096
    multiplied_s = 2 * rows * matrices / 8e14
    read_s = 2 * rows * (prompt_tokens + 1) * 36 * 2 * 1024 / 4e12
    assert step_s == pytest.approx(multiplied_s + read_s)


def test_the_roofline_reads_the_experts_that_are_chosen() -> None:
    """One row reads as many experts as it has, many rows nearly all of them and no more."""
    hardware = DeviceSpeed(bytes_s=1e12, flops=1e30)
    expert_bytes = 2 * 24 * 3 * 2048 * 768
    rest = 24 * (2048 * (2 * 4096 + 2 * 512) + 2048 * 128) + 151_936 * 2048

    def step_bytes(rows: int) -> float:
        short, long = (
            RequestWorkload(name="", lengths=(length,) * rows, prompt_tokens=1) for length in (1, 2)
        )
        took = [least_time_s(QWEN3_MOE_15B, each, hardware, itemsize=2) for each in (short, long)]
        kv = 2 * 2 * 24 * 2 * 512 * rows
        return 1e12 * (took[1] - took[0]) - 2 * rest - kv

    assert step_bytes(1) == pytest.approx(8 * expert_bytes)
    assert step_bytes(16) == pytest.approx(128 * (1 - (1 - 8 / 128) ** 16) * expert_bytes)
    assert step_bytes(1024) == pytest.approx(128 * expert_bytes)


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


def test_short_runs_are_repeated() -> None:
    """The first run warms up; then as many as asked for, and more while they are short together."""
    times_s = iter([9.0, 1.0, 0.5, 2.0, 4.0])
    assert timed_runs(lambda: next(times_s), repeats=2, least_s=3.0) == (1.0, 0.5, 2.0)
    times_s = iter([9.0, 4.0, 5.0, 6.0])
    assert timed_runs(lambda: next(times_s), repeats=2, least_s=3.0) == (4.0, 5.0)


def test_vllm_that_is_installed_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table's ratio is to what vLLM did here; without it, to what is written down, and it says which."""
    setup = make_setup(device="cuda", shape="qwen3-8b", rows=("1x256", "2x2"), is_vllm_beside=True)
    answer = VllmAnswer(version="9.9", times_s={"1x256": (2.0, 1.0)})
    monkeypatch.setattr(throughput, "is_vllm_installed", lambda: True)
    monkeypatch.setattr(throughput, "measure_vllm", lambda setup, say: answer)
    beside = throughput.vllm_speeds(setup, print)
    assert beside.tokens_s == {"1x256": 256.0}
    assert "vLLM 9.9 ran beside" in beside.source
    known = throughput.vllm_speeds(replace(setup, is_vllm_beside=False), print)
    assert known.tokens_s["1x256"] == 186
    assert "2026-11-16" in known.source


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
    for figures in references().gpu:
        setup = make_setup(device="cuda", shape=figures.shape)
        assert [each.name for each in setup.workloads] == list(figures.speeds)


def test_a_shape_is_a_configuration_too(tmp_path: Path) -> None:
    """A published configuration is measured; one of known sizes meets its figures whatever it is called."""
    published = to_published(QWEN3_MOE_15B) | {"eos_token_id": 151_645, "intermediate_size": 8192}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(published))
    for shape in (str(path), str(tmp_path)):
        setup = make_setup(device="cuda", shape=shape)
        assert setup.model.experts == QWEN3_MOE_15B.experts
        assert gpu_reference(setup.model) == gpu_reference(QWEN3_MOE_15B) is not None
    assert gpu_reference(msgspec.structs.replace(setup.model, num_layers=48)) is None


_FAKE_VLLM = """
__version__ = "0.0-fake"

class SamplingParams:
    def __init__(self, *, max_tokens, ignore_eos, logprobs, **rest):
        assert ignore_eos and logprobs == 0, rest
        self.max_tokens = max_tokens

class Completion:
    def __init__(self, length):
        self.token_ids = self.logprobs = [0] * length

class Output:
    def __init__(self, length):
        self.outputs = [Completion(length)]

class LLM:
    def __init__(self, *, model, load_format, enable_prefix_caching, max_num_seqs, **rest):
        assert load_format == "dummy" and not enable_prefix_caching, rest
        self.most = max_num_seqs

    def generate(self, prompts, sampling, use_tqdm):
        assert len(prompts) <= self.most
        if len(prompts) == FAILS_AT:
            raise RuntimeError("out of memory")
        return [Output(each.max_tokens) for each in sampling]
"""


@pytest.mark.parametrize("fails_at", [pytest.param(0, marks=pytest.mark.slow), 3])
def test_vllm_is_run_beside_us_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    """In a process of its own; if it fails, what it had done counts and where it wrote is said."""
    (tmp_path / "vllm.py").write_text(_FAKE_VLLM.replace("FAILS_AT", str(fails_at)))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    setup = make_setup(device="cpu", shape="tiny", rows=("2x4", "3x2"), repeats=1)
    lines: list[str] = []
    answer = measure_vllm(setup, lines.append)
    assert answer is not None
    assert answer.version == "0.0-fake"
    assert list(answer.times_s) == (["2x4"] if fails_at else ["2x4", "3x2"])
    assert [line.split()[1] for line in lines if line.endswith("tokens/s")] == list(answer.times_s)
    if fails_at:
        log = Path(lines[-1].rpartition(" ")[2])
        assert "out of memory" in log.read_text()
        shutil.rmtree(log.parent)


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
