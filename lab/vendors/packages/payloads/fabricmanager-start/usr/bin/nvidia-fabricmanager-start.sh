#!/bin/sh
# AMI Kiln lab stand-in for the start script of fabric manager @version@.
exec /usr/lib/kiln-lab/bin/nvidia-fabricmanager-start.sh "$@"
