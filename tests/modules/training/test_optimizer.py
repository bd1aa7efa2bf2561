"""Who is in which group, and that the one object does what torch's two optimizers do."""

from __future__ import annotations

import copy

import pytest
import torch

from gridlaw.modules.catalog import model_config, resolve_architecture, resolve_scale
from gridlaw.modules.models.decoder import DecoderLM
from gridlaw.modules.training.optimizer import build_optimizer, hidden_matrices, parameter_groups, set_rate
from gridlaw.modules.training.settings import OptimizerSettings

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
FFN = ("gate_proj", "up_proj", "down_proj")
# Per architecture: its layers, in order. Per mixer: Muon's matrices, other matrices, and vectors.
ARCHITECTURES = {
    "full": ["full"],
    "swa-128": ["swa", "full"],
    "swa-128-headwise": ["headwise"],
    "lightning": ["lightning", "full"],
    "mamba2": ["mamba2", "full"],
    "gdn": ["gdn", "full"],
    "gdn-conv": ["gdn-conv", "full"],
    "swiattn": ["switch"],
    "duo": ["duo"],
}
ATTENTION_WITH_SINK = (ATTENTION, (), ("sink",))
GDN_VECTORS = ("A_log", "dt_bias", "norm")
MIXERS = {
    "full": ATTENTION_WITH_SINK,
    "swa": ATTENTION_WITH_SINK,
    "headwise": ATTENTION_WITH_SINK,
    "lightning": (ATTENTION, ("gate_down.weight", "gate_up.weight"), ()),
    "mamba2": (
        ("z_proj", "x_proj", "B_proj", "C_proj", "o_proj"),
        ("dt_proj.weight",),
        ("A_log", "D", "dt_bias", "norm"),
    ),
    "gdn": ((*ATTENTION, "g_proj"), ("a_proj.weight", "b_proj.weight"), GDN_VECTORS),
    "gdn-conv": ((*ATTENTION, "g_proj"), ("a_proj.weight", "b_proj.weight", "conv"), GDN_VECTORS),
    "switch": (ATTENTION, ("router.weight",), ("router.bias", "sink")),
    "duo": (ATTENTION, (), ("gate", "sink")),
}


def build(architecture: str, scale: str = "n1") -> DecoderLM:
    config = model_config(resolve_architecture(architecture), resolve_scale(scale), vocab_size=257, context=64)
    return DecoderLM(config).initialise(0)


@pytest.mark.parametrize("architecture", list(ARCHITECTURES))
def test_every_parameter_of_an_architecture_is_in_the_listed_group(architecture: str):
    hidden, rest_decay, rest = set(), {"embedding.weight", "head.weight"}, {"final_norm.weight"}
    layers = ARCHITECTURES[architecture]
    for index in range(2):
        muons, matrices, vectors = MIXERS[layers[index % len(layers)]]
        prefix = f"layers.{index}."
        hidden |= {f"{prefix}mixer.{name}.weight" for name in muons} | {f"{prefix}ffn.{name}.weight" for name in FFN}
        rest_decay |= {f"{prefix}mixer.{name}" for name in matrices}
        rest |= {f"{prefix}mixer.{name}" for name in vectors} | {
            f"{prefix}{name}_norm.weight" for name in ("mixer", "ffn")
        }
    groups = {name: set(members) for name, members in parameter_groups(build(architecture)).items()}
    assert groups == {"hidden": hidden, "rest_decay": rest_decay, "rest": rest}


def test_no_matrix_of_muon_is_a_vector_or_outside_the_layers():
    model = build("swa-128")
    parameters = dict(model.named_parameters())
    for name in hidden_matrices(model):
        assert parameters[name].ndim == 2
        assert name.startswith("layers.")


def quadratic_loss(model: DecoderLM, step: int) -> torch.Tensor:
    tokens = torch.randint(257, (2, 16), generator=torch.Generator().manual_seed(step))
    return model(tokens).square().mean()


def test_the_one_optimizer_does_what_torchs_two_do_also_after_loading_its_state():
    settings = OptimizerSettings(name="muon", lr=0.01, rest_lr=0.003, weight_decay=0.2)
    one, two = build("full"), build("full")
    combined = build_optimizer(one, settings)
    groups, parameters = parameter_groups(two), dict(two.named_parameters())
    muon = torch.optim.Muon(
        [parameters[name] for name in groups["hidden"]], lr=0.01, weight_decay=0.2, adjust_lr_fn="match_rms_adamw"
    )
    adamw = torch.optim.AdamW(
        [
            {"params": [parameters[name] for name in groups["rest_decay"]], "weight_decay": 0.2},
            {"params": [parameters[name] for name in groups["rest"]], "weight_decay": 0.0},
        ],
        lr=0.003,
        betas=(0.9, 0.95),
    )
    for step in range(6):
        if step == 3:
            one = copy.deepcopy(one)
            state = combined.state_dict()
            combined = build_optimizer(one, settings)
            combined.load_state_dict(state)
        for model, optimizers in ((one, (combined,)), (two, (muon, adamw))):
            for optimizer in optimizers:
                optimizer.zero_grad()
            quadratic_loss(model, step).backward()
            for optimizer in optimizers:
                optimizer.step()
    for name, parameter in one.named_parameters():
        assert torch.equal(parameter, parameters[name]), name


def test_rates_come_from_the_settings_and_not_from_the_loaded_groups():
    model = build("full")
    optimizer = build_optimizer(model, OptimizerSettings(name="muon", lr=0.01, rest_lr=0.004))
    for group in optimizer.param_groups:
        group["lr"], group["weight_decay"] = 77.0, 77.0
    rate = set_rate(optimizer, OptimizerSettings(name="muon", lr=0.01, rest_lr=0.004, weight_decay=0.3), 0.5)
    seen = {group["group_name"]: (group["lr"], group["weight_decay"]) for group in optimizer.param_groups}
    assert rate == 0.005
    assert seen == {"hidden": (0.005, 0.3), "rest_decay": (0.002, 0.3), "rest": (0.002, 0.0)}
