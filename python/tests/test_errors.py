"""Refusals name the array or field, what was wanted and what was got; nothing is converted or copied in silence."""

import kadence
import ml_dtypes
import numpy as np
import pytest
from oracle import Inputs


@pytest.fixture
def call():
    i = Inputs(64)
    plan = kadence.plan_kda(kadence.Problem(H=2, HV=2, K=32, V=32, max_rows=2, max_tokens=64))
    states = np.zeros((2, 2, 32, 32), np.float32)
    rows = kadence.metadata(plan, [0, 64], [-1], [0], slots=2)
    arguments = dict(q=i.q, k=i.k, v=i.v, decay=i.x, beta=i.b, metadata=rows, A_log=i.A_log, dt_bias=i.dt_bias, states=states)
    return lambda **changed: kadence.extend(plan, **(arguments | changed))


def read_only(shape):
    x = np.zeros(shape, np.float32)
    x.flags.writeable = False
    return x


WRONG = [
    (lambda: dict(q=np.zeros((64, 2, 32))), 'q dtype: wanted float32, got float64'),
    (lambda: dict(q=np.zeros((64, 2, 32), ml_dtypes.bfloat16)), 'q dtype: wanted float32, got bfloat16'),
    (lambda: dict(q=np.zeros((64, 2, 32), np.uint16)), 'q dtype: wanted float32, got uint16'),
    (lambda: dict(k=np.zeros((64, 2, 16), np.float32)), r'k shape: wanted \[64, 2, 32\], got \[64, 2, 16\]'),
    (lambda: dict(v=np.zeros((32, 2, 32), np.float32)), r'v shape: wanted \[64, 2, 32\], got \[32, 2, 32\]'),
    (lambda: dict(q=np.zeros((64, 32, 2), np.float32).swapaxes(1, 2)), 'q strides: wanted dimensions 1 to 2 .* contiguous'),
    (lambda: dict(q=np.lib.stride_tricks.as_strided(np.zeros(64 * 66, np.float32), (64, 2, 32), (264, 128, 4))), 'q pitch: wanted a multiple of 16 bytes'),
    (lambda: dict(q=np.zeros(64 * 64 + 1, np.float32)[1:].reshape(64, 2, 32)), 'q: wanted an address aligned to 16 bytes'),
    (lambda: dict(q=[1.0]), 'q: wanted an array'),
    (lambda: dict(k=None), 'k: wanted an array .*, got None'),
    (lambda: dict(A_log=np.zeros(3, np.float32)), 'A_log: wanted 2 elements'),
    (lambda: dict(A_log=np.zeros(2)), 'A_log dtype: wanted float32, got float64'),
    (lambda: dict(A_log=None), 'A_log: wanted an address, got null'),
    (lambda: dict(states=np.zeros((2, 2, 32, 16), np.float32)), r'states_in shape: wanted \[any, 2, 32, 32\]'),
    (lambda: dict(states=np.zeros((1, 2, 32, 32), np.float32)), 'slots: wanted the 2 that the metadata was made for, got 1'),
    (lambda: dict(states=np.zeros((2, 2, 32, 32), np.float16)), 'states_in dtype: wanted float32, got float16'),
    (lambda: dict(states=np.zeros((2, 4, 32, 32), np.float32)[:, ::2]), 'states_in strides'),
    (lambda: dict(out=read_only((64, 2, 32))), 'out: wanted a writable array'),
    (lambda: dict(states=read_only((2, 2, 32, 32))), 'states_out: wanted a writable array'),
    (lambda: dict(workspace=np.zeros(16, np.uint8)), 'workspace: wanted [0-9]+ bytes'),
]


@pytest.mark.parametrize('changed,message', WRONG, ids=[str(m) for _, m in WRONG])
def test_extend_refuses(call, changed, message):
    with pytest.raises(ValueError, match=message):
        call(**changed())


def test_out_may_not_be_an_input(call):
    v = np.zeros((64, 2, 32), np.float32)
    with pytest.raises(ValueError, match='out: wanted memory other than v'):
        call(v=v, out=v)


def problem(**kw):
    return kadence.Problem(**({'H': 2, 'HV': 2, 'K': 32, 'V': 32, 'max_rows': 2, 'max_tokens': 256, 'max_checkpoints': 2} | kw))


