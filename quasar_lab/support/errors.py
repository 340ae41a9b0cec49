"""One hierarchy of errors: everything a user can get wrong is a QuasarError with one clear sentence.

The sentence says what was given and what is accepted. The command line prints it on one line and exits with 2; any
other exception is a fault of ours and exits with 1.
"""


class QuasarError(Exception):
    """Base of all errors that a user can mend."""


class CheckpointError(QuasarError):
    """A model cannot be found, read or used."""


class RecipeError(QuasarError):
    """A quantization recipe is unknown, or a saved one does not fit."""


class CalibrationError(QuasarError):
    """Calibration text is missing, or the statistics it gives are unusable."""


class InputError(QuasarError):
    """An argument, prompt or option is outside what is accepted."""


class StorageError(QuasarError):
    """A file or folder cannot be written or used."""


class TraceError(QuasarError):
    """A trace file cannot be read."""


class BackendError(QuasarError):
    """The device or backend asked for cannot run here."""


class NotInThisVersion(QuasarError):
    """A documented name that this version does not have yet."""

    def __init__(self, name: str):
        super().__init__(f"{name}: not in this version")
