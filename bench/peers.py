#!/usr/bin/env python3
"""Kadence beside the other libraries' Kimi Delta Attention kernels, in one run on one GPU.

Needs torch, a CUDA build of the Python package (pip install ./python -C cmake.define.KADENCE_CUDA=ON) and whatever of fla,
flash_kda and flashinfer is installed; what is missing or refuses a case is said, once, and left out. In a round every
implementation runs once, in turn; the median of the rounds counts. A JSON line a result: case, op, impl, ms, min_ms,
floor_ms (compulsory bytes at the copy rate of this run), peak_mb (memory that the call takes), machine, revision, versions.

  bench/peers.py [--out FILE] [--rounds N] [--filter TEXT] [--op extend|step|accuracy] [--no-checkpoints] [--list]
"""
import argparse
import importlib
import json
import pathlib
import statistics
import subprocess
import sys

LOWER_BOUND = -5.0
K = V = 128
CHECKPOINT_EVERY = 1024
EXTEND = {  # name: (heads, lengths)
    'H12 2048': (12, [2048]), 'H12 32x256': (12, [256] * 32), 'H12 8192': (12, [8192]), 'H12 16384': (12, [16384]),
    'H12 8x16384': (12, [16384] * 8), 'H12 131072': (12, [131072]), 'H32 8x4096': (32, [4096] * 8), 'H32 8x16384': (32, [16384] * 8),
    'H64 8192': (64, [8192]), 'H64 mixed': (64, [1300, 547, 2048, 963, 271, 3063]), 'H96 8192': (96, [8192]), 'H96 8x1024': (96, [1024] * 8),
}
STEP = {f'N{n} H{h}': (h, n) for n, h in [(1, 12), (8, 12), (32, 12), (256, 12), (1, 32), (8, 32), (32, 32), (128, 32), (1, 64), (8, 64), (32, 64), (64, 64), (256, 64)]}


def optional(name, attribute=None):
    """(module or attribute, '') or (None, why not)."""
    try:
        module = importlib.import_module(name)
        return (module if attribute is None else getattr(module, attribute)), ''
    except Exception as e:  # a peer that fails to import must not end the run
        return None, f'{type(e).__name__}: {e}'.splitlines()[0]


class Inputs:
    def __init__(self, torch, heads, lengths, seed=0):
        gen = torch.Generator('cuda').manual_seed(seed)
        T, N = sum(lengths), len(lengths)

        def randn(*shape, dtype=torch.bfloat16):
            return torch.randn(*shape, generator=gen, device='cuda', dtype=torch.float32).to(dtype)

        self.H, self.T, self.N, self.lengths = heads, T, N, lengths
        self.q, self.k, self.v, self.g = (randn(1, T, heads, K) for _ in range(4))
        self.beta = randn(1, T, heads)
        self.A_log, self.dt_bias = randn(heads, dtype=torch.float32) * 0.3, randn(heads, K, dtype=torch.float32) * 0.3
        self.state = randn(N, heads, V, K, dtype=torch.float32) * 0.1
        begin = [0]
        for n in lengths:
            begin.append(begin[-1] + n)
        self.begin = begin
        self.cu = torch.tensor(begin, device='cuda', dtype=torch.int64)
        self.cu_cpu = torch.tensor(begin, dtype=torch.int64)

    def extend_bytes(self, checkpoints):
        # q, k, v, g in and out once, beta, states in and out, checkpoints
        return self.T * self.H * (5 * K * 2 + 2) + (2 * self.N + checkpoints) * self.H * K * V * 4


