"""Inputs of the peer comparison, the float64 recurrence, and one caller for every implementation."""
import math

LOWER_BOUND = -5.0
K = V = 128
EXTEND = {  # name: (heads, lengths)
    'H12 2048': (12, [2048]), 'H12 32x256': (12, [256] * 32), 'H12 8192': (12, [8192]), 'H12 16384': (12, [16384]),
    'H12 8x16384': (12, [16384] * 8), 'H12 131072': (12, [131072]), 'H32 8192': (32, [8192]), 'H32 8x4096': (32, [4096] * 8),
    'H32 8x16384': (32, [16384] * 8), 'H64 8192': (64, [8192]), 'H64 mixed': (64, [1300, 547, 2048, 963, 271, 3063]),
    'H96 8192': (96, [8192]), 'H96 8x1024': (96, [1024] * 8),
}
SOFTPLUS = ('H32 8192', 'H32 8x4096')  # of EXTEND, once more with the softplus gate
STEP = {f'N{n} H{h}': (h, n) for n, h in [(1, 12), (8, 12), (32, 12), (256, 12), (1, 32), (8, 32), (32, 32), (128, 32), (1, 64), (8, 64), (32, 64), (64, 64), (256, 64)]}
MEMORY = {'H12 131072': (12, [131072]), 'H12 1048576': (12, [1048576])}
RAGGED = [1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 96, 127, 128, 129, 200]


class Inputs:
    """bf16 tokens of one packed batch, fp32 states [N,H,V,K]. gate: bounded, softplus or given (g is the log decay)."""

    def __init__(self, torch, heads, lengths, seed=0, gate='bounded'):
        self.torch, self.gen = torch, torch.Generator('cuda').manual_seed(seed)
        self.H, self.T, self.N, self.lengths = heads, sum(lengths), len(lengths), lengths
        self.gate, self.lower_bound, self.l2norm, self.beta_doubled = gate, LOWER_BOUND, True, False
        self.q, self.k, self.v, self.g = (self.randn(1, self.T, heads, K) for _ in range(4))
        self.beta = self.randn(1, self.T, heads)
        self.A_log, self.dt_bias = self.randn(heads, dtype=torch.float32) * 0.3, self.randn(heads, K, dtype=torch.float32) * 0.3
        self.state = self.randn(self.N, heads, V, K, dtype=torch.float32) * 0.1
        self.begin = [0]
        for n in lengths:
            self.begin.append(self.begin[-1] + n)
        self.cu = torch.tensor(self.begin, device='cuda', dtype=torch.int64)
        self.cu_cpu = torch.tensor(self.begin, dtype=torch.int64)

    def randn(self, *shape, dtype=None):
        torch, out = self.torch, None
        dtype = torch.bfloat16 if dtype is None else dtype
        if math.prod(shape) < 1 << 28:
            return torch.randn(*shape, generator=self.gen, device='cuda', dtype=torch.float32).to(dtype)
        out = torch.empty(*shape, device='cuda', dtype=dtype)
        for part in out.flatten().split(1 << 28):
            part.copy_(torch.randn(part.shape, generator=self.gen, device='cuda', dtype=torch.float32))
        return out

    def fill(self, x, value, spread=0.0):
        """x <- value + spread * normal."""
        x.copy_(self.torch.zeros_like(x, dtype=self.torch.float32) + value + (spread * self.randn(*x.shape, dtype=self.torch.float32) if spread else 0))

    def extend_bytes(self, checkpoints):
        # q, k, v, g in and out once, beta, states in and out, checkpoints
        return self.T * self.H * (5 * K * 2 + 2) + (2 * self.N + checkpoints) * self.H * K * V * 4

    def flat(self):
        return [t[0] for t in (self.q, self.k, self.v, self.g, self.beta)]

    def gates(self):
        return {} if self.gate == 'given' else {'A_log': self.A_log, 'dt_bias': self.dt_bias}


# ---------------------------------------------------------------------------------------------------------------------
# Input families for accuracy: what a kernel of finite precision finds hard.


def _shared_keys(x, correlation):
    base = x.randn(1, 1, x.H, K, dtype=x.torch.float32)
    noise = x.randn(1, x.T, x.H, K, dtype=x.torch.float32)
    x.k.copy_(correlation * base + math.sqrt(1 - correlation**2) * noise)


