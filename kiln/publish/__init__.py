"""From a verified AMI to the teams that launch it: copies, channels, promotion, retirement."""
