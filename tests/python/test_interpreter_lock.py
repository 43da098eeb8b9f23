"""The time that ``next`` takes to get the interpreter lock back, told in ``stats``."""

import threading

import forebay


def lock_times(config, busy_threads):
    """The figures after two epochs, beside so many threads that never wait. Batches are waited for, unless other
    processes keep the trainer off the cores for so long that some are ready."""
    over = threading.Event()

    def keep_busy():
        while not over.is_set():
            sum(range(100))

    threads = [threading.Thread(target=keep_busy) for _ in range(busy_threads)]
    with forebay.Loader(config([{"op": "delay", "milliseconds": 2}])) as loader:
        for thread in threads:
            thread.start()
        try:
            for _ in range(2):
                for _ in loader:
                    pass
            return loader.stats()["client"]["interpreter_lock_seconds"]
        finally:
            over.set()
            for thread in threads:
                thread.join()


def test_threads_that_keep_the_interpreter_busy_show_in_the_lock_time(config):
    # Where other processes keep the busy threads off the cores, they do not have the lock: measured again.
    for _ in range(5):
        alone, beside = lock_times(config, 0), lock_times(config, 2)
        for times in (alone, beside):
            assert 1 <= times["count"] <= 10, times
            assert 0 < times["p50"] <= times["p99"] <= times["max"] <= times["total"], times
        # A busy thread gives the lock up after 5 ms, sooner where it is off its core; alone nobody has it.
        if beside["p50"] > 0.001 and alone["p50"] < beside["p50"] / 4:
            return
    raise AssertionError(f"{alone} alone, {beside} beside two busy threads")


def test_batches_that_are_ready_are_not_counted(config):
    with forebay.Loader(config()) as loader:
        before = loader.stats()["client"]["interpreter_lock_seconds"]
        assert before == {"count": 0, "total": 0.0, "p50": 0.0, "p99": 0.0, "max": 0.0}
        for _ in loader:
            pass
        client = loader.stats()["client"]
        assert client["interpreter_lock_seconds"]["count"] <= client["batches"]
