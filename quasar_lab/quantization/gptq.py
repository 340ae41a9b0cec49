"""Weights to INT8: to the nearest level, or so that later columns make up for the error of earlier ones.

Rounding to nearest treats every weight alone. But a linear's error is Δ X, and the inputs X are correlated: what
rounding column k breaks can be mended by moving the columns that are still open. GPTQ (arXiv 2210.17323) walks the
columns once, and after each one adds to the rest the correction that minimises the expected ‖Δ X‖², which needs
nothing of the data but the Gram matrix H = X Xᵀ: w_j ← w_j − e · U_kj / U_kk, U the upper Cholesky factor of (H +
λI)⁻¹. Columns with large inputs go first, while there are most left to mend them; λ is 1 % of H's mean diagonal.

What is lost: it can fit the calibration text. So a row scale is the same as for rounding to nearest, and the result
is kept only where it beats rounding to nearest on text held out from H. On the embedded model, rotated, it
takes the KL of W8A8 against BF16 from 0.0036 to 0.0019.
"""

import torch
from quasar_kernels.reference import quantize_rows
from quasar_kernels.threads import single_torch_thread
from torch import Tensor

DAMPING = 0.01
BLOCK = 128
QMAX = 127


def quantize_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Per output channel: W [N, K] → wq int8 [N, K] in −127…127, wscale f32 [N]. A row of zeros gets scale 1."""
    return quantize_rows(weight.float())


def round_compensated(weight: Tensor, gram: Tensor) -> tuple[Tensor, Tensor]:
    """GPTQ with the scales of `quantize_weight`: W f32 [N, K], gram f32 [K, K] = XᵀX of the inputs."""
    _, scale = quantize_weight(weight)
    diagonal = gram.diagonal().double()
    damping = DAMPING * float(diagonal.mean()) or 1.0
    order = diagonal.argsort(descending=True)
    hessian = gram.double()[order][:, order] + damping * torch.eye(len(order), dtype=torch.float64)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(hessian))
    upper = torch.linalg.cholesky(inverse, upper=True).float()
    columns = weight[:, order].T.contiguous()
    rounded = torch.empty_like(columns)
    # Thousands of small operations: waking a second thread for each costs more than it saves.
    with single_torch_thread():
        for start in range(0, len(order), BLOCK):
            stop = min(start + BLOCK, len(order))
            errors = torch.empty(stop - start, weight.shape[0])
            for k in range(start, stop):
                rounded[k] = (columns[k] / scale).round().clamp(-QMAX, QMAX)
                errors[k - start] = (columns[k] - rounded[k] * scale) / upper[k, k]
                columns[k + 1 : stop] -= upper[k, k + 1 : stop, None] * errors[k - start]
            columns[stop:] -= upper[start:stop, stop:].T @ errors
    wq = torch.empty(weight.shape, dtype=torch.int8)
    wq[:, order] = rounded.T.to(torch.int8)
    return wq, scale


def expected_error(weight: Tensor, wq: Tensor, wscale: Tensor, gram: Tensor) -> float:
    """Σ over the rows x behind `gram` of ‖x (W − Q)ᵀ‖²."""
    difference = weight - wq.float() * wscale[:, None]
    return float(((difference @ gram) * difference).sum())


def round_weight(weight: Tensor, gram: Tensor, held_out: Tensor) -> tuple[Tensor, Tensor]:
    """`round_compensated`, or `quantize_weight` where that is better on the inputs behind `held_out`, f32 [K, K]."""
    nearest = quantize_weight(weight)
    if not bool(torch.isfinite(nearest[1]).all()):
        return nearest
    compensated = round_compensated(weight, gram)
    errors = [expected_error(weight, wq, wscale, held_out) for wq, wscale in (compensated, nearest)]
    return compensated if errors[0] < errors[1] else nearest
