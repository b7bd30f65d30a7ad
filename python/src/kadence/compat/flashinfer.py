"""FlashInfer's `recurrent_kda`, with the indexed, floor-aligned checkpoints of its 0.7 line, and the host plan for them.

Entry j of a sequence is the state after (j+1)*I tokens, I = checkpoint_every_n_tokens: floor(len/I) entries, an aligned
final boundary included, the initial state excluded. checkpoint_cu_starts [N+1] holds the first entry of each sequence,
checkpoint_state_indices the destination row of each entry in state_checkpoints (negative or past its end = not written).
"""

from collections.abc import Sequence
from typing import NamedTuple

from ..arrays import Array, dtype_name, is_torch, new, on_host, slots, to_list, zeros
from ..operators import device_metadata
from .common import FLOATS, Call, flat_output, host_metadata, invalid, refuse, rows_of, shares, want_dtype, want_shape, want_states

__all__ = ['CheckpointPlan', 'checkpoint_plan', 'recurrent_kda']

CHUNK = 64


class CheckpointPlan(NamedTuple):
    starts: list[int]  # [N+1], checkpoint_cu_starts
    dest: list[int]  # [starts[N]], checkpoint_state_indices: rows 0..count-1 of a buffer, -1 = not written
    count: int  # rows of that buffer
    rows: list[int]  # sequence of each buffer row
    final_rows: list[int]  # sequences whose tracked depth is their end: their final state is the snapshot


