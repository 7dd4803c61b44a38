"""``scale_by_foam`` and ``foam``: the optimizer as Optax has it."""

from __future__ import annotations

import functools
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from .._handle import defaults
from ..errors import InvalidArgumentError
from . import _calls, _state, _tree
from ._options import Options, read
from ._plan import Leaf, Plan, plan
from ._sharing import Sharing
from ._stacking import stacked, unstacked
from ._state import ScaleByFoamState

__all__ = ["foam", "scale_by_foam"]

_plan = functools.lru_cache(maxsize=256)(plan)


class _Job(NamedTuple):
    """Everything static about a step; hashable."""

    options: Options
    plan: Plan
    #: Which of the plan's leaves have a gradient.
    present: Tuple[bool, ...]
    sharing: Sharing
    #: Weight decay that the library's calls do, or 0.
    stacked_decay: float
    #: Weight decay that is added afterwards, or 0; None if it is traced.
    decay: Optional[float]


def scale_by_foam(
    *,
    preset: Optional[str] = None,
    weight_decay: Any = 0.0,
    weight_decay_mask: Any = None,
    param_options: Optional[_tree.Chooser] = None,
    mesh: Optional[jax.sharding.Mesh] = None,
    axis: Any = None,
    shards: Optional[int] = None,
    **options: Any,
) -> optax.GradientTransformation:
    """FOAM's direction: the gradient, preconditioned; :func:`foam` adds the learning rate.

    A step with a gradient that is not finite gives a zero update and keeps the state; ``skipped`` counts it.

    Args:
        preset: ``"default"``, ``"reference"`` or ``"paper"``, see :func:`foam.defaults`.
        weight_decay: added to the direction as the option ``decoupled_weight_decay`` says; default 0. A traced
            value is fine while it is decoupled and there is no momentum.
        weight_decay_mask: which parameters decay: a tree of booleans, a prefix of one, or a function of the
            parameters that returns one; default: all.
        param_options: a function of a parameter's name and ``jax.ShapeDtypeStruct`` that returns its own
            ``lr_scale``, ``weight_decay_scale``, ``root`` or ``grafting_only`` as a dict, or None.
        mesh: a mesh whose devices share the blocks; default: every device works on all of them.
        axis: the axis of the mesh, or a tuple of axes; without ``mesh`` the axis of a ``shard_map`` that the
            update is called in, and ``shards`` its size.
        shards: see ``axis``.
        **options: the library's options by name, for example ``check_period=20, tau=0.75, policy="foam"``;
            :func:`foam.defaults` lists them. All but ``lr``, ``device`` and ``nonfinite`` apply.
    """
    # optax.inject_hyperparams hands **options back under their name in the signature.
    nested = options.pop("options", None) or {}
    asked = read(preset, {**nested, **options})
    sharing = Sharing.read(mesh, axis, shards)
    decay = _Decay.read(weight_decay, asked)

    def init(params: Any) -> ScaleByFoamState:
        _calls.register()
        settings = asked.here()
        found = _tree.entries(params, "parameter")
        mask = _tree.decay_mask(weight_decay_mask, params, len(found))
        leaves = _tree.leaves_of(found, param_options, mask)
        chosen = _plan(settings, leaves, decay.stacked, sharing.shards)
        traced = any(isinstance(entry.value, jax.core.Tracer) for entry in found)
        return sharing.place(functools.partial(_state.initial, settings, chosen), traced)

    def update(updates: Any, state: Any, params: Any = None) -> Tuple[Any, ScaleByFoamState]:
        _calls.register()
        settings = asked.here()
        if params is None and decay.wanted:
            raise InvalidArgumentError("weight decay needs the parameters: call update(grads, state, params)")
        grads = _tree.entries(updates, "gradient")
        known = grads if params is None else _tree.entries(params, "parameter")
        mask = _tree.decay_mask(weight_decay_mask, updates if params is None else params, len(known))
        leaves = _tree.leaves_of(known, param_options, mask)
        chosen = _plan(settings, leaves, decay.stacked, sharing.shards)
        _state.check(settings, chosen, state, sharing.inside)
        own = _tree.match(grads, known)
        values = [entry.value for entry in known if entry.takes_part] if decay.wanted else None
        present = tuple(grad is not None for grad in own)
        job = _Job(settings, chosen, present, sharing, *decay.parts())
        found, after = _step(job, own, values, state, decay.value if job.decay is None else None)
        directions = dict(zip((leaf.name for leaf in leaves), found))
        flat = [_answer(entry, directions.get(entry.name)) for entry in grads]
        structure = jax.tree.structure(updates, is_leaf=lambda leaf: leaf is None)
        return jax.tree.unflatten(structure, flat), after

    return optax.GradientTransformation(init, update)


