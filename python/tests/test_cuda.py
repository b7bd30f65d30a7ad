"""The package on torch CUDA tensors: values against the float64 recurrence, zero-copy, streams, graphs, no waiting, errors.

Skipped where torch, a CUDA device or a CUDA build of the package is missing.
"""

import kadence
import numpy as np
import oracle
import pytest
from cuda_case import FLA, GATE, NAN, H, K, V, Case, capture, ints, longs, torch, wide
from kadence.compat import fla, flashinfer, flashkda
from oracle import close


@pytest.mark.parametrize('HV,gate', [(2, 'bounded'), (4, 'bounded'), (2, 'softplus')])
def test_extend_with_checkpoints_into_one_pool(HV, gate):
    lengths, padding = [130, 0, 64, 193], 5
    begin = np.cumsum([0] + lengths).tolist()
    i = Case(begin[-1] + padding, HV, seed=1)
    i.projection[begin[-1]:] = NAN
    plan = i.plan(gate=gate, max_checkpoints=8)
    assert plan.backend == 'sm90' and plan.device.kind == 'cuda'
    slots = torch.full((12, HV * V * K + 64), NAN, device='cuda')
    pool = slots[:, :HV * V * K].unflatten(1, (HV, V, K))
    pool[3], pool[7] = i.states(2)
    start = {3: pool[3].clone(), 7: pool[7].clone()}
    rows = kadence.metadata(plan, begin, [3, 7, -1, 7], [3, 1, -1, 5], checkpoints=[[(64, 0), (128, -1)], [], [(64, 2)], [(64, 8), (192, 9)]],
                            slots=12, tokens=i.T)
    out = torch.full_like(i.v, NAN)
    got = kadence.extend(plan, *i.tokens(), metadata=rows, states=pool, out=out, **i.gates())
    assert got is out
    want = [i.oracle(a, b, s, gate) for a, b, s in zip(begin, begin[1:], (start[3], start[7], None, start[7]))]
    for r, (a, b) in enumerate(zip(begin, begin[1:])):
        close(wide(out[a:b]), want[r][0], 2e-2, f'row {r}')
    assert (out[begin[-1]:] == 0).all()
    for slot, r, depth in ((3, 0, 130), (0, 0, 64), (2, 2, 64), (5, 3, 193), (8, 3, 64), (9, 3, 192)):
        close(wide(pool[slot]), want[r][1][depth], 2e-2, f'slot {slot}')
    assert torch.equal(pool[1], start[7]) and torch.equal(pool[7], start[7])
    assert pool[[4, 6, 10, 11]].isnan().all() and slots[:, HV * V * K:].isnan().all()


def test_checkpoint_has_the_bits_of_a_shorter_run():
    i = Case(330, seed=2)
    plan = i.plan(max_checkpoints=1)
    pool = torch.zeros(3, H, V, K, device='cuda')
    for begin, end, checkpoints in ((330, 0, [[(256, 1)]]), (256, 2, None)):
        rows = kadence.metadata(plan, [0, begin], [-1], [end], checkpoints=checkpoints, slots=3)
        kadence.extend(plan, *[t[:begin] for t in i.tokens()], metadata=rows, states=pool, **i.gates())
    assert torch.equal(pool[1], pool[2]) and pool[1].any()


def test_nothing_is_copied():
    i = Case(2048, seed=3)
    plan = i.plan(max_checkpoints=0)
    pool, out = i.states(2), torch.empty_like(i.v)
    rows = kadence.metadata(plan, [0, 2048], [0], [1], slots=2)
    space = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device='cuda')
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kadence.extend(plan, *i.tokens(), metadata=rows, states=pool, out=out, workspace=space, **i.gates())
    assert torch.cuda.max_memory_allocated() == before
    kadence.extend(plan, *i.tokens(), metadata=rows, states=pool, out=out, **i.gates())
    assert torch.cuda.max_memory_allocated() - before <= plan.workspace_bytes + 512
    assert plan.workspace_bytes <= 64 << 20


