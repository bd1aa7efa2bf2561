"""Switch attention: every token takes full or sliding-window attention; settings and counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from gridlaw.modules.errors import BadSetting
from gridlaw.modules.mixers.base import matmul_flops, visible_keys
from gridlaw.modules.mixers.softmax_spec import SoftmaxSpec, attention_flops, check_window
from gridlaw.modules.scale import Scale

if TYPE_CHECKING:
    from gridlaw.modules.mixers.switch.module import SwitchAttention

ACTIVATIONS = ("softplus", "relu")
GAMMAS = ("adaptive", "constant")
REDUCTIONS = ("mean", "sum")
ROUTER_INITS = ("random", "full")


@dataclass(frozen=True, kw_only=True)
class SwitchSpec(SoftmaxSpec):
    """A router on the layer's input chooses full or window attention per token (arXiv 2603.26380).

    window: tokens of the window branch, the current one included.
    threshold: a token takes the full branch where sigmoid(router) is above it.
    gamma: adaptive (gamma_base / (epsilon + NLL + alpha · MSE)) or constant (gamma_base).
    use_nll: whether the token's loss enters the adaptive weight.
    activation: of the router's logit in the regulariser. The paper's text allows both; softplus by default.
    mse_reduction: over the features of the two branches' outputs. The paper does not say; mean is ours.
    router_init: random (normal weights, bias 0), or full (weights 0, bias 1: Full's logits at step 0).
    """

    name: ClassVar[str] = "switch"

    window: int = 1024
    threshold: float = 0.5
    gamma: str = "adaptive"
    gamma_base: float = 1e-3
    epsilon: float = 0.1
    alpha: float = 100.0
    use_nll: bool = True
    activation: str = "softplus"
    mse_reduction: str = "mean"
    router_init: str = "random"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_window(self.name, self.window)
        _check_number("threshold", self.threshold, 0.0, 1.0)
        _check_number("gamma_base", self.gamma_base, 0.0)
        _check_number("epsilon", self.epsilon, 0.0, above=True)
        _check_number("alpha", self.alpha, 0.0)
        _check_choice("gamma", self.gamma, GAMMAS)
        _check_choice("activation", self.activation, ACTIVATIONS)
        _check_choice("mse_reduction", self.mse_reduction, REDUCTIONS)
        _check_choice("router_init", self.router_init, ROUTER_INITS)
        if not isinstance(self.use_nll, bool):
            raise BadSetting("mixer switch: use_nll", seen=self.use_nll, allowed="true or false")
        for field in ("threshold", "gamma_base", "epsilon", "alpha"):  # 1 and 1.0 are one identity
            object.__setattr__(self, field, float(getattr(self, field)))

    def num_params(self, scale: Scale) -> int:
        return self.num_projection_weights(scale) + scale.d_model + 1

    def fixed_full_ratio(self, scale: Scale) -> float | None:
        return None

    def weight_shapes(self, scale: Scale) -> dict[str, tuple[int, ...]]:
        return super().weight_shapes(scale) | {"router.weight": (1, scale.d_model), "router.bias": (1,)}

    def flops_per_sequence(
        self, scale: Scale, length: int, *, training: bool = True, full_ratio: float = 1.0
    ) -> int | float:
        weights = matmul_flops(self.num_projection_weights(scale) + scale.d_model, length)
        full = attention_flops(scale.num_heads, scale.head_dim, visible_keys(length))
        windowed = attention_flops(scale.num_heads, scale.head_dim, visible_keys(length, self.window))
        if training:
            return weights + full + windowed
        _check_number("full_ratio", full_ratio, 0.0, 1.0)
        return weights + full_ratio * full + (1 - full_ratio) * windowed

    def state_bytes(self, scale: Scale, context: int, *, bytes_per_element: int = 2) -> int:
        return self.kv_bytes(scale, context, bytes_per_element)

    def build(self, scale: Scale, *, layer_index: int, num_layers: int, norm_eps: float = 1e-5) -> SwitchAttention:
        from gridlaw.modules.mixers.switch.module import SwitchAttention

        return SwitchAttention(self, scale, layer_index=layer_index)


def _check_number(field: str, value: Any, low: float, high: float | None = None, *, above: bool = False) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or value < low or (above and value == low) or (high is not None and value > high) or value != value:
        if high is not None:
            allowed = f"a number from {low:g} to {high:g}"
        else:
            allowed = f"a number {'above' if above else 'of at least'} {low:g}"
        raise BadSetting(f"mixer switch: {field}", seen=value, allowed=allowed)


def _check_choice(field: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise BadSetting(f"mixer switch: {field}", seen=value, allowed=", ".join(choices))
