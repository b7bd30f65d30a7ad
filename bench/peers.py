#!/usr/bin/env python3
"""Kadence beside the other libraries' Kimi Delta Attention kernels, in one run on one GPU.

Needs torch, a CUDA build of the Python package (pip install ./python -C cmake.define.KADENCE_CUDA=ON) and whatever of fla,
flash_kda and flashinfer is installed; what is missing or refuses a case is said, once, and left out.

  extend    one call, L2 washed before it; in a round every implementation runs once, in turn; medians of the rounds
  step      calls in one CUDA graph over so many sets of states that none is in the L2 when its turn comes; copy: the same
            bytes by a device copy, likewise
  accuracy  relative error against a float64 recurrence on hard inputs, of the whole and of the worst row
  memory    device memory that a call takes beyond its inputs and results
  host      microseconds of the host for a call that is not waited for

A JSON line a result: op, case, impl, figures, machine, driver, revision, versions, command.

  bench/peers.py [--out FILE] [--rounds N] [--filter TEXT] [--op extend|step|accuracy|memory|host] [--every N] [--graph] [--list]
"""
import argparse
import importlib
import importlib.metadata
import json
import pathlib
import statistics
import subprocess
import sys
import time

import peer_cases as cases

OPS = ('extend', 'step', 'accuracy', 'memory', 'host')
K = V = cases.K


def optional(name, attribute=None):
    """(module or attribute, '') or (None, why not)."""
    try:
        module = importlib.import_module(name)
        return (module if attribute is None else getattr(module, attribute)), ''
    except Exception as e:  # a peer that fails to import must not end the run
        return None, f'{type(e).__name__}: {e}'.splitlines()[0]