def kadence_extend(torch, kadence, x, every):
    device = kadence.cuda(torch.cuda.current_device())
    checkpoints, slot = [], 2 * x.N
    for n in x.lengths:
        depths = range(every, n + 1, every) if every else ()
        checkpoints.append([(d, slot + i) for i, d in enumerate(depths)])
        slot += len(checkpoints[-1])
    count = slot - 2 * x.N
    plan = kadence.plan_kda(kadence.Problem(
        H=x.H, HV=x.H, K=K, V=V, io='bfloat16', decay='bfloat16', beta='bfloat16', lower_bound=LOWER_BOUND, max_rows=x.N, max_tokens=x.T,
        max_checkpoints=count), device)
    pool = torch.zeros(slot, x.H, V, K, device='cuda')
    pool[:x.N] = x.state
    rows = kadence.metadata(plan, x.begin, range(x.N), range(x.N, 2 * x.N), checkpoints=checkpoints if count else None, slots=slot)
    flat = [t[0] for t in (x.q, x.k, x.v, x.g, x.beta)]
    out = torch.empty_like(flat[2])
    space = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device='cuda')
    note = {'backend': plan.backend, 'workspace_mb': plan.workspace_bytes / 1e6, 'checkpoints': count}

    def run():
        kadence.extend(plan, *flat, metadata=rows, A_log=x.A_log, dt_bias=x.dt_bias, states=pool, out=out, workspace=space)
        return out, pool[x.N:2 * x.N]

    return run, note


def fla_extend(torch, chunk_kda, x):
    def run():
        with torch.inference_mode():
            o, s = chunk_kda(x.q, x.k, x.v, x.g, x.beta, scale=K**-0.5, initial_state=x.state, output_final_state=True,
                             use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True, use_beta_sigmoid_in_kernel=True, safe_gate=True,
                             lower_bound=LOWER_BOUND, A_log=x.A_log, dt_bias=x.dt_bias.reshape(-1), cu_seqlens=x.cu,
                             cu_seqlens_cpu=x.cu_cpu, state_v_first=True)
        return o[0], s

    return run, {}


def flash_kda_extend(torch, flash_kda, x):
    out, final = torch.empty_like(x.v), torch.empty_like(x.state)

    def run():
        flash_kda.fwd(x.q, x.k, x.v, x.g, x.beta, K**-0.5, out, x.A_log, x.dt_bias, LOWER_BOUND, initial_state=x.state, final_state=final,
                      cu_seqlens=x.cu)
        return out[0], final

    return run, {}


def flashinfer_extend(torch, recurrent_kda, x):
    dtype = torch.float32 if torch.cuda.get_device_capability()[0] >= 10 else torch.bfloat16
    state = x.state.to(dtype)

    def run():  # updates the state in place: the values drift from call to call, the time does not
        o, s = recurrent_kda(x.q, x.k, x.v, x.g, x.beta, x.A_log, x.dt_bias, scale=K**-0.5, initial_state=state, output_final_state=True,
                             use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True, lower_bound=LOWER_BOUND, cu_seqlens=x.cu, beta_is_logit=True)[:2]
        return o[0], s

    return run, {'state': str(dtype)}


def kadence_step(torch, kadence, x):
    plan = kadence.plan_kda(kadence.Problem(
        phase='step', H=x.H, HV=x.H, K=K, V=V, io='bfloat16', decay='bfloat16', beta='bfloat16', lower_bound=LOWER_BOUND, max_rows=x.N,
        max_tokens=x.N), kadence.cuda(torch.cuda.current_device()))
    slots = torch.arange(x.N, device='cuda', dtype=torch.int32)
    flat, states = [t[0] for t in (x.q, x.k, x.v, x.g, x.beta)], x.state.clone()
    out = torch.empty_like(flat[2])
    space = torch.empty(max(plan.workspace_bytes, 1), dtype=torch.uint8, device='cuda')

    def run():
        kadence.step(plan, *flat, slot_in=slots, A_log=x.A_log, dt_bias=x.dt_bias, states=states, out=out, workspace=space)
        return out, states

    return run, {'backend': plan.backend}


