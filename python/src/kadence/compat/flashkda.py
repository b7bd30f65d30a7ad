"""MoonshotAI's FlashKDA: `flash_kda.fwd` (signature of July 2026)."""

from ..arrays import Array, dtype_name
from .common import Call, flat_output, invalid, refuse, rows_of, shares, upload, want_states

__all__ = ['fwd']


def fwd(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    scale: float,
    out: Array,
    A_log: Array,
    dt_bias: Array,
    lower_bound: float,
    initial_state: Array | None = None,
    final_state: Array | None = None,
    cu_seqlens: Array | None = None,
) -> None:
    """Writes `out` [B,T,H,V] and, if given, `final_state` [N,H,V,K]; returns nothing.

    Bounded gate, l2norm of q and k and the sigmoid of beta are always on, as in FlashKDA. Beyond FlashKDA: any float dtype,
    HV > H, K and V that a backend takes. cu_seqlens on a GPU is read there; final_state may be initial_state itself.
    """
    f = 'kadence.compat.flashkda.fwd'
    if A_log is None or dt_bias is None:
        invalid(f, 'A_log and dt_bias', 'arrays', None)
    if lower_bound == 0:
        refuse(f, 'lower_bound=0', 'a gate without decay; Kadence wants a bound below 0')
    if not -5.0 <= lower_bound < 0:
        invalid(f, 'lower_bound', 'in [-5, 0)', lower_bound)
    call = Call(f, q, k, v, g, beta, float(scale), 'bounded', lower_bound, True, False, True, A_log, dt_bias)
    flat = flat_output(f, 'out', call, out)
    rows = rows_of(call, cu_seqlens)
    n, shape = rows.count, (call.HV, call.V, call.K)
    want_states(f, 'initial_state', initial_state, (n, *shape))
    want_states(f, 'final_state', final_state, (n, *shape))
    if initial_state is not None and final_state is not None and dtype_name(initial_state) != dtype_name(final_state):
        invalid(f, 'final_state dtype', f"that of initial_state, {dtype_name(initial_state)}", dtype_name(final_state))
    plan = call.plan(call.problem(
        state_in='float32' if initial_state is None else dtype_name(initial_state),
        state_out='float32' if final_state is None else dtype_name(final_state), seq_int64=rows.int64, max_rows=n,
        max_tokens=call.B * call.T,
    ))
    sizes = (n if initial_state is not None else 0, n if final_state is not None else 0, 0)
    in_place = initial_state is not None and final_state is not None and shares(initial_state, final_state)
    md = upload(call, plan, rows, initial_state is not None, final_state is not None, sizes, shared='states' if in_place else 'none')
    call.run_extend(plan, md, flat, states_in=initial_state, states_out=final_state)
