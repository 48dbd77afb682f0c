"""What an instance measures of its own time: the seconds it had requests and did not decode."""

from dora_rl.core.record import Record


class InstanceSeconds(Record, frozen=True, omit_defaults=True):
    """Seconds since an instance joined in which decoding stood still for something else."""

    prefill_s: float = 0.0
    """Computing prompts and what environments appended."""
    recompute_s: float = 0.0
    """Computing once more what had been computed and was lost, dropped or left behind."""
    kv_moves_s: float = 0.0
    """Copying KV to and from host memory or another instance."""
    weight_loads_s: float = 0.0
    """Writing the weights of another version."""
    other_s: float = 0.0
    """Obeying commands and reporting."""
    pass_rows: float = 0.0
    """Requests whose decoding takes as long as a version's pass by itself; 0 where versions share one."""
