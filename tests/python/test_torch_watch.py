"""The statistics of a run reach the tools that draw them."""

import sys
import types

import jax
import jax.numpy as jnp
import pytest

import foam
import foam.watch
from foam.torch import FOAM
from models import OPTIONS, network, train
from problem import arrays, gradients


@pytest.fixture
def trained():
    model = network()
    optimizer = FOAM(model, **OPTIONS)
    train(model, optimizer, range(7))
    return optimizer


class Writer:
    """What TensorBoard's writers have."""

    def __init__(self):
        self.written = {}

    def add_scalar(self, tag, value, global_step):
        self.written[tag] = (value, global_step)


class Run:
    """What a run of Weights & Biases has."""

    def __init__(self):
        self.logged = []

    def log(self, values, **options):
        self.logged.append((values, options))


def test_scalars_are_the_statistics(trained):
    found, stats, factors = foam.watch.scalars(trained), trained.stats(), trained.factor_stats()
    assert found["foam/steps"] == 7 and found["foam/evd_rate"] == stats["evd_rate"] > 0
    assert found["foam/seconds/refresh"] == pytest.approx(stats["seconds_refresh"] / 7)
    assert found["foam/epsilon/largest"] == max(factor["epsilon"] for factor in factors)
    assert all(isinstance(value, float) and value == value for value in found.values())
    assert not any("0.weight" in name for name in found)
    each = foam.watch.scalars(trained, per_factor=True)
    for factor in factors:
        assert each[f"foam/{factor['param']}/{factor['block']}/{factor['axis']}/epsilon"] == factor["epsilon"]


def test_values_that_do_not_exist_yet_are_left_out():
    optimizer = FOAM(network(), **OPTIONS)
    found = foam.watch.scalars(optimizer, per_factor=True)
    assert found["foam/evd_rate"] == 0 and "foam/gap_bound/largest" not in found
    assert all(value == value for value in found.values())


def test_numpy_and_jax_runs_have_them_too():
    with foam.Optimizer(arrays(), max_factor_dim=40, check_period=2) as optimizer:
        for grad in gradients(4):
            optimizer.step(grad)
        assert foam.watch.scalars(optimizer)["foam/checks"] == optimizer.stats()["checks"] > 0
    from foam.jax import foam as transform
    from foam.jax import foam_stats

    params = {"w": jnp.ones((6, 5))}
    optimizer = transform(learning_rate=1e-2, check_period=2)
    state = optimizer.init(params)
    for step in range(4):
        _, state = optimizer.update({"w": jax.random.normal(jax.random.key(step), (6, 5))}, state, params)
    stats = foam_stats(state)
    assert foam.watch.scalars(stats)["foam/evd_calls"] == stats["evd_calls"] > 0
    with pytest.raises(foam.InvalidArgumentError, match="a int: expected a foam.Optimizer"):
        foam.watch.scalars(3)


def test_tensorboard_gets_every_scalar_at_its_step(trained):
    writer = Writer()
    foam.watch.tensorboard(writer, trained)
    assert {name: value for name, (value, _) in writer.written.items()} == foam.watch.scalars(trained)
    assert {step for _, step in writer.written.values()} == {7}
    foam.watch.tensorboard(writer, trained, step=70)
    assert {step for _, step in writer.written.values()} == {70}


def test_weights_and_biases_gets_one_record(trained, monkeypatch):
    run = Run()
    foam.watch.wandb(trained, run=run)
    assert run.logged == [(foam.watch.scalars(trained), {})]
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(run=run))
    foam.watch.wandb(trained, step=12)
    assert run.logged[1] == (foam.watch.scalars(trained), {"step": 12})
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(run=None))
    with pytest.raises(foam.InvalidArgumentError, match=r"no run .* is active: expected wandb\.init\(\)"):
        foam.watch.wandb(trained)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(foam.InvalidArgumentError, match="pip install wandb"):
        foam.watch.wandb(trained)


def test_lightnings_callback_logs_to_all_loggers_every_so_often(trained, monkeypatch):
    package = types.ModuleType("lightning.pytorch")
    package.Callback = type("Callback", (), {})
    monkeypatch.setitem(sys.modules, "lightning", types.ModuleType("lightning"))
    monkeypatch.setitem(sys.modules, "lightning.pytorch", package)
    callback = foam.watch.lightning_callback(every=2)
    assert isinstance(callback, package.Callback)
    logged = []
    logger = types.SimpleNamespace(log_metrics=lambda values, step: logged.append((values, step)))
    for step in range(1, 7):
        trainer = types.SimpleNamespace(global_step=step, optimizers=[trained, object()], loggers=[logger, logger])
        callback.on_train_batch_end(trainer, None, None, None, 0)
    assert [step for _, step in logged] == [2, 2, 4, 4, 6, 6]
    assert all(values == foam.watch.scalars(trained) for values, _ in logged)
    with pytest.raises(foam.InvalidArgumentError, match="every = 0"):
        foam.watch.lightning_callback(every=0)
    for name in ("lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(foam.InvalidArgumentError, match="pip install lightning"):
        foam.watch.lightning_callback()
