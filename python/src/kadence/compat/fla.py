"""flash-linear-attention's `fla.ops.kda`: chunk_kda and fused_recurrent_kda (signatures of fla-core 0.6)."""

import warnings

from ..arrays import Array, dense, dtype_name, is_torch, new, slots, swap_last_two, zeros
from .common import FLOATS, Call, copy_rows_converted, invalid, refuse, rows_of, upload, want_states

__all__ = ['chunk_kda', 'fused_recurrent_kda']

CHUNK = 64


def chunk_kda(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    scale: float | None = None,
    initial_state: Array | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    disable_recompute: bool = False,
    return_intermediate_states: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Array | None = None,
    cu_seqlens_cpu: Array | None = None,
    cp_context=None,
    use_graph: bool = False,
    max_num_seqs: int | None = None,
    **kwargs,
):
    """Returns (o, final_state), or (o, final_state, h) with return_intermediate_states.

    q, k [B,T,H,K]; v, o [B,T,HV,V]; g [B,T,HV,K]; beta [B,T,HV]; initial_state, final_state float32 [N,HV,K,V], or
    [N,HV,V,K] with state_v_first; h [B,NT,...] in q's dtype: the state before each 64-token chunk, the first of a sequence
    being its initial state. kwargs: A_log, dt_bias, chunk_size=64, transpose_state_layout.

    cu_seqlens on a GPU is read there; only return_intermediate_states needs its values on the host (give cu_seqlens_cpu to
    spare that wait). safe_gate is a promise about g that Kadence's kernels do not need; with use_gate_in_kernel,
    lower_bound alone selects the bounded gate, as in FLA. A captured CUDA graph may be replayed with other values in
    cu_seqlens whether or not use_graph is set; with it the values are never looked at on the host.
    """
    f = 'kadence.compat.fla.chunk_kda'
    if cp_context is not None:
        refuse(f, 'cp_context', 'context parallelism belongs to training')
    if disable_recompute:
        refuse(f, 'disable_recompute=True', 'it keeps activations for a backward pass, which Kadence does not have')
    if max_num_seqs is not None and use_graph and cu_seqlens is not None and cu_seqlens.shape[0] - 1 != max_num_seqs:
        invalid(f, 'cu_seqlens shape', f'max_num_seqs + 1 = {max_num_seqs + 1} entries', cu_seqlens.shape[0])
    A_log, dt_bias = kwargs.pop('A_log', None), kwargs.pop('dt_bias', None)
    chunk_size = kwargs.pop('chunk_size', CHUNK)
    if chunk_size != CHUNK:
        refuse(f, f'chunk_size={chunk_size}', "Kadence's kernel chunk is 64 tokens; states exist at its multiples only")
    if safe_gate and use_gate_in_kernel and (lower_bound is None or not -5 <= lower_bound < 0):
        invalid(f, 'lower_bound with safe_gate and use_gate_in_kernel', 'in [-5, 0)', lower_bound)
    return _run(
        f, False, q, k, v, g, beta, A_log, dt_bias, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel,
        use_gate_in_kernel, use_beta_sigmoid_in_kernel, allow_neg_eigval, lower_bound, safe_gate, state_v_first, cu_seqlens,
        cu_seqlens_cpu, return_intermediate_states, use_graph, kwargs,
    )


def fused_recurrent_kda(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    A_log: Array | None = None,
    dt_bias: Array | None = None,
    scale: float | None = None,
    initial_state: Array | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    lower_bound: float | None = None,
    state_v_first: bool = False,
    cu_seqlens: Array | None = None,
    **kwargs,
):
    """Returns (o, final_state), shapes as chunk_kda; initial_state float32, bfloat16 or float16, final_state float32.

    One token a sequence ([B,1,...] without cu_seqlens) runs Kadence's step; more run its extend, which computes the same
    recurrence in chunks of 64.
    """
    return _run(
        'kadence.compat.fla.fused_recurrent_kda', True, q, k, v, g, beta, A_log, dt_bias, scale, initial_state, output_final_state,
        use_qk_l2norm_in_kernel, use_gate_in_kernel, use_beta_sigmoid_in_kernel, allow_neg_eigval, lower_bound, False, state_v_first,
        cu_seqlens, None, False, False, kwargs,
    )


