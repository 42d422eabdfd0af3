"""Tools for developers of AMI Kiln: benches, linters, the test runner."""
