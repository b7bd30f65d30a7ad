"""Kadence: Kimi Delta Attention operators on CPU and CUDA, on any array that speaks DLPack.

Plan, then run: `plan_kda` sees host facts only (sizes, dtypes, gate, bounds) and picks a backend; `extend`, `step`,
`verify`, `commit` and the convolutions then run that plan on arrays. Arrays are never copied or converted: numpy on the
CPU, torch CUDA tensors on a GPU (the current torch stream unless `stream` is given).

Errors: ValueError for arguments that can never work, NotImplementedError for what no backend does (the message lists
what each one lacks), RuntimeError for the device.
"""

from . import compat
from ._core import Device, Metadata, Plan, Stream, __version__, built_with_cuda, chunk_tokens
from .operators import (
    commit,
    conv1d_extend,
    conv1d_step,
    conv1d_verify,
    copy_states,
    device_metadata,
    extend,
    fused_step,
    metadata,
    step,
    verify,
)
from .planning import Options, Problem, backend_misses, backends, cpu, cuda, cuda_device_count, plan_kda, stream

__all__ = [
    'Device', 'Metadata', 'Options', 'Plan', 'Problem', 'Stream', '__version__', 'backend_misses', 'backends',
    'built_with_cuda', 'chunk_tokens', 'commit', 'compat', 'conv1d_extend', 'conv1d_step', 'conv1d_verify', 'copy_states',
    'cpu', 'cuda', 'cuda_device_count', 'device_metadata', 'extend', 'fused_step', 'metadata', 'plan_kda', 'step', 'stream',
    'verify',
]
