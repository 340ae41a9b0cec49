"""The C++ backend, in every instruction set of this machine, against the definition: exact where INT32 and rounding
decide, close elsewhere, and the same bits for every width, thread count, caller and process."""

import os
import shutil
import subprocess
import sys
import threading
from contextlib import suppress
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import (
    CAPACITY,
    GROUPS,
    HEADS,
    ISAS,
    SIZE,
    all_isas,
    chunkings,
    in_passes,
    orthonormal,
    randn,
    random_int8,
    row_ops,
    same_bits,
    tree_case,
    trees,
)
from quasar_kernels import cpu, reference
from quasar_kernels.backend import PlannedLayer, PlannedLinear
from quasar_kernels.reference import Transform
from quasar_kernels.threads import single_torch_thread

COMPILERS = ("c++", "g++", "clang++")

if cpu.unavailable() and not any(map(shutil.which, COMPILERS)):
    pytest.skip(reason=f"no C++ compiler here, so no C++ backend: {cpu.unavailable()}", allow_module_level=True)


def test_the_extension_is_built_where_a_compiler_is():
    assert cpu.unavailable() is None


@pytest.fixture(params=ISAS)
def isa(request):
    before = cpu.isa()
    cpu.set_isa(request.param)
    yield request.param
    cpu.set_isa(before)


@pytest.fixture
def threads():
    before = cpu.get_threads()
    yield cpu.set_threads
    cpu.set_threads(before)


close = partial(torch.testing.assert_close, rtol=2e-5, atol=2e-5)
sizes = st.sampled_from([1, 3, 4, 16, 31, 64, 577])
relaxed = settings(max_examples=25, deadline=None)


@given(
    rows=st.integers(1, 33),
    outputs=st.sampled_from([1, 5, 16, 17, 63, 130]),
    inputs=sizes,
    extra=st.booleans(),
    seed=st.integers(0, 99),
)
@relaxed
def test_linears(rows, outputs, inputs, extra, seed):
    q, scale, wq, wscale = (
        random_int8(rows, inputs, seed=seed),
        randn(rows, seed=1),
        random_int8(outputs, inputs, seed=2),
        randn(outputs),
    )
    x, w = randn(rows, inputs, seed=seed), randn(outputs, inputs, seed=3).bfloat16()
    bias, residual = (randn(outputs, seed=4), randn(rows, outputs, seed=5)) if extra else (None, None)
    exact = reference.linear_w8a8(q, scale, wq, wscale, bias, residual)
    wide = (x.double() @ w.double().T + (bias if extra else 0) + (residual if extra else 0)).float()

    def check(_):
        assert torch.equal(cpu.linear_w8a8(q, scale, cpu.pack_w8a8(wq), wscale, bias, residual), exact)
        torch.testing.assert_close(
            cpu.linear_bf16(x, cpu.pack_bf16(w), bias, residual), wide, rtol=1e-5, atol=1e-5 * inputs**0.5 * 4
        )

    all_isas(check)


def test_int32_is_exact_at_the_extremes(isa):
    q, wq = (torch.full((rows, 12288), 127, dtype=torch.int8) for rows in (9, 37))
    q[1::2], wq[::2], wq[5] = -127, -127, random_int8(12288)
    y = cpu.linear_w8a8(q, torch.ones(9), cpu.pack_w8a8(wq), torch.ones(37))
    assert torch.equal(y, (q.long() @ wq.long().T).to(torch.int32).float())


def test_more_outputs_than_16_bits_count(isa):
    q, wq = random_int8(2, 31), random_int8(49153, 31, seed=1)
    packed = cpu.pack_w8a8(wq)
    exact = (q.long() @ wq.long().T).float()
    assert torch.equal(cpu.linear_w8a8(q, torch.ones(2), packed, torch.ones(49153)), exact)


@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (16, 4), (17, 31), (33, 577)])
def test_packing_is_reversible(shape):
    assert torch.equal(cpu.pack_w8a8(wq := random_int8(*shape)).unpack(), wq)
    assert torch.equal(cpu.pack_bf16(w := randn(*shape).bfloat16()).unpack(), w)
    assert cpu.pack_w8a8(wq).shape == shape


