"""The short convolution against torch's grouped one, in pieces and with documents."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

from gridlaw.modules.kernels.short_conv import inputs_to_keep, short_conv


@pytest.mark.parametrize("time", [1, 2, 3, 4, 50])
def test_it_is_a_causal_grouped_convolution(time: int) -> None:
    """mamba #437: a fallback of the convolution that was not causal."""
    torch.manual_seed(0)
    x = torch.randn(2, time, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    ours = short_conv(x, weight)
    wanted = F.conv1d(F.pad(x.mT, (3, 0)), weight[:, None], groups=6).mT
    torch.testing.assert_close(ours, wanted)
    d_out = torch.randn_like(ours)
    for a, b in zip(*(torch.autograd.grad(y, (x, weight), d_out) for y in (ours, wanted)), strict=True):
        torch.testing.assert_close(a, b)


def test_pieces_with_kept_inputs_are_the_whole() -> None:
    x, weight = torch.randn(2, 20, 5), torch.randn(5, 4)
    kept, pieces = torch.zeros(2, 3, 5), []
    for start, stop in ((0, 1), (1, 3), (3, 11), (11, 20)):
        pieces.append(short_conv(x[:, start:stop], weight, before=kept))
        kept = inputs_to_keep(x[:, start:stop], kept)
        assert kept.shape == (2, 3, 5)
    torch.testing.assert_close(torch.cat(pieces, 1), short_conv(x, weight))


@pytest.mark.parametrize("ids", [[0] * 7 + [1] * 2 + [0] * 1 + [2] * 10, [0, 1, 2, 0, 1] + [3] * 15])
def test_documents_do_not_see_each_other(ids: list[int]) -> None:
    x, weight = torch.randn(1, 20, 5), torch.randn(5, 4)
    borders = [0, *(t for t in range(1, 20) if ids[t] != ids[t - 1]), 20]
    alone = [short_conv(x[:, a:b], weight) for a, b in itertools.pairwise(borders)]
    found = short_conv(x, weight, document_ids=torch.tensor([ids]))
    torch.testing.assert_close(found, torch.cat(alone, 1))
