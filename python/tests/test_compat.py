"""kadence.compat against the float64 recurrence: FLA, FlashKDA and FlashInfer semantics, vectors V1 to V4 of checkpoints."""

import ml_dtypes
import numpy as np
import oracle
import pytest
from kadence.compat import common, fla, flashinfer, flashkda
from oracle import Inputs, close

NAN = np.float32('nan')
bf16 = ml_dtypes.bfloat16


def hide_values(monkeypatch):
    """As if the index arrays were on a GPU: nothing may look at their values."""
    for module in (common, flashinfer):
        monkeypatch.setattr(module, 'on_host', lambda x: False)
        monkeypatch.setattr(module, 'to_list', None)


def batched(i, B=1):
    return [x.reshape(B, -1, *x.shape[1:]) if B > 1 else x[None] for x in (i.q, i.k, i.v, i.x, i.b)]


# ---------------------------------------------------------------------------------------------------------------------
# flash-linear-attention


@pytest.mark.parametrize('v_first', [False, True])
@pytest.mark.parametrize('function', [fla.chunk_kda, fla.fused_recurrent_kda])
def test_fla_gate_in_kernel(function, v_first):
    i, B = Inputs(2 * 90, HV=4, seed=11), 2
    start = i.state(B)
    given = start if v_first else start.swapaxes(-1, -2)
    o, final = function(*batched(i, B), A_log=i.A_log, dt_bias=i.dt_bias.reshape(-1), initial_state=given, output_final_state=True,
                        use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True, use_beta_sigmoid_in_kernel=True, state_v_first=v_first)
    for b in range(B):
        want, s = i.oracle(b * 90, (b + 1) * 90, start[b], gate='softplus')
        close(o[b], want, 1e-5)
        close(final[b] if v_first else final[b].swapaxes(-1, -2), s[-1], 1e-5)
    assert final.dtype == np.float32


def test_fla_given_decay_beta_and_scale():
    i = Inputs(70, seed=12)
    g, beta = i.log_decay().astype(np.float32), i.beta().astype(np.float32)
    o, final = fla.chunk_kda(i.q[None], i.k[None], i.v[None], g[None], beta[None], scale=0.25, use_qk_l2norm_in_kernel=True)
    assert final is None
    close(o[0], i.oracle(0, 70, scale=0.25)[0], 1e-5)


def test_fla_without_l2norm_and_negative_eigenvalues():
    i = Inputs(40, seed=13)
    unit = [x / np.sqrt((x * x).sum(-1, keepdims=True)) for x in (i.q, i.k)]
    o, _ = fla.fused_recurrent_kda(unit[0][None], unit[1][None], i.v[None], i.x[None], i.b[None], A_log=None, dt_bias=i.dt_bias,
                                   lower_bound=-5.0, use_gate_in_kernel=True, use_beta_sigmoid_in_kernel=True, allow_neg_eigval=True)
    g = oracle.log_decay(i.x, 'bounded', np.zeros(i.HV), i.dt_bias)  # A_log None: a factor of 1
    close(o[0], oracle.recurrence(*unit, i.v, g, 2 * i.beta(), l2norm=False)[0], 1e-5)


@pytest.mark.parametrize('hidden', [False, True], ids=['host', 'device'])
def test_fla_varlen(hidden, monkeypatch):
    if hidden:
        hide_values(monkeypatch)
    begin = np.array([0, 100, 100, 164, 165], np.int64)
    i = Inputs(165, seed=14)
    start = i.state(4)
    o, final = fla.chunk_kda(*batched(i), A_log=i.A_log, dt_bias=i.dt_bias, initial_state=start, output_final_state=True, cu_seqlens=begin,
                             use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True, use_beta_sigmoid_in_kernel=True, safe_gate=True,
                             lower_bound=-5.0, state_v_first=True)
    for r, (a, b) in enumerate(zip(begin, begin[1:])):
        want, s = i.oracle(a, b, start[r])
        close(o[0, a:b], want, 1e-5)
        close(final[r], s[-1], 1e-5)


