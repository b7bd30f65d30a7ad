"""Problems, options, devices, streams and plans."""

import dataclasses
import functools
import os
import sys
import threading
from typing import Any, NamedTuple

from . import _core


@dataclasses.dataclass(frozen=True)
class Problem:
    """What is to be computed; a plan is made from it. dtypes are 'float32', 'bfloat16' or 'float16'."""

    phase: str = 'extend'  # extend, step or verify
    H: int = 0  # q/k heads
    HV: int = 0  # value heads; value head hv reads q/k head hv // (HV // H)
    K: int = 128
    V: int = 128
    io: str = 'float32'  # q, k, v, out
    decay: str = 'float32'  # the same as io, or float32
    beta: str = 'float32'  # float32 or bfloat16
    state_in: str = 'float32'
    state_out: str = 'float32'
    checkpoints: str = 'float32'
    gate: str = 'bounded'  # bounded, softplus or given_log_decay
    lower_bound: float = -5.0  # natural log; bounded only
    beta_mode: str = 'logits'  # logits (sigmoid in the kernel) or given
    beta_doubled: bool = False
    l2norm: bool = True
    scale: float = 0.0  # 0 = K**-0.5
    seq_int64: bool = False
    D: int = 0  # draft tokens a row, verify only
    fused_step: bool = False
    conv: str = 'float32'  # fused step: dtype of x and of the windows
    max_rows: int = 0
    max_tokens: int = 0
    max_checkpoints: int = 0


@dataclasses.dataclass(frozen=True)
class Options:
    backend: str = 'auto'  # or a name of backends()
    extend_block_tokens: int = 0  # multiple of 64; 0 = the plan's own
    mode: str = 'exact'  # exact or fast
    verify_matches_step: bool = True


class Backend(NamedTuple):
    name: str
    device: str
    extend: bool
    step: bool
    verify: bool
    checkpoints: bool
    summary: str


def backends() -> list[Backend]:
    """The backends of this build, in the order in which 'auto' tries them."""
    return [Backend(**row) for row in _core.backend_table()]


def backend_misses(backend: str, problem: Problem, device: _core.Device | None = None) -> list[str]:
    """What `backend` lacks for `problem`; empty if it can run it."""
    return _core.backend_misses(backend, problem, device or cpu())


def _cpu_count() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1


@functools.cache
def _cpu(threads: int, isa: str) -> _core.Device:
    return _core.cpu_device(threads, isa)


def cpu(threads: int | None = None, isa: str = 'auto') -> _core.Device:
    """The CPU with so many workers (default: the CPUs that this process may use). isa: auto, baseline, avx2, avx512."""
    return _cpu(threads or _cpu_count(), isa)


@functools.cache
def cuda(ordinal: int = 0) -> _core.Device:
    """A CUDA device. NotImplementedError says why there is none."""
    return _core.cuda_device(ordinal)


def device_of(x: Any) -> _core.Device:
    """The device on which `x` lies."""
    torch = sys.modules.get('torch')
    if torch is not None and isinstance(x, torch.Tensor) and x.device.type == 'cuda':
        return cuda(x.device.index)
    return cpu()


def cuda_device_count() -> tuple[int, str]:
    """Number of CUDA devices, and why there are none."""
    return _core.cuda_device_count()


_streams: dict[Any, _core.Stream] = {}
_streams_lock = threading.Lock()


def stream(device: _core.Device, handle: int | None = None) -> _core.Stream:
    """The stream of `device` that calls use; one object a CUDA handle (an integer, as torch's Stream.cuda_stream).

    handle None: on the CPU the process's worker pool; on CUDA torch's current stream if torch is imported, else the
    default stream.
    """
    if device.kind == 'cpu':
        if handle is not None:
            raise ValueError(f'stream: wanted None or a kadence.Stream on the CPU, got the handle {handle}')
        key = ('cpu', device.threads, device.isa)
    else:
        if handle is None:
            torch = sys.modules.get('torch')
            handle = torch.cuda.current_stream(device.ordinal).cuda_stream if torch is not None else 0
        key = ('cuda', device.ordinal, handle)
    with _streams_lock:
        if key not in _streams:
            _streams[key] = _core.cpu_stream(key[1], key[2]) if key[0] == 'cpu' else _core.cuda_stream(key[1], key[2])
        return _streams[key]


def stream_of(plan: _core.Plan, given: '_core.Stream | int | None') -> _core.Stream:
    """`given` if it is a stream already, else the stream of the plan's device with that handle."""
    return given if isinstance(given, _core.Stream) else stream(plan.device, given)


def plan_kda(problem: Problem, device: _core.Device | None = None, options: Options = Options()) -> _core.Plan:
    """Validates `problem` and chooses backend, launch shape and workspace; host work only.

    ValueError names the field that can never work; NotImplementedError lists what each backend of the device lacks.
    """
    return _core.make_plan(problem, device or cpu(), options)
