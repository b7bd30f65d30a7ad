"""The operators on arrays.

Shapes: T tokens, N rows, H q/k heads, HV value heads, K and V channels, C convolution channels, D drafts, S slots.
Heads and channels are dense, the pitch from token to token (slot to slot, layer to layer) is free: slices of one fused
projection or of one pool need no copy. dtypes are the plan's; a uint16 array is read as bfloat16 bits where the plan says
bfloat16. `stream`: a kadence.Stream or a CUDA handle (torch's Stream.cuda_stream), see kadence.stream.
`workspace`: uint8 array of Plan.workspace_bytes, 256-byte aligned; None = torch's allocator for torch CUDA tensors on the
current stream, else memory that the stream object keeps (calls on one stream take turns). Results that are made here are
allocated on torch's current stream, whatever `stream` says.
"""

from collections.abc import Sequence

from . import _core
from .arrays import Array, dtype_name, is_torch, new, to_list
from .planning import device_of, stream_of
from .planning import stream as _stream

StreamLike = _core.Stream | int | None


def _space(plan: _core.Plan, given: Array | None, like: Array, stream: StreamLike) -> Array | None:
    """Memory of a call on torch's current stream comes from torch: stream-ordered, and allowed in a graph capture."""
    if given is None and stream is None and plan.workspace_bytes and is_torch(like) and like.is_cuda:
        return new(like, (plan.workspace_bytes,), 'uint8')
    return given


def metadata(
    plan: _core.Plan,
    seq_begin: Sequence[int],
    state_in: Sequence[int],
    state_out: Sequence[int],
    *,
    checkpoints: Sequence[Sequence[tuple[int, int]]] | None = None,
    slots: int | tuple[int, int, int] = 0,
    tokens: int | None = None,
    shared: str = 'all',
    buffer: Array | None = None,
    stream: StreamLike = None,
) -> _core.Metadata:
    """Rows of an extend call, validated on the host (ValueError names row and field) and copied to the device.

    seq_begin [N+1]; state_in [N], -1 = zeros; state_out [N], -1 = no store; checkpoints: for each row a list of
    (depth, slot), depth in tokens since the row's start, a multiple of 64, ascending, the row's end included, slot -1 =
    skip. slots: slots of the states, or of (states_in, states_out, checkpoints) when these are separate arrays. shared: which
    of the three are one array ('all', 'states', 'none'); a slot that is written is read only as its own row's state_in. tokens: T of the token arrays (default: the last offset); tokens past the rows get zeros.
    buffer: uint8 array of Plan.metadata_bytes that receives them; a captured CUDA graph replays after a new call with the same
    one. None = memory of the object's own. One object serves every layer and the convolution.
    """
    begin = to_list(seq_begin)
    ckpt_begin: list[int] = []
    depth: list[int] = []
    slot: list[int] = []
    if checkpoints is not None:
        ckpt_begin.append(0)
        for row in checkpoints:
            depth += [int(d) for d, _ in row]
            slot += [int(s) for _, s in row]
            ckpt_begin.append(len(depth))
    sizes = (slots, slots, slots) if isinstance(slots, int) else slots
    total = tokens if tokens is not None else begin[-1] if begin else 0
    return _core.upload_metadata(
        plan, stream_of(plan, stream), total, begin, to_list(state_in), to_list(state_out), ckpt_begin, depth, slot, *sizes, shared, buffer
    )


def device_metadata(
    plan: _core.Plan,
    seq_begin: Array,
    state_in: Array,
    state_out: Array,
    *,
    ckpt_begin: Array | None = None,
    ckpt_depth: Array | None = None,
    ckpt_slot: Array | None = None,
    status: Array | None = None,
) -> _core.Metadata:
    """The same as arrays on the device, whose values the host never sees (no copy, no wait).

    seq_begin [N+1] int32, or int64 with Problem.seq_int64; the others int32: state_in, state_out [N], ckpt_begin [N+1],
    ckpt_depth, ckpt_slot [M]. A row with bad values is skipped: its outputs are zeros, nothing is stored, and
    (row, reason) is left in status [2], which the caller zeroes.
    """
    return _core.device_metadata(plan, plan.device, seq_begin, state_in, state_out, ckpt_begin, ckpt_depth, ckpt_slot, status)