@given(rows=st.integers(1, 33), size=sizes, power=st.integers(-44, 37), seed=st.integers(0, 99))
@relaxed
def test_quantization_is_exact(rows, size, power, seed):
    x = randn(rows, size, seed=seed) * torch.tensor(10.0).pow(power)
    x[0] = 0
    transform = Transform(inv_smooth=randn(size, seed=1).abs(), shift=randn(size, seed=2))

    def check(_):
        assert same_bits(cpu.quantize_rows(x), reference.quantize_rows(x))
        assert same_bits(cpu.quantize_rows(x, transform), reference.quantize_rows(x, transform))

    all_isas(check)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("column", [0, 8, 20, 34])
def test_a_bad_number_shows_in_its_row_alone(isa, bad, column):
    x = randn(3, 35)
    x[1, column] = bad
    q, scale = cpu.quantize_rows(x)
    expected_q, expected_scale = reference.quantize_rows(x)
    assert torch.equal(q, expected_q)
    assert torch.equal(scale.nan_to_num(-1.0), expected_scale.nan_to_num(-1.0))
    weight = cpu.pack_w8a8(random_int8(20, 35))
    assert cpu.linear_w8a8(q, scale, weight, torch.ones(20)).isnan().all(dim=1).tolist() == [False, True, False]
    gain = torch.ones(35)
    assert cpu.rmsnorm(x, gain, 1e-5).isfinite().all(dim=1).tolist() == [True, False, True]
    assert torch.equal(cpu.silu_mul(x[:, :34]).isnan(), reference.silu_mul(x[:, :34]).isnan())


@pytest.mark.parametrize("name", row_ops(reference, 40))
def test_row_ops_agree_with_the_reference(isa, name):
    x = randn(33, 40) * 3
    ours, theirs = row_ops(cpu, 40)[name](x), row_ops(reference, 40)[name](x)
    if isinstance(ours, torch.Tensor):
        close(ours, theirs)
        return
    close(ours[1], theirs[1])
    assert (
        ours[0].int() - theirs[0].int()
    ).abs().max() <= 1  # a sum in another order may fall on the other side of a half


def test_silu_is_right_at_the_ends(isa):
    gate = torch.tensor([[-1e30, -200.0, -88.0, -1e-30, 0.0, 1e-30, 88.0, 200.0, 1e30]])
    close(
        cpu.silu_mul(torch.cat([gate, torch.ones_like(gate)], dim=1)),
        reference.silu_mul(torch.cat([gate, torch.ones_like(gate)], dim=1)),
    )


@pytest.mark.parametrize("name", row_ops(reference, 40))
def test_a_row_has_the_same_bits_at_every_width(isa, threads, name):
    op, x = row_ops(cpu, 40)[name], randn(64, 40)
    whole = op(x)
    for count in (1, 2, 3, 4):
        threads(count)
        for width in range(1, 65):
            assert same_bits(in_passes(op, x, [width, 64 - width] if width < 64 else [64]), whole)


@pytest.mark.parametrize("window", [0, 1, 30, 100])
@given(cuts=chunkings(64))
@settings(max_examples=10, deadline=None)
def test_attention_has_the_same_bits_at_every_width(window, cuts):
    q, k, v = randn(64, HEADS, SIZE), randn(GROUPS, CAPACITY, SIZE, seed=1), randn(GROUPS, CAPACITY, SIZE, seed=2)
    lengths = torch.arange(101, 165)

    def check(_):
        whole = cpu.attend(q, k, v, lengths.tolist(), window=window)
        close(whole, reference.attend(q, k, v, lengths.tolist(), window=window))
        parts = [
            cpu.attend(a, k, v, b.tolist(), window=window)
            for a, b in zip(q.split(cuts), lengths.split(cuts), strict=True)
        ]
        assert torch.equal(torch.cat(parts), whole)

    all_isas(check)