def checkpoint_plan(
    extend_lens: Sequence[int],
    prefix_lens: Sequence[int],
    track_lens: Sequence[int],
    mask: Sequence[bool] | None = None,
    *,
    interval: int = CHUNK,
    expected_rows: Sequence[int] | None = None,
) -> CheckpointPlan:
    """Which boundary of each sequence to write, for at most one snapshot a sequence.

    track_lens[r]: the depth to keep, counted from the start of the request; -1 (or mask False) = none. A depth between two
    boundaries means the one below it, so both the exact depth d and d + 1 name the boundary at d; a depth at the aligned end
    of the sequence is its final state and needs no entry. expected_rows: the sequences that the caller's metadata believes
    to be written, in order. ValueError if a boundary is not inside the new tokens, or if these differ: never a fallback.
    """
    if interval <= 0 or interval % CHUNK:
        raise ValueError(f'KDA checkpoint interval: wanted a positive multiple of {CHUNK}, got {interval}')
    if not len(extend_lens) == len(prefix_lens) == len(track_lens) == (len(track_lens) if mask is None else len(mask)):
        raise ValueError('KDA checkpoint plan: wanted lists of one length, got others')
    starts = [0]
    for length in extend_lens:
        starts.append(starts[-1] + length // interval)
    dest, rows, final_rows = [-1] * starts[-1], [], []
    for r, (length, prefix, track) in enumerate(zip(extend_lens, prefix_lens, track_lens)):
        if track < 0 or (mask is not None and not mask[r]):
            continue
        relative = track - prefix
        if relative == length and relative % interval == 0:
            final_rows.append(r)
            continue
        boundary, most = relative // interval, length // interval
        if not 0 < boundary <= most:
            raise ValueError(
                f'Invalid KDA checkpoint metadata, sequence {r}: wanted a depth with a boundary of {interval} tokens in 1 to {most}, '
                f'got {track} after a prefix of {prefix} (boundary {boundary})'
            )
        dest[starts[r] + boundary - 1] = len(rows)
        rows.append(r)
    if expected_rows is not None and list(expected_rows) != rows:
        raise ValueError(f'Invalid KDA checkpoint metadata: wanted snapshots of sequences {rows}, got {list(expected_rows)}')
    return CheckpointPlan(starts, dest, len(rows), rows, final_rows)


def recurrent_kda(
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
    use_qk_l2norm_in_kernel: bool = True,
    use_gate_in_kernel: bool = False,
    lower_bound: float | None = None,
    cu_seqlens: Array | None = None,
    ssm_state_indices: Array | None = None,
    num_spec_tokens: int | None = None,
    num_accepted_tokens: Array | None = None,
    output: Array | None = None,
    initial_state_source: Array | None = None,
    initial_state_indices: Array | None = None,
    beta_is_logit: bool = False,
    seq_order: Array | None = None,
    prefill_workspace=None,
    state_checkpoints: Array | None = None,
    checkpoint_cu_starts: Array | None = None,
    checkpoint_every_n_tokens: int = 0,
    *,
    checkpoint_state_indices: Array | None = None,
    backend: str = 'auto',
):
    """Returns (output, final_state), or (output, final_state, state_checkpoints) with checkpoints.

    q, k [B,T,H,K], v, output [B,T,HV,V], g [B,T,HV,K], beta [B,T,HV]; initial_state [N,HV,V,K], or a pool [S,HV,V,K] with
    ssm_state_indices [N]: read and updated in place; final_state is it, or without one a new array in q's dtype.
    ssm_state_indices -1: prefill starts from zeros and stores nothing, decode returns zeros. One token a sequence (T = 1, or
    as many tokens as sequences with cu_seqlens) is decode and runs Kadence's step. state_checkpoints may be the pool itself.
    Values on a GPU stay unseen by the host; a sequence with bad ones is skipped and its output is zeros.
    """
    f = 'kadence.compat.flashinfer.recurrent_kda'
    for name, value in (('num_spec_tokens', num_spec_tokens), ('num_accepted_tokens', num_accepted_tokens),
                        ('initial_state_source', initial_state_source), ('initial_state_indices', initial_state_indices)):
        if value is not None:
            refuse(f, name, 'speculation is kadence.verify and kadence.commit')
    if seq_order is not None:
        refuse(f, 'seq_order', "Kadence orders the rows itself")
    if prefill_workspace is not None:
        refuse(f, 'prefill_workspace', "it is FlashInfer's; give kadence.extend a workspace to bring your own")
    if backend in ('cute-dsl', 'cake'):
        refuse(f, f'backend={backend!r}', "FlashInfer's kernels are not here; 'auto' or a name of kadence.backends()")
    if not use_gate_in_kernel:
        for name, value in (('A_log', A_log), ('dt_bias', dt_bias), ('lower_bound', lower_bound)):
            if value is not None:
                invalid(f, name, 'None without use_gate_in_kernel (g is the log decay)', 'a value')
    elif A_log is None:
        invalid(f, 'A_log', 'an array [HV] (use_gate_in_kernel)', None)
    call = Call(
        f, q, k, v, g, beta, scale, 'given_log_decay' if not use_gate_in_kernel else 'softplus' if lower_bound is None else 'bounded',
        lower_bound, beta_is_logit, False, use_qk_l2norm_in_kernel, A_log, dt_bias, backend,
    )
    every = _checkpoint_interval(f, state_checkpoints, checkpoint_cu_starts, checkpoint_every_n_tokens, checkpoint_state_indices)
    rows = rows_of(call, cu_seqlens)
    n, shape, tokens = rows.count, (call.HV, call.V, call.K), call.B * call.T
    if ssm_state_indices is not None:
        if ssm_state_indices.ndim != 1:
            refuse(f, f'ssm_state_indices of {ssm_state_indices.ndim} dimensions', 'speculation is kadence.verify and kadence.commit')
        want_shape(f, 'ssm_state_indices', ssm_state_indices, (n,))
        want_dtype(f, 'ssm_state_indices', ssm_state_indices, 'int32')
        if initial_state is None:
            invalid(f, 'ssm_state_indices', 'a pool (initial_state) with it', 'no pool')
    want_states(f, 'initial_state', initial_state, (n if ssm_state_indices is None else None, *shape))
    decode = every == 0 and (call.T == 1 if cu_seqlens is None else tokens == n and (rows.begin is None or rows.begin == list(range(n + 1))))
    states = initial_state
    if states is None and (output_final_state or decode):
        states = zeros(q, (n, *shape), call.io)
    out = new(v, v.shape) if output is None else output
    flat = flat_output(f, 'output', call, out)
    dtype = 'float32' if states is None else dtype_name(states)
    places = ssm_state_indices if ssm_state_indices is not None else slots(n, q, states is not None)
    if decode:
        plan = call.plan(call.problem(phase='step', state_in=dtype, state_out=dtype, max_rows=n, max_tokens=n))
        call.run_step(plan, places, places, flat, states_in=states, states_out=states)
    else:
        _prefill(call, rows, places, states, dtype, flat, every, state_checkpoints, checkpoint_cu_starts, checkpoint_state_indices)
    final = states if output_final_state else None
    return (out, final, state_checkpoints) if every else (out, final)


def _checkpoint_interval(f, state_checkpoints, starts, every, indices) -> int:
    given = {'state_checkpoints': state_checkpoints, 'checkpoint_cu_starts': starts, 'checkpoint_state_indices': indices}
    if every == 0:
        for name, value in given.items():
            if value is not None:
                invalid(f, name, 'None with checkpoint_every_n_tokens=0', 'an array')
        return 0
    if every < 0 or every % 32:
        invalid(f, 'checkpoint_every_n_tokens', 'a positive multiple of 64', every)
    if every % CHUNK:
        refuse(f, f'checkpoint_every_n_tokens={every}', "Kadence's kernel chunk is 64 tokens and states exist at its multiples only; give a multiple of 64")
    if indices is None:
        refuse(f, 'checkpoints without checkpoint_state_indices',
               'the packed layout (initial state first, ceil(len/I) rows) is another contract; Kadence writes indexed, floor-aligned checkpoints')
    for name in ('state_checkpoints', 'checkpoint_cu_starts'):
        if given[name] is None:
            invalid(f, name, 'an array with checkpoint_every_n_tokens > 0', None)
    return every


def _prefill(call: Call, rows, places, states, dtype, out, every, pool, starts, indices) -> None:
    f, n = call.function, rows.count
    count = 0
    if every:
        want_shape(f, 'state_checkpoints', pool, (None, call.HV, call.V, call.K))
        want_dtype(f, 'state_checkpoints', pool, FLOATS)
        want_shape(f, 'checkpoint_cu_starts', starts, (n + 1,))
        want_dtype(f, 'checkpoint_cu_starts', starts, 'int64')
        want_shape(f, 'checkpoint_state_indices', indices, (None,))
        want_dtype(f, 'checkpoint_state_indices', indices, 'int32')
        count = indices.shape[0]
    plan = call.plan(call.problem(
        state_in=dtype, state_out=dtype, checkpoints=dtype_name(pool) if every else 'float32', seq_int64=rows.int64, max_rows=n,
        max_tokens=call.B * call.T, max_checkpoints=count,
    ))
    size = 0 if states is None else states.shape[0]
    if rows.begin is not None and on_host(places):
        same = bool(every) and states is not None and shares(states, pool)
        checkpoints = _host_checkpoints(f, rows.begin, to_list(starts), to_list(indices), every, pool.shape[0]) if count else None
        if every and not count and any(to_list(starts)):
            invalid(f, 'checkpoint_state_indices', f'{to_list(starts)[-1]} entries (the end of checkpoint_cu_starts)', 0)
        index = to_list(places)
        md = host_metadata(call, plan, rows, index, index, (size, size, pool.shape[0] if every else 0), checkpoints, 'all' if same else 'states')
    else:
        ckpt = _device_checkpoints(starts, indices, every, pool.shape[0]) if count else {}
        begin = rows.array if rows.begin is None else slots(n + 1, call.q) * call.T
        md = device_metadata(plan, begin, places, places, **ckpt)
    call.run_extend(plan, md, out, states_in=states, states_out=states, checkpoints=pool if count else None)


def _host_checkpoints(f, begin, starts, indices, every, pool_rows):
    """Per sequence the (depth, slot) that are written."""
    rows = []
    for i, (b, e) in enumerate(zip(begin, begin[1:])):
        wanted = (e - b) // every
        if starts[0] != 0 or starts[i + 1] - starts[i] != wanted:
            raise ValueError(
                f'{f}: Invalid KDA checkpoint metadata, sequence {i}: wanted checkpoint_cu_starts from 0 with floor(len / {every}) = {wanted} '
                f'entries for its {e - b} tokens, got {starts[i]} to {starts[i + 1]}'
            )
        entries = indices[starts[i] : starts[i + 1]]
        if len(entries) != wanted:
            invalid(f, 'checkpoint_state_indices', f'{starts[-1]} entries (the end of checkpoint_cu_starts)', len(indices))
        rows.append([((j + 1) * every, s) for j, s in enumerate(entries) if 0 <= s < pool_rows])
    if len(indices) != starts[-1]:
        invalid(f, 'checkpoint_state_indices', f'{starts[-1]} entries (the end of checkpoint_cu_starts)', len(indices))
    return rows


def _device_checkpoints(starts, indices, every, pool_rows):
    """The same as arrays, without looking at a value on the host."""
    if is_torch(starts):
        import torch as xp

        entry = xp.arange(indices.shape[0], device=starts.device)
        row = xp.searchsorted(starts, entry, right=True) - 1
        cast = lambda x: x.to(xp.int32)  # noqa: E731
    else:
        import numpy as xp

        entry = xp.arange(indices.shape[0])
        row = xp.searchsorted(starts, entry, side='right') - 1
        cast = lambda x: x.astype(xp.int32)  # noqa: E731
    first = starts[row.clip(0, starts.shape[0] - 1)]
    written = (indices >= 0) & (indices < pool_rows)
    return {
        'ckpt_begin': cast(starts),
        'ckpt_depth': cast((entry - first + 1) * every),
        'ckpt_slot': xp.where(written, indices, cast(indices * 0 - 1)),
    }
