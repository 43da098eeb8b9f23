"""The exceptions, grouped by what a user can do about them."""


class Error(Exception):
    """The base class of Forebay's exceptions. Raised itself for storage that failed after all retries, missing memory,
    another version, a rank that another client holds, a failed GPU call, and loaders that are closed or were forked."""


class ConfigError(Error):
    """An error in the configuration, the dataset's folder, the target, the rank or an argument."""


class BadSample(Error):
    """A bad sample with ``on_bad_sample = "fail"``, or more bad samples than allowed. Names file and reason."""


class StageError(Error):
    """Your own function, a stage of the stream, raised an exception or cannot be called any more. The message of an
    exception names stage, sample and file, and ends with the function's own traceback."""


class DaemonLost(Error):
    """The daemon has ended. Batches that it had published were handed over first; arrays stay valid."""


class Timeout(Error, TimeoutError):
    """No progress for ``timeout`` seconds. The message names what it waited for."""


class HoldLimit(Error):
    """More batches are held than ``ring.hold`` allows, or than ``device_hold`` allows on a GPU.

    Drop arrays earlier, first those of the fields that the message names, if it names any; or keep copies:
    ``array.copy()``, ``tensor.clone()``.
    """


class StateMismatch(Error):
    """A saved state belongs to another stream: each difference is named, and ``force=True`` accepts the state. Also: it
    is not a saved state, or the ranks were given different ones; ``force`` does not accept these."""


class EpochsFinished(Error):
    """All configured epochs (``order.epochs``) are finished."""
