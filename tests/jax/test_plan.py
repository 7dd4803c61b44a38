"""Blocks are cut as the engine cuts them, and shared so that no device has much more to do than another."""

import jax.numpy as jnp
import pytest

import foam as package
from foam.jax import foam, foam_stats
from foam.jax._options import ParamOptions, read
from foam.jax._plan import Leaf, cost, loads, plan
from support import Engine

SHAPES = [(), (1,), (7,), (1, 1), (6, 4), (40, 3), (33, 65), (4, 5, 6), (8, 4, 3, 3), (3, 1, 50), (100,)]


@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("limit", [5, 16, 32, 1024])
def test_blocks_are_the_engines(merge, limit):
    params = {f"p{number:02}": jnp.ones(shape) for number, shape in enumerate(SHAPES)}
    options = dict(max_factor_dim=limit, merge_dims=merge, num_threads=1)
    engine = Engine(params, 0.1, **options)
    ours = foam_stats(foam(**options).init(params))["factors"]
    fields = ("param", "block", "axis", "dim", "root", "epsilon_base", "epsilon")
    theirs = engine.optimizer.factor_stats()
    assert [tuple(factor[field] for field in fields) for factor in ours] == [
        tuple(factor[field] for field in fields) for factor in theirs
    ]


def leaves(*shapes):
    return tuple(Leaf(str(number), shape, "float32", ParamOptions()) for number, shape in enumerate(shapes))


def test_equal_blocks_share_a_stack():
    options = read(None, dict(max_factor_dim=64, merge_dims=False))
    chosen = plan(options, leaves(*[(64, 64)] * 10, (128, 128), (64, 32), (64,)), False)
    assert {stack.key: len(stack.rows) for stack in chosen.stacks} == {
        "64x64_float32_root2": 14,
        "64x32_float32_root2": 1,
        "64_float32_root2": 1,
    }


@pytest.mark.parametrize("shards", [2, 3, 8])
def test_shards_are_balanced_and_every_block_has_one_row(shards):
    options = read(None, dict(max_factor_dim=256, merge_dims=False))
    shapes = [(256, 256)] * 13 + [(256, 64)] * 5 + [(1000, 300)] * 3 + [(256,)] * 12 + [(7, 9), (64, 64)]
    chosen = plan(options, leaves(*shapes), False, shards)
    blocks = [block for stack in chosen.stacks for block in stack.rows if block]
    assert len(blocks) == len({(block.leaf, block.number) for block in blocks})
    assert len(blocks) == sum(len(stack.rows) for stack in plan(options, leaves(*shapes), False).stacks)
    assert all(len(stack.rows) % shards == 0 for stack in chosen.stacks)
    totals = loads(chosen)
    # Whole blocks are dealt: nobody is behind by more than the dearest one.
    assert max(totals) - min(totals) <= cost((256, 256), True)
    assert chosen == plan(options, leaves(*shapes), False, shards), "deterministic"


def test_grafting_only_needs_a_grafting():
    with pytest.raises(package.InvalidArgumentError, match="parameter 'w' is grafting-only but grafting = none"):
        optimizer = foam(
            preset="reference", grafting="none", param_options=lambda name, kind: {"grafting_only": True}
        )
        optimizer.init({"w": jnp.ones((2, 2))})
