"""What the compat modules share: [B,T,...] arrays to packed rows, plans by need, refusals."""

import dataclasses
import functools

from .. import _core
from ..arrays import Array, address, capturing, dense, dtype_name, is_torch, new, on_host, slots, to_list, widened, zeros
from ..operators import device_metadata, extend, metadata, step
from ..planning import Options, Problem, device_of, plan_kda

FLOATS = ('float32', 'bfloat16', 'float16')


def refuse(function: str, argument: str, why: str):
    raise NotImplementedError(f'{function}: {argument} is not supported: {why}')


def invalid(function: str, what: str, wanted, got):
    raise ValueError(f'{function}: {what}: wanted {wanted}, got {got}')


def want_shape(function: str, name: str, x: Array, shape):
    got = tuple(x.shape)
    if len(got) != len(shape) or any(w is not None and w != g for w, g in zip(shape, got)):
        invalid(function, f'{name} shape', [('any' if w is None else w) for w in shape], list(got))


def want_dtype(function: str, name: str, x: Array, wanted):
    wanted = (wanted,) if isinstance(wanted, str) else wanted
    got = dtype_name(x)
    if got not in wanted:
        hint = ' (view bit patterns as ml_dtypes.bfloat16)' if got == 'uint16' else ''
        invalid(function, f'{name} dtype', ' or '.join(wanted), got + hint)


def want_states(function: str, name: str, x: Array | None, shape, dtypes=FLOATS):
    """States of `shape` (None = any) and one of `dtypes`, where there are any."""
    if x is not None:
        want_shape(function, name, x, shape)
        want_dtype(function, name, x, dtypes)


def flat_output(function: str, name: str, call: 'Call', out: Array) -> Array:
    """The caller's `out` [B,T,HV,V] as rows, refused where that would be a copy."""
    want_shape(function, name, out, (call.B, call.T, call.HV, call.V))
    want_dtype(function, name, out, call.io)
    flat = packed(out, strict=True)
    if not shares(flat, out):
        refuse(function, f'{name} of this layout', 'batch and tokens must be one dimension without a copy')
    return flat


def shares(a: Array, b: Array) -> bool:
    return address(a) == address(b)


def no_grad(function: str, **arrays):
    for name, x in arrays.items():
        if x is not None and getattr(x, 'requires_grad', False):
            torch = __import__('torch')
            if torch.is_grad_enabled():
                refuse(function, f'{name}.requires_grad', 'Kadence has no backward; use torch.no_grad() or detach()')


def packed(x: Array, strict: bool = False) -> Array:
    """[B,T,...] -> [B*T,...] with dense heads and channels; a copy only where the layout forces one."""
    if is_torch(x):
        x = x.detach() if x.requires_grad else x
        if x.is_contiguous() and x.data_ptr() % 16 == 0 and (x.ndim == 3 or x.shape[2] * x.shape[3] * x.element_size() % 16 == 0):
            return x.flatten(0, 1)  # the usual case, without the questions below
    shape = (x.shape[0] * x.shape[1], *x.shape[2:])
    if x.shape[0] == 1:
        flat = x[0]
    else:
        flat = x.reshape(shape)
    return flat if strict or _row_dense(flat) else dense(flat)


