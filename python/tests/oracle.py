"""Float64 recurrence of Kimi Delta Attention, one token at a time, written from the formulas alone.

    g = gate(x);  S <- S * exp(g) (per key channel);  u = beta * (v - S k);  S <- S + u k^T;  o = S (scale q)
"""

import numpy as np


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def log_decay(x, gate, A_log=None, dt_bias=None, lower_bound=-5.0):
    """x [T,HV,K] -> natural-log decay."""
    x = x.astype(np.float64)
    if gate == 'given_log_decay':
        return x
    x = x if dt_bias is None else x + dt_bias.astype(np.float64).reshape(x.shape[1:])
    a = np.exp(A_log.astype(np.float64))[:, None]
    if gate == 'bounded':
        return lower_bound * sigmoid(a * x)
    with np.errstate(invalid='ignore'):  # NaN in padding
        return -a * np.logaddexp(0.0, x)


def recurrence(q, k, v, g, beta, state=None, *, l2norm=True, scale=None):
    """One sequence: q, k [T,H,K], v [T,HV,V], g [T,HV,K] log decay, beta [T,HV] -> o [T,HV,V], states [T+1,HV,V,K]."""
    q, k, v, g, beta = (np.asarray(x).astype(np.float64) for x in (q, k, v, g, beta))
    T, H, K = q.shape
    HV, V = v.shape[1:]
    if l2norm:
        q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
    q = q * (K**-0.5 if scale is None else scale)
    q, k = (np.repeat(x, HV // H, axis=1) for x in (q, k))
    s = np.zeros((HV, V, K)) if state is None else np.asarray(state).astype(np.float64)
    states, o = [s], np.zeros((T, HV, V))
    for t in range(T):
        s = s * np.exp(g[t])[:, None, :]
        u = beta[t][:, None] * (v[t] - np.einsum('hvk,hk->hv', s, k[t]))
        s = s + u[:, :, None] * k[t][:, None, :]
        o[t] = np.einsum('hvk,hk->hv', s, q[t])
        states.append(s)
    return o, np.stack(states)


def convolution(x, weight, bias, window):
    """One sequence: x [T,C], weight [C,4], window [3,C] -> y [T,C], the last three inputs."""
    x, weight, window = (np.asarray(a).astype(np.float64) for a in (x, weight, window))
    full = np.concatenate([window, x])
    y = sum(full[j : j + len(x)] * weight[:, j] for j in range(4)) + (0 if bias is None else bias.astype(np.float64))
    return y * sigmoid(y), full[len(full) - 3 :]


def close(got, wanted, tolerance, what=''):
    """Largest error over the largest wanted value; NaN anywhere fails."""
    got, wanted = np.asarray(got).astype(np.float64), np.asarray(wanted, np.float64)
    assert got.shape == wanted.shape, f'{what}: shape {got.shape}, wanted {wanted.shape}'
    assert np.isfinite(got).all(), f'{what}: not finite at {np.argwhere(~np.isfinite(got))[:3].tolist()}'
    error = np.abs(got - wanted).max(initial=0.0) / max(np.abs(wanted).max(initial=0.0), 1e-30)
    assert error <= tolerance, f'{what}: relative error {error:.3g}, allowed {tolerance}'


class Inputs:
    """Random inputs of T packed tokens; every array is a slice of a wider one whose rest is NaN."""

    def __init__(self, T, H=2, HV=2, K=32, V=32, dtype=np.float32, seed=0, batch=None):
        rng = np.random.default_rng(seed)
        self.T, self.H, self.HV, self.K, self.V = T, H, HV, K, V

        def make(heads, channels, scale=1.0, kind=dtype):
            wide = np.full((T, heads * channels + 32), np.nan, np.float32).astype(kind)
            x = (rng.standard_normal((T, heads, channels)) * scale).astype(np.float32).astype(kind)
            view = wide[:, : heads * channels].reshape(T, heads, channels) if T <= 1 else np.lib.stride_tricks.as_strided(
                wide, (T, heads, channels), (wide.strides[0], channels * wide.itemsize, wide.itemsize))
            view[...] = x
            return view

        self.q, self.k, self.v = make(H, K), make(H, K), make(HV, V)
        self.x = make(HV, K)  # gate input
        self.b = make(HV, 1, kind=np.float32)[:, :, 0] if T == 0 else np.ascontiguousarray(make(HV, 1, kind=np.float32)[:, :, 0])
        self.A_log = (rng.standard_normal(HV) * 0.3).astype(np.float32)
        self.dt_bias = (rng.standard_normal((HV, K)) * 0.5).astype(np.float32)
        self.rng = rng

    def log_decay(self, gate='bounded', lower_bound=-5.0):
        return log_decay(self.x, gate, self.A_log, self.dt_bias, lower_bound)

    def beta(self):
        return sigmoid(self.b.astype(np.float64))

    def state(self, n, dtype=np.float32):
        return (self.rng.standard_normal((n, self.HV, self.V, self.K)) * 0.5).astype(np.float32).astype(dtype)

    def oracle(self, a, b, state=None, **kw):
        g = self.log_decay(**{key: kw.pop(key) for key in ('gate', 'lower_bound') if key in kw})
        return recurrence(self.q[a:b], self.k[a:b], self.v[a:b], g[a:b], self.beta()[a:b], state, **kw)
