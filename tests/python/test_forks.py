"""What a child of a trainer's fork finds in the loader and its batches."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import forebay
import numpy
import pytest
from support import WATCHDOG_SECONDS, indices

# Forks by `os.fork` or `multiprocessing`, calls `use` in the child and returns its exit code.
FORK = """
    import json, multiprocessing, os, sys, threading, time, forebay

    def fork(way, use):
        if way == "multiprocessing":
            child = multiprocessing.get_context("fork").Process(target=use)
            child.start()
            child.join()
            return child.exitcode
        child = os.fork()
        if child == 0:
            status = 1
            try:
                use()
                status = 0
            finally:
                os._exit(status)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""


def run(script, *arguments):
    """What a script prints as JSON. It runs in a process of its own: a child that hangs ends with it."""
    command = [sys.executable, "-c", textwrap.dedent(FORK) + textwrap.dedent(script), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        output, _ = process.communicate(timeout=WATCHDOG_SECONDS)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert process.returncode == 0
    return json.loads(output)


@pytest.mark.parametrize("way", ["os.fork", "multiprocessing"])
@pytest.mark.parametrize("call", ["next", "state_dict", "close"])
def test_a_child_forked_while_a_thread_waits_in_next_does_not_hang(slow, way, call):
    script = """
        loader = forebay.Loader(json.loads(sys.argv[1]))
        batches = iter(loader)

        def wait():
            try:
                next(batches)
            except forebay.Error:
                pass

        def use():
            if sys.argv[3] == "close":
                return loader.close()
            try:
                next(batches) if sys.argv[3] == "next" else loader.state_dict()
            except forebay.Error as error:
                assert "fork" in str(error), error
            else:
                raise AssertionError("the child went on with its parent's session")

        thread = threading.Thread(target=wait)
        thread.start()
        statuses = []
        for _ in range(3):
            # In the middle of a slice of the wait, most likely.
            time.sleep(0.11)
            statuses.append(fork(sys.argv[2], use))
        alive = thread.is_alive()
        state = loader.state_dict()
        loader.close()
        thread.join()
        print(json.dumps([statuses, alive, state["samples"]]))
    """
    assert run(script, json.dumps(slow()), way, call) == [[0, 0, 0], True, 0]


@pytest.mark.parametrize("way", ["os.fork", "multiprocessing"])
def test_the_use_of_a_parents_batch_is_an_exception_and_the_parent_keeps_it(config, way):
    script = """
        import numpy
        with forebay.Loader(json.loads(sys.argv[1])) as loader:
            batch = next(iter(loader))
            array = batch["array"]
            assert array.nbytes > 65536

            def use():
                uses = [
                    array.mean, array.sum, lambda: array + 1, lambda: 1 - array, lambda: array[0] * 2,
                    lambda: numpy.sqrt(array), lambda: array.astype("float32"), lambda: float(array[0, 0, 0]),
                    lambda: array == 0, array.max, lambda: str(array), lambda: numpy.asarray(array, "float32"),
                    lambda: bool(array.any()), lambda: numpy.concatenate([array, array]).mean(),
                ]
                for number, one in enumerate(uses):
                    try:
                        one()
                    except (forebay.Error, TypeError, ValueError) as error:
                        # Some of NumPy's functions give the error as the cause of their own.
                        assert "forked" in str(error.__cause__ or error), error
                    else:
                        raise AssertionError(f"use {number} did not raise")
                try:
                    array[0] = 1
                except (forebay.Error, ValueError):
                    pass
                else:
                    raise AssertionError("it was written to")
                # A small field is a copy.
                assert batch["index"].tolist() == list(range(8)) and array.shape == (8, 3, 3072)

            status = fork(sys.argv[2], use)
            print(json.dumps([status, array[:, 0, 0].tolist(), str(array.dtype), array.flags.writeable]))
    """
    assert run(script, json.dumps(config()), way) == [0, [float(row) for row in range(8)], "float32", True]


def test_the_rows_of_a_ragged_field_are_an_exception_too_and_arrays_come_and_go(config, ragged):
    script = """
        made = json.loads(sys.argv[1])
        made["output"]["tokens"]["max_bytes"] = "64KiB"
        with forebay.Loader(made) as loader:
            batch = next(iter(loader))
            tokens = batch["tokens"]
            # Views and arrays that are gone leave nothing to replace.
            view = tokens.lengths[:2]
            del batch

            def use():
                for one in (lambda: tokens[1].sum(), tokens.copy, lambda: tokens.lengths.sum()):
                    try:
                        one()
                    except forebay.Error as error:
                        assert "forked" in str(error), error
                    else:
                        raise AssertionError("it did not raise")

            print(json.dumps([fork("os.fork", use), tokens[3].tolist(), view.tolist()]))
    """
    assert run(script, json.dumps(ragged())) == [0, [0, 1, 2], [0, 1]]


def test_a_child_may_have_a_loader_of_its_own_and_its_batches(config):
    with forebay.Loader(config()) as loader:
        batch = next(iter(loader))
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with forebay.Loader(config()) as own:
                    rows = [row for each in own for row in each["array"][:, 0, 0].tolist()]
                status = 0 if rows == list(range(40)) else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert numpy.array_equal(batch["array"][:, 0, 0], range(8))
        assert indices([batch]) == list(range(8))
