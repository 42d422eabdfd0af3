"""An EC2 on this machine: moto answers the API, systemd-nspawn guests are the instances."""