def _near_parallel(correlation):
    def f(x):
        _shared_keys(x, correlation)
        x.fill(x.beta, 8.0)
        x.g.copy_(-5 + x.torch.rand(x.g.shape, generator=x.gen, device='cuda'))
        x.dt_bias.zero_(), x.A_log.zero_()
    return f


def _gates(value, spread=0.0, plain=True):
    def f(x):
        x.fill(x.g, value, spread)
        if plain:
            x.dt_bias.zero_(), x.A_log.zero_()
    return f


def _identical(x):
    _shared_keys(x, 1.0)
    x.fill(x.beta, 8.0), _gates(-12.0)(x)


def _recurring(large):
    def f(x):
        some = x.randn(4, x.H, K)
        x.k[0] = some[x.torch.arange(x.T, device='cuda') % 4]
        x.fill(x.beta, 6.0), _gates(-8.0)(x)
        if large:
            x.state.mul_(1000.0)
    return f


def _slow_channel(x):
    x.g[..., 5] = -12.0
    x.dt_bias.zero_(), x.A_log.zero_()


def _bias(x):
    x.fill(x.g, 0.0, 0.1)
    x.dt_bias.copy_(-7 + x.randn(x.H, K, dtype=x.torch.float32)), x.A_log.zero_()


def _handoff(x):
    half = x.T // 2
    x.g[:, :half], x.g[:, half:] = 8.0, -12.0
    x.dt_bias.zero_(), x.A_log.zero_()


def _set(**fields):
    def f(x):
        for name, value in fields.items():
            setattr(x, name, value)
    return f


def _scaled(**factors):
    def f(x):
        for name, factor in factors.items():
            getattr(x, name).mul_(factor)
    return f


def _one_hot(x):
    x.k.zero_()
    x.k.scatter_(-1, x.torch.randint(0, K, (1, x.T, x.H, 1), generator=x.gen, device='cuda'), 1.0)


def _zero_rows(x):
    x.k[:, ::3], x.q[:, 1::3] = 0.0, 0.0


def _no_l2norm(x):
    x.l2norm = False
    for t in (x.q, x.k):
        t.copy_(x.torch.nn.functional.normalize(t.float(), dim=-1))


def _given(value, spread):
    def f(x):
        x.gate = 'given'
        x.g.copy_(-(value + spread * x.torch.rand(x.g.shape, generator=x.gen, device='cuda')))
        x.beta.copy_(x.beta)
    return f


FAMILIES = {  # name: (gate, lengths, change)
    'randn': ('bounded', [1024], None),
    'identical keys, beta 8, gate -12': ('bounded', [1024], _identical),
    'key correlation .9, beta 8, gate -5..-4': ('bounded', [1024], _near_parallel(0.9)),
    'key correlation .99': ('bounded', [1024], _near_parallel(0.99)),
    'key correlation .999': ('bounded', [1024], _near_parallel(0.999)),
    '4 recurring keys, beta 6, gate -8': ('bounded', [1024], _recurring(False)),
    '4 recurring keys, states of 100': ('bounded', [1024], _recurring(True)),
    'per-channel bias N(-7,1)': ('bounded', [1024], _bias),
    'gate -12': ('bounded', [1024], _gates(-12.0)),
    'gate +8': ('bounded', [1024], _gates(8.0)),
    'gate N(0,8)': ('bounded', [1024], _gates(0.0, 8.0)),
    'gate N(-7,1)': ('bounded', [1024], _gates(-7.0, 1.0)),
    'one slow channel': ('bounded', [1024], _slow_channel),
    'gate +8 then -12': ('bounded', [1024], _handoff),
    'lower bound -0.1': ('bounded', [1024], _set(lower_bound=-0.1)),
    'lower bound -1': ('bounded', [1024], _set(lower_bound=-1.0)),
    'beta doubled': ('bounded', [1024], _set(beta_doubled=True)),
    'beta +10': ('bounded', [1024], lambda x: x.fill(x.beta, 10.0)),
    'beta -10': ('bounded', [1024], lambda x: x.fill(x.beta, -10.0)),
    'one-hot keys': ('bounded', [1024], _one_hot),
    'keys in [0,1)': ('bounded', [1024], lambda x: x.k.copy_(x.torch.rand(x.k.shape, generator=x.gen, device='cuda'))),
    'zero rows of k and q': ('bounded', [1024], _zero_rows),
    'k and q of 1e-4': ('bounded', [1024], _scaled(q=1e-4, k=1e-4)),
    'v and states of 1e3': ('bounded', [1024], _scaled(v=1e3, state=1e4)),
    'no l2norm': ('bounded', [1024], _no_l2norm),
    'ragged lengths': ('bounded', RAGGED, None),
    'rows of one token': ('bounded', [1] * 64, None),
    'softplus': ('softplus', [1024], None),
    'softplus, gate -8': ('softplus', [1024], _gates(-8.0)),
    'softplus, gate +4': ('softplus', [1024], _gates(4.0)),
    'softplus, ragged lengths': ('softplus', RAGGED, None),
    'softplus, key correlation .99': ('softplus', [1024], _near_parallel(0.99)),
    'given decay 0 to 0.1': ('given', [1024], _given(0.0, 0.1)),
    'given decay 40 to 60': ('given', [1024], _given(40.0, 20.0)),
}


