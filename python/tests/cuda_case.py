"""Inputs of the tests on CUDA tensors. Importing it skips a module where torch, a CUDA device or a CUDA build is missing."""

import kadence
import numpy as np
import oracle
import pytest

try:
    import torch
except ImportError as e:
    pytest.skip(f'torch is not installed ({e})', allow_module_level=True)
if not kadence.built_with_cuda:
    pytest.skip('kadence was built without CUDA (-C cmake.define.KADENCE_CUDA=ON)', allow_module_level=True)
if not torch.cuda.is_available():
    pytest.skip('no CUDA device', allow_module_level=True)

H, K, V = 2, 128, 128
NAN = float('nan')
GATE = dict(use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True, lower_bound=-5.0)
FLA = dict(GATE, use_beta_sigmoid_in_kernel=True, safe_gate=True, state_v_first=True)


def wide(x):
    return x.detach().float().cpu().numpy().astype(np.float64)


def longs(*values):
    return torch.tensor(values, device='cuda', dtype=torch.int64)


def ints(*values):
    return torch.tensor(values, device='cuda', dtype=torch.int32)


class Case:
    """Random inputs of T packed tokens: q, k, v, gate input and beta are slices of one projection whose rest is NaN."""

    def __init__(self, T, HV=H, dtype=torch.bfloat16, seed=0):
        gen = torch.Generator('cpu').manual_seed(seed)
        self.T, self.HV = T, HV
        sizes = [H * K, H * K, HV * V, HV * K, 8 * ((HV + 7) // 8)]
        self.projection = torch.full((T, sum(sizes) + 64), NAN, dtype=dtype)
        views, at = [], 0
        for heads, channels, size in zip((H, H, HV, HV, HV), (K, K, V, K, 1), sizes):
            view = self.projection[:, at:at + heads * channels]
            view.copy_(torch.randn(T, heads * channels, generator=gen))
            views.append((at, heads, channels))
            at += size
        self.projection = self.projection.cuda()
        self.q, self.k, self.v, self.x, b = (
            self.projection[:, a:a + h * c].unflatten(1, (h, c)) for a, h, c in views)
        self.b = b[:, :, 0]
        self.A_log = (torch.randn(HV, generator=gen) * 0.3).cuda()
        self.dt_bias = (torch.randn(HV, K, generator=gen) * 0.5).cuda()
        self.gen = gen

    def states(self, n, dtype=torch.float32):
        return (torch.randn(n, self.HV, V, K, generator=self.gen) * 0.5).to(dtype).cuda()

    def tokens(self):
        return self.q, self.k, self.v, self.x, self.b

    def batched(self):
        return [t[None] for t in self.tokens()]

    def gates(self):
        return dict(A_log=self.A_log, dt_bias=self.dt_bias)

    def problem(self, phase='extend', **kw):
        io = str(self.q.dtype).removeprefix('torch.')
        kw = dict(max_rows=8, max_tokens=4096, io=io, decay=io, beta='bfloat16' if io == 'bfloat16' else 'float32') | kw
        return kadence.Problem(phase=phase, H=H, HV=self.HV, K=K, V=V, **kw)

    def plan(self, phase='extend', options=kadence.Options(), **kw):
        return kadence.plan_kda(self.problem(phase, **kw), kadence.cuda(0), options)

    def oracle(self, a, b, state=None, gate='bounded', q=None):
        g = oracle.log_decay(wide(self.x[a:b]), gate, wide(self.A_log), wide(self.dt_bias))
        tokens = [wide(t[a:b]) for t in (self.q if q is None else q, self.k, self.v)]
        return oracle.recurrence(*tokens, g, oracle.sigmoid(wide(self.b[a:b])), None if state is None else wide(state))


def capture(run):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()
    return graph, result