@pytest.mark.parametrize('v_first', [False, True])
@pytest.mark.parametrize('resumed', [False, True])
def test_fla_intermediate_states(resumed, v_first):
    lengths = [130, 0, 64, 63, 128]
    begin = np.cumsum([0] + lengths)
    i = Inputs(begin[-1], seed=15, dtype=bf16)
    start = i.state(5) if resumed else None
    o, final, h = fla.chunk_kda(*batched(i), A_log=i.A_log, dt_bias=i.dt_bias,
                                initial_state=None if start is None else start if v_first else start.swapaxes(-1, -2).copy(),
                                cu_seqlens=begin, use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True, use_beta_sigmoid_in_kernel=True,
                                lower_bound=-5.0, return_intermediate_states=True, state_v_first=v_first)
    assert final is None and h.dtype == bf16 and h.shape == (1, 3 + 0 + 1 + 1 + 2, i.HV, i.K, i.V)
    c = 0
    for r, (a, b) in enumerate(zip(begin, begin[1:])):
        want, s = i.oracle(a, b, None if start is None else start[r])
        if b > a:
            close(o[0, a:b], want, 1e-2)
        for depth in range(0, b - a, 64):
            got = h[0, c] if v_first else h[0, c].swapaxes(-1, -2)
            if depth == 0:  # the initial state, rounded once
                assert (got == s[0].astype(np.float32).astype(bf16)).all()
            else:
                close(got, s[depth], 1e-2, f'row {r} depth {depth}')
            c += 1


def test_fla_one_token_is_a_step():
    i = Inputs(3, seed=16)
    o, final = fla.fused_recurrent_kda(*batched(i, 3), A_log=i.A_log, dt_bias=i.dt_bias, output_final_state=True, use_qk_l2norm_in_kernel=True,
                                       use_gate_in_kernel=True, use_beta_sigmoid_in_kernel=True, lower_bound=-5.0, state_v_first=True)
    for r in range(3):
        want, s = i.oracle(r, r + 1)
        close(o[r], want, 1e-5)
        close(final[r], s[1], 1e-5)


def test_fla_use_graph_looks_at_no_value(monkeypatch):
    begin = np.array([0, 50, 70, 70], np.int64)
    i = Inputs(90, seed=17)
    monkeypatch.setattr(common, 'to_list', None)
    arguments = dict(A_log=i.A_log, dt_bias=i.dt_bias, output_final_state=True, use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True,
                     use_beta_sigmoid_in_kernel=True, lower_bound=-5.0, state_v_first=True, cu_seqlens=begin, use_graph=True)
    o, final = fla.chunk_kda(*batched(i), max_num_seqs=3, **arguments)
    for r, (a, b) in enumerate(((0, 50), (50, 70))):
        want, s = i.oracle(a, b)
        close(o[0, a:b], want, 1e-5)
        close(final[r], s[-1], 1e-5)
    assert (o[0, 70:] == 0).all()  # past the last offset
    with pytest.raises(ValueError, match=r'cu_seqlens shape: wanted max_num_seqs \+ 1 = 5 entries, got 4'):
        fla.chunk_kda(*batched(i), max_num_seqs=4, **arguments)
    with pytest.raises(NotImplementedError, match='return_intermediate_states in a CUDA graph is not supported'):
        fla.chunk_kda(*batched(i), return_intermediate_states=True, **arguments)


FLA_REFUSED = [
    (dict(cp_context=object()), 'cp_context'), (dict(disable_recompute=True), 'disable_recompute=True'), (dict(chunk_size=32), 'chunk_size=32'),
    (dict(head_first=True), 'head_first'),
]


@pytest.mark.parametrize('arguments,name', FLA_REFUSED, ids=[n for _, n in FLA_REFUSED])
def test_fla_refuses_by_name(arguments, name):
    i = Inputs(4)
    with pytest.raises(NotImplementedError, match=f'chunk_kda: {name} is not supported'):
        fla.chunk_kda(*batched(i), **arguments)


FLA_INVALID = [
    (dict(use_gate_in_kernel=True), 'A_log: wanted'), (dict(A_log=np.zeros(2, np.float32)), 'A_log: wanted None without use_gate'),
    (dict(lower_bound=-5.0), 'lower_bound: wanted None'), (dict(allow_neg_eigval=True), 'allow_neg_eigval: wanted'),
    (dict(safe_gate=True, use_gate_in_kernel=True, lower_bound=-6.0), r'lower_bound .* in \[-5, 0\), got -6'),
    (dict(initial_state=np.zeros((1, 2, 32, 32), bf16)), 'initial_state dtype: wanted float32, got bfloat16'),
    (dict(cu_seqlens=np.array([0, 3])), 'cu_seqlens end: wanted the 4 tokens of q, got 3'),
]


@pytest.mark.parametrize('arguments,message', FLA_INVALID, ids=[m for _, m in FLA_INVALID])
def test_fla_invalid(arguments, message):
    with pytest.raises(ValueError, match=message):
        fla.chunk_kda(*batched(Inputs(4)), **arguments)


# ---------------------------------------------------------------------------------------------------------------------
# FlashKDA


