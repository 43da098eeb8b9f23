"""What can go wrong, by what you can do about it."""


class Error(Exception):
    """The base of every exception of Forebay. Raised itself for storage that failed after all retries, for memory that
    the machine does not grant, and for daemons and clients of different versions."""


class ConfigError(Error):
    """A mistake in the configuration, the data set's folder, the target, the rank or an argument."""


class BadSample(Error):
    """A sample that cannot be used, under ``on_bad_sample = "fail"`` or past the budget. Names file and reason."""


class DaemonLost(Error):
    """The daemon is gone. What it had published before was delivered first; arrays that you hold stay valid."""


class Timeout(Error, TimeoutError):
    """Nothing moved anywhere for ``timeout`` seconds. Says what was waited for."""


class HoldLimit(Error):
    """More batches are held than ``ring.hold`` lets be kept. Drop them earlier, or keep copies (``array.copy()``)."""


class StateMismatch(Error):
    """A saved state belongs to another stream. Names each difference; ``force=True`` goes on all the same."""


class EpochsFinished(Error):
    """All configured epochs (``order.epochs``) were delivered."""
