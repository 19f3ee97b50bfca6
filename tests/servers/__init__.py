"""Real servers for the tests: MinIO (plain and TLS), SeaweedFS, fake-gcs-server and toxiproxy.

Tests take them from the fixtures in tests/conftest.py. Examples and benchmarks start their own:

    with start_minio() as server:
        bucket = server.new_bucket()
"""

from tests.servers.gcs import GcsBucket, GcsServer
from tests.servers.launch import (
    STARTERS,
    Started,
    start_fake_gcs,
    start_minio,
    start_minio_tls,
    start_seaweedfs,
    start_toxiproxy,
)
from tests.servers.process import ServerUnavailableError
from tests.servers.s3 import S3Bucket, S3Server
from tests.servers.toxiproxy import Proxy, Toxiproxy

__all__ = [
    "STARTERS",
    "GcsBucket",
    "GcsServer",
    "Proxy",
    "S3Bucket",
    "S3Server",
    "ServerUnavailableError",
    "Started",
    "Toxiproxy",
    "start_fake_gcs",
    "start_minio",
    "start_minio_tls",
    "start_seaweedfs",
    "start_toxiproxy",
]
