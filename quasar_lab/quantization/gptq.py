"""Weights to INT8: to the nearest level, or by GPTQ, where later columns make up for the error of earlier ones.

## Idea

Rounding to nearest treats every weight alone. But the error of a linear is Δ X, with Δ the error of the weights, and
the inputs X are correlated. What rounding column k breaks can be mended by moving the columns that are not rounded yet.
GPTQ walks the columns once. After each column it adds to the rest the correction that minimises the expected ‖Δ X‖²:
w_j ← w_j − e · U_kj / U_kk. The data enters only by the Gram matrix H = X Xᵀ, and U is the upper Cholesky factor of
(H + λI)⁻¹.

## Choice

Columns with large inputs go first, while there are most columns left to mend them. λ is 1 % of H's mean diagonal.

GPTQ can fit the calibration text too closely. So a row's scale is the same as for rounding to nearest, and the result
is kept only where it beats rounding to nearest on text held out from H. On the embedded model, rotated, GPTQ takes the
KL of W8A8 against BF16 from 0.0036 to 0.0019.

## What is lost

Time: one Gram matrix and one walk for every linear, when a recipe is prepared. The step reads the same bytes.

## Source

GPTQ, arXiv 2210.17323.
"""

from collections.abc import Callable, Iterator

import torch
from quasar_kernels.reference import quantize_rows
from quasar_kernels.threads import single_torch_thread
from torch import Tensor

from quasar_lab.models.input_map import InputMap
from quasar_lab.models.model_config import Key
from quasar_lab.quantization.calibration import LayerGrams

DAMPING = 0.01
"""λ as a share of H's mean diagonal."""
BLOCK = 128
"""Columns whose corrections are added to the rest in one product."""
QMAX = 127
"""The largest INT8 level that is used."""


def quantize_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Per output channel: W [N, K] → wq int8 [N, K] in −127…127, wscale f32 [N]. A row of zeros gets scale 1."""
    return quantize_rows(weight.float())


def round_compensated(weight: Tensor, gram: Tensor) -> tuple[Tensor, Tensor]:
    """GPTQ with the scales of `quantize_weight`: W f32 [N, K], gram f32 [K, K] = XᵀX of the inputs."""
    _, scale = quantize_weight(weight)
    order = gram.diagonal().double().argsort(descending=True)
    upper = _upper_factor(gram, order)
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


def _upper_factor(gram: Tensor, order: Tensor) -> Tensor:
    """U f32 [K, K], upper triangular, with UᵀU = (H + λI)⁻¹, rows and columns of H in this order."""
    damping = DAMPING * float(gram.diagonal().double().mean()) or 1.0
    hessian = gram.double()[order][:, order] + damping * torch.eye(len(order), dtype=torch.float64)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(hessian))
    return torch.linalg.cholesky(inverse, upper=True).float()


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


def compensated_rounding(
    grams: Iterator[LayerGrams], maps: dict[Key, InputMap]
) -> Callable[[Key, Tensor], dict[str, Tensor]]:
    """`round_weight` as the rounding of a recipe, with Gram matrices that come layer by layer (`calibration.grams`). So
    the linears must come layer by layer, too, as `folding.quantized_tensors` asks for them."""
    current = next(grams)

    def rounding(key: Key, weight: Tensor) -> dict[str, Tensor]:
        nonlocal current
        while current.layer != key[0]:
            current = next(grams)
        pair = current.projections[key[1]]
        fitted, held_out = pair.fitted, pair.held_out
        if key in maps:
            fitted, held_out = maps[key].gram(fitted), maps[key].gram(held_out)
        wq, wscale = round_weight(weight, fitted, held_out)
        return {"wq": wq, "wscale": wscale}

    return rounding