@pytest.mark.parametrize('state', ['float32', 'bfloat16'])
def test_step_in_place_and_padded_rows(state):
    i = Case(3, seed=5)
    plan = i.plan('step', state_in=state, state_out=state)
    pool = torch.full((4, H, V, K), NAN, device='cuda', dtype=getattr(torch, state))
    pool[[2, 0]] = i.states(2, pool.dtype)
    start = pool.clone()
    i.projection[1] = NAN
    out = kadence.step(plan, *i.tokens(), slot_in=ints(2, -1, 0), states=pool, **i.gates())
    assert (out[1] == 0).all() and pool[[1, 3]].isnan().all()
    for row, slot in ((0, 2), (2, 0)):
        o, s = i.oracle(row, row + 1, start[slot])
        close(wide(out[row]), o[0], 1e-2)
        close(wide(pool[slot]), s[1], 1e-5 if state == 'float32' else 1e-2)


def test_fused_step():
    i, channels, rows = Case(4, seed=6), 3 * H * K, 4
    gen = torch.Generator('cpu').manual_seed(9)

    def randn(*shape, dtype=torch.bfloat16):
        return torch.randn(*shape, generator=gen).to(dtype).cuda()

    x, z, weight, bias = randn(rows, channels), randn(rows, H, V), randn(channels, 4, dtype=torch.float32), randn(channels, dtype=torch.float32)
    windows, norm, pool = randn(5, 3, channels), randn(V, dtype=torch.float32), i.states(5)
    slots = ints(4, 0, -1, 2)
    past, start = windows.clone(), pool.clone()
    plan = i.plan('step', fused_step=True, conv='bfloat16')
    out = kadence.fused_step(plan, x, i.x, i.b, z, conv_weight=weight, conv_bias=bias, windows=windows, norm_weight=norm, eps=1e-5,
                             slot_in=slots, states=pool, **i.gates())
    assert (out[2] == 0).all() and torch.equal(pool[[1, 3]], start[[1, 3]]) and torch.equal(windows[[1, 3]], past[[1, 3]])
    g = oracle.log_decay(wide(i.x), 'bounded', wide(i.A_log), wide(i.dt_bias))
    for row, slot in ((0, 4), (1, 0), (3, 2)):
        y, window = oracle.convolution(wide(x[row:row + 1]), wide(weight), wide(bias), wide(past[slot]))
        q, k, v = (y[:, n * H * K:(n + 1) * H * K].reshape(1, H, K) for n in range(3))
        o, s = oracle.recurrence(q, k, v, g[row:row + 1], oracle.sigmoid(wide(i.b[row:row + 1])), wide(start[slot]))
        o = o[0] / np.sqrt((o[0]**2).mean(-1, keepdims=True) + 1e-5) * wide(norm) * oracle.sigmoid(wide(z[row]))
        close(wide(out[row]), o, 1e-2, f'row {row}')
        close(wide(pool[slot]), s[1], 1e-5)
        assert (wide(windows[slot]) == window).all()