def fla_step(torch, fused_recurrent_kda, x):
    tokens = [t.transpose(0, 1).contiguous() for t in (x.q, x.k, x.v, x.g, x.beta)]  # [N,1,...]

    def run():
        o, s = fused_recurrent_kda(*tokens, A_log=x.A_log, dt_bias=x.dt_bias.reshape(-1), scale=K**-0.5, initial_state=x.state,
                                   output_final_state=True, use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True,
                                   use_beta_sigmoid_in_kernel=True, lower_bound=LOWER_BOUND, state_v_first=True)
        return o[:, 0], s

    return run, {}


def as_graph(torch, run, repeats):
    """`repeats` calls in one CUDA graph: launches without the host."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            run()
    return graph.replay


def interleaved(torch, runs, rounds, repeats=1):
    """{name: [ms of one call]}; every implementation once a round, L2 washed before each."""
    wash = torch.empty(256 << 20, dtype=torch.uint8, device='cuda')
    times = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            wash.zero_()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            end.synchronize()
            times[name].append(begin.elapsed_time(end) / repeats)
    return times


def copy_rate(torch):
    """Bytes a ms of a device copy, read and write counted."""
    a, b = (torch.empty(1 << 30, dtype=torch.uint8, device='cuda') for _ in range(2))
    b.copy_(a)
    ms = statistics.median(interleaved(torch, {'copy': lambda: b.copy_(a)}, 9)['copy'])
    return 2 * a.numel() / ms


def recurrence64(torch, x):
    """Float64, token by token; one sequence from x.state."""
    q, k, v, g, b = (t[0].double() for t in (x.q, x.k, x.v, x.g, x.beta))
    q, k = (t * torch.rsqrt((t * t).sum(-1, keepdim=True) + 1e-6) for t in (q, k))
    decay = (LOWER_BOUND * torch.sigmoid(x.A_log.double().exp()[:, None] * (g + x.dt_bias.double()))).exp()
    b = torch.sigmoid(b)
    s, out = x.state[0].double(), torch.empty_like(v)
    for t in range(x.T):
        s = s * decay[t][:, None, :]
        u = b[t][:, None] * (v[t] - (s * k[t][:, None, :]).sum(-1))
        s = s + u[:, :, None] * k[t][:, None, :]
        out[t] = (s * (q[t] * K**-0.5)[:, None, :]).sum(-1)
    return out, s


def error(got, want):
    return float((got.double() - want).norm() / want.norm())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--out', type=pathlib.Path, help='JSON lines; default bench/results/<machine>/peers.jsonl')
    parser.add_argument('--rounds', type=int, default=15)
    parser.add_argument('--filter', default='', help='run the cases whose name contains this')
    parser.add_argument('--op', choices=['extend', 'step', 'accuracy'], action='append')
    parser.add_argument('--no-checkpoints', action='store_true', help=f'Kadence writes none (default: one every {CHECKPOINT_EVERY} tokens)')
    parser.add_argument('--list', action='store_true', help='name the cases and stop')
    args = parser.parse_args()
    if args.list:
        print('\n'.join([f'extend {n}' for n in EXTEND] + [f'step {n}' for n in STEP]))
        return 0
    torch, why = optional('torch')
    kadence, why_not = optional('kadence')
    if torch is None or kadence is None or not torch.cuda.is_available():
        print(f'peers.py needs torch with a CUDA device and kadence: {why or why_not or "no CUDA device"}', file=sys.stderr)
        return 1
    if not kadence.built_with_cuda:
        print('kadence was built without CUDA: pip install ./python -C cmake.define.KADENCE_CUDA=ON', file=sys.stderr)
        return 1
    peers = {name: optional(*where) for name, where in {
        'fla': ('fla.ops.kda', 'chunk_kda'), 'fla_step': ('fla.ops.kda', 'fused_recurrent_kda'), 'flash_kda': ('flash_kda',),
        'flashinfer': ('flashinfer.kda', 'recurrent_kda')}.items()}
    for name, (found, reason) in peers.items():
        if found is None:
            print(f'{name}: left out ({reason})')
    root = pathlib.Path(__file__).resolve().parent.parent
    revision = subprocess.run(['git', '-C', str(root), 'rev-parse', '--short', 'HEAD'], capture_output=True, text=True).stdout.strip()
    machine = torch.cuda.get_device_name()
    versions = {m: getattr(sys.modules[m], '__version__', '?') for m in ('torch', 'triton', 'fla', 'flash_kda', 'flashinfer', 'kadence') if m in sys.modules}
    path = args.out or root / 'bench/results' / machine.lower().replace('nvidia ', '').replace(' ', '-') / 'peers.jsonl'
    path.parent.mkdir(parents=True, exist_ok=True)
    rate = copy_rate(torch)
    common = {'machine': machine, 'revision': revision, 'versions': versions, 'copy_gb_s': round(rate / 1e6, 1)}
    with path.open('w') as sink:

        def emit(row):
            sink.write(json.dumps(row | common) + '\n')
            sink.flush()

        for op in args.op or ['extend', 'step', 'accuracy']:
            cases = {'extend': EXTEND, 'step': STEP, 'accuracy': {'H2 1024': (2, [1024])}}[op]
            for case, (heads, size) in cases.items():
                if args.filter in case:
                    one_case(torch, kadence, peers, args, op, case, heads, size, rate, emit)
                    torch.cuda.empty_cache()
    print(f'results: {path}')
    return 0


def one_case(torch, kadence, peers, args, op, case, heads, size, rate, emit):
    x = Inputs(torch, heads, [1] * size if op == 'step' else size)
    every = 0 if args.no_checkpoints or op != 'extend' else CHECKPOINT_EVERY
    makers = {'kadence': (lambda f: kadence_step(torch, kadence, x)) if op == 'step' else (lambda f: kadence_extend(torch, kadence, x, every))}
    if op == 'step':
        if peers['fla_step'][0]:
            makers['fla'] = lambda f: fla_step(torch, peers['fla_step'][0], x)
    else:
        for name, make in (('fla', fla_extend), ('flash_kda', flash_kda_extend), ('flashinfer', flashinfer_extend)):
            if peers[name][0]:
                makers[name] = lambda f, name=name, make=make: make(torch, peers[name][0], x)
    repeats = max(1, min(64, 4096 // max(1, size * heads // 12))) if op == 'step' else 1
    runs, notes = {}, {}
    want = recurrence64(torch, x) if op == 'accuracy' else None
    for name, make in makers.items():
        try:
            run, note = make(None)
            run()  # compiles, autotunes
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            out, state = run()
            torch.cuda.synchronize()
            note['peak_mb'] = (torch.cuda.max_memory_allocated() - before) / 1e6 + note.get('workspace_mb', 0.0)
            if want is not None and name != 'flashinfer':  # in place: its second run starts elsewhere
                note |= {'error_out': error(out, want[0]), 'error_state': error(state[0], want[1])}
            runs[name] = as_graph(torch, run, repeats) if op == 'step' else run
            notes[name] = note
        except Exception as e:
            print(f'{op} {case}: {name} left out ({type(e).__name__}: {str(e).splitlines()[0] if str(e) else ""})')
    count = sum(n // every for n in x.lengths) if every else 0
    floor = (x.N * heads * (2 * K * V * 4 + 5 * K * 2 + 2) if op == 'step' else x.extend_bytes(count)) / rate
    times = interleaved(torch, runs, args.rounds, repeats)
    for name, ms in times.items():
        emit({'op': op, 'case': case, 'impl': name, 'ms': statistics.median(ms), 'min_ms': min(ms), 'rounds': len(ms), 'floor_ms': floor} | notes[name])
    medians = {name: statistics.median(ms) for name, ms in times.items()}
    others = [ms for name, ms in medians.items() if name != 'kadence']
    ratio = f'   best peer / kadence {min(others) / medians["kadence"]:.2f}' if others and 'kadence' in medians else ''
    print(f'{op:8} {case:14} ' + '  '.join(f'{name} {ms:.4f} ms' for name, ms in medians.items()) + f'   floor {floor:.4f}' + ratio)


if __name__ == '__main__':
    sys.exit(main())