def foam(
    learning_rate: Any = 2e-3,
    *,
    preset: Optional[str] = None,
    weight_decay: Any = None,
    weight_decay_mask: Any = None,
    param_options: Optional[_tree.Chooser] = None,
    mesh: Optional[jax.sharding.Mesh] = None,
    axis: Any = None,
    shards: Optional[int] = None,
    **options: Any,
) -> optax.GradientTransformation:
    """FOAM for JAX: an ``optax.GradientTransformation`` with the preset ``default``, unless another is named.

    With the default Adam grafting, AdamW's learning rate carries over.

    Args:
        learning_rate: a number, a traced value or a schedule; default 2e-3.
        weight_decay: default: the preset's, 0 for ``"default"``. The other arguments are those of
            :func:`scale_by_foam`.

    >>> import jax.numpy as jnp, optax
    >>> from foam.jax import foam
    >>> params = {"w": jnp.ones((8, 4))}
    >>> optimizer = foam(learning_rate=2e-3)
    >>> state = optimizer.init(params)
    >>> updates, state = optimizer.update({"w": jnp.ones((8, 4))}, state, params)
    >>> params = optax.apply_updates(params, updates)
    """
    if weight_decay is None:
        weight_decay = float(defaults(preset)["weight_decay"])
    direction = scale_by_foam(
        preset=preset,
        weight_decay=weight_decay,
        weight_decay_mask=weight_decay_mask,
        param_options=param_options,
        mesh=mesh,
        axis=axis,
        shards=shards,
        **options,
    )
    return optax.chain(direction, optax.scale_by_learning_rate(learning_rate))


class _Decay(NamedTuple):
    """Weight decay: its value, and who adds it."""

    value: Any
    wanted: bool
    #: By the library's calls, because it passes through the statistics or the momentum; else here.
    stacked: bool

    @classmethod
    def read(cls, value: Any, options: Options) -> _Decay:
        traced = isinstance(value, (jax.core.Tracer, jax.Array))
        if not traced and not float(value) >= 0:
            raise InvalidArgumentError(f"weight_decay = {value}: expected a number >= 0")
        value = value if traced else float(value)
        wanted = traced or value > 0
        stacked = wanted and (not options.flag("decoupled_weight_decay") or options.number("momentum") > 0)
        if stacked and isinstance(value, jax.core.Tracer):
            raise InvalidArgumentError(
                "weight_decay is traced: with momentum, or coupled, expected a number that is known when the step is "
                "compiled (with optax.inject_hyperparams: static_args=('weight_decay',))"
            )
        return cls(float(value) if stacked else value, wanted, stacked)

    def parts(self) -> Tuple[float, Optional[float]]:
        """The fields of the job: what the calls add, and what is added afterwards."""
        if self.stacked:
            return self.value, 0.0
        return 0.0, self.value if isinstance(self.value, float) else None


def _answer(entry: _tree.Entry, direction: Any) -> Any:
    """The update of a leaf; zeros for one that takes no part."""
    if direction is not None and entry.takes_part:
        return direction.astype(entry.value.dtype)
    if entry.value is None or entry.value.dtype == jax.dtypes.float0 or not entry.value.size:
        return entry.value
    return jnp.zeros_like(entry.value)


