"""What the package needs from numpy and torch beyond DLPack: new arrays like another, host values, dtype names."""

import sys
from typing import Any

Array = Any  # numpy.ndarray, torch.Tensor


def is_torch(x: Array) -> bool:
    torch = sys.modules.get('torch')
    return torch is not None and isinstance(x, torch.Tensor)


def dtype_name(x: Array) -> str:
    """'float32', 'bfloat16', 'uint16', 'int64', ..."""
    return str(x.dtype).removeprefix('torch.')


def new(like: Array, shape, dtype: str | None = None) -> Array:
    """An uninitialised array of the kind (and device) of `like`; dtype by name, None = that of `like`.

    bfloat16 in numpy is ml_dtypes.bfloat16; a uint16 `like` stays uint16.
    """
    if is_torch(like):
        torch = sys.modules['torch']
        return like.new_empty(tuple(shape), dtype=like.dtype if dtype is None else getattr(torch, dtype))
    import numpy as np

    if dtype is None or dtype == dtype_name(like):
        return np.empty(shape, like.dtype)
    if dtype == 'bfloat16':
        try:
            from ml_dtypes import bfloat16
        except ImportError as e:
            raise ValueError('a bfloat16 result in numpy needs ml_dtypes (pip install ml_dtypes), or a uint16 array given as out') from e
        return np.empty(shape, bfloat16)
    return np.empty(shape, dtype)


def zeros(like: Array, shape, dtype: str) -> Array:
    x = new(like, shape, dtype)
    x[...] = 0
    return x


def slots(count: int, like: Array, present: bool = True) -> Array:
    """int32 0..count-1 (or -1, count times) on the device of `like`, made there: no copy from the host, no wait."""
    if is_torch(like):
        torch = sys.modules['torch']
        if present:
            return torch.arange(count, dtype=torch.int32, device=like.device)
        return torch.full((count,), -1, dtype=torch.int32, device=like.device)
    import numpy as np

    return np.arange(count, dtype=np.int32) if present else np.full(count, -1, np.int32)


def on_host(x: Array) -> bool:
    return not is_torch(x) or x.device.type == 'cpu'


def capturing(x: Array) -> bool:
    """Whether the current stream of x's device is being captured into a CUDA graph."""
    return is_torch(x) and x.is_cuda and sys.modules['torch'].cuda.is_current_stream_capturing()


def to_list(x) -> list[int]:
    """Host integers of a list, a range or an array (a device array is waited for)."""
    return [int(i) for i in (x.tolist() if hasattr(x, 'tolist') else x)]


def widened(x: Array) -> Array:
    """float32 of a float16 or bfloat16 array: exact, never a rounding."""
    return x.float() if is_torch(x) else x.astype('float32')


def address(x: Array) -> int:
    return x.data_ptr() if is_torch(x) else x.ctypes.data


def dense(x: Array) -> Array:
    if is_torch(x):
        return x.contiguous()
    import numpy as np

    return np.ascontiguousarray(x)


def swap_last_two(x: Array) -> Array:
    return dense(x.transpose(-1, -2) if is_torch(x) else x.swapaxes(-1, -2))
