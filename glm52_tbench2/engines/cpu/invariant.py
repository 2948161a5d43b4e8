"""Matrix products and activations whose every row is the same to the bit in any batch.

A BLAS picks its kernel by the number of rows, and the kernels for a few rows add up in another
order; `sigmoid` rounds differently in the last few elements of a tensor, which are not in a full
vector register. So products are done on a multiple of `ROWS` rows and `sigmoid` is composed of
operations that do not do that. SGLang's own batch-invariant mode replaces the same operators, with
Triton kernels.
"""

import torch
import torch.nn.functional as F

ROWS = 16
"""Rows are padded to a multiple of this: above the small-matrix kernels and their remainders."""

_library: torch.library.Library | None = None


def padded(rows: int, multiple: int = ROWS) -> int:
    """The next multiple."""
    return -(-rows // multiple) * multiple


def mm(a_MK: torch.Tensor, b_KN: torch.Tensor) -> torch.Tensor:
    """a @ b, [M, N]."""
    rows = len(a_MK)
    a_MK = F.pad(a_MK, (0, 0, 0, padded(rows) - rows))
    out = a_MK.new_empty(len(a_MK), b_KN.shape[1])
    return torch.addmm(out, a_MK, b_KN, beta=0, out=out)[:rows]


def mm_out(a_MK: torch.Tensor, b_KN: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    """a @ b into `out`, [M, N]."""
    return out.copy_(mm(a_MK, b_KN))


def addmm(
    bias: torch.Tensor, a_MK: torch.Tensor, b_KN: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> torch.Tensor:
    """beta * bias + alpha * a @ b, [M, N]."""
    return beta * bias + alpha * mm(a_MK, b_KN)


def bmm(a_BMK: torch.Tensor, b_BKN: torch.Tensor) -> torch.Tensor:
    """a @ b of each batch entry, [B, M, N]."""
    rows = a_BMK.shape[1]
    a_BMK = F.pad(a_BMK, (0, 0, 0, padded(rows) - rows))
    out = a_BMK.new_empty(*a_BMK.shape[:2], b_BKN.shape[2])
    return torch.baddbmm(out, a_BMK, b_BKN, beta=0, out=out)[:, :rows]


def bmm_out(a_BMK: torch.Tensor, b_BKN: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    """a @ b of each batch entry into `out`, [B, M, N]."""
    return out.copy_(bmm(a_BMK, b_BKN))


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """1 / (1 + exp(-x)), any shape."""
    return x.neg().exp_().add_(1).reciprocal_()


def silu(x: torch.Tensor) -> torch.Tensor:
    """x * sigmoid(x), any shape."""
    return sigmoid(x).mul_(x)


def install() -> None:
    """Replaces the operators on the CPU in this process, for every dtype and every caller."""
    global _library
    _library = torch.library.Library("aten", "IMPL")
    for name, function in (
        ("mm", mm),
        ("mm.out", mm_out),
        ("addmm", addmm),
        ("bmm", bmm),
        ("bmm.out", bmm_out),
        ("sigmoid", sigmoid),
        ("silu", silu),
    ):
        _library.impl(name, function, "CPU", allow_override=True)
