"""The counters of a GPU are asked for the time between two calls, and left alone where there are none."""

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from dora_rl.bench.schedules.machine_use import GpuUse, opened_counter


class Unsupported(Exception):
    """NVML's own."""


def fake_nvml(*, is_supported: bool = True, does_sample: bool = True) -> Any:
    """A library whose samples are numbered, and whose metric says which two it was asked about."""
    nvml = ModuleType("pynvml")
    taken = iter(range(100))

    def sample_get(device: object, sample: Any) -> Any:
        if not does_sample:
            raise Unsupported
        sample.number = next(taken)
        return sample

    def metrics_get(asked: Any) -> None:
        assert (asked.version, asked.numMetrics, asked.metrics[0].metricId) == (1, 1, 7)
        asked.metrics[0].nvmlReturn = 0 if asked.sample2.number != 4 else 3
        asked.metrics[0].value = 10.0 * asked.sample1.number + asked.sample2.number

    vars(nvml).update(
        NVMLError=Unsupported,
        NVML_SUCCESS=0,
        NVML_GPM_METRICS_GET_VERSION=1,
        NVML_GPM_METRIC_GRAPHICS_UTIL=7,
        c_nvmlGpmMetricsGet_t=lambda: SimpleNamespace(metrics=[SimpleNamespace()]),
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlGpmQueryDeviceSupport=lambda device: SimpleNamespace(isSupportedDevice=is_supported),
        nvmlGpmSampleAlloc=SimpleNamespace,
        nvmlGpmSampleGet=sample_get,
        nvmlGpmMetricsGet=metrics_get,
    )
    return nvml


def test_each_call_counts_from_the_last_sample_to_a_new_one() -> None:
    count = opened_counter(fake_nvml())
    assert count is not None
    assert [count() for _ in range(4)] == [
        pytest.approx(0.12),
        pytest.approx(0.23),
        None,
        pytest.approx(0.45),
    ]


@pytest.mark.parametrize("missing", [{"is_supported": False}, {"does_sample": False}], ids=str)
def test_where_nothing_is_counted_there_is_no_counter(missing: dict[str, bool]) -> None:
    assert opened_counter(fake_nvml(**missing)) is None
    assert opened_counter(None) is None
    old = ModuleType("pynvml")
    vars(old).update(
        NVMLError=Unsupported, nvmlInit=lambda: None, nvmlDeviceGetHandleByIndex=lambda index: index
    )
    assert opened_counter(old) is None


def test_the_share_is_of_the_readings_between_two_times() -> None:
    use = GpuUse()
    use.readings = [(1.0, 0.2), (2.0, 0.9), (3.0, 0.7), (4.0, 0.0)]
    assert use.busy_share(1.5, 3.5) == pytest.approx(0.8)
    assert use.busy_share(5.0, 6.0) is None
