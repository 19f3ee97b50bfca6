"""S3, over s3fs's client and threads of our own."""