def extend(
    plan: _core.Plan,
    q: Array,
    k: Array,
    v: Array,
    decay: Array,
    beta: Array,
    *,
    metadata: _core.Metadata,
    A_log: Array | None = None,
    dt_bias: Array | None = None,
    states: Array | None = None,
    states_in: Array | None = None,
    states_out: Array | None = None,
    checkpoints: Array | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
    stream: StreamLike = None,
) -> Array:
    """Prefill of packed rows; returns out [T,HV,V].

    q, k [T,H,K]; v [T,HV,V]; decay [T,HV,K]; beta [T,HV]; A_log [HV], dt_bias [HV,K] float32. `states` [S,HV,V,K] is the
    pool of all three; states_in, states_out and checkpoints name separate ones.
    """
    out = new(v, v.shape) if out is None else out
    _core.run_extend(
        plan, stream_of(plan, stream), q, k, v, decay, beta, A_log, dt_bias, out, metadata,
        states if states_in is None else states_in,
        states if states_out is None else states_out,
        states if checkpoints is None else checkpoints,
        _space(plan, workspace, out, stream),
    )
    return out


def step(
    plan: _core.Plan,
    q: Array,
    k: Array,
    v: Array,
    decay: Array,
    beta: Array,
    *,
    slot_in: Array,
    slot_out: Array | None = None,
    A_log: Array | None = None,
    dt_bias: Array | None = None,
    states: Array | None = None,
    states_in: Array | None = None,
    states_out: Array | None = None,
    out: Array | None = None,
    status: Array | None = None,
    workspace: Array | None = None,
    stream: StreamLike = None,
) -> Array:
    """One token a row (T = N); returns out [N,HV,V]. slot_in, slot_out [N] int32; -1 = padded row, zeros out, no store."""
    out = new(v, v.shape) if out is None else out
    _core.run_step(
        plan, stream_of(plan, stream), q, k, v, decay, beta, A_log, dt_bias, out,
        slot_in, slot_in if slot_out is None else slot_out,
        states if states_in is None else states_in,
        states if states_out is None else states_out,
        None, status, _space(plan, workspace, out, stream),
    )
    return out


def fused_step(
    plan: _core.Plan,
    x: Array,
    decay: Array,
    beta: Array,
    z: Array,
    *,
    conv_weight: Array,
    conv_bias: Array | None = None,
    windows: Array,
    norm_weight: Array,
    eps: float = 1e-5,
    slot_in: Array,
    slot_out: Array | None = None,
    A_log: Array | None = None,
    dt_bias: Array | None = None,
    states: Array | None = None,
    states_in: Array | None = None,
    states_out: Array | None = None,
    out: Array | None = None,
    status: Array | None = None,
    workspace: Array | None = None,
    stream: StreamLike = None,
) -> Array:
    """Convolution, one token and gated RMSNorm in one call (Problem.fused_step); returns out [N,HV,V].

    x [N,C] raw q|k|v, C = 2*H*K + HV*V; conv_weight [C,4], conv_bias [C] float32; windows [S,3,C], updated; z [N,HV,V]
    output gate logits; norm_weight [V] float32.
    """
    out = new(z, z.shape) if out is None else out
    fused = {'x': x, 'conv_weight': conv_weight, 'conv_bias': conv_bias, 'windows': windows, 'z': z, 'norm_weight': norm_weight, 'eps': eps}
    _core.run_step(
        plan, stream_of(plan, stream), None, None, None, decay, beta, A_log, dt_bias, out,
        slot_in, slot_in if slot_out is None else slot_out,
        states if states_in is None else states_in,
        states if states_out is None else states_out,
        fused, status, _space(plan, workspace, out, stream),
    )
    return out


def verify(
    plan: _core.Plan,
    q: Array,
    k: Array,
    v: Array,
    decay: Array,
    beta: Array,
    *,
    n_draft: Array,
    parent: Array,
    slot_in: Array,
    states: Array,
    A_log: Array | None = None,
    dt_bias: Array | None = None,
    out: Array | None = None,
    scratch: Array | None = None,
    status: Array | None = None,
    workspace: Array | None = None,
    stream: StreamLike = None,
) -> tuple[Array, Array]:
    """Draft tokens against read-only states; returns (out [N*D,HV,V], scratch for commit).

    Token n*D + d is draft node d of row n; n_draft [N], parent [N,D] (< own index, -1 = the committed state), slot_in [N]
    (-1 = padded row), all int32. scratch: uint8 [Plan.scratch_bytes], its layout private.
    """
    out = new(v, v.shape) if out is None else out
    scratch = new(v, (plan.scratch_bytes,), 'uint8') if scratch is None else scratch
    _core.run_verify(
        plan, stream_of(plan, stream), q, k, v, decay, beta, A_log, dt_bias, out, n_draft, parent, slot_in, states, scratch, status,
        _space(plan, workspace, out, stream),
    )
    return out, scratch


