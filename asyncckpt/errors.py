"""The whole error tree, grouped by what a handler does next.

::

    AsyncCkptError
    ├── StorageError                 the medium said no
    │   ├── ObjectNotFoundError      (FileNotFoundError)   check the key or the bucket
    │   │   └── BucketNotFoundError                        create the bucket, or check its name
    │   ├── ObjectExistsError        (FileExistsError)     choose another key, or overwrite
    │   ├── AccessDeniedError        (PermissionError)     fix credentials or permissions
    │   ├── RangeError               (ValueError)          the object is shorter than asked for
    │   ├── ObjectChangedError                             open again: another version is there now
    │   ├── StorageFullError                               free some space
    │   ├── StorageTimeoutError      (TimeoutError)        try later
    │   ├── UnavailableError         (ConnectionError)     try later, or fix the endpoint
    │   ├── OutcomeUnknownError                            look whether the write id arrived
    │   ├── DeleteFailuresError                            delete those that it names again
    │   ├── UnsupportedOperationError                      this storage can't promise that
    │   └── InvalidKeyError          (ValueError)          fix the key
    ├── FormatError                  (ValueError)  the bytes are not what they should be
    │   ├── UnknownFormatError                             name the format, or it is not a checkpoint
    │   ├── UnsupportedVersionError                        upgrade, or migrate the file
    │   ├── UnsupportedDtypeError                          choose another format or dtype
    │   ├── TruncatedError                                 the file is cut: use another one
    │   ├── LimitExceededError                             a length is beyond what is allowed
    │   ├── LayoutError                                    the file contradicts itself
    │   ├── ChecksumMismatchError                          the file is damaged: use another one
    │   ├── DataAbsentError                                the file lists tensors but holds no bytes
    │   ├── NotRepresentableError                          the format can't hold this state
    │   ├── DecryptionError                                the key is missing or wrong
    │   ├── SignatureError                                 the signature is missing or wrong
    │   └── MissingBaseError                               give the base of the delta
    ├── CheckpointError              the checkpoint as a whole
    │   ├── CheckpointNotFoundError  (FileNotFoundError)   check the location
    │   ├── CheckpointExistsError    (FileExistsError)     choose another name, or overwrite
    │   ├── IncompleteCheckpointError                      find the file that is missing
    │   ├── TensorNotFoundError      (KeyError)            check the name
    │   ├── MismatchError            (ValueError)          state and checkpoint do not fit
    │   ├── NotEnoughMemoryError     (MemoryError)         load less at once, or into arrays that exist
    │   └── UnsupportedStateError    (TypeError)           leave it out, or convert it first
    ├── InvalidArgumentError         (ValueError, TypeError)  fix the call
    ├── MissingExtraError            (ImportError)         the message has the pip line
    └── OperationCancelledError      a cancellation token fired
"""

from __future__ import annotations

from typing import Self


class AsyncCkptError(Exception):
    """The root: every error that asyncckpt raises on purpose is one of these.

    All of them survive pickle and copy, with their text, fields and notes: they cross processes.
    """

    def __str__(self) -> str:
        # KeyError and OSError format their arguments in ways of their own; one line is enough here.
        return str(self.args[0]) if self.args else type(self).__name__

    def __reduce__(self) -> tuple[object, ...]:
        # By default `__init__` would be called with the finished text, and without the fields it needs.
        _, args, *fields = tuple(super().__reduce__())
        return _restored, (type(self), args), *fields


def _restored(kind: type[AsyncCkptError], args: tuple[object, ...]) -> AsyncCkptError:
    error = kind.__new__(kind, *args)
    # The second base's own `__init__`: an ImportError keeps its text there.
    super(AsyncCkptError, error).__init__(*args)
    return error


class StorageError(AsyncCkptError):
    """The storage could not do what was asked."""

    driver_said: str | None = None
    """The text of the driver's own error, without secrets, where that error was dropped because of them."""


class ObjectNotFoundError(StorageError, FileNotFoundError):
    """There is no object (or no bucket, or no folder) of that name."""


class BucketNotFoundError(ObjectNotFoundError):
    """There is no such bucket: nothing can be said of the objects in it."""


class ObjectExistsError(StorageError, FileExistsError):
    """An exclusive create found an object of that name."""


class AccessDeniedError(StorageError, PermissionError):
    """The storage refused the credentials or the permission."""


class RangeError(StorageError, ValueError):
    """The byte range lies outside the object."""


class ObjectChangedError(StorageError):
    """The object was replaced while it was being read."""


