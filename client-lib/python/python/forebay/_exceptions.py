"""The exceptions, grouped by what a user can do about them."""


class Error(Exception):
    """The base class of Forebay's exceptions. Raised itself for storage that failed after all retries, for missing
    memory, and for daemons and clients of different versions."""


class ConfigError(Error):
    """An error in the configuration, the dataset's folder, the target, the rank or an argument."""


class BadSample(Error):
    """A bad sample with ``on_bad_sample = "fail"``, or more bad samples than allowed. Names file and reason."""


class StageError(Error):
    """Your own function, a stage of the stream, raised an exception. Names stage, sample and file, and ends with the
    function's own traceback."""


class DaemonLost(Error):
    """The daemon is gone. Batches that it had published were handed over first; arrays stay valid."""


class Timeout(Error, TimeoutError):
    """No progress for ``timeout`` seconds. Says what was waited for."""


class HoldLimit(Error):
    """More batches are held than ``ring.hold`` allows, by the fields that the message names.

    Drop their arrays earlier, or keep copies: ``array.copy()``, ``tensor.clone()``.
    """


class StateMismatch(Error):
    """A saved state belongs to another stream. Names each difference; ``force=True`` accepts it."""


class EpochsFinished(Error):
    """All configured epochs (``order.epochs``) are finished."""