def as_graph(torch, run, repeats):
    """A call that replays run(0) ... run(repeats - 1) from one CUDA graph, and keeps alive what they read."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for i in range(2):
            run(i)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(repeats):
            run(i)

    def replay(keep=run):
        graph.replay()

    return replay


def interleaved(torch, runs, rounds, repeats=1, wash=True):
    """{name: [ms of one call]}; every implementation once a round."""
    dirt = torch.empty(256 << 20, dtype=torch.uint8, device='cuda') if wash else None
    times = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            if wash:
                dirt.zero_()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            end.synchronize()
            times[name].append(begin.elapsed_time(end) / repeats)
    return times


def copy_rate(torch):
    """Bytes a ms of a device copy, read and write counted; the best of some sizes (powers of two can be slow)."""
    rates = []
    for mib in (384, 640, 1000):
        a, b = (torch.empty(mib << 20, dtype=torch.uint8, device='cuda') for _ in range(2))
        b.copy_(a)
        ms = statistics.median(interleaved(torch, {'copy': lambda: b.copy_(a)}, 7)['copy'])
        rates.append(2 * a.numel() / ms)
    return max(rates)


class Comparison:
    def __init__(self, torch, kadence, peers, rounds, every, emit, graph=False):
        self.torch, self.kadence, self.peers, self.rounds, self.every, self.emit, self.graph = torch, kadence, peers, rounds, every, emit, graph
        self.rate = copy_rate(torch)

    def extend_makers(self, x, every, graph=False):
        torch = self.torch
        makers = {'kadence': lambda: cases.kadence_extend(torch, self.kadence, x, every)}
        for name, make in (('fla', cases.fla_extend), ('flash_kda', cases.flash_kda_extend), ('flashinfer', cases.flashinfer_extend)):
            if self.peers[name]:
                more = {'graph': True} if name == 'fla' and graph else {}
                makers[name] = lambda name=name, make=make, more=more: make(torch, self.peers[name], x, **more)
        return makers

    def tried(self, what, name, f):
        """f(), or None with a line that says why not."""
        try:
            return f()
        except Exception as e:
            print(f'{what}: {name} left out ({type(e).__name__}: {(str(e).splitlines() or [""])[0][:200]})', flush=True)
            return None

    def measured(self, run):
        """(result, bytes of device memory above what was there at the height of the call)."""
        torch = self.torch
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = run()
        torch.cuda.synchronize()
        return result, torch.cuda.max_memory_allocated() - before

    def line(self, op, case, medians, floor=None):
        others = [ms for name, ms in medians.items() if name not in ('kadence', 'copy')]
        ratio = f'   best peer / kadence {min(others) / medians["kadence"]:.2f}' if others and 'kadence' in medians else ''
        print(f'{op:8} {case:22} ' + '  '.join(f'{name} {ms:.4f} ms' for name, ms in medians.items()) +
              (f'   floor {floor:.4f}' if floor else '') + ratio, flush=True)

    def extend(self, case, heads, lengths, gate='bounded'):
        torch, x = self.torch, cases.Inputs(self.torch, heads, lengths, gate=gate)
        runs, notes = {}, {}
        for name, make in self.extend_makers(x, self.every, self.graph).items():
            def prepare():
                run, note = make()
                run()  # compiles, tunes itself
                (out, state), peak = self.measured(run)
                timed = as_graph(torch, lambda i: run(), 1) if self.graph else run
                return timed, note | {'peak_mb': peak / 1e6 + note.get('workspace_mb', 0.0)}
            made = self.tried(f'extend {case}', name, prepare)
            if made:
                runs[name], notes[name] = made
        count = sum(n // self.every for n in lengths) if self.every else 0
        floor = x.extend_bytes(count) / self.rate
        times = interleaved(torch, runs, self.rounds)
        medians = {name: statistics.median(ms) for name, ms in times.items()}
        case += ('' if gate == 'bounded' else f' {gate}') + (' graph' if self.graph else '')
        for name, ms in times.items():
            self.emit({'op': 'extend', 'case': case, 'impl': name, 'ms': medians[name], 'min_ms': min(ms), 'rounds': len(ms), 'floor_ms': floor} | notes[name])
        self.line('extend', case, medians, floor)

    def step(self, case, heads, rows):
        torch = self.torch
        state_bytes = rows * heads * K * V * 4
        sets = max(2, min(128, (400 << 20) // state_bytes + 1))
        xs = [cases.Inputs(torch, heads, [1] * rows, seed=i) for i in range(min(sets, 2))]
        states = torch.randn(sets, rows, heads, V, K, device='cuda') * 0.1
        runs, notes = {}, {}

        def kadence():
            made = [cases.kadence_step(torch, self.kadence, x) for x in xs[:1]]
            plan = self.kadence.plan_kda(self.kadence.Problem(
                phase='step', H=heads, HV=heads, K=K, V=V, io='bfloat16', decay='bfloat16', beta='bfloat16', lower_bound=cases.LOWER_BOUND,
                max_rows=rows, max_tokens=rows), self.kadence.cuda(torch.cuda.current_device()))
            x, pool = xs[0], states.view(sets * rows, heads, V, K)
            slots = torch.arange(sets * rows, device='cuda', dtype=torch.int32).view(sets, rows)
            flat, gates = x.flat(), x.gates()
            out = torch.empty_like(flat[2])
            return (lambda i: self.kadence.step(plan, *flat, slot_in=slots[i % sets], **gates, states=pool, out=out)), made[0][1]

        def fla():
            x = xs[0]
            tokens = [t.transpose(0, 1).contiguous() for t in (x.q, x.k, x.v, x.g, x.beta)]
            arguments = cases._fla_arguments(x)

            def run(i):
                with torch.inference_mode():
                    self.peers['fla_step'](*tokens, **(arguments | {'initial_state': states[i % sets]}))
            return run, {}

        def copy():  # reads and writes what a step does
            half = sets // 2
            return (lambda i: states[(i + half) % sets].copy_(states[i % sets])), {}

        makers = {'kadence': kadence, 'copy': copy} | ({'fla': fla} if self.peers['fla_step'] else {})
        for name, make in makers.items():
            def prepare():
                run, note = make()
                run(0)
                torch.cuda.synchronize()
                return as_graph(torch, run, sets), note
            made = self.tried(f'step {case}', name, prepare)
            if made:
                runs[name], notes[name] = made
        times = interleaved(torch, runs, self.rounds, sets, wash=False)
        medians = {name: statistics.median(ms) for name, ms in times.items()}
        floor = (2 * state_bytes + rows * heads * (5 * K * 2 + 2)) / self.rate
        for name, ms in times.items():
            self.emit({'op': 'step', 'case': case, 'impl': name, 'ms': medians[name], 'min_ms': min(ms), 'rounds': len(ms), 'calls': sets, 'floor_ms': floor} | notes[name])
        self.line('step', case, medians, floor)

    def accuracy(self, case):
        torch, x = self.torch, cases.family(self.torch, case)
        want = cases.recurrence64(torch, x)
        makers = self.extend_makers(x, 64)
        makers.pop('flashinfer', None)  # bf16 states
        if self.peers['fla_step']:
            makers['fla recurrent'] = lambda: cases.fla_recurrent(torch, self.peers['fla_step'], x)
        if x.N == x.T:
            makers['kadence step'] = lambda: cases.kadence_step(torch, self.kadence, x)
        row = {}
        for name, make in makers.items():
            def figures():
                run, note = make()
                out, state = run()
                torch.cuda.synchronize()
                return {'out': cases.errors(out, want[0]), 'state': cases.errors(state, want[1])}
            got = self.tried(f'accuracy {case}', name, figures)
            if got:
                row[name] = got
                self.emit({'op': 'accuracy', 'case': case, 'impl': name, 'T': x.T, 'H': x.H} | {
                    f'error_{what}{"" if kind == "all" else "_" + kind}': value for what, f in got.items() for kind, value in f.items()})
        print(f'accuracy {case:40} ' + '  '.join(
            f'{name} {f["out"]["all"]:.5f}/{f["state"]["all"]:.5f} worst row {f["out"]["worst_row"]:.4f}/{f["state"]["worst_row"]:.4f}'
            for name, f in row.items()), flush=True)

    def memory(self, case, heads, lengths):
        torch, x = self.torch, cases.Inputs(self.torch, heads, lengths)
        for name, make in self.extend_makers(x, 0).items():
            def figures():
                run, note = make()
                run()
                (out, state), peak = self.measured(run)
                results = 0 if name == 'kadence' else out.numel() * out.element_size() + state.numel() * state.element_size()
                free = torch.cuda.mem_get_info()[0]
                run()
                torch.cuda.synchronize()
                return {'call_mb': (peak - results) / 1e6 + note.get('workspace_mb', 0.0), 'driver_mb': (free - torch.cuda.mem_get_info()[0]) / 1e6} | note
            got = self.tried(f'memory {case}', name, figures)
            torch.cuda.empty_cache()
            if got:
                self.emit({'op': 'memory', 'case': case, 'impl': name} | got)
                print(f'memory   {case:22} {name} {got["call_mb"]:.1f} MB beyond inputs and results', flush=True)

    def host(self):
        torch, kadence = self.torch, self.kadence
        x = cases.Inputs(torch, 12, [64] * 4)
        one = cases.Inputs(torch, 12, [1] * 8)
        extend, step = cases.kadence_extend(torch, kadence, x)[0], cases.kadence_step(torch, kadence, one)[0]
        device = kadence.cuda(torch.cuda.current_device())
        problem = kadence.Problem(H=12, HV=12, io='bfloat16', decay='bfloat16', beta='bfloat16', max_rows=256, max_tokens=65536, max_checkpoints=1024)
        plan = kadence.plan_kda(problem, device)
        buffer = torch.empty(plan.metadata_bytes, dtype=torch.uint8, device='cuda')
        begin = [i * 256 for i in range(257)]
        kept = [[(64 * (j + 1), 512 + 4 * i + j) for j in range(4)] for i in range(256)]
        from kadence.compat import fla as compat
        mine = cases.fla_extend(torch, compat.chunk_kda, x)[0]
        runs = {
            'plan': lambda: kadence.plan_kda(problem, device), 'extend': extend, 'step': step, 'compat.fla.chunk_kda': mine,
            'compat.fla.fused_recurrent_kda': cases.fla_step(torch, compat.fused_recurrent_kda, one)[0],
            'metadata of 4 rows': lambda: kadence.metadata(plan, [0, 64, 128, 192, 256], range(4), range(4), slots=2048, buffer=buffer),
            'metadata of 256 rows, 1,024 checkpoints': lambda: kadence.metadata(plan, begin, range(256), range(256), checkpoints=kept, slots=2048, buffer=buffer),
        }
        if self.peers['fla']:
            runs['fla.chunk_kda'] = cases.fla_extend(torch, self.peers['fla'], x)[0]
        if self.peers['fla_step']:
            runs['fla.fused_recurrent_kda'] = cases.fla_step(torch, self.peers['fla_step'], one)[0]
        for name, run in runs.items():
            for _ in range(20):
                run()
            torch.cuda.synchronize()
            samples = []
            for _ in range(40):
                begin_ns = time.perf_counter_ns()
                for _ in range(5):
                    run()
                samples.append((time.perf_counter_ns() - begin_ns) / 5e3)
                torch.cuda.synchronize()
            us = statistics.median(samples)
            self.emit({'op': 'host', 'case': name, 'us': us, 'min_us': min(samples)})
            print(f'host     {name:42} {us:.1f} us', flush=True)


def facts(torch, root):
    """What every line of the results says about the run."""
    revision = subprocess.run(['git', '-C', str(root), 'rev-parse', '--short', 'HEAD'], capture_output=True, text=True).stdout.strip()
    driver = subprocess.run(['nvidia-smi', '--query-gpu=driver_version', '--format=csv,noheader', '-i', '0'], capture_output=True, text=True).stdout.strip()
    modules = {'torch': 'torch', 'triton': 'triton', 'fla': 'fla-core', 'flash_kda': 'flash_kda', 'flashinfer': 'flashinfer', 'kadence': 'kadence'}
    versions = {}
    for module, package in modules.items():
        if module in sys.modules:
            try:
                versions[package] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                versions[package] = getattr(sys.modules[module], '__version__', '?')
    return {'machine': torch.cuda.get_device_name(), 'driver': driver, 'revision': revision, 'versions': versions, 'command': ' '.join(sys.argv)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--out', type=pathlib.Path, help='JSON lines; default bench/results/<machine>/peers.jsonl')
    parser.add_argument('--rounds', type=int, default=15)
    parser.add_argument('--filter', default='', help='run the cases whose name contains this')
    parser.add_argument('--op', choices=OPS, action='append')
    parser.add_argument('--every', type=int, default=1024, help='tokens between the checkpoints that Kadence writes in extend; 0 = none')
    parser.add_argument('--graph', action='store_true', help='extend: time a replayed CUDA graph, which leaves the host out')
    parser.add_argument('--revision', help='what the results are of, where this is no git checkout')
    parser.add_argument('--list', action='store_true', help='name the cases and stop')
    args = parser.parse_args()
    chosen = {'extend': cases.EXTEND, 'step': cases.STEP, 'accuracy': cases.FAMILIES, 'memory': cases.MEMORY, 'host': {'host': None}}
    if args.list:
        print('\n'.join(f'{op} {name}' for op, names in chosen.items() for name in names))
        return 0
    torch, why = optional('torch')
    kadence, why_not = optional('kadence')
    if torch is None or kadence is None or not torch.cuda.is_available():
        print(f'peers.py needs torch with a CUDA device and kadence: {why or why_not or "no CUDA device"}', file=sys.stderr)
        return 1
    if not kadence.built_with_cuda:
        print('kadence was built without CUDA: pip install ./python -C cmake.define.KADENCE_CUDA=ON', file=sys.stderr)
        return 1
    peers = {}
    for name, where in {'fla': ('fla.ops.kda', 'chunk_kda'), 'fla_step': ('fla.ops.kda', 'fused_recurrent_kda'), 'flash_kda': ('flash_kda',),
                        'flashinfer': ('flashinfer.kda', 'recurrent_kda')}.items():
        peers[name], reason = optional(*where)
        if peers[name] is None:
            print(f'{name}: left out ({reason})')
    root = pathlib.Path(__file__).resolve().parent.parent
    common = facts(torch, root)
    common['revision'] = args.revision or common['revision']
    path = args.out or root / 'bench/results' / common['machine'].lower().replace('nvidia ', '').replace(' ', '-') / 'peers.jsonl'
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open('w') as sink:

        def emit(row):
            sink.write(json.dumps({k: float(f'{v:.5g}') if isinstance(v, float) else v for k, v in row.items()} | common) + '\n')
            sink.flush()

        run = Comparison(torch, kadence, peers, args.rounds, args.every, emit, args.graph)
        common['copy_gb_s'] = round(run.rate / 1e6, 1)
        for op in args.op or OPS:
            for case, sizes in chosen[op].items():
                if args.filter not in case:
                    continue
                if op == 'accuracy':
                    run.accuracy(case)
                elif op == 'host':
                    run.host()
                else:
                    getattr(run, op)(case, *sizes)
                    if op == 'extend' and case in cases.SOFTPLUS:
                        run.extend(case, *sizes, gate='softplus')
                torch.cuda.empty_cache()
    print(f'results: {path}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
