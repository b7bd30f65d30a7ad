"""extend, step, verify, commit, convolution and state copies on numpy arrays against the float64 recurrence."""

import kadence
import ml_dtypes
import numpy as np
import oracle
import pytest
from oracle import Inputs, close

NAN = np.float32('nan')


def problem(i, phase='extend', **kw):
    kw = {'max_rows': 8, 'max_tokens': 4096} | kw
    return kadence.Problem(phase=phase, H=i.H, HV=i.HV, K=i.K, V=i.V, **kw)


def pool(i, slots, dtype=np.float32):
    """Slots with a pitch; everything NaN."""
    wide = np.full((slots, i.HV * i.V * i.K + 64), np.nan, np.float32).astype(dtype)
    view = np.lib.stride_tricks.as_strided(
        wide, (slots, i.HV, i.V, i.K), (wide.strides[0], i.V * i.K * wide.itemsize, i.K * wide.itemsize, wide.itemsize))
    return view, wide


def untouched(wide, inside):
    return np.isnan(wide[:, inside:].astype(np.float32)).all()


@pytest.mark.parametrize('HV', [2, 4])
@pytest.mark.parametrize('gate', ['bounded', 'softplus', 'given_log_decay'])
def test_extend_with_checkpoints_into_one_pool(gate, HV):
    lengths, padding = [130, 0, 64, 193], 5
    begin = np.cumsum([0] + lengths)
    i = Inputs(begin[-1] + padding, HV=HV, seed=1)
    decay = i.log_decay('bounded').astype(np.float32) if gate == 'given_log_decay' else i.x
    for x in (i.q, i.k, i.v, i.b):
        x[begin[-1]:] = NAN
    decay[begin[-1]:] = NAN
    plan = kadence.plan_kda(problem(i, gate=gate, max_checkpoints=8))
    assert plan.backend == 'cpu' and plan.scale == pytest.approx(i.K**-0.5)
    states, wide = pool(i, 12)
    states[3], states[7] = i.state(1)[0], i.state(1)[0]
    start = {3: states[3].copy(), 7: states[7].copy()}
    # Row 0 resumes slot 3 in place, row 1 is empty, row 2 starts from zeros and stores nothing, row 3 forks slot 7.
    rows = kadence.metadata(plan, begin, [3, 7, -1, 7], [3, 1, -1, 5], checkpoints=[[(64, 0), (128, -1)], [], [(64, 2)], [(64, 8), (192, 9)]],
                            slots=12, tokens=i.T)
    out = np.full((i.T, i.HV, i.V), NAN)
    parameters = {} if gate == 'given_log_decay' else {'A_log': i.A_log, 'dt_bias': i.dt_bias}
    got = kadence.extend(plan, i.q, i.k, i.v, decay, i.b, metadata=rows, states=states, out=out, **parameters)
    assert got is out
    g = i.log_decay('bounded') if gate == 'given_log_decay' else i.log_decay(gate)
    want = [oracle.recurrence(i.q[a:b], i.k[a:b], i.v[a:b], g[a:b], i.beta()[a:b], s)
            for a, b, s in zip(begin, begin[1:], (start[3], start[7], None, start[7]))]
    for r, (a, b) in enumerate(zip(begin, begin[1:])):
        close(out[a:b], want[r][0], 1e-5, f'row {r}')
    assert (out[begin[-1]:] == 0).all()
    for slot, r, depth in ((3, 0, 130), (0, 0, 64), (2, 2, 64), (5, 3, 193), (8, 3, 64), (9, 3, 192)):
        close(states[slot], want[r][1][depth], 1e-5, f'slot {slot}')
    assert (states[1] == start[7]).all() and (states[7] == start[7]).all()
    for slot in (4, 6, 10, 11):
        assert np.isnan(states[slot]).all()
    assert untouched(wide, i.HV * i.V * i.K)


def test_checkpoint_has_the_bits_of_a_shorter_run():
    i = Inputs(200, seed=2)
    plan = kadence.plan_kda(problem(i, max_checkpoints=1))
    inputs = dict(A_log=i.A_log, dt_bias=i.dt_bias)
    long, short = np.full((2, 2, i.HV, i.V, i.K), NAN)
    kadence.extend(plan, i.q, i.k, i.v, i.x, i.b, metadata=kadence.metadata(plan, [0, 200], [-1], [0], checkpoints=[[(128, 1)]], slots=2),
                   states=long, **inputs)
    out = kadence.extend(plan, i.q[:128], i.k[:128], i.v[:128], i.x[:128], i.b[:128],
                         metadata=kadence.metadata(plan, [0, 128], [-1], [1], slots=2), states=short, **inputs)
    assert (long[1].view(np.uint32) == short[1].view(np.uint32)).all()
    close(out, i.oracle(0, 128)[0], 1e-5)


