"""Steers gamma_base of Switch layers to a share of full attention.

Raising it asks for more windows, lowering it relaxes the penalty (arXiv 2603.26380, section 3.3). The paper keeps it
fixed; the rule here is ours.

After optimizer step s, with the share r_s that its batch took (mean over layers and tokens):

    m_s = smoothing · m_{s−1} + (1 − smoothing) · r_s        (m_0 = r_0)
    log f_s = clamp(log f_{s−1} + gain · (m_s − target), ± log max_factor)
    gamma_base at step s + 1 = its setting · f_s

An integral controller in the logarithm: what the regulariser does depends on orders of magnitude of gamma_base. m and f
are functions of the run's own losses and lie in its checkpoints, so a resumed run goes on bit for bit and a branch
takes over what its trunk had found.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from gridlaw.modules.mixers.switch.module import SwitchAttention
from gridlaw.modules.models.decoder import DecoderLM
from gridlaw.modules.training.settings import GammaControllerSettings


class GammaController:
    """The state of one run: the factor on gamma_base, and the smoothed share (None before the first step)."""

    def __init__(self, model: DecoderLM, settings: GammaControllerSettings) -> None:
        self.settings = settings
        self._layers = [layer.mixer for layer in model.blocks() if isinstance(layer.mixer, SwitchAttention)]
        self.log_factor, self.smoothed = 0.0, math.nan

    @property
    def factor(self) -> float:
        """What gamma_base is multiplied with now."""
        return math.exp(self.log_factor)

    def observe(self, full_ratio: float) -> None:
        """Take in the share of the step that ends, and set gamma_base for the next one."""
        smoothing, limit = self.settings.smoothing, math.log(self.settings.max_factor)
        if math.isnan(self.smoothed):
            self.smoothed = full_ratio
        self.smoothed = smoothing * self.smoothed + (1 - smoothing) * full_ratio
        moved = self.log_factor + self.settings.gain * (self.smoothed - self.settings.target)
        self.log_factor = min(limit, max(-limit, moved))
        self._apply()

    def _apply(self) -> None:
        for mixer in self._layers:
            mixer.gamma_base = mixer.spec.gamma_base * self.factor

    def state(self) -> dict[str, float]:
        """For a checkpoint."""
        return {"log_factor": self.log_factor, "smoothed": self.smoothed}

    def restore(self, state: Mapping[str, float]) -> None:
        """Go on from a checkpoint."""
        self.log_factor, self.smoothed = float(state["log_factor"]), float(state["smoothed"])
        self._apply()
