"""Initial values that several recurrent mixers share."""

from __future__ import annotations

import math

import torch
from torch import Tensor

SHORTEST_STEP, LONGEST_STEP = 1e-3, 1e-1


def fill_log_uniform_time_step(bias: Tensor, generator: torch.Generator) -> None:
    """Fill `bias` so that softplus(bias) is log-uniform in [0.001, 0.1] (as in Mamba; arXiv 2312.00752, 3.6)."""
    step = bias.uniform_(math.log(SHORTEST_STEP), math.log(LONGEST_STEP), generator=generator).exp_()
    bias.copy_(step + torch.log(-torch.expm1(-step)))  # inverse of softplus