def _run(
    f, recurrent, q, k, v, g, beta, A_log, dt_bias, scale, initial_state, output_final_state, l2norm, gate_in_kernel, beta_sigmoid,
    neg_eigval, lower_bound, safe_gate, v_first, cu_seqlens, cu_seqlens_cpu, with_h, use_graph, kwargs,
):
    if 'transpose_state_layout' in kwargs:
        if v_first:
            invalid(f, 'state_v_first and transpose_state_layout', 'one of them', 'both')
        warnings.warn('transpose_state_layout is the old name of state_v_first', DeprecationWarning, stacklevel=3)
        v_first = bool(kwargs.pop('transpose_state_layout'))
    for name in kwargs:
        refuse(f, name, 'Kadence does not know this argument')
    if neg_eigval and not beta_sigmoid:
        invalid(f, 'allow_neg_eigval', 'use_beta_sigmoid_in_kernel=True with it', 'beta given')
    if gate_in_kernel:
        if A_log is None and lower_bound is None:
            invalid(f, 'A_log', 'an array [HV] (use_gate_in_kernel without lower_bound)', None)
    else:
        for name, value in (('A_log', A_log), ('dt_bias', dt_bias)):
            if value is not None:
                invalid(f, name, 'None without use_gate_in_kernel (g is the log decay)', 'an array')
        if lower_bound is not None and not safe_gate:
            invalid(f, 'lower_bound', 'None without use_gate_in_kernel or safe_gate', lower_bound)
    call = Call(
        f, q, k, v, g, beta, scale, 'given_log_decay' if not gate_in_kernel else 'softplus' if lower_bound is None else 'bounded',
        lower_bound if gate_in_kernel else None, beta_sigmoid, neg_eigval, l2norm, A_log, dt_bias,
    )
    rows = rows_of(call, cu_seqlens, cu_seqlens_cpu, need_host=with_h, on_device=use_graph and cu_seqlens is not None)
    n, shape = rows.count, (call.HV, call.V, call.K)
    states_in = None
    if initial_state is not None:
        want_states(f, 'initial_state', initial_state, (n, *(shape if v_first else (call.HV, call.K, call.V))), FLOATS if recurrent else 'float32')
        given = initial_state.detach() if is_torch(initial_state) else initial_state
        states_in = dense(given) if v_first else swap_last_two(given)
    state_dtype = 'float32' if states_in is None else dtype_name(states_in)
    out = new(v, (call.B * call.T, call.HV, call.V))
    if recurrent and cu_seqlens is None and call.T == 1:
        states = states_in if states_in is not None else zeros(q, (n, *shape), 'float32')
        final = new(q, (n, *shape), 'float32')
        plan = call.plan(call.problem(phase='step', state_in=state_dtype, max_rows=n, max_tokens=n))
        places = slots(n, q)
        call.run_step(plan, places, places, out, states_in=states, states_out=final)
        h = None
    else:
        final = new(q, (n, *shape), 'float32') if output_final_state else None
        h, checkpoints = _intermediate(call, rows, states_in, state_dtype) if with_h else (None, None)
        count = sum(len(c) for c in checkpoints) if checkpoints else 0
        # Without a final state the kernels still need a dtype for it; no row stores one.
        plan = call.plan(call.problem(
            state_in=state_dtype, checkpoints=call.io if with_h else 'float32', seq_int64=rows.int64, max_rows=n,
            max_tokens=call.B * call.T, max_checkpoints=count,
        ))
        sizes = (n if states_in is not None else 0, n if final is not None else 0, h.shape[0] if count else 0)
        md = upload(call, plan, rows, states_in is not None, final is not None, sizes, checkpoints if count else None)
        call.run_extend(plan, md, out, states_in=states_in, states_out=final, checkpoints=h if count else None)
    o = out.reshape(call.B, call.T, call.HV, call.V)
    if not output_final_state:
        final = None
    elif not v_first:
        final = swap_last_two(final)
    if not with_h:
        return o, final
    h = h.reshape(call.B, h.shape[0] // call.B, *shape)
    return o, final, h if v_first else swap_last_two(h)


def _intermediate(call: Call, rows, states_in, state_dtype):
    """h [chunks,HV,V,K] with the initial states filled in, and per row the (depth, slot) of the others."""
    begin = rows.begin
    counts = [-(-(e - b) // CHUNK) for b, e in zip(begin, begin[1:])]
    first, total = [], 0
    for c in counts:
        first.append(total)
        total += c
    h = new(call.v, (total, call.HV, call.V, call.K))
    filled = [i for i, c in enumerate(counts) if c > 0]
    if filled:
        source = None if states_in is None else states_in if len(filled) == len(counts) else states_in[filled]
        copy_rows_converted(call, source, h, [first[i] for i in filled], state_dtype, call.io)
    return h, [[(c * CHUNK, first[i] + c) for c in range(1, counts[i])] for i in range(len(counts))]