@given(
    size=st.sampled_from([1, 5, 8, 20, 64, 80, 128]),
    per=st.integers(1, 9),
    rows=st.sampled_from([1, 2, 7, 17]),
    prefix=st.integers(0, 200),
)
@relaxed
def test_attention_of_any_shape(size, per, rows, prefix):
    q, k, v = randn(rows, 2 * per, size), randn(2, 220, size, seed=1), randn(2, 220, size, seed=2)
    lengths = [prefix + row + 1 for row in range(rows)]
    expected = reference.attend(q, k, v, lengths)
    all_isas(lambda _: close(cpu.attend(q, k, v, lengths), expected))


@given(parents=trees(24), prefix=st.integers(0, 150), window=st.sampled_from([0, 5, 70]))
@settings(max_examples=20, deadline=None)
def test_a_tree_row_equals_its_own_chain(parents, prefix, window):
    q, k, v, lengths = tree_case(parents, prefix)

    def check(_):
        y = cpu.attend(q, k, v, lengths, parents, window)
        for row in range(len(parents)):
            path = [row]
            while parents[path[0]] >= 0:
                path.insert(0, parents[path[0]])
            chain_k, chain_v = k.clone(), v.clone()
            for depth, node in enumerate(path):
                chain_k[:, prefix + depth], chain_v[:, prefix + depth] = k[:, prefix + node], v[:, prefix + node]
            assert torch.equal(cpu.attend(q[row : row + 1], chain_k, chain_v, [lengths[row]], window=window)[0], y[row])

    all_isas(check)


@pytest.mark.parametrize("parents", [None, [-1, 0, 0, 2]])
def test_rows_of_the_cache_that_nobody_sees_are_never_read(isa, parents):
    q, k, v, lengths = tree_case(parents or [-1, 0, 1, 2], 70)
    clean = cpu.attend(q, k, v, lengths, parents, window=20)
    for cache in (k, v):
        cache[:, 74:] = float("nan")
        cache[:, : 71 - 20] = float("nan")
    assert torch.equal(cpu.attend(q, k, v, lengths, parents, window=20), clean)


