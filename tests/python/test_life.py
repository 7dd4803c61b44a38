"""The life of an optimizer: closing, logging, panics, threads, forks."""

import logging
import multiprocessing
import pickle
import threading

import numpy as np
import pytest

import foam
from problem import OPTIONS, arrays, bits, gradients, run


def test_a_closed_optimizer_says_so():
    optimizer = foam.Optimizer(arrays())
    with optimizer as same:
        assert same is optimizer and not optimizer.closed
    optimizer.close()
    assert optimizer.closed and "closed" in repr(optimizer)
    with pytest.raises(foam.InvalidArgumentError, match="closed"):
        optimizer.step(gradients(1)[0])
    with pytest.raises(foam.InvalidArgumentError, match="closed"):
        optimizer.stats()


def test_what_the_library_says_goes_to_the_logger(caplog):
    with caplog.at_level(logging.INFO, logger="foam"):
        run(arrays(), gradients(4), inject_fault="evd_chosen")
    assert caplog.records and all(record.name == "foam" for record in caplog.records)
    assert any(record.levelno == logging.WARNING for record in caplog.records)


def test_a_panic_is_typed_and_poisons(capfd):
    grad = gradients(1)[0]
    with foam.Optimizer(arrays(), inject_fault="panic") as optimizer:
        with pytest.raises(foam.PanicError):
            optimizer.step(grad)
        with pytest.raises(foam.PoisonedError):
            optimizer.step(grad)
        assert optimizer.stats()["params"] == 2
    capfd.readouterr()


def test_an_overlapping_call_is_busy():
    entered, leave, caught = threading.Event(), threading.Event(), []

    class Handler(logging.Handler):
        def emit(self, record):
            entered.set()
            assert leave.wait(60)

    logger, handler = logging.getLogger("foam"), Handler()
    logger.addHandler(handler)
    try:
        with foam.Optimizer(arrays(), max_factor_dim=40, inject_fault="evd_chosen", **OPTIONS) as optimizer:
            grads = gradients(3)
            worker = threading.Thread(target=lambda: [optimizer.step(grad) for grad in grads])
            worker.start()
            # The worker is inside a step, in the log callback, until it is told to leave.
            assert entered.wait(60)
            try:
                optimizer.stats()
            except foam.FoamError as error:
                caught.append(error)
            leave.set()
            worker.join()
            assert optimizer.stats()["steps"] == 3
    finally:
        logger.removeHandler(handler)
    assert [type(error) for error in caught] == [foam.BusyError]


def _in_child(optimizer, weights, grad, queue):
    optimizer.step(grad)
    optimizer.close()
    queue.put(bits(weights))


def test_a_child_forked_after_a_step_goes_on_with_threads_of_its_own():
    context = multiprocessing.get_context("fork")
    weights, grad = {"matrix": np.ones((400, 300), "f4")}, {"matrix": np.full((400, 300), 0.1, "f4")}
    with foam.Optimizer(weights, num_threads=2, check_period=1) as optimizer:
        optimizer.step(grad)
        queue = context.Queue()
        child = context.Process(target=_in_child, args=(optimizer, weights, grad, queue), daemon=True)
        child.start()
        in_child = queue.get(timeout=60)
        child.join(60)
        assert child.exitcode == 0
        optimizer.step(grad)
    assert bits(weights) == in_child


def test_errors_survive_pickling():
    error = foam.ShapeMismatchError("parameter 'w': wrong", param_index=2, axis=1, native_code=5)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.code, copy.param_index, copy.axis, copy.native_code) == (
        foam.ShapeMismatchError,
        "parameter 'w': wrong",
        3,
        2,
        1,
        5,
    )
    assert isinstance(copy, ValueError)