@pytest.mark.parametrize('state', [np.float32, bf16])
def test_flashkda(state):
    begin = np.array([0, 65, 130], np.int64)
    i = Inputs(130, dtype=bf16, seed=21)
    start, final = i.state(2, state), np.full((2, i.HV, i.V, i.K), np.nan, state)
    out = np.full((1, 130, i.HV, i.V), np.nan, bf16)
    flashkda.fwd(*[x[None] for x in (i.q, i.k, i.v, i.x)], i.b[None].astype(bf16), i.K**-0.5, out, i.A_log, i.dt_bias, -4.0, start, final, begin)
    i.b = i.b.astype(bf16)
    for r, (a, b) in enumerate(zip(begin, begin[1:])):
        want, s = i.oracle(a, b, start[r], lower_bound=-4.0)
        close(out[0, a:b], want, 1e-2)
        close(final[r], s[-1], 1e-2)


def test_flashkda_refuses():
    i = Inputs(4)
    out = np.empty((1, 4, i.HV, i.V), np.float32)
    with pytest.raises(NotImplementedError, match='lower_bound=0'):
        flashkda.fwd(*batched(i), 1.0, out, i.A_log, i.dt_bias, 0)
    with pytest.raises(ValueError, match='final_state dtype: wanted that of initial_state, float32, got bfloat16'):
        flashkda.fwd(*batched(i), 1.0, out, i.A_log, i.dt_bias, -5, i.state(1), i.state(1, bf16))


# ---------------------------------------------------------------------------------------------------------------------
# FlashInfer: the host plan


def test_v1_two_sequences():
    plan = flashinfer.checkpoint_plan([130, 128], [0, 0], [130, 128])
    assert plan == ([0, 2, 4], [-1, 0, -1, -1], 1, [0], [1])


def test_v2_an_empty_sequence():
    plan = flashinfer.checkpoint_plan([130, 128, 0], [0, 0, 0], [130, 128, -1])
    assert plan.starts == [0, 2, 4, 4] and plan.dest == [-1, 0, -1, -1]


@pytest.mark.parametrize('track', [1024, 1025])
def test_v3_a_depth_inside(track):
    plan = flashinfer.checkpoint_plan([578], [512], [track])
    assert plan.starts == [0, 9] and plan.dest == [-1] * 7 + [0, -1]


@pytest.mark.parametrize('extend,track,rows', [(128, 1, None), (128, 193, None), (130, 130, [])])
def test_v4_rejects(extend, track, rows):
    with pytest.raises(ValueError, match='Invalid KDA checkpoint metadata'):
        flashinfer.checkpoint_plan([extend], [0], [track], expected_rows=rows)


# ---------------------------------------------------------------------------------------------------------------------
# FlashInfer: the operator

GATE = dict(use_gate_in_kernel=True, lower_bound=-5.0, beta_is_logit=True)


