"""Installs beside other software and on the oldest versions; each script is one step of .ci/run."""
