"""From a grid file to its plan: points grouped into trunks, with identities, budgets in whole steps, FLOPs and tokens.

Resolves names against the catalog and checks everything that can be known without training. Torch-free; starts nothing,
tokenises nothing, and asks the ledger for nothing but points of other experiments that a stage starts from
(``pipelines.bases``): what is done already is ``pipelines.grid.state``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from gridlaw.modules import catalog
from gridlaw.modules.data.absent import allow_absent
from gridlaw.modules.mixers.base import MixerSpec
from gridlaw.modules.models.rope_settings import resolve_rope, rope_warning
from gridlaw.modules.scale import Scale
from gridlaw.modules.training.schedule import BranchPlan, branch_plan
from gridlaw.modules.training.settings import TrainingSettings
from gridlaw.pipelines.bases import Base, Bases
from gridlaw.pipelines.data_plans import DataPlan, DataPlans
from gridlaw.pipelines.evaluations.registry import Evaluation, resolve_evaluations
from gridlaw.pipelines.evaluations.sources import ExamplesPlan, FindPoint, plan_examples, with_sources
from gridlaw.pipelines.laws.forms import get_form
from gridlaw.pipelines.objectives import check_objective
from gridlaw.platform import identity
from gridlaw.platform.errors import BadInput
from gridlaw.platform.spec.blocks import PointId
from gridlaw.platform.spec.grid import GridSpec
from gridlaw.platform.spec.problems import listed
from gridlaw.platform.spec.sections import LawSection
from gridlaw.platform.spec.selection import Parts, UnknownPart, matches

TRAINING_FACTOR = 3
"""Training costs three forward passes (PAPERS: recomputation not counted)."""
_NO_BRANCH = BranchPlan(total_steps=0, trunk_steps=0, decay_start_step=0, decay_steps=0)


@dataclass(frozen=True, kw_only=True)
class PointPlan:
    """One point. total_steps, tokens: D in whole optimizer steps and the tokens they see. trunk_steps: the trunk step
    that its decay starts from (0: it shares nothing). train_flops: of training it alone. epochs: how often it goes
    through the training text, where that is known.
    """

    id: PointId
    trunk: str
    total_steps: int
    trunk_steps: int
    decay_start_step: int
    decay_steps: int
    tokens: int
    train_flops: float
    epochs: float | None
    identity: dict[str, Any]
    fingerprint: str

    @property
    def name(self) -> str:
        return self.id.name

    @property
    def is_trained(self) -> bool:
        """False for a budget of 0: the base's weights under the point's architecture."""
        return self.total_steps > 0


@dataclass(frozen=True, kw_only=True)
class TrunkPlan:
    """The stable-rate run of one (stage, architecture, scale, seed), which serves the branches of its points.

    base: the weights that it starts from, None for a fresh start. measured: the data whose held-out text its points are
    evaluated on, mostly its own. num_params: N of Full; num_params_own: the
    architecture's. flops_per_token: of training (3 × forward). points: by their steps. identity, fingerprint: empty
    under a cosine schedule, where nothing is shared and no trunk is trained.
    """

    name: str
    stage: str | None
    architecture: str
    scale: str
    seed: int
    base: Base | None
    data: DataPlan
    measured: DataPlan
    context: int
    model: dict[str, Any]
    training: dict[str, Any]
    batch_tokens: int
    num_params: int
    num_params_own: int
    num_params_total: int
    flops_per_token: float
    identity: dict[str, Any]
    fingerprint: str
    points: tuple[PointPlan, ...]

    @property
    def branch_steps(self) -> tuple[int, ...]:
        """Steps at which a branch starts, ascending; the trunk has to reach the last one."""
        return tuple(sorted({point.trunk_steps for point in self.points if point.trunk_steps > 0}))

    @property
    def tokens_shared(self) -> int:
        """Tokens of the trunk and all decays together."""
        steps = max(self.branch_steps, default=0) + sum(point.total_steps - point.trunk_steps for point in self.points)
        return steps * self.batch_tokens


@dataclass(frozen=True, kw_only=True)
class LawPlan:
    """One law of the file with one form: ``roles`` says what it does with every point's name (fit, verify, exclude)."""

    name: str
    target: str
    form: str
    roles: Mapping[str, str]

    @property
    def metric(self) -> str:
        return self.target.removeprefix("log:")


