"""kadence.compat on torch CUDA tensors, FlashInfer's vectors V1 to V4 among them; skipped as test_cuda.py is."""

import numpy as np
import pytest
from cuda_case import FLA, GATE, NAN, H, K, V, Case, capture, ints, longs, torch, wide
from kadence.compat import fla, flashinfer, flashkda
from oracle import close


@pytest.mark.parametrize('v_first', [False, True])
@pytest.mark.parametrize('gate', ['bounded', 'softplus'])
def test_fla_chunk_kda(gate, v_first):
    begin = [0, 130, 130, 199, 200]
    i = Case(200, HV=4, seed=21)
    start = i.states(4)
    given = start if v_first else start.transpose(-1, -2).contiguous()
    more = dict(use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True, use_beta_sigmoid_in_kernel=True,
                lower_bound=-5.0 if gate == 'bounded' else None, safe_gate=gate == 'bounded', state_v_first=v_first)
    o, final, h = fla.chunk_kda(*i.batched(), initial_state=given, output_final_state=True, cu_seqlens=longs(*begin),
                                cu_seqlens_cpu=torch.tensor(begin), return_intermediate_states=True, **more, **i.gates())
    assert o.dtype == torch.bfloat16 and final.dtype == torch.float32 and h.dtype == torch.bfloat16
    c = 0
    for r, (a, b) in enumerate(zip(begin, begin[1:])):
        want, s = i.oracle(a, b, start[r], gate)
        close(wide(o[0, a:b]), want, 2e-2)
        close(wide(final[r] if v_first else final[r].transpose(-1, -2)), s[-1], 2e-2)
        for depth in range(0, b - a, 64):
            close(wide(h[0, c] if v_first else h[0, c].transpose(-1, -2)), s[depth], 2e-2, f'row {r} depth {depth}')
            c += 1
    assert c == h.shape[1]


def test_fla_use_graph_reads_the_offsets_on_the_device():
    i = Case(150, seed=22)
    cu = longs(0, 100, 150, 150)
    graph, (o, final) = capture(lambda: fla.chunk_kda(
        *i.batched(), output_final_state=True, cu_seqlens=cu, use_graph=True, max_num_seqs=3, **FLA, **i.gates()))
    cu.copy_(longs(0, 64, 65, 140))
    graph.replay()
    torch.cuda.synchronize()
    for r, (a, b) in enumerate(((0, 64), (64, 65), (65, 140))):
        want, s = i.oracle(a, b)
        close(wide(o[0, a:b]), want, 2e-2)
        close(wide(final[r]), s[-1], 2e-2)


def test_fla_fused_recurrent_kda_is_a_step():
    i = Case(6, seed=23)
    start = i.states(6)
    o, final = fla.fused_recurrent_kda(*[t.unsqueeze(1) for t in i.tokens()], initial_state=start, output_final_state=True, state_v_first=True,
                                       use_beta_sigmoid_in_kernel=True, **GATE, **i.gates())
    for r in range(6):
        want, s = i.oracle(r, r + 1, start[r])
        close(wide(o[r]), want, 1e-2)
        close(wide(final[r]), s[1], 1e-5)


@pytest.mark.parametrize('state', [torch.float32, torch.bfloat16])
def test_flashkda(state):
    i = Case(130, seed=24)
    start, out = i.states(2, state), torch.full((1, 130, H, V), NAN, device='cuda', dtype=torch.bfloat16)
    final = torch.full_like(start, NAN)
    flashkda.fwd(*i.batched(), K**-0.5, out, i.A_log, i.dt_bias, -5.0, start, final, longs(0, 65, 130))
    for r, (a, b) in enumerate(((0, 65), (65, 130))):
        want, s = i.oracle(a, b, start[r])
        close(wide(out[0, a:b]), want, 2e-2)
        close(wide(final[r]), s[-1], 2e-2)


@pytest.mark.parametrize('lengths,prefixes,tracks', [([130, 128], [0, 0], [130, 128]), ([130, 128, 0], [0, 0, 0], [130, 128, -1]),
                                                     ([578], [512], [1024])], ids=['V1', 'V2', 'V3'])
def test_flashinfer_checkpoints(lengths, prefixes, tracks):
    wanted = flashinfer.checkpoint_plan(lengths, prefixes, tracks)
    begin = np.cumsum([0] + lengths).tolist()
    i, n = Case(begin[-1], seed=25), len(lengths)
    pool = i.states(5)
    start, slots = pool.clone(), ints(*[4, 0, 2][:n])
    kept = torch.full((3, H, V, K), NAN, device='cuda')
    out, final, returned = flashinfer.recurrent_kda(
        *i.batched(), i.A_log, i.dt_bias, initial_state=pool, ssm_state_indices=slots, cu_seqlens=longs(*begin), output_final_state=True,
        beta_is_logit=True, state_checkpoints=kept, checkpoint_cu_starts=longs(*wanted.starts), checkpoint_every_n_tokens=64,
        checkpoint_state_indices=ints(*wanted.dest), **GATE)
    assert final is pool and returned is kept and kept[wanted.count:].isnan().all()
    for r, (a, b) in enumerate(zip(begin, begin[1:])):
        slot = int(slots[r])
        if a == b:
            assert torch.equal(pool[slot], start[slot])
            continue
        want, s = i.oracle(a, b, start[slot])
        close(wide(out[0, a:b]), want, 2e-2)
        close(wide(pool[slot]), s[-1], 2e-2)
        for j in range((b - a) // 64):
            to = wanted.dest[wanted.starts[r] + j]
            if to >= 0:
                close(wide(kept[to]), s[(j + 1) * 64], 2e-2)
    assert torch.equal(pool[[1, 3]], start[[1, 3]])


def test_flashinfer_v4_is_refused_before_anything_runs():
    for extend, track, rows in ((128, 1, None), (128, 193, None), (130, 130, [])):
        with pytest.raises(ValueError, match='Invalid KDA checkpoint metadata'):
            flashinfer.checkpoint_plan([extend], [0], [track], expected_rows=rows)


def test_flashinfer_decode_in_place():
    i = Case(3, seed=26)
    pool = i.states(4)
    start = pool.clone()
    out, final = flashinfer.recurrent_kda(*[t.unsqueeze(1) for t in i.tokens()], i.A_log, i.dt_bias, initial_state=pool,
                                          ssm_state_indices=ints(3, -1, 0), output_final_state=True, beta_is_logit=True, **GATE)
    assert final is pool and (out[1] == 0).all() and torch.equal(pool[1:3], start[1:3])
    for row, slot in ((0, 3), (2, 0)):
        o, s = i.oracle(row, row + 1, start[slot])
        close(wide(out[row]), o, 1e-2)
        close(wide(pool[slot]), s[1], 1e-5)