@pytest.mark.parametrize('every', [64, 128])
@pytest.mark.parametrize('hidden', [False, True], ids=['host', 'device'])
def test_flashinfer_indexed_checkpoints(hidden, every, monkeypatch):
    if hidden:
        hide_values(monkeypatch)
    lengths = [130, 0, 63, 256]
    begin = np.cumsum([0] + lengths)
    i = Inputs(begin[-1], seed=31)
    pool = np.full((9, i.HV, i.V, i.K), NAN)
    slots = np.array([5, 2, 7, 0], np.int32)
    pool[slots] = i.state(4)
    start = pool[slots].copy()
    counts = [n // every for n in lengths]
    starts = np.cumsum([0] + counts)
    checkpoints = np.full((12, i.HV, i.V, i.K), NAN)
    # An aligned final boundary is written; -1 and rows past the end of state_checkpoints are not.
    indices = np.arange(starts[-1], dtype=np.int32)[::-1].copy()
    indices[0], skipped = -1, int(indices[0])
    if len(indices) > 3:
        indices[2] = 12
    out, final, returned = flashinfer.recurrent_kda(
        *batched(i), i.A_log, i.dt_bias, initial_state=pool, ssm_state_indices=slots, cu_seqlens=begin, output_final_state=True,
        state_checkpoints=checkpoints, checkpoint_cu_starts=starts, checkpoint_every_n_tokens=every, checkpoint_state_indices=indices, **GATE)
    assert final is pool and returned is checkpoints
    written = set()
    for r, (a, b) in enumerate(zip(begin, begin[1:])):
        want, s = i.oracle(a, b, start[r])
        if b > a:
            close(out[0, a:b], want, 1e-5)
        close(pool[slots[r]], s[-1], 1e-5)
        for j in range(counts[r]):
            slot = indices[starts[r] + j]
            if 0 <= slot < 12:
                close(checkpoints[slot], s[(j + 1) * every], 1e-5, f'sequence {r} entry {j}')
                written.add(int(slot))
    assert skipped not in written and np.isnan(checkpoints[[s for s in range(12) if s not in written]]).all()
    assert np.isnan(pool[[1, 3, 4, 6, 8]]).all()


def test_flashinfer_checkpoints_into_the_state_pool_itself():
    i = Inputs(130, seed=32)
    pool = np.full((3, i.HV, i.V, i.K), NAN)
    pool[1] = i.state(1)[0]
    start = pool[1].copy()
    flashinfer.recurrent_kda(*batched(i), i.A_log, i.dt_bias, initial_state=pool, ssm_state_indices=np.array([1], np.int32),
                             cu_seqlens=np.array([0, 130]), state_checkpoints=pool, checkpoint_cu_starts=np.array([0, 2]),
                             checkpoint_every_n_tokens=64, checkpoint_state_indices=np.array([-1, 2], np.int32), **GATE)
    s = i.oracle(0, 130, start)[1]
    close(pool[2], s[128], 1e-5)
    close(pool[1], s[130], 1e-5)
    assert np.isnan(pool[0]).all()


def test_flashinfer_decode_and_padded_rows():
    i = Inputs(3, seed=33)
    pool = i.state(4)
    before = pool.copy()
    out, final = flashinfer.recurrent_kda(*batched(i, 3), i.A_log, i.dt_bias, initial_state=pool, ssm_state_indices=np.array([3, -1, 0], np.int32), **GATE)
    assert final is None and (out[1] == 0).all() and (pool[1:3] == before[1:3]).all()
    for r, slot in ((0, 3), (2, 0)):
        want, s = i.oracle(r, r + 1, before[slot])
        close(out[r], want, 1e-5)
        close(pool[slot], s[1], 1e-5)


@pytest.mark.parametrize('hidden', [False, True], ids=['host', 'device'])
def test_flashinfer_without_a_state(hidden, monkeypatch):
    if hidden:
        hide_values(monkeypatch)
    i = Inputs(2 * 70, seed=34)
    out, final = flashinfer.recurrent_kda(*batched(i, 2), i.A_log, i.dt_bias, output_final_state=True, **GATE)
    for b in range(2):
        want, s = i.oracle(b * 70, (b + 1) * 70)
        close(out[b], want, 1e-5)
        close(final[b], s[-1], 1e-5)


def checkpoint_arguments(i, **changed):
    return dict(state_checkpoints=np.empty((2, i.HV, i.V, i.K), np.float32), checkpoint_cu_starts=np.array([0, 2]), checkpoint_every_n_tokens=64,
                checkpoint_state_indices=np.array([0, 1], np.int32)) | changed


FLASHINFER_REFUSED = [
    (dict(num_spec_tokens=1), 'num_spec_tokens'), (dict(initial_state_source=1), 'initial_state_source'), (dict(seq_order=1), 'seq_order'),
    (dict(prefill_workspace=1), 'prefill_workspace'), (dict(backend='cake'), "backend='cake'"),
    (dict(checkpoint_every_n_tokens=32), 'checkpoint_every_n_tokens=32'), (dict(checkpoint_state_indices=None), 'checkpoints without checkpoint_state_indices'),
]


@pytest.mark.parametrize('changed,name', FLASHINFER_REFUSED, ids=[n for _, n in FLASHINFER_REFUSED])
def test_flashinfer_refuses_by_name(changed, name):
    i = Inputs(130)
    with pytest.raises(NotImplementedError, match=f'recurrent_kda: {name} is not supported'):
        flashinfer.recurrent_kda(*batched(i), **checkpoint_arguments(i, **changed))


def test_flashinfer_rejects_wrong_checkpoint_starts():
    i = Inputs(130)
    with pytest.raises(ValueError, match=r'Invalid KDA checkpoint metadata, sequence 0: .*floor\(len / 64\) = 2 .*got 0 to 3'):
        flashinfer.recurrent_kda(*batched(i), **checkpoint_arguments(i, checkpoint_cu_starts=np.array([0, 3]),
                                                                     checkpoint_state_indices=np.array([0, 1, -1], np.int32)))
    with pytest.raises(ValueError, match='ckpt_slot: wanted a slot that no other entry writes'):
        flashinfer.recurrent_kda(*batched(i), **checkpoint_arguments(i, checkpoint_state_indices=np.array([1, 1], np.int32)))