@dataclass(frozen=True, kw_only=True)
class GridPlan:
    """The whole plan. warnings: sentences for people."""

    spec: GridSpec
    trunks: tuple[TrunkPlan, ...]
    evaluations: tuple[Evaluation, ...]
    laws: tuple[LawPlan, ...]
    warnings: tuple[str, ...]
    absent: tuple[tuple[str, str], ...] = ()
    """(field, path or glob) of files that are not there, where ``make_plan`` was told to go on without them."""

    @cached_property
    def points(self) -> tuple[PointPlan, ...]:
        return tuple(point for trunk in self.trunks for point in trunk.points)

    @property
    def data(self) -> dict[str, DataPlan]:
        """Prepared data by folder."""
        return {data.folder: data for trunk in self.trunks for data in (trunk.data, trunk.measured)}

    @cached_property
    def _trunk_by_name(self) -> dict[str, TrunkPlan]:
        return {trunk.name: trunk for trunk in self.trunks}

    def trunk_of(self, point: PointPlan) -> TrunkPlan:
        return self._trunk_by_name[point.trunk]

    def evaluation_fingerprint(self, point: PointPlan, evaluation: Evaluation) -> str:
        known, key = self._evaluation_fingerprints, (point.fingerprint, point.name, evaluation.name)
        if key not in known:
            known[key] = identity.fingerprint(self.evaluation_identity(point, evaluation))
        return known[key]

    @cached_property
    def _evaluation_fingerprints(self) -> dict[tuple[str, str, str], str]:
        """Asked for again with every refit."""
        return {}

    def evaluation_identity(self, point: PointPlan, evaluation: Evaluation) -> dict[str, Any]:
        """Point + the evaluation's settings + its corpus, if that is another than the point's own held-out text."""
        trunk = self.trunk_of(point)
        corpus = {"heldout": trunk.measured.declaration} if trunk.measured != trunk.data else None
        return identity.evaluation_identity(
            point.identity,
            name=evaluation.name,
            settings=evaluation.settings_dict(),
            corpus=evaluation.corpus.identity if evaluation.corpus is not None else corpus,
        )

    def find_point(self, name: str) -> tuple[str, str, int]:
        """The one point that has all parts of ``name``: (name, fingerprint, context); ValueError says why none has."""
        return _point_finder(self.trunks)(name)

    def examples(self, trunk: TrunkPlan, evaluation: Evaluation) -> ExamplesPlan | None:
        """What an evaluation asks all points of a trunk, if that is made before."""
        return plan_examples(
            evaluation,
            data=trunk.measured.folder,
            tokenizer=trunk.measured.declaration["tokenizer"],
            context=trunk.context,
        )

    def all_examples(self) -> list[ExamplesPlan]:
        """What its evaluations ask, each once."""
        every = (self.examples(trunk, evaluation) for trunk in self.trunks for evaluation in self.evaluations)
        return list({each.fingerprint: each for each in every if each is not None}.values())


def make_plan_without_files(spec: GridSpec) -> GridPlan:
    """``make_plan`` where files that the grid names may be missing: they stand in ``absent``.

    With any missing, fingerprints are not those of a run, so they are never compared with the ledger; a vocabulary that
    a missing tokenizer would give is taken to be the papers'.
    """
    with allow_absent() as absent:
        plan = make_plan(spec)
    return replace(plan, absent=tuple(absent))


