"""The life of an optimizer: closing, logging, panics, threads, forks."""

import logging
import multiprocessing
import pickle
import sys
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


def test_a_noise_floor_above_tau_is_said_once_with_the_remedy(caplog):
    weight, random = np.ones((24, 24), "f4"), np.random.default_rng(0)
    # Far below the rounding of f32 statistics: the proxy would be noise.
    options = dict(preset="reference", epsilon=1e-30, epsilon_max=1e-29, check_period=1, root=1)
    with caplog.at_level(logging.WARNING, logger="foam"):
        with foam.Optimizer({"weight": weight}, **options) as optimizer:
            for check in range(1, 31):
                optimizer.step({"weight": random.normal(size=(24, 24)).astype("f4")})
                assert bool(optimizer.stats()["findings"]) == (check >= 20)
            found = optimizer.stats()["findings"]
            (factor, *_) = optimizer.factor_stats()
    assert factor["noise_floor"] > 0.75 and factor["findings"] == ["noise_above_tau"]
    assert list(found) == ["noise_above_tau"] and "try statistic_dtype = f64, or epsilon = " in found["noise_above_tau"]
    (said,) = [record.getMessage() for record in caplog.records if "rounding" in record.getMessage()]
    assert said.startswith("noise_above_tau: ") and "parameter 'weight', axis 0" in said


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


@pytest.fixture
def eager_switching():
    """Threads take turns after every few bytecodes, so that races show."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def in_threads(count, work):
    """Runs ``work(number)`` in threads that start together; what they raised."""
    start, raised = threading.Barrier(count), []

    def body(number):
        start.wait()
        try:
            work(number)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=body, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def test_two_threads_on_one_optimizer_never_update_each_others_arrays(eager_switching):
    names = [f"p{index}" for index in range(6)]
    own = [{name: np.full(3, 100.0 * (number + 1), "f4") for name in names} for number in (0, 1)]
    taken = [0, 0]
    with foam.Optimizer(own[0], num_threads=1, policy="grafting_only", lr=0.01, weight_decay=0.0) as optimizer:

        def work(number):
            gradient = {name: np.ones(3, "f4") for name in names}
            while taken[number] < 300:
                before = {name: array.copy() for name, array in own[number].items()}
                try:
                    optimizer.step(gradient, params=own[number])
                except foam.BusyError:
                    # Refused whole: not even one array of ours may have moved.
                    assert all((own[number][name] == before[name]).all() for name in names)
                    continue
                taken[number] += 1
                assert all((own[number][name] < before[name]).all() for name in names), "a step went elsewhere"

        assert in_threads(2, work) == []
        assert optimizer.stats()["steps"] == 600


def test_closing_during_a_step_is_busy_and_closes_nothing():
    inside = []

    class Handler(logging.Handler):
        def emit(self, record):
            try:
                optimizer.close()
            except foam.FoamError as error:
                inside.append(error)

    logger, handler = logging.getLogger("foam"), Handler()
    logger.addHandler(handler)
    try:
        optimizer = foam.Optimizer(arrays(), max_factor_dim=40, inject_fault="evd_chosen", **OPTIONS)
        for grad in gradients(3):
            optimizer.step(grad)
    finally:
        logger.removeHandler(handler)
    assert inside and {type(error) for error in inside} == {foam.BusyError}
    assert not optimizer.closed and optimizer.stats()["steps"] == 3
    optimizer.close()
    assert optimizer.closed


def test_closing_races_with_steps_harmlessly(eager_switching):
    for _ in range(30):
        optimizer = foam.Optimizer({"w": np.ones(3, "f4")}, num_threads=1, policy="grafting_only")

        def work(number):
            try:
                if number == 0:
                    for _ in range(50):
                        optimizer.step({"w": np.ones(3, "f4")})
                else:
                    optimizer.close()
            except (foam.BusyError, foam.InvalidArgumentError):
                pass

        assert in_threads(2, work) == []
        optimizer.close()


class Interrupting(logging.Handler):
    """A handler during which the user presses Ctrl-C, once."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def emit(self, record):
        error, self.error = self.error, None
        if error is not None:
            raise error


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ZeroDivisionError])
def test_what_a_log_handler_raises_reaches_the_caller_after_the_step(error):
    logger, handler = logging.getLogger("foam"), Interrupting(error("pressed"))
    logger.addHandler(handler)
    weights, undisturbed = arrays(), arrays()
    try:
        with foam.Optimizer(weights, max_factor_dim=40, inject_fault="evd_chosen", **OPTIONS) as optimizer:
            grads = gradients(3)
            raised = []
            for grad in grads:
                try:
                    optimizer.step(grad)
                except error as caught:
                    raised.append(caught)
            assert [str(caught) for caught in raised] == ["pressed"]
            assert optimizer.stats()["steps"] == 3
    finally:
        logger.removeHandler(handler)
    # The interrupted step was taken whole.
    run(undisturbed, gradients(3), inject_fault="evd_chosen")
    assert bits(weights) == bits(undisturbed)


def test_text_with_a_nul_is_refused_and_not_cut(tmp_path):
    with foam.Optimizer(arrays()) as optimizer:
        for call in (optimizer.save, optimizer.load):
            with pytest.raises(foam.InvalidArgumentError, match=r"path '.*state\\x00\.bin': expected no NUL"):
                call(f"{tmp_path}/state\0.bin")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(foam.InvalidArgumentError, match=r"name 'w\\x00a': expected no NUL"):
        foam.Optimizer({"w\0a": np.ones(3, "f4"), "w\0b": np.ones(3, "f4")})
    with pytest.raises(foam.InvalidArgumentError, match=r"option 'policy' = 'foam\\x00x': expected no NUL"):
        foam.Optimizer(arrays(), policy="foam\0x")
    with pytest.raises(foam.InvalidArgumentError, match=r"preset 'paper\\x00': expected no NUL"):
        foam.Optimizer(arrays(), preset="paper\0")


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