@pytest.mark.parametrize("norms", [False, True])
def test_rope_append(isa, norms):
    qkv, angles = randn(70, (HEADS + 2 * GROUPS) * SIZE), randn(70, SIZE // 2, seed=1)
    gain = randn(SIZE, seed=2) if norms else None
    caches = [torch.full((2, GROUPS, 100, SIZE), float("nan")) for _ in range(2)]
    ours, theirs = (
        op(qkv, *cache, 4, angles.cos(), angles.sin(), gain, gain)
        for op, cache in zip((cpu.rope_append, reference.rope_append), caches, strict=True)
    )
    close(ours, theirs)
    close(caches[0], caches[1], equal_nan=True)


def test_strided_input_is_copied_not_misread(isa):
    x, wide = randn(40, 6).T, randn(6, 80)[:, ::2]
    assert same_bits(cpu.quantize_rows(x), reference.quantize_rows(x))
    assert same_bits(cpu.quantize_rows(wide), reference.quantize_rows(wide))
    w = randn(40, 30).bfloat16().T
    close(cpu.linear_bf16(x, cpu.pack_bf16(w)), reference.linear_bf16(x, w))
    k, v = randn(CAPACITY, GROUPS, SIZE, seed=1).transpose(0, 1), randn(CAPACITY, GROUPS, SIZE, seed=2).transpose(0, 1)
    q = randn(HEADS, 3, SIZE).transpose(0, 1)
    close(cpu.attend(q, k, v, [90, 91, 92]), reference.attend(q, k, v, [90, 91, 92]))


def test_what_would_read_foreign_memory_is_an_error():
    q, k, v, lengths = tree_case([-1, 0, 0], 70)
    weight = cpu.pack_w8a8(random_int8(8, 16))
    with pytest.raises(ValueError, match="capacity"):
        cpu.attend(q, k, v, [71, 72, CAPACITY + 1])
    with pytest.raises(ValueError, match="disagree"):
        cpu.attend(q, k, v, [71, 72, 90], [-1, 0, 0])
    with pytest.raises(ValueError, match="lengths"):
        cpu.attend(q, k, v, lengths[:2])
    with pytest.raises(ValueError, match="do not fit"):
        cpu.rope_append(
            randn(3, (HEADS + 2 * GROUPS) * SIZE), k, v, CAPACITY - 2, randn(3, SIZE // 2), randn(3, SIZE // 2)
        )
    with pytest.raises(ValueError, match="16"):
        cpu.linear_w8a8(random_int8(2, 15), torch.ones(2), weight, torch.ones(8))
    with pytest.raises(TypeError, match="float64"):
        cpu.rmsnorm(torch.ones(2, 4, dtype=torch.float64), torch.ones(4), 1e-5)
    with pytest.raises(TypeError, match="packed"):
        cpu.linear_bf16(randn(2, 16), weight)


def small_layers(int8: bool):
    """Two layers of 4 heads × 16, hidden 64, MLP 96, in the form that a plan takes."""

    def linear(outputs, inputs, seed):
        w = randn(outputs, inputs, seed=seed) / inputs**0.5
        if not int8:
            return PlannedLinear(cpu.pack_bf16(w.bfloat16()), randn(outputs, seed=seed))
        wq, wscale = reference.quantize_rows(w)
        turn = orthonormal({64: 4, 96: 12}[inputs]) if seed % 3 else None
        smooth = Transform(randn(inputs).abs() + 0.5, randn(inputs, seed=seed) / 8 if seed % 4 == 1 else None, turn)
        transform = smooth if seed % 2 or turn is not None else None
        return PlannedLinear(cpu.pack_w8a8(wq), None, wscale, transform)

    return [
        PlannedLayer(
            attention_norm=randn(64, seed=seed),
            qkv_proj=linear(128, 64, seed + 1),
            q_norm=randn(16, seed=seed) if seed else None,
            k_norm=randn(16, seed=seed + 2) if seed else None,
            o_proj=linear(64, 64, seed + 3),
            mlp_norm=randn(64, seed=seed + 4),
            gate_up_proj=linear(192, 64, seed + 5),
            down_proj=linear(64, 96, seed + 6),
        )
        for seed in (0, 7)
    ]


def layer_by_ops(ops, x, layer, k, v, start, cos, sin, lengths, parents, window):
    def times(linear, y, residual=None):
        weight = linear.weight if ops is cpu else linear.weight.unpack()
        if linear.wscale is None:
            return ops.linear_bf16(y, weight, linear.bias, residual)
        q, scale = ops.quantize_rows(y, linear.transform)
        return ops.linear_w8a8(q, scale, weight, linear.wscale, linear.bias, residual)

    qkv = times(layer.qkv_proj, ops.rmsnorm(x, layer.attention_norm, 1e-5))
    q = ops.rope_append(qkv, k, v, start, cos, sin, layer.q_norm, layer.k_norm, 1e-5)
    x = times(layer.o_proj, ops.attend(q, k, v, lengths, parents, window), x)
    gate_up = times(layer.gate_up_proj, ops.rmsnorm(x, layer.mlp_norm, 1e-5))
    return times(layer.down_proj, ops.silu_mul(gate_up), x)


@pytest.mark.parametrize("parents", [None, [-1, 0, 0, 2, 1]])
@pytest.mark.parametrize("window", [0, 20])
@pytest.mark.parametrize("int8", [False, True])
def test_a_plan_has_the_bits_of_its_ops(isa, int8, window, parents):
    layers, order = small_layers(int8), [1, 0, 1]
    lengths = [71, 72, 73, 74, 75] if parents is None else [71, 72, 72, 73, 73]
    k, v, x, angles = randn(2, 2, 80, 16, seed=1), randn(2, 2, 80, 16, seed=2), randn(5, 64), randn(5, 8, seed=3)
    copies = {ops.name: [x, k.clone(), v.clone()] for ops in (cpu, reference)}
    plan = cpu.Plan(layers, groups=2, size=16, eps=1e-5, window=window)
    y = plan.run(x, order, k, v, 70, angles.cos(), angles.sin(), lengths, parents)
    for ops in (cpu, reference):
        own = copies[ops.name]
        for index in order:
            cache, turns = (own[1][index], own[2][index]), (angles.cos(), angles.sin())
            own[0] = layer_by_ops(ops, own[0], layers[index], *cache, 70, *turns, lengths, parents, window)
    assert same_bits((y, k, v), tuple(copies["cpu"]))
    # A norm that differs in its last bit may round to the next integer: near in length, not number by number.
    expected = copies["reference"][0]
    assert (y - expected).norm() < 0.01 * expected.norm()
    assert torch.equal(x, randn(5, 64))  # the caller's rows stay as they were


def test_torch_gets_its_threads_back():
    before = torch.get_num_threads()
    with suppress(KeyError), single_torch_thread():
        assert torch.get_num_threads() == 1
        raise KeyError
    assert torch.get_num_threads() == before


def test_a_plan_refuses_what_does_not_fit():
    plan = cpu.Plan(small_layers(True), groups=2, size=16, eps=1e-5)
    k, x, angles = randn(2, 2, 80, 16), randn(1, 64), randn(1, 8)
    with pytest.raises(ValueError, match="does not exist"):
        plan.run(x, [2], k, k.clone(), 3, angles, angles, [4])
    with pytest.raises(ValueError, match="do not fit"):
        plan.run(x, [0], k, k.clone(), 80, angles, angles, [80])
    with pytest.raises(ValueError, match="capacity"):
        plan.run(x, [0], k, k.clone(), 3, angles, angles, [81])
    with pytest.raises(ValueError, match="cache"):
        plan.run(x, [0], k[:1], k[:1].clone(), 3, angles, angles, [4])


def busy_work(x: torch.Tensor, weight: cpu.Packed) -> list[torch.Tensor]:
    return [cpu.linear_bf16(x, weight) for _ in range(20)]


def busy_operands() -> tuple[torch.Tensor, cpu.Packed]:
    return randn(5, 577), cpu.pack_bf16(randn(700, 577, seed=1).bfloat16())


@pytest.mark.parametrize("count", [1, 2, 3, 16])
def test_two_python_threads_at_once(threads, count):
    threads(count)
    operands, results = busy_operands(), {}
    expected = busy_work(*operands)

    def work(name):
        results[name] = busy_work(*operands)

    workers = [threading.Thread(target=work, args=(name,)) for name in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert len(results) == 3
    assert all(torch.equal(a, b) for result in results.values() for a, b in zip(result, expected, strict=True))


def test_a_forked_child_computes_too(threads):
    threads(2)
    operands = busy_operands()
    expected = busy_work(*operands)
    child = os.fork()
    if child == 0:  # only our ops and the verdict: pytest and torch's own threads do not survive a fork
        same = all(torch.equal(a, b) for a, b in zip(busy_work(*operands), expected, strict=True))
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def in_fresh_process(code: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("name", ISAS)
def test_the_environment_chooses_the_instruction_set(name):
    done = in_fresh_process("from quasar_kernels import cpu; print(cpu.isa())", QUASAR_CPU_ISA=name)
    assert done.stdout.strip() == name
    assert done.stderr == ""


def test_an_unknown_instruction_set_is_a_warning():
    done = in_fresh_process("from quasar_kernels import cpu; print(cpu.isa())", QUASAR_CPU_ISA="sse9")
    assert done.stdout.strip() == ISAS[0]
    assert "QUASAR_CPU_ISA=sse9 is not available" in done.stderr


def test_a_missing_extension_is_a_reason_not_an_error():
    hide = "import sys; sys.modules['quasar_kernels.cpu._C'] = None; from quasar_kernels import cpu, select; "
    done = in_fresh_process(hide + "print(cpu.unavailable()); print(select('auto').name)")
    assert "compiler" in done.stdout
    assert done.stdout.split()[-1] == "reference"