def commit(
    plan: _core.Plan,
    *,
    n_draft: Array,
    parent: Array,
    slot_in: Array,
    node: Array,
    scratch: Array,
    states: Array,
    slot_out: Array | None = None,
    track_node: Array | None = None,
    track_slot: Array | None = None,
    conv_x: Array | None = None,
    windows: Array | None = None,
    status: Array | None = None,
    stream: StreamLike = None,
) -> None:
    """Stores the states (and windows) after node[n], -1 = none, into slot_out[n]; track_node into track_slot likewise.

    All layers in one call with states [L,S,HV,V,K], scratch [L,bytes], conv_x [L,N*D,C] and windows [L,S,3,C]; one layer
    without the leading dimension. conv_x: the raw convolution inputs of the drafts.
    """
    _core.run_commit(
        plan, stream_of(plan, stream), n_draft, parent, slot_in, node, slot_in if slot_out is None else slot_out,
        track_node, track_slot, scratch, states, conv_x, windows, status,
    )


def _conv_dtype(x: Array, dtype: str | None) -> str:
    return dtype if dtype is not None else dtype_name(x)


def conv1d_extend(
    plan: _core.Plan,
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    metadata: _core.Metadata,
    windows: Array | None = None,
    windows_in: Array | None = None,
    windows_out: Array | None = None,
    checkpoints: Array | None = None,
    out: Array | None = None,
    dtype: str | None = None,
    stream: StreamLike = None,
) -> Array:
    """Depthwise causal convolution of width 4, then SiLU, over the rows of an extend plan's metadata; returns [T,C].

    x [T,C]; weight [C,4] (tap 3 = current token), bias [C] float32; windows [S,3,C] of raw inputs, oldest first. dtype: of
    x, out and the windows, needed only for uint16 bit patterns ('bfloat16').
    """
    out = new(x, x.shape) if out is None else out
    _core.run_conv1d_extend(
        plan, stream_of(plan, stream), x, weight, bias, out, _conv_dtype(x, dtype), metadata,
        windows if windows_in is None else windows_in,
        windows if windows_out is None else windows_out,
        windows if checkpoints is None else checkpoints,
    )
    return out


def conv1d_step(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    slot_in: Array,
    slot_out: Array | None = None,
    windows: Array | None = None,
    windows_in: Array | None = None,
    windows_out: Array | None = None,
    device: _core.Device | None = None,
    out: Array | None = None,
    dtype: str | None = None,
    stream: StreamLike = None,
) -> Array:
    """The same for one token a row; x [N,C], slots [N] int32, -1 = padded row. device: default that of x."""
    out = new(x, x.shape) if out is None else out
    _core.run_conv1d_step(
        _device_stream(device, stream, x), x, weight, bias, out, _conv_dtype(x, dtype), slot_in, slot_in if slot_out is None else slot_out,
        windows if windows_in is None else windows_in,
        windows if windows_out is None else windows_out,
    )
    return out


def conv1d_verify(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    n_draft: Array,
    parent: Array,
    slot_in: Array,
    windows: Array,
    device: _core.Device | None = None,
    out: Array | None = None,
    dtype: str | None = None,
    stream: StreamLike = None,
) -> Array:
    """The same along the ancestors of draft trees; x [N*D,C]; stores nothing."""
    out = new(x, x.shape) if out is None else out
    _core.run_conv1d_verify(
        _device_stream(device, stream, x), x, weight, bias, out, _conv_dtype(x, dtype), n_draft, parent, slot_in, windows
    )
    return out


def copy_states(
    states: Array,
    *,
    src: Array | None = None,
    dst: Array | None = None,
    clear: Array | None = None,
    device: _core.Device | None = None,
    dtype: str | None = None,
    stream: StreamLike = None,
) -> None:
    """dst[i] <- src[i], then zeros into the slots of `clear`; states [S,HV,V,K] or [L,S,HV,V,K], lists int32, -1 skips."""
    _core.run_state_copy(_device_stream(device, stream, states), states, _conv_dtype(states, dtype), src, dst, clear)


def _device_stream(device: _core.Device | None, given: StreamLike, like: Array) -> _core.Stream:
    return given if isinstance(given, _core.Stream) else _stream(device or device_of(like), given)