def family(torch, name, heads=12, seed=7):
    gate, lengths, change = FAMILIES[name]
    x = Inputs(torch, heads, lengths, seed, gate)
    if change:
        change(x)
    return x


def recurrence64(torch, x):
    """Float64, token by token, from the stored inputs: out [T,H,V], states [N,H,V,K]."""
    q, k, v, g, b = (t.double() for t in x.flat())
    if x.l2norm:
        q, k = (t * torch.rsqrt((t * t).sum(-1, keepdim=True) + 1e-6) for t in (q, k))
    q = q * K**-0.5
    if x.gate == 'bounded':
        g = x.lower_bound * torch.sigmoid(x.A_log.double().exp()[:, None] * (g + x.dt_bias.double()))
    elif x.gate == 'softplus':
        z = g + x.dt_bias.double()
        g = -x.A_log.double().exp()[:, None] * torch.nn.functional.softplus(z, threshold=700.0)
    decay, b = g.exp(), torch.sigmoid(b) * (2 if x.beta_doubled else 1)
    out, states = torch.empty_like(v), x.state.double()
    longest = max(x.lengths)
    for t in range(longest):  # all rows that are long enough at once
        rows = [r for r in range(x.N) if x.lengths[r] > t]
        at = torch.tensor([x.begin[r] + t for r in rows], device='cuda')
        live = torch.tensor(rows, device='cuda') if len(rows) < x.N else slice(None)
        s = states[live] * decay[at][:, :, None, :]
        u = b[at][..., None] * (v[at] - torch.einsum('nhvk,nhk->nhv', s, k[at]))
        s = s + u[..., None] * k[at][:, :, None, :]
        out[at] = torch.einsum('nhvk,nhk->nhv', s, q[at])
        states[live] = s
    return out, states


def errors(got, want):
    """Of [..., rows, channels]: relative error of the whole, and the worst row's error over its size (or the typical row's)."""
    difference = got.double() - want
    if not bool(difference.isfinite().all()):
        return {'all': math.inf, 'worst_row': math.inf}
    rows, size = difference.flatten(0, -2).norm(dim=-1), want.flatten(0, -2).norm(dim=-1)
    floor = max(float((size * size).mean().sqrt()), 1e-300)
    return {'all': float(difference.norm() / want.norm().clamp_min(1e-300)), 'worst_row': float((rows / size.clamp_min(floor)).max())}


# ---------------------------------------------------------------------------------------------------------------------
# Implementations: a maker returns (call, notes); the call returns (out [T,H,V], states [N,H,V,K]).


def kadence_extend(torch, kadence, x, every=0, mode='exact'):
    device = kadence.cuda(torch.cuda.current_device())
    checkpoints, slot = [], 2 * x.N
    for n in x.lengths:
        depths = range(every, n + 1, every) if every else ()
        checkpoints.append([(d, slot + i) for i, d in enumerate(depths)])
        slot += len(checkpoints[-1])
    count = slot - 2 * x.N
    plan = kadence.plan_kda(kadence.Problem(
        H=x.H, HV=x.H, K=K, V=V, io='bfloat16', decay='bfloat16', beta='bfloat16', gate='given_log_decay' if x.gate == 'given' else x.gate,
        lower_bound=x.lower_bound, beta_doubled=x.beta_doubled, l2norm=x.l2norm, max_rows=x.N, max_tokens=x.T, max_checkpoints=count),
        device, kadence.Options(mode=mode))
    pool = torch.zeros(slot, x.H, V, K, device='cuda')
    pool[:x.N] = x.state
    rows = kadence.metadata(plan, x.begin, range(x.N), range(x.N, 2 * x.N), checkpoints=checkpoints if count else None, slots=slot)
    flat, gates = x.flat(), x.gates()
    out = torch.empty_like(flat[2])
    space = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device='cuda')

    def run():
        kadence.extend(plan, *flat, metadata=rows, **gates, states=pool, out=out, workspace=space)
        return out, pool[x.N:2 * x.N]

    return run, {'backend': plan.backend, 'workspace_mb': plan.workspace_bytes / 1e6, 'checkpoints': count}