def _row_dense(x: Array) -> bool:
    size = 1
    strides = x.stride() if is_torch(x) else tuple(s // x.itemsize for s in x.strides)
    for n, s in zip(reversed(x.shape[1:]), reversed(strides[1:])):
        if n > 1 and s != size:
            return False
        size *= n
    itemsize = x.element_size() if is_torch(x) else x.itemsize
    beta = x.ndim == 2  # [T,HV]: its element's alignment is enough
    if address(x) % (itemsize if beta else 16):
        return False
    return x.shape[0] <= 1 or (strides[0] >= size and (beta or strides[0] * itemsize % 16 == 0))


def exact_float32(function: str, name: str, x: Array | None) -> Array | None:
    """float32 parameters; float16 and bfloat16 are widened (exact), float64 is refused."""
    if x is None or dtype_name(x) == 'float32':
        return None if x is None else dense(x.detach() if is_torch(x) else x)
    want_dtype(function, name, x, FLOATS)
    return dense(widened(x))


@dataclasses.dataclass
class Call:
    """One call, resolved: packed arrays, gate and beta modes."""

    function: str
    q: Array  # [B,T,H,K]
    k: Array
    v: Array  # [B,T,HV,V]
    g: Array  # [B,T,HV,K]
    beta: Array  # [B,T,HV]
    scale: float | None
    gate: str
    lower_bound: float | None
    beta_logits: bool
    beta_doubled: bool
    l2norm: bool
    A_log: Array | None
    dt_bias: Array | None
    backend: str = 'auto'

    def __post_init__(self):
        f = self.function
        no_grad(f, q=self.q, k=self.k, v=self.v, g=self.g, beta=self.beta, A_log=self.A_log, dt_bias=self.dt_bias)
        if self.q.ndim != 4:
            invalid(f, 'q shape', '[B, T, H, K]', list(self.q.shape))
        self.B, self.T, self.H, self.K = self.q.shape
        if self.v.ndim != 4:
            invalid(f, 'v shape', '[B, T, HV, V]', list(self.v.shape))
        self.HV, self.V = self.v.shape[2:]
        want_shape(f, 'k', self.k, (self.B, self.T, self.H, self.K))
        want_shape(f, 'v', self.v, (self.B, self.T, None, None))
        want_shape(f, 'g', self.g, (self.B, self.T, self.HV, self.K))
        if self.beta.ndim == 4:
            refuse(f, 'beta of shape [B, T, HV, V]', 'one beta a value head, [B, T, HV]')
        want_shape(f, 'beta', self.beta, (self.B, self.T, self.HV))
        self.io = dtype_name(self.q)
        want_dtype(f, 'q', self.q, FLOATS)
        want_dtype(f, 'k', self.k, self.io)
        want_dtype(f, 'v', self.v, self.io)
        want_dtype(f, 'g', self.g, FLOATS)
        want_dtype(f, 'beta', self.beta, FLOATS)
        # Widening to float32 is exact; the operators read these two as float32 or as is.
        if dtype_name(self.g) not in (self.io, 'float32'):
            self.g = widened(self.g)
        if dtype_name(self.beta) == 'float16':
            self.beta = widened(self.beta)
        if self.scale == 0:
            refuse(f, 'scale=0', 'the operators take 0 as K**-0.5')
        self.A_log = exact_float32(f, 'A_log', self.A_log)
        self.dt_bias = exact_float32(f, 'dt_bias', self.dt_bias)
        if self.gate != 'given_log_decay' and self.A_log is None:
            self.A_log = zeros(self.q, (self.HV,), 'float32')  # a factor of 1

    def problem(self, **fields) -> Problem:
        return Problem(
            H=self.H, HV=self.HV, K=self.K, V=self.V, io=self.io, decay=dtype_name(self.g), beta=dtype_name(self.beta), gate=self.gate,
            lower_bound=-5.0 if self.lower_bound is None else float(self.lower_bound), beta_mode='logits' if self.beta_logits else 'given',
            beta_doubled=self.beta_doubled, l2norm=self.l2norm, scale=0.0 if self.scale is None else float(self.scale), **fields,
        )

    def plan(self, problem: Problem) -> _core.Plan:
        return cached_plan(problem, device_of(self.q), self.backend)

    def inputs(self):
        return [packed(x) for x in (self.q, self.k, self.v, self.g, self.beta)]

    def run_extend(self, plan: _core.Plan, rows: _core.Metadata, out: Array, **views) -> None:
        extend(plan, *self.inputs(), metadata=rows, A_log=self.A_log, dt_bias=self.dt_bias, out=out, **views)

    def run_step(self, plan: _core.Plan, slot_in: Array, slot_out: Array, out: Array, **views) -> None:
        step(plan, *self.inputs(), slot_in=slot_in, slot_out=slot_out, A_log=self.A_log, dt_bias=self.dt_bias, out=out, **views)


@functools.lru_cache(maxsize=256)
def cached_plan(problem: Problem, device: _core.Device, backend: str) -> _core.Plan:
    return plan_kda(problem, device, Options(backend=backend))


@dataclasses.dataclass
class Rows:
    """Row offsets: known on the host (`begin`), or only on the device (`array`)."""

    count: int
    begin: list[int] | None
    array: Array | None

    @property
    def int64(self) -> bool:
        return self.begin is None and dtype_name(self.array) == 'int64'


def rows_of(call: Call, cu_seqlens: Array | None, cu_seqlens_cpu: Array | None = None, need_host: bool = False, on_device: bool = False) -> Rows:
    """Host offsets without a device synchronisation where there is a way; else the device's unless the host needs them.

    While a CUDA graph is captured (or with on_device) nothing is uploaded: offsets are the device's, or made there.
    """
    if capturing(call.q) or on_device:
        if need_host:
            refuse(call.function, 'return_intermediate_states in a CUDA graph', 'its depths come from the host; use kadence.extend with device_metadata')
        if cu_seqlens is None:
            return Rows(call.B, None, slots(call.B + 1, call.q) * call.T)
        cu_seqlens_cpu = None
        if on_host(cu_seqlens) and not on_host(call.q):
            invalid(call.function, 'cu_seqlens in a CUDA graph', 'an array on the device of q', 'one in host memory')
    elif cu_seqlens is None and cu_seqlens_cpu is None:
        return Rows(call.B, [i * call.T for i in range(call.B + 1)], None)
    if call.B != 1:
        invalid(call.function, 'batch size with cu_seqlens', 1, call.B)
    given = cu_seqlens if cu_seqlens is not None else cu_seqlens_cpu
    if given.ndim != 1 or given.shape[0] < 1:
        invalid(call.function, 'cu_seqlens shape', '[N + 1]', list(given.shape))
    want_dtype(call.function, 'cu_seqlens', given, ('int32', 'int64'))
    count = given.shape[0] - 1
    host = cu_seqlens_cpu if cu_seqlens_cpu is not None else cu_seqlens if need_host or (on_host(cu_seqlens) and not on_device) else None
    if host is None:
        return Rows(count, None, dense(cu_seqlens))
    begin = to_list(host)
    if len(begin) != count + 1:
        invalid(call.function, 'cu_seqlens_cpu', f'{count + 1} entries', len(begin))
    if begin[-1] != call.T:
        invalid(call.function, 'cu_seqlens end', f'the {call.T} tokens of q', begin[-1])
    return Rows(count, begin, None)


def host_metadata(call: Call, plan: _core.Plan, rows: Rows, state_in, state_out, sizes, checkpoints, shared: str) -> _core.Metadata:
    # torch's allocator hands out memory in stream order; allocating and freeing here would wait for the device.
    buffer = None if on_host(call.q) else new(call.q, (plan.metadata_bytes,), 'uint8')
    return metadata(plan, rows.begin, state_in, state_out, checkpoints=checkpoints, slots=sizes, tokens=call.B * call.T, shared=shared, buffer=buffer)


def upload(call: Call, plan: _core.Plan, rows: Rows, has_in: bool, has_out: bool, sizes, checkpoints=None, shared='none') -> _core.Metadata:
    """Metadata of either kind for row i on slot i (has_in, has_out False: -1, no slot)."""
    n = rows.count
    if rows.begin is not None:
        index, none = range(n), [-1] * n
        return host_metadata(call, plan, rows, index if has_in else none, index if has_out else none, sizes, checkpoints, shared)
    if checkpoints is not None:
        raise AssertionError('checkpoints by depth need the lengths on the host')
    return device_metadata(plan, rows.array, slots(n, call.q, has_in), slots(n, call.q, has_out))


def copy_rows_converted(call: Call, source: Array | None, target: Array, places: list[int], source_dtype: str, target_dtype: str) -> None:
    """target[places[i]] <- source[i] (zeros without a source), rounded once: extend's rule for rows of length zero."""
    n = len(places)
    problem = call.problem(state_in=source_dtype, state_out=target_dtype, max_rows=n, max_tokens=0)
    plan = call.plan(problem)
    index = list(range(n)) if source is not None else [-1] * n
    rows = metadata(plan, [0] * (n + 1), index, places, slots=(n if source is not None else 0, target.shape[0], 0), tokens=0, shared='none')
    empty = [new(x, (0, *x.shape[2:])) for x in (call.q, call.k, call.v, call.g, call.beta)]
    extend(plan, *empty, metadata=rows, A_log=call.A_log, dt_bias=call.dt_bias, out=new(call.v, (0, call.HV, call.V)),
           states_in=source, states_out=target)
