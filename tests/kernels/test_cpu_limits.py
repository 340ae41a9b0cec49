"""What the C++ backend refuses: every operand whose size would make a kernel read or write foreign memory, and thread
counts that no system grants; and that a process ends cleanly whatever its threads are doing."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from kernel_cases import randn, random_int8
from quasar_kernels import cpu
from quasar_kernels.backend import PlannedLayer, PlannedLinear
from quasar_kernels.reference import Transform

if cpu.unavailable():
    pytest.skip(reason=f"no C++ backend: {cpu.unavailable()}", allow_module_level=True)

X, GAIN = randn(2, 16), torch.ones(16)
WQ, W = cpu.pack_w8a8(random_int8(8, 16)), cpu.pack_bf16(randn(8, 16).bfloat16())
Q, SCALE, WSCALE = random_int8(2, 16), torch.ones(2), torch.ones(8)
K, V, QKV, ANGLES = randn(2, 20, 4), randn(2, 20, 4), randn(3, (6 + 4) * 4), randn(3, 2)
QUERIES = randn(2, 6, 4)

WRONG = {
    "rmsnorm gain": lambda: cpu.rmsnorm(X, GAIN[:8], 1e-5),
    "rmsnorm rank": lambda: cpu.rmsnorm(X[0], GAIN, 1e-5),
    "rmsnorm_quantize gain": lambda: cpu.rmsnorm_quantize(X, GAIN[:8], 1e-5),
    "quantize_rows rank": lambda: cpu.quantize_rows(X[None]),
    "inv_smooth": lambda: cpu.quantize_rows(X, Transform(inv_smooth=GAIN[:8])),
    "shift": lambda: cpu.quantize_rows(X, Transform(shift=GAIN[:8])),
    "rotation": lambda: cpu.quantize_rows(X, Transform(rotation=torch.eye(5))),
    "rotation beyond a power of two": lambda: cpu.silu_mul_quantize(randn(2, 48), Transform(rotation=torch.eye(4))),
    "rotation of rotate": lambda: cpu.rotate(X, torch.eye(32)),
    "rotate rank": lambda: cpu.rotate(X[0], torch.eye(4)),
    "rotation not square": lambda: cpu.quantize_rows(X, Transform(rotation=torch.ones(8, 4))),
    "odd gate_up": lambda: cpu.silu_mul(randn(2, 15)),
    "odd gate_up to quantize": lambda: cpu.silu_mul_quantize(randn(2, 15)),
    "scale": lambda: cpu.linear_w8a8(Q, SCALE[:1], WQ, WSCALE),
    "wscale": lambda: cpu.linear_w8a8(Q, SCALE, WQ, WSCALE[:4]),
    "INT8 bias": lambda: cpu.linear_w8a8(Q, SCALE, WQ, WSCALE, WSCALE[:4]),
    "INT8 residual": lambda: cpu.linear_w8a8(Q, SCALE, WQ, WSCALE, None, randn(2, 4)),
    "INT8 input": lambda: cpu.linear_w8a8(Q[:, :8], SCALE, WQ, WSCALE),
    "BF16 bias": lambda: cpu.linear_bf16(X, W, WSCALE[:4]),
    "BF16 residual": lambda: cpu.linear_bf16(X, W, None, randn(1, 8)),
    "BF16 input": lambda: cpu.linear_bf16(X[:, :8], W),
    "packed data": lambda: replace(WQ, data=WQ.data[:-1]),
    "packed shape": lambda: replace(W, shape=(800, 16)),
    "qkv width": lambda: cpu.rope_append(QKV[:, :38], K, V, 0, ANGLES, ANGLES),
    "qkv without a query head": lambda: cpu.rope_append(QKV[:, :16], K, V, 0, ANGLES, ANGLES),
    "cos": lambda: cpu.rope_append(QKV, K, V, 0, ANGLES[:2], ANGLES),
    "sin": lambda: cpu.rope_append(QKV, K, V, 0, ANGLES, ANGLES[:, :1]),
    "q_norm": lambda: cpu.rope_append(QKV, K, V, 0, ANGLES, ANGLES, GAIN[:2], GAIN[:4]),
    "k_norm": lambda: cpu.rope_append(QKV, K, V, 0, ANGLES, ANGLES, GAIN[:4], GAIN[:2]),
    "v_cache": lambda: cpu.rope_append(QKV, K, V[:1], 0, ANGLES, ANGLES),
    "odd head size": lambda: cpu.rope_append(randn(3, 15), randn(2, 9, 3), randn(2, 9, 3), 0, ANGLES, ANGLES),
    "attend heads": lambda: cpu.attend(QUERIES[:, :5], K, V, [3, 4]),
    "attend head size": lambda: cpu.attend(QUERIES[:, :, :2], K, V, [3, 4]),
    "attend v_cache": lambda: cpu.attend(QUERIES, K, V[:, :5], [3, 4]),
    "a bushy tree at the cache's end": lambda: cpu.attend(QUERIES, K, V, [20, 20], [-1, -1]),
    "stream of a view": lambda: cpu.stream_read(torch.ones(1).expand(1 << 20)),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_size_is_an_error(name):
    with pytest.raises(ValueError, match=r"accepted|capacity"):
        WRONG[name]()


@pytest.mark.parametrize(
    "wrong",
    [lambda: cpu.attend(QUERIES, K.double(), V.double(), [3, 4]), lambda: cpu.rmsnorm(X.to("meta"), GAIN, 1e-5)],
)
def test_a_wrong_dtype_or_device_is_an_error(wrong):
    with pytest.raises(TypeError, match="accepted"):
        wrong()


def plan_layer(**changed):
    """A layer of 6 heads in 2 groups of size 4, hidden 16, MLP 8, in INT8."""

    def linear(outputs, inputs):
        return PlannedLinear(cpu.pack_w8a8(random_int8(outputs, inputs)), None, wscale=torch.ones(outputs))

    return PlannedLayer(
        **{
            "attention_norm": GAIN,
            "qkv_proj": linear(40, 16),
            "q_norm": GAIN[:4],
            "k_norm": GAIN[:4],
            "o_proj": linear(16, 24),
            "mlp_norm": GAIN,
            "gate_up_proj": linear(16, 16),
            "down_proj": linear(16, 8),
            **changed,
        }
    )


def linear_like(name, **changed):
    return {name: replace(getattr(plan_layer(), name), **changed)}


@pytest.mark.parametrize(
    "changed",
    [
        {"attention_norm": GAIN[:8]},
        {"mlp_norm": GAIN[:8]},
        {"q_norm": GAIN[:2]},
        {"k_norm": GAIN},
        linear_like("qkv_proj", wscale=GAIN),
        linear_like("qkv_proj", bias=GAIN),
        linear_like("o_proj", transform=Transform(inv_smooth=GAIN)),
        linear_like("down_proj", transform=Transform(rotation=torch.eye(3))),
        linear_like("qkv_proj", weight=cpu.pack_w8a8(random_int8(32, 16))),
        linear_like("o_proj", weight=cpu.pack_w8a8(random_int8(16, 20))),
        linear_like("gate_up_proj", weight=cpu.pack_w8a8(random_int8(8, 16))),
        linear_like("down_proj", weight=cpu.pack_w8a8(random_int8(8, 8))),
    ],
)
def test_a_plan_refuses_a_layer_whose_parts_do_not_fit(changed):
    cpu.Plan([plan_layer()], groups=2, size=4, eps=1e-5)
    with pytest.raises(ValueError, match="accepted"):
        cpu.Plan([plan_layer(**changed)], groups=2, size=4, eps=1e-5)


def test_a_plan_refuses_rows_and_angles_that_do_not_fit():
    plan = cpu.Plan([plan_layer()], groups=2, size=4, eps=1e-5)
    x, angles, k, v = randn(2, 16), randn(2, 2), randn(1, 2, 20, 4), randn(1, 2, 20, 4)
    assert plan.run(x, [0], k, v, 3, angles, angles, [4, 5]).shape == (2, 16)
    for wrong in (
        (x[:1], [0], k, v, 3, angles, angles, [4, 5]),
        (x[:, :8], [0], k, v, 3, angles, angles, [4, 5]),
        (x, [0], k, v, 3, angles[:1], angles, [4, 5]),
        (x, [0], k, v, 3, angles, angles[:, :1], [4, 5]),
        (x, [0], k, v, 18, angles, angles, [20, 20], [-1, -1]),
    ):
        with pytest.raises(ValueError, match=r"accepted|capacity"):
            plan.run(*wrong)


@pytest.mark.parametrize("count", [0, -1, 1025, 100_000, 2**40])
def test_a_thread_count_that_no_system_grants_is_refused(count):
    with pytest.raises(ValueError, match="1…1024"):
        cpu.set_threads(count)


def run_fresh(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


USE = "import torch; from quasar_kernels import cpu; w = cpu.pack_bf16(torch.ones(4096, 64).bfloat16()); "


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_a_thousand_threads_start_no_thousand_threads():
    code = USE + "cpu.set_threads(1024); cpu.linear_bf16(torch.ones(9, 64), w); import os; "
    done = run_fresh(code + "print(len(os.listdir('/proc/self/task')))")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 64 + 2 * (os.cpu_count() or 1) + 16


def test_a_process_ends_cleanly_while_a_thread_computes():
    """Only our ops run in the thread: torch aborts a process that ends while a daemon thread is inside a torch op."""
    code = USE + (
        "import threading, time; x, y = torch.ones(9, 64), torch.empty(9, 4096); "
        "a = (x.data_ptr(), w.data.data_ptr(), 0, 0, 9, 4096, 64, y.data_ptr()); "
        "work = lambda: [cpu._C.linear_bf16(*a) for _ in range(10**7)]; "
        "threading.Thread(target=work, daemon=True).start(); time.sleep(0.02)"
    )
    for _ in range(3):
        done = run_fresh(code)
        assert done.returncode == 0, done.stderr
