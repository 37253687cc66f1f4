"""What a config costs, counted without building a model."""

from .cache_size import CacheSize, kv_cache_bytes, kv_cache_size
from .config_diff import diff_configs, diff_table
from .count import count, count_table
from .counts import ParameterCounts, count_parameters
from .describe import describe, describe_table, describe_text
from .flops import FlopCounts, flops_per_token
from .memory_plan import fewest_devices, plan_memory

__all__ = [
    "CacheSize",
    "FlopCounts",
    "ParameterCounts",
    "count",
    "count_parameters",
    "count_table",
    "describe",
    "describe_table",
    "describe_text",
    "diff_configs",
    "diff_table",
    "fewest_devices",
    "flops_per_token",
    "kv_cache_bytes",
    "kv_cache_size",
    "plan_memory",
]