class StorageFullError(StorageError):
    """No space (or quota) is left on the storage."""


class StorageTimeoutError(StorageError, TimeoutError):
    """The storage did not answer in time."""


class UnavailableError(StorageError, ConnectionError):
    """The storage can't be reached, or says that it is overloaded."""


class OutcomeUnknownError(StorageError):
    """A commit was sent and the storage never said how it ended; `write_id` tells ours from others'."""

    def __init__(self, message: str, *, write_id: str) -> None:
        super().__init__(message)
        self.write_id = write_id


class DeleteFailuresError(StorageError):
    """Some of many objects could not be deleted; `failures` has the error of each, by its key."""

    def __init__(self, message: str, *, failures: dict[str, StorageError]) -> None:
        super().__init__(message)
        self.failures = failures


class UnsupportedOperationError(StorageError):
    """This storage can't do that, or can't promise what was asked of it."""


class InvalidKeyError(StorageError, ValueError):
    """The key is malformed or would leave the storage's root."""


class FormatError(AsyncCkptError, ValueError):
    """The bytes are not a valid file of the format.

    `location` is the file, `tensor` whose bytes they are, `advice` what to do next: each where it is known.
    """

    location: str | None = None
    tensor: str | None = None
    advice: str | None = None

    def __str__(self) -> str:
        line = super().__str__()
        if self.location is not None:
            line = f"{self.location}: {line}"
        return line if self.advice is None else f"{line}; {self.advice}"

    def locate(self, location: str, advice: str | None = None) -> None:
        """Say where it was found; a place that was named already lies inside this one."""
        self.location = location if self.location is None else f"{location}: {self.location}"
        self.advice = self.advice or advice


class UnknownFormatError(FormatError):
    """No registered format recognises the bytes, or no format has that name."""


class UnsupportedVersionError(FormatError):
    """The file's version is not one that this release reads."""


class UnsupportedDtypeError(FormatError):
    """The dtype is unknown, or the format can't store it."""


class TruncatedError(FormatError):
    """The file ends before its content does."""


class LimitExceededError(FormatError):
    """A count, length or depth is beyond what the format or this reader allows."""


class LayoutError(FormatError):
    """The file contradicts itself: overlaps, gaps, names or sizes that do not fit."""


class ChecksumMismatchError(FormatError):
    """Bytes differ from their checksum; `tensor` names what they belong to, where that is known."""

    def __init__(self, message: str, *, tensor: str | None = None) -> None:
        super().__init__(message)
        self.tensor = tensor


class DataAbsentError(FormatError):
    """The file lists the tensor but never held its bytes."""


class NotRepresentableError(FormatError):
    """The target format can't hold what it was given; `losses` lists all of it."""

    def __init__(self, message: str, *, losses: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.losses = losses


class DecryptionError(FormatError):
    """The key is missing or wrong, or the ciphertext was changed."""


class SignatureError(FormatError):
    """The signature is missing, or does not fit the file and the key."""


class MissingBaseError(FormatError):
    """A delta was opened without its base, or with another one."""


class CheckpointError(AsyncCkptError):
    """Something is wrong with the checkpoint as a whole."""


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """There is no checkpoint at the location."""


class CheckpointExistsError(CheckpointError, FileExistsError):
    """There is a checkpoint at the location already, and overwriting was not asked for."""


class IncompleteCheckpointError(CheckpointError):
    """Some files of the checkpoint are missing."""


class TensorNotFoundError(CheckpointError, KeyError):
    """The checkpoint has no tensor of that name."""


class MismatchError(CheckpointError, ValueError):
    """The state that was given and the checkpoint do not fit together."""


class NotEnoughMemoryError(CheckpointError, MemoryError):
    """What was to be read does not fit into this process's memory."""

    def __new__(cls, *args: object) -> Self:
        # MemoryError's own is meant for itself alone, and would be found first.
        return Exception.__new__(cls, *args)


class UnsupportedStateError(CheckpointError, TypeError):
    """The state holds something that can't be stored; the message has its path."""


class InvalidArgumentError(AsyncCkptError, ValueError, TypeError):
    """An argument or option is not what it must be; the message has its name."""


class MissingExtraError(AsyncCkptError, ImportError):
    """An optional dependency is not installed; the message has the line that installs it."""


class OperationCancelledError(AsyncCkptError):
    """A cancellation token fired; `reason` is what its source said."""

    def __init__(self, reason: str | None = None) -> None:
        super().__init__("cancelled" if reason is None else f"cancelled: {reason}")
        self.reason = reason