@functools.partial(jax.jit, static_argnums=0, inline=True)
def _step(
    job: _Job, grads: Sequence[Any], params: Optional[Sequence[Any]], state: ScaleByFoamState, decay: Any = None
) -> Tuple[List[Any], ScaleByFoamState]:
    """One step: the direction of every leaf of the plan (None without a gradient), and the state afterwards."""
    stacked_params = params if job.stacked_decay else None

    def work(rows: Dict[str, Any], whole: Any) -> Any:
        grads, params = whole
        every = {stack.key: stacked(job.plan, stack, grads) for stack in job.plan.stacks}
        finite, active = _inspect(job, every)
        own = job.sharing.own
        parts = [
            _calls.Part(
                _calls.Settings.of(job.options, stack, job.stacked_decay),
                rows[stack.key],
                own(every[stack.key]),
                None if params is None else own(stacked(job.plan, stack, params, stack.work)),
                own(active[stack.key]),
            )
            for stack in job.plan.stacks
        ]
        found = _calls.steps(parts)
        after = {stack.key: state for stack, (state, _) in zip(job.plan.stacks, found)}
        return after, ([job.sharing.all(update) for _, update in found], finite)

    after, (updates, finite) = job.sharing.spread(work)(state.stacks, (grads, stacked_params))
    directions = unstacked(job.plan, updates, state.count)
    for place, leaf in enumerate(job.plan.leaves):
        if job.present[place]:
            directions[place] = _finished(job, leaf, directions[place], params and params[place], finite, decay)
        else:
            directions[place] = None
    count, skipped = _raised(state.count, finite), _raised(state.skipped, ~finite)
    return directions, ScaleByFoamState(count, skipped, after, state.layout)


def _raised(count: Any, by_one: Any) -> Any:
    """A counter that stops at the largest number."""
    return jnp.where(by_one & (count < jnp.iinfo(count.dtype).max), count + 1, count)


def _finished(job: _Job, leaf: Leaf, direction: Any, param: Any, finite: Any, decay: Any) -> Any:
    """A leaf's direction with decoupled weight decay, if the step is taken, and with its own learning rate."""
    factor = (decay if job.decay is None else job.decay) * leaf.own.weight_decay_scale
    if job.decay is None or factor:
        factor = jnp.where(finite, jnp.asarray(factor, leaf.work), 0)
        direction = direction + factor * param.astype(leaf.work)
    return direction if leaf.own.lr_scale == 1.0 else direction * np.dtype(leaf.work).type(leaf.own.lr_scale)


def _inspect(job: _Job, grads: Dict[str, Any]) -> Tuple[Any, Dict[str, Any]]:
    """Whether the whole step may be taken, and which blocks of each stack take part.

    The engine's own test: a block's sum of squares must leave room in its precision. In a step that is not taken only
    the blocks that are to blame go to the library, which leaves them alone and says so in ``info``.
    """
    norms, limits = {}, []
    narrow = job.options.text("statistic_dtype") == "f32"
    for stack in job.plan.stacks:
        squares = jnp.square(grads[stack.key].astype(stack.work))
        norms[stack.key] = jnp.sum(squares, axis=tuple(range(1, squares.ndim)))
        limits.append(jnp.finfo(jnp.float32 if narrow else stack.work).max / 32)
    fits = [norms[stack.key] < most for stack, most in zip(job.plan.stacks, limits)]
    # A sort cannot be fused: a reduction would be done again, over all stacks, in every kernel that needs its result.
    finite = jax.lax.sort(jnp.concatenate(fits))[0] if fits else jnp.bool_(True)
    active = {}
    for stack in job.plan.stacks:
        present = np.array([block is not None and job.present[block.leaf] for block in stack.rows])
        active[stack.key] = ((finite | ~jnp.isfinite(norms[stack.key])) & present).astype(jnp.int32)
    return finite, active
