#!/bin/sh
# AMI Kiln lab stand-in
exit 0