def test_verify_has_the_bits_of_steps_and_commit_stores_them():
    D = 4
    i = Case(2 * D, seed=7)
    verify = i.plan('verify', D=D)
    step = i.plan('step')
    pool, parent, n_draft, slot_in = i.states(6), ints(-1, 0, 1, 2, -1, 0, 0, 1).view(2, D), ints(4, 4), ints(3, 1)
    before = pool.clone()
    call = dict(n_draft=n_draft, parent=parent, slot_in=slot_in)
    out, scratch = kadence.verify(verify, *i.tokens(), states=pool, **call, **i.gates())
    assert torch.equal(pool, before)
    kadence.commit(verify, node=ints(3, -1), track_node=ints(1, 3), track_slot=ints(0, 5), scratch=scratch, states=pool, **call)

    def steps(row, nodes):
        state, o = before[slot_in[row]][None].clone(), None
        for n in nodes:
            o = kadence.step(step, *[t[row * D + n:row * D + n + 1] for t in i.tokens()], slot_in=ints(0), states=state, **i.gates())
        return o[0], state[0]

    for row, nodes in ((0, [0, 1, 2, 3]), (1, [0, 2]), (1, [0, 1, 3])):
        assert torch.equal(out[row * D + nodes[-1]], steps(row, nodes)[0])
    assert torch.equal(pool[3], steps(0, [0, 1, 2, 3])[1]) and torch.equal(pool[0], steps(0, [0, 1])[1])
    assert torch.equal(pool[5], steps(1, [0, 1, 3])[1]) and torch.equal(pool[1], before[1])
    o, s = i.oracle(0, D, before[3])
    close(wide(out[:D]), o, 1e-2)
    close(wide(pool[3]), s[D], 1e-5)


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float32])
def test_convolution_extend_step_and_verify(dtype):
    channels = 96
    gen = torch.Generator('cpu').manual_seed(8)
    x = torch.randn(100, channels, generator=gen).to(dtype).cuda()
    weight, bias = torch.randn(channels, 4, generator=gen).cuda(), torch.randn(channels, generator=gen).cuda()
    windows = torch.full((6, 3, channels), NAN, device='cuda', dtype=dtype)
    windows[1] = torch.randn(3, channels, generator=gen).to(dtype)
    past = wide(windows[1])
    tolerance = 1e-2 if dtype == torch.bfloat16 else 1e-5
    plan = Case(1).plan(max_checkpoints=2)
    rows = kadence.metadata(plan, [0, 70, 98], [1, -1], [2, 3], checkpoints=[[(64, 4)], []], slots=6, tokens=100)
    y = kadence.conv1d_extend(plan, x, weight, bias, metadata=rows, windows=windows, out=torch.full_like(x, NAN))
    first, end = oracle.convolution(wide(x[:70]), wide(weight), wide(bias), past)
    second, end2 = oracle.convolution(wide(x[70:98]), wide(weight), wide(bias), np.zeros((3, channels)))
    close(wide(y[:98]), np.concatenate([first, second]), tolerance)
    assert (y[98:] == 0).all() and windows[5].isnan().all()
    assert (wide(windows[2]) == end).all() and (wide(windows[3]) == end2).all() and torch.equal(windows[4], x[61:64])
    y = kadence.conv1d_step(x[:2], weight, bias, slot_in=ints(2, -1), windows=windows)
    want, window = oracle.convolution(wide(x[:1]), wide(weight), wide(bias), end)
    close(wide(y[:1]), want, tolerance)
    assert (y[1] == 0).all() and (wide(windows[2]) == window).all()
    y = kadence.conv1d_verify(x[:3], weight, n_draft=ints(3), parent=ints(-1, 0, 0).view(1, 3), slot_in=ints(3), windows=windows)
    for node, path in ((0, [0]), (1, [0, 1]), (2, [0, 2])):
        close(wide(y[node]), oracle.convolution(wide(x[path]), wide(weight), None, end2)[0][-1], tolerance)


def test_copy_states_then_clear():
    states = Case(1).states(8).view(2, 4, H, V, K)
    before = states.clone()
    kadence.copy_states(states, src=ints(0, -1), dst=ints(3, 1), clear=ints(2))
    assert torch.equal(states[:, 3], before[:, 0]) and not states[:, 2].any() and torch.equal(states[:, :2], before[:, :2])


@pytest.mark.parametrize('dtype', [torch.float32, torch.float16])
def test_other_dtypes_run_on_a_portable_backend(dtype):
    i = Case(130, dtype=dtype, seed=10)
    i.b = i.b.float()
    plan = i.plan()
    assert plan.backend.startswith('sm80') and kadence.backend_misses('sm90', i.problem(), kadence.cuda(0))
    pool = i.states(2)
    start = pool[0].clone()
    rows = kadence.metadata(plan, [0, 130], [0], [1], slots=2)
    out = kadence.extend(plan, *i.tokens(), metadata=rows, states=pool, **i.gates())
    o, s = i.oracle(0, 130, start)
    close(wide(out), o, 1e-4 if dtype == torch.float32 else 1e-2)
    close(wide(pool[1]), s[130], 1e-4)


def test_a_backend_can_be_forced():
    plan = Case(1).plan(options=kadence.Options(backend='sm80'))
    assert plan.backend == 'sm80'
    with pytest.raises(NotImplementedError, match='cpu'):
        Case(1).plan(options=kadence.Options(backend='cpu'))