def make_plan(spec: GridSpec) -> GridPlan:
    """Resolve a grid file. ``BadInput`` (or ``BadSetting``) for everything that cannot be trained."""
    warnings: list[str] = []
    data, bases = DataPlans(spec), Bases(spec)
    trunks: dict[str, TrunkPlan] = {}
    grouped: dict[str, list[PointId]] = {}
    for point in spec.points():
        grouped.setdefault(point.trunk_name, []).append(point)
    for name, ids in grouped.items():
        trunks[name] = _plan_trunk(spec, name, ids, data, bases, trunks, warnings)
    evaluations = _plan_evaluations(spec, trunks.values(), warnings)
    laws = _plan_laws(spec, evaluations)
    return GridPlan(
        spec=spec,
        trunks=tuple(trunks.values()),
        evaluations=evaluations,
        laws=laws,
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _plan_trunk(
    spec: GridSpec,
    name: str,
    ids: Sequence[PointId],
    data_plans: DataPlans,
    bases: Bases,
    earlier: Mapping[str, TrunkPlan],
    warnings: list[str],
) -> TrunkPlan:
    first = ids[0]
    data, measured = data_plans.of(first.stage), data_plans.measured(first.stage)
    context = int(data.declaration["context"])
    architecture = catalog.resolve_architecture(spec.architecture_for(first.architecture))
    scale = catalog.resolve_scale(spec.scale_for(first.scale))
    layers = architecture.layers(scale)
    warnings.extend(_check_windows(first.architecture, layers, context))
    settings = TrainingSettings.from_dict(spec.training_for(first.architecture, first.stage), scale=scale)
    if not all(point.budget.is_zero for point in ids):
        settings.check_context(context)
    has_parent = spec.source_of(first.stage) is not None
    warnings.extend(
        check_objective(first.architecture, layers, scale, settings, data=data.declaration, has_parent=has_parent)
    )
    base = bases.of(first, earlier)
    start = base.config if base is not None else None
    rope = resolve_rope(spec.rope_for(first.stage), context=context, start=start)
    model = catalog.model_config(
        architecture,
        scale,
        vocab_size=_vocab_size(data, scale),
        context=context,
        rope_base=rope.base,
        rope_scaling=rope.scaling,
    )
    if warning := rope_warning(model, start):
        warnings.append(f"stage {first.stage}: {warning}" if first.stage else warning)
    base = base.fitted(first, model) if base is not None else None
    num_params = catalog.full_num_params(scale)
    counts = catalog.describe(architecture, scale, vocab_size=model.vocab_size, context=context)
    flops = TRAINING_FACTOR * catalog.flops_per_token(model, context)
    whole_training, whole_model = settings.to_dict(), model.to_dict()
    shares = identity.shares_trunk(whole_training)
    parent = base.fingerprint if base is not None else None

    def trunk_identity(training: Mapping[str, Any] | None, budget_tokens: int | None = None) -> dict[str, Any]:
        return identity.trunk_identity(
            model=whole_model, data=data.declaration, training=training, seed=first.seed, parent=parent,
            budget_tokens=budget_tokens,
        )  # fmt: skip

    stable = trunk_identity(whole_training) if shares else {}

    def plan_point(point: PointId) -> PointPlan:
        steps = point.budget.num_steps(num_params, settings.batch_tokens)
        tokens = steps * settings.batch_tokens
        branch = branch_plan(steps, settings.schedule) if steps else _NO_BRANCH
        training = whole_training if steps else None
        trunk = stable if steps and shares else trunk_identity(training, tokens if steps else None)
        point_identity = identity.point_identity(trunk, budget_tokens=tokens, training=training)
        return PointPlan(
            id=point,
            trunk=name,
            total_steps=steps,
            trunk_steps=branch.trunk_steps,
            decay_start_step=branch.decay_start_step,
            decay_steps=branch.decay_steps,
            tokens=tokens,
            train_flops=flops * tokens,
            epochs=data.epochs(tokens),
            identity=point_identity,
            fingerprint=identity.fingerprint(point_identity),
        )

    points = [plan_point(point) for point in ids]
    _check_equal_steps(points, num_params)
    return TrunkPlan(
        name=name,
        stage=first.stage,
        architecture=first.architecture,
        scale=first.scale,
        seed=first.seed,
        base=base,
        data=data,
        measured=measured,
        context=context,
        model=whole_model,
        training=whole_training,
        batch_tokens=settings.batch_tokens,
        num_params=num_params,
        num_params_own=counts.num_params_non_embedding,
        num_params_total=counts.num_params_total,
        flops_per_token=flops,
        identity=stable,
        fingerprint=identity.fingerprint(stable) if shares else "",
        points=tuple(sorted(points, key=lambda point: point.total_steps)),
    )


def _vocab_size(data: DataPlan, scale: Scale) -> int:
    if "absent" in data.declaration["tokenizer"]:
        return catalog.paper_vocab_size(scale)
    return int(data.declaration["vocab_size"])


def _check_windows(architecture: str, layers: Sequence[MixerSpec], context: int) -> list[str]:
    """A window beyond the context would be full attention under another name; equal to it, that is said."""
    windows = {window for layer in layers if (window := getattr(layer, "window", None)) is not None}
    for window in sorted(windows):
        if window > context:
            raise BadInput(
                f"architectures: {architecture}: window",
                seen=window,
                allowed=f"at most data.context = {context} tokens",
                hint="Take a smaller window, as in swa-64, or a longer context",
            )
    if context in windows:
        return [
            f"{architecture}: its window equals the context ({context} tokens), so it sees what full attention sees"
        ]
    return []


def _check_equal_steps(points: Sequence[PointPlan], num_params: int) -> None:
    seen: dict[int, PointPlan] = {}
    for point in points:
        other = seen.setdefault(point.total_steps, point)
        if other is not point:
            raise BadInput(
                f"budgets of {point.trunk}",
                seen=f"{other.id.budget.label} and {point.id.budget.label}",
                allowed="budgets that differ by at least one optimizer step",
                hint=f"both are {point.total_steps} steps at N = {num_params:,}: remove one, or lower batch_tokens",
            )


def _point_finder(trunks: Iterable[TrunkPlan]) -> FindPoint:
    points = {point.id: (point, trunk) for trunk in trunks for point in trunk.points}
    parts = Parts.of(points)

    def find_point(name: str) -> tuple[str, str, int]:
        try:
            found = [both for each, both in points.items() if matches(name, each, parts)]
        except UnknownPart as error:
            raise ValueError(f"{error.hint or 'No point has this name'}; {error.allowed}") from None
        if len(found) != 1:
            names = listed([point.name for point, _ in found])
            raise ValueError(
                f"It is the name of {names}: add the part that tells them apart" if found else "No point is both"
            )
        point, trunk = found[0]
        return point.name, point.fingerprint, trunk.context

    return find_point


def _plan_evaluations(spec: GridSpec, trunks: Iterable[TrunkPlan], warnings: list[str]) -> tuple[Evaluation, ...]:
    trunks = list(trunks)
    find_point, evaluations = _point_finder(trunks), []
    for each in resolve_evaluations([{entry.name: entry.settings} for entry in spec.evaluate]):
        for context in sorted({trunk.context for trunk in trunks}):
            each.settings.check_context(context)
        evaluation = with_sources(each, base_folder=spec.base_folder, find_point=find_point)
        warnings.extend(evaluation.warnings())
        evaluations.append(evaluation)
    return tuple(evaluations)


def _plan_laws(spec: GridSpec, evaluations: Sequence[Evaluation]) -> tuple[LawPlan, ...]:
    metrics = [metric for evaluation in evaluations for metric in evaluation.kind.metrics]
    laws = []
    for section in spec.laws:
        metric = section.target.removeprefix("log:")
        if metric not in metrics:
            raise BadInput(
                "laws: target",
                seen=section.target,
                allowed=f"a metric of this grid's evaluations: {', '.join(metrics)}, or log: and one of them",
                hint="add the evaluation that measures it to evaluate:",
            )
        roles = {point.name: role for point, role in spec.roles(section).items() if role is not None}
        for form in section.form:
            law = LawPlan(name=section.label, target=section.target, form=form, roles=roles)
            _check_enough_points(section, law, spec.points())
            laws.append(law)
    return tuple(laws)


def _check_enough_points(section: LawSection, law: LawPlan, points: Sequence[PointId]) -> None:
    """Too few points for a form is known before anything is trained."""
    needed = get_form(law.form).num_parameters
    fitted: dict[str, list[PointId]] = {}
    for point in points:
        fitted.setdefault(point.architecture, [])
        if law.roles.get(point.name) == "fit":
            fitted[point.architecture].append(point)
    if all(len(own) < needed for own in fitted.values()):
        most = max((len(own) for own in fitted.values()), default=0)
        raise BadInput(
            f"laws: {section.label}",
            seen=f"{most} points to fit per architecture",
            allowed=f"at least {needed}, the parameters of form {law.form}",
            hint="add scales or budgets, or remove the law",
        )


def summary_costs(plan: GridPlan) -> dict[str, float]:
    """Totals of a plan: tokens and FLOPs with trunks shared, and had every point been trained alone."""
    shared = sum(trunk.tokens_shared for trunk in plan.trunks)
    alone = sum(point.tokens for point in plan.points)
    return {
        "points": len(plan.points),
        "trunks": len(plan.trunks),
        "tokens": shared,
        "tokens_without_sharing": alone,
        "flops": sum(trunk.tokens_shared * trunk.flops_per_token for trunk in plan.trunks),
        "flops_without_sharing": sum(point.train_flops for point in plan.points),
    }


def grids_folder() -> Path:
    """Where the shipped grid files lie."""
    return Path(__file__).resolve().parent / "grids"