@pytest.mark.parametrize('as_bits', [False, True], ids=['ml_dtypes', 'uint16'])
def test_bfloat16(as_bits):
    bf16 = ml_dtypes.bfloat16
    i = Inputs(96, dtype=bf16, seed=3)
    plan = kadence.plan_kda(problem(i, io='bfloat16', decay='bfloat16', state_in='bfloat16', state_out='bfloat16', max_checkpoints=1,
                                    checkpoints='bfloat16'))
    states = np.full((3, i.HV, i.V, i.K), np.nan, bf16)
    states[0] = i.state(1, bf16)[0]
    start = states[0].copy()
    arrays = [x.view(np.uint16) if as_bits else x for x in (i.q, i.k, i.v, i.x)]
    rows = kadence.metadata(plan, [0, 96], [0], [1], checkpoints=[[(64, 2)]], slots=3)
    out = kadence.extend(plan, *arrays, i.b, metadata=rows, A_log=i.A_log, dt_bias=i.dt_bias, states=states.view(np.uint16) if as_bits else states)
    assert out.dtype == (np.uint16 if as_bits else bf16)
    o, s = i.oracle(0, 96, start)
    close(out.view(bf16), o, 1e-2)
    close(states[1], s[96], 1e-2)
    close(states[2], s[64], 1e-2)


class OnlyDLPack:
    """An array of a library that this package has never heard of."""

    def __init__(self, x):
        self.x = x

    def __dlpack__(self, **kw):
        return self.x.__dlpack__(**kw)

    def __dlpack_device__(self):
        return self.x.__dlpack_device__()


def test_any_dlpack_array_and_a_workspace_of_the_caller():
    i = Inputs(64, seed=9)
    plan = kadence.plan_kda(problem(i))
    space = np.full(plan.workspace_bytes + 512, 255, np.uint8)
    start = -space.ctypes.data % 256
    rows = kadence.metadata(plan, [0, 64], [-1], [-1])
    out = np.full((64, i.HV, i.V), NAN)
    kadence.extend(plan, *[OnlyDLPack(np.ascontiguousarray(x)) for x in (i.q, i.k, i.v, i.x, i.b)], metadata=rows, A_log=OnlyDLPack(i.A_log),
                   dt_bias=i.dt_bias, out=OnlyDLPack(out), workspace=space[start:start + plan.workspace_bytes])
    close(out, i.oracle(0, 64)[0], 1e-5)
    assert (space[:start] == 255).all() and (space[start + plan.workspace_bytes:] == 255).all()


def test_device_metadata_reports_a_bad_row_and_zeroes_it():
    i = Inputs(150, seed=4)
    plan = kadence.plan_kda(problem(i, seq_int64=True, max_checkpoints=2))
    status = np.zeros(2, np.int32)
    states = np.full((3, i.HV, i.V, i.K), NAN)
    rows = kadence.device_metadata(plan, np.array([0, 70, 150]), np.array([-1, 99], np.int32), np.array([0, 1], np.int32),
                                   ckpt_begin=np.array([0, 1, 1], np.int32), ckpt_depth=np.array([64], np.int32),
                                   ckpt_slot=np.array([2], np.int32), status=status)
    out = np.full((150, i.HV, i.V), NAN)
    kadence.extend(plan, i.q, i.k, i.v, i.x, i.b, metadata=rows, A_log=i.A_log, dt_bias=i.dt_bias, states=states, out=out)
    o, s = i.oracle(0, 70)
    close(out[:70], o, 1e-5)
    close(states[2], s[64], 1e-5)
    close(states[0], s[70], 1e-5)
    assert (out[70:] == 0).all() and np.isnan(states[1]).all()
    assert status.tolist() == [1, 2]  # row 1, bad state_in


def test_step_in_place_and_padded_rows():
    i = Inputs(3, seed=5)
    plan = kadence.plan_kda(problem(i, 'step'))
    states, wide = pool(i, 4)
    states[2], states[0] = i.state(1)[0], i.state(1)[0]
    start = states.copy()
    i.q[1] = i.k[1] = i.v[1] = i.x[1] = NAN
    out = kadence.step(plan, i.q, i.k, i.v, i.x, i.b, slot_in=np.array([2, -1, 0], np.int32), A_log=i.A_log, dt_bias=i.dt_bias, states=states)
    assert (out[1] == 0).all()
    for row, slot in ((0, 2), (2, 0)):
        o, s = i.oracle(row, row + 1, start[slot])
        close(out[row], o[0], 1e-5)
        close(states[slot], s[1], 1e-5)
    assert np.isnan(states[[1, 3]]).all() and untouched(wide, i.HV * i.V * i.K)


def test_fused_step_is_refused_where_no_backend_has_it():
    with pytest.raises(NotImplementedError, match='cpu: lacks the fused step'):
        kadence.plan_kda(problem(Inputs(1), 'step', fused_step=True))


