"""Google Cloud Storage, over gcsfs's session."""