PROBLEMS = [
    (dict(HV=3), 'HV: wanted a positive multiple of H = 2, got 3'), (dict(lower_bound=0.0), 'lower_bound: wanted finite and below 0'),
    (dict(io='float64'), 'float64'), (dict(phase='prefill'), 'phase: wanted extend, step, verify, got prefill'),
    (dict(gate='safe'), 'gate: wanted bounded, softplus, given_log_decay, got safe'), (dict(io='bfloat16', decay='float16'), 'decay: wanted the same as io'),
    (dict(max_rows=1 << 40), 'max_rows: wanted a number of 32 bits'),
]


@pytest.mark.parametrize('changed,message', PROBLEMS, ids=[m for _, m in PROBLEMS])
def test_plan_refuses(changed, message):
    with pytest.raises(ValueError, match=message):
        kadence.plan_kda(problem(**changed))


def test_backends_are_named_and_forced():
    names = [b.name for b in kadence.backends()]
    assert 'cpu' in names and 'reference' in names
    assert kadence.plan_kda(problem(), options=kadence.Options(backend='reference')).backend == 'reference'
    with pytest.raises(ValueError, match='backend .*: wanted auto, .*cpu, reference, got gpu'):
        kadence.plan_kda(problem(), options=kadence.Options(backend='gpu'))
    assert kadence.backend_misses('cpu', problem()) == []
    assert kadence.backend_misses('gpu', problem()) == ['a backend named gpu in this build']


def test_cuda_says_why_it_is_absent():
    count, why = kadence.cuda_device_count()
    if count:
        pytest.skip('this machine has a CUDA device')
    assert why
    with pytest.raises(NotImplementedError, match='CUDA'):
        kadence.cuda()


METADATA = [
    (([0, 64, 32], [0, 1], [0, 1]), dict(tokens=64), 'row 1, seq_begin'), (([0, 64], [4], [0]), {}, 'row 0, state_in: wanted -1 or a slot below 4, got 4'),
    (([0, 64, 128], [0, 1], [2, 2]), {}, 'row 1, state_out: wanted a slot that no other entry writes'),
    (([0, 64, 128], [0, 0], [0, 1]), {}, 'row 1, state_in: wanted a slot that no other row writes'),
    (([0, 64, 128], [0, 0], [0, 1]), dict(shared='states', slots=(4, 4, 4)), 'row 1, state_in: wanted a slot that no other row writes'),
    (([0, 130], [0], [0]), dict(checkpoints=[[(32, 1)]]), 'ckpt_depth: wanted a positive multiple of 64, got 32'),
    (([0, 130], [0], [0]), dict(checkpoints=[[(192, 1)]]), "at most the row's length 130, got 192"),
    (([0, 130], [0], [0]), dict(checkpoints=[[(64, 4)]]), 'ckpt_slot: wanted -1 or a slot below 4, got 4'),
    (([0, 130], [0], [0]), dict(checkpoints=[[(64, 1)], []]), 'ckpt_begin: wanted 2 entries, got 3'),
    (([0, 300], [0], [0]), {}, 'tokens: wanted 0 to bounds.max_tokens = 256, got 300'), (([0, 64], [0], [0]), dict(shared='some'), 'shared: wanted'),
]


@pytest.mark.parametrize('lists,more,message', METADATA, ids=[m for _, _, m in METADATA])
def test_metadata_refuses(lists, more, message):
    with pytest.raises(ValueError, match=message):
        kadence.metadata(kadence.plan_kda(problem()), *lists, **({'slots': 4} | more))


def test_separate_checkpoints_must_be_separate():
    i = Inputs(64)
    plan = kadence.plan_kda(problem())
    pool = np.zeros((2, 2, 32, 32), np.float32)
    rows = kadence.metadata(plan, [0, 64], [0], [0], checkpoints=[[(64, 0)]], slots=(2, 2, 2), shared='states')
    with pytest.raises(ValueError, match='checkpoints: wanted an array of their own'):
        kadence.extend(plan, i.q, i.k, i.v, i.x, i.b, metadata=rows, A_log=i.A_log, dt_bias=i.dt_bias, states=pool)


def test_a_stream_of_another_device():
    plan = kadence.plan_kda(problem())
    with pytest.raises(ValueError, match='stream: wanted None or a kadence.Stream on the CPU, got the handle 7'):
        kadence.metadata(plan, [0, 64], [0], [0], slots=1, stream=7)


def test_version_and_types():
    assert kadence.__version__ == '0.1.0' and kadence.chunk_tokens == 64
    import pathlib
    package = pathlib.Path(kadence.__file__).parent
    assert (package / 'py.typed').exists()
    stub = package / '_core.pyi'
    if stub.exists():  # absent only in a tree used without installing it
        assert 'class Plan' in stub.read_text()