def _fla_arguments(x):
    given = x.gate == 'given'
    return dict(
        scale=K**-0.5, initial_state=x.state, output_final_state=True, use_qk_l2norm_in_kernel=x.l2norm, use_gate_in_kernel=not given,
        use_beta_sigmoid_in_kernel=True, allow_neg_eigval=x.beta_doubled, lower_bound=x.lower_bound if x.gate == 'bounded' else None,
        state_v_first=True, **({} if given else {'A_log': x.A_log, 'dt_bias': x.dt_bias.reshape(-1)}))


def fla_extend(torch, chunk_kda, x, graph=False):
    arguments = _fla_arguments(x) | dict(safe_gate=x.gate == 'bounded', cu_seqlens=x.cu)
    arguments |= dict(use_graph=True) if graph else dict(cu_seqlens_cpu=x.cu_cpu)

    def run():
        with torch.inference_mode():
            o, s = chunk_kda(x.q, x.k, x.v, x.g, x.beta, **arguments)
        return o[0], s

    return run, {}


def flash_kda_extend(torch, flash_kda, x):
    if x.gate != 'bounded' or not x.l2norm or x.beta_doubled:
        raise NotImplementedError('bounded gate, l2norm and plain beta only')
    out, final = torch.empty_like(x.v), torch.empty_like(x.state)

    def run():
        flash_kda.fwd(x.q, x.k, x.v, x.g, x.beta, K**-0.5, out, x.A_log, x.dt_bias, x.lower_bound, initial_state=x.state, final_state=final,
                      cu_seqlens=x.cu)
        return out[0], final

    return run, {}


def flashinfer_extend(torch, recurrent_kda, x):
    dtype = torch.float32 if torch.cuda.get_device_capability()[0] >= 10 else torch.bfloat16
    state = x.state.to(dtype)

    def run():  # updates the state in place: the values drift from call to call, the time does not
        o, s = recurrent_kda(x.q, x.k, x.v, x.g, x.beta, x.A_log, x.dt_bias, scale=K**-0.5, initial_state=state, output_final_state=True,
                             use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True, lower_bound=x.lower_bound, cu_seqlens=x.cu, beta_is_logit=True)[:2]
        return o[0], s

    return run, {'state': str(dtype)}


def kadence_step(torch, kadence, x):
    plan = kadence.plan_kda(kadence.Problem(
        phase='step', H=x.H, HV=x.H, K=K, V=V, io='bfloat16', decay='bfloat16', beta='bfloat16', gate=x.gate, lower_bound=x.lower_bound,
        beta_doubled=x.beta_doubled, l2norm=x.l2norm, max_rows=x.N, max_tokens=x.N), kadence.cuda(torch.cuda.current_device()))
    slots = torch.arange(x.N, device='cuda', dtype=torch.int32)
    flat, gates, states = x.flat(), x.gates(), x.state.clone()
    out = torch.empty_like(flat[2])

    def run():
        kadence.step(plan, *flat, slot_in=slots, **gates, states=states, out=out)
        return out, states

    return run, {'backend': plan.backend}


def fla_step(torch, fused_recurrent_kda, x):
    tokens = [t.transpose(0, 1).contiguous() for t in (x.q, x.k, x.v, x.g, x.beta)]  # [N,1,...]
    arguments = _fla_arguments(x)

    def run():
        with torch.inference_mode():
            o, s = fused_recurrent_kda(*tokens, **arguments)
        return o[:, 0], s

    return run, {}


def fla_recurrent(torch, fused_recurrent_kda, x):
    arguments = _fla_arguments(x) | dict(cu_seqlens=x.cu)

    def run():
        with torch.inference_mode():
            o, s = fused_recurrent_kda(x.q, x.k, x.v, x.g, x.beta, **arguments)
        return o[0], s

    return run, {}
