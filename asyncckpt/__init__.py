"""Save and load machine-learning checkpoints from asyncio code, to local disk or object storage."""

from asyncckpt import blocking
from asyncckpt.cancellation import CancellationToken, CancellationTokenSource
from asyncckpt.errors import (
    AccessDeniedError,
    AsyncCkptError,
    BucketNotFoundError,
    CheckpointError,
    CheckpointExistsError,
    CheckpointNotFoundError,
    ChecksumMismatchError,
    DataAbsentError,
    DecryptionError,
    DeleteFailuresError,
    FormatError,
    IncompleteCheckpointError,
    InvalidArgumentError,
    InvalidKeyError,
    LayoutError,
    LimitExceededError,
    MismatchError,
    MissingBaseError,
    MissingExtraError,
    NotEnoughMemoryError,
    NotRepresentableError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    OperationCancelledError,
    OutcomeUnknownError,
    RangeError,
    SignatureError,
    StorageError,
    StorageFullError,
    StorageTimeoutError,
    TensorNotFoundError,
    TruncatedError,
    UnavailableError,
    UnknownFormatError,
    UnsupportedDtypeError,
    UnsupportedOperationError,
    UnsupportedStateError,
    UnsupportedVersionError,
)
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.formats.kit.metadata_json import MetadataSerializer
from asyncckpt.formats.mlcp.file import SingleFileCheckpointFormat
from asyncckpt.formats.registry import format_names, get_format
from asyncckpt.model.metadata import (
    CheckpointMetadata,
    ShardingMetadata,
    ShardMetadata,
    TensorMetadata,
    TrainingMetadata,
)
from asyncckpt.model.shard import ShardData
from asyncckpt.model.state.leaves import register_leaf
from asyncckpt.operations.add_metadata import add_metadata
from asyncckpt.operations.checkpoint import Checkpoint, open_checkpoint
from asyncckpt.operations.convert import ConvertReport, convert, migrate
from asyncckpt.operations.diff import DiffReport, TensorChange, diff
from asyncckpt.operations.load import LoadReport, load, load_with_report
from asyncckpt.operations.location import LocationWithOptions, at
from asyncckpt.operations.save import SaveResult, save
from asyncckpt.operations.single_file import SingleFileLoader, SingleFileSaver
from asyncckpt.operations.verify import Problem, VerifyReport, verify
from asyncckpt.progress import Phase, ProgressEvent
from asyncckpt.storage.base import Capabilities, ICheckpointStorage, ObjectInfo
from asyncckpt.storage.factory import open_storage
from asyncckpt.storage.local import LocalStorage
from asyncckpt.storage.memory import MemoryStorage
from asyncckpt.storage.retry import RetryPolicy

__version__ = "0.1.0"

__all__ = [
    "AccessDeniedError",
    "AsyncCkptError",
    "BucketNotFoundError",
    "CancellationToken",
    "CancellationTokenSource",
    "Capabilities",
    "Checkpoint",
    "CheckpointError",
    "CheckpointExistsError",
    "CheckpointMetadata",
    "CheckpointNotFoundError",
    "ChecksumMismatchError",
    "ConvertReport",
    "DataAbsentError",
    "DecryptionError",
    "DeleteFailuresError",
    "DiffReport",
    "FormatError",
    "ICheckpointFormat",
    "ICheckpointStorage",
    "IncompleteCheckpointError",
    "InvalidArgumentError",
    "InvalidKeyError",
    "LayoutError",
    "LimitExceededError",
    "LoadReport",
    "LocalStorage",
    "LocationWithOptions",
    "MemoryStorage",
    "MetadataSerializer",
    "MismatchError",
    "MissingBaseError",
    "MissingExtraError",
    "NotEnoughMemoryError",
    "NotRepresentableError",
    "ObjectChangedError",
    "ObjectExistsError",
    "ObjectInfo",
    "ObjectNotFoundError",
    "OperationCancelledError",
    "OutcomeUnknownError",
    "Phase",
    "Problem",
    "ProgressEvent",
    "RangeError",
    "RetryPolicy",
    "SaveResult",
    "ShardData",
    "ShardMetadata",
    "ShardingMetadata",
    "SignatureError",
    "SingleFileCheckpointFormat",
    "SingleFileLoader",
    "SingleFileSaver",
    "StorageError",
    "StorageFullError",
    "StorageTimeoutError",
    "TensorChange",
    "TensorMetadata",
    "TensorNotFoundError",
    "TrainingMetadata",
    "TruncatedError",
    "UnavailableError",
    "UnknownFormatError",
    "UnsupportedDtypeError",
    "UnsupportedOperationError",
    "UnsupportedStateError",
    "UnsupportedVersionError",
    "VerifyReport",
    "add_metadata",
    "at",
    "blocking",
    "convert",
    "diff",
    "format_names",
    "get_format",
    "load",
    "load_with_report",
    "migrate",
    "open_checkpoint",
    "open_storage",
    "register_leaf",
    "save",
    "verify",
]
