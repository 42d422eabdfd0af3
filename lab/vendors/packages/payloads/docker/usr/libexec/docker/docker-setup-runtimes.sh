#!/bin/sh
# AMI Kiln lab stand-in for what Amazon's docker package runs before dockerd: a file of /etc/docker-runtimes.d
# becomes a runtime of its name.
runtimes=
for file in /etc/docker-runtimes.d/*; do
    if [ -x "$file" ] && [ -f "$file" ]; then
        runtimes="$runtimes --add-runtime ${file##*/}=$file"
    fi
done
echo "DOCKER_ADD_RUNTIMES=\"${runtimes# }\"" > /run/docker/runtimes.env