# ---------------------------------------------------------------------------------------------------------------------
# Streams, waiting, graphs


def busy(milliseconds=200):
    """Keeps the current stream busy for about so long."""
    torch.cuda._sleep(int(milliseconds * 1.6e6))


def calls(i):
    """Every operator and compat function once, as closures over arrays made beforehand."""
    T = i.T
    extend, step, verify = i.plan(max_checkpoints=2), i.plan('step'), i.plan('verify', D=4)
    pool, h0 = i.states(8), i.states(2)
    cu, slots, tree = longs(0, 70, T), ints(0, 1), ints(*[-1, 0, 1, 2] * 2).view(2, 4)
    buffer = torch.empty(extend.metadata_bytes, dtype=torch.uint8, device='cuda')
    pool6, ckpt, starts, where = i.states(6), i.states(4), longs(0, 1, 1 + (T - 70) // 64), ints(*range(1 + (T - 70) // 64))
    windows, weight = torch.zeros(8, 3, 256, device='cuda', dtype=torch.bfloat16), torch.randn(256, 4, device='cuda')
    x, nodes, drafts = torch.randn(T, 256, device='cuda').bfloat16(), ints(3, 1), ints(4, 4)
    scratch = torch.empty(verify.scratch_bytes, dtype=torch.uint8, device='cuda')
    out, final = torch.empty_like(i.v)[None], torch.empty_like(h0)
    eight = [t[:8] for t in i.tokens()]

    def operators():
        rows = kadence.metadata(extend, [0, 70, T], [0, -1], [1, 2], checkpoints=[[(64, 3)], [(64, 4)]], slots=8, buffer=buffer)
        kadence.extend(extend, *i.tokens(), metadata=rows, states=pool, **i.gates())
        kadence.conv1d_extend(extend, x, weight, metadata=rows, windows=windows)
        kadence.step(step, *[t[:2] for t in eight], slot_in=slots, states=pool, **i.gates())
        tree_call = dict(n_draft=drafts, parent=tree, slot_in=slots)
        kadence.verify(verify, *eight, states=pool, scratch=scratch, **tree_call, **i.gates())
        kadence.commit(verify, node=nodes, scratch=scratch, states=pool, **tree_call)
        kadence.copy_states(pool, src=slots, dst=ints_5_6)

    def device_rows():
        rows = kadence.device_metadata(extend, cu.int(), slots, slots, ckpt_begin=ints_012, ckpt_depth=ints_64, ckpt_slot=ints_5_6)
        kadence.extend(extend, *i.tokens(), metadata=rows, states=pool, **i.gates())

    ints_5_6, ints_012, ints_64 = ints(5, 6), ints(0, 1, 2), ints(64, 64)
    return {
        'operators': operators, 'device rows': device_rows,
        'fla.chunk_kda': lambda: fla.chunk_kda(*i.batched(), initial_state=h0, output_final_state=True, cu_seqlens=cu, **FLA, **i.gates()),
        'fla.chunk_kda of one length': lambda: fla.chunk_kda(*i.batched(), output_final_state=True, **FLA, **i.gates()),
        'fla.fused_recurrent_kda': lambda: fla.fused_recurrent_kda(
            *[t.unsqueeze(1) for t in eight], output_final_state=True, use_beta_sigmoid_in_kernel=True, **GATE, **i.gates()),
        'flashkda.fwd': lambda: flashkda.fwd(*i.batched(), K**-0.5, out, i.A_log, i.dt_bias, -5.0, h0, final, cu),
        'flashinfer.recurrent_kda': lambda: flashinfer.recurrent_kda(
            *i.batched(), i.A_log, i.dt_bias, initial_state=pool6, ssm_state_indices=slots, cu_seqlens=cu, output_final_state=True,
            beta_is_logit=True, state_checkpoints=ckpt, checkpoint_cu_starts=starts, checkpoint_every_n_tokens=64,
            checkpoint_state_indices=where, **GATE),
    }


def test_no_call_waits_for_the_device():
    names = calls(Case(150, seed=12))
    for run in names.values():  # loads the kernels and fills the allocator
        run()
    torch.cuda.synchronize()
    stream = torch.cuda.current_stream()
    try:
        torch.cuda.set_sync_debug_mode('error')  # torch's own waits raise
        for name, run in names.items():
            busy()
            run()
            assert not stream.query(), f'{name} waited for the stream'
            torch.cuda.synchronize()
    finally:
        torch.cuda.set_sync_debug_mode('default')


def test_work_is_in_the_order_of_the_default_stream():
    i = Case(100, seed=13)
    plan, pool, out = i.plan(), i.states(2), torch.full_like(i.v, NAN)
    rows = kadence.metadata(plan, [0, 100], [-1], [1], slots=2)
    values = i.projection.clone()
    i.projection.zero_()
    torch.cuda.synchronize()
    assert torch.cuda.current_stream().cuda_stream == 0
    busy()
    i.projection.copy_(values)  # late
    kadence.extend(plan, *i.tokens(), metadata=rows, states=pool, out=out, **i.gates())
    result = out.cpu()  # waits for the default stream alone
    want, s = i.oracle(0, 100)
    close(wide(result), want, 2e-2)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    busy(20)
    kadence.extend(plan, *i.tokens(), metadata=rows, states=pool, out=out, **i.gates())
    end.record()
    end.synchronize()
    assert begin.elapsed_time(end) > 5


def test_work_follows_the_current_stream():
    i = Case(100, seed=13)
    plan, pool, out = i.plan(), i.states(2), torch.full_like(i.v, NAN)
    rows = kadence.metadata(plan, [0, 100], [-1], [1], slots=2)
    values = i.projection.clone()
    i.projection.zero_()
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        busy()
        i.projection.copy_(values)  # late: work on any other stream would read the zeros
        kadence.extend(plan, *i.tokens(), metadata=rows, states=pool, out=out, **i.gates())
        assert not side.query()
    torch.cuda.default_stream().synchronize()
    side.synchronize()
    close(wide(out), i.oracle(0, 100)[0], 2e-2)

    i.projection.zero_()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        busy()
        i.projection.copy_(values)
    kadence.extend(plan, *i.tokens(), metadata=rows, states=pool, out=out.fill_(NAN), stream=side.cuda_stream, **i.gates())
    torch.cuda.synchronize()
    close(wide(out), i.oracle(0, 100)[0], 2e-2)


def test_a_graph_replays_with_other_rows():
    i = Case(300, seed=14)
    plan = i.plan(max_rows=4, max_tokens=300, max_checkpoints=4)
    pool, out = i.states(8), torch.empty_like(i.v)
    start = pool.clone()
    buffer = torch.empty(plan.metadata_bytes, dtype=torch.uint8, device='cuda')

    def rows(begin, *more, **kw):
        return kadence.metadata(plan, begin, *more, slots=8, tokens=300, buffer=buffer, **kw)

    held = rows([0, 300], [0], [1])
    graph, _ = capture(lambda: kadence.extend(plan, *i.tokens(), metadata=held, states=pool, out=out, **i.gates()))
    for begin, into, ends, checkpoints in (([0, 300], [0], [1], None), ([0, 65, 65, 290], [2, -1, 3], [2, 5, -1], [[(64, 6)], [], [(192, 7)]])):
        pool.copy_(start)
        out.fill_(NAN)
        rows(begin, into, ends, checkpoints=checkpoints)
        graph.replay()
        torch.cuda.synchronize()
        for r, (a, b) in enumerate(zip(begin, begin[1:])):
            o, s = i.oracle(a, b, None if into[r] < 0 else start[into[r]])
            close(wide(out[a:b]), o, 2e-2)
            if ends[r] >= 0:
                close(wide(pool[ends[r]]), s[-1], 2e-2)
            for depth, slot in checkpoints[r] if checkpoints else ():
                close(wide(pool[slot]), s[depth], 2e-2)
        assert (out[begin[-1]:] == 0).all()


def test_graphs_of_step_verify_and_the_other_libraries_functions():
    i = Case(150, seed=15)
    for name, run in calls(i).items():
        if name == 'operators':
            continue
        eager = run()
        graph, held = capture(run)
        values = i.projection.clone()
        i.projection.copy_(values.flip(0))
        graph.replay()
        torch.cuda.synchronize()
        replayed = [t.clone() for t in held or () if t is not None]
        eager = run()
        torch.cuda.synchronize()
        i.projection.copy_(values)
        if name.startswith('fla.'):  # the others update their states in place
            assert len(replayed) == 2
            for a, b in zip(replayed, eager):
                assert torch.equal(a, b) and a.any(), name


def test_an_upload_in_a_capture_is_refused():
    i = Case(64)
    plan = i.plan()
    buffer = torch.empty(plan.metadata_bytes, dtype=torch.uint8, device='cuda')
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        i.q + 0
        with pytest.raises(ValueError, match='before the capture of a CUDA graph'):
            kadence.metadata(plan, [0, 64], [-1], [-1], buffer=buffer)


# ---------------------------------------------------------------------------------------------------------------------
# Errors


REFUSED = [
    (lambda i: i.q.cpu(), r"q: wanted an array on the plan's device, cuda:0 .*, got one in host memory"),
    (lambda i: i.q.double(), 'q dtype: wanted bfloat16, got float64'),
    (lambda i: i.q.float(), 'q dtype: wanted bfloat16, got float32'),
    (lambda i: i.q[:, :1], r'q shape: wanted \[any, 2, 128\], got \[64, 1, 128\]'),
    (lambda i: i.q.transpose(1, 2).contiguous().transpose(1, 2), 'q strides: wanted dimensions 1 to 2'),
    (lambda i: i.projection.flatten()[1:1 + 64 * H * K].view(64, H, K), 'q: wanted an address aligned to 16 bytes'),
    (lambda i: 3, 'q: wanted an array'),
]


@pytest.mark.parametrize('make,message', REFUSED, ids=[m[:24] for _, m in REFUSED])
def test_arrays_are_refused_by_name(make, message):
    i = Case(64)
    plan = i.plan()
    rows = kadence.metadata(plan, [0, 64], [-1], [-1])
    with pytest.raises(ValueError, match=message):
        kadence.extend(plan, make(i), *i.tokens()[1:], metadata=rows, **i.gates())


def test_parameters_are_read_and_no_gradient_is_recorded():
    i = Case(64, seed=30)
    plan, parameters = i.plan(), {n: torch.nn.Parameter(t) for n, t in i.gates().items()}
    rows = kadence.metadata(plan, [0, 64], [-1], [-1])
    out = kadence.extend(plan, *i.tokens(), metadata=rows, **parameters)
    assert not out.requires_grad
    close(wide(out), i.oracle(0, 64)[0], 2e-2)
    with pytest.raises(NotImplementedError, match='q.requires_grad is not supported'):
        fla.chunk_kda(i.q[None].clone().requires_grad_(), *i.batched()[1:], **FLA, **i.gates())


def test_a_device_that_is_not_there():
    with pytest.raises(ValueError, match=f'CUDA device: wanted 0 to {torch.cuda.device_count() - 1}'):
        kadence.cuda(torch.cuda.device_count())


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason='one CUDA device')
def test_another_device_than_the_current_one():
    i = Case(100, seed=31)
    there = torch.device('cuda', torch.cuda.device_count() - 1)
    plan = kadence.plan_kda(i.problem(), kadence.cuda(there.index))
    rows = kadence.metadata(plan, [0, 100], [-1], [0], slots=1)
    pool = torch.zeros(1, H, V, K, device=there)
    with pytest.raises(ValueError, match=f'q: wanted an array on the plan.s device, cuda:{there.index} .*, got one on cuda:0'):
        kadence.extend(plan, *i.tokens(), metadata=rows, states=pool, **i.gates())
    moved = i.projection.to(there)
    tokens = [moved.as_strided(t.shape, t.stride(), t.storage_offset()) for t in i.tokens()]
    out = kadence.extend(plan, *tokens, metadata=rows, states=pool, A_log=i.A_log.to(there), dt_bias=i.dt_bias.to(there))
    assert torch.cuda.current_device() == 0
    close(wide(out), i.oracle(0, 100)[0], 2e-2)
    close(wide(pool[0]), i.oracle(0, 100)[1][-1], 2e-2)