def test_verify_a_tree_and_commit_two_layers():
    i, D, channels = Inputs(8, seed=7), 4, 48
    plan = kadence.plan_kda(problem(i, 'verify', D=D))
    parent = np.array([[-1, 0, 0, 1], [-1, 0, 1, 2]], np.int32)  # a tree and a chain of three
    n_draft = np.array([4, 3], np.int32)
    slot_in = np.array([2, 0], np.int32)
    states = np.stack([i.state(5), i.state(5)])
    before = states.copy()
    scratch = np.empty((2, plan.scratch_bytes), np.uint8)
    call = dict(n_draft=n_draft, parent=parent, slot_in=slot_in)
    for layer in range(2):
        out, _ = kadence.verify(plan, i.q, i.k, i.v, i.x, i.b, states=states[layer], scratch=scratch[layer], A_log=i.A_log,
                                dt_bias=i.dt_bias, out=np.full((8, i.HV, i.V), NAN), **call)
        for row in range(2):
            for d in range(D):
                if d >= n_draft[row]:
                    assert (out[row * D + d] == 0).all()
                    continue
                close(out[row * D + d], along(i, parent, row, d, D, before[layer, slot_in[row]])[0], 1e-5, f'layer {layer} node {row},{d}')
    assert (states == before).all()
    x = i.rng.standard_normal((2, 8, channels)).astype(np.float32)
    windows = i.rng.standard_normal((2, 5, 3, channels)).astype(np.float32)
    past = windows.copy()
    kadence.commit(plan, node=np.array([3, -1], np.int32), track_node=np.array([2, 1], np.int32), track_slot=np.array([1, 4], np.int32),
                   scratch=scratch, states=states, conv_x=x, windows=windows, **call)
    for layer in range(2):
        for row, node, slot in ((0, 3, 2), (0, 2, 1), (1, 1, 4)):
            close(states[layer, slot], along(i, parent, row, node, D, before[layer, slot_in[row]])[1], 1e-5)
            full = np.concatenate([past[layer, slot_in[row]], x[layer, [row * D + d for d in path(parent[row], node)]]])
            assert (windows[layer, slot] == full[-3:]).all()
        assert (states[layer, 0] == before[layer, 0]).all() and (states[layer, 3] == before[layer, 3]).all()


def path(parent, node):
    nodes = []
    while node >= 0:
        nodes.insert(0, node)
        node = parent[node]
    return nodes


def along(i, parent, row, node, D, state):
    at = [row * D + d for d in path(parent[row], node)]
    o, s = oracle.recurrence(i.q[at], i.k[at], i.v[at], i.log_decay()[at], i.beta()[at], state)
    return o[-1], s[-1]


def test_convolution_extend_step_and_verify():
    i, channels = Inputs(100, seed=8), 40
    rng = i.rng
    x = rng.standard_normal((100, channels)).astype(np.float32)
    weight, bias = rng.standard_normal((channels, 4)).astype(np.float32), rng.standard_normal(channels).astype(np.float32)
    windows = np.full((6, 3, channels), NAN)
    windows[1] = rng.standard_normal((3, channels))
    past = windows[1].copy()
    plan = kadence.plan_kda(problem(i, max_checkpoints=2))
    rows = kadence.metadata(plan, [0, 70, 98], [1, -1], [2, 3], checkpoints=[[(64, 4)], []], slots=6, tokens=100)
    y = kadence.conv1d_extend(plan, x, weight, bias, metadata=rows, windows=windows, out=np.full_like(x, NAN))
    first, end = oracle.convolution(x[:70], weight, bias, past)
    second, end2 = oracle.convolution(x[70:98], weight, bias, np.zeros((3, channels)))
    close(y[:98], np.concatenate([first, second]), 1e-5)
    assert (y[98:] == 0).all()
    assert (windows[2] == end).all() and (windows[3] == end2).all() and (windows[4] == x[61:64]).all() and np.isnan(windows[5]).all()

    y = kadence.conv1d_step(x[:2], weight, bias, slot_in=np.array([2, -1], np.int32), windows=windows)
    want, window = oracle.convolution(x[:1], weight, bias, end)
    close(y[:1], want, 1e-5)
    assert (y[1] == 0).all() and (windows[2] == window).all()

    parent, n_draft = np.array([[-1, 0, 0]], np.int32), np.array([3], np.int32)
    y = kadence.conv1d_verify(x[:3], weight, n_draft=n_draft, parent=parent, slot_in=np.array([3], np.int32), windows=windows)
    for node in range(3):
        close(y[node], oracle.convolution(x[path(parent[0], node)], weight, None, end2)[0][-1], 1e-5)


def test_copy_states_then_clear():
    i = Inputs(1)
    states = np.stack([i.state(4), i.state(4)])
    before = states.copy()
    kadence.copy_states(states, src=np.array([0, -1], np.int32), dst=np.array([3, 1], np.int32), clear=np.array([2], np.int32))
    assert (states[:, 3] == before[:, 0]).all() and (states[:, 2] == 0).all()
    assert (states[:, :2] == before[:, :2]).all()
